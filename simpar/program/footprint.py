"""What every class of ranks holds at its worst: states, the simulated peak, the allocator, the context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simpar.cost.memory.allocator import Reservation, most_moving_bytes, overhead_bytes, reserve
from simpar.cost.memory.static import StaticMemory
from simpar.hardware.cluster import Cluster
from simpar.program.blocks.rank_view import Job
from simpar.program.ir.memory import MemoryUse, memory_uses
from simpar.program.ir.program import Timing
from simpar.program.lower import Lowered


@dataclass(frozen=True)
class Footprint:
    """Memory of one class of ranks in one simulated step of a job.

    ``overhead_bytes`` (context and communicators) lie outside the allocator, which grows no further than the device, of
    ``capacity_bytes``, lets it; ``held_outputs_bytes`` are freed, but in use by another stream.
    """

    job: Job
    stage: int
    static: StaticMemory
    use: MemoryUse
    held_outputs_bytes: float
    overhead_bytes: float
    capacity_bytes: float

    @property
    def peaks_between(self) -> bool:
        """Whether most is held between two steps: the copies that the gather of updated parameters leaves."""
        return bool(self.static.total_bytes > self.static.resident_bytes + self.use.peak_bytes)

    @property
    def moving_bytes(self) -> int:
        """Most that comes and goes above what is resident: at the simulated peak, or copies between two steps."""
        return max(self.use.peak_bytes, int(self.static.total_bytes - self.static.resident_bytes))

    @property
    def most_moving_bytes(self) -> float:
        """The most that may come and go on the device."""
        return most_moving_bytes(
            float(self.static.resident_bytes),
            self.capacity_bytes - self.overhead_bytes,
            self.job.stack.memory.allocator,
            alternates=self._alternates,
        )

    @property
    def allocated_bytes(self) -> float:
        """Highest number of bytes in tensors."""
        return float(self.static.resident_bytes + self.moving_bytes)

    @cached_property
    def reservation(self) -> Reservation:
        """What the allocator needs and reports."""
        return reserve(
            self.static.resident_bytes,
            self.moving_bytes,
            self.job.stack.memory.allocator,
            alternates=self._alternates,
            held_bytes=self.held_outputs_bytes,
            limit_bytes=self.capacity_bytes - self.overhead_bytes,
        )

    @property
    def _alternates(self) -> bool:
        return self.job.plan.num_microbatches(self.job.training.global_batch) > 1

    @property
    def reserved_bytes(self) -> float:
        """What the allocator reports as its reserved peak."""
        return float(self.reservation.reserved_bytes)

    @property
    def held_bytes(self) -> float:
        """What the device shows as used at the peak."""
        return self.overhead_bytes + self.reserved_bytes

    @property
    def needed_bytes(self) -> float:
        """The smallest device memory that this class runs in."""
        return self.overhead_bytes + float(self.reservation.needed_bytes)

    def fullness(self, share: float) -> float:
        """What it takes of the device, of which the process may report no more than a share: up to 1 it fits."""
        reported_bytes = self.held_bytes / share if share < 1.0 else 0.0
        return max(self.needed_bytes, reported_bytes) / self.capacity_bytes


def footprints(lowered: Lowered, timing: Timing, cluster: Cluster) -> tuple[Footprint, ...]:
    """Footprints of all classes, in order."""
    job, builders = lowered.job, lowered.builders
    devices = cluster.device_of(lowered.layout.representative_rank)
    stages = lowered.stage_of_class.tolist()
    standing = {
        stage: (
            builders[stage].static_memory(stage),
            builders[stage].held_outputs_bytes(stage),
            float(overhead_bytes(builders[stage].num_communicators(stage), job.stack, cluster)),
        )
        for stage in set(stages)
    }
    found = []
    for stage, device, use in zip(stages, devices, memory_uses(lowered.program, timing), strict=True):
        static, held, overhead = standing[stage]
        capacity = cluster.devices[int(device)].memory_bytes
        found.append(Footprint(job, stage, static, use, held, overhead, capacity))
    return tuple(found)
