"""Data parallelism in bulk: what every scheme gathers and reduces, when, and how long its collectives take.

A *scheme* is one combination of the axes that decide it. Times are those of the group of rank 0, whose pipeline
stands for all of them in a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.models.graph import evaluate
from simpar.plan.schedules import make_schedule
from simpar.program.rank_view import RankView
from simpar.program.stages import PASSES
from simpar.program.synchronisation import Synchronisation
from simpar.program.templates import SyncPolicy
from simpar.program.traffic import EMBEDDING_GROUP, group_kinds
from simpar.search.passes import Passes
from simpar.search.wires import FREE, Wire, shared_slopes_s

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
SCHEME_AXES = (
    "tp", "cp", "ep", "pp", "order", "precision", "zero", "hsdp", "overlap_grad_reduce", "overlap_param_gather",
)  # fmt: skip


@dataclass(frozen=True)
class Scheme:
    """One scheme: its behaviour, its wires, and how many parameters each kind of block has on a rank.

    ``drains_s`` are seconds a byte that gathers and reductions take of the link that they share.
    """

    sync: Synchronisation
    gather: Wire
    reduces: tuple[Wire, ...]
    embedding: Wire
    parameters: Floats
    drains_s: tuple[float, float]

    @cached_property
    def policies(self) -> dict[tuple[str, bool], SyncPolicy]:
        """Hooks of passes by (letter, boundary)."""
        return {
            (letter, boundary): self.sync.policy(name, boundary=boundary)
            for letter, name in PASSES.items()
            for boundary in (False, True)
        }

    @cached_property
    def gather_ns(self) -> Ints:
        """The parameter gather of one block, int64[kinds]."""
        return self.gather.time_ns(self.parameters * self.sync.parameter_bytes)

    @cached_property
    def reduce_ns(self) -> tuple[Ints, ...]:
        """The gradient reductions of one block in turn, int64[kinds] each."""
        return self.reduction_ns(self.parameters * self.sync.gradient_bytes)

    def reduction_ns(self, size_bytes: Any, count: Any = 1) -> tuple[Ints, ...]:
        """The reductions in turn of gradients of ``size_bytes``, in ``count`` calls each."""
        return tuple(
            wire.time_ns(size_bytes * share / count, count)
            for wire, (_, _, share) in zip(self.reduces, self.sync.reduce_ops, strict=True)
        )

    @property
    def reduces_late(self) -> bool:
        """Whether gradients are reduced behind the last backward."""
        sync = self.sync
        return (
            sync.width > 1 and not sync.job.plan.data_parallel.overlap_grad_reduce and not sync.single_process
        )

    def late_reduction_ns(self, parameters: Floats) -> Floats:
        """What that takes, for parameters of ranks."""
        data = self.sync.job.plan.data_parallel
        size = parameters * self.sync.gradient_bytes
        bucket = float(data.bucket_bytes or 0)
        count = np.maximum(1, np.rint(size / bucket)) if bucket else np.ones_like(size)
        return np.asarray(np.sum(self.reduction_ns(size, count), axis=0), dtype=np.float64)

    @property
    def gathers_late(self) -> bool:
        """Whether parameters are gathered at once, behind the update."""
        sync = self.sync
        return sync.zero > 0 and not sync.per_unit and not sync.job.plan.data_parallel.overlap_param_gather

    def late_gather_ns(self, parameters: Floats) -> Floats:
        """What that takes, for parameters of ranks."""
        return self.gather.time_ns(parameters * self.sync.parameter_bytes).astype(np.float64)

    @cached_property
    def embedding_ns(self) -> float:
        """The sum of the gradients of tied embeddings, zero where there is none."""
        graph, view = self.sync.job.graph, RankView.of(self.sync.job)
        if self.embedding is FREE:
            return 0.0
        weights = graph.embedding.operators[0].weights[0].size
        return float(self.embedding.time_ns(float(evaluate(weights, view.tensor)) * self.sync.gradient_bytes))


@dataclass
class Schemes:
    """Schemes of all rows: ``index`` int64[rows] into ``row``, one row of every scheme; made when asked for."""

    passes: Passes
    index: Ints
    row: Ints
    _made: dict[int, Scheme] = field(default_factory=dict)
    _groups: dict[tuple[Any, ...], dict[str, Ints]] = field(default_factory=dict)

    @staticmethod
    def of(passes: Passes) -> Schemes:
        """Schemes of all rows."""
        rows = passes.jobs.rows
        code = np.zeros(rows.count, dtype=np.int64)
        for name in SCHEME_AXES:
            code = code * len(rows.domain[name]) + rows.code[name]
        _, row, index = np.unique(code, return_index=True, return_inverse=True)
        return Schemes(passes, index, row)

    def __getitem__(self, index: int) -> Scheme:
        """One scheme."""
        if index not in self._made:
            self._made[index] = self._make(int(self.row[index]))
        return self._made[index]

    def _make(self, row: int) -> Scheme:
        passes = self.passes
        sync = Synchronisation.of(passes.jobs.job(row))
        groups = self._groups_of(sync)

        def wire(op: str, group: str) -> Wire:
            return (
                passes.wires.of(op, groups[group], group)
                if group in groups and not sync.single_process
                else FREE
            )

        gather = wire("all_gather", sync.shard_group) if sync.zero else FREE
        reduces = tuple(wire(op, group) for group, op, _ in sync.reduce_ops)
        return Scheme(
            sync=sync,
            gather=gather,
            reduces=reduces,
            embedding=wire("all_reduce", EMBEDDING_GROUP),
            parameters=passes.parameters[int(passes.key[row])],
            drains_s=shared_slopes_s(gather, reduces[0]),
        )

    def _groups_of(self, sync: Synchronisation) -> dict[str, Ints]:
        """The group of rank 0 of every kind."""
        mesh, data = sync.job.plan.mesh, sync.job.plan.data_parallel
        key = (*mesh.shape, mesh.ep, mesh.order, data.hsdp if sync.zero else 1)
        if key not in self._groups:
            kinds = group_kinds(RankView.of(sync.job), sync, make_schedule("1f1b", mesh.pp, 1))
            self._groups[key] = {kind.name: kind.groups[0].copy() for kind in kinds}
        return self._groups[key]


@dataclass(frozen=True)
class Buckets:
    """Gradient buckets of one backward pass over a stage, in the order in which they close.

    ``size_bytes`` and ``count`` of calls; ``behind[b, kind]`` how many blocks of a kind run their backward after the
    bucket is full.
    """

    size_bytes: Floats
    count: Floats
    behind: Floats


def buckets(scheme: Scheme, pieces: Sequence[int], policy: SyncPolicy) -> Buckets:
    """How the gradients of a stage are cut, by the rule of :mod:`simpar.program.templates`."""
    bytes_of = scheme.parameters * scheme.sync.gradient_bytes
    limit, pending = policy.first_bucket_bytes or policy.bucket_bytes, 0.0
    sizes, counts, behind = [], [], []
    left = np.bincount(pieces, minlength=len(bytes_of)).astype(np.float64)
    for position, kind in enumerate(reversed(pieces)):
        pending += float(bytes_of[kind])
        left[kind] -= 1
        full = policy.per_unit or (pending >= limit and policy.overlap)
        if not (full or position == len(pieces) - 1) or pending <= 0:
            continue
        whole = policy.per_unit or policy.bucket_bytes <= 0
        sizes.append(pending)
        counts.append(1 if whole else max(1, round(pending / policy.bucket_bytes)))
        behind.append(left.copy())
        pending, limit = 0.0, policy.bucket_bytes
    shape = (-1, len(bytes_of))
    return Buckets(np.array(sizes), np.array(counts, dtype=np.float64), np.array(behind).reshape(shape))
