"""Costs of an operator under every choice of roles: kernels, its own collectives, weights and their synchronisation."""

from enum import IntEnum
from math import prod

import numpy as np

from simpar.architectures.graph import Dims, Operator
from simpar.cost.memory.static import weight_terms
from simpar.cost.memory.widths import parameter_widths
from simpar.cost.optimizers import optimizer_time_s
from simpar.cost.products import OperatorTime
from simpar.cost.sharded import LocalOperator, local_operator, local_time, local_weights, shared_keys_elements
from simpar.dataclass import dataclass
from simpar.plan.placement import roles_of
from simpar.plan.slices import divides
from simpar.planner.stages.alpa.roles import Pricer, RoleTable, role_table
from simpar.program.blocks.block_view import loss_sums
from simpar.program.job import TrainingJob
from simpar.program.structure.synchronisation import DENSE, ReplicaRanks, Synchronisation
from simpar.units import Flags, Floats, Ints, Numbers


class Metric(IntEnum):
    """Costs of a choice for one block: seconds, and bytes on one rank."""

    PASS = 0
    """Both passes of a microbatch."""
    FORWARD = 1
    """Kernels of its forward alone."""
    EXPOSED = 2
    """Gathers of weights, and reductions behind them, that the kernels of a pass do not hide."""
    SYNC = 3
    """What gradients and parameters of a step take of the links."""
    UPDATE = 4
    """The update, without launches."""
    STATIC = 5
    """Parameters, gradients and states."""
    SAVED = 6
    """What a microbatch keeps for its backward."""


CHEAP_KINDS = ("norm", "add", "rope", "activation", "gated_activation", "dropout")


@dataclass(frozen=True)
class OperatorChoices:
    """An operator under some combinations of its roles, with one rank's share and its kernel times."""

    op: Operator
    table: RoleTable
    index: Ints
    gathered: Flags
    local: LocalOperator
    time: OperatorTime
    by: dict[str, Ints]

    def along(self, role: str, pricer: Pricer) -> list[tuple[int, Ints]]:
        """The axes along which some choices have a role, and which choices do."""
        chosen = [self.table.combinations[i] for i in self.index.tolist()]
        at = {a: np.flatnonzero([roles[a].name == role for roles in chosen]) for a in range(len(pricer.mesh))}
        return [(a, some) for a, some in at.items() if pricer.mesh[a] > 1 and len(some)]


