"""A campaign as terminal output: three tables."""

from rich.console import Console

from simpar.operate.outcome import Outcome
from simpar.report.table import ReportTable, text
from simpar.units import DAY_S, HOUR_S, format_bytes, format_count, format_seconds, number_of

MOST_CAUSES = 8


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print the outcome of a campaign."""
    share = outcome.effective_time
    console.print(
        f"\nOperated for {outcome.days:g} days on {number_of(outcome.nodes, 'node')} "
        f"(reliability {outcome.reliability}, {outcome.runs:,} repetitions)",
        style="bold", soft_wrap=True,
    )  # fmt: skip
    console.print(
        f"effective training time {share.mean:.2%} (95 % confidence {share.low:.2%} to {share.high:.2%}; 90 % of "
        f"repetitions {share.p05:.1%} to {share.p95:.1%}), {format_count(outcome.progress.tokens)} tokens in "
        f"{outcome.progress.steps:,.0f} steps",
        soft_wrap=True,
    )
    if outcome.progress.cost_usd is not None:
        console.print(f"{outcome.progress.cost_usd:,.0f} USD for the devices", soft_wrap=True)
    console.print(_checkpoints(outcome), soft_wrap=True)
    console.print(_interruptions(outcome))
    if outcome.interruptions.mtbf_s:
        console.print(f"one unexpected interruption every {_long(outcome.interruptions.mtbf_s)}")
    shares = [(name, f"{share:.2%}") for name, share in outcome.time_share.items() if share]
    console.print(ReportTable([text("where the time goes"), "share"], shares))


def _checkpoints(outcome: Outcome) -> str:
    saved = outcome.checkpoints
    background = f", complete {format_seconds(saved.background_s)} later" if saved.background_s else ""
    return (
        f"{saved.mode} checkpoints of {format_bytes(saved.size_bytes)} every {_long(saved.interval_s)} of work "
        f"(Young {_long(saved.young_s)}, Daly {_long(saved.daly_s)}) block {format_seconds(saved.blocking_s)}"
        f"{background}; without spares running out, Daly's closed form says "
        f"{outcome.expected_effective_time:.2%} before planned stops"
    )


def _interruptions(outcome: Outcome) -> ReportTable:
    table = ReportTable([text("interruptions"), "mean", "90 % of repetitions"])
    for name, estimate in (("all", outcome.interruptions.every), ("unexpected", outcome.interruptions.unexpected)):
        table.add(name, f"{estimate.mean:,.1f}", f"{estimate.p05:,.0f} to {estimate.p95:,.0f}")
    causes = sorted(outcome.interruptions.by_cause.items(), key=lambda item: -item[1])
    for name, mean in causes[:MOST_CAUSES]:
        table.add(f"  {name}", f"{mean:,.1f}")
    if len(causes) > MOST_CAUSES:
        table.add(f"  {len(causes) - MOST_CAUSES} others", f"{sum(n for _, n in causes[MOST_CAUSES:]):,.1f}")
    return table


def _long(seconds: float) -> str:
    """A duration from seconds to days."""
    for unit, factor in (("d", DAY_S), ("h", HOUR_S), ("min", 60.0)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.3g} {unit}"
    return format_seconds(seconds)
