"""What every choice of roles costs an operator: kernels, its own collectives, weights and their synchronisation."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
from numpy.typing import NDArray

from simpar.cost.collectives import occupied_s_per_byte
from simpar.cost.memory import Widths, parameter_widths
from simpar.cost.memory.static import weight_terms
from simpar.cost.operators import OperatorTime, optimizer_time_s
from simpar.cost.sharded import (
    LocalOperator,
    Machine,
    local_operator,
    local_time,
    local_weights,
    shared_keys_elements,
)
from simpar.models.graph import Dims, Operator
from simpar.plan.placement import roles_of
from simpar.plan.slices import divides
from simpar.program.blocks.block_view import LOSS_SUMS
from simpar.program.blocks.rank_view import Job
from simpar.program.structure.synchronisation import DENSE, Replicas, Synchronisation
from simpar.search.stages.alpa.choices import METRICS
from simpar.search.stages.alpa.pricing import Pricer, RoleTable, role_table
from simpar.units import DTYPE_BYTES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
LIGHT = ("norm", "add", "rope", "activation", "gated_activation", "dropout")
_FORWARD, _BACKWARD, _SYNC, _UPDATE, _STATIC, _SAVED = range(len(METRICS))


@dataclass(frozen=True)
class Chosen:
    """An operator under some combinations of its roles, with one rank's share and its kernel times."""

    op: Operator
    table: RoleTable
    index: Ints
    gathered: Bools
    local: LocalOperator
    time: OperatorTime
    by: dict[str, Ints] = field(default_factory=dict)


