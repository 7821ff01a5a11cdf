"""The rules that every Program keeps, checked column by column."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from simpar.program.ir.flow import solo_rates
from simpar.program.ir.program import MEMORY_CATEGORIES, Csr, Program, ProgramError, levels


def verify(program: Program) -> Program:
    """The program itself, or ProgramError naming the first rule that it breaks."""
    _verify_shapes(program)
    _verify_references(program)
    _verify_amounts(program)
    _verify_once("stream", program.streams)
    _verify_once("route", program.routes.links)
    levels(program)
    return program


def _check(rule: bool | np.bool_, text: str) -> None:
    if not rule:
        raise ProgramError(text)


def _verify_shapes(program: Program) -> None:
    for columns in (program.ops, program.memory):
        lengths = {len(getattr(columns, column.name)) for column in fields(columns)}
        _check(len(lengths) == 1, f"{type(columns).__name__} has columns of different lengths")
    routes = program.routes
    for name, table, num_rows in (
        ("dependencies", program.dependencies, len(program)),
        ("streams", program.streams, len(program.stream_names)),
        ("routes", routes.links, len(routes.links)),
    ):
        pointer = table.pointer
        good = len(pointer) == num_rows + 1 and pointer[0] == 0 and pointer[-1] == len(table.item)
        _check(good and bool((np.diff(pointer) >= 0).all()), f"{name}: pointer does not cut {num_rows} rows")
    _check(len(routes.coefficient) == len(routes.links.item), "routes: one coefficient per entry is needed")
    _check(len(routes.capacity_bytes_per_s) == len(routes.link_names), "links and names differ in number")
    _check(len(program.multiplicity) == len(program.class_names), "classes and names differ in number")
    _check(len(program.stream_class) == len(program.stream_names), "streams and classes differ in number")


def _verify_references(program: Program) -> None:
    """Every column that points into another table stays inside it."""
    ops, memory, routes = program.ops, program.memory, program.routes
    num_ops, num_classes = len(program), len(program.class_names)
    for name, column, low, high in (
        ("ops.class_id", ops.class_id, 0, num_classes),
        ("ops.label", ops.label, 0, len(program.labels)),
        ("ops.route", ops.route, -1, len(routes.links)),
        ("dependencies", program.dependencies.item, 0, num_ops),
        ("streams", program.streams.item, 0, num_ops),
        ("stream_class", program.stream_class, 0, num_classes),
        ("routes.links", routes.links.item, 0, len(routes.link_names)),
        ("memory.op", memory.op, 0, num_ops),
        ("memory.class_id", memory.class_id, 0, num_classes),
        ("memory.category", memory.category, 0, len(MEMORY_CATEGORIES)),
    ):
        wrong = np.flatnonzero((column < low) | (column >= high))
        _check(not len(wrong), f"{name}[{wrong[:1]}] = {column[wrong[:1]]}, allowed {low}..{high - 1}")


def _verify_amounts(program: Program) -> None:
    """No negative times or work, and every flow can drain."""
    ops, routes = program.ops, program.routes
    negative = (ops.fixed_ns < 0) | (ops.work_bytes < 0) | (ops.rate_cap_bytes_per_s < 0)
    hops = np.append(np.diff(routes.links.pointer), 0)[ops.route]
    nowhere = (ops.work_bytes > 0) & (hops == 0) & (ops.rate_cap_bytes_per_s == 0)
    for wrong, what in (
        (negative, "has a negative time, work or rate cap"),
        (nowhere, "has work, but neither a route nor a rate cap"),
    ):
        for op in np.flatnonzero(wrong)[:1]:
            raise ProgramError(f"{program.describe(int(op))} {what}")
    for link in np.flatnonzero(routes.capacity_bytes_per_s <= 0)[:1]:
        raise ProgramError(f"link {routes.link_names[link]} has no capacity")
    share = solo_rates(routes.coefficient, routes.capacity_bytes_per_s[routes.links.item])
    for entry in np.flatnonzero(share < 1)[:1]:
        raise ProgramError(f"link {routes.link_names[routes.links.item[entry]]} is too slow for its coefficients")
    _check(bool((routes.coefficient > 0).all()), "a route has a coefficient that is not positive")
    _check(bool((program.multiplicity > 0).all()), "a class stands for no rank")


def _verify_once(name: str, table: Csr) -> None:
    """No row names an item twice."""
    order = np.lexsort((table.item, table.owners()))
    owner, item = table.owners()[order], table.item[order]
    for twice in np.flatnonzero((owner[1:] == owner[:-1]) & (item[1:] == item[:-1]))[:1]:
        raise ProgramError(f"{name} {owner[twice]} names {item[twice]} twice")
