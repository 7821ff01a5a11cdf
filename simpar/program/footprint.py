"""Peak memory of every class of ranks: states, the simulated peak, allocator and context; and memory of the host."""

from collections.abc import Sequence
from dataclasses import astuple, replace
from functools import cached_property

import numpy as np

from simpar.cost.memory.allocator import Reservation, memory_risk, most_moving_bytes, overhead_bytes, reserve
from simpar.cost.memory.bound import flights
from simpar.cost.memory.routed import experts_risk_bytes
from simpar.cost.memory.terms import StaticMemory
from simpar.cost.offload import HostMemory, host_memory
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.choices.pipeline import CUSTOM
from simpar.plan.schedules import looks_at_costs
from simpar.program.ir.memory import MemoryUse, memory_uses
from simpar.program.ir.program import Timing
from simpar.program.job import TrainingJob
from simpar.program.lower import Lowered
from simpar.program.structure.stages import StageBuilder
from simpar.uncertainty.memory import AS_PREDICTED, MemoryRisk, Parts
from simpar.uncertainty.table import load_error_table
from simpar.units import Numbers


@dataclass(frozen=True)
class Footprint:
    """Memory of one class of ranks in one simulated step of a job.

    ``overhead_bytes`` (context and communicators) lie outside the allocator, which has the rest of ``capacity_bytes``;
    ``held_outputs_bytes`` are freed, but in use by another stream. ``experts_bytes`` is (mean, standard deviation) of
    the routed tokens on the fullest rank beyond those that are predicted; ``risk`` covers all other errors.
    """

    job: TrainingJob
    stage: int
    static: StaticMemory
    use: MemoryUse
    held_outputs_bytes: float
    overhead_bytes: float
    capacity_bytes: float
    risk: MemoryRisk
    experts_bytes: tuple[float, float] = (0.0, 0.0)

    @property
    def peaks_between(self) -> bool:
        """Whether memory peaks behind the passes: in the update, or in the gather of updated parameters."""
        return bool(self.static.end_bytes > self.static.resident_bytes + self.use.peak_bytes)

    @cached_property
    def moving_bytes(self) -> int:
        """The most bytes above the resident ones: at the simulated peak, or behind the passes."""
        return max(self.use.peak_bytes, int(self.static.end_bytes - self.static.resident_bytes))

    def most_moving_bytes(self, probability: float = AS_PREDICTED) -> float:
        """The most bytes that may come and go while the class still fits on its device with some probability."""
        limit_bytes, habits = self.capacity_bytes - self.overhead_bytes, self.job.stack.memory.allocator
        static = float(self.static.resident_bytes)

        def room(risk_bytes: Numbers) -> Numbers:
            return most_moving_bytes(static, limit_bytes - float(risk_bytes), habits, alternates=self._alternates)

        return float(self.risk.most_moving_bytes(probability, self.parts_bytes, room))

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
        return self.job.accumulates

    @property
    def reserved_bytes(self) -> float:
        """What the allocator reports as its reserved peak."""
        return float(self.reservation.reserved_bytes)

    @cached_property
    def held_bytes(self) -> float:
        """What the device shows as used at the peak."""
        return self.overhead_bytes + self.reserved_bytes

    @cached_property
    def needed_bytes(self) -> float:
        """The smallest device memory that this class runs in."""
        return self.overhead_bytes + float(self.reservation.needed_bytes)

    @cached_property
    def parts_bytes(self) -> Parts:
        """The bytes that it needs, split by source of error."""
        inside = float(self.static.resident_bytes), float(self.moving_bytes)
        gaps = float(self.job.stack.memory.allocator.tight_gaps(self._alternates))
        return Parts(*inside, self.overhead_bytes, *self.experts_bytes, gaps)

    @property
    def fit_causes(self) -> dict[str, float]:
        """The share of every source of error in the memory that must stay free for this class to fit."""
        return self.risk.shares(self.parts_bytes)

    @cached_property
    def fit_probability(self) -> float:
        """The probability that this class fits on its device."""
        return self.risk.fit_probability(self.capacity_bytes, self.needed_bytes, self.parts_bytes)

    def needed_at(self, probability: float) -> float:
        """The device memory that this class runs in with some probability."""
        return float(self.risk.needed_bytes(probability, self.needed_bytes, self.parts_bytes))

    @property
    def held_interval_bytes(self) -> tuple[float, float]:
        """The range of :attr:`held_bytes` in nine of ten cases; it ends at the device's memory where the class fits."""
        low, high = self.reserved_interval_bytes
        return self.overhead_bytes + low, self.overhead_bytes + high

    @property
    def reserved_interval_bytes(self) -> tuple[float, float]:
        """The range of the allocator's reported peak in nine of ten cases; it ends at what the allocator may have.

        Where more than that is predicted, it is the range on a device with room for it.
        """
        low, high = self.risk.reserved_interval_bytes(self.reserved_bytes, self.parts_bytes)
        most = self.capacity_bytes - self.overhead_bytes
        return (low, high) if self.reserved_bytes > most else (min(low, most), min(high, most))

    def fullness(self, share: float, probability: float = AS_PREDICTED) -> float:
        """The part of the device that the class takes with some probability: at most 1 where it fits.

        ``share`` is the largest part of the device that the process may report as used.
        """
        reported_bytes = self.held_bytes / share if share < 1.0 else 0.0
        return max(self.needed_at(probability), reported_bytes) / self.capacity_bytes


