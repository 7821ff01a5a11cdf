"""The content of the page as plain data: every number is formatted here, every series in compact columns."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.hardware.part import nodes_words
from simpar.plan.choices.mesh import COMMUNICATION_NAMES, PIPELINE
from simpar.report.explain import WORDS
from simpar.report.palette import IDLE_COLOUR, IDLE_TITLE, KIND_COLOUR, KIND_TITLE, MEMORY_COLOUR, PART_COLOUR, tint
from simpar.report.parts import TimeBreakdown
from simpar.report.plots import idle_causes
from simpar.report.result import Result
from simpar.report.terminal import choose_shown_trials, compare_published, cooperation_rows, jitter_rows
from simpar.report.timeline import (
    COMMUNICATION_KINDS,
    IDLE_CAUSES,
    KINDS,
    MEMORY_PARTS,
    Blocks,
    IdleSpans,
    MemoryCurve,
    StagePlot,
)
from simpar.report.words import assumptions, describe_certainty, figures, headline, verdict, whole_layout
from simpar.units import KIB, NS_PER_S, format_bytes, format_count, format_seconds

MIN_GAIN = 0.0005  # gains below this print as zero
WAIT_COLOUR = "#BBBBBB"  # time that no op on the critical path covers
LANES = {kind: 1 if kind == PIPELINE else 2 for kind in COMMUNICATION_KINDS}
"""Lanes of the timeline by kind: 1 for messages, 2 for collectives and transfers; all else is in 0, with compute."""
KERNELS = ("compute", "optimizer")
KIND_NAME = {
    "input_gradient": "input gradient", "weight_gradient": "weight gradient",
    "forward_backward": "forward and backward", "offload": "offload transfer", "host": "host", **COMMUNICATION_NAMES,
}  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """A part of a bar: name, colour, share of the whole (0..1), and its value as text."""

    name: str
    colour: str
    share: float
    text: str


def page_data(result: Result) -> dict[str, Any]:
    """Everything the template needs; ``series`` is drawn by the scripts (None without a timeline)."""
    return {
        "title": headline(result),
        "figures": [_figure(name, value) for name, value in figures(result)],
        "fits": result.fits,
        "how_sure": describe_certainty(result),
        "published": _published(result),
        "breakdown": [asdict(bar) for bar in _breakdown(result)],
        "rank_shown": result.rank_shown,
        "stage_bars": _stage_bars(result),
        "critical_path": _critical_path(result),
        "communication": _communication(result),
        "memory": _memory(result),
        "jitter": jitter_rows(result),
        "cooperation": cooperation_rows(result),
        "staleness": _staleness(result),
        "why": result.why.model_dump(include={"binds", "hints"}),
        "trials": list(_trials(result)),
        "refused": [trial.model_dump() for trial in result.why.trials if trial.refused],
        "facts": list(_facts(result)),
        "plan_json": json.dumps(result.setup.plan, indent=2),
        "legend": legend(result),
        "series": None if result.overview is None else series(result),
    }


def _figure(name: str, value: str) -> dict[str, str]:
    """A headline figure; text in brackets, or before a colon, becomes its detail."""
    if name in ("memory", "failures"):
        verdict, _, detail = value.partition(": ")
        return {"name": name, "value": verdict, "detail": detail}
    first, _, rest = value.partition(" (")
    inner, _, behind = rest.partition(")")
    return {"name": name, "value": first, "detail": inner + behind}


def _published(result: Result) -> dict[str, Any] | None:
    if result.published is None:
        return None
    rows = [
        {"name": name, "published": f"{known:.4g}", "predicted": f"{ours:.4g}", "error": f"{ours / known - 1:+.1%}"}
        for name, known, ours in compare_published(result)
    ]
    return {"rows": rows, "source": result.published.source, "note": result.published.note}


def _breakdown(result: Result) -> Iterator[Bar]:
    """Parts of the critical rank's step."""
    for bar in parts_of_step(result.time_breakdown_s.model_dump(), result.step_time_s):
        met = result.cooperation
        inside = {"compute": (result.speed.recompute_s, "recomputed")}
        inside["exposed dp"] = met.updates_s if met else 0.0, "updates on the servers"
        inside_s, what = inside.get(bar.name, (0.0, ""))
        yield replace(bar, text=f"{bar.text}, {format_seconds(inside_s)} of it {what}") if inside_s else bar


def parts_of_step(parts_s: Mapping[str, float], step_s: float) -> Iterator[Bar]:
    """The parts of a step in the order of the breakdown, without parts that are zero."""
    for name in TimeBreakdown.model_fields:
        if value := parts_s.get(name, 0.0):
            share = value / step_s
            yield Bar(WORDS.get(name, name), PART_COLOUR[name], share, f"{format_seconds(value)} ({share:.1%})")


