"""``simpar list``: what is shipped, by name."""

from typing import Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out

LISTS = {
    "models": "for --model",
    "hardware": "for --hardware",
    "scenarios": "for simulate, search, compare, run and export",
    "schedules": "for --schedule and --schedules",
    "optimizers": "for --optimizer",
    "precisions": "for --precision",
    "stacks": "for --stack",
    "reliability": "for --reliability",
    "targets": "for export --to and import --from",
}


def _starting(word: str) -> list[str]:
    return [name for name in LISTS if name.startswith(word)]


@app.command("list", epilog="Example: simpar list models")
def list_names(
    what: Annotated[str | None, typer.Argument(help=", ".join(LISTS), autocompletion=_starting)] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """List what simpar ships, by the names that other commands take."""
    from simpar.files import choose
    from simpar.report.terminal import print_names

    names = LISTS if what is None else _names(choose(what, LISTS, "list"))
    if not json_out(names, json_):
        print_names(names, console())


def _names(what: str) -> dict[str, str]:
    """Name and one-line description of everything of a kind."""
    from simpar.architectures.catalogue import list_models
    from simpar.hardware.catalogue import list_clusters

    return {
        "models": list_models,
        "hardware": list_clusters,
        "scenarios": lambda: _described("scenarios"),
        "stacks": lambda: _described("stacks"),
        "reliability": lambda: _described("reliability"),
        "schedules": _schedules,
        "optimizers": _optimizers,
        "precisions": _precisions,
        "targets": _targets,
    }[what]()


def _described(kind: str) -> dict[str, str]:
    from simpar.files import bundled, load

    return {name: str(load(path).data.get("description", "")) for name, path in bundled(kind).items()}


def _schedules() -> dict[str, str]:
    from simpar.plan.schedules import describe

    return describe()


def _optimizers() -> dict[str, str]:
    from simpar.plan.optimizers import OPTIMIZERS

    return {name: each.summary for name, each in OPTIMIZERS.items()}


def _precisions() -> dict[str, str]:
    from simpar.precisions import PRECISIONS

    return {name: each.summary for name, each in PRECISIONS.items()}


def _targets() -> dict[str, str]:
    from simpar.chakra.write import DESCRIPTION, NAME
    from simpar.frameworks import READERS, TARGETS, load_target

    targets = {name: load_target(name) for name in TARGETS}
    rows = {
        name: f"{rows.description}; {rows.version}{'; reads back' if name in READERS else ''}"
        for name, rows in targets.items()
    }
    return {**rows, NAME: DESCRIPTION}
