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
    from simpar.report.result import Result

EXPORT_FLAGS = (
    Flag("--to", "", str, "Target (simpar list targets)"),
    Flag("--output,-o", "", str, "Folder for the files"),
    Flag("--lossy", "", bool, "Export even what loses a part of the plan; the loss is listed"),
    Flag("--nearest", "", bool, "Where the target cannot express the plan: export the nearest that it can"),
    Flag(
        "--fit-probability",
        "",
        float,
        "How probable it must be that the plan fits as the target runs it; default: what its search wanted, else 0.95",
    ),
    Flag("--force", "", bool, "Export even what does not fit so surely"),
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
    from simpar.export import Inexpressible
    from simpar.export import export as make
    from simpar.export.source import Facts, load_source
    from simpar.uncertainty.memory import WANTED

    for flag in ("to", "output"):
        if values[flag] is None:
            raise UserError(f"--{flag} is missing: simpar export PLAN.json --to TARGET -o FOLDER")
    given = ("model", "seq_len", "global_batch", "nodes", "gpus_per_node", "hardware", "stack")
    source = load_source(scenario, Facts(*(values[name] for name in given)))

    def made_of(plan: Plan) -> Exported:
        job = (plan, source.graph, source.training, values["to"])
        return make(*job, devices_per_node=source.devices_per_node, lossy=values["lossy"])

    try:
        made = made_of(source.plan)
    except Inexpressible as error:
        plan, said = _nearest(source, values["to"])
        if plan is None or not values["nearest"]:
            more = f"; the nearest that it can: {said} (--nearest exports it)" if plan else ""
            raise UserError(f"{error}{more}") from None
        source = replace(source, plan=plan)
        made = made_of(plan)
        made = replace(made, notes=(*made.notes, f"Not the plan but the nearest that can be said: {said}."))
    asked, searched = values["fit_probability"], source.plan.search
    usual = searched.fit_probability if searched else WANTED
    foretold = _predicted_again(source, made.plan, values["to"], usual if asked is None else asked)
    if foretold and not foretold.is_allowed and not values["force"]:
        raise UserError(f"{foretold.said} (--force exports it all the same)")
    if foretold:
        made = replace(made, notes=(*made.notes, foretold.said))
    _write(made, Path(values["output"]))
    _tell(made, values)


def _nearest(source: Source, target: str) -> tuple[Plan | None, str]:
    """The quickest of the nearest plans that a target can express, what it changes, and what that costs."""
    from simpar.export import load_target
    from simpar.export.nearest import Job, nearest
    from simpar.simulation import simulate
    from simpar.units import format_seconds

    found = nearest(source.plan, Job(source.graph, source.training, target, source.devices_per_node))
    if not found or source.cluster is None:
        return (found[0].plan, f"{'; '.join(found[0].changes)}, not predicted: the plan names no cluster") if found \
            else (None, "")  # fmt: skip
    cluster = source.cluster

    def run(plan: Plan, habits: Stack | None) -> Result | None:
        try:
            return simulate(source.graph, cluster, plan, source.training, stack=habits, with_timeline=False)
        except UserError:
            return None

    timed = []
    for near in found:
        habit = load_target(target).habits(near.plan)
        if (result := run(near.plan.model_copy(update={"stack": habit}), None)) is not None:
            timed.append((not result.fits, result.step_time_s, near, habit))
    if not timed:
        return None, ""
    misses, seconds, near, habit = min(timed, key=lambda each: each[:2])
    said = f"{'; '.join(near.changes)}: {format_seconds(seconds)} a step under {habit}"
    base = run(source.plan, source.stack)
    if base is not None:
        change = seconds / base.step_time_s - 1
        said += f", {abs(change):.1%} {'more' if change >= 0 else 'less'} than the plan takes"
    return near.plan, said + (", and does not fit" if misses else "")


@dataclass(frozen=True)
class _Foretold:
    """Whether a plan fits so surely as the target runs it as is wanted, in words with the numbers."""

    is_allowed: bool
    said: str


def _predicted_again(source: Source, runs: Plan, target: str, wanted: float) -> _Foretold | None:
    """What the stack of a target makes of a plan: does it fit with the probability ``wanted``.

    ``runs`` is the plan as the target runs it. None where it does as it was made for that very stack, or where nothing
    is known of what it was made for. Raises UserError where it cannot be simulated there.
    """
    from simpar.cost.stack import load_stack
    from simpar.report.terminal import memory_state
    from simpar.simulation import simulate
    from simpar.units import format_seconds

    if not 0 < wanted < 1:
        raise UserError(f"--fit-probability {wanted:g}: allowed: above 0 and below 1")
    stack, cluster = source.stack, source.cluster
    is_same = stack is None or stack == load_stack(str(runs.stack))
    if cluster is None:
        words = f"Not predicted for stack {runs.stack}: the plan names no cluster for its ranks (--hardware NAME does)."
        return None if is_same else _Foretold(True, words)

    def run(plan: Plan, habits: Stack | None) -> Result:
        return simulate(source.graph, cluster, plan, source.training, stack=habits, with_timeline=False)

    def numbers(result: Result) -> str:
        return f"{memory_state(result, 'does not fit')}, {format_seconds(result.step_time_s)} a step"

    there = run(runs, None)
    is_sure = there.fits and (there.certainty is None or there.certainty.fit_probability >= wanted)
    if is_same and is_sure:
        return None
    said = f"Under {runs.stack}, the stack of {target}, the plan {numbers(there)}"
    if stack is not None and not is_same:
        said += f"; under {stack.name}, for which it was made, it {numbers(run(source.plan, stack))}"
    if there.fits and not is_sure:
        said += f"; --fit-probability {wanted:g} is wanted"
    return _Foretold(is_sure, said)


def _write(made: Exported, folder: Path) -> None:
    from simpar.files import write_atomic

    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder}: is a file; allowed: a folder, made where it is missing")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
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
