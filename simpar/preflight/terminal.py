"""A checked launch for people: the verdict first, then what limits it, neighbours, and text to paste."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from typing import TYPE_CHECKING

from simpar.frameworks import load_reader
from simpar.frameworks.words import Account
from simpar.preflight.check import Checked, Neighbour, Supposed
from simpar.report.run_rows import run_rows
from simpar.report.table import print_lines
from simpar.report.words import describe_certainty, headline, is_at_the_limit, memory_state, probably, step_time_words
from simpar.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console

    from simpar.preflight.whole_step import WholeStep

MAX_UNKNOWN = 8
"""Unknown words that are named on the terminal; JSON has all."""
SHORT_TEXT = 12
"""Patched texts of up to so many lines are printed in full, longer ones as changed lines."""


def print_checked(checked: Checked, console: Console) -> None:
    """Print a checked launch to a rich console."""
    result = checked.result
    console.print(headline(result), style="bold", soft_wrap=True)
    console.print()
    unsure = result.fits or is_at_the_limit(result)
    verdict = "NOT SURE TO FIT" if unsure else _misfit(checked.account)
    if checked.fits_surely:
        verdict = _verdict(checked.account)
    if checked.fits_surely and checked.whole is not None and not checked.whole.result.fits:
        verdict = "DOES NOT FIT: the update does, the whole step does not"
    rows = [
        ("verdict", f"{verdict} (wanted: {100 * checked.fits_with:g} % sure to fit)"),
        ("words", _words(checked.account)),
        ("memory", memory_state(result, "does not fit")),
        ("step time", step_time_words(result)),
        ("rests on", describe_certainty(result)[0]),
        ("MFU", f"{result.mfu:.1%}"),
        *run_rows(result.whole_run),
    ]
    width = max(len(name) for name, _ in rows)
    print_lines(console, (f"{name:{width}}  {value}" for name, value in rows))
    print_lines(console, result.why.binds, "Limiting factors", mark="- ")
    decide = [f"{word}: {what}" for word, what in checked.account.deciding.items()]
    print_lines(console, decide, "Decide, but not modelled", mark="- ")
    print_lines(console, map(_supposed, checked.supposed), "Assumed, because the text does not say it", mark="- ")
    print_lines(console, checked.notes, "Note", mark="- ")
    if checked.whole is not None:
        _print_whole(checked.whole, console)
    _print_neighbours(checked, console)


def _print_whole(whole: WholeStep, console: Console) -> None:
    """The step of reinforcement learning around the update, and what it is with other lengths."""
    from simpar.posttraining.terminal import lead_lines

    console.print("\nThe whole step", style="bold")
    for name, words in lead_lines(whole.result.figures):
        console.print(f"{name:8}{words}", soft_wrap=True)
    for words, other in whole.supposed.items():
        console.print(f"with {words}: {dict(lead_lines(other.figures))['step']}", soft_wrap=True)
    print_lines(console, whole.notes, "Of the whole step", mark="- ")


def _verdict(account: Account) -> str:
    """The verdict on a launch that fits, as it was understood."""
    if account.deciding:
        return "NOT SURE: words of the text decide that are not modelled"
    return "NOT SURE: words of the text are unknown to simpar and may decide" if account.unknown else "OK"


def _misfit(account: Account) -> str:
    """The verdict on a launch that does not fit, as it was understood."""
    if account.deciding:
        return "DOES NOT FIT as far as it is modelled: words of the text decide that are not"
    return (
        "DOES NOT FIT as far as it is understood: words of it are unknown to simpar"
        if account.unknown
        else "DOES NOT FIT"
    )


def _words(account: Account) -> str:
    """How many words of the text are used, and what becomes of the others."""
    told = [f"{len(account.used)} used", f"{len(account.idle)} without effect on time and memory"]
    if account.deciding:
        told.append(f"{len(account.deciding)} decide, but not modelled")
    if account.unknown:
        named = ", ".join(account.unknown[:MAX_UNKNOWN])
        more = len(account.unknown) - MAX_UNKNOWN
        told.append(f"{len(account.unknown)} unknown to simpar ({named}{f' and {more} more' if more > 0 else ''})")
    return ", ".join(told)


def _supposed(one: Supposed) -> str:
    """An assumption, and the step at the other likely values."""
    told = one.assumed
    others = [
        f"{_value(value)}: {format_seconds(result.step_time_s)}, {format_bytes(result.memory.peak_reserved_bytes)}"
        for value, result in one.others.items()
    ]
    with_others = f"; with {'; with '.join(others)}" if others else ""
    return f"{told.key} = {_value(told.value)} ({told.why}){with_others}"


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _print_neighbours(checked: Checked, console: Console) -> None:
    if checked.given.text.written_as:
        print_lines(console, _of_neighbours(checked), "Neighbouring layouts")
    best = checked.best
    if best is None:
        return
    if best.change.text is None:
        told = "does not say all of it" if best.change.unsaid else "has no certain place for these flags"
        console.print(f"\nThe text {told}: set it by hand.", soft_wrap=True)
        return
    text, given = best.change.text, checked.given.text.text
    if len(text.splitlines()) <= SHORT_TEXT:
        console.print(f"\nTo paste ({_said(best)})", style="bold", soft_wrap=True)
        console.out(text, highlight=False)
        return
    console.print(f"\nChanged lines of {checked.given.where} (-o FILE writes it whole)", style="bold", soft_wrap=True)
    for line in unified_diff(given.splitlines(), text.splitlines(), n=0, lineterm=""):
        if not line.startswith(("---", "+++", "@@")):
            console.out(line, highlight=False)


def _of_neighbours(checked: Checked) -> Iterator[str]:
    """Simulated neighbours that fit, and what is known of the others."""
    step_s, count = checked.result.step_time_s, checked.looked_at
    for one in checked.listed:
        result = one.result
        sure = f", {probably(result.certainty.fit_probability)} to fit" if result.certainty else ""
        yield (
            f"- {_said(one)}: {format_seconds(result.step_time_s)} ({result.step_time_s / step_s - 1:+.1%}), "
            f"{format_bytes(result.memory.peak_reserved_bytes)}{sure}"
        )
    goal_s = min([one.result.step_time_s for one in checked.neighbours] + ([step_s] if checked.fits_surely else []),
                 default=None)  # fmt: skip
    if not count:
        has_words = bool(load_reader(checked.given.text.target).written_as)
        yield "There is none that the framework can express." if has_words else "None: nothing here writes such a text."
    elif goal_s is None:
        yield (
            f"{count} layouts one or two choices away were bounded; none that was simulated fits: simpar search looks "
            "further."
        )
    elif checked.least_s is None or checked.least_s >= goal_s:
        yield f"{count} layouts one or two choices away were bounded: none of the others is quicker."
    else:
        yield (
            f"{count} layouts one or two choices away were bounded: the others take {format_seconds(checked.least_s)} "
            "or more; simpar search looks further."
        )


def _said(one: Neighbour) -> str:
    """The changes of a neighbour as flags."""
    edits = ", ".join(map(str, one.change.edits))
    unsaid = f"{', '.join(one.change.unsaid)} (in the script's code)" if one.change.unsaid else ""
    return " and ".join(filter(None, (edits, unsaid))) or "nothing in the text"
