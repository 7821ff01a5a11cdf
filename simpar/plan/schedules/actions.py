"""Action tables: a pipeline schedule is, per rank, an ordered list of (F | B | I | W, stage, microbatch).

F is a forward, B a full backward, I an input-gradient pass, W a weight-gradient pass of one virtual stage for one
microbatch; texts such as ``2F0`` and the CSV (a line a rank) are those of torch.distributed.pipelining.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.errors import UserError

Ints = NDArray[np.int64]
LETTERS = "FBIW"
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True)
class Action:
    """One entry of a table: kind F, B, I or W of a virtual stage for a microbatch."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


@dataclass(frozen=True)
class RankActions:
    """One rank's actions in order, as columns: code (index into ``FBIW``), virtual stage, microbatch."""

    code: Ints
    stage: Ints
    microbatch: Ints

    def __len__(self) -> int:
        return len(self.code)

    def texts(self) -> list[str]:
        """Actions as ``<stage><letter><microbatch>``."""
        return [f"{s}{LETTERS[c]}{m}" for c, s, m in zip(self.code, self.stage, self.microbatch, strict=True)]


@dataclass(frozen=True)
class Schedule:
    """A whole table. ``rank_of_stage[v]`` is the pipeline rank that holds virtual stage v."""

    name: str
    num_microbatches: int
    rank_of_stage: tuple[int, ...]
    ranks: tuple[RankActions, ...]

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks."""
        return len(self.ranks)

    @property
    def num_stages(self) -> int:
        """Virtual stages."""
        return len(self.rank_of_stage)

    def letters(self, rank: int) -> tuple[list[str], Ints, Ints]:
        """One rank's actions as (letters, stages, microbatches)."""
        actions = self.ranks[rank]
        return [LETTERS[code] for code in actions.code], actions.stage, actions.microbatch

    def to_csv(self) -> str:
        """The compute-only CSV that torch's pipeline runtime reads: a line a rank."""
        return "".join(",".join(actions.texts()) + "\n" for actions in self.ranks)

    def peak_in_flight(self, rank: int) -> int:
        """Most forwards (stage, microbatch) that wait for their backward at once on a rank.

        A W ends what an I left open; a B ends it at once.
        """
        code = self.ranks[rank].code
        change = np.select([code == 0, code == 1, code == 3], [1, -1, -1], 0)
        return int(np.cumsum(change).max(initial=0))


def rank_actions(rows: Sequence[tuple[str, int, int]]) -> RankActions:
    """Columns of a list of (letter, stage, microbatch)."""
    columns = np.array([(LETTERS.index(letter), s, m) for letter, s, m in rows], dtype=np.int64).reshape(-1, 3)
    return RankActions(columns[:, 0], columns[:, 1], columns[:, 2])


def from_csv(text: str, *, name: str = "custom") -> Schedule:
    """Read an action table. Raises UserError for a malformed action or a stage that two ranks claim."""
    ranks, owner = [], {}
    for rank, line in enumerate(filter(str.strip, text.splitlines())):
        rows = []
        for cell in filter(None, (cell.strip() for cell in line.split(","))):
            match = _ACTION.fullmatch(cell)
            if match is None:
                raise UserError(f"schedule line {rank + 1}: {cell!r} is no action; allowed: 0F0, 0B0, 0I0, 0W0")
            rows.append((match.group(2), int(match.group(1)), int(match.group(3))))
            if owner.setdefault(rows[-1][1], rank) != rank:
                raise UserError(f"schedule line {rank + 1}: stage {rows[-1][1]} also runs on rank {owner[rows[-1][1]]}")
        ranks.append(rank_actions(rows))
    if not owner or sorted(owner) != list(range(len(owner))):
        raise UserError("schedule: stages must be numbered 0, 1, ... without gaps")
    microbatches = 1 + max(int(actions.microbatch.max(initial=-1)) for actions in ranks)
    schedule = Schedule(name, microbatches, tuple(owner[s] for s in range(len(owner))), tuple(ranks))
    verify(schedule)
    return schedule


def verify(schedule: Schedule, *, memory_cap: int | None = None) -> None:
    """Check a table: each action once, a backward for every forward, executable, memory under the cap.

    Raises UserError naming the first broken rule.
    """
    wanted = {(v, m) for v in range(schedule.num_stages) for m in range(schedule.num_microbatches)}
    seen: dict[str, set[tuple[int, int]]] = {letter: set() for letter in LETTERS}
    for rank, actions in enumerate(schedule.ranks):
        for letter, stage, microbatch in zip(*_plain(actions), strict=True):
            if (stage, microbatch) in seen[letter]:
                raise UserError(f"schedule {schedule.name}: {stage}{letter}{microbatch} appears twice")
            if schedule.rank_of_stage[stage] != rank:
                raise UserError(f"schedule {schedule.name}: {stage}{letter}{microbatch} is on the wrong rank {rank}")
            seen[letter].add((stage, microbatch))
    whole = seen["B"] | (seen["I"] & seen["W"])
    if seen["F"] != wanted or whole != wanted or seen["I"] != seen["W"] or seen["B"] & seen["I"]:
        raise UserError(f"schedule {schedule.name}: every microbatch needs one F and one B (or I and W) per stage")
    _check_executable(schedule)
    for rank in range(schedule.num_ranks):
        if memory_cap is not None and schedule.peak_in_flight(rank) > memory_cap:
            raise UserError(f"schedule {schedule.name}: rank {rank} keeps {schedule.peak_in_flight(rank)} > {memory_cap}")


def _plain(actions: RankActions) -> tuple[list[str], list[int], list[int]]:
    return [LETTERS[c] for c in actions.code], actions.stage.tolist(), actions.microbatch.tolist()


def _check_executable(schedule: Schedule) -> None:
    """Run the table in order; a rank whose next action waits for ever means a cycle."""
    done: set[tuple[str, int, int]] = set()
    position = [0] * schedule.num_ranks
    rows = [list(zip(*_plain(actions), strict=True)) for actions in schedule.ranks]
    last = schedule.num_stages - 1
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(rows):
            while position[rank] < len(actions) and _ready(actions[position[rank]], done, last):
                done.add(actions[position[rank]])
                position[rank] += 1
                moved = True
    stuck = [r for r, actions in enumerate(rows) if position[r] < len(actions)]
    if stuck:
        letter, stage, microbatch = rows[stuck[0]][position[stuck[0]]]
        raise UserError(f"schedule {schedule.name}: {stage}{letter}{microbatch} on rank {stuck[0]} can never start")


def _ready(action: tuple[str, int, int], done: set[tuple[str, int, int]], last: int) -> bool:
    letter, stage, microbatch = action
    if letter == "F":
        return stage == 0 or ("F", stage - 1, microbatch) in done
    if letter == "W":
        return ("I", stage, microbatch) in done
    behind = stage == last or bool({("B", stage + 1, microbatch), ("I", stage + 1, microbatch)} & done)
    return behind and ("F", stage, microbatch) in done
