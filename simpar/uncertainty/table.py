"""The table of measured errors that travels with the package, written by ``benchmarks/calibrate_uncertainty.py``."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from simpar import files
from simpar.calls import Strict
from simpar.uncertainty.support import Evidence

PATH = Path(__file__).with_name("table.json")


class TimeErrors(Strict):
    """Errors of step times of runs outside every fit.

    The spread of log(measured / predicted) is ``base`` with full support; missing support multiplies it by exp of the
    sum of ``lacking``, whose keys are aspects and numbers of pairs. ``low`` and ``high`` are the ends of the shortest
    interval of nine in ten errors, in units of the spread; ``layout`` is the part of a spread by which layouts of one
    model on one cluster differ, and the rest is common to them. A spread is never below that of the fitted runs
    themselves, which is ``seen`` by stack and device where there are many, and ``sorted`` of all runs in which Python
    sorts routed tokens. ``network`` bounds nine in ten logarithms of
    the time that a network takes over the predicted one, where no run tells its parameters; so does ``kernels``, to
    both sides, that of kernels on a device that no run shows: (one with measured shares of peak, its own or those of
    its kin; one of a data sheet alone).
    """

    base: float = Field(gt=0)
    lacking: dict[str, float]
    seen: dict[str, dict[str, float]] = Field(default_factory=dict)
    sorted: float = Field(default=0.0, ge=0)
    low: float = Field(lt=0)
    high: float = Field(gt=0)
    layout: float = Field(gt=0, le=1)
    network: tuple[Annotated[float, Field(le=0)], Annotated[float, Field(ge=0)]] = (0.0, 0.0)
    kernels: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (0.0, 0.0)


class MemoryErrors(Strict):
    """Errors of memory, each a standard deviation as a share of the bytes that cause it.

    ``gaps`` are the (mean, standard deviation) of what blocks that cannot be reused need beyond the prediction, in
    shares of it: there are gaps, so that the mean is above -1. ``workspaces`` is relative to bytes that come and go
    (workspaces that no profile lists), and so is ``planned``, by how much more a step needs whose buffers a compiler
    plans. ``communicators`` is relative to bytes outside the allocator, for a stack that ran out of memory in published
    runs and for others; ``habits`` to all bytes in the allocator: unknown tensors of a stack with many, some and no
    runs that show its memory. ``imbalance`` is the (mean, standard deviation) of the spread of experts' loads where a
    plan states none. ``low`` and ``high`` are the 5th and 95th percentile of log(measured / predicted) of reserved
    peaks, in units of their spreads.
    """

    gaps: tuple[Annotated[float, Field(gt=-1)], Annotated[float, Field(ge=0)]]
    workspaces: float = Field(ge=0)
    planned: float
    communicators: tuple[float, float]
    imbalance: tuple[float, float]
    habits: tuple[float, float, float]
    low: float = Field(lt=0)
    high: float = Field(gt=0)


class LearnedErrors(Strict):
    """Constants for the errors of step times under a learnt profile (``benchmarks/learning_curve.py``).

    The spread that published runs give counts as ``weight`` learnt layouts; nine in ten errors are within ``high``
    times the resulting spread.
    """

    weight: float = Field(gt=0)
    high: float = Field(gt=0)


class ErrorTable(Strict):
    """The whole table and its provenance. ``refused`` are stacks with published runs that ran out of memory."""

    provenance: str
    time: TimeErrors
    learned: LearnedErrors
    memory: MemoryErrors
    evidence: tuple[Evidence, ...]
    memory_runs: dict[str, int]
    refused: tuple[str, ...]


@lru_cache(maxsize=1)
def load_error_table() -> ErrorTable:
    """The table of this version. Raises UserError where it is damaged."""
    return files.parse(ErrorTable, json.loads(PATH.read_text()), source=str(PATH))
