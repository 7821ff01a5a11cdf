"""Measured ranks as rows of the page's timeline: one step, in the columns that the page's scripts draw."""

from collections.abc import Callable
from typing import Any

import numpy as np

from simpar.diagnosis.lanes import Lane
from simpar.diagnosis.measured import MeasuredStep
from simpar.diagnosis.traffic import UNNAMED, RankTraffic
from simpar.plan.choices.mesh import COMMUNICATION, PIPELINE
from simpar.report.palette import IDLE_COLOUR, IDLE_TITLE, KIND_COLOUR
from simpar.report.timeline import IDLE_CAUSES
from simpar.units import Ints

MOST_ROWS = 16
MOST_PIECES = 6000
"""The most pieces of a row; if there are more, the pieces at evenly spaced moments are drawn."""


def choose_shown_ranks(measured: MeasuredStep) -> list[int]:
    """Indices of the ranks to draw: those that others wait for, and others evenly chosen, in order."""
    count = len(measured.ranks)
    late = [at for at, each in enumerate(measured.ranks) if any(s.rank == each.rank for s in measured.stragglers)]
    even = np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(np.int64).tolist()
    return sorted([*dict.fromkeys([*late, *even])][:MOST_ROWS])


def make_measured_series(measured: MeasuredStep, colour_of: Callable[[str], str]) -> dict[str, Any]:
    """Rows of the first of the measured steps; times in whole ns, starts as differences."""
    at = choose_shown_ranks(measured)
    offsets = measured.offset_ns or (0,) * len(measured.ranks)
    begins = [measured.lanes[rank].window.begin_ns - offsets[rank] for rank in at]
    lengths = [measured.lanes[rank].window.length_ns // measured.lanes[rank].window.steps for rank in at]
    origin = min(begins)
    owners = dict.fromkeys(name for rank in at for name in _computing(measured.lanes[rank]))
    used = [name for name in owners if any(name in measured.lanes[rank].owned_ns() for rank in at)]
    axes = [axis for axis in (*COMMUNICATION, UNNAMED) if any(axis in measured.traffic[rank].axes for rank in at)]
    kinds = [{"name": name, "colour": colour_of(name), "lane": 0} for name in used]
    kinds += [{"name": f"{axis} communication", "colour": KIND_COLOUR["dp"], "lane": 2} for axis in axes]
    stages = [
        _row(measured, rank, (used, axes), (begin - origin, length))
        for rank, begin, length in zip(at, begins, lengths, strict=True)
    ]
    return {
        "step_ns": max(begin - origin + length for begin, length in zip(begins, lengths, strict=True)),
        "fullest": 0,
        "reserved_kib": None,
        "kinds": kinds,
        "causes": [{"name": IDLE_TITLE[cause], "colour": IDLE_COLOUR[cause]} for cause in IDLE_CAUSES],
        "parts": [],
        "stages": stages,
    }


def _computing(lane: Lane) -> list[str]:
    """Owners that compute."""
    return [name for name in lane.owners if not name.startswith("exposed_")]


def _row(measured: MeasuredStep, at: int, names: tuple[list[str], list[str]], span: tuple[int, int]) -> dict[str, Any]:
    """Blocks and idle pieces of one rank within ``span`` (ns of the page)."""
    lane, traffic = measured.lanes[at], measured.traffic[at]
    used, axes = names
    begin_ns, length = span
    origin, end = lane.window.begin_ns, lane.window.begin_ns + length
    begin, stop, owner = _sampled(lane, end)
    place = np.array([used.index(name) if name in used else -1 for name in lane.owners] + [-1])
    kind = place[owner]
    work = kind >= 0
    shown = (traffic.start_ns < end) & (traffic.finish_ns > origin)
    axis = np.array([len(used) + axes.index(each) for each in traffic.axis], dtype=np.int64)
    starts = np.concatenate([begin[work], np.maximum(traffic.start_ns[shown], origin)])
    stops = np.concatenate([stop[work], np.minimum(traffic.finish_ns[shown], end)])
    kinds = np.concatenate([kind[work], axis[shown]]).astype(np.int64)
    order = np.argsort(starts, kind="stable")
    idle = ~work
    rank = measured.ranks[at].rank
    return {
        "name": f"rank {rank}",
        "multiplicity": 1,
        "capacity_kib": 1.0,
        "blocks": {
            "start": np.diff(starts[order] - origin + begin_ns, prepend=0).tolist(),
            "duration": (stops - starts)[order].tolist(),
            "kind": kinds[order].tolist(),
            "chunk": [-1] * len(order),
            "microbatch": [-1] * len(order),
        },
        "idle": {
            "start": np.diff(begin[idle] - origin + begin_ns, prepend=0).tolist(),
            "duration": (stop - begin)[idle].tolist(),
            "cause": _causes(lane, traffic, owner[idle], (begin[idle] + stop[idle]) // 2).tolist(),
        },
        "memory": None,
    }


def _sampled(lane: Lane, end_ns: int) -> tuple[Ints, Ints, Ints]:
    """Pieces up to a moment: begin, end and owner; very many are sampled at evenly spaced moments and joined."""
    pieces, origin = lane.pieces, lane.window.begin_ns
    last = int(np.searchsorted(pieces.begin_ns, end_ns))
    begin, stop, owner = pieces.begin_ns[:last], np.minimum(pieces.end_ns[:last], end_ns), pieces.owner[:last]
    if last <= MOST_PIECES:
        return begin, stop, owner
    edges = np.linspace(origin, end_ns, MOST_PIECES + 1).astype(np.int64)
    middle = (edges[:-1] + edges[1:]) // 2
    owners = owner[np.searchsorted(begin, middle, side="right") - 1]
    first = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    return edges[first], np.append(edges[first[1:]], end_ns), owners[first]


def _causes(lane: Lane, traffic: RankTraffic, owner: Ints, at_ns: Ints) -> Ints:
    """Why nothing computes at some moments, as indices in IDLE_CAUSES."""
    result = np.full(len(owner), IDLE_CAUSES.index("host"), dtype=np.int64)
    for number, name in enumerate(lane.owners):
        if not name.startswith("exposed_"):
            continue
        axis = name.removeprefix("exposed_")
        rows = traffic.of_axis(axis)
        begin, end = (np.sort(traffic.finish_ns[rows] - traffic.cost_ns[rows]), np.sort(traffic.finish_ns[rows]))
        moving = np.searchsorted(begin, at_ns, side="right") > np.searchsorted(end, at_ns, side="right")
        waits = IDLE_CAUSES.index("bubble" if axis == PIPELINE else "waiting")
        result[owner == number] = np.where(moving, IDLE_CAUSES.index("exposed"), waits)[owner == number]
    return result
