"""The explanation of a measured step as terminal output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simpar.diagnosis.against import Against
from simpar.diagnosis.answer import Explanation, mean_axes
from simpar.diagnosis.changes import Changes
from simpar.diagnosis.classes import OPTIMIZER
from simpar.diagnosis.measured import LAUNCHES, AxisUse, MeasuredStep
from simpar.diagnosis.memory import MemoryBeside, find_fullest_rank
from simpar.diagnosis.print_logs import print_flight, print_log, print_snapshot
from simpar.diagnosis.traffic import collective_uses
from simpar.report.table import Column, ReportTable, print_lines, text
from simpar.units import format_bytes, format_rate, format_seconds, number_of

if TYPE_CHECKING:
    from rich.console import Console

MOST_CLASSES = 12
MOST_STRAGGLERS = 5
MOST_PARTS = 4
MOST_COLLECTIVES = 8
MOST_CHANGES = 10
MEANING = {
    "exposed_other": "exposed, group unknown",
    "bubble": "bubble (waits for stages)",
    "waiting": "waiting for other ranks",
    "host": "host (launches, Python)",
    "offload": "copies from and to host",
    "idle": "idle, not explained",
}


def print_explanation(explanation: Explanation, screen: Console) -> None:
    """Print the measurement, beside the prediction if a plan was given."""
    if (measured := explanation.measured) is not None:
        screen.print(headline(measured), style="bold", soft_wrap=True)
        against = explanation.against
        screen.print(_causes(measured) if against is None else _beside(measured, against))
        for table in (_communication(measured), _collectives(measured)):
            if table.rows:
                screen.print(table)
        print_lines(screen, sentences(explanation))
    if explanation.log is not None:
        print_log(explanation.log, explanation.logged, screen)
        print_lines(screen, (f"likely {each.cause}: {each.signature}; {each.decides}" for each in explanation.likely))
    if explanation.flight is not None:
        print_flight(explanation.flight, screen)
    if explanation.snapshot is not None:
        print_snapshot(explanation.snapshot, explanation.snapshot_beside, screen)
    if explanation.against is None and not explanation.logged and not explanation.snapshot_beside:
        screen.print("with --plan PLAN (or flags): where this deviates from the prediction, and what would change it")
    if explanation.changes is not None:
        _print_changes(explanation.changes, screen)


def sentences(explanation: Explanation) -> Iterator[str]:
    """Sentences about a measured step, in addition to its numbers."""
    measured = explanation.traced
    if explanation.against is not None:
        yield from _parting(measured, explanation.against)
    else:
        yield from _memory(measured)
    yield from (*_stragglers(measured), *_unknown(measured), *measured.remarks)


def headline(measured: MeasuredStep) -> str:
    """The length of the step, and what it is based on."""
    count, steps = len(measured.ranks), measured.ranks[0].steps
    ranks = f"{count} of {measured.job.world_size} ranks" if measured.job.world_size else number_of(count, "rank")
    return f"measured step {format_seconds(measured.step_time_s)}: {ranks}, {number_of(steps, 'step')}"


def words_of(cause: str) -> str:
    """The name of a cause for readers."""
    return MEANING.get(cause, cause.replace("exposed_", "exposed "))


def longer(measured_s: float, predicted_s: float) -> str:
    """The measured minus the predicted time, signed, with the nanosecond resolution of traces."""
    more = round(measured_s - predicted_s, 9)
    return f"{'+' if more >= 0 else '-'}{format_seconds(abs(more))}"


def _causes(measured: MeasuredStep) -> ReportTable:
    """Causes and classes of kernels: mean over ranks, share, and range over ranks."""
    several = len(measured.ranks) > 1
    spread = ["least", "most"] if several else []
    table = ReportTable([text("part"), "mean" if several else "time", "of the step", *spread])
    mean_step = sum(each.step_time_s for each in measured.ranks) / len(measured.ranks)

    def row(name: str, of: str, key: str) -> None:
        values = [getattr(each, of).get(key, 0.0) for each in measured.ranks]
        mean = sum(values) / len(values)
        between = [format_seconds(min(values)), format_seconds(max(values))] if several else []
        table.add(name, format_seconds(mean), f"{mean / mean_step:.1%}", *between)

    for cause in measured.mean_s():
        row(words_of(cause), "causes_s", cause)
        if cause == "compute":
            classes = sorted(measured.mean_s("classes_s").items(), key=lambda item: -item[1])
            for name, _ in [each for each in classes if each[0] != "optimizer"][:MOST_CLASSES]:
                row(f"  {name}", "classes_s", name)
    steps = [each.step_time_s for each in measured.ranks]
    between = [format_seconds(min(steps)), format_seconds(max(steps))] if several else []
    table.add("step", format_seconds(mean_step), "", *between)
    return table


def _beside(measured: MeasuredStep, against: Against) -> ReportTable:
    """Causes and classes of kernels, measured and predicted."""
    table = ReportTable([text("part"), "measured", "predicted", "more"])
    step = sum(each.step_time_s for each in measured.ranks) / len(measured.ranks)

    def row(name: str, measured_s: float, predicted_s: float) -> None:
        times = format_seconds(measured_s), format_seconds(predicted_s)
        table.add(name, *times, longer(measured_s, predicted_s))

    was, should = measured.mean_s(), against.causes_s
    for cause in {**was, **should}:
        row(words_of(cause), was.get(cause, 0.0), should.get(cause, 0.0))
        if cause == "compute":
            classes = [each for each in against.differences(measured, "classes_s") if each.part != OPTIMIZER]
            for each in sorted(classes, key=lambda one: -max(one.measured_s, one.predicted_s))[:MOST_CLASSES]:
                row(f"  {each.part}", each.measured_s, each.predicted_s)
    row("step", step, against.result.step_time_s)
    return table


def _parting(measured: MeasuredStep, against: Against) -> Iterator[str]:
    """Where most of the difference is, and the memory of both."""
    most = [each for each in against.differences(measured) if abs(each.more_s) > measured.step_time_s / 100][
        :MOST_PARTS
    ]
    words = [
        f"{words_of(each.part)} {format_seconds(abs(each.more_s))} {'longer' if each.more_s > 0 else 'shorter'}"
        for each in most
    ]
    off = measured.step_time_s / against.result.step_time_s - 1
    sure = against.result.certainty
    inside = sure is not None and sure.step_time_interval_s[0] <= measured.step_time_s <= sure.step_time_interval_s[1]
    expected = "" if sure is None else f" ({'inside' if inside else 'outside'} the 90 % interval)"
    yield f"measured {off:+.1%} against predicted{expected}: {', '.join(words) or 'no part differs by 1 % of the step'}"
    yield f"MFU {against.mfu(measured):.1%} measured, {against.result.speed.mfu:.1%} predicted"
    if against.memory is not None:
        yield from _memory_beside(against.memory)


def _print_changes(changes: Changes, screen: Console) -> None:
    fitted = changes.fitted
    screen.print("\nwhat single changes would gain for this run", style="bold")
    screen.print(
        f"simulated on profiles fitted to it: {format_seconds(fitted.before_s)} predicted before, "
        f"{format_seconds(fitted.after_s)} after",
        soft_wrap=True,
    )
    columns: list[Column | str] = [text("change", least=20), "gain", Column("90 % interval", spare=1), "fits"]
    rows = []
    worth = [each for each in changes.gains if not each.refused and not each.undecided and (each.gain_s or 0.0) > 0]
    open_ = [each.change for each in changes.gains if each.undecided and (each.gain_s or 0.0) > 0]
    for each in worth[:MOST_CHANGES]:
        assert each.interval_s is not None, "of one that was simulated"
        low, high = (f"{'-' * (s < 0)}{format_seconds(abs(s))}" for s in each.interval_s)
        rows.append((each.change, format_seconds(each.gain_s or 0.0), f"{low} to {high}", each.verdict))
    if rows:
        screen.print(ReportTable(columns, rows))
    else:
        screen.print("none of those that were tried gains anything for sure")
    if open_:
        more = f", and {len(open_) - MOST_CHANGES} more" if len(open_) > MOST_CHANGES else ""
        screen.print(
            f"undecided (the interval of the gain holds zero): {', '.join(open_[:MOST_CHANGES])}{more}", soft_wrap=True
        )
    unrunnable = (f"{each.change}: not with {each.not_with}" for each in worth[:MOST_CHANGES] if each.not_with)
    print_lines(screen, (*unrunnable, *changes.remarks))


def _communication(measured: MeasuredStep) -> ReportTable:
    rows = [(axis, *axis_cells(use)) for axis, use in mean_axes(measured.ranks).items()]
    return ReportTable([text("axis"), "calls", "bytes", "busy", "exposed", "waiting"], rows)


def collective_rows(measured: MeasuredStep) -> list[tuple[str, ...]]:
    """Collectives by axis and kind, if bytes are recorded: ranks, calls per step, bytes, cost and rate of one."""
    steps, rows = measured.ranks[0].steps, list[tuple[str, ...]]()
    for use in collective_uses(measured.traffic)[:MOST_COLLECTIVES]:
        if use.size_bytes:
            rate = "" if use.bus_bytes_per_s is None else format_rate(use.bus_bytes_per_s)
            ranks = "" if use.members is None else str(use.members)
            what = (use.axis, use.kind.replace("_", "-"), ranks, f"{use.calls / steps:g}")
            rows.append((*what, format_bytes(use.size_bytes), format_seconds(use.cost_s), rate))
    return rows


def _collectives(measured: MeasuredStep) -> ReportTable:
    names = ["ranks", "calls", "bytes", "cost", "bus rate"]
    return ReportTable([text("axis"), text("collective"), *names], collective_rows(measured))


def axis_cells(use: AxisUse) -> tuple[str, ...]:
    """Calls, bytes, busy, exposed and waiting of an axis, in words."""
    return (
        f"{use.calls:g}",
        format_bytes(use.size_bytes) if use.size_bytes else "not said",
        format_seconds(use.busy_s),
        format_seconds(use.exposed_s),
        "not known" if use.waiting_s is None else format_seconds(use.waiting_s),
    )


def _stragglers(measured: MeasuredStep) -> Iterator[str]:
    for each in measured.stragglers[:MOST_STRAGGLERS]:
        if each.because == LAUNCHES:
            why = (
                f"its device waits {format_seconds(each.host_s)} for its host, {format_seconds(each.usual_host_s)} on "
                "the median other rank"
            )
        else:
            why = f"it computes {each.slowdown:.3g} times as long as the median of the other ranks"
        yield (
            f"rank {each.rank} is waited for: {why}; others wait {format_seconds(each.waited_for_s)} for it in all, a "
            "step, with nothing else to do"
        )


def _memory(measured: MeasuredStep) -> Iterator[str]:
    known = find_fullest_rank(measured)
    if known is not None:
        rank, memory = known
        reserved = f", {format_bytes(memory.reserved_bytes)} reserved" if memory.reserved_bytes else ""
        yield (
            f"memory: {format_bytes(memory.allocated_bytes)} allocated at most{reserved} (rank {rank}), "
            f"{format_bytes(memory.least_bytes)} of it held throughout"
        )


def _memory_beside(memory: MemoryBeside) -> Iterator[str]:
    """The peak with its predicted parts, and the memory held throughout."""
    was = memory.measured
    parts = [f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in memory.parts_bytes.items()]
    yield (
        f"allocated at most {format_bytes(was.allocated_bytes)} measured (rank {memory.rank}), "
        f"{format_bytes(memory.peak_bytes)} predicted: {', '.join(parts)}"
    )
    if memory.least_bytes is not None:
        yield (
            f"held throughout {format_bytes(was.least_bytes)} measured, {format_bytes(memory.least_bytes)} predicted; "
            f"comes and goes {format_bytes(was.allocated_bytes - was.least_bytes)} measured, "
            f"{format_bytes(memory.peak_bytes - memory.least_bytes)} predicted"
        )


def _unknown(measured: MeasuredStep) -> Iterator[str]:
    """Kernels without a class, if they are worth a pattern."""
    spent = dict[str, float]()
    for each in measured.ranks:
        for name, seconds in each.unknown_s.items():
            spent[name] = spent.get(name, 0.0) + seconds / len(measured.ranks)
    worth = {name: s for name, s in spent.items() if s > measured.step_time_s / 100}
    for name, seconds in sorted(worth.items(), key=lambda item: -item[1]):
        yield f"no class fits {name[:90]!r} ({format_seconds(seconds)}): give it one with --kernel-classes FILE"