def footprints(lowered: Lowered, timing: Timing, cluster: Cluster) -> tuple[Footprint, ...]:
    """Footprints of all classes, in order."""
    job, builders = lowered.job, lowered.maker.builders
    devices = cluster.device_of(lowered.quotient.representative_rank)
    stages = lowered.stage_of_class.tolist()
    communicators = {stage: builders[stage].num_communicators for stage in set(stages)}
    overheads = {count: float(overhead_bytes(count, job.stack, cluster)) for count in set(communicators.values())}
    standing = {
        stage: (
            builders[stage].static_memory(stage),
            builders[stage].held_outputs_bytes(stage, held_up=_held_up(lowered, stage, cluster)),
            overheads[communicators[stage]],
            _experts_risk_bytes(lowered, stage),
        )
        for stage in set(stages)
    }
    risks = [memory_risk(job.stack, part) for part in cluster.parts]
    parts = cluster.part_of(lowered.quotient.representative_rank).tolist()
    result, uses = [], memory_uses(lowered.program, timing)
    for stage, device, part, use in zip(stages, devices, parts, uses, strict=True):
        static, held, overhead, experts = standing[stage]
        capacity = cluster.devices[int(device)].memory_bytes
        result.append(Footprint(job, stage, static, use, held, overhead, capacity, risks[part], experts))
    return tuple(result)


def on_fullest_device(held: Sequence[Footprint]) -> list[Footprint]:
    """The classes on the kind of device that is fullest relative to its memory; peaks are reported for these."""
    capacity = max(held, key=lambda one: one.needed_bytes / one.capacity_bytes).capacity_bytes
    return [one for one in held if one.capacity_bytes == capacity]


def _held_up(lowered: Lowered, stage: int, cluster: Cluster) -> bool:
    """Whether late members of collectives hold up the host of a stage for so long that its device waits for it."""
    if not cluster.state.get("member_us") or not lowered.job.stack.memory.allocator.held_outputs:
        return False
    return lowered.maker.waits_for_host(lowered.stage_of_class.tolist().index(stage))


