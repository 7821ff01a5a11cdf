"""Logs, flight recorders and memory snapshots as terminal output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from simpar.diagnosis.flight import FlightRun, Stuck
from simpar.diagnosis.log_run import ALLOCATED, RESERVED, SAMPLES, STEP_TIME, TFLOPS, TOKENS, USED, LogRun
from simpar.diagnosis.snapshot import SnapshotRun
from simpar.report.table import ReportTable, print_lines, text
from simpar.report.words import format_significant
from simpar.units import GIB, format_bytes, format_seconds, number_of

if TYPE_CHECKING:
    from rich.console import Console

WORDS = {
    STEP_TIME: ("step time, s", 1.0), TOKENS: ("tokens/s per device", 1.0), TFLOPS: ("TFLOP/s per device", 1.0),
    SAMPLES: ("samples/s", 1.0), ALLOCATED: ("allocated at most, GiB", GIB), RESERVED: ("reserved at most, GiB", GIB),
    USED: ("used of the device at most, GiB", GIB),
}  # fmt: skip
MOST_NAMED = 5


def print_log(log: LogRun, logged: Sequence[tuple[str, float, float]], screen: Console) -> None:
    """Print the figures of a log, beside the prediction if a plan was given."""
    first, last = log.steps
    steps = f"steps {first} to {last}" if last > first else f"step {first}"
    screen.print(f"{log.framework} log: {log.count} logged, {steps}; medians", style="bold", soft_wrap=True)
    table = ReportTable([text(), "measured", *["predicted", "error"] * bool(logged)])
    for name, measured, predicted in logged:
        table.add(name, format_significant(measured), format_significant(predicted), f"{predicted / measured - 1:+.1%}")
    named = {row[0] for row in logged}
    for key, (name, unit) in WORDS.items():
        if key in log.figures and name not in named:
            table.add(name, format_significant(log.figures[key] / unit))
    screen.print(table)
    if log.phases_s:
        screen.print(_phases(log))
    if log.count > 1:
        screen.print(f"steps scatter by {log.spread:.1%}")
    print_lines(screen, log.notes)


def _phases(log: LogRun) -> ReportTable:
    """The phases of a step: mean over ranks, and range."""
    ranks = log.phases_s
    table = ReportTable([text("phase"), "mean", "least", "most", "of rank"])
    for name in dict.fromkeys(name for each in ranks for name in each):
        times = [each.get(name, 0.0) for each in ranks]
        least, most = min(times), max(times)
        table.add(name, *map(format_seconds, (sum(times) / len(times), least, most)), str(times.index(most)))
    return table


def print_flight(run: FlightRun, screen: Console) -> None:
    """Print flight records: collectives by axis and kind, ranks waited for, and what did not end."""
    screen.print(f"flight recorder of {number_of(len(run.ranks), 'rank')}", style="bold")
    table = ReportTable([text("axis"), text("collective"), "calls", "bytes", "cost", "waiting"])
    for use in run.uses:
        times = ("not said" if s is None else format_seconds(s) for s in (use.cost_s, use.waiting_s))
        table.add(use.axis, use.kind, str(use.calls), format_bytes(use.size_bytes), *times)
    screen.print(table)
    late = [
        f"rank {rank} came last to {count} collectives that took others twice as long"
        for rank, count in list(run.last.items())[:MOST_NAMED]
    ]
    print_lines(screen, (*late, *map(_stuck, run.stuck[:MOST_NAMED]), *run.remarks))


def print_snapshot(run: SnapshotRun, beside: Mapping[str, tuple[float, float]], screen: Console) -> None:
    """Print the parts of a device's memory, beside the predicted ones if a plan was given, and what no tensor uses."""
    when = "at most, while it was recorded" if run.at_peak else "when the snapshot was taken (no history)"
    screen.print(f"device {run.device}: {format_bytes(run.peak_bytes)} allocated {when}", style="bold", soft_wrap=True)
    table = ReportTable([text("part"), "measured", *["predicted"] * bool(beside)])
    for name, (was, predicted) in (beside or {name: (size, 0.0) for name, size in run.parts_bytes.items()}).items():
        table.add(name.replace("_", " "), format_bytes(was), *[format_bytes(predicted)] * bool(beside))
    screen.print(table)
    screen.print(
        f"reserved {format_bytes(run.reserved_bytes)}, "
        f"{format_bytes(run.allocated_bytes)} of it allocated when the snapshot was taken",
        soft_wrap=True,
    )
    for name, size in run.unused:
        screen.print(f"  {name}: {format_bytes(size)} ({size / run.reserved_bytes:.1%})", soft_wrap=True)
    for name, size in [*run.places_bytes.items()][:MOST_NAMED]:
        screen.print(f"{format_bytes(size)} {name.replace('_', ' ', 1)}", soft_wrap=True, markup=False)
    if run.out_of_memory:
        screen.print("an allocation failed while it was recorded: the device was full")


def _stuck(each: Stuck) -> str:
    ranks = ", ".join(map(str, each.entered))
    who = f"ranks {ranks} have" if len(each.entered) > 1 else f"rank {ranks} has"
    missing = f", ranks {', '.join(map(str, each.missing))} have not" if each.missing else ""
    return f"{each.axis} {each.kind} number {each.number} had not ended: {who} called it{missing}"
