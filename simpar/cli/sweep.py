"""``simpar simulate --over key=value,value``: one simulation for every combination of some choices."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simpar.cli.app import INFEASIBLE, INTERRUPTED, console, working, write_out
from simpar.cli.axes import asks, keys_of_sweeps, print_sweep_axes
from simpar.cli.flags import NETWORK
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.report.sweep import Sweep

SINGLE_RUN_OPTIONS = ("trace", "timeline", "memory_plot", "advise", "days")
"""Flags for the output of a single run."""


def run_sweep(scenario: str | None, flags: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    """Simulate every combination and print a table; returns the exit code."""
    from simpar import verbs
    from simpar.files import check_writable
    from simpar.report.sweep import choice_text
    from simpar.workers import Workers

    if asks(values["over"]):
        print_sweep_axes(console())
        return 0
    check_writable(*(values[name] for name in ("html", "csv", "json_")))
    for name in SINGLE_RUN_OPTIONS:
        if values.get(name):
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: shows one run, --over makes several: allowed: one of the two")
    options = {name: values[name] for name in ("engine", "flops_convention", "seed") if values[name] is not None}
    workers = Workers.usual() if values["jobs"] is None else Workers(values["jobs"])
    over = dict(map(parse, values["over"]))
    if len(over) < len(values["over"]):
        raise UserError(f"--over {' --over '.join(values['over'])}: a key is given twice; give all its values at once")
    with working("simulating") as status:
        result = verbs.sweep(
            scenario,
            over,
            flags=flags,
            settings=values["set_"] or (),
            progress=lambda choice: status.update(f"simulating {choice_text(choice)}"),
            workers=workers,
            **options,
        )
    _write(result, f"{scenario or 'simulate'}: {', '.join(values['over'])}", values)
    if result.interrupted:
        return INTERRUPTED
    return 0 if result.best or not values["require_fit"] else INFEASIBLE


def _write(result: Sweep, title: str, values: Mapping[str, Any]) -> None:
    """Write the page and the tables that are asked for, and print the rows where JSON does not go there."""
    from simpar.files import write_atomic
    from simpar.report.sweep import chunks_text, print_sweep, save_sweep, si_table

    if values["html"]:
        save_sweep(result.rows, values["html"], title, chunks_text(result.rows))
    if values["csv"]:
        si_table(result.rows).save_csv(values["csv"])
    text = json.dumps(result.to_dict(), allow_nan=False) + "\n" if values["json_"] else ""
    if values["json_"] == "-":
        write_out(text)
        return
    if text:
        write_atomic(values["json_"], text)
    print_sweep(result, console())


def parse(text: str) -> tuple[str, Sequence[str]]:
    """Key and values of "key=value,value"; keys may be written as their flags are. Raises UserError."""
    from simpar.files import suggest
    from simpar.plan.choices import SYNONYMS

    key, _, listed = text.partition("=")
    items = [item.strip() for item in listed.split(",") if item.strip()]
    name = key.strip().removeprefix("--")
    if not name or not items:
        example = f"{name}=VALUE,VALUE" if name in keys_of_sweeps() else "key=value,value, such as tp=1,2,4"
        raise UserError(f"--over {text}: wants {example}; --over help lists the keys")
    if "." in name:
        return name, items
    name = name.replace("-", "_")
    if name == NETWORK:
        raise UserError(f'--over {text}: is a part of a name; allowed: --over "hardware=NAME over {items[0]},..."')
    if name not in (*keys_of_sweeps(), "devices", *SYNONYMS):
        raise UserError(f"--over {text}: {name} is no key{suggest(name, keys_of_sweeps())}; --over help lists the keys")
    return name, items
