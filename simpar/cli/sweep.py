"""``simpar simulate --over key=value,value``: one simulation for every combination of some choices."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from simpar.cli.app import INFEASIBLE, INTERRUPTED, console, working
from simpar.errors import UserError

ALONE = ("trace", "timeline", "memory_plot", "advise", "days")
"""Flags for the output of a single run."""
SECTIONS = {
    "training": ("seq_len", "global_batch"),
    "cluster": ("hardware", "nodes", "nvls", "sharp"),
    "": ("model", "stack"),
}


def swept(scenario: str | None, flags: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    """Simulate every combination and print a table; returns the exit code."""
    from simpar.files import check_writable
    from simpar.report.sweep import Swept, print_sweep, to_dict
    from simpar.scenario import load_scenario
    from simpar.simulation import simulate

    check_writable(*(values[name] for name in ("html", "csv", "json_")))
    for name in ALONE:
        if values.get(name):
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: shows one run, --over makes several: allowed: one of the two")
    axes = [parse(text) for text in values["over"]]
    choices = [
        dict(zip((key for key, _ in axes), each, strict=True)) for each in product(*(v for _, v in axes))
    ]
    options = {
        name: values[name] for name in ("engine", "flops_convention", "seed") if values[name] is not None
    }
    settings = [[f"{scenario_key(key)}={value}" for key, value in choice.items()] for choice in choices]
    scenarios = [load_scenario(scenario, flags, [*(values["set_"] or []), *each]) for each in settings]
    rows: list[Swept] = []
    with working("simulating") as status, suppress(KeyboardInterrupt):
        for choice, loaded in zip(choices, scenarios, strict=True):
            status.update(f"simulating {' '.join(f'{key}={value}' for key, value in choice.items())}")
            try:
                rows.append(Swept(choice, simulate(**loaded.inputs(), **options, with_timeline=False)))
            except UserError as error:
                rows.append(Swept(choice, refused=str(error)))
    interrupted = len(rows) < len(choices)
    rows += [Swept(choice) for choice in choices[len(rows) :]]
    if values["html"]:
        from simpar.report.sweep import save_sweep

        save_sweep(rows, values["html"], f"{scenario or 'simulate'}: {', '.join(values['over'])}")
    if values["csv"]:
        from simpar.report.sweep import si_table

        si_table(rows).save_csv(values["csv"])
    text = json.dumps(to_dict(rows), allow_nan=False) + "\n" if values["json_"] else ""
    if values["json_"] == "-":
        sys.stdout.write(text)
    else:
        if text:
            from simpar.files import write_atomic

            write_atomic(values["json_"], text)
        print_sweep(rows, console())
    if interrupted:
        return INTERRUPTED
    fitting = any(row.result and row.result.fits for row in rows)
    return 0 if fitting or not values["require_fit"] else INFEASIBLE


def parse(text: str) -> tuple[str, Sequence[str]]:
    """Key and values of "key=value,value". Raises UserError."""
    key, _, listed = text.partition("=")
    items = [item.strip() for item in listed.split(",") if item.strip()]
    if not key.strip() or not items:
        raise UserError(f"--over {text}: wants key=value,value, such as bucket_bytes=25MB,100MB")
    return key.strip(), items


def scenario_key(key: str) -> str:
    """The dotted scenario key of a short key: keys of a plan may be given alone."""
    if "." in key:
        return key
    for section, names in SECTIONS.items():
        if key in names:
            return f"{section}.{key}".lstrip(".")
    return f"plan.{key}"
