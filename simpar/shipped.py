"""What simpar ships, by the names that scenarios and commands take."""

LISTS = {
    "models": "for --model",
    "hardware": "for --hardware",
    "scenarios": "for simulate, search, compare, run and export",
    "schedules": "for --schedule and --schedules",
    "optimizers": "for --optimizer",
    "precisions": "for --precision",
    "stacks": "for --stack",
    "reliability": "for --reliability",
    "targets": "for export --to",
    "readers": "for check --from and import --from",
}
"""Kinds of names, and what takes them."""


def names_of(kind: str) -> dict[str, str]:
    """Name and one-line description of everything of a kind. Raises UserError for another kind.

    >>> "zb-h1" in names_of("schedules")
    True
    """
    from simpar.architectures.catalogue import list_models
    from simpar.files import choose
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
        "readers": _readers,
    }[choose(kind, LISTS, "list")]()


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
    from simpar.frameworks import READ_AS, READERS, TARGETS, load_target
    from simpar.posttraining.exports import TARGETS as OF_POST_TRAINING

    targets = {name: load_target(name) for name in TARGETS}
    rows = {
        name: f"{rows.description}; {rows.version}{'; reads back' if READ_AS.get(name, name) in READERS else ''}"
        for name, rows in targets.items()
    }
    whole = "scenarios with a section post_training: the whole step of reinforcement learning"
    return {**rows, NAME: DESCRIPTION, **dict.fromkeys(OF_POST_TRAINING, whole)}


def _readers() -> dict[str, str]:
    from simpar.frameworks import READERS, load_reader

    return {name: load_reader(name).description for name in READERS}
