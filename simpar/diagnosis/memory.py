"""Memory of a measured rank, held throughout its steps and transient, beside the prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simpar.dataclass import dataclass

if TYPE_CHECKING:
    from simpar.diagnosis.kineto import TracedMemory
    from simpar.diagnosis.measured import MeasuredStep
    from simpar.diagnosis.snapshot import SnapshotRun
    from simpar.report.result import Result


@dataclass(frozen=True)
class MemoryBeside:
    """The rank whose tensors held most, and the predicted memory of its pipeline stage, in bytes.

    ``least_bytes`` and ``peak_bytes`` are predicted: the least and the most over the step (the least is None if the
    result has no curve). ``parts_bytes`` are the categories at that peak, largest first. A trace has no categories.
    """

    rank: int
    measured: TracedMemory
    least_bytes: float | None
    peak_bytes: float
    parts_bytes: Mapping[str, float]


def find_fullest_rank(measured: MeasuredStep) -> tuple[int, TracedMemory] | None:
    """The rank whose tensors held most, and its memory; None if no trace recorded memory."""
    known = [(each.rank, each.memory) for each in measured.ranks if each.memory is not None]
    return max(known, key=lambda one: one[1].allocated_bytes, default=None)


def memory_beside(measured: MeasuredStep, result: Result, stages: list[int]) -> MemoryBeside | None:
    """The fullest rank beside its stage; ``stages`` gives the stage of every measured rank. None without memory."""
    fullest = find_fullest_rank(measured)
    if fullest is None:
        return None
    rank, memory = fullest
    at = stages[[each.rank for each in measured.ranks].index(rank)]
    planned = next(one for one in result.memory.stages if one.stage == at)
    parts = {name: size for name, size in planned.parts_bytes.items() if size}
    curve = None if result.overview is None else result.overview.of_pipeline_rank(at).memory
    return MemoryBeside(
        rank,
        memory,
        None if curve is None else float(curve.total_bytes.min()),
        planned.peak_bytes,
        dict(sorted(parts.items(), key=lambda item: -item[1])),
    )


def parts_beside(snapshot: SnapshotRun, result: Result) -> dict[str, tuple[float, float]]:
    """Parts of memory, measured and predicted for the fullest stage, in bytes.

    Context and buffers outside the allocator are in no snapshot, and what its frames leave open in no prediction.
    """
    fullest = max(result.memory.stages, key=lambda one: one.peak_bytes)
    predicted = {name: size for name, size in fullest.parts_bytes.items() if name != "overhead"}
    parts = {
        name: (snapshot.parts_bytes.get(name, 0.0), predicted.get(name, 0.0))
        for name in (*predicted, *snapshot.parts_bytes)
    }
    return {name: both for name, both in parts.items() if any(both)}
