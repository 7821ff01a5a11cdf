"""``recompute: optimal`` resolved: for every pipeline rank the choice by layer that fits with the least time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from simpar.cost.activations import BlockActivations, block_activations
from simpar.cost.checkpointing import Choice, Run, choose
from simpar.cost.in_flight import short_schedule
from simpar.cost.memory import num_communicators, overhead_bytes
from simpar.cost.peak import peak_memory
from simpar.cost.transient_memory import PeakMemory
from simpar.errors import Infeasible, UserError
from simpar.hardware.cluster import Cluster
from simpar.models.graph import Block
from simpar.models.recompute import MODULES, OPTIMAL, by_layer
from simpar.plan.schedules.actions import Schedule
from simpar.program.blocks.rank_view import Job
from simpar.program.resolve.pass_costs import PassesAlone
from simpar.program.structure.stages import Piece
from simpar.units import NS_PER_S, format_bytes

ROUNDS = 20
MOST_MODULES = 4
"""Modules of a block that are dropped or kept in every combination; more make too many choices."""
Taken = tuple[tuple[str, int], ...]


def with_checkpoints(job: Job, cluster: Cluster) -> Job:
    """The job with the choice that ``recompute: optimal`` stands for in its plan. Raises UserError, Infeasible."""
    plan = job.plan
    if plan.memory.recompute != OPTIMAL:
        return job
    if plan.pipeline.stages or cluster.is_mixed or plan.offload.offload_activations:
        raise UserError(
            "plan.recompute = optimal: not with stages of their own, several kinds of nodes or offload_activations; "
            "allowed: none of them"
        )
    return _Checkpointing(job, cluster).chosen()


@dataclass(frozen=True)
class _Stretch:
    """Consecutive layers of one virtual stage with the same block."""

    virtual: int
    first: int
    block: Block
    length: int


@dataclass(frozen=True)
class _Checkpointing:
    """Choices of all pipeline ranks of a job."""

    job: Job
    cluster: Cluster

    def chosen(self) -> Job:
        """The job under the best choice of every rank."""
        taken: dict[int, Taken] = {}
        for rank in range(self.job.plan.mesh.pp):
            taken |= self._of_rank(rank)
        return self._under(taken)

    def _of_rank(self, rank: int) -> dict[int, Taken]:
        """What a rank's layers do, by the first of every stretch.

        The closed form of the peak is linear in the choices but for the largest of several workspaces; where that
        makes it larger than thought, the budget shrinks by as much.
        """
        mine = [each for each in self.stretches if self.schedule.rank_of_stage[each.virtual] == rank]
        if not mine:
            return {}
        runs = [Run(each.length, self.choices(each.block, each.length)) for each in mine]
        flights = self._in_flight(rank, mine)
        least = {each.first: (("full", each.length),) for each in mine}
        model = max(
            float((flights @ [run.length * self._full(run).saved_bytes for run in runs]).max()), 0.0
        ) + max(self._full(run).held_bytes for run in runs)
        around = float(self._peak(rank, least).moving_bytes) - model
        budget = limit = self._limit(rank, least)
        for _ in range(ROUNDS):
            try:
                found = choose(runs, flights, budget - around)
            except Infeasible:
                break
            taken = {each.first: _text(choices) for each, choices in zip(mine, found, strict=True)}
            moving = float(self._peak(rank, taken).moving_bytes)
            if moving <= limit:
                return taken
            budget -= moving - limit
        raise Infeasible(
            f"plan.recompute = optimal: pipeline rank {rank} has {format_bytes(max(limit, 0.0))} for activations, too "
            "little even with everything recomputed"
        )

    @staticmethod
    def _full(run: Run) -> Choice:
        return next(choice for choice in run.choices if choice.mode == "full")

    @cached_property
    def stretches(self) -> tuple[_Stretch, ...]:
        """Stretches of all virtual stages in model order."""
        found = []
        for virtual, pieces in enumerate(self.alone.builder.pieces):
            layers = [piece for piece in pieces if 0 <= piece.layer < len(self.job.graph.layers)]
            for _, group in groupby(layers, key=lambda piece: piece.block.name):
                same = list(group)
                found.append(_Stretch(virtual, same[0].layer, same[0].block, len(same)))
        return tuple(found)

    @cached_property
    def alone(self) -> PassesAlone:
        """Passes of the job with everything kept."""
        return PassesAlone.of(self._with("none"), self.cluster)

    @cached_property
    def schedule(self) -> Schedule:
        """The plan's table, as short as saturates its memory."""
        return short_schedule(self.job.plan, self.job.training)

    def _in_flight(self, rank: int, mine: list[_Stretch]) -> NDArray[np.float64]:
        """Microbatches in flight of every stretch, at moments that no other has more at: float64[moments, runs]."""
        codes, stages, _ = self.schedule.arrays(rank)
        signs = np.array([1, -1, 0, -1])[codes]
        counts = np.stack([np.cumsum(signs * (stages == each.virtual)) for each in mine], axis=1)
        moments = np.unique(counts, axis=0)
        most = [m for m in moments if not ((moments >= m).all(axis=1) & (moments > m).any(axis=1)).any()]
        return np.array(most, dtype=np.float64)

    def choices(self, block: Block, length: int) -> tuple[Choice, ...]:
        """Everything that may be done with a block: kept, parts dropped, or segments of layers from one input."""
        modes = ["none", "selective", "full"]
        if self.job.plan.tensor_parallel.tp_method != "1d":
            modes = ["none", "full"]
        else:
            modes += module_policies(block)
        found = [self._choice(block, mode) for mode in modes]
        full = next(choice for choice in found if choice.mode == "full")
        for layers in range(2, length + 1):
            last = self._activations(block, f"full:{layers - 1}/{layers}")
            held = float(last.recomputed_bytes + last.backward_workspace_bytes)
            found.append(Choice(f"full:{layers}", layers, full.saved_bytes, held, layers * full.again_s))
        return tuple(found)

    def _choice(self, block: Block, mode: str) -> Choice:
        sizes = self._activations(block, mode)
        again_ns = self._backward_ns(block, mode) - self._backward_ns(block, "none")
        held = max(
            float(sizes.recomputed_bytes + sizes.backward_workspace_bytes),
            float(sizes.forward_workspace_bytes),
        )
        return Choice(mode, 1, float(sizes.saved_bytes), held, max(again_ns, 0) / NS_PER_S)

    def _activations(self, block: Block, mode: str) -> BlockActivations:
        job = self.job
        return block_activations(block, self.alone.builder.view.dims, job.stack, job.plan.numerics, mode)

    def _backward_ns(self, block: Block, mode: str) -> int:
        return self.alone.duration_ns(Piece(0, block, mode), "backward")

    def _under(self, taken: Mapping[int, Taken]) -> Job:
        """The job with choices for some stretches, and everything recomputed in the others."""
        modes = [pair for each in self.stretches for pair in taken.get(each.first, (("full", each.length),))]
        return self._with(by_layer(modes))

    def _with(self, recompute: str) -> Job:
        plan = self.job.plan
        memory = plan.memory.model_copy(update={"recompute": recompute})
        return replace(self.job, plan=plan.model_copy(update={"memory": memory}))

    def _peak(self, rank: int, taken: Mapping[int, Taken]) -> PeakMemory:
        job = self._under(taken)
        return peak_memory(job.graph, job.plan, job.training, job.stack, rank)

    def _limit(self, rank: int, taken: Mapping[int, Taken]) -> float:
        """Bytes that may come and go on a rank: the most with which the device holds it, found by halving."""
        job, cluster = self.job, self.cluster
        free = cluster.device.memory_bytes - overhead_bytes(num_communicators(job.plan), job.stack, cluster)
        peak = self._peak(rank, taken)
        low, high = 0.0, float(free)
        while high - low > 1.0:
            middle = (low + high) / 2
            needed = peak.exactly(middle).reservation(job.stack, limit_bytes=free).needed_bytes
            low, high = (middle, high) if float(needed) <= free else (low, middle)
        return low


def module_policies(block: Block) -> list[str]:
    """Policies that drop any combination of the modules that a block has."""
    names = {op.name for op in block.operators}
    present = [name for name, operators in MODULES.items() if 2 * len(operators & names) > len(operators)]
    present = present[:MOST_MODULES]
    return [
        "modules:" + "+".join(name for at, name in enumerate(present) if bits >> at & 1)
        for bits in range(1, 2 ** len(present))
    ]


def _text(choices: list[tuple[Choice, int]]) -> Taken:
    """Choices as (mode, layers): segments first, then single layers, what is kept last."""
    ordered = sorted(choices, key=lambda pair: (-pair[0].layers, -pair[0].again_s))
    return tuple((choice.mode, choice.layers * count) for choice, count in ordered)
