"""The rules that viewers of traces rely on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simpar.report.trace import Event
from simpar.units import KILO


def check_trace(data: Mapping[str, Any]) -> list[str]:
    """Problems that would make a viewer drop or misread events, one sentence each; empty for a good trace."""
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    named = {(e["pid"], e["tid"]) for e in data["traceEvents"] if e["ph"] == "M" and e["name"] == "thread_name"}
    problems = [f"thread {thread} has no name" for thread in sorted({_thread(e) for e in slices} - named)]
    problems += list(_overlaps(slices))
    return [*problems, *_loose_arrows(data, slices)]


def _thread(event: Event) -> tuple[int, int]:
    return event["pid"], event["tid"]


def _overlaps(slices: list[Event]) -> Iterator[str]:
    order = sorted(slices, key=lambda e: (_thread(e), e["ts"], -e["dur"]))
    open_until: list[float] = []
    thread: tuple[int, int] | None = None
    for event in order:
        if _thread(event) != thread:
            thread, open_until = _thread(event), []
        start, finish = round(event["ts"] * KILO), round((event["ts"] + event["dur"]) * KILO)
        while open_until and open_until[-1] <= start:
            open_until.pop()
        if open_until and finish > open_until[-1]:
            yield f"{event['name']} at {event['ts']} us overlaps the slice around it in part"
        open_until.append(finish)


def _loose_arrows(data: Mapping[str, Any], slices: list[Event]) -> Iterator[str]:
    by_thread: dict[tuple[int, int], set[float]] = {}
    for event in slices:
        by_thread.setdefault(_thread(event), set()).add(event["ts"])
    ends: dict[int, list[str]] = {}
    for event in data["traceEvents"]:
        if event["ph"] not in "sf":
            continue
        ends.setdefault(event["id"], []).append(event["ph"])
        if event["ts"] not in by_thread.get(_thread(event), set()):
            yield f"arrow {event['id']} ({event['ph']}) does not start on a slice"
    for number, phases in ends.items():
        if sorted(phases) != ["f", "s"]:
            yield f"arrow {number} has ends {phases}, wants one s and one f"
