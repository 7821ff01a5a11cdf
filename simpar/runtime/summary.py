"""From the measurements of all ranks to one table with the prediction. No torch here."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, harmonic_mean, median
from typing import Any

import numpy as np

from simpar.architectures.flops import model_flop_per_token
from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.replicas.staleness import summary
from simpar.units import format_bytes, format_seconds

COMPARED = ("step_time_s", "tokens_per_s", "mfu", "peak_memory_bytes")


def summarise_ranks(ranks: Sequence[Mapping[str, Any]], training: Training, *, warmup: int) -> dict[str, Any]:
    """Speed, spread, memory and phases of a run from the rows of its ranks.

    A step ends when its slowest rank ends. The first ``warmup`` steps are left out, unless there are no others. Phases
    are medians over steps, by rank.
    """
    rows = [rank["steps"] for rank in ranks]
    counted = [steps[warmup:] or steps for steps in rows]
    times = [max(row["step_time_s"] for row in step) for step in zip(*counted, strict=True)]
    step_time_s = float(median(times))
    low, high = np.percentile(times, [10, 90])
    return {
        "step_time_s": step_time_s,
        "step_time_spread_s": {"min": min(times), "p10": float(low), "p90": float(high), "max": max(times)},
        "steps_measured": len(times),
        "tokens_per_s": training.tokens_per_step / step_time_s,
        "peak_memory_bytes": max(rank["peak_memory_bytes"] for rank in ranks),
        "peak_reserved_bytes": max(rank["peak_reserved_bytes"] for rank in ranks),
        "beside_allocator_bytes": max(rank["beside_allocator_bytes"] for rank in ranks),
        "peak_memory_bytes_by_rank": [rank["peak_memory_bytes"] for rank in ranks],
        "phases_s_by_rank": [_phases(steps) for steps in counted],
    }


def summarise_replicas(ranks: Sequence[Mapping[str, Any]], training: Training, *, warmup: int) -> dict[str, Any]:
    """:func:`summarise_ranks` for replicas on parameter servers, with the staleness of their updates.

    Replicas step at their own pace: the step time is the harmonic mean of their medians, so that tokens/s are those of
    all. Losses are means over replicas, each on its own part of the batch.
    """
    replicas = [rank for rank in ranks if "server" not in rank]
    servers = [rank for rank in ranks if "server" in rank]
    result = summarise_ranks(replicas, training, warmup=warmup)
    own = [median(row["step_time_s"] for row in rank["steps"][warmup:] or rank["steps"]) for rank in replicas]
    result["step_time_s"] = step_time_s = float(harmonic_mean(own))
    result["step_time_s_by_replica"] = [float(each) for each in own]
    result["tokens_per_s"] = training.tokens_per_step / step_time_s
    rows = zip(*(rank["steps"] for rank in replicas), strict=True)
    result["losses"] = [fmean(row["loss"] for row in step) for step in rows]
    stale = np.array([each for server in servers for each in server["staleness"]], dtype=np.int64)
    if len(stale):
        result["staleness"] = summary(stale, max(server["most_ahead"] for server in servers)).model_dump()
    return result


def count_staleness(updates: Sequence[tuple[int, int, int]], replicas: int, steps: int, warmup: int) -> list[int]:
    """Staleness of every update after the replicas' warm-up, until the first replica has finished."""
    pushed, result = [0] * replicas, []
    for replica, step, staleness in updates:
        if max(pushed) == steps:
            break
        pushed[replica] = step + 1
        if step >= min(warmup, steps - 1):
            result.append(staleness)
    return result


def _phases(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    names = sorted({name for row in steps for name in row["phases_s"]})
    phases = {name: float(median(row["phases_s"].get(name, 0.0) for row in steps)) for name in names}
    rest = median(row["step_time_s"] - sum(row["phases_s"].values()) for row in steps)
    return {**phases, "waiting": max(0.0, float(rest))}


def utilisation(
    graph: ModelGraph, training: Training, step_time_s: float, peak_flop_per_s: float, world_size: int
) -> float:
    """MFU: model FLOP of a step over what the devices could do in that time."""
    flop = model_flop_per_token(graph, training.seq_len) * training.tokens_per_step
    return flop / (step_time_s * peak_flop_per_s * world_size)


def errors(predicted: Mapping[str, Any] | None, answer: Mapping[str, Any]) -> dict[str, float]:
    """Predicted minus measured, in percent of measured, for figures that both have."""
    both = [name for name in COMPARED if predicted and predicted.get(name) and answer.get(name)]
    return {name: 100.0 * (predicted[name] / answer[name] - 1.0) for name in both if predicted}


def table(report: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Rows for people: quantity, predicted, measured, error; the first row is the heading."""
    predicted, measured = report["predicted"] or {}, report["measured"]
    rows = [("", "predicted", "measured", "error")]
    for name, (title, write) in _WORDS.items():
        here, there = predicted.get(name), measured.get(name)
        if there is not None:
            error = report["error_percent"].get(name)
            shown = "-" if error is None else f"{error:+.1f} %"
            rows.append((title, "-" if here is None else write(here), write(there), shown))
    if stale := measured.get("staleness"):
        simulated = predicted.get("staleness") or {}
        for name, title in (("mean", "staleness, mean"), ("p90", "staleness, p90"), ("clock_gap", "steps ahead")):
            there = f"{simulated[name]:.2f}" if simulated else "-"
            rows.append((title, there, f"{stale[name]:.2f}", "-"))
    return rows


_WORDS: dict[str, tuple[str, Callable[[float], str]]] = {
    "step_time_s": ("step time", format_seconds),
    "tokens_per_s": ("tokens/s", lambda value: f"{value:,.0f}"),
    "mfu": ("MFU", lambda value: f"{value:.1%}"),
    "peak_memory_bytes": ("peak memory", format_bytes),
}
