"""The table of measured errors that travels with the package, written by ``benchmarks/calibrate_uncertainty.py``."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from simpar import files
from simpar.uncertainty.support import Evidence

PATH = Path(__file__).with_name("table.json")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class TimeErrors(_Part):
    """Errors of step times of runs that nothing was fitted to.

    The spread of log(measured / predicted) is ``base`` with all the support there can be; what is missing multiplies it
    by exp of the sum of ``lacking``, by aspect and how many pairs there are at most. ``low`` and ``high`` are the 5th
    and the 95th percentile in such spreads, ``layout`` the part of a spread in which layouts of one model on one
    cluster differ: the rest they have in common. No spread is below that of the runs themselves which parameters were
    fitted to, ``seen`` by stack and device where there are many.
    """

    base: float = Field(gt=0)
    lacking: dict[str, float]
    seen: dict[str, dict[str, float]] = {}
    low: float = Field(lt=0)
    high: float = Field(gt=0)
    layout: float = Field(gt=0, le=1)


class MemoryErrors(_Part):
    """Errors of memory, each a standard deviation in shares of what causes it.

    ``allocator`` of what comes and goes (blocks that cannot be reused, workspaces that are not listed),
    ``communicators`` of what lies outside the allocator, of a stack that ran out of memory in published runs and of
    another, ``imbalance`` (mean, standard deviation) how unlike the loads
    of experts are where nobody says it, ``habits`` of all that the allocator holds: what a stack keeps
    that is not known, with many, some and no runs that show its memory. ``bias`` is the part of
    what comes and goes by which needs are overestimated (negative) or underestimated; ``low`` and ``high`` are the 5th
    and 95th percentile of log(measured / predicted) of reserved peaks in their spreads.
    """

    bias: float
    allocator: float = Field(ge=0)
    communicators: tuple[float, float]
    imbalance: tuple[float, float]
    habits: tuple[float, float, float]
    low: float = Field(lt=0)
    high: float = Field(gt=0)


class LearnedErrors(_Part):
    """How errors of step times become those of a learnt profile (``benchmarks/learning_curve.py``).

    The spread that published runs give counts as ``weight`` layouts that were learnt from; nine in ten errors lie
    within ``high`` of the spreads that come out.
    """

    weight: float = Field(gt=0)
    high: float = Field(gt=0)


class Table(_Part):
    """All of it, with where it comes from. ``refused`` are stacks of published runs some of which ran out of memory."""

    provenance: str
    time: TimeErrors
    learned: LearnedErrors
    memory: MemoryErrors
    evidence: tuple[Evidence, ...]
    memory_runs: dict[str, int]
    refused: tuple[str, ...]


@lru_cache(maxsize=1)
def shipped() -> Table:
    """The table of this version. Raises UserError where it is damaged."""
    return files.parse(Table, json.loads(PATH.read_text()), source=str(PATH))
