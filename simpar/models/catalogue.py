"""Models by name: Hugging Face style configs that travel with simpar, or a config.json of the user's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from simpar import files
from simpar.models.graph import ModelGraph
from simpar.models.hf_config import read


@lru_cache(maxsize=1)
def catalogue() -> dict[str, dict[str, Any]]:
    """Configs by name, each with the ``source`` of its facts."""
    document = files.load(Path(__file__).with_name("catalogue.yaml"))
    configs: dict[str, dict[str, Any]] = {}
    for family in document.data["families"]:
        shared = {key: value for key, value in family.items() if key != "models"}
        for name, own in family["models"].items():
            configs[name] = {**shared, **own}
    return configs


def config_of(model: str | Mapping[str, Any]) -> dict[str, Any]:
    """The config behind a shipped name, a file or a config itself; empty where there is none. Raises UserError."""
    found: Any = model if isinstance(model, Mapping) else catalogue().get(model)
    if found is None and isinstance(model, str) and model.endswith((".json", ".yaml")):
        found = files.load(Path(model)).data
    return {key: value for key, value in (found or {}).items() if key not in ("source", "name")}


def load_model(name: str) -> ModelGraph:
    """A model of the catalogue, or the path of a config.json. Raises UserError."""
    if name.endswith((".json", ".yaml")) or "/" in name:
        return read(files.load(Path(name)).data, name)
    known = catalogue()
    return read(known[files.choose(name, known, "model", remedy="simpar list models prints all")], name)