@dataclass(frozen=True)
class OperatorCosts:
    """Prices the operators of one block on one mesh; ``dims`` are global, with the shape of a microbatch."""

    job: TrainingJob
    pricer: Pricer
    dims: Dims

    def table(self, op: Operator) -> RoleTable:
        """The combinations of the operator's roles."""
        return role_table(roles_of(op), self.pricer.mesh)

    def choices(self, op: Operator) -> tuple[Ints, Flags]:
        """Combinations with whole sizes; those whose weights may be sharded between uses appear twice.

        Heavy operators repeat work only on axes that nothing else can use.
        """
        table = self.table(op)
        whole = divides(op, self.dims, table.by)
        index: Ints = np.flatnonzero(np.broadcast_to(whole, table.reads.shape))
        if op.kind not in CHEAP_KINDS and len(index):
            index = index[table.idle[index] == table.idle[index].min()]
        again = [i for i in index.tolist() if op.weights and table.groups[i]]
        gathered = np.arange(len(index) + len(again)) >= len(index)
        return np.concatenate([index, np.array(again, dtype=np.int64)]), gathered

    def chosen(self, op: Operator, index: Ints, gathered: Flags) -> OperatorChoices:
        """An operator under some combinations, with its weights gathered for every pass under some of them."""
        table = self.table(op)
        by = {name: values[index] for name, values in table.by.items()}
        local = local_operator(op, self.dims, by)
        time = local_time(local, self.job.kernels, self.job.stack)
        return OperatorChoices(op, table, index, gathered, local, time, by)

    def metrics(self, chosen: OperatorChoices, *, saved: bool) -> Floats:
        """Metrics of every choice: float64[metrics, choices]; ``saved``: its output is kept for the backward."""
        result = np.zeros((len(Metric), len(chosen.index)))
        time, overhead = chosen.time, self.job.stack.launch.kernel_overhead
        backward = overhead * (time.backward_input_s + time.backward_weight_s)
        result[Metric.FORWARD] = overhead * time.forward_s
        result[Metric.PASS] = result[Metric.FORWARD] + backward
        if saved:
            local = chosen.local
            result[Metric.SAVED] = local.rows * local.columns * self.job.kernels.activation_bytes
        if chosen.op.weights:
            self._weights(chosen, (result[Metric.FORWARD], backward), result)
        if chosen.op.kind == "attention":
            self._keys(chosen, result)
        if chosen.op.kind == "loss":
            for axis, at in chosen.along("vocabulary", self.pricer):
                use = loss_sums("", 1.0)
                sizes = use.size_bytes * chosen.local.rows * np.ones(len(chosen.index))
                result[Metric.PASS, at] += use.count * self.pricer.collective_s(use.op, axis, sizes[at])
        return result

    def _keys(self, chosen: OperatorChoices, values: Floats) -> None:
        """Keys and values of sharded sequences are gathered in both passes, and their gradients scattered."""
        whole = shared_keys_elements(chosen.op, self.dims) * self.job.kernels.activation_bytes
        others = chosen.by["batch"] * chosen.by["columns"] * chosen.by["seq"]
        for axis, at in chosen.along("sequence", self.pricer):
            sizes = whole * self.pricer.mesh[axis] / others[at]
            values[Metric.PASS, at] += 2 * self.pricer.collective_s("all_gather", axis, sizes)
            values[Metric.PASS, at] += self.pricer.collective_s("reduce_scatter", axis, sizes)

    def _weights(self, chosen: OperatorChoices, kernels_s: tuple[Floats, Numbers], values: Floats) -> None:
        """Static bytes, update and synchronisation; for weights gathered in every pass, the exposed part of that.

        Updates count without launches, which a stage pays once for all its weights. Collectives count by the time on a
        link, because those of many weights are merged into one.
        """
        layout, stack, sync = self.job.layout, self.job.stack, Synchronisation(self.job, ())
        matrices, vectors = (
            part * np.ones(len(chosen.index)) for part in local_weights(chosen.op, self.dims, chosen.by)
        )
        groups = [chosen.table.groups[i] for i in chosen.index.tolist()]
        shards = np.array([prod(self.pricer.mesh[axis] for axis in group) for group in groups])
        owned = matrices / shards + vectors
        held = np.where(chosen.gathered, matrices / shards, matrices) + vectors
        terms = weight_terms(
            layout,
            stack,
            stored=held,
            gradients=held,
            states_bytes=parameter_widths(layout, stack).states * owned,
            buckets=np.where(chosen.gathered | (shards == 1), 0.0, matrices),
        )
        values[Metric.STATIC] = sum(term.elements * term.width for term in terms)
        if not layout.offloads:
            launched = optimizer_time_s(0.0, layout, self.job.kernels, stack)
            values[Metric.UPDATE] = optimizer_time_s(owned, layout, self.job.kernels, stack) - launched
        ((_, reduction, _),) = sync.reduce_ops(ReplicaRanks(DENSE, 2, 2, 1))
        for group in dict.fromkeys(filter(None, groups)):
            at = np.array([each == group for each in groups])
            gather, scatter, reduce = (
                matrices[at] * width * self.pricer.price(op, group, DENSE).slope_s.max(initial=0.0)
                for op, width in (
                    ("all_gather", sync.parameter_bytes),
                    ("reduce_scatter", sync.gradient_bytes),
                    (reduction, sync.gradient_bytes),
                )
            )
            values[Metric.SYNC, at] = gather + np.where(chosen.gathered[at], scatter, reduce)
            exposed = [
                np.maximum(moved - np.broadcast_to(hidden, at.shape)[at], 0.0)
                for moved, hidden in zip((gather, gather + scatter), kernels_s, strict=True)
            ]
            values[Metric.EXPOSED, at] = np.where(chosen.gathered[at], sum(exposed), 0.0)
