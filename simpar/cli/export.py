"""``simpar export``: a plan as the files of another framework."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simpar.cli.app import JSON_HELP, app, console, json_out
from simpar.cli.flags import Flag, with_flags
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.cost.stack import Stack
    from simpar.export import Exported
    from simpar.export.source import Source
    from simpar.plan.plan import Plan

EXPORT_FLAGS = (
    Flag("--to", "", str, "Target (simpar list targets)"),
    Flag("--output,-o", "", str, "Folder for the files"),
    Flag("--lossy", "", bool, "Export even what loses a part of the plan; the loss is listed"),
    Flag("--force", "", bool, "Export even what does not fit as predicted for the target's stack"),
    Flag("--model", "", str, "Model, where the plan names none"),
    Flag("--seq-len", "", int, "Tokens per sequence, where the plan does not say"),
    Flag("--global-batch", "", int, "Sequences per optimizer step, where the plan does not say"),
    Flag("--nodes", "", int, "Number of nodes, where the plan leaves dp open"),
    Flag("--gpus-per-node", "", int, "Devices of a node; default 8"),
    Flag("--hardware", "", str, "Cluster that the plan is predicted on, where the plan names none"),
    Flag(
        "--stack", "", str, "Stack that the plan was made for, where the plan does not say, or a file has it"
    ),
    Flag("--json", "", str, JSON_HELP),
)


@app.command(epilog="Example: simpar export plan.json --to megatron -o exported")
@with_flags(EXPORT_FLAGS, "A plan, a result or a scenario", metavar="PLAN.json")
def export(scenario: str, **values: Any) -> None:
    """Write the files that make another framework train a plan."""
    from simpar.export import export as make
    from simpar.export.source import Facts, load_source

    for flag in ("to", "output"):
        if values[flag] is None:
            raise UserError(f"--{flag} is missing: simpar export PLAN.json --to TARGET -o FOLDER")
    given = ("model", "seq_len", "global_batch", "nodes", "gpus_per_node", "hardware", "stack")
    source = load_source(scenario, Facts(*(values[name] for name in given)))
    job = (source.plan, source.graph, source.training, values["to"])
    made = make(*job, devices_per_node=source.devices_per_node, lossy=values["lossy"])
    foretold = _predicted_again(source, made.plan, values["to"])
    if foretold and not foretold.fits and not values["force"]:
        raise UserError(f"{foretold.said} (--force exports it all the same)")
    if foretold:
        made = replace(made, notes=(*made.notes, foretold.said))
    _write(made, Path(values["output"]))
    _tell(made, values)


@dataclass(frozen=True)
class _Foretold:
    """Whether a plan fits as a target runs it, in words with the numbers."""

    fits: bool
    said: str


def _predicted_again(source: Source, runs: Plan, target: str) -> _Foretold | None:
    """What another stack than the one that a plan was made for makes of it; None where it is the same, or unknown.

    ``runs`` is the plan as the target runs it. Raises UserError where it cannot be simulated there.
    """
    from simpar.cost.stack import load_stack
    from simpar.simulation import simulate
    from simpar.units import format_bytes, format_seconds

    stack, cluster = source.stack, source.cluster
    if stack is None or stack == load_stack(str(runs.stack)):
        return None
    if cluster is None:
        words = f"Not predicted for stack {runs.stack}: the plan names no cluster for its ranks (--hardware NAME does)."
        return _Foretold(True, words)

    def numbers(plan: Plan, habits: Stack | None) -> tuple[bool, str]:
        result = simulate(source.graph, cluster, plan, source.training, stack=habits, with_timeline=False)
        memory = result.memory
        needs = f"{format_bytes(memory.peak_reserved_bytes)} of {format_bytes(memory.capacity_bytes)}"
        return result.fits, f"{needs}, {format_seconds(result.step_time_s)} a step"

    fits, there = numbers(runs, None)
    _, here = numbers(source.plan, stack)
    verdict = "fits" if fits else "does not fit"
    said = (
        f"Under {runs.stack}, the stack of {target}, the plan {verdict}: {there}; under {stack.name}, for which it was "
        f"made, {here}"
    )
    return _Foretold(fits, said)


def _write(made: Exported, folder: Path) -> None:
    from simpar.files import write_atomic

    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder}: is a file; allowed: a folder, made where it is missing")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.files.items():
        write_atomic(folder / name, text)
        if text.startswith("#!"):
            (folder / name).chmod(0o755)


def _tell(made: Exported, values: dict[str, Any]) -> None:
    lost, notes = [str(loss) for loss in made.lost], list(made.notes)
    found = {"target": values["to"], "files": sorted(made.files), "lost": lost, "notes": notes}
    if json_out(found, values["json_"]):
        return
    out = console()
    out.print(f"wrote {', '.join(sorted(made.files))} to {values['output']}", soft_wrap=True, markup=False)
    for title, lines in (("lost", lost), ("note", notes)):
        for line in lines:
            out.print(f"{title}: {line}", soft_wrap=True, markup=False)
