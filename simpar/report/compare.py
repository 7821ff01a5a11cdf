"""Two results side by side: how their inputs and figures differ, and which parts cause the difference.

The parts of a step sum to it, so their differences sum to the difference of the steps; likewise for memory at the peak
of the fullest stage. If the steps have different numbers of tokens, time is compared per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simpar.calls import Strict
from simpar.plan.plan import Record
from simpar.report.bill import AMOUNTS
from simpar.report.explain import WORDS, find_fullest_stage
from simpar.report.result import Result
from simpar.report.run_rows import figure
from simpar.units import (
    MEGA,
    format_bytes,
    format_count,
    format_energy,
    format_figure,
    format_seconds,
    parse_quantity,
    with_unit,
)

if TYPE_CHECKING:
    import pandas as pd

PARTS = {"compute": "compute", **WORDS}
FIGURES = (
    "step_time_s", "tokens_per_s", "tokens_per_s_per_device", "mfu", "hfu", "tflops_per_device", "bubble_fraction",
    "peak_memory_bytes", "peak_reserved_bytes", "headroom_bytes", "cost_usd_per_step", "energy_j_per_step",
)  # fmt: skip
RECORD_KEYS = Record.model_fields.keys() - {"stack"}
MIN_SHARE = 0.005  # smaller shares of the larger step or peak get no sentence


class Pair(Strict):
    """A value of both results; None where a result does not have it."""

    a: Any
    b: Any


class Comparison(Strict):
    """The differences: inputs (``asked``), ``figures``, and B - A by part, in time and in memory at the peak.

    ``per`` is the unit of work of the time changes: "step", or "million tokens" if the steps have different sizes.
    """

    names: tuple[str, str]
    asked: dict[str, Pair]
    figures: dict[str, Pair]
    per: str
    time_change_s: dict[str, float]
    memory_change_bytes: dict[str, float]
    fits: Pair
    sentences: tuple[str, ...]

    def to_frame(self) -> pd.DataFrame:
        """Figures of both in SI units, a row per figure."""
        import pandas as pd

        return pd.DataFrame([[pair.a, pair.b] for pair in self.figures.values()], list(self.figures), list(self.names))


def differences(a: Result, b: Result, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """What differs between two results."""
    first, second = a.to_dict(), b.to_dict()
    tokens = [_tokens(result) for result in (a, b)]
    scale = [1.0, 1.0] if tokens[0] == tokens[1] else [MEGA / count for count in tokens]
    parts = [result.time_breakdown_s.model_dump() for result in (a, b)]
    time = {name: parts[1][name] * scale[1] - parts[0][name] * scale[0] for name in PARTS}
    stages = [find_fullest_stage(result) for result in (a, b)]
    before, after = (stage.parts_bytes for stage in stages)
    memory = {name: after[name] - size for name, size in before.items()}
    whole = [a.step_time_s * scale[0], b.step_time_s * scale[1]]
    return Comparison(
        names=names,
        asked=dict(_asked(a, b)),
        figures={name: Pair(a=first[name], b=second[name]) for name in FIGURES} | _whole_runs(a, b),
        per="step" if scale[0] == 1.0 else "million tokens",
        time_change_s=time,
        memory_change_bytes=memory,
        fits=Pair(a=a.fits, b=b.fits),
        sentences=(
            *_speed_sentences(names, whole, time, "step" if scale[0] == 1.0 else "million tokens"),
            *_memory_sentences(names, (stages[0].peak_bytes, stages[1].peak_bytes), memory),
            *_fit_sentences(names, a, b),
        ),
    )


def _whole_runs(a: Result, b: Result) -> dict[str, Pair]:
    """The whole runs of both, if their trainings give the number of tokens."""
    if a.whole_run is None or b.whole_run is None:
        return {}
    amounts = {name: [getattr(run, name) for run in (a.whole_run, b.whole_run)] for name in AMOUNTS}
    return {
        name: Pair(**{letter: one and one.value for letter, one in zip("ab", pair, strict=True)})
        for name, pair in amounts.items()
    }


def _tokens(result: Result) -> float:
    shape = result.setup.training
    return float(shape["seq_len"] * shape["global_batch"])


def _asked(a: Result, b: Result) -> Iterator[tuple[str, Pair]]:
    """Inputs that differ, by dotted name."""
    for section in ("model", "cluster", "training", "plan"):
        left, right = (_leaves(getattr(result.setup, section), section) for result in (a, b))
        for key in dict.fromkeys((*left, *right)):
            if left.get(key) != right.get(key):
                yield key, Pair(a=left.get(key), b=right.get(key))


def _leaves(data: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in data.items():
        if prefix == "plan" and key in RECORD_KEYS:
            continue
        if isinstance(value, Mapping):
            result |= _leaves(value, f"{prefix}.{key}")
        else:
            result[f"{prefix}.{key}"] = value
    return result


def _speed_sentences(names: tuple[str, str], whole: list[float], time: Mapping[str, float], per: str) -> Iterator[str]:
    change = whole[1] - whole[0]
    if abs(change) <= MIN_SHARE * max(whole):
        yield f"{names[1]} takes as long as {names[0]} for a {per}: {format_seconds(whole[1])}"
    else:
        ratio = max(whole) / min(whole)
        word = "faster" if change < 0 else "slower"
        yield (
            f"{names[1]} is {ratio:.3g} times {word} for a {per}: {format_seconds(whole[1])} instead of "
            f"{format_seconds(whole[0])}"
        )
    for sign, word in ((-1, "less"), (1, "more")):
        parts = sorted(
            (part for part in time.items() if part[1] * sign > MIN_SHARE * max(whole)), key=lambda p: -abs(p[1])
        )
        if parts:
            listed = ", ".join(f"{format_seconds(abs(seconds))} {word} {PARTS[name]}" for name, seconds in parts)
            yield listed


def _memory_sentences(names: tuple[str, str], peaks: tuple[float, float], memory: Mapping[str, float]) -> Iterator[str]:
    change = peaks[1] - peaks[0]
    if abs(change) <= MIN_SHARE * max(peaks):
        yield f"memory peaks as high: {format_bytes(peaks[1])}"
        return
    word = "lower" if change < 0 else "higher"
    parts = sorted(memory.items(), key=lambda part: -abs(part[1]))
    listed = [
        f"{format_bytes(abs(size))} {'less' if size < 0 else 'more'} {name.replace('_', ' ')}"
        for name, size in parts
        if abs(size) > MIN_SHARE * max(peaks)
    ]
    yield (
        f"memory of {names[1]} peaks {format_bytes(abs(change))} {word}, at {format_bytes(peaks[1])}: "
        f"{', '.join(listed)}"
    )


def _fit_sentences(names: tuple[str, str], a: Result, b: Result) -> Iterator[str]:
    for name, result in zip(names, (a, b), strict=True):
        if not result.fits:
            missing = format_bytes(-result.memory.headroom_bytes)
            yield f"{name} does not fit: {missing} too much in the allocator's hands"


def rows(comparison: Comparison) -> list[tuple[str, str, str, str]]:
    """Figures as text: (name, A, B, B / A)."""
    table = []
    for name, pair in comparison.figures.items():
        if pair.a is None and pair.b is None:
            continue
        both = pair.a is not None and pair.b is not None and pair.a
        table.append(
            (LABELS[name], _text(name, pair.a), _text(name, pair.b), format_figure(pair.b / pair.a) if both else "")
        )
    return table


LABELS = {
    "step_time_s": "step time", "tokens_per_s": "tokens/s", "tokens_per_s_per_device": "tokens/s per device",
    "mfu": "MFU", "hfu": "HFU", "tflops_per_device": "model TFLOP/s per device", "bubble_fraction": "bubble",
    "peak_memory_bytes": "peak memory", "peak_reserved_bytes": "peak reserved", "headroom_bytes": "headroom",
    "cost_usd_per_step": "cost per step", "energy_j_per_step": "energy per step", "days": "days of the run",
    "device_hours": "GPU-hours of the run", "cost_usd": "dollars of the run", "energy_mwh": "MWh of the run",
}  # fmt: skip
"""Figures by the names that the report of one result uses."""


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return f"-{format_bytes(-value)}" if value < 0 else format_bytes(value)
    if name == "step_time_s":
        return format_seconds(value)
    if name in AMOUNTS:
        return figure(value)
    if name.startswith("tokens"):
        return format_count(value)
    if name in ("mfu", "hfu", "bubble_fraction"):
        return f"{value:.1%}"
    if name == "energy_j_per_step":
        return format_energy(value)
    return format_figure(value) + (" USD" if name == "cost_usd_per_step" else "")


def format_input(name: str, value: Any) -> str:
    """An input as text: counts with thousands separators, bytes in a readable unit."""
    if value is None:
        return "-"
    if name.endswith("_bytes") and isinstance(value, str):
        return with_unit(parse_quantity(value, "bytes"), "bytes")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
