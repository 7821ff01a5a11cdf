"""A user's runs from which a profile was learnt, and how far predictions of other layouts like them may be off.

Such runs tell more about similar layouts than published runs of others: each was also predicted from the others alone,
and these errors show how far the next layout may be off. The spread that published runs give beforehand counts as a
number of such layouts.
"""

from collections.abc import Sequence
from math import sqrt

from pydantic import Field, PositiveFloat

from simpar.calls import Strict
from simpar.uncertainty.step_time import StepTimeError
from simpar.uncertainty.support import ASPECTS, Evidence, Traits
from simpar.uncertainty.table import LearnedErrors


class OwnRuns(Strict):
    """Layouts with the same traits from which a profile was learnt, on the ``cluster`` profile learnt with it.

    ``error`` is the root mean square of log(measured / predicted), each layout predicted from the others alone;
    ``peak_error`` is that of peak memory, for the ``peaks`` layouts whose memory was learnt from.
    """

    cluster: str
    traits: Traits
    layouts: int = Field(ge=1)
    error: float = Field(ge=0, allow_inf_nan=False)
    peaks: int = Field(0, ge=0)
    peak_error: float = Field(0.0, ge=0, allow_inf_nan=False)

    @property
    def evidence(self) -> Evidence:
        """These layouts as measured runs of one source."""
        return Evidence(self.cluster, "", self.layouts, self.traits)


class MeasuredLayout(Strict):
    """A layout from which a profile was learnt, on the ``cluster`` profile learnt with it.

    ``layout`` names it, ``kin`` names it for any number of nodes (:mod:`simpar.report.layouts`). ``shares`` are those
    of the parts of its step, ``error`` is log(measured / predicted) with the learnt profile.
    """

    cluster: str
    layout: str
    kin: str
    label: str = ""
    shares: dict[str, float]
    step_time_s: PositiveFloat
    error: float = Field(allow_inf_nan=False)


def match_runs(traits: Traits, runs: Sequence[OwnRuns]) -> list[OwnRuns]:
    """The runs that share all aspects with a prediction."""
    return [own for own in runs if all(shares(traits, own.traits) for shares, _ in ASPECTS.values())]


def after(known: StepTimeError, runs: Sequence[OwnRuns], errors: LearnedErrors) -> StepTimeError:
    """The error of a prediction like some runs, after learning from these.

    The earlier spread counts as ``errors.weight`` layouts. Bias is learnt away, so the interval is symmetric. The
    spread between layouts of one job stays as it was, but is at most the whole spread.
    """
    layouts = sum(own.layouts for own in runs)
    if not layouts:
        return known
    squares = errors.weight * known.spread**2 + sum(own.layouts * own.error**2 for own in runs)
    spread = sqrt(squares / (errors.weight + layouts))
    layout = min(max(1.0, spread / known.spread) * known.layout, spread)
    return StepTimeError(spread, layout, -errors.high * spread, errors.high * spread)
