"""``simpar export``: a plan as the files of another framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simpar.cli.app import JSON_HELP, app, console, json_out, working
from simpar.cli.flags import ScenarioFlag, values_by_key, with_flags
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.scenario import Scenario
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
    ScenarioFlag("--gpus-per-node", "Devices per node (default: 8)", kind=int),
    ScenarioFlag("--set", "Any scenario key: dotted.key=value; may be repeated", kind=list[str]),
    ScenarioFlag("--json", JSON_HELP),
)
OF_POST_TRAINING = ("verl", "nemo-rl")
"""Targets for scenarios with a section post_training: they run the whole step."""
OPTIONS = ("lossy", "nearest", "fit_probability", "force", "gpus_per_node")
FACTS = {
    "model": "model", "seq_len": "training.seq_len", "global_batch": "training.global_batch", "nodes": "cluster.nodes",
    "hardware": "cluster.hardware", "stack": "stack",
}  # fmt: skip
"""What a plan file may lack, by the name of the flag: without other flags it is no scenario, and needs no cluster."""


@app.command(epilog="Example: simpar export plan.json --to megatron -o exported")
@with_flags(
    EXPORT_FLAGS, "A plan, a result or a scenario; without one, flags say all", metavar="[PLAN.json]", plan=True
)
def export(scenario: str | None, **values: Any) -> None:
    """Write the files with which another framework trains a plan.

    Flags of the layout replace what the plan says, as in simulate; the plan then needs its cluster, or --hardware.
    """
    from simpar.scenario import load_scenario
    from simpar.translate import export

    for flag in ("to", "output"):
        if values[flag] is None:
            raise UserError(f"--{flag} is missing: simpar export PLAN.json --to TARGET -o FOLDER")
    flags, settings = values_by_key(values), list(values["set_"] or [])
    if values["to"] in OF_POST_TRAINING:
        _export_post_training(load_scenario(scenario, flags, settings), values)
        return
    options = {name: values[name] for name in OPTIONS}
    with working("exporting"):
        if scenario is None or settings or not flags.keys() <= {*FACTS.values()}:
            made = export(load_scenario(scenario, flags, settings), values["to"], **options)
        else:
            made = export(scenario, values["to"], **options, **{name: values[name] for name in FACTS})
    made.save(values["output"])
    _tell(made, values)


def _export_post_training(loaded: Scenario, values: Mapping[str, Any]) -> None:
    """Write the options of an RL framework."""
    from simpar.posttraining.exports import export_post_training

    for name in ("nearest", "fit_probability", "force", "gpus_per_node"):
        if values[name]:
            raise UserError(f"--{name.replace('_', '-')}: is of one update of training; allowed with --to "
                            f"{values['to']}: --lossy")  # fmt: skip
    made = export_post_training(loaded, values["to"], lossy=values["lossy"])
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
