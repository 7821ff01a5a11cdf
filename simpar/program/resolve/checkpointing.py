"""``recompute: optimal`` resolved: for every pipeline rank the choice by layer that fits with the least time."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import groupby

import numpy as np

from simpar.architectures.graph import Block
from simpar.architectures.recompute import FULL, MODULES, OPTIMAL, SIMPLE, by_layer, joint_mode, last_of, of_modules
from simpar.cost.activations import BlockActivations, block_activations
from simpar.cost.memory.moments import shorten_schedule
from simpar.dataclass import dataclass
from simpar.errors import Infeasible, UserError
from simpar.hardware.cluster import Cluster
from simpar.layout.layout import Layout
from simpar.plan.schedules.actions import CHANGE_IN_FLIGHT, Schedule
from simpar.program.job import TrainingJob
from simpar.program.resolve.pass_costs import PassesAlone
from simpar.program.resolve.recompute_choices import LayerRun, RecomputeChoice, choose
from simpar.program.structure.pieces import StageBlock
from simpar.units import NS_PER_S, Floats, format_bytes

ROUNDS, MORE_ROUNDS = 20, 3
"""The most choices to simulate until one fits, and once more from the memory beside a choice that fits."""
MOST_MODULES = 4
"""Number of a block's modules that are kept or dropped in every combination; more would be too many choices."""
Taken = tuple[tuple[str, int], ...]


Room = Mapping[int, tuple[float, float]]
"""By pipeline rank: bytes that come and go in a simulated step, and the most that would fit."""
Measure = Callable[[TrainingJob], Room]


def choose_recomputation(job: TrainingJob, cluster: Cluster, measure: Measure) -> str:
    """The choice by layer that ``recompute: optimal`` stands for. Raises UserError, Infeasible.

    ``measure`` simulates a job and returns its :data:`Room`.
    """
    check_optimal(job.layout, cluster)
    return _Checkpointing(job, cluster, measure).chosen().layout.recompute


def check_optimal(layout: Layout, cluster: Cluster) -> None:
    """Raise UserError where ``recompute: optimal`` is asked for and cannot be chosen."""
    own = layout.stages or cluster.is_mixed or layout.offload_activations
    if layout.recompute == OPTIMAL and own:
        raise UserError(
            "plan.recompute = optimal: not with stages of their own, several kinds of nodes or offload_activations; "
            "allowed: none of them"
        )


@dataclass(frozen=True)
class _Stretch:
    """Consecutive layers of one virtual stage with the same block."""

    virtual: int
    first: int
    block: Block
    length: int


@dataclass
class _RankBudget:
    """What a pipeline rank may choose from, the bytes that its choices may take, and those that the last ones took.

    ``flights`` float64[moments, runs] are microbatches in flight at the moments that may bind.
    """

    number: int
    stretches: list[_Stretch]
    runs: list[LayerRun]
    flights: Floats
    held_bytes: float = 0.0
    budget_bytes: float = 0.0

    def take(self, choices: list[list[tuple[RecomputeChoice, int]]]) -> dict[int, Taken]:
        """Set ``held_bytes`` for some choices and return these as plans write them, by first layer of every stretch."""
        saved = self.flights @ [sum(one.saved_bytes * count for one, count in taken) for taken in choices]
        self.held_bytes = float(saved.max()) + max(one.held_bytes for taken in choices for one, _ in taken)
        return {each.first: _text(taken) for each, taken in zip(self.stretches, choices, strict=True)}


