"""``simpar export``: a plan as the files of another framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simpar.cli.app import JSON_HELP, app, console, json_out, working
from simpar.cli.flags import Flag, with_flags
from simpar.errors import UserError

if TYPE_CHECKING:
    from simpar.cli.foretold import Foretold
    from simpar.export import Draft
    from simpar.export.source import Source
    from simpar.plan.plan import Plan

EXPORT_FLAGS = (
    Flag("--to", "", str, "Export target (simpar list targets)"),
    Flag("--output,-o", "", str, "Folder for the files"),
    Flag("--lossy", "", bool, "Export even if parts of the plan are lost, and list them"),
    Flag("--nearest", "", bool, "If the target cannot express the plan, export the nearest plan that it can"),
    Flag(
        "--fit-probability",
        "",
        float,
        "Lowest probability of fitting under the target's stack (default: that of the plan's search, else 0.95)",
    ),
    Flag("--force", "", bool, "Export even a plan that does not fit with that probability"),
    Flag("--model", "", str, "Model, if the plan names none"),
    Flag("--seq-len", "", int, "Tokens per sequence, if the plan does not say"),
    Flag("--global-batch", "", int, "Sequences per optimizer step, if the plan does not say"),
    Flag("--nodes", "", int, "Number of nodes, if the plan leaves dp open"),
    Flag("--gpus-per-node", "", int, "Devices per node (default: 8)"),
    Flag("--hardware", "", str, "Cluster for the prediction, if the plan names none"),
    Flag(
        "--stack", "", str, "Stack for which the plan was made, if the plan names none or the stack is a file"
    ),
    Flag("--json", "", str, JSON_HELP),
)


@app.command(epilog="Example: simpar export plan.json --to megatron -o exported")
@with_flags(EXPORT_FLAGS, "A plan, a result or a scenario", metavar="PLAN.json")
def export(scenario: str, **values: Any) -> None:
    """Write the files with which another framework trains a plan."""
    from simpar.chakra.write import NAME as TRACES
    from simpar.cli.foretold import Foretelling
    from simpar.export import TARGETS, Inexpressible, draft
    from simpar.export.source import Facts, load_source
    from simpar.files import choose
    from simpar.uncertainty.memory import WANTED

    for flag in ("to", "output"):
        if values[flag] is None:
            raise UserError(f"--{flag} is missing: simpar export PLAN.json --to TARGET -o FOLDER")
    given = ("model", "seq_len", "global_batch", "nodes", "gpus_per_node", "hardware", "stack")
    source = load_source(scenario, Facts(*(values[name] for name in given)))
    if choose(values["to"], (*TARGETS, TRACES), "target") == TRACES:
        _write_traces(source, values)
        return

    asked, searched = values["fit_probability"], source.plan.search
    usual = searched.fit_probability if searched else WANTED
    foretell = Foretelling(source, values["to"], usual if asked is None else asked)

    def draft_of(plan: Plan) -> Draft:
        job = (plan, source.graph, source.training, values["to"])
        return draft(*job, devices_per_node=source.devices_per_node, lossy=values["lossy"])

    try:
        drafted = draft_of(source.plan)
    except Inexpressible as error:
        near = foretell.nearest()
        if near is None or not (values["nearest"] and (near.is_allowed or values["force"])):
            raise UserError(f"{error}{near.offer if near else ''}") from None
        drafted = draft_of(near.plan)
        foretold: Foretold = near
    else:
        foretold = foretell.again(drafted.plan)
        if not foretold.is_allowed and not values["force"]:
            raise UserError(f"{foretold.said} (--force exports it anyway)")
    made = drafted.written(foretold.predicted, *filter(None, [foretold.said]))
    _write(made.files, Path(values["output"]))
    _tell(made.files, [str(loss) for loss in made.lost], made.notes, values)


def _write_traces(source: Source, values: dict[str, Any]) -> None:
    """Write one simulated step as the execution traces of all ranks."""
    from simpar.chakra.write import export_traces
    from simpar.simulation import make_job

    for flag in ("nearest", "fit_probability", "force"):
        if values[flag]:
            raise UserError(
                f"--{flag.replace('_', '-')}: not with --to chakra, which writes a step as it is simulated"
            )
    if source.cluster is None:
        raise UserError(
            "--hardware is missing: the plan names no cluster for its ranks, and a trace has their times"
        )
    with working("simulating"):
        job = make_job(source.graph, source.cluster, source.plan, source.training, source.stack)
        made = export_traces(job, source.cluster, lossy=bool(values["lossy"]))
    _write(made.files, Path(values["output"]))
    _tell(made.files, made.lost, (made.said, *made.notes), values)


def _write(made: Mapping[str, str | bytes], folder: Path) -> None:
    from simpar.files import write_atomic

    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output {folder}: is a file; allowed: a folder, made where it is missing")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_atomic(folder / name, text)
        if isinstance(text, str) and text.startswith("#!"):
            (folder / name).chmod(0o755)


def _tell(files: Iterable[str], lost: Sequence[str], notes: Sequence[str], values: Mapping[str, Any]) -> None:
    written = sorted(files)
    found = {"target": values["to"], "files": written, "lost": list(lost), "notes": list(notes)}
    if json_out(found, values["json_"]):
        return
    out = console()
    out.print(f"wrote {_listed(written)} to {values['output']}", soft_wrap=True, markup=False)
    for title, lines in (("lost", lost), ("note", notes)):
        for line in lines:
            out.print(f"{title}: {line}", soft_wrap=True, markup=False)


def _listed(names: Sequence[str]) -> str:
    """Names of files; of very many similar ones the first, and how many more."""
    traces = [name for name in names if name.endswith(".et")]
    kept = [name for name in names if name not in traces[1:]]
    more = f" and {len(traces) - 1} more of its kind" if len(traces) > 1 else ""
    return ", ".join(kept) + more