def _critical_path(result: Result) -> list[dict[str, Any]]:
    spent = result.why.critical_path_s
    whole = sum(spent.values())
    return [
        asdict(
            Bar(
                KIND_NAME.get(kind, kind),
                KIND_COLOUR.get(kind, WAIT_COLOUR),
                seconds / whole,
                f"{format_seconds(seconds)} ({seconds / whole:.1%})",
            )
        )
        for kind, seconds in spent.items()
    ]


def _stage_bars(result: Result) -> list[dict[str, Any]]:
    """The parts of the step of every pipeline rank, and the share of it not spent on kernels."""
    if result.overview is None:
        return []
    values = []
    for stage in result.overview.stages:
        step_s = sum(stage.parts_s.values())
        if step_s:
            idle_s = sum(value for name, value in stage.parts_s.items() if name not in KERNELS)
            bars = [asdict(bar) for bar in parts_of_step(stage.parts_s, step_s)]
            idle = f"{format_seconds(idle_s)} ({idle_s / step_s:.1%})"
            values.append({"name": stage.name, "bars": bars, "idle": idle})
    return values


def _staleness(result: Result) -> list[dict[str, Any]]:
    """The share of updates by staleness, scaled so that the tallest bar is 1."""
    staleness = result.cooperation.staleness if result.cooperation else None
    if staleness is None:
        return []
    tallest = max(staleness.shares)
    return [
        {"updates": k, "share": share / tallest, "text": f"{share:.1%}"} for k, share in enumerate(staleness.shares)
    ]


def _communication(result: Result) -> list[dict[str, Any]]:
    rows = []
    for kind, entry in result.communication.items():
        if not (entry.bytes_per_rank or entry.busy_s):
            continue
        hidden = max(0.0, entry.busy_s - entry.exposed_s)
        rows.append({
            "kind": KIND_NAME.get(kind, kind),
            "algorithm": entry.algorithm,
            "bytes": "" if entry.sent_bytes_per_rank is None else format_bytes(entry.sent_bytes_per_rank),
            "busy": format_seconds(entry.busy_s),
            "exposed": format_seconds(entry.exposed_s),
            "hidden": f"{hidden / entry.busy_s:.0%}" if entry.busy_s else "",
            "busy_share": entry.busy_s / result.step_time_s,
            "exposed_share": entry.exposed_s / result.step_time_s,
        })  # fmt: skip
    return rows


def _memory(result: Result) -> dict[str, Any]:
    memory = result.memory
    highest = max(memory.peak_reserved_bytes, *(stage.capacity_bytes for stage in memory.stages))
    mixed = len({stage.device for stage in memory.stages}) > 1
    stages = []
    for stage in memory.stages:
        parts = list(stage.parts_bytes.items())
        stages.append({
            "name": f"stage {stage.stage}" + (f", {stage.device}" if mixed else ""),
            "capacity_share": stage.capacity_bytes / highest,
            "peak": format_bytes(stage.peak_bytes),
            "when": f"{format_seconds(stage.peak_time_s)}, {stage.peak_op}",
            "bars": [
                asdict(Bar(part.replace("_", " "), MEMORY_COLOUR[part], size / highest, format_bytes(size)))
                for part, size in parts
            ],
        })  # fmt: skip
    return {
        "capacity": format_bytes(memory.capacity_bytes),
        "reserved": format_bytes(memory.peak_reserved_bytes),
        "legend": [(part.replace("_", " "), MEMORY_COLOUR[part]) for part in MEMORY_PARTS],
        "stages": stages,
    }


def _trials(result: Result) -> Iterator[dict[str, Any]]:
    """Rows of trials that ran; the page folds away those not ``shown``."""
    shown = {trial.change for trial in choose_shown_trials(result)}
    for trial in result.why.trials:
        if trial.step_time_s is None or trial.peak_reserved_bytes is None:
            continue
        gain = trial.step_time_s / result.step_time_s - 1
        yield {
            "change": trial.change,
            "step": format_seconds(trial.step_time_s),
            "gain": f"{gain:+.1%}",
            "verdict": "faster" if gain < -MIN_GAIN else "slower" if gain > MIN_GAIN else "equal",
            "mfu": f"{trial.mfu:.1%}",
            "memory": format_bytes(trial.peak_reserved_bytes),
            "fits": trial.fits,
            "memory_verdict": verdict(trial),
            "shown": trial.change in shown,
        }