def _experts_risk_bytes(lowered: Lowered, stage: int) -> tuple[float, float]:
    """(Mean, standard deviation) in bytes of routed tokens on the fullest rank of a stage beyond the prediction.

    Taken at the schedule's moment, as the search does for arrays of layouts; greedy and custom schedules by their
    table.
    """
    builder, graph = lowered.maker.builders[stage], lowered.job.graph
    if not graph.is_mixture:
        return 0.0, 0.0
    assert isinstance(builder, StageBuilder), "no mixture has roles of its own"
    job, schedule = builder.job, lowered.maker.schedule
    layout, ranks, chunks = job.layout, schedule.num_ranks, int(job.layout.vpp)
    if layout.encoder_layers:  # the stages of text, without the encoder in their bubbles
        schedule = schedule_of(replace(layout, encoder_costs=None), job.training)
    own = schedule if layout.schedule == CUSTOM or looks_at_costs(layout.schedule) else None
    pipe = np.array([[ranks], [chunks], [job.num_microbatches]])
    layers = {(ranks, chunks): layout.stage_layers(len(graph.layers))}
    graph = replace(graph, layers=graph.layers[layout.encoder_layers :])
    first = np.zeros(1, dtype=np.int64)
    flight = flights(graph, ((layout.schedule,), first, own), layout.recompute, tuple(pipe), layers, (stage,))
    imbalance = load_error_table().memory.imbalance
    risk_bytes = experts_risk_bytes(graph, flight, builder.view.dims, (layout, job.stack), first, imbalance)
    mean, deviation = (float(np.max(each)) for each in risk_bytes)
    return mean, deviation


@dataclass(frozen=True)
class HostUse:
    """The fullest node: host bytes of all its ranks together, and the capacities of its memory and drives."""

    node: HostMemory
    capacity_bytes: float
    nvme_capacity_bytes: float

    @property
    def fits(self) -> bool:
        """Whether memory and drives of a node hold what its ranks keep there."""
        full = self.node.memory_bytes > self.capacity_bytes
        return not full and self.node.nvme_bytes <= self.nvme_capacity_bytes


def host_use(lowered: Lowered, cluster: Cluster) -> HostUse | None:
    """The fullest host of a job; None where nothing is offloaded."""
    job = lowered.job
    if not job.layout.offloads:
        return None
    held: dict[int, tuple[float, ...]] = {}
    for stage in set(lowered.stage_of_class.tolist()):
        builder, own = lowered.maker.builders[stage], lowered.maker.builders[stage].job
        share, still = (
            float(builder.sync.share(each))
            for each in (builder.parameters_of_rank(stage), builder.frozen_of_rank(stage))
        )
        kept = host_memory(
            own.layout, own.stack, share, still, _activations(lowered, stage), accumulates=own.accumulates
        )
        held[stage] = astuple(kept)
    by_class = np.array([held[stage] for stage in lowered.stage_of_class.tolist()])
    by_rank = by_class[lowered.quotient.class_of_rank]
    nodes = by_rank.reshape(cluster.nodes, -1, by_class.shape[1]).sum(axis=1)
    fullest = int(np.argmax(nodes[:, :-1].sum(axis=1)))
    host = cluster.profile.host
    drives = host.nvme_bytes if host.nvme_bytes is not None else np.inf
    optimizer, gradients, parameters, activations = nodes[fullest, :-1].tolist()
    node = HostMemory(optimizer, gradients, parameters, activations, float(nodes[:, -1].max()))
    return HostUse(node, host.memory_bytes, float(drives))


def _activations(lowered: Lowered, stage: int) -> float:
    """Peak bytes of offloaded activations along a pipeline rank's passes; a stage's last block keeps its own."""
    builder, share = lowered.maker.builders[stage], lowered.job.layout.offload_activations
    if not share:
        return 0.0
    letters, stages, _ = lowered.maker.schedule.letters(stage)
    units = {s: [builder.unit(piece) for piece in builder.pieces[s][:-1]] for s in set(stages.tolist())}
    each = {s: share * sum(unit.saved_bytes for unit in known) for s, known in units.items()}
    sign = {"F": 1.0, "B": -1.0, "I": 0.0, "W": -1.0}
    changes = [sign[letter] * each[s] for letter, s in zip(letters, stages.tolist(), strict=True)]
    return float(np.cumsum(changes).max(initial=0.0))
