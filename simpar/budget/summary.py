"""The page "why so many devices": the question, the choice, its lead, its uncertainty, and the alternatives."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simpar.budget.answer import HowMany, refuse_without_choice
from simpar.budget.nodes import Row
from simpar.budget.terminal import answer_lines, both_words, certificate_lines, limits_words, plan_words
from simpar.planner.answer.summary import save_sections
from simpar.report.run_rows import figure, run_rows
from simpar.units import format_count, format_seconds


def save_summary(answer: HowMany, path: str | Path) -> None:
    """Write the page atomically; equal answers give equal bytes. Raises Infeasible without a choice."""
    sections = summary(answer)
    save_sections(next(answer_lines(answer)), sections, path)


def summary(answer: HowMany) -> list[dict[str, Any]]:
    """The five sections, each with a title and sentences. Raises Infeasible without a choice."""
    refuse_without_choice(answer)
    chosen = answer.chosen
    assert chosen is not None, "refused"
    parts = {
        "What was asked": _asked(answer, chosen),
        "What was chosen": _chosen(chosen),
        "By how much": _by_how_much(answer, chosen),
        "How sure": _how_sure(answer),
        "What would change it": _what_would_change_it(answer),
    }
    return [{"title": title, "lines": list(lines)} for title, lines in parts.items()]


def _asked(answer: HowMany, chosen: Row) -> Iterator[str]:
    plan, wanted = chosen.plan, answer.wanted
    if plan is not None and plan.training and chosen.run is not None:
        hardware = (plan.cluster or {}).get("hardware")
        name = hardware.get("name") if isinstance(hardware, dict) else hardware
        shape = f"{plan.training['global_batch']} x {plan.training['seq_len']} tokens a step"
        yield f"{plan.model} on {name}, {shape}, {format_count(chosen.run.tokens)} tokens, {plan.stack} stack"
    yield f"the fewest {wanted.objective} over {', '.join(str(row.nodes) for row in answer.rows)} nodes"
    if wanted.deadline_days is not None:
        yield f"done in at most {wanted.deadline_days:g} days"
    if wanted.budget_usd is not None:
        yield f"for at most {figure(wanted.budget_usd)} dollars"


def _chosen(chosen: Row) -> Iterator[str]:
    yield plan_words(chosen)
    if chosen.figures is not None:
        yield f"a step of {format_seconds(chosen.figures['step_time_s'])}, {chosen.figures['mfu']:.1%} MFU"
    if chosen.run is not None:
        yield from (f"{name}: {words}" for name, words in run_rows(chosen.run))


def _by_how_much(answer: HowMany, chosen: Row) -> Iterator[str]:
    for row in answer.rows:
        if row is chosen:
            continue
        where = f"{row.devices:,} GPUs ({row.node_words})"
        yield f"{where}: {row.reason if row.run is None else f'{both_words(row)}; {limits_words(answer, row)}'}"
    if len(answer.rows) == 1:
        yield "no other number of nodes was asked for"


def _how_sure(answer: HowMany) -> Iterator[str]:
    yield "ranges in brackets are 90 % intervals"
    _, *lines = certificate_lines(answer)
    yield from lines


def _what_would_change_it(answer: HowMany) -> Iterator[str]:
    _, *others = answer_lines(answer)
    yield from others
    yield "another price, stack or hardware, or measured runs of your own (simpar learn) may rank them otherwise"
