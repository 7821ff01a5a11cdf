"""Action tables: a pipeline schedule is, per rank, an ordered list of (F | B | I | W, stage, microbatch).

F is a forward, B a full backward, I an input-gradient pass, W a weight-gradient pass of one virtual stage for
one microbatch; texts such as ``2F0`` and the CSV (a line a rank) are those of torch.distributed.pipelining. A
forward and a backward that run together are neighbours in the list, the first one flagged; the text of such a
pair is ``(2F4;5B0)OVERLAP_F_B``. A runtime that ignores the flag runs them one after the other, which is always
possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.errors import UserError

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
LETTERS = "FBIW"
F, B, I, W = range(4)  # noqa: E741 - the letters of the literature
CHANGE_IN_FLIGHT = (1, -1, 0, -1)
"""By code, the change in the number of forwards that wait for their backward. An I changes nothing, because the saved
tensors are still needed for the weight gradient."""
_ACTION = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_PAIR = re.compile(r"\((.*);(.*)\)OVERLAP_F_B")


@dataclass(frozen=True)
class Action:
    """One entry of a table: kind F, B, I or W of a virtual stage for a microbatch.

    F is a forward pass, B a full backward pass, I its gradient of the input alone and W that of the weights.

    >>> str(Action("F", stage=2, microbatch=0))
    '2F0'
    """

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True, eq=False)
class RankActions:
    """One rank's actions in order, as columns: code (index into ``FBIW``), virtual stage, microbatch.

    ``overlap`` marks a forward that runs together with the backward right after it.
    """

    code: NDArray[np.int8]
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int32]
    overlap: Bools

    def __len__(self) -> int:
        return len(self.code)

    def texts(self) -> list[str]:
        """Actions as ``<stage><letter><microbatch>``, overlapped pairs as one text."""
        single = [
            f"{stage}{LETTERS[code]}{microbatch}"
            for code, stage, microbatch in zip(
                self.code.tolist(), self.stage.tolist(), self.microbatch.tolist(), strict=True
            )
        ]
        if not self.overlap.any():
            return single
        first = np.flatnonzero(self.overlap).tolist()
        for at in first:
            single[at] = f"({single[at]};{single[at + 1]})OVERLAP_F_B"
        second = {at + 1 for at in first}
        return [text for at, text in enumerate(single) if at not in second]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A whole table. ``rank_of_stage[v]`` is the pipeline rank that holds virtual stage v.

    In a bidirectional schedule the last ``num_mirrored`` microbatches enter at the other end: every rank also
    holds a copy of the mirrored rank's stages, and runs stage v of those microbatches on rank p - 1 -
    rank_of_stage[v]. With an encoder in the bubbles (:mod:`simpar.plan.encoder_in_bubbles`), stage 0 is the encoder,
    which rank ``ranks_of_first[m]`` runs for microbatch m; ``waiting`` are the most messages from and to it that wait
    on each rank.

    >>> import simpar
    >>> schedule = simpar.make_schedule("interleaved", num_ranks=2, num_microbatches=4, vpp=2)
    >>> schedule.num_stages, schedule.rank_of_stage
    (4, (0, 1, 0, 1))
    """

    name: str
    num_microbatches: int
    rank_of_stage: tuple[int, ...]
    ranks: tuple[RankActions, ...]
    num_mirrored: int = 0
    ranks_of_first: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()

    def __repr__(self) -> str:
        actions = sum(len(columns.code) for columns in self.ranks)
        return (
            f"<Schedule {self.name}: {self.num_ranks} pipeline ranks, {self.num_stages} stages, "
            f"{self.num_microbatches} microbatches, {actions:,} actions>"
        )

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.ranks)

    @property
    def num_stages(self) -> int:
        """Virtual stages."""
        return len(self.rank_of_stage)

    @property
    def actions(self) -> tuple[tuple[Action, ...], ...]:
        """Every rank's actions as objects, for reading; use :meth:`arrays` in bulk."""
        return tuple(tuple(Action(*row) for row in zip(*_plain(columns), strict=True)) for columns in self.ranks)

    def arrays(self, rank: int) -> tuple[NDArray[np.int8], NDArray[np.int32], NDArray[np.int32]]:
        """One rank's actions as (codes, stages, microbatches); a code is an index into ``FBIW``."""
        columns = self.ranks[rank]
        return columns.code, columns.stage, columns.microbatch

    def letters(self, rank: int) -> tuple[list[str], NDArray[np.int32], NDArray[np.int32]]:
        """One rank's actions as (letters, stages, microbatches)."""
        columns = self.ranks[rank]
        return [LETTERS[code] for code in columns.code.tolist()], columns.stage, columns.microbatch

    def rank_of(self, stage: Any, microbatch: Any) -> Any:
        """The rank that runs a stage for a microbatch; ints, or arrays that broadcast."""
        ahead = np.asarray(self.rank_of_stage)[stage]
        if self.ranks_of_first:
            ahead = np.where(np.asarray(stage) == 0, np.asarray(self.ranks_of_first)[microbatch], ahead)
        mirrored = np.asarray(microbatch) >= self.num_microbatches - self.num_mirrored
        ranks = np.where(mirrored, self.num_ranks - 1 - ahead, ahead)
        return int(ranks) if ranks.ndim == 0 else ranks

    def to_csv(self) -> str:
        """The compute-only CSV that torch's pipeline runtime reads: a line a rank."""
        return "".join(",".join(columns.texts()) + "\n" for columns in self.ranks)

    def peak_in_flight(self, rank: int) -> int:
        """Most forwards (stage, microbatch) that wait for their backward at once on a rank.

        A B ends a forward, and so does a W.
        """
        change = np.array(CHANGE_IN_FLIGHT)[self.ranks[rank].code]
        return int(np.cumsum(change).max(initial=0))


