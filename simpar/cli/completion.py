"""Shell completion of names: models, scenarios, hardware and everything else that is shipped. Loaded on Tab."""

from collections.abc import Callable
from pathlib import Path

KIND_OF_FLAG = {
    "--model": "models",
    "--hardware": "hardware",
    "--schedule": "schedules",
    "--schedules": "schedules",
    "--optimizer": "optimizers",
    "--precision": "precisions",
    "--stack": "stacks",
    "--reliability": "reliability",
    "--like": "hardware",
    "--to": "targets",
    "--from": "readers",
}


def names_of(kind: str) -> Callable[[str], list[str]]:
    """A completer for names of a kind, and files."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in (*_names(kind), *_files(incomplete)) if name.startswith(incomplete)]

    return complete


def _names(kind: str) -> list[str]:
    """Names only, without reading descriptions."""
    from simpar.files import bundled

    if kind == "models":
        from simpar.architectures.catalogue import catalogue

        return list(catalogue())
    if kind == "schedules":
        from simpar.plan.schedules import SCHEDULES

        return list(SCHEDULES)
    if kind == "optimizers":
        from simpar.plan.optimizers import OPTIMIZERS

        return list(OPTIMIZERS)
    if kind == "precisions":
        from simpar.precisions import PRECISIONS

        return list(PRECISIONS)
    if kind == "targets":
        from simpar.frameworks import TARGETS

        return list(TARGETS)
    if kind == "readers":
        from simpar.frameworks import READERS

        return list(READERS)
    return list(bundled({"hardware": "clusters"}.get(kind, kind)))


def _files(incomplete: str) -> list[str]:
    """Files and folders that begin with what is typed."""
    folder = Path(incomplete).parent if not incomplete.endswith("/") else Path(incomplete)
    if not folder.is_dir():
        return []
    shown = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    fitting = [path for path in shown if path.is_dir() or path.suffix in (".yaml", ".yml", ".json")]
    return [f"{path}/" if path.is_dir() else str(path) for path in fitting]
