"""What memory peaks tell about a stack: what it keeps, and its allocator's gaps and workspaces.

They are learnt like parameters of step times (:mod:`simpar.learning.fit`), but separately: what a stack keeps changes
no kernel time, and no clock changes what is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from simpar.dataclass import dataclass
from simpar.learning.fit import Learned, Observed, Peak, Quantity, learn
from simpar.learning.parameters import MEMORY, RESERVED, Name
from simpar.units import GIB
from simpar.validation.predict import ParameterOverrides, cluster_of, predict
from simpar.validation.rows import Case

ABSURD = 10.0
"""A peak this many times above or below the prediction has another unit, or is of another run."""


@dataclass(frozen=True)
class LearnedMemory:
    """What was learnt from peaks: the layouts that have one, and the parameters; errors are in the layouts' order."""

    layouts: tuple[Observed, ...]
    learned: Learned


def learn_memory(layouts: Sequence[Observed]) -> LearnedMemory | None:
    """The most probable memory parameters given the peaks of some layouts; None if no layout has one."""
    shown = tuple(replace(run, scatter=0.0) for run in layouts if run.peak is not None)
    return LearnedMemory(shown, learn(shown, quantity=PEAK_MEMORY)) if shown else None


def merge_peaks(group: Sequence[Observed]) -> Peak | None:
    """One peak for the repeats of a layout, of the kind that the first of them has."""
    peaks = [run.peak for run in group if run.peak is not None]
    alike = [peak.size_bytes for peak in peaks if peak.counts == peaks[0].counts]
    return replace(peaks[0], size_bytes=float(np.exp(np.mean(np.log(alike))))) if peaks else None


def odd_peak(run: Observed) -> str:
    """Why a run's peak is not used, in words; empty if it is used, or if the run has none."""
    if run.peak is None:
        return ""
    peak_gib, has = run.peak.size_bytes / GIB, cluster_of(run.case).device.memory_bytes / GIB
    if peak_gib > has:
        return f"{peak_gib:,.2f} GiB are more than its device has ({has:.1f})"
    predicted = _predicted(run, ParameterOverrides()) / GIB
    if not 1 / ABSURD < peak_gib / predicted < ABSURD:
        return f"{peak_gib:,.2f} GiB measured and {predicted:.1f} predicted: is it in GiB?"
    return ""


def _names(case: Case, _: ParameterOverrides) -> Iterator[Name]:
    return (("stack", case.stack, key) for key in (*MEMORY, *RESERVED))


def _predicted(run: Observed, tuning: ParameterOverrides) -> float:
    assert run.peak is not None, "layouts with a peak alone are learnt from"
    return predict(run.case, tuning).peak_bytes(run.peak.counts)


def _measured(run: Observed) -> float:
    assert run.peak is not None, "layouts with a peak alone are learnt from"
    return run.peak.size_bytes


PEAK_MEMORY = Quantity(_measured, _predicted, _names)