def columns(code: Any, stage: Any, microbatch: Any, overlap: Any = False) -> RankActions:
    """One rank's columns from anything that broadcasts to the shape of ``code``."""
    codes = np.asarray(code, dtype=np.int8)
    return RankActions(
        code=codes,
        stage=np.broadcast_to(np.asarray(stage, dtype=np.int32), codes.shape),
        microbatch=np.broadcast_to(np.asarray(microbatch, dtype=np.int32), codes.shape),
        overlap=np.broadcast_to(np.asarray(overlap, dtype=np.bool_), codes.shape),
    )


def rank_actions(rows: Sequence[tuple[int, ...]]) -> RankActions:
    """Columns of a list of (code, stage, microbatch) or (code, stage, microbatch, overlap)."""
    table = np.array(rows, dtype=np.int64).reshape(len(rows), -1 if rows else 3)
    return columns(*table.T)


def from_csv(text: str, *, name: str = "custom") -> Schedule:
    """Read and verify an action table. Raises UserError for a malformed action or a table that cannot run."""
    lines = [line for line in text.splitlines() if line.strip(", \t")]
    rows = [list(_cells(rank, line)) for rank, line in enumerate(lines)]
    owner = {(stage, microbatch): rank for rank, row in enumerate(rows) for _, stage, microbatch, _ in row}
    stages = 1 + max((stage for stage, _ in owner), default=-1)
    microbatches = 1 + max((microbatch for _, microbatch in owner), default=-1)
    if not owner or len(owner) != stages * microbatches:
        raise UserError(
            f"schedule {name}: {len(owner)} pairs of stage and microbatch; needed: every one of "
            f"stages 0.. and microbatches 0.. (here {stages} x {microbatches})"
        )
    placement = tuple(owner[stage, 0] for stage in range(stages))
    mirrored = sum(owner[0, m] != placement[0] for m in range(microbatches))
    schedule = Schedule(name, microbatches, placement, tuple(rank_actions(row) for row in rows), mirrored)
    verify(schedule)
    return schedule


def _cells(rank: int, line: str) -> Iterable[tuple[int, int, int, int]]:
    for cell in filter(None, (cell.strip() for cell in line.split(","))):
        pair = _PAIR.fullmatch(cell)
        if pair is None:
            yield (*_parse(rank, cell), 0)
            continue
        forward, backward = (_parse(rank, part) for part in pair.groups())
        if forward[0] != F or backward[0] not in (B, I):
            raise UserError(f"schedule line {rank + 1}: {cell!r}: a forward overlaps with a B or an I, in this order")
        yield (*forward, 1)
        yield (*backward, 0)


def _parse(rank: int, cell: str) -> tuple[int, int, int]:
    match = _ACTION.fullmatch(cell)
    if match is None:
        raise UserError(
            f"schedule line {rank + 1}: {cell[:40]!r} is not an action; allowed: such as 0F0, 0B0, 0I0, 0W0"
        )
    return LETTERS.index(match.group(2)), int(match.group(1)), int(match.group(3))


def verify(schedule: Schedule, *, memory_cap: int | None = None) -> None:
    """Check a table: each action once and on its rank, executable, at most ``memory_cap`` forwards in flight.

    Raises UserError naming the first broken rule.
    """
    every = _Flat.of(schedule)
    problem = _misplaced(schedule, every) or _wrong_counts(schedule, every) or _stuck(schedule, every)
    if problem:
        raise UserError(f"schedule {schedule.name}: {problem}")
    for rank in range(schedule.num_ranks):
        peak = schedule.peak_in_flight(rank)
        if memory_cap is not None and peak > memory_cap:
            raise UserError(f"schedule {schedule.name}: rank {rank} keeps {peak} forwards; allowed: {memory_cap}")