@dataclass(frozen=True)
class OperatorCosts:
    """Prices operators of one block on one mesh. ``dims`` are global with the shape of a microbatch."""

    job: Job
    pricer: Pricer
    dims: Dims

    @cached_property
    def _machine(self) -> Machine:
        return Machine(self.job.kernels, self.job.stack)

    @cached_property
    def _widths(self) -> Widths:
        return parameter_widths(self.job.plan, self.job.stack)

    def table(self, op: Operator) -> RoleTable:
        """Combinations of the operator's roles."""
        return role_table(roles_of(op), self.pricer.mesh)

    def legal(self, op: Operator) -> Ints:
        """Combinations that come out whole; work is repeated only on axes that nothing else can use."""
        table = self.table(op)
        whole = divides(op, self.dims, table.by)
        index: Ints = np.flatnonzero(np.broadcast_to(whole, table.reads.shape))
        if op.kind in LIGHT or not len(index):
            return index
        busiest: Ints = index[table.idle[index] == table.idle[index].min()]
        return busiest

    def choices(self, op: Operator, *, gather_weights: bool) -> tuple[Ints, Bools]:
        """Combinations of a heavy operator, twice where its weights may be sharded between uses."""
        index, table = self.legal(op), self.table(op)
        if not (gather_weights and op.weights):
            return index, np.zeros(len(index), dtype=bool)
        shared = np.array([bool(group) for group in table.groups])
        again = index[shared[table.data[index]]]
        gathered = np.arange(len(index) + len(again)) >= len(index)
        return np.concatenate([index, again]), gathered

    def chosen(self, op: Operator, index: Ints, gathered: Bools | None = None) -> Chosen:
        """An operator under some combinations."""
        table = self.table(op)
        by = table.divided(index)
        local = local_operator(op, self.dims, by)
        flags = np.zeros(len(index), dtype=bool) if gathered is None or not len(gathered) else gathered
        return Chosen(op, table, index, flags, local, local_time(local, self._machine), by)

    def metrics(self, chosen: Chosen, *, saved: bool) -> Floats:
        """Metrics of every choice: float64[METRICS, choices]; ``saved`` where its output is kept for backward."""
        found = np.zeros((len(METRICS), len(chosen.index)))
        time, overhead = chosen.time, self.job.stack.launch.kernel_overhead
        found[_FORWARD] = overhead * time.forward_s
        found[_BACKWARD] = overhead * (time.backward_input_s + time.backward_weight_s)
        if saved:
            local = chosen.local
            found[_SAVED] = local.rows * local.columns * self.job.kernels.activation_bytes
        if chosen.op.kind == "attention":
            self._keys(chosen, found)
        if chosen.op.kind == "loss":
            self._loss_sums(chosen, found)
        if chosen.op.weights:
            self._weights(chosen, found)
        return found

    def _keys(self, chosen: Chosen, found: Floats) -> None:
        """Keys and values of sliced sequences are gathered in both passes, their gradients scattered."""
        whole = shared_keys_elements(chosen.op, self.dims) * self.job.kernels.activation_bytes
        others = chosen.by["batch"] * chosen.by["columns"] * chosen.by["seq"]
        for axis, at in enumerate(chosen.table.axes_as("sequence", chosen.index).T):
            if self.pricer.mesh[axis] > 1 and at.any():
                sizes = whole * self.pricer.mesh[axis] / others[at]
                gather = self.pricer.collective_s("all_gather", (axis,), sizes)
                found[_FORWARD, at] += gather
                found[_BACKWARD, at] += gather + self.pricer.collective_s("reduce_scatter", (axis,), sizes)

    def _loss_sums(self, chosen: Chosen, found: Floats) -> None:
        """Vocabulary-parallel cross entropy sums a few numbers a row."""
        rows = chosen.local.rows * DTYPE_BYTES["fp32"] * np.ones(len(chosen.index))
        for axis, at in enumerate(chosen.table.axes_as("vocabulary", chosen.index).T):
            if self.pricer.mesh[axis] > 1 and at.any():
                found[_FORWARD, at] += LOSS_SUMS * self.pricer.collective_s("all_reduce", (axis,), rows[at])

    def weights(self, chosen: Chosen) -> tuple[Floats, Floats, Floats]:
        """Elements of matrices and of vectors on one rank, and how many ranks hold copies, by choice."""
        whole, table = np.ones(len(chosen.index)), chosen.table
        matrices, vectors = (part * whole for part in local_weights(chosen.op, self.dims, chosen.by))
        sizes = np.array([prod(self.pricer.mesh[axis] for axis in group) for group in table.groups])
        return matrices, vectors, sizes[table.data[chosen.index]].astype(np.float64)

    def least_update_s(self, chosen: Chosen) -> float:
        """Seconds of the update of an operator's weights under the choice that shares them out best.

        Without launches, which a stage pays once for all of its weights; nothing where the host updates.
        """
        if not chosen.op.weights or self.job.plan.offload.is_used:
            return 0.0
        matrices, vectors, shards = self.weights(chosen)
        owned = np.array([0.0, float(np.min((matrices + vectors) / shards))])
        launched, whole = optimizer_time_s(owned, self.job.plan.numerics, self.job.kernels, self.job.stack)
        return float(whole - launched)

    def _weights(self, chosen: Chosen, found: Floats) -> None:
        """Static bytes and synchronisation; gathers are hidden behind as much compute as there is."""
        sync, table = Synchronisation(self.job, ()), chosen.table
        matrices, vectors, shards = self.weights(chosen)
        group_of = table.data[chosen.index]
        held = np.where(chosen.gathered, matrices / shards, matrices)
        owned = matrices / shards + vectors
        terms = weight_terms(
            self.job.plan,
            self.job.stack,
            stored=held + vectors,
            gradients=held + vectors,
            states_bytes=self._widths.states * owned,
            buckets=np.where(chosen.gathered | (shards == 1), 0.0, matrices),
        )
        found[_STATIC] = sum(term.elements * term.width for term in terms)
        found[_UPDATE] = optimizer_time_s(owned, self.job.plan.numerics, self.job.kernels, self.job.stack)
        for number, group in enumerate(table.groups):
            at = np.flatnonzero(group_of == number)
            if not group or not len(at) or not matrices[at].any():
                continue
            gather = self.pricer.collective_s("all_gather", group, matrices[at] * sync.parameter_bytes, DENSE)
            reduced = matrices[at] * sync.gradient_bytes
            scatter = self.pricer.collective_s("reduce_scatter", group, reduced, DENSE)
            reduce = scatter
            ((_, op, _),) = sync.reduce_ops(Replicas(DENSE, 2, 2, 1))
            if op != "reduce_scatter":
                reduce = self.pricer.collective_s(op, group, reduced, DENSE)
            fully = chosen.gathered[at]
            found[_SYNC, at] = np.where(fully, 0.0, gather + reduce)
            held = self._occupied_s("all_gather", matrices[at] * sync.parameter_bytes, gather)
            again = self._occupied_s("reduce_scatter", reduced, scatter)
            for metric, moved, beside in (
                (_FORWARD, gather, held),
                (_BACKWARD, gather + scatter, held + again),
            ):
                kernels = found[metric, at]
                found[metric, at] = np.where(fully, np.maximum(self._beside(kernels, beside), moved), kernels)

    def _occupied_s(self, op: str, sizes: Floats, took_s: Floats) -> Floats:
        """How long a collective slows the kernels beside it: less than it takes where it waits for a NIC."""
        return np.asarray(np.minimum(took_s, sizes * occupied_s_per_byte(op, self.pricer.cluster)))

    def _beside(self, kernels_s: Floats, occupied_s: Floats) -> Floats:
        """Kernels slowed down while collectives hold multiprocessors and bandwidth beside them."""
        excess = self.job.stack.overlap.compute_slowdown_while_comm - 1.0
        covered = np.minimum(1.0, occupied_s / np.maximum(kernels_s, 1e-12))
        return kernels_s * (1.0 + excess * covered)