@dataclass(frozen=True)
class _Checkpointing:
    """Choices of all pipeline ranks of a job."""

    job: TrainingJob
    cluster: Cluster
    measure: Measure

    def chosen(self) -> TrainingJob:
        """The job under the best choice of every rank; nothing is recomputed where everything fits.

        Choices get the memory that the simulated step leaves beside its other tensors. That is taken first from a step
        without recomputation and then, because such a step may peak elsewhere, from one with a choice that fits.
        """
        job = self._with("none")
        room = self.measure(job)
        if _fits(room):
            return job
        ranks = [self._rank(number) for number in sorted(room)]
        job, room = self._within([rank for rank in ranks if rank.runs], room, ROUNDS)
        try:
            return self._within([rank for rank in ranks if rank.runs], room, MORE_ROUNDS)[0]
        except Infeasible:
            return job

    def _within(self, ranks: list[_RankBudget], room: Room, rounds: int) -> tuple[TrainingJob, Room]:
        """The job under a choice that fits when it is simulated, and its room.

        The budget of a rank that holds too much shrinks by the excess, for at most ``rounds`` rounds. Raises
        Infeasible.
        """
        for rank in ranks:
            moving, most = room[rank.number]
            rank.budget_bytes = most - (moving - rank.held_bytes)
        for _ in range(rounds):
            taken: dict[int, Taken] = {}
            for rank in ranks:
                try:
                    taken |= rank.take(choose(rank.runs, rank.flights, rank.budget_bytes))
                except Infeasible:
                    raise _too_little(rank.number, room) from None
            job = self._under(taken)
            room = self.measure(job)
            if _fits(room):
                return job, room
            for rank in ranks:
                moving, most = room[rank.number]
                rank.budget_bytes -= max(moving - most, 0.0)
        raise _too_little(max(room, key=lambda number: room[number][0] - room[number][1]), room)

    def _rank(self, number: int) -> _RankBudget:
        """The choices of a rank, with everything kept as the last ones taken."""
        mine = [each for each in self.stretches if self.schedule.rank_of_stage[each.virtual] == number]
        runs = [LayerRun(each.length, self.choices(each.block, each.length)) for each in mine]
        rank = _RankBudget(number, mine, runs, self._in_flight(number, mine) if mine else np.zeros((0, 0)))
        if runs:
            rank.take([[(run.choices[0], run.length)] for run in runs])
        return rank

    @cached_property
    def stretches(self) -> tuple[_Stretch, ...]:
        """Stretches of all virtual stages in model order."""
        result = []
        for virtual, pieces in enumerate(self.alone.builder.pieces):
            layers = [piece for piece in pieces if 0 <= piece.layer < len(self.job.graph.layers)]
            for _, group in groupby(layers, key=lambda piece: piece.block.name):
                same = list(group)
                result.append(_Stretch(virtual, same[0].layer, same[0].block, len(same)))
        return tuple(result)

    @cached_property
    def alone(self) -> PassesAlone:
        """Passes of the job with everything kept."""
        return PassesAlone.of(self._with("none"), self.cluster)

    @cached_property
    def schedule(self) -> Schedule:
        """The plan's table with only as many microbatches as can change its peak."""
        return shorten_schedule(self.job.layout, self.job.training)

    def _in_flight(self, rank: int, mine: list[_Stretch]) -> Floats:
        """Microbatches in flight of every stretch, float64[moments, runs], at moments that no other one dominates."""
        codes, stages, _ = self.schedule.arrays(rank)
        signs = np.array(CHANGE_IN_FLIGHT)[codes]
        counts = np.stack([np.cumsum(signs * (stages == each.virtual)) for each in mine], axis=1)
        moments = np.unique(counts, axis=0)
        most = [m for m in moments if not ((moments >= m).all(axis=1) & (moments > m).any(axis=1)).any()]
        return np.array(most, dtype=np.float64)

    def choices(self, block: Block, length: int) -> tuple[RecomputeChoice, ...]:
        """All choices for layers of a block: keep it, drop parts, or recompute segments of layers from one input."""
        result = [self._choice(block, mode) for mode in (*SIMPLE, *module_policies(block))]
        full = next(choice for choice in result if choice.mode == FULL)
        for layers in range(2, length + 1):
            last = self._activations(block, last_of(layers))
            held = float(last.recomputed_bytes + last.backward_workspace_bytes)
            result.append(RecomputeChoice(joint_mode(layers), layers, full.saved_bytes, held, layers * full.again_s))
        return tuple(result)

    def _choice(self, block: Block, mode: str) -> RecomputeChoice:
        sizes = self._activations(block, mode)
        again_ns = self._backward_ns(block, mode) - self._backward_ns(block, "none")
        held = max(float(sizes.recomputed_bytes + sizes.backward_workspace_bytes), float(sizes.forward_workspace_bytes))
        return RecomputeChoice(mode, 1, float(sizes.saved_bytes), held, max(again_ns, 0) / NS_PER_S)

    def _activations(self, block: Block, mode: str) -> BlockActivations:
        job = self.job
        return block_activations(block, self.alone.builder.view.dims, job.stack, job.layout, mode)

    def _backward_ns(self, block: Block, mode: str) -> int:
        return self.alone.duration_ns(StageBlock(0, block, mode), "backward")

    def _under(self, taken: Mapping[int, Taken]) -> TrainingJob:
        """The job with choices for some stretches, and everything recomputed in the others."""
        modes = [pair for each in self.stretches for pair in taken.get(each.first, ((FULL, each.length),))]
        return self._with(by_layer(modes))

    def _with(self, recompute: str) -> TrainingJob:
        return replace(self.job, layout=replace(self.job.layout, recompute=recompute))


def _fits(room: Room) -> bool:
    return all(moving <= most for moving, most in room.values())


def _too_little(rank: int, room: Room) -> Infeasible:
    return Infeasible(
        f"plan.recompute = optimal: pipeline rank {rank} has {format_bytes(max(room[rank][1], 0.0))} for activations, "
        "too little even with everything recomputed"
    )


def module_policies(block: Block) -> list[str]:
    """Policies that drop any combination of the modules that a block has."""
    names = {op.name for op in block.operators}
    present = [name for name, operators in MODULES.items() if 2 * len(operators & names) > len(operators)]
    present = present[:MOST_MODULES]
    return [
        of_modules([name for at, name in enumerate(present) if bits >> at & 1]) for bits in range(1, 2 ** len(present))
    ]


def _text(choices: list[tuple[RecomputeChoice, int]]) -> Taken:
    """Choices as (mode, layers): segments first, then single layers, those that are kept last."""
    ordered = sorted(choices, key=lambda pair: (-pair[0].layers, -pair[0].again_s))
    return tuple((choice.mode, choice.layers * count) for choice, count in ordered)
