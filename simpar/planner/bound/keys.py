"""Keys: combinations of the axes that decide the passes through a block, and batches of keys evaluated at once.

Many rows share their kernels: what a rank computes depends on its shares of the tensors, and what it exchanges on where
its groups lie, but on neither the pipeline nor data parallelism otherwise. Keys that differ in sizes only (SIZES) form
a batch: one walk through a block makes the phases of all of them, with arrays of durations and collective sizes. Code
that would have to branch on such an array raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Self

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.choices import names_that_decide
from simpar.plan.choices.choice import BLOCKS, SIZES
from simpar.plan.choices.data_parallel import fully_sharded
from simpar.plan.choices.mesh import DEGREES, split_order
from simpar.plan.mesh import Mesh
from simpar.planner.bound.lockstep import Lockstep
from simpar.planner.space.jobs import RowJobs, column
from simpar.planner.space.table import Rows, factorize, group_indices, stride
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.blocks.rank_view import RankView
from simpar.program.emission.collective_prices import Price, Prices
from simpar.program.emission.traffic import block_groups, late_per_member_s
from simpar.units import Floats, Ints, unique

KEY_AXES = names_that_decide(BLOCKS)
UNSIZED = tuple(name for name in KEY_AXES if name not in names_that_decide(SIZES))
"""Axes of which all keys of a batch have one value."""


@dataclass(frozen=True)
class KeyBatch:
    """Keys int64[n] that differ in sizes only, and the view of a rank; ``mesh`` int64[n] is the index of each mesh.

    ``prices`` and ``costs`` cache collectives by operation and group, and by size as well.
    """

    keys: Ints
    view: RankView
    mesh: Ints
    prices: dict[tuple[str, str], list[tuple[Ints, Price]]] = field(default_factory=dict)
    costs: dict[object, tuple[Ints, Floats]] = field(default_factory=dict)


def _strides(rows: Rows) -> list[Ints]:
    """Strides between the ranks of the groups that blocks communicate in, int64[rows] by axis (experts: over dp)."""
    sizes = {"tp": "tp", "cp": "cp", "dp": "ep"}
    return [np.where(rows[size] > 1, stride(rows, axis), 0) for axis, size in sizes.items()]


@dataclass
class Keys:
    """Keys of all rows: ``key`` int64[rows] is the key of every row, ``row`` one row of every key."""

    jobs: RowJobs
    prices: Prices
    lockstep: Lockstep
    key: Ints
    row: Ints
    _groups: dict[tuple[object, ...], Mapping[str, Ints]] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: RowJobs, prices: Prices) -> Self:
        """Keys of all rows."""
        rows = jobs.rows
        code = rows.number(KEY_AXES, fully_sharded(rows), 2)  # decides whether gradients accumulate in place
        lockstep = Lockstep(jobs, prices.cluster)
        first, which = factorize(rows.number((*DEGREES, "order")))
        few = rows.subset(first)  # strides and marks follow from the mesh: of millions of rows, columns are large
        _, placed = factorize(np.zeros_like(first), *_strides(few), *lockstep.marks(few))
        row, key = factorize(code, placed[which])
        rows.forget()
        return cls(jobs, prices, lockstep, key, row)

    def found_in(self, other: Keys) -> Ints:
        """The equal key among those of other rows, int64[keys], -1 without one; problems differ in constraints only.

        None is equal where ranks act at the same instants: there prices depend on all rows.
        """
        rows, theirs = self.jobs.rows.subset(self.row), other.jobs.rows.subset(other.row)
        if self.lockstep.happens or rows.domain.keys() != theirs.domain.keys():
            return np.full(len(self.row), -1)
        names = [name for name in KEY_AXES if name in rows.domain]
        place = [{value: at for at, value in enumerate(theirs.domain[name])} for name in names]
        codes = [
            np.array([known.get(value, -1) for value in rows.domain[name]])[rows.code[name]]
            for name, known in zip(names, place, strict=True)
        ]
        mine = np.stack([*codes, fully_sharded(rows), *_strides(rows)], axis=1).astype(np.int64)
        each = np.stack([*(theirs.code[name] for name in names), fully_sharded(theirs), *_strides(theirs)], axis=1)
        known = {key.tobytes(): at for at, key in enumerate(each.astype(np.int64))}
        return np.array([known.get(key.tobytes(), -1) for key in mine], dtype=np.int64)

    def view(self, key: int) -> RankView:
        """What a rank of a key sees."""
        return self.batch(np.array([key])).view

    @cached_property
    def _meshes(self) -> tuple[list[Mesh], Ints]:
        """The distinct meshes of the keys, and the index of every key's mesh, int64[keys]."""
        rows = self.jobs.rows.subset(self.row)
        columns = np.stack([*(rows[name] for name in (*DEGREES, "expert_tp")), rows.code["order"]], axis=1)
        distinct, which = np.unique(columns, axis=0, return_inverse=True)
        meshes = [
            Mesh(**dict(zip((*DEGREES, "etp"), sizes, strict=True)), order=split_order(rows.domain["order"][order]))
            for *sizes, order in distinct.tolist()
        ]
        return meshes, which.ravel()

    @cached_property
    def all_batches(self) -> list[KeyBatch]:
        """All keys in batches that differ in sizes only.

        Whether an axis has one rank or several is no size: it changes which collectives exist.
        """
        return self.batches_of(np.arange(len(self.row)))

    def batches_of(self, keys: Ints) -> list[KeyBatch]:
        """Some keys in batches of their own, as :attr:`all_batches`."""
        rows = self.jobs.rows.subset(self.row[keys])
        code = rows.number(UNSIZED, fully_sharded(rows), 2)
        facts = [code, *(rows[name] > 1 for name in ("tp", "ep", "expert_tp"))]
        _, which = np.unique(np.stack(facts, axis=1), axis=0, return_inverse=True)
        return [self.batch(keys[mine]) for mine in group_indices(which.ravel())]

    def batch(self, keys: Ints) -> KeyBatch:
        """Some keys that differ in sizes only."""
        (meshes, which), cluster = self._meshes, self.prices.cluster
        distinct, index = np.unique(which[keys], return_inverse=True)
        late_s = np.array([late_per_member_s(cluster, meshes[mesh]) for mesh in distinct])[index]
        view = RankView.of(self.jobs.batch(self.row[keys]), late_per_member_s=column(late_s))
        return KeyBatch(keys, view.first, which[keys])

    def batches(self, keys: Ints) -> Iterator[tuple[KeyBatch, Ints, Ints]]:
        """The batches that some keys are in: yields batch, positions among ``keys``, and places in the batch."""
        number, place = self._place[:, keys]
        for one in unique(number).tolist():
            mine = np.flatnonzero(number == one)
            yield self.all_batches[one], mine, place[mine]

    @cached_property
    def _place(self) -> Ints:
        """The batch of every key and its place in the batch, int64[2, keys]."""
        result = np.zeros((2, len(self.row)), dtype=np.int64)
        for number, batch in enumerate(self.all_batches):
            result[:, batch.keys] = np.full(len(batch.keys), number), np.arange(len(batch.keys))
        return result

    def _price(self, batch: KeyBatch, mesh: Mesh, op: str, name: str) -> Price:
        """The price of an operation on the group of rank 0 of a name on a mesh."""
        view = batch.view
        known = mesh, view.tensor["ulysses"], view.tensor["gathered"]
        if known not in self._groups:
            job = replace(view.job, layout=view.job.layout.on_mesh(mesh))
            kinds = block_groups(replace(view, job=job))
            self._groups[known] = {kind.name: kind.groups[0].copy() for kind in kinds}
        group = self._groups[known][name]
        return self.lockstep.price(self.prices.of(op, group, name), (op, name), group, mesh)

    def price_groups(self, batch: KeyBatch, use: CollectiveUse) -> list[tuple[Ints, Price]]:
        """The prices of a collective in a batch, each with the keys that have it."""
        if (use.op, use.group) not in batch.prices:
            meshes, distinct = self._meshes[0], unique(batch.mesh)
            each = {int(at): self._price(batch, meshes[at], use.op, use.group) for at in distinct}
            prices = {id(price): price for price in each.values()}
            which = np.array([id(each[at]) for at in batch.mesh.tolist()])
            groups = [(np.flatnonzero(which == number), price) for number, price in prices.items()]
            batch.prices[use.op, use.group] = groups
        return batch.prices[use.op, use.group]
