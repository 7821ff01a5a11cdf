"""``simpar export``: a plan as the files of another framework."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from simpar.cli.app import JSON_HELP, app, console, json_out
from simpar.cli.flags import Flag, with_flags
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.export import Exported

EXPORT_FLAGS = (
    Flag("--to", "", str, "Target (simpar list targets)"),
    Flag("--output,-o", "", str, "Folder for the files"),
    Flag("--lossy", "", bool, "Export even what loses a part of the plan; the loss is listed"),
    Flag("--model", "", str, "Model, where the plan names none"),
    Flag("--seq-len", "", int, "Tokens per sequence, where the plan does not say"),
    Flag("--global-batch", "", int, "Sequences per optimizer step, where the plan does not say"),
    Flag("--nodes", "", int, "Number of nodes, where the plan leaves dp open"),
    Flag("--gpus-per-node", "", int, "Devices of a node; default 8"),
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
    given = ("model", "seq_len", "global_batch", "nodes", "gpus_per_node")
    source = load_source(scenario, Facts(*(values[name] for name in given)))
    job = (source.plan, source.graph, source.training, values["to"])
    made = make(*job, devices_per_node=source.devices_per_node, lossy=values["lossy"])
    _write(made, Path(values["output"]))
    _tell(made, values)


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
