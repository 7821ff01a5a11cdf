"""Schedules given by a fixed order and a warm-up count: naive, GPipe, 1F1B, interleaved, breadth-first."""

from typing import Any

import numpy as np

from simpar.errors import UserError
from simpar.plan.schedules.actions import B, F, Ints, Schedule, columns
from simpar.plan.schedules.producer import EVERY, Moment, Names, Producer, Promise, moment


def naive(p: int, m: int) -> Schedule:
    """One microbatch after the other through the whole pipeline (model parallelism without pipelining)."""
    code = np.tile([F, B], m)
    microbatch = np.repeat(np.arange(m), 2)
    ranks = tuple(columns(code, r, microbatch) for r in range(p))
    return Schedule("naive", m, tuple(range(p)), ranks)


def gpipe(p: int, m: int) -> Schedule:
    """All forwards, then all backwards [Huang et al. 2018, arXiv 1811.06965]."""
    code = np.repeat([F, B], m)
    microbatch = np.tile(np.arange(m), 2)
    ranks = tuple(columns(code, r, microbatch) for r in range(p))
    return Schedule("gpipe", m, tuple(range(p)), ranks)


def one_f_one_b(p: int, m: int) -> Schedule:
    """1F1B: p - r - 1 warm-up forwards on rank r, then F and B in turn [arXiv 2006.09503]."""
    ranks = []
    for r in range(p):
        code, forward, backward = alternate(min(p - r - 1, m), m)
        ranks.append(columns(code, r, np.where(code == F, forward, backward)))
    return Schedule("1f1b", m, tuple(range(p)), tuple(ranks))


def interleaved(p: int, m: int, vpp: int) -> Schedule:
    """Interleaved 1F1B: chunk c of rank r is virtual stage c p + r [Narayanan et al. 2021, arXiv 2104.04473].

    Microbatches go through the chunks in groups of p. Raises UserError unless p divides m.
    """
    if not _in_groups(p, m):
        raise UserError(f"schedule interleaved: {m} microbatches; allowed: a multiple of pp = {p}")
    total = m * vpp
    position = np.arange(total)
    chunk = position // p % vpp
    microbatch = position // (p * vpp) * p + position % p
    ranks = []
    for r in range(p):
        warmup = min(_warmup(r, p, vpp), total)
        code, forward, backward = alternate(warmup, total)
        stage = np.where(code == F, chunk[forward], vpp - 1 - chunk[backward]) * p + r
        ranks.append(columns(code, stage, np.where(code == F, microbatch[forward], microbatch[backward])))
    return Schedule("interleaved", m, tuple(v % p for v in range(p * vpp)), tuple(ranks))


def breadth_first(p: int, m: int, vpp: int) -> Schedule:
    """Looped breadth-first: every chunk runs all its microbatches in turn [arXiv 2211.05953]."""
    chunk = np.repeat(np.arange(vpp), m)
    microbatch = np.tile(np.arange(m), vpp)
    code = np.repeat([F, B], m * vpp)
    stages = np.concatenate([chunk, chunk[::-1]])
    ranks = tuple(columns(code, stages * p + r, np.tile(microbatch, 2)) for r in range(p))
    return Schedule("breadth-first", m, tuple(v % p for v in range(p * vpp)), ranks)


def alternate(warmup: int, total: int) -> tuple[Ints, Ints, Ints]:
    """(Codes, indices of Fs, indices of Bs), int64[2 total] each: warm-up Fs, F and B in turn, then remaining Bs."""
    steady = total - warmup
    code = np.concatenate([np.full(warmup, F), np.tile([F, B], steady), np.full(warmup, B)]).astype(np.int64)
    forward = np.cumsum(code == F) - 1
    backward = np.cumsum(code == B) - 1
    return code, np.clip(forward, 0, None), np.clip(backward, 0, None)


def _in_groups(p: Any, m: Any) -> Any:
    """Whether microbatches make whole groups of p, which go through the chunks together."""
    return m % p == 0


def _warmup(rank: int, p: int, vpp: int) -> int:
    """Warm-up forwards of an interleaved rank, before F and B take turns."""
    return 2 * (p - rank - 1) + (vpp - 1) * p if vpp > 1 else p - rank - 1


def _first_of_groups(rank: int, p: int, vpp: int, m: Ints) -> Moment:
    """The moment of interleaved ranks: forwards go through the chunks in groups of p microbatches."""
    total = np.minimum(_warmup(rank, p, vpp) + 1, m * vpp)
    groups, rest = np.divmod(total, p * vpp)
    flying = groups[:, None] * p + np.clip(rest[:, None] - np.arange(vpp) * p, 0, p)
    return Moment(flying, (total - 1) // p % vpp, vpp - 1)


PRODUCERS = (
    Producer(
        "naive",
        naive,
        Promise("", lambda _p, _m: 1, lambda p, m: 3 * (p - 1) * m),
        lambda _r, _p, _v, m: moment([1], 0, m),
        searched="never",
    ),
    Producer(
        "gpipe",
        gpipe,
        Promise("2018-11", lambda _p, m: m, lambda p, _m: 3 * (p - 1)),
        lambda _r, _p, _v, m: moment([EVERY], 0, m),
        names=Names(aliases=("afab",)),
    ),
    Producer(
        "1f1b",
        one_f_one_b,
        Promise("2020-06", min, lambda p, _m: 3 * (p - 1)),
        lambda r, p, _v, m: moment([p - r], 0, m),
        names=Names(hints=("pipedream", "pipedreamflush", "dapple"), pattern=r"none|1f1b|pipedream-?flush|dapple"),
        usual=True,
    ),
    Producer(
        "interleaved",
        interleaved,
        Promise("2021-04", lambda p, m: min(3 * p - 1, 2 * m), lambda p, _m: 3 * (p - 1)),
        _first_of_groups,
        chunks=2,
        allows=_in_groups,
        names=Names(aliases=("interleaved1f1b",), pattern="interleaved"),
        usual=True,
    ),
    Producer(
        "breadth-first",
        breadth_first,
        Promise("2022-11", lambda _p, m: 2 * m, lambda p, _m: 3 * (p - 1)),
        lambda _r, _p, vpp, m: moment([EVERY] * vpp, vpp - 1, m),
        chunks=2,
        names=Names(aliases=("loopedbfs", "bfs")),
    ),
)
