"""The answer for a step of reinforcement learning as sections of a page, with the data of its charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from simpar.files import write_atomic
from simpar.posttraining.answer import PostTrainingFigures, PostTrainingResult, SideMemory
from simpar.posttraining.memory import RESERVED
from simpar.posttraining.picture import COLOUR
from simpar.posttraining.program import KINDS
from simpar.posttraining.terminal import headline, tables, weights_rows
from simpar.report.html import environment, fill_template
from simpar.report.html.data import Bar
from simpar.report.palette import AGAIN, BACKWARD, COMM, FORWARD, HOST, UPDATE, WAITING, WEIGHT
from simpar.units import KIB, NS_PER_S, Ints, format_bytes, format_count, format_figure, format_seconds, number_of

FOLDER = Path(__file__).parent
PAGE, SECTIONS = "page_of_rl.html.j2", "sections_of_rl.html.j2"
OWN = ("timeline", "memory_table", "breakdown", "communication", "how_sure")
"""Sections with templates of their own; all others are those of an update."""
MOST_ROWS = 24
PIXELS = 1000
"""Steps in which a curve with slopes is drawn."""
SIDES = ("training", "generation")
CURVE_PARTS = (
    {"name": "training", "colour": BACKWARD},
    {"name": "generation, in use", "colour": FORWARD},
    {"name": "generation, reserved only", "colour": AGAIN},
)
MEMORY_COLOUR = {
    "weights": FORWARD, "cache": AGAIN, "workspace": WEIGHT, "training states": UPDATE, "training": BACKWARD,
    "rollout engine": COMM,
}  # fmt: skip


def page_data(result: PostTrainingResult) -> dict[str, Any]:
    """Everything the templates need; ``series`` is drawn by scripts."""
    figures = result.figures
    step_s = figures.speed.step_time_s
    memory = figures.memory
    sides = {"generation": memory.generation, "training": memory.training, "host of a node": memory.host}
    known = {name: side for name, side in sides.items() if side is not None}
    return {
        "title": headline(figures),
        "figures": list(_figures(figures)),
        "fits": figures.fits,
        "why": {"binds": figures.limits, "hints": ()},
        "critical_path": [],
        "trials": [],
        "breakdown": [asdict(bar) for bar in _bars(_training(figures), step_s)],
        "generation": [asdict(bar) for bar in _bars(_generation(figures), step_s)],
        "memory": {
            "legend": [(part["name"], part["colour"]) for part in CURVE_PARTS],
            "sides_legend": [(name, MEMORY_COLOUR[name]) for name in dict.fromkeys(_parts(known.values()))],
            "sides": [_side(name, side) for name, side in known.items()],
            "cache_tokens": f"{memory.cache_tokens:,}",
            "cache_share": f"{memory.peak_cache_share:.0%}",
        },
        "texts": dict(tables(figures))["Texts, tokens"],
        "weights": list(weights_rows(figures)),
        "assumed": figures.assumed,
        "not_modelled": figures.not_modelled,
        "legend": [(f"{kind}: {words}", COLOUR[kind]) for kind, words in KINDS.items()],
        "series": series(result),
    }


def save_page(result: PostTrainingResult, path: str | Path) -> None:
    """Write the page atomically; equal results give equal bytes."""
    write_atomic(path, render(result))


def render(result: PostTrainingResult) -> str:
    """The page as text, which holds its data, style and scripts, and loads nothing."""
    return fill_template(environment(FOLDER).get_template(PAGE), page_data(result))


def sections(page: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Sections of a page's data as HTML."""
    own = environment(FOLDER).get_template(SECTIONS).module
    usual = environment().get_template("sections.html.j2").module
    return {name: str(getattr(own if name in OWN else usual, name)(page)) for name in names}


