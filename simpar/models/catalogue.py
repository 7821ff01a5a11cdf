"""Models by name: Hugging Face style configs that travel with simpar, or a config.json of the user's."""

from __future__ import annotations

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


def load_model(name: str) -> ModelGraph:
    """A model of the catalogue, or the path of a config.json. Raises UserError."""
    if name.endswith((".json", ".yaml")) or "/" in name:
        return read(files.load(Path(name)).data, name)
    known = catalogue()
    return read(known[files.choose(name, known, "model", remedy="simpar list models prints all")], name)
