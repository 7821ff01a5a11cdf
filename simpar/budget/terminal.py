"""The answer of "how many devices" as terminal output: the answer first, then the table of all numbers of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from simpar.budget.answer import HowMany
from simpar.budget.nodes import Row
from simpar.report.run_rows import NO_FAILURES, amount, figure, price_words
from simpar.report.table import Column, ReportTable, print_lines, text
from simpar.report.words import layout, probably
from simpar.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import Console


FRONT = "+ the front: no other number of nodes is both quicker and cheaper"
CLOSE = 0.01
"""Differences of the objective, as a share of it, that count as close."""


def print_how_many(answer: HowMany, console: Console) -> None:
    """Print the answer to a rich console."""
    print_lines(console, (*answer_lines(answer), *_assumed(answer)))
    console.print()
    columns: list[Column | str] = [
        "", "nodes", Column("GPUs", spare=3), "days", Column("90 % interval", spare=4), "dollars",
        Column("MWh", spare=1), Column("step", spare=2), text("limits", least=16),
    ]  # fmt: skip
    console.print(ReportTable(columns, [_cells(answer, row) for row in answer.rows]))
    print_lines(console, certificate_lines(answer))
    print_lines(console, map(plan_words, answer.rows), "Plans", mark="- ")


def answer_lines(answer: HowMany) -> Iterator[str]:
    """The chosen number of nodes, and alternatives."""
    chosen, wanted = answer.chosen, answer.wanted
    if chosen is None or chosen.run is None:
        yield answer.needed()
        return
    limits = [f"within {wanted.deadline_days:g} days"] if wanted.deadline_days is not None else []
    limits += [f"for at most {figure(wanted.budget_usd)} dollars"] if wanted.budget_usd is not None else []
    what = "quickest" if wanted.objective == "days" else "cheapest"
    yield (
        f"{chosen.devices:,} GPUs ({chosen.node_words}) are the {what} {' and '.join(limits)}".rstrip()
        + f": {format_count(chosen.run.tokens)} tokens in {both_words(chosen)}"
    )
    others = {"cheapest by the deadline": answer.cheapest, "quickest within the budget": answer.quickest}
    for name, row in others.items():
        if row is not None and row is not chosen and row.run is not None:
            yield f"{name}: {row.devices:,} GPUs, {both_words(row)}"
    if close := _close(answer, chosen):
        yield f"within 1 % of it: {', '.join(f'{row.devices:,} GPUs' for row in close)}"
    if limits and (sure := answer.surely) is not chosen:
        if sure is None:
            yield "no number of nodes keeps the limits in 95 of 100 cases"
        else:
            yield f"to keep to that in 95 of 100 cases: {sure.devices:,} GPUs ({sure.node_words})"


def _assumed(answer: HowMany) -> Iterator[str]:
    """What decides days and dollars: the software stack, and the price of a device."""
    for row in answer.planned[:1]:
        assert row.plan is not None, "planned rows have one"
        assert row.run is not None, "and a run"
        yield f"assumed: {row.plan.stack} stack (--stack sets another)"
        yield f"price: {price_words(row.run)}"


def _close(answer: HowMany, chosen: Row) -> list[Row]:
    """Other rows within the limits that are hardly worse by the objective."""
    by_days = answer.wanted.objective == "days"
    limit = (1 + CLOSE) * (chosen.days if by_days else chosen.dollars)
    kept = (row for row in answer.planned if answer.meets_deadline(row) and answer.keeps_budget(row))
    return [row for row in kept if row is not chosen and (row.days if by_days else row.dollars) <= limit]


def both_words(row: Row) -> str:
    """Days and dollars with their intervals."""
    if row.run is None:
        return ""
    cost = row.run.cost_usd
    return f"{amount(row.run.days)} days" + (", at no known price" if cost is None else f" for {amount(cost)} dollars")


def _cells(answer: HowMany, row: Row) -> list[str]:
    mark = "*" if row is answer.chosen else "+" if row in answer.front else ""
    counts = [mark, f"{row.nodes:,}", f"{row.devices:,}"]
    if row.run is None or row.figures is None:
        return [*counts, *[""] * 5, "no plan"]
    days, cost, energy = row.run.days, row.run.cost_usd, row.run.energy_mwh
    between = "" if days.low is None or days.high is None else f"{figure(days.low)} to {figure(days.high)}"
    return [
        *counts, figure(days.value), between, "" if cost is None else figure(cost.value),
        "" if energy is None else figure(energy.value), format_seconds(row.figures["step_time_s"]),
        limits_words(answer, row),
    ]  # fmt: skip


def plan_words(row: Row) -> str:
    """The best plan of a number of nodes and its probability of fitting, or why there is none."""
    if row.plan is None or row.figures is None:
        return f"{row.node_words}: {row.reason}"
    sure = row.figures["fit_probability"]
    return f"{row.node_words}: {layout(row.plan.model_dump(mode='json'))}" + (
        "" if sure is None else f"; {probably(sure)} to fit"
    )


def limits_words(answer: HowMany, row: Row) -> str:
    """How a row compares with the deadline and the budget."""
    missed = [
        name
        for name, kept in (("too late", answer.meets_deadline(row)), ("too dear", answer.keeps_budget(row)))
        if not kept
    ]
    return ", ".join(missed) or ("kept" if answer.is_sure(row) else "kept as predicted")


def certificate_lines(answer: HowMany) -> Iterator[str]:
    """How sure the answer is, and what it leaves out."""
    if answer.planned:
        yield "* the answer" * (answer.chosen is not None) + "; " * (answer.chosen is not None) + FRONT
    counts = ", ".join(str(row.nodes) for row in answer.rows)
    if answer.is_certified:
        several = len(answer.rows) > 1
        yield (
            f"certified: on none of {counts} nodes has a plan of the space a shorter step"
            if several
            else f"certified: on {answer.rows[0].node_words} no plan of the space has a shorter step"
        )
    elif not answer.is_whole:
        yield "not certified: stopped before all numbers of nodes were searched"
    else:
        gap = max(row.gap for row in answer.planned)
        yield f"not certified: a plan that was not simulated may have a step shorter by up to {gap:.2%}"
    if answer.planned and answer.planned[0].run is not None and answer.planned[0].run.failures is None:
        yield f"failures: {NO_FAILURES}"
