"""Shapes of pipelines: the kinds of blocks in every virtual stage, and what follows from the table alone."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property

import numpy as np

from simpar.architectures.recompute import is_full
from simpar.dataclass import dataclass
from simpar.plan.choices import names_that_decide
from simpar.plan.choices.choice import SHAPE
from simpar.plan.schedules import make_schedule
from simpar.plan.schedules.actions import LETTERS
from simpar.planner.bound.block_costs import BlockCosts
from simpar.planner.space.jobs import RowJobs
from simpar.planner.space.table import factorize
from simpar.program.structure.pieces import virtual_stage_pieces
from simpar.program.structure.receiving import RECEIVING
from simpar.units import Floats, Ints

SHAPE_AXES = names_that_decide(SHAPE)


@dataclass(frozen=True)
class PipelineShape:
    """One combination of pipeline ranks, chunks, schedule and recomputation.

    ``pieces[s]`` are the kinds of blocks of virtual stage s in model order, ``letters`` those of its actions. ``pairs``
    says that some forwards and backwards run together, so that only their kernels add up.
    """

    pieces: tuple[tuple[int, ...], ...]
    num_kinds: int
    rank_of_stage: tuple[int, ...]
    letters: tuple[str, ...]
    pairs: bool = False

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks."""
        return max(self.rank_of_stage) + 1

    @property
    def meets(self) -> bool:
        """Whether the first and the last virtual stage are on one rank."""
        return self.rank_of_stage[0] == self.rank_of_stage[-1]

    @property
    def splits(self) -> bool:
        """Whether some or all backwards are split into halves (I, W)."""
        return "I" in self.letters

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """The kinds of blocks that it holds."""
        return tuple(sorted({kind for held in self.pieces for kind in held}))

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For every virtual stage, the first one with the same kinds in the same order."""
        known: dict[tuple[int, ...], int] = {}
        return tuple(known.setdefault(held, stage) for stage, held in enumerate(self.pieces))

    @cached_property
    def distinct(self) -> tuple[Ints, Ints]:
        """Virtual stages that equal no earlier one, and the index of every stage's equal among them."""
        first, like = np.unique(self.alike, return_inverse=True)
        return first, like

    @cached_property
    def by_stage(self) -> Floats:
        """How many blocks of each kind every virtual stage holds, float64[stages, kinds]."""
        return np.array([np.bincount(held, minlength=self.num_kinds) for held in self.pieces], dtype=np.float64)

    @cached_property
    def windows(self) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
        """Counts of each kind in parts of a pass, float64[distinct stages, kinds], for a backward and for a forward.

        The parts are, in the order of execution: the first block, the last, the third and later, those between first
        and last, and all but the last two.
        """
        pieces = [self.pieces[stage] for stage in self.distinct[0]]
        parts = slice(0, 1), slice(-1, None), slice(2, None), slice(1, -1), slice(0, -2)
        return tuple(  # type: ignore[return-value]
            tuple(
                np.array(
                    [np.bincount(held[::order][part], minlength=self.num_kinds) for held in pieces], dtype=np.float64
                )
                for part in parts
            )
            for order in (-1, 1)
        )

    @cached_property
    def of_rank(self) -> Floats:
        """Which stages a rank holds, float64[ranks, stages] of zeros and ones."""
        held: Floats = (np.array(self.rank_of_stage) == np.arange(self.num_ranks)[:, None]).astype(np.float64)
        return held

    @cached_property
    def first_stage(self) -> Ints:
        """The first virtual stage of every rank, with which its step begins and, without split backwards, ends."""
        return np.array([self.rank_of_stage.index(rank) for rank in range(self.num_ranks)], dtype=np.int64)

    @cached_property
    def stages_of(self) -> Ints:
        """The virtual stages of every rank, in order, int64[ranks, chunks]."""
        return np.argsort(self.rank_of_stage, kind="stable").reshape(self.num_ranks, -1)

    @cached_property
    def of_ranks(self) -> Floats:
        """How many blocks of each kind every rank holds, float64[ranks, kinds]."""
        return self.of_rank @ self.by_stage

    def onwards(self, values: Floats) -> Floats:
        """Sums of the values [n, stages] of every stage and those that follow it on its rank, [n, stages]."""
        if self.num_ranks == len(self.pieces):
            return values
        result = np.empty_like(values)
        result[:, self.stages_of] = values[:, self.stages_of][..., ::-1].cumsum(axis=2)[..., ::-1]
        return result

    def by_rank(self, values: Floats) -> Floats:
        """Sums of the values [n, stages] of the stages of every rank, [n, ranks]."""
        return np.asarray(values[:, self.stages_of].sum(axis=2))


