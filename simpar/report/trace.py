"""Traces for Perfetto and chrome://tracing: one process per rank class, one thread per stream.

Viewers rely on these rules: slices of one thread nest or are disjoint (a partly
overlapping slice is dropped silently), and flow arrows start and end inside slices. Processes are numbered in display
order. Times are in us with three decimals, so nanoseconds are exact. Viewers colour by the name without its digits, so
names start with the kind and end with numbers.

Sources: google/perfetto PR 1656, PR 3273, issue 208.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from simpar.files import write_atomic
from simpar.program.ir.program import Label
from simpar.report.detail import InnerSteps
from simpar.report.timeline import MemoryCurve, Slices, Timeline, choose_shown_classes
from simpar.units import KILO, NS_PER_S

Event = dict[str, Any]
# About 30 MB of JSON each: viewers take several times a file's size in memory.
MAX_SLICES = 150_000
MAX_INNER_SLICES = 150_000
MICROBATCH = "microbatch"
COUNTED = {MICROBATCH: "mb", "step": "step "}
"""How the name of a slice ends, before the number of what is counted."""
SHORT_KINDS = {
    "forward": "fwd",
    "backward": "bwd",
    "input_gradient": "dgrad",
    "weight_gradient": "wgrad",
    "forward_backward": "fwd+bwd",
}


def write_trace(
    timeline: Timeline, path: str | Path, *, metadata: Mapping[str, Any] | None = None, counted: str = MICROBATCH
) -> None:
    """Write the trace as JSON, atomically; compressed if the name ends with .gz.

    ``counted`` is what the numbers of slices count, "microbatch" or "step". ``metadata`` is shown by the viewer's info
    page. Open it in https://ui.perfetto.dev or chrome://tracing.

    >>> import simpar, tempfile
    >>> result = simpar.simulate(**simpar.load_scenario("gpt2-laptop").inputs())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_trace(result.timeline, f"{folder}/trace.json.gz")
    """
    text = json.dumps(trace(timeline, metadata=metadata, counted=counted))
    write_atomic(path, gzip.compress(text.encode(), mtime=0) if str(path).endswith(".gz") else text)


def trace(
    timeline: Timeline, *, metadata: Mapping[str, Any] | None = None, counted: str = MICROBATCH
) -> dict[str, Any]:
    """The timeline in the Trace Event format: slices, send arrows, memory counters, step bounds."""
    timeline = _small_enough(timeline)
    lanes = _Lanes(timeline)
    events = [*_names(timeline, lanes), *_slices(timeline, lanes, counted), *_arrows(timeline, lanes)]
    for class_id in np.unique(timeline.slices.class_id).tolist() if timeline.memory else ():
        events += _counters(class_id, timeline.memory[class_id])
    end = "step end" if counted == MICROBATCH else "end"
    events.append({"ph": "i", "s": "g", "pid": 0, "tid": 0, "name": end, "ts": _us(timeline.span_ns)})
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": dict(metadata or {})}


def _small_enough(timeline: Timeline) -> Timeline:
    """A large timeline reduced to the slowest class of every pipeline rank."""
    if len(timeline.slices) <= MAX_SLICES:
        return timeline
    kept = np.flatnonzero(np.isin(timeline.slices.class_id, choose_shown_classes(timeline)))
    row_of = np.full(len(timeline.slices) + 1, -1, dtype=np.int64)
    row_of[kept] = np.arange(len(kept))
    arrows = row_of[timeline.arrows]
    return replace(timeline, slices=timeline.slices.take(kept), arrows=arrows[(arrows >= 0).all(axis=1)])


class _Lanes:
    """The thread of every slice: its stream, or a spare lane if slices of one stream overlap."""

    def __init__(self, timeline: Timeline) -> None:
        slices = timeline.slices
        self.width = len(timeline.streams)
        self.overflow = np.zeros(len(slices), dtype=np.int64)
        order = np.lexsort((slices.start_ns, slices.stream, slices.class_id))
        ends: dict[tuple[int, int], list[int]] = {}
        columns = (order, slices.class_id[order], slices.stream[order], slices.start_ns[order], slices.finish_ns[order])
        for row, class_id, stream, start, finish in zip(*(column.tolist() for column in columns), strict=True):
            busy = ends.setdefault((class_id, stream), [])
            lane = next((index for index, end in enumerate(busy) if end <= start), len(busy))
            if lane == len(busy):
                busy.append(finish)
            busy[lane] = finish
            self.overflow[row] = lane

    def tid(self, stream: int, lane: int) -> int:
        """Thread number: streams in order, spare lanes after all of them."""
        return int(stream) + self.width * int(lane)


def _names(timeline: Timeline, lanes: _Lanes) -> Iterator[Event]:
    slices = timeline.slices
    for class_id in np.unique(slices.class_id).tolist():
        entry = timeline.classes[class_id]
        title = f"{entry.name} (x{entry.multiplicity})" if entry.multiplicity > 1 else entry.name
        yield {"ph": "M", "pid": class_id, "name": "process_name", "args": {"name": title}}
        yield {"ph": "M", "pid": class_id, "name": "process_sort_index", "args": {"sort_index": class_id}}
        mine = slices.class_id == class_id
        used = np.unique(np.stack([slices.stream[mine], lanes.overflow[mine]]), axis=1)
        for stream, lane in used.T.tolist():
            tid = lanes.tid(stream, lane)
            name = timeline.streams[stream] + (f" ({lane + 1})" if lane else "")
            yield {"ph": "M", "pid": class_id, "tid": tid, "name": "thread_name", "args": {"name": name}}
            yield {"ph": "M", "pid": class_id, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _slices(timeline: Timeline, lanes: _Lanes, counted: str) -> Iterator[Event]:
    shown = _opened(timeline)
    for row, columns in enumerate(_rows(timeline.slices)):
        class_id, stream, start, finish, label, stage, microbatch, size, inner = columns
        if finish == start:
            continue
        entry = timeline.labels[label]
        place = {"pid": class_id, "tid": lanes.tid(stream, int(lanes.overflow[row]))}
        facts = {"stage": stage, counted: microbatch, "bytes": size or -1}
        yield _slice(place, entry, start, finish, facts)
        if inner >= 0 and microbatch <= shown:
            yield from _inside(timeline, timeline.inner[inner], place, start)


def _slice(place: Mapping[str, int], label: Label, start: int, finish: int, facts: Mapping[str, int]) -> Event:
    """One complete event; negative facts are left out."""
    words = [SHORT_KINDS.get(label.kind, label.kind)]
    words += [label.name] if label.name != label.kind else []
    words += [f"L{label.layer}"] if label.layer >= 0 else []
    words += [f"{short}{facts[name]}" for name, short in COUNTED.items() if facts.get(name, -1) >= 0]
    return {
        "ph": "X",
        **place,
        "name": " ".join(words),
        "cat": label.kind,
        "ts": _us(start),
        "dur": _us(finish - start),
        "args": {name: value for name, value in facts.items() if value >= 0},
    }


def _inside(timeline: Timeline, steps: InnerSteps, place: Mapping[str, int], begin: int) -> Iterator[Event]:
    """The steps of a merged op, nested in its slice or, on another stream, in the slice of the same op there."""
    times = zip(steps.streams, steps.labels, steps.start_ns.tolist(), steps.finish_ns.tolist(), strict=True)
    for stream, label, start, finish in times:
        tid = timeline.streams.index(stream) if stream in timeline.streams else place["tid"]
        yield _slice({**place, "tid": tid}, label, begin + start, begin + finish, {})


def _opened(timeline: Timeline) -> int:
    """The last microbatch whose blocks are opened, so that the file stays small enough for a viewer."""
    slices = timeline.slices
    sizes = np.array([*(len(steps.labels) for steps in timeline.inner), 0], dtype=np.int64)[slices.inner]
    per_microbatch = np.bincount(np.maximum(slices.microbatch, 0), weights=sizes)
    return int(np.searchsorted(np.cumsum(per_microbatch), MAX_INNER_SLICES, side="right")) - 1


def _rows(slices: Slices) -> Iterator[tuple[int, ...]]:
    columns = (getattr(slices, name).tolist() for name in slices.__dataclass_fields__)
    return zip(*columns, strict=True)


def _arrows(timeline: Timeline, lanes: _Lanes) -> Iterator[Event]:
    slices = timeline.slices
    seen = (slices.finish_ns > slices.start_ns)[timeline.arrows].all(axis=1)
    for number, (source, target) in enumerate(timeline.arrows[seen].tolist()):
        for phase, row in (("s", source), ("f", target)):
            yield {
                "ph": phase,
                "id": number,
                "cat": "send",
                "name": "send",
                "pid": int(slices.class_id[row]),
                "tid": lanes.tid(int(slices.stream[row]), int(lanes.overflow[row])),
                "ts": _us(int(slices.start_ns[row])),
                **({"bp": "e"} if phase == "f" else {}),
            }


def _counters(class_id: int, curve: MemoryCurve) -> Iterator[Event]:
    thin = curve.thin()
    columns = {name: part.tolist() for name, part in thin.parts.items()}
    for index, time_s in enumerate(thin.time_s.tolist()):
        values = {name: column[index] for name, column in columns.items()}
        yield {"ph": "C", "pid": class_id, "name": "memory", "ts": _us(round(time_s * NS_PER_S)), "args": values}


def _us(time_ns: int) -> float:
    return time_ns / KILO
