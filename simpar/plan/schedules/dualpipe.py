"""DualPipe and DualPipeV: forwards from one end overlap with backwards from the other.

A forward and a backward that run together are flagged as a pair (see actions). DualPipe runs half of the
microbatches from each end, every rank holding two stages' parameters, one of each direction; DualPipeV folds
this into a V: rank r holds stages r and 2p - 1 - r once [DeepSeek-V3, arXiv 2412.19437, section 3.2.1, and
the phases published as github.com/deepseek-ai/DualPipe].
"""

from collections import deque
from dataclasses import field
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plan.schedules.actions import B, F, I, Ints, RankActions, Schedule, W, rank_actions
from simpar.plan.schedules.producer import Moment, Names, Producer, Promise, moment
from simpar.plan.schedules.zb_v import v_placement


def dualpipe(p: int, m: int) -> Schedule:
    """DualPipe: pairs, from both ends; p + 1 microbatches in flight on every rank, two copies of the parameters.

    Raises UserError unless p is even, m is even and m >= 2p.
    """
    if not _allows_both_ends(p, m):
        raise UserError(f"schedule dualpipe: pp = {p}, {m} microbatches; allowed: both even, and at least {2 * p}")
    return Schedule("dualpipe", m, tuple(range(p)), tuple(_dualpipe_rank(r, p, m) for r in range(p)), m // 2)


def dualpipe_v(p: int, m: int) -> Schedule:
    """DualPipeV: forwards and backwards run in pairs; 2p + 1 chunks in flight on every rank.

    Raises UserError unless m >= 2p.
    """
    if not _allows_v(p, m):
        raise UserError(f"schedule dualpipev: {m} microbatches; allowed: at least 2 x pp = {2 * p}")
    ranks = []
    for r in range(p):
        writer = _Writer(stages=(r, 2 * p - 1 - r), first_microbatch=(0, 0))
        writer.run(tail=r + 1, rest=p - r - 1, steady=m - 2 * p + r + 1, middle=r == p - 1)
        ranks.append(rank_actions(writer.rows))
    return Schedule("dualpipev", m, v_placement(p), tuple(ranks))


def _dualpipe_rank(r: int, p: int, m: int) -> RankActions:
    """Counted from the nearer end, a rank's own direction comes first and ends at the far end."""
    near = min(r, p - 1 - r)
    own = 0 if r < p // 2 else m // 2
    writer = _Writer(stages=(near, p - 1 - near), first_microbatch=(own, m // 2 - own))
    writer.run(tail=near + 1, rest=p // 2 - near - 1, steady=m // 2 - p + near + 1, middle=near == p // 2 - 1)
    return rank_actions(writer.rows)


@dataclass
class _Writer:
    """Writes one rank's table. Side 0 is the stage nearer to its microbatches' input, side 1 the other."""

    stages: tuple[int, int]
    first_microbatch: tuple[int, int]
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    count: dict[tuple[int, int], int] = field(default_factory=dict)
    owed: deque[tuple[int, int]] = field(default_factory=deque)

    def run(self, *, tail: int, rest: int, steady: int, middle: bool) -> None:
        """The eight phases; ``tail`` and ``rest`` count repetitions, ``middle`` ranks start unpaired."""
        for _ in range(2 * rest):
            self.forward(0)
        for _ in range(tail):
            self.forward(0)
            self.forward(1)
        for _ in range(rest):
            self.backward(1, split=True)
            self.weight()
            self.forward(1)
        for step in range(steady):
            self.pair(0, 1, joined=not (middle and step == 0))
            self.pair(1, 0)
        for _ in range(rest):
            self.backward(1)
            self.pair(1, 0)
        self._drain(tail)
        for _ in range(rest):
            self.weight()
            self.backward(0, split=True)
        for _ in range(tail):
            self.weight()

    def _drain(self, tail: int) -> None:
        """Backwards of both sides; from the middle on, W is split off to fill the end."""
        split = False
        for step in range(tail):
            split |= step == tail // 2 and tail % 2 == 0
            self.backward(1, split=split)
            split |= step == tail // 2 and tail % 2 == 1
            self.backward(0, split=split)

    def forward(self, side: int, *, joined: bool = False) -> None:
        """A forward of a side; joined to the backward that follows."""
        self.rows.append((F, self.stages[side], self._next(F, side), int(joined)))

    def backward(self, side: int, *, split: bool = False) -> None:
        """A full backward of a side, or its I with the W owed."""
        microbatch = self._next(B, side)
        self.rows.append((I if split else B, self.stages[side], microbatch, 0))
        if split:
            self.owed.append((self.stages[side], microbatch))

    def pair(self, forward_side: int, backward_side: int, *, joined: bool = True) -> None:
        """A forward and a backward, together unless not joined."""
        self.forward(forward_side, joined=joined)
        self.backward(backward_side)

    def weight(self) -> None:
        """The oldest W owed."""
        self.rows.append((W, *self.owed.popleft(), 0))

    def _next(self, code: int, side: int) -> int:
        at = self.count.get((code, side), 0)
        self.count[code, side] = at + 1
        return self.first_microbatch[side] + at


def _allows_both_ends(p: Any, m: Any) -> Any:
    """Whether halves of ranks and of microbatches are whole, and these fill the pipeline."""
    return (p % 2 == 0) & (m % 2 == 0) & (m >= 2 * p)


def _allows_v(p: Any, m: Any) -> Any:
    """Whether microbatches fill the pipeline."""
    return m >= 2 * p


def _first_pair(rank: int, p: int, _vpp: int, m: Ints) -> Moment:
    """The first pair: the forward down beside the backward up, with 2p chunks in flight before."""
    return moment([2 * p - rank, rank + 1], 0, m)


def _first_pair_of_half(rank: int, p: int, vpp: int, m: Ints) -> Moment:
    """That of the V on half the ranks, where a rank and its mirror image are one."""
    return _first_pair(min(rank, p - 1 - rank), p // 2, vpp, m // 2)


PRODUCERS = (
    Producer(
        "dualpipe",
        dualpipe,
        Promise("2024-12", lambda p, _m: p + 1, lambda p, _m: p - 2),
        _first_pair_of_half,
        allows=_allows_both_ends,
        names=Names(hints=("chimera",)),
        searched="when named",
        half_schedule="dualpipev",
    ),
    Producer(
        "dualpipev",
        dualpipe_v,
        Promise("2024-12", lambda p, _m: 2 * p + 1, lambda p, _m: 2 * (p - 1)),
        _first_pair,
        chunks=2,
        allows=_allows_v,
        names=Names(hints=("chimera",)),
    ),
)