@dataclass
class PipelineShapes:
    """Shapes of all rows: ``index`` int64[rows] points into ``row``, one row of every shape."""

    jobs: RowJobs
    blocks: BlockCosts
    index: Ints
    row: Ints
    _made: dict[int, PipelineShape] = field(default_factory=dict)
    _pieces: dict[tuple[int, str], tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    @staticmethod
    def of(jobs: RowJobs, blocks: BlockCosts) -> PipelineShapes:
        """Shapes of all rows."""
        row, index = factorize(jobs.rows.number(SHAPE_AXES))
        return PipelineShapes(jobs, blocks, index, row)

    def moved(self, rows: Ints) -> None:
        """Gives some rows, which share their new shape, that shape; adds it if it is new."""
        codes = self.jobs.rows.code
        same = np.ones(len(self.row), dtype=bool)
        for name in SHAPE_AXES:
            same &= codes[name][self.row] == codes[name][rows[0]]
        known = np.flatnonzero(same & ~np.isin(self.row, rows))
        if not len(known):
            self.row, known = np.append(self.row, rows[0]), np.array([len(self.row)])
        self.index[rows] = known[0]

    def __getitem__(self, index: int) -> PipelineShape:
        """One shape."""
        if index not in self._made:
            self._made[index] = self._make(int(self.row[index]))
        return self._made[index]

    def _make(self, row: int) -> PipelineShape:
        rows = self.jobs.rows
        ranks, letters, pairs = outline(self._value("schedule", row), int(rows.at("pp", row)), int(rows.at("vpp", row)))
        return PipelineShape(self._held(row), len(self.blocks.kinds), ranks, letters, pairs)

    def _value(self, name: str, row: int) -> str:
        rows = self.jobs.rows
        return str(rows.domain[name][rows.code[name][row]])

    def _held(self, row: int) -> tuple[tuple[int, ...], ...]:
        key = int(self.jobs.rows.at("stages", row)), self._value("recompute", row)
        if key not in self._pieces:
            index = self.blocks.index
            stages = virtual_stage_pieces(self.jobs.job(row))
            self._pieces[key] = tuple(
                tuple(
                    index[
                        piece.block.name.removesuffix(RECEIVING),
                        piece.recompute.partition(":")[0] if is_full(piece.recompute) else piece.recompute,
                    ]
                    for piece in pieces
                )
                for pieces in stages
            )
        return self._pieces[key]


def outline(name: str, num_ranks: int, vpp: int) -> tuple[tuple[int, ...], tuple[str, ...], bool]:
    """Rank of each virtual stage, letters of the actions, and whether some run in pairs, for any table of a schedule.

    All of it is read from a table of at most two ranks: which letters occur depends on no size, and chunks run along
    the pipeline or back.
    """
    few = min(num_ranks, 2)
    small = make_schedule(name, few, 8, vpp)
    ahead = small.rank_of_stage[::few]
    ranks = [rank if first == 0 else num_ranks - 1 - rank for first in ahead for rank in range(num_ranks)]
    letters = tuple(letter for code, letter in enumerate(LETTERS) if any((c.code == code).any() for c in small.ranks))
    return tuple(ranks), letters, any(bool(columns.overlap.any()) for columns in small.ranks)


MOST_AT_ONCE = 2**17
"""Multiplications of one matrix product. Libraries spread larger ones over threads, which then wait for more in a loop
and take more of the processor than the products do."""


def weigh(times: Ints | Floats, counts: Floats) -> Floats:
    """Weighted sums of the times of kinds: times [..., kinds] and ``counts`` [m, kinds] give float64[..., m]."""
    flat = np.asarray(times, dtype=np.float64).reshape(-1, counts.shape[1])
    several = max(MOST_AT_ONCE // max(counts.size, 1), 1)
    result = np.empty((len(flat), len(counts)))
    for first in range(0, len(flat), several):
        np.matmul(flat[first : first + several], counts.T, out=result[first : first + several])
    return result.reshape(*times.shape[:-1], len(counts))
