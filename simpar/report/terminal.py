"""The report for people: a headline, where time and memory go, limiting factors. Three significant digits.

Tables have lines and bars only on a terminal; piped output is plain text. NO_COLOR is honoured by rich.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from simpar.report.table import Column, ReportTable, print_lines, print_rule, text
from simpar.report.timeline import MEMORY_PARTS
from simpar.report.words import (
    assumptions,
    describe_certainty,
    figures,
    format_significant,
    headline,
    in_brief,
    verdict,
)
from simpar.scenario import Published
from simpar.units import GIB, format_bytes, format_count, format_figure, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from simpar.report.parts import Cooperation, StageMemory, Trial
    from simpar.report.result import Result

BAR_WIDTH = 32
SHORT_TITLES = {"parameters": "params", "gradients": "grads", "optimizer_states": "optimizer"}
MAX_MEMORY_ROWS = 12
MEMORY_TITLE = "Memory per pipeline stage at its peak, GiB"
MEMORY_NOTE = (
    "overhead: context, communication buffers, fragmentation; transient: workspaces, gathered parameters, gradients in "
    "flight"
)
ADVISE_HINT = "--advise simulates layouts one or two changes away and says what each would gain."
MAX_FITTING, MAX_TEMPTING = 6, 4  # simulated neighbours that are listed


def print_report(result: Result, console: Console) -> None:
    """Print the whole report to a rich console: the answer in four lines, and below a rule what stands behind it."""
    console.print(headline(result), style="bold", soft_wrap=True)
    print_lines(console, [f"assumed: {each}" for each in assumptions(result)])
    console.print()
    for name, words in in_brief(result):
        console.print(f"{name:8}{words}", soft_wrap=True, markup=False, highlight=False)
    console.print()
    print_rule(console)
    console.print(_rows(figures(result)))
    print_lines(console, _published_lines(result))
    for title, table in (
        (f"Where the step goes ({result.rank_shown})", _breakdown(result, console)),
        (f"Communication ({result.rank_shown})", _communication(result)),
        (MEMORY_TITLE, _memory(result)),
        ("Memory of the fullest host, GiB", _host(result)),
        ("Cooperation of replicas (means over local steps)", _rows(cooperation_rows(result))),
        ("Step time under jitter", _rows(jitter_rows(result))),
    ):
        if table is None:
            continue
        console.print(f"\n{title}", style="bold")
        console.print(table)
        if title == MEMORY_TITLE:
            console.print(MEMORY_NOTE, soft_wrap=True)
    for title, lines in (
        ("How sure", describe_certainty(result)),
        ("Limiting factors", result.why.binds),
        ("What to try", result.why.hints),
    ):
        print_lines(console, lines, title, mark="- ")
    if not result.why.trials:
        console.print(f"\n{ADVISE_HINT}", soft_wrap=True)
    else:
        console.print("\nNeighbouring layouts, simulated", style="bold")
        _print_trials(result, console)


def _print_trials(result: Result, console: Console) -> None:
    """The best layouts that fit, and those that would be faster if they did."""
    columns: list[Column | str] = [
        text("change", least=20), "step", "against this", Column("MFU", spare=1), Column("memory", spare=2),
        text(least=12),
    ]  # fmt: skip
    rows = [
        (
            trial.change,
            format_seconds(trial.step_time_s or 0.0),
            f"{(trial.step_time_s or 0.0) / result.step_time_s - 1:+.1%}",
            f"{trial.mfu or 0.0:.1%}",
            format_bytes(trial.peak_reserved_bytes or 0.0),
            verdict(trial),
        )
        for trial in choose_shown_trials(result)
    ]
    console.print(ReportTable(columns, rows))


def choose_shown_trials(result: Result) -> list[Trial]:
    """Of the trials, best first, the fastest that fit, then the few faster ones that do not."""
    ran = [trial for trial in result.why.trials if trial.step_time_s is not None]
    fitting = [trial for trial in ran if trial.fits]
    tempting = [trial for trial in ran if not trial.fits and (trial.step_time_s or 0.0) < result.step_time_s]
    return fitting[:MAX_FITTING] + tempting[:MAX_TEMPTING]


def print_names(names: Mapping[str, str], console: Console) -> None:
    """Print names with a description each, wrapped beside the names on a terminal, otherwise one line each."""
    if not console.is_terminal:
        widest = max(map(len, names), default=0)
        for name, description in names.items():
            line = f"{name:{widest}}  {description}".rstrip()
            console.print(line, soft_wrap=True, markup=False, highlight=False)
        return
    console.print(ReportTable([text(), text(least=20)], list(names.items()), header=False))


def compare_published(result: Result) -> list[tuple[str, float, float]]:
    """Published figures with their predictions: (name with unit, published, predicted)."""
    reference = result.published
    if reference is None:
        return []
    memory = reference.peak_memory_bytes
    pairs = [
        ("step time, s", reference.step_time_s, result.step_time_s),
        ("tokens/s per device", reference.tokens_per_s_per_device, result.speed.tokens_per_s_per_device),
        ("TFLOP/s per device", reference.tflops_per_device, result.speed.tflops_per_device),
        ("MFU, %", _percent(reference.mfu), 100 * result.mfu),
        ("peak memory, GiB", memory and memory / GIB, result.memory.peak_reserved_bytes / GIB),
    ]
    return [(name, known, ours) for name, known, ours in pairs if known is not None]


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def _published_lines(result: Result) -> Iterator[str]:
    for name, known, ours in compare_published(result):
        figures = f"{format_significant(known)}; predicted {format_significant(ours)} ({ours / known - 1:+.1%})"
        yield f"published {name}: {figures}"
    if isinstance(result.published, Published):
        yield f"source: {result.published.source}" + (f". {result.published.note}" if result.published.note else "")


def _breakdown(result: Result, console: Console) -> ReportTable:
    table = ReportTable([text("part"), "time", "of the step", text()])
    for name, value in result.time_breakdown_s.model_dump().items():
        share = value / result.step_time_s
        bar = "█" * round(BAR_WIDTH * share) if console.is_terminal else ""
        if value > 0:
            table.add(name.replace("_", " "), format_seconds(value), f"{share:.1%}", bar)
        if name == "compute" and (again := result.speed.recompute_s):
            table.add("  recomputed", format_seconds(again), f"{again / result.step_time_s:.1%}")
        if name == "exposed_dp" and (met := result.cooperation) and met.updates_s:
            table.add("  on servers", format_seconds(met.updates_s), f"{met.updates_s / result.step_time_s:.1%}")
    table.add("step", format_seconds(result.step_time_s))
    return table


def _communication(result: Result) -> ReportTable:
    table = ReportTable([text("kind"), text("algorithm", least=12), "sent per rank", "busy", "exposed"])
    for kind, entry in result.communication.items():
        if entry.bytes_per_rank or entry.busy_s:
            times = format_seconds(entry.busy_s), format_seconds(entry.exposed_s)
            sent = entry.sent_bytes_per_rank
            table.add(kind, entry.algorithm, "" if sent is None else format_bytes(sent), *times)
    if not table.rows:
        table.add("none")
    return table


def _host(result: Result) -> ReportTable | None:
    host = result.memory.host
    if host is None:
        return None
    names = ("optimizer states", "gradients", "parameters", "activations", "used", "capacity", "on drives")
    sizes = (
        host.optimizer_states, host.gradients, host.parameters, host.activations, host.used, host.capacity, host.nvme,
    )  # fmt: skip
    return ReportTable(names, [[f"{size / GIB:.1f}" for size in sizes]])


def _rows(rows: Iterable[tuple[str, str]]) -> ReportTable | None:
    """A table of names and values; None if there are none."""
    listed = list(rows)
    return ReportTable([text(), text(least=20)], listed, header=False) if listed else None


def jitter_rows(result: Result) -> list[tuple[str, str]]:
    """The spread of the step time as (name, value with unit); empty if ranks do not jitter."""
    jitter = result.jitter
    if jitter is None:
        return []
    mean = format_seconds(jitter.mean_s)
    rows = [
        ("without jitter", format_seconds(jitter.nominal_s)),
        (
            f"mean of {jitter.seeds} seeds" if jitter.seeds > 1 else "one seed",
            mean if jitter.ci95_s is None else f"{mean} +- {format_seconds(jitter.ci95_s)} (95 % confidence)",
        ),
    ]
    if jitter.seeds > 1:
        spread = (f"{name} {format_seconds(value)}" for name, value in jitter.quantiles_s.items())
        rows.append(("steps", ", ".join(spread)))
    rows.append(("simulated", f"{jitter.units:,} units of ranks, {jitter.ops:,} ops, engine {jitter.engine}"))
    if not jitter.contention:
        rows.append(("links", "not shared in what jitter adds: too many flows to share among"))
    return rows


def cooperation_rows(result: Result) -> list[tuple[str, str]]:
    """How replicas that step on their own synchronise, as (name, value with unit); empty if they do not."""
    met = result.cooperation
    if met is None:
        return []
    rows = [("scheme", met.scheme), ("replicas", str(met.replicas))]
    rows += [("averaged every", f"{met.sync_every} local steps")] if met.sync_every else []
    rows += [("parameter servers", str(met.servers))] if met.servers else []
    rows += [
        ("own work a step", format_seconds(met.local_step_s)),
        ("messages", format_seconds(met.exchange_s)),
        ("waiting", format_seconds(met.waiting_s)),
        ("exchanged a step and replica", format_bytes(met.exchanged_bytes)),
    ]
    if met.server_memory_bytes:
        rows.append(("states on each server", format_bytes(met.server_memory_bytes)))
    rows += [(f"busy: {name}", f"{share:.1%}") for name, share in met.busy.items()]
    return [*rows, *_staleness_rows(met), *_efficiency_rows(met)]


def _staleness_rows(met: Cooperation) -> list[tuple[str, str]]:
    old = met.staleness
    if old is None:
        return []
    spread = f"mean {old.mean:.3g}, median {old.p50:.3g}, p90 {old.p90:.3g}, p99 {old.p99:.3g}, most {old.maximum}"
    return [("staleness, updates", spread), ("most steps ahead of the slowest", str(old.clock_gap))]


def _efficiency_rows(met: Cooperation) -> list[tuple[str, str]]:
    statistics = met.statistics
    if statistics is None:
        return []
    noise = f"noise scale {format_count(statistics.noise_scale_tokens)} tokens"
    return [
        ("statistical efficiency", f"at least {statistics.efficiency:.1%}, by {statistics.model}, {noise}"),
        ("tokens/s that count", f"at least {format_count(statistics.effective_tokens_per_s)}"),
    ]


def _memory(result: Result) -> ReportTable:
    columns: list[Column | str] = [text("stage"), *(SHORT_TITLES.get(part, part) for part in MEMORY_PARTS), "peak"]
    if len({stage.device for stage in result.memory.stages}) > 1:
        columns += ["of", text("device")]
    rows = shorten_rows(memory_rows(result.memory.stages))
    return ReportTable(columns, [(stages, *cells) for stages, cells in rows])


def memory_rows(stages: Sequence[StageMemory]) -> list[tuple[str, tuple[str, ...]]]:
    """Rows of the memory table in GiB; adjacent stages with equal text share one row ("1-14").

    If stages run on several kinds of devices, rows end with the capacity of a device and its name.
    """
    rows: list[tuple[int, int, tuple[str, ...]]] = []
    mixed = len({stage.device for stage in stages}) > 1
    for stage in stages:
        cells = tuple(format_figure(size / GIB) for size in (*stage.parts_bytes.values(), stage.peak_bytes))
        cells += (format_figure(stage.capacity_bytes / GIB), stage.device) if mixed else ()
        if rows and rows[-1][2] == cells and rows[-1][1] == stage.stage - 1:
            rows[-1] = (rows[-1][0], stage.stage, cells)
        else:
            rows.append((stage.stage, stage.stage, cells))
    return [(str(first) if first == last else f"{first}-{last}", cells) for first, last, cells in rows]


def shorten_rows(rows: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    """At most MAX_MEMORY_ROWS rows, with middle ones left out (the JSON has all stages)."""
    if len(rows) <= MAX_MEMORY_ROWS:
        return list(rows)
    half = MAX_MEMORY_ROWS // 2
    return [*rows[:half], ("...", ()), *rows[-half + 1 :]]
