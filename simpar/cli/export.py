"""``simpar export``: a plan as the files of another framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out


@app.command(epilog="Example: simpar export plan.json --to megatron -o exported")
def export(
    plan: Annotated[str, typer.Argument(help="A plan, a result or a scenario", metavar="PLAN.json")],
    to: Annotated[str, typer.Option("--to", help="Target (simpar list targets)")],
    output: Annotated[str, typer.Option("-o", "--output", help="Folder for the files")],
    lossy: Annotated[bool, typer.Option("--lossy", help="Export even what loses a part of the plan")] = False,
    model: Annotated[str | None, typer.Option("--model", help="Model, where the plan names none")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Nodes, where the plan leaves dp open")] = None,
    gpus_per_node: Annotated[int | None, typer.Option("--gpus-per-node", help="Devices of a node")] = None,
    seq_len: Annotated[int | None, typer.Option("--seq-len", help="Tokens per sequence")] = None,
    global_batch: Annotated[int | None, typer.Option("--global-batch", help="Sequences per step")] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Write the files that make another framework train the plan."""
    from simpar.export import export as make
    from simpar.export.source import Facts, load_source
    from simpar.files import write_atomic

    source = load_source(plan, Facts(model, seq_len, global_batch, nodes, gpus_per_node))
    made = make(
        source.plan, source.graph, source.training, to, devices_per_node=source.devices_per_node, lossy=lossy
    )
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.files.items():
        write_atomic(folder / name, text)
        if text.startswith("#!"):
            (folder / name).chmod(0o755)
    found = {
        "target": to,
        "files": sorted(made.files),
        "lost": [str(loss) for loss in made.lost],
        "notes": list(made.notes),
    }
    if json_out(found, json_):
        return
    out = console()
    out.print(f"wrote {', '.join(sorted(made.files))} to {output}", soft_wrap=True)
    for title, lines in (("lost", found["lost"]), ("note", found["notes"])):
        for line in lines:
            out.print(f"{title}: {line}", soft_wrap=True, markup=False)
