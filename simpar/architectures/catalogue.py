"""Models by name: Hugging Face style configs that travel with simpar, or a config.json of the user's."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from simpar import files
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.units import format_count

PATH = Path(__file__).with_name("catalogue.yaml")
WIDTHS = "hidden_size|n_embd|d_model"
HEADS = "num_attention_heads|n_heads?|num_heads"
"""Field names of configs for the width of a model and for its number of attention heads."""
_FAMILY, _MODELS = "  - source:", "\n    models:\n"
"""How the text of a family, and that of its models, begins. Only the families asked for are parsed, because the whole
file takes a tenth of a second."""
_MODEL = re.compile(r"^(?=      [^\s#])", re.MULTILINE)


@lru_cache(maxsize=1)
def catalogue() -> dict[str, dict[str, Any]]:
    """Configs by name, each with the ``source`` of its facts."""
    return {name: config for text in _families() for name, config in _configs(text).items()}


@lru_cache(maxsize=1)
def _families() -> tuple[str, ...]:
    """The text of every family."""
    _, *others = files.read_text(PATH).split(f"\n{_FAMILY}")
    return tuple(f"{_FAMILY}{text}\n" for text in others)


@cache
def _configs(text: str) -> dict[str, dict[str, Any]]:
    """Configs of a family by name."""
    (family,) = files.read_yaml(text, str(PATH))
    shared = {key: value for key, value in family.items() if key != "models"}
    return {name: {**shared, **own} for name, own in family["models"].items()}


def _some_configs(wanted: Callable[[str, str], bool]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(Name, config) of the models for which ``wanted(text shared by the family, own text)`` is true."""
    for text in _families():
        shared, _, models = text.partition(_MODELS)
        own = "".join(each for each in _MODEL.split(models) if wanted(shared, each))
        if own:
            yield from _configs(f"{shared}{_MODELS}{own}").items()


def find_shipped(name: str) -> dict[str, Any] | None:
    """The config of a shipped model; None where no model has this name."""
    start = re.compile(rf"^ +{re.escape(name)}:")
    return next((config for _, config in _some_configs(lambda _, own: bool(start.match(own)))), None)


@cache
def with_sizes(hidden: int, heads: int) -> tuple[str, ...]:
    """Names of the shipped models whose configs have both numbers, in the catalogue's order."""
    words = [re.compile(rf"\b(?:{names}): {size}\b") for names, size in ((WIDTHS, hidden), (HEADS, heads))]

    def near(shared: str, own: str) -> bool:
        return all(word.search(own) or word.search(shared) for word in words)

    return tuple(name for name, config in _some_configs(near) if {hidden, heads} <= _numbers(config))


def _numbers(config: Mapping[str, Any]) -> set[int]:
    """Whole numbers of a config and of its sections."""
    own = {value for value in config.values() if type(value) is int}
    return own.union(*(_numbers(value) for value in config.values() if isinstance(value, dict)))


def config_of(model: str | Mapping[str, Any]) -> dict[str, Any]:
    """The config of a shipped name or a file, or a config itself; empty where there is none. Raises UserError."""
    config: Any = model if isinstance(model, Mapping) else find_shipped(model)
    if config is None and isinstance(model, str) and model.endswith((".json", ".yaml")):
        config = files.load(Path(model), finite=False).data
    return {key: value for key, value in (config or {}).items() if key not in ("source", "name")}


def is_file(name: str) -> bool:
    """Whether a model is the path of a config, and not a name of the catalogue."""
    return name.endswith((".json", ".yaml")) or "/" in name


def find_model(text: str) -> str | None:
    """The shipped model that others call ``org/Meta-Llama-3-8B`` or ``Llama3Config8B``; None if there is none."""
    whole = re.sub(r"[^a-z0-9]", "", text.rpartition("/")[2].lower().replace("config", ""))
    plain = re.sub(r"^meta|(hf|base|instruct|chat|it|thinking|2507|v\d+|v01|bf16)+$", "", whole) or whole
    short = re.sub(r"^nvidia|\d+ba\d+b$|base\d+k$", "", plain)  # NVIDIA-Nemotron-3-Nano-30B-A3B, Nemotron-H-8B-Base-8K
    known = {re.sub(r"[^a-z0-9]", "", name): name for name in reversed(catalogue())}
    return known.get(plain) or known.get(whole) or known.get(short)


def load_shipped(name: str) -> dict[str, Any]:
    """The config of a shipped model. Raises UserError, with the nearest name, for an unknown one."""
    if (config := find_shipped(name)) is not None:
        return config
    known = catalogue()
    return known[files.choose(name, known, "model", remedy="simpar list models prints all")]


def load_model(name: str) -> ModelGraph:
    """A model of the catalogue, or the path of a config.json. Raises UserError."""
    if is_file(name) and (Path(name).exists() or find_model(name) is None):
        return read(files.load(Path(name), finite=False).data, name)
    if find_shipped(name) is None:
        name = find_model(name) or name
    return read(load_shipped(name), name)


def list_models() -> dict[str, str]:
    """The models that are shipped: name, and number of parameters with the source of the config.

    >>> list_models()["gpt2"].split(";")[0]
    '124 M parameters'
    """
    return {
        name: f"{format_count(load_model(name).num_parameters())} parameters; {config['source']}"
        for name, config in catalogue().items()
    }
