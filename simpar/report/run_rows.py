"""A whole run in words: each amount with its interval."""

from simpar.report.bill import Amount, WholeRun
from simpar.units import format_count, format_figure

NO_PRICE = "not known: the hardware has no price (--price-per-gpu-hour USD)"
NO_POWER = "not known: the device has no power"
NO_FAILURES = "not counted (--reliability NAME counts them)"


def run_rows(run: WholeRun | None) -> list[tuple[str, str]]:
    """Name and value of every amount, with the price behind the dollars; empty without a run."""
    if run is None:
        return []
    return [
        ("whole run", f"{format_count(run.tokens)} tokens in {run.steps:,} steps"),
        ("days", amount(run.days)),
        ("GPU-hours", amount(run.device_hours)),
        ("dollars", _dollars(run)),
        ("MWh", NO_POWER if run.energy_mwh is None else amount(run.energy_mwh)),
        ("failures", _failures(run)),
    ]


def amount(result: Amount) -> str:
    """A value with its 90 % interval."""
    value = figure(result.value)
    if result.low is None or result.high is None:
        return value
    return f"{value} ({figure(result.low)} to {figure(result.high)})"


def figure(value: float) -> str:
    """A number for people: large amounts shortened, small ones with three digits (1.23 M, 45,600, 12.3)."""
    return format_count(value) if value >= 1_000_000 else format_figure(value)


def _dollars(run: WholeRun) -> str:
    """The rent, the price behind it, and how to give another one."""
    if run.cost_usd is None:
        return NO_PRICE
    return f"{amount(run.cost_usd)} at {price_words(run)}"


def price_words(run: WholeRun) -> str:
    """The price behind the dollars of a run, and how to give another one."""
    if run.cost_usd is None:
        return NO_PRICE
    return f"{figure(run.cost_usd.value / run.device_hours.value)} USD per GPU-hour (--price-per-gpu-hour sets another)"


def _failures(run: WholeRun) -> str:
    failures = run.failures
    if failures is None:
        return NO_FAILURES
    return (
        f"{failures.interruptions:,.0f} interruptions as in {failures.reliability}: {failures.effective_time:.1%} of "
        f"the time is work kept, {figure(failures.lost_days)} days are not"
    )
