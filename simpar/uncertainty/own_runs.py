"""Runs of the user's that a profile was learnt from, and how far predictions of others like them may be off.

What a profile was learnt from says more of layouts like those than what other people published: each was also
predicted from the others alone, and these errors are what the next layout may be off by. The spread that published
runs give beforehand counts as some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from simpar.uncertainty.step_time import StepTimeError
from simpar.uncertainty.support import ASPECTS, Evidence, Traits
from simpar.uncertainty.table import LearnedErrors


class OwnRuns(BaseModel):
    """Layouts of one kind that a profile was learnt from, on the ``cluster`` profile that was learnt with it.

    ``error`` is the root mean square of log(measured / predicted) of each, predicted from the others alone;
    ``peak_error`` that of the peak memory of the ``peaks`` of them whose memory was learnt from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    cluster: str
    traits: Traits
    layouts: int = Field(ge=1)
    error: float = Field(ge=0, allow_inf_nan=False)
    peaks: int = Field(0, ge=0)
    peak_error: float = Field(0.0, ge=0, allow_inf_nan=False)

    @property
    def evidence(self) -> Evidence:
        """The same as measured runs of one source."""
        return Evidence(self.cluster, "", self.layouts, self.traits)


class MeasuredLayout(BaseModel):
    """A layout that a profile was learnt from, on the ``cluster`` profile that was learnt with it.

    ``layout`` names it and ``kin`` the same on any number of nodes (:mod:`simpar.report.layouts`), ``shares`` say what
    its step is made up of, ``error`` is what is left of log(measured / predicted) with what was learnt.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    cluster: str
    layout: str
    kin: str
    label: str = ""
    shares: dict[str, float]
    step_time_s: PositiveFloat
    error: float = Field(allow_inf_nan=False)


def like(traits: Traits, runs: Sequence[OwnRuns]) -> list[OwnRuns]:
    """Those runs that share everything with a prediction."""
    return [own for own in runs if all(shares(traits, own.traits) for shares, _ in ASPECTS.values())]


def after(known: StepTimeError, runs: Sequence[OwnRuns], errors: LearnedErrors) -> StepTimeError:
    """The error of a prediction that was like some runs, once these are learnt from.

    The spread of before counts as ``errors.weight`` layouts. A bias is gone: the interval is symmetric. Layouts of one
    job differ by what they differed by, and by no more than all.
    """
    layouts = sum(own.layouts for own in runs)
    if not layouts:
        return known
    squares = errors.weight * known.spread**2 + sum(own.layouts * own.error**2 for own in runs)
    spread = sqrt(squares / (errors.weight + layouts))
    layout = min(max(1.0, spread / known.spread) * known.layout, spread)
    return StepTimeError(spread, layout, -errors.high * spread, errors.high * spread)
