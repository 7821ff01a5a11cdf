"""``simpar hardware``: profiles of clusters of one's own: read from what the cluster says of itself, and shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out
from simpar.cli.completion import names_of

if TYPE_CHECKING:
    from simpar.files import Document
    from simpar.hardware.machine.profile_of import ImportedProfile

group = typer.Typer(
    name="hardware",
    help="Show hardware profiles, or make one of your cluster.",
    epilog="Example: simpar hardware show dgx-h100",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(group)


@group.command(epilog="Example: simpar hardware show ours.yaml")
def show(
    profile: Annotated[
        str, typer.Argument(help="A shipped name or a file", metavar="PROFILE", autocompletion=names_of("hardware"))
    ],
    device: Annotated[bool, typer.Option("--device", help="Show the device of the profile instead")] = False,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Print a hardware profile, and where its values come from.

    Inherited values are marked with the profile that they come from; fitted constants have their 90 % interval.
    """
    from simpar.files import Document
    from simpar.hardware.catalogue import load_cluster
    from simpar.hardware.network import split_network
    from simpar.hardware.shown import annotate_profile
    from simpar.profiles import as_written, load_profile

    shown = load_cluster(profile).profile  # reports errors in it
    named, network = split_network(profile)
    document, path = load_profile(named, "clusters", "hardware")
    if network:
        document = Document(as_written(shown), str(path), {})
    if device:
        document = _device(document, str(path))
    if not json_out(document.data, json_):
        if not device and shown.name != document.data.get("name"):
            sys.stdout.write(f"# {profile} is {shown.name}, below: the whole node\n")
        sys.stdout.write(annotate_profile(document, "devices" if device else "clusters"))
        if not device and document.data.get("price_per_device_hour") is None:
            sys.stdout.write(_price_of_device(document, str(path)))


def _price_of_device(document: Document, source: str) -> str:
    """A comment with the price that holds where a profile has none of its own: that of its device, with its origin."""
    from pathlib import Path

    if document.data.get("device") is None:
        return ""
    device = _device(document, source)
    price = device.data.get("price_per_hour")
    if price is None:
        return "# price: not known (price_per_device_hour here, or --price-per-gpu-hour, sets one)\n"
    path, _, line = device.place(("price_per_hour",)).rpartition(":")
    said = Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1].partition("#")[2] if path else ""
    origin = f" ({said.strip()})" if said else ""
    return f"# price: {price} of {device.data['name']}{origin}; price_per_device_hour here sets another\n"


def _device(document: Document, source: str) -> Document:
    """The device of a cluster: by name, by file, or written out in the cluster's file."""
    from pathlib import Path

    from simpar.errors import UserError
    from simpar.files import Document
    from simpar.profiles import load_profile

    result = document.data.get("device")
    if result is None:
        raise UserError(f"{source}: --device: has groups of several kinds of nodes, show one of their profiles")
    if isinstance(result, dict):
        return Document(result, source, {})
    beside = Path(source).parent / result if Path(result).suffix else result
    return load_profile(beside, "devices", "device")[0]


@group.command("import", epilog="Example: simpar hardware import topo.txt nodes.txt --like dgx-h100 -o ours.yaml")
def import_profile(
    file: Annotated[
        list[str],
        typer.Argument(
            help="Any of: nvidia-smi topo -m, rocm-smi --showtopo, amd-smi topology, NCCL_TOPO_DUMP_FILE, "
            "scontrol show nodes, topology.conf or .yaml, "
            "ibnetdiscover, iblinkinfo, ibstat, lspci -nn, nvidia-smi -L, kubectl get nodes -o json",
            metavar="FILE",
        ),
    ],
    output: Annotated[str, typer.Option("-o", "--output", help="Profile to write")] = "cluster.yaml",
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            help="Profile that fills in what the files do not say: a shipped name or a file",
            autocompletion=names_of("hardware"),
        ),
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="Slurm partition, if there are several")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the profile (default: that of its file)")] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Make a profile from what a cluster reports about itself.

    All files must be of one cluster; simpar recognises their kind by their content. Nothing is guessed: values that the
    files do not give come from the profile of --like, and what cannot be read is listed.
    """
    from pathlib import Path

    from simpar.files import write_atomic
    from simpar.hardware.machine.profile_of import import_profile as read
    from simpar.hardware.machine.profile_of import name_of

    folder = Path(output).parent
    imported = read(file, name or name_of(output), like=like, partition=partition, folder=folder)
    write_atomic(output, imported.text())
    report = {
        "profile": output,
        "like": imported.data["like"],
        "read": {key: {"value": fact.value, "file": fact.file} for key, fact in imported.facts.items()},
        "not_read": list(imported.unread),
        "nodes": imported.num_nodes,
    }
    if not json_out(report, json_):
        _say(imported, output)


def _say(imported: ImportedProfile, output: str) -> None:
    out = console()
    out.print(f"wrote {output}, like {imported.data['like']}", soft_wrap=True)
    for key, fact in imported.facts.items():
        out.print(f"read: {key} = {fact.value} ({fact.file})", soft_wrap=True, markup=False)
    for line in imported.unread:
        out.print(f"not read: {line}", soft_wrap=True, markup=False)
    if imported.num_nodes:
        out.print(f"{imported.num_nodes} nodes: --hardware {output} --nodes {imported.num_nodes}", soft_wrap=True)
