"""Schedules that are an order and a warm-up count: naive, GPipe, 1F1B, interleaved, breadth-first."""

from __future__ import annotations

import numpy as np

from simpar.errors import UserError
from simpar.plan.schedules.actions import B, F, Ints, Schedule, columns


def naive(p: int, m: int, vpp: int = 1) -> Schedule:
    """One microbatch after the other through the whole pipeline (model parallelism without pipelining)."""
    _only_one_chunk("naive", vpp)
    code = np.tile([F, B], m)
    microbatch = np.repeat(np.arange(m), 2)
    ranks = tuple(columns(code, r, microbatch) for r in range(p))
    return Schedule("naive", m, tuple(range(p)), ranks)


def gpipe(p: int, m: int, vpp: int = 1) -> Schedule:
    """All forwards, then all backwards [Huang et al. 2018, arXiv 1811.06965]."""
    _only_one_chunk("gpipe", vpp)
    code = np.repeat([F, B], m)
    microbatch = np.tile(np.arange(m), 2)
    ranks = tuple(columns(code, r, microbatch) for r in range(p))
    return Schedule("gpipe", m, tuple(range(p)), ranks)


def one_f_one_b(p: int, m: int, vpp: int = 1) -> Schedule:
    """1F1B: p - r - 1 warm-up forwards on rank r, then F and B in turn [arXiv 2006.09503]."""
    _only_one_chunk("1f1b", vpp)
    ranks = []
    for r in range(p):
        code, forward, backward = _alternate(min(p - r - 1, m), m)
        ranks.append(columns(code, r, np.where(code == F, forward, backward)))
    return Schedule("1f1b", m, tuple(range(p)), tuple(ranks))


def interleaved(p: int, m: int, vpp: int = 2) -> Schedule:
    """Interleaved 1F1B: chunk c of rank r is virtual stage c p + r [Narayanan et al. 2021, arXiv 2104.04473].

    Microbatches go through the chunks in groups of p. Raises UserError unless p divides m.
    """
    if m % p:
        raise UserError(f"schedule interleaved: {m} microbatches; allowed: a multiple of pp = {p}")
    total = m * vpp
    position = np.arange(total)
    chunk = position // p % vpp
    microbatch = position // (p * vpp) * p + position % p
    ranks = []
    for r in range(p):
        warmup = min(2 * (p - r - 1) + (vpp - 1) * p, total) if vpp > 1 else min(p - r - 1, total)
        code, forward, backward = _alternate(warmup, total)
        stage = np.where(code == F, chunk[forward], vpp - 1 - chunk[backward]) * p + r
        ranks.append(columns(code, stage, np.where(code == F, microbatch[forward], microbatch[backward])))
    return Schedule("interleaved", m, tuple(v % p for v in range(p * vpp)), tuple(ranks))


def breadth_first(p: int, m: int, vpp: int = 2) -> Schedule:
    """Looped breadth-first: every chunk runs all its microbatches in turn [arXiv 2211.05953]."""
    chunk = np.repeat(np.arange(vpp), m)
    microbatch = np.tile(np.arange(m), vpp)
    code = np.repeat([F, B], m * vpp)
    stages = np.concatenate([chunk, chunk[::-1]])
    ranks = tuple(columns(code, stages * p + r, np.tile(microbatch, 2)) for r in range(p))
    return Schedule("breadth-first", m, tuple(v % p for v in range(p * vpp)), ranks)


def _alternate(warmup: int, total: int) -> tuple[Ints, Ints, Ints]:
    """Codes of warm-up Fs, then F and B in turn, then the remaining Bs; running F and B indices."""
    steady = total - warmup
    code = np.concatenate([np.full(warmup, F), np.tile([F, B], steady), np.full(warmup, B)]).astype(np.int64)
    forward = np.cumsum(code == F) - 1
    backward = np.cumsum(code == B) - 1
    return code, np.clip(forward, 0, None), np.clip(backward, 0, None)


def _only_one_chunk(name: str, vpp: int) -> None:
    if vpp != 1:
        raise UserError(
            f"schedule {name}: vpp = {vpp}; allowed: 1 (several chunks need interleaved or breadth-first)"
        )
