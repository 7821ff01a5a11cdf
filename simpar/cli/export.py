"""``simpar export``: a plan as the files of another framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simpar.cli.app import JSON_HELP, app, console, json_out, working
from simpar.cli.flags import ScenarioFlag, with_flags
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.translate import Files

EXPORT_FLAGS = (
    ScenarioFlag("--to", "Export target (simpar list targets)"),
    ScenarioFlag("--output,-o", "Folder for the files"),
    ScenarioFlag("--lossy", "Export even if parts of the plan are lost, and list them", kind=bool),
    ScenarioFlag("--nearest", "If the target cannot express the plan, export the nearest plan that it can", kind=bool),
    ScenarioFlag(
        "--fit-probability",
        "Lowest probability of fitting under the target's stack (default: that of the plan's search, else 0.95)",
        kind=float,
    ),
    ScenarioFlag("--force", "Export even a plan that does not fit with that probability", kind=bool),
    ScenarioFlag("--model", "Model, if the plan names none"),
    ScenarioFlag("--seq-len", "Tokens per sequence, if the plan does not say", kind=int),
    ScenarioFlag("--global-batch", "Sequences per optimizer step, if the plan does not say", kind=int),
    ScenarioFlag("--nodes", "Number of nodes, if the plan leaves dp open", kind=int),
    ScenarioFlag("--gpus-per-node", "Devices per node (default: 8)", kind=int),
    ScenarioFlag("--hardware", "Cluster for the prediction, if the plan names none"),
    ScenarioFlag("--stack", "Stack for which the plan was made, if the plan names none or the stack is a file"),
    ScenarioFlag("--json", JSON_HELP),
)


@app.command(epilog="Example: simpar export plan.json --to megatron -o exported")
@with_flags(EXPORT_FLAGS, "A plan, a result or a scenario", metavar="PLAN.json")
def export(scenario: str, **values: Any) -> None:
    """Write the files with which another framework trains a plan."""
    from simpar.translate import export

    for flag in ("to", "output"):
        if values[flag] is None:
            raise UserError(f"--{flag} is missing: simpar export PLAN.json --to TARGET -o FOLDER")
    options = {name: value for name, value in values.items() if name not in ("to", "output", "json_")}
    with working("exporting"):
        made = export(scenario, values["to"], **options)
    made.save(values["output"])
    _tell(made, values)


def _tell(made: Files, values: Mapping[str, Any]) -> None:
    written = sorted(made.files)
    record = {"target": made.target, "files": written, "lost": list(made.lost), "notes": list(made.notes)}
    if json_out(record, values["json_"]):
        return
    out = console()
    out.print(f"wrote {_listed(written)} to {values['output']}", soft_wrap=True, markup=False)
    for title, lines in (("lost", made.lost), ("note", made.notes)):
        for line in lines:
            out.print(f"{title}: {line}", soft_wrap=True, markup=False)


def _listed(names: Sequence[str]) -> str:
    """Names of files; of very many similar ones the first, and how many more."""
    traces = [name for name in names if name.endswith(".et")]
    kept = [name for name in names if name not in traces[1:]]
    more = f" and {len(traces) - 1} more of its kind" if len(traces) > 1 else ""
    return ", ".join(kept) + more
