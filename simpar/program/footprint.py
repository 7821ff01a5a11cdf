"""What every class of ranks holds at its worst: states, the simulated peak, the allocator, the context."""

from __future__ import annotations

from dataclasses import dataclass

from simpar.cost.memory import StaticMemory, overhead_bytes
from simpar.cost.memory.allocator import Reservation
from simpar.hardware.cluster import Cluster
from simpar.program.ir.memory import MemoryUse, memory_uses
from simpar.program.ir.program import Timing
from simpar.program.lower import Lowered


@dataclass(frozen=True)
class Footprint:
    """Memory of one class of ranks in one simulated step.

    ``overhead_bytes`` (context and communicators) lie outside the allocator; ``reservation`` is the allocator's
    and grows no further than the device, of ``capacity_bytes``, lets it.
    """

    stage: int
    static: StaticMemory
    use: MemoryUse
    reservation: Reservation
    overhead_bytes: float
    capacity_bytes: float

    @property
    def peaks_between(self) -> bool:
        """Whether most is held between two steps: the copies that the gather of updated parameters leaves."""
        return bool(self.static.total_bytes > self.static.resident_bytes + self.use.peak_bytes)

    @property
    def allocated_bytes(self) -> float:
        """Highest number of bytes in tensors."""
        return float(self.static.resident_bytes + moving_bytes(self.static, self.use))

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

    def fits_in(self, share: float) -> bool:
        """Whether the process fits on the device, and reports no more than a share of it."""
        full = self.needed_bytes > self.capacity_bytes
        return not full and (share >= 1.0 or self.held_bytes <= share * self.capacity_bytes)


def moving_bytes(static: StaticMemory, use: MemoryUse) -> int:
    """Most that comes and goes above what is resident during passes: the simulated peak, or copies between steps."""
    return max(use.peak_bytes, int(static.total_bytes - static.resident_bytes))


def footprints(lowered: Lowered, timing: Timing, cluster: Cluster) -> tuple[Footprint, ...]:
    """Footprints of all classes, in order; the moving part is the simulated curve, not a closed form."""
    job = lowered.builder.job
    device = [
        cluster.devices[int(index)].memory_bytes
        for index in cluster.device_of(lowered.layout.representative_rank)
    ]
    stages = lowered.stage_of_class.tolist()
    closed = {stage: lowered.builder.peak_memory(stage) for stage in set(stages)}
    overhead = {
        stage: overhead_bytes(lowered.builder.num_communicators(stage), job.stack, cluster)
        for stage in set(stages)
    }
    static = {stage: lowered.builder.static_memory(stage) for stage in set(stages)}
    return tuple(
        Footprint(
            stage=stage,
            static=static[stage],
            use=use,
            reservation=closed[stage]
            .exactly(moving_bytes(static[stage], use))
            .reservation(job.stack, limit_bytes=capacity - overhead[stage]),
            overhead_bytes=overhead[stage],
            capacity_bytes=capacity,
        )
        for stage, capacity, use in zip(stages, device, memory_uses(lowered.program, timing), strict=True)
    )