def waits_for(schedule: Schedule) -> Ints:
    """For every action, rank after rank, the index of the action for which it waits, or -1: int64[num_actions].

    A forward waits for the forward of the stage before, a B or an I for the B or I of the stage behind (in the last
    stage for its own forward), a W for its I. All other precedences follow from these and the order on the rank.
    """
    return _Flat.of(schedule).waits_for(schedule)


@dataclass(frozen=True, eq=False)
class _Flat:
    """The columns of all ranks, one after the other."""

    rank: Ints
    code: Ints
    stage: Ints
    microbatch: Ints

    @staticmethod
    def of(schedule: Schedule) -> _Flat:
        sizes = [len(columns) for columns in schedule.ranks]
        parts = zip(*(schedule.arrays(rank) for rank in range(schedule.num_ranks)), strict=True)
        return _Flat(np.repeat(np.arange(len(sizes)), sizes), *(np.concatenate(p).astype(np.int64) for p in parts))

    def text(self, at: int) -> str:
        return f"{self.stage[at]}{LETTERS[self.code[at]]}{self.microbatch[at]}"

    def waits_for(self, schedule: Schedule) -> Ints:
        forward, gradient = (np.full((schedule.num_stages, schedule.num_microbatches), -1) for _ in range(2))
        here, last = np.arange(len(self.code)), schedule.num_stages - 1
        for table, chosen in ((forward, self.code == F), (gradient, (self.code == B) | (self.code == I))):
            table[self.stage[chosen], self.microbatch[chosen]] = here[chosen]
        before = np.where(self.stage > 0, forward[self.stage - 1, self.microbatch], -1)
        behind = gradient[np.minimum(self.stage + 1, last), self.microbatch]
        own = forward[self.stage, self.microbatch]
        backward = np.where(self.stage < last, behind, own)
        needs = [before, gradient[self.stage, self.microbatch]]
        return np.select([self.code == F, self.code == W], needs, backward)


def _misplaced(schedule: Schedule, every: _Flat) -> str | None:
    inside = (every.stage < schedule.num_stages) & (every.microbatch < schedule.num_microbatches)
    if not inside.all():
        return f"{every.text(int(np.argmin(inside)))} names a stage or microbatch that does not exist"
    right = schedule.rank_of(every.stage, every.microbatch) == every.rank
    if not right.all():
        at = int(np.argmin(right))
        return f"{every.text(at)} stands on rank {every.rank[at]}, its stage runs on another"
    return None


def _wrong_counts(schedule: Schedule, every: _Flat) -> str | None:
    shape = (len(LETTERS), schedule.num_stages, schedule.num_microbatches)
    index = np.ravel_multi_index((every.code, every.stage, every.microbatch), shape)
    count = np.bincount(index, minlength=int(np.prod(shape))).reshape(shape)
    if (count > 1).any():
        code, stage, microbatch = np.argwhere(count > 1)[0]
        return f"{stage}{LETTERS[code]}{microbatch} appears {count[code, stage, microbatch]} times"
    whole = (count[F] == 1) & (count[B] + count[I] == 1) & (count[I] == count[W])
    if not whole.all():
        stage, microbatch = np.argwhere(~whole)[0]
        return f"stage {stage}, microbatch {microbatch}: needed are one F and either one B or one I and one W"
    return None


def _stuck(schedule: Schedule, every: _Flat) -> str | None:
    """Run the lists: a rank that waits for ever means a cycle. Overlapped pairs start together."""
    needs = every.waits_for(schedule).tolist()
    joined = np.concatenate([columns.overlap for columns in schedule.ranks]).tolist()
    ends = np.cumsum([len(columns) for columns in schedule.ranks]).tolist()
    position = [0, *ends[:-1]]
    done = bytearray(len(needs))
    sleepers: dict[int, list[int]] = {}
    awake = list(range(schedule.num_ranks))
    while awake:
        rank = awake.pop()
        while (at := position[rank]) < ends[rank]:
            both = range(at, at + 1 + joined[at])
            blocker = next((needs[i] for i in both if needs[i] >= 0 and not done[needs[i]]), None)
            if blocker is not None:
                sleepers.setdefault(blocker, []).append(rank)
                break
            for i in both:
                done[i] = 1
                awake += sleepers.pop(i, [])
            position[rank] = both.stop
    waiting = [position[rank] for rank in range(schedule.num_ranks) if position[rank] < ends[rank]]
    return f"{every.text(waiting[0])} on rank {every.rank[waiting[0]]} can never start" if waiting else None


def _plain(actions: RankActions) -> tuple[list[str], list[int], list[int]]:
    return [LETTERS[c] for c in actions.code.tolist()], actions.stage.tolist(), actions.microbatch.tolist()