def values(figures: PostTrainingFigures) -> dict[str, Any]:
    """Figures in SI units for comparisons, under the names of an update's where there are such."""
    speed, memory = figures.speed, figures.memory
    return {
        "step_time_s": speed.step_time_s,
        "step_time_interval_s": None,
        "mfu": None,
        "tokens_per_s": speed.tokens_per_s,
        "samples_per_s": speed.samples_per_s,
        "training_waits": figures.parts_s.waiting / speed.step_time_s,
        "generation_waits": figures.generation.waiting / speed.step_time_s,
        "staleness": figures.staleness.mean,
        "peak_reserved_bytes": memory.training.total_bytes,
        "capacity_bytes": memory.training.capacity_bytes,
        "generation_bytes": memory.generation.total_bytes,
        "fit_probability": None,
        "cost_usd_per_step": speed.cost_usd_per_step,
        "energy_j_per_step": None,
        "whole_run": None,
    }


def _figures(figures: PostTrainingFigures) -> Iterable[dict[str, str]]:
    speed, one, stale = figures.speed, figures.generation, figures.staleness
    step_s = speed.step_time_s

    def figure(name: str, value: str, detail: str = "") -> dict[str, str]:
        return {"name": name, "value": value, "detail": detail}

    yield figure("step time", format_seconds(step_s), f"on {number_of(speed.devices, 'device')}")
    yield figure(
        "responses/s", format_figure(speed.samples_per_s), f"{format_count(speed.tokens_per_s)} tokens/s trained"
    )
    yield figure(
        "training waits", f"{figures.parts_s.waiting / step_s:.0%}",
        f"{format_seconds(figures.parts_s.waiting)} of a step, for responses",
    )  # fmt: skip
    yield figure(
        "a replica waits", f"{one.waiting / step_s:.0%}",
        f"{format_seconds(one.waiting)} of a step, {format_seconds(one.tail)} of it while others generate",
    )  # fmt: skip
    age = f"{stale.mean:.2g} updates" if stale.allowed else "on policy"
    yield figure("staleness", age, f"{stale.largest} at most" if stale.allowed else "responses of the present weights")
    verdict = "fits" if figures.fits else "does not fit"
    both = "; ".join(
        f"{name} {format_bytes(side.total_bytes)} of {format_bytes(side.capacity_bytes)}"
        for name, side in (("training", figures.memory.training), ("generation", figures.memory.generation))
    )
    yield figure("memory", verdict, both)
    if speed.cost_usd_per_step is not None:
        yield figure("cost", f"{format_figure(speed.cost_usd_per_step)} USD", "a step")


def _bars(parts: Iterable[tuple[str, str, float]], step_s: float) -> Iterable[Bar]:
    for name, colour, seconds in parts:
        if seconds:
            share = seconds / step_s
            yield Bar(name, colour, share, f"{format_seconds(seconds)} ({share:.1%})")


def _training(figures: PostTrainingFigures) -> Iterable[tuple[str, str, float]]:
    """Parts of a step of the training devices."""
    parts = figures.parts_s
    yield "waiting for responses", WAITING, parts.waiting
    yield "states to the host and back", HOST, parts.switch
    yield from ((f"pass: {name}", AGAIN, seconds) for name, seconds in parts.passes.items())
    yield "updates", BACKWARD, parts.training
    yield "new weights", COMM, parts.weights


def _generation(figures: PostTrainingFigures) -> Iterable[tuple[str, str, float]]:
    """Parts of a step of a mean replica."""
    one = figures.generation
    yield "generating", FORWARD, one.generating
    yield "waiting", WAITING, one.waiting
    yield "new weights", COMM, one.weights
    yield "devices are training", BACKWARD, one.away


def _parts(sides: Iterable[SideMemory]) -> Iterable[str]:
    for side in sides:
        yield from side.parts_bytes


def _side(name: str, side: SideMemory) -> dict[str, Any]:
    """A row of memory, in shares of what the side may take, or takes if that is more."""
    highest = max(side.capacity_bytes, side.total_bytes)
    parts = side.parts_bytes.items()
    return {
        "name": name,
        "capacity_share": side.capacity_bytes / highest,
        "total": format_bytes(side.total_bytes),
        "capacity": format_bytes(side.capacity_bytes),
        "fits": side.fits,
        "bars": [asdict(Bar(part, MEMORY_COLOUR[part], size / highest, format_bytes(size))) for part, size in parts],
    }


