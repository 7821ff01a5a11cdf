"""The simulated and the measured step in one Perfetto file: the simulation on top, then every rank. No torch.

Measured events are torch's Kineto traces on a common clock. Their processes are renumbered to follow the simulated
ones. Very long traces keep only their longest events. Events that stick out of the enclosing event by rounding are cut,
because Perfetto drops such events silently.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from simpar.files import write_atomic
from simpar.report.timeline import Timeline
from simpar.report.trace import trace
from simpar.units import KILO

Event = dict[str, Any]
MEASURED_PID = 100_000
MAX_EVENTS = 40_000
STEP = "ProfilerStep"
PARTS = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_runtime")


def write_both(path: str | Path, simulated: Timeline | None, measured: Sequence[Path]) -> None:
    """Write one trace of a simulated step and of the measured ranks, gzipped if the name ends with .gz."""
    events = list(trace(simulated)["traceEvents"]) if simulated is not None else []
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            event["args"] = {"name": f"simulated: {event['args']['name']}"}
    events += merge_traces([json.loads(each.read_text(encoding="utf-8")) for each in measured])
    text = json.dumps({"displayTimeUnit": "ms", "traceEvents": events})
    write_atomic(path, gzip.compress(text.encode(), mtime=0) if str(path).endswith(".gz") else text)


def merge_traces(ranks: Sequence[Mapping[str, Any]]) -> list[Event]:
    """Events of all ranks' Kineto traces, from the first step's start on, in us."""
    starts = [_first_step_us(rank) for rank in ranks]
    origin = min((_absolute_us(rank, start) for rank, start in zip(ranks, starts, strict=True)), default=0.0)
    events: list[Event] = []
    for number, rank in enumerate(ranks):
        events += _of_rank(rank, number, origin)
    return events


def _absolute_us(rank: Mapping[str, Any], time_us: float) -> float:
    """Kineto's times, which count from a base that every file chooses, as absolute times in us."""
    return float(rank.get("baseTimeNanoseconds", 0)) / KILO + time_us


def _first_step_us(rank: Mapping[str, Any]) -> float:
    steps = [e["ts"] for e in rank["traceEvents"] if str(e.get("name", "")).startswith(STEP)]
    slices = [e["ts"] for e in rank["traceEvents"] if e.get("ph") == "X"]
    return float(min(steps or slices, default=0.0))


def _of_rank(rank: Mapping[str, Any], number: int, origin: float) -> Iterator[Event]:
    shift = _absolute_us(rank, 0.0) - origin
    slices = [e for e in rank["traceEvents"] if e.get("ph") == "X" and e.get("cat") in PARTS]
    slices = sorted(slices, key=lambda e: -e["dur"])[:MAX_EVENTS]
    threads = {thread: tid for tid, thread in enumerate(_by_first_use(slices))}
    pid = MEASURED_PID + number
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"measured: rank {number}"}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
    names = _thread_names(rank)
    for thread, tid in threads.items():
        name = "compute" if tid == 0 else names.get(thread, "thread")
        yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    yield from _nested(
        {
            "ph": "X", "pid": pid, "tid": threads[_thread(e)], "name": e["name"], "cat": e["cat"],
            "ts": round(e["ts"] + shift, 3), "dur": round(e["dur"], 3),
        }
        for e in slices
    )  # fmt: skip


def _thread(event: Event) -> tuple[Any, Any]:
    return event["pid"], event["tid"]


def _by_first_use(slices: Sequence[Event]) -> list[tuple[Any, Any]]:
    """Threads: the one that runs the steps first, then the others in order of appearance."""
    main = next((_thread(e) for e in slices if e["name"].startswith(STEP)), None)
    others = dict.fromkeys(_thread(e) for e in sorted(slices, key=lambda e: e["ts"]))
    return [*([main] if main else []), *(thread for thread in others if thread != main)]


def _thread_names(rank: Mapping[str, Any]) -> dict[tuple[Any, Any], str]:
    """The role of each thread, without the numbers of the system."""
    named = (e for e in rank["traceEvents"] if e.get("ph") == "M" and e.get("name") == "thread_name")
    return {_thread(e): str(e["args"]["name"]).rpartition("(")[2].rstrip(")") for e in named}


def _nested(events: Iterable[Event]) -> Iterator[Event]:
    """Events by thread and time, each cut to its enclosing event."""
    open_until: list[float] = []
    thread: tuple[int, int] | None = None
    for event in sorted(events, key=lambda e: (e["tid"], e["ts"], -e["dur"])):
        if (event["pid"], event["tid"]) != thread:
            thread, open_until = (event["pid"], event["tid"]), []
        start, end = event["ts"], event["ts"] + event["dur"]
        while open_until and open_until[-1] <= start:
            open_until.pop()
        end = min(end, open_until[-1]) if open_until else end
        open_until.append(end)
        yield {**event, "dur": round(end - start, 3)}
