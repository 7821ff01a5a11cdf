"""Folders of released weights: safetensors and a config.json, in Hugging Face's format. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simpar import files
from simpar.architectures.details import Dropout
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.dataclass import dataclass
from simpar.errors import UserError

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTERS = "adapter_config.json"
"""The file by which a folder has adapters in PEFT's format."""


@dataclass(frozen=True)
class Released:
    """Weights in a ``folder``: the ``family`` of their model, and the file of every tensor by its name there.

    ``further`` counts layers after the others that predict further tokens.
    """

    folder: Path
    family: str
    places: Mapping[str, str]
    further: int = 0

    @staticmethod
    def of(folder: Path, graph: ModelGraph) -> Released:
        """The weights of a folder, which must match the model. Raises UserError."""
        if not folder.is_dir():
            raise UserError(f"--init-from {folder}: is not a folder; allowed: one with {CONFIG} and safetensors files")
        if (folder / ADAPTERS).is_file() and not (folder / CONFIG).is_file():
            raise UserError(
                f"--init-from {folder}: has adapters of a model ({ADAPTERS}); allowed: a whole model, as --save-to "
                "with --merge leaves it"
            )
        if not (folder / CONFIG).is_file():
            raise UserError(f"--init-from {folder}: has no {CONFIG}; allowed: a folder of released weights")
        config = files.load(folder / CONFIG).data
        there = read(config, str(folder / CONFIG))
        _same_model(there, graph, folder)
        if isinstance(config, Mapping) and config.get("quantization_config"):
            raise UserError(f"{folder / CONFIG}: quantization_config: weights are quantised; allowed: 16 or 32 bits")
        further = len(there.layers) - len(_main(there))
        return Released(folder, str(config["model_type"]), _places(folder), further)

    def file_of(self, name: str) -> Path:
        """The file of a tensor. Raises UserError if there is none."""
        if name not in self.places:
            raise UserError(f"--init-from {self.folder}: no file has {name}, which the model needs")
        return self.folder / self.places[name]


def _same_model(there: ModelGraph, here: ModelGraph, folder: Path) -> None:
    """Raise UserError with the first property in which the weights' model differs."""
    for name in sorted({*there.dims, *here.dims}):
        _equal(folder, name, there.dims.get(name, 0), here.dims.get(name, 0))
    _equal(folder, "layers", _main(there), _main(here))
    _equal(folder, "tied embeddings", there.tied_embeddings, here.tied_embeddings)
    one, other = (replace(each.details, unread=(), init_std=0.0, dropout=Dropout()) for each in (there, here))
    for name in one.__dataclass_fields__:
        _equal(folder, name, getattr(one, name), getattr(other, name))


def _main(graph: ModelGraph) -> tuple[str, ...]:
    return tuple(name for name in graph.layers if name not in graph.auxiliary)


def _equal(folder: Path, name: str, there: Any, here: Any) -> None:
    if there != here:
        raise UserError(
            f"--init-from {folder}: weights of another model: {name} = {there} there, {here} here; allowed: the same"
        )


def _places(folder: Path) -> dict[str, str]:
    """The file of every tensor. Raises UserError for missing shards."""
    if (folder / INDEX).is_file():
        index = files.load(folder / INDEX).data
        places = index.get("weight_map") if isinstance(index, Mapping) else None
        if not isinstance(places, Mapping) or not places:
            raise UserError(f"{folder / INDEX}: no weight_map; allowed: the index that comes with the weights")
        result = {str(name): Path(str(file)).name for name, file in places.items()}
        for file in sorted(set(result.values())):
            if not (folder / file).is_file():
                raise UserError(f"{folder / file}: is missing, {INDEX} names it; allowed: all shards")
        return result
    if not (folder / SINGLE).is_file():
        raise UserError(f"--init-from {folder}: has neither {SINGLE} nor {INDEX}; allowed: one of them")
    return dict.fromkeys(_names(folder / SINGLE), SINGLE)


def _names(path: Path) -> list[str]:
    """Names of the tensors in one file. Raises UserError."""
    opened = opener()
    try:
        with opened(path, framework="np") as tensors:
            return list(tensors.keys())
    except Exception as error:  # noqa: BLE001 - the library raises one class of its own, which it does not export
        raise UserError(f"{path}: is not a whole safetensors file ({str(error).splitlines()[0]})") from None


def opener() -> Any:
    """``safetensors.safe_open``. Raises UserError if it is not installed."""
    try:
        from safetensors import safe_open
    except ImportError:
        raise UserError("safetensors is not installed: pip install '.[torch]'") from None
    return safe_open


def check_target(folder: Path) -> None:
    """Raise UserError unless weights can be written to a folder that does not exist yet or is empty."""
    opener()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--save-to {folder}: is already there; allowed: a new folder")