def series(result: PostTrainingResult) -> dict[str, Any]:
    """Blocks and memory curves in whole nanoseconds and KiB, as the charts of a page take them.

    A row is the training devices, or a replica; of many, some at equal distances and the one whose memory is drawn.
    """
    timeline, memory = result.timeline, result.figures.memory
    kinds = list(KINDS)
    codes = np.array([kinds.index(label.kind) for label in timeline.labels])
    drawn = {0: "training", 1 + result.fullest_replica: "generation"}
    sides = {"training": memory.training, "generation": memory.generation}
    shown = _shown(len(timeline.classes), drawn)
    highest = {name: side.capacity_bytes for name, side in sides.items()}
    return {
        "step_ns": timeline.span_ns,
        "unit": "step",
        "fullest": shown.index(1 + result.fullest_replica),
        "kinds": [{"name": KINDS[kind], "colour": COLOUR[kind], "lane": 0} for kind in kinds],
        "causes": [],
        "parts": list(CURVE_PARTS),
        "stages": [
            {
                "name": timeline.classes[at].name,
                "multiplicity": 1,
                "end_ns": timeline.span_ns,
                "capacity_kib": highest[drawn.get(at, "generation")] / KIB,
                "reserved_kib": None,
                "blocks": _blocks(result, codes, at),
                "idle": None,
                "memory": _memory(result, drawn[at]) if at in drawn else None,
            }
            for at in shown
        ],
    }


def _shown(rows: int, always: Iterable[int]) -> list[int]:
    """Rows that are drawn."""
    if rows <= MOST_ROWS:
        return list(range(rows))
    some = np.linspace(0, rows - 1, MOST_ROWS).astype(int).tolist()
    return sorted({*some, *always})


def _blocks(result: PostTrainingResult, codes: Ints, at: int) -> dict[str, list[int]]:
    slices = result.timeline.slices
    mine = np.flatnonzero((slices.class_id == at) & (slices.finish_ns > slices.start_ns))
    mine = mine[np.argsort(slices.start_ns[mine], kind="stable")]
    start, finish = slices.start_ns[mine], slices.finish_ns[mine]
    if at == len(result.timeline.classes) - 1:  # flows at the same time are one block
        _, first, which = np.unique(slices.microbatch[mine], return_index=True, return_inverse=True)
        finish = np.array([finish[which == each].max() for each in range(len(first))], dtype=np.int64)
        mine, start = mine[first], start[first]
    return {
        "start": np.diff(start, prepend=0).tolist(),
        "duration": (finish - start).tolist(),
        "kind": codes[slices.label[mine]].tolist(),
        "chunk": np.zeros(len(mine), dtype=int).tolist(),
        "microbatch": slices.microbatch[mine].tolist(),
    }


def _memory(result: PostTrainingResult, side: str) -> dict[str, Any]:
    """A curve in steps no longer than a pixel; the part of the other side is 0, and what is reserved lies above."""
    curves = [np.array(result.memory[name]) for name in ((side, RESERVED) if side == "generation" else (side,))]
    at_ns = [np.rint(curve[:, 0] * NS_PER_S) for curve in curves]
    time_ns = np.unique(np.concatenate([*at_ns, np.linspace(0, result.timeline.span_ns, PIXELS)])).astype(np.int64)
    middle_s = (time_ns + np.append(np.diff(time_ns), 0) / 2) / NS_PER_S
    used, *reserved = (
        np.rint(np.interp(middle_s, curve[:, 0], curve[:, 1]) / KIB).astype(np.int64) for curve in curves
    )
    parts: list[Any] = [used.tolist() if name == side else 0 for name in SIDES]
    parts.append(np.maximum(reserved[0] - used, 0).tolist() if reserved else 0)
    return {"time": np.diff(time_ns, prepend=0).tolist(), "parts": parts}