def _facts(result: Result) -> Iterator[tuple[str, str]]:
    """The simulated model, cluster and plan, in words."""
    setup = result.setup
    model, cluster = setup.model, setup.cluster
    yield "model", f"{model.get('name')}, {format_count(float(model.get('parameters', 0)))} parameters"
    for each in assumptions(result):
        yield "assumed", each
    yield "cluster", f"{nodes_words(cluster['nodes'], cluster['hardware'])}, {cluster.get('devices'):,} devices"
    yield "layout", whole_layout(setup.plan)
    batch, length = setup.training.get("global_batch"), setup.training.get("seq_len")
    yield "training", f"{batch:,} sequences of {length:,} tokens a step"
    yield "software stack", str(setup.plan.get("stack") or "")
    yield "engine", f"{setup.engine.get('name')}, {setup.engine.get('ops', 0):,} ops"
    ranks, simulated = setup.fold.get("ranks", 0), setup.fold.get("classes", 0)
    alike = "" if simulated >= ranks else f", of which {simulated:,} simulated: the others do exactly the same"
    yield "ranks", f"{ranks:,}{alike}"
    yield "simpar", setup.simpar_version


HATCHED = "repeating-linear-gradient(135deg, var(--hatch) 0 1px, transparent 1px 4px)"
"""The CSS background of bubbles in legends, which the script draws hatched."""


def legend(result: Result) -> list[tuple[str, str]]:
    """Names and CSS backgrounds of what occurs in the timeline; idle time is tinted, as it is drawn."""
    if result.overview is None:
        return []
    view = result.overview
    codes = {code for stage in view.stages for code in np.unique(stage.blocks.kind).tolist()}
    used = {KIND_COLOUR[KINDS[code]] for code in codes}
    kinds = [(title, colour) for colour, title in KIND_TITLE.items() if colour in used]
    idle = ((cause, HATCHED if cause == "bubble" else tint(IDLE_COLOUR[cause])) for cause in idle_causes(view))
    return kinds + [(IDLE_TITLE[cause], ground) for cause, ground in idle]


def series(result: Result) -> dict[str, Any]:
    """Blocks and memory curves in whole nanoseconds and KiB; starts and times as differences."""
    view = result.overview
    assert view is not None, "asked for only with a timeline"
    capacity = [result.memory.capacity_of(stage.pipeline_rank) for stage in view.stages]
    fullest = max(range(len(view.stages)), key=lambda index: _peak(view.stages[index]) / capacity[index])
    known = result.certainty
    reserved = known and [size / KIB for size in known.reserved_memory_interval_bytes]
    return {
        "step_ns": round(view.step_time_s * NS_PER_S),
        "fullest": fullest,
        "kinds": [
            {"name": KIND_NAME.get(kind, kind), "colour": KIND_COLOUR[kind], "lane": LANES.get(kind, 0)}
            for kind in KINDS
        ],
        "causes": [{"name": IDLE_TITLE[cause], "colour": IDLE_COLOUR[cause]} for cause in IDLE_CAUSES],
        "parts": [{"name": part.replace("_", " "), "colour": MEMORY_COLOUR[part]} for part in MEMORY_PARTS],
        "stages": [
            {
                "name": stage.name,
                "multiplicity": stage.multiplicity,
                "end_ns": round(view.step_time_s * NS_PER_S),
                "capacity_kib": holds / KIB,
                "reserved_kib": reserved if index == fullest else None,
                "blocks": _block_columns(stage.blocks),
                "idle": None if stage.idle is None else _idle_columns(stage.idle),
                "memory": None if stage.memory is None else _memory_columns(stage.memory),
            }
            for index, (stage, holds) in enumerate(zip(view.stages, capacity, strict=True))
        ],
    }


def _peak(stage: StagePlot) -> float:
    return 0.0 if stage.memory is None else float(stage.memory.total_bytes.max(initial=0.0))


def _block_columns(blocks: Blocks) -> dict[str, list[int]]:
    order = np.argsort(blocks.start_s, kind="stable")
    start = np.rint(blocks.start_s[order] * NS_PER_S).astype(np.int64)
    return {
        "start": np.diff(start, prepend=0).tolist(),
        "duration": np.rint(blocks.duration_s[order] * NS_PER_S).astype(np.int64).tolist(),
        "kind": blocks.kind[order].tolist(),
        "chunk": blocks.chunk[order].tolist(),
        "microbatch": blocks.microbatch[order].tolist(),
    }


def _idle_columns(idle: IdleSpans) -> dict[str, list[int]]:
    start = np.rint(idle.start_s * NS_PER_S).astype(np.int64)
    return {
        "start": np.diff(start, prepend=0).tolist(),
        "duration": np.rint(idle.duration_s * NS_PER_S).astype(np.int64).tolist(),
        "cause": idle.cause.tolist(),
    }


def _memory_columns(curve: MemoryCurve) -> dict[str, Any]:
    """Times and parts; a part that never changes is one number."""
    time = np.rint(curve.time_s * NS_PER_S).astype(np.int64)
    parts: list[int | list[int]] = []
    for part in MEMORY_PARTS:
        kib = np.rint(curve.parts[part] / KIB).astype(np.int64)
        constant = not len(kib) or bool((kib == kib[0]).all())
        parts.append(int(kib[0]) if constant and len(kib) else kib.tolist())
    return {"time": np.diff(time, prepend=0).tolist(), "parts": parts}
