"""Models by name: Hugging Face style configs that travel with simpar, or a config.json of the user's."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from simpar import files
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from simpar.units import format_count

PATH, NAMES, KIN = (Path(__file__).with_name(name) for name in ("catalogue.yaml", "names.yaml", "kin.yaml"))
WIDTHS = "hidden_size|n_embd|d_model"
HEADS = "num_attention_heads|n_heads?|num_heads|encoder_attention_heads"
"""Field names of configs for the width of a model and for its number of attention heads."""
STATED = {"kv_heads": "num_key_value_heads", "vocab": "vocab_size"}
"""Fields of configs that, where they stand, are these sizes of the model."""
USUAL = ("llama-3.1-8b", "llama-3-70b", "qwen3-32b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b")
"""Models that are shown where no name is near the one that is asked for."""
OPEN_INSTEAD = ("gpt-oss-120b", "deepseek-v3", "kimi-k2", "qwen3-235b-a22b", "gpt3-175b")
"""Models to name where the sizes of the one that is asked for are not published."""
_SECRET = re.compile(
    r"(chat)?gpt(35|4|5)(turbo|o|omni|mini|nano|pro|\d)*|o[134](mini|pro|preview)?|claude\w*|gemini\w*|bard|palm2"
    r"|grok[345]\w*|qwen(25|3)?max|doubao\w*|yilightning"
)
_VARIANT = re.compile(
    r"(hf|base|instruct|chat|it|pt|sft|dpo|deduped|checkpoints|thinking|reasoning|preview|exp|uncased|cased|unsloth|bnb"
    r"|[48]bit|fp8|awq|gptq|int[48]|bf16|fp16|rope|\d+k|v\d+|2[3-6](0[1-9]|1[0-2])"
    r"|(0[1-9]|1[0-2])([0-2]\d|3[01]))"
)
"""What may stand at the end of a name without changing sizes: its tuning, precision, context, version, and date."""
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]*[\w-](?<!\.json)(?<!\.yaml)")
CONFIG = "config.json"
_FAMILY, _MODELS = "  - source:", "\n    models:\n"
"""How the text of a family, and that of its models, begins. Only the families asked for are parsed, because the whole
file takes a tenth of a second."""
_MODEL = re.compile(r"^(?=      [^\s#])", re.MULTILINE)
_NAME = re.compile(r"^      ([^\s#:]+):", re.MULTILINE)


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


@cache
def list_shipped() -> tuple[str, ...]:
    """Names of the shipped models, which are read without their configs."""
    return tuple(name for text in _families() for name in _NAME.findall(text.partition(_MODELS)[2]))


@lru_cache(maxsize=1024)  # as many as are shipped, several times: a plan names its model wherever it is read
def find_shipped(name: str) -> dict[str, Any] | None:
    """The config of a shipped model; None where no model has this name."""
    start = re.compile(rf"^ +{re.escape(name)}:")
    return next((config for _, config in _some_configs(lambda _, own: bool(start.match(own)))), None)


def with_sizes(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Names of the shipped models whose configs have the ``hidden`` size and the ``heads``, in the catalogue's order.

    Without those that state another size of :data:`STATED`, whose texts need no parsing.
    """
    told = tuple((field, sizes[size]) for size, field in STATED.items() if size in sizes)
    return _with_numbers(sizes["hidden"], sizes["heads"], told)


@cache
def _with_numbers(hidden: int, heads: int, told: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    words = [re.compile(rf"\b(?:{names}): {size}\b") for names, size in ((WIDTHS, hidden), (HEADS, heads))]

    def near(shared: str, own: str) -> bool:
        texts = f"{shared}\n{own}"
        return all(word.search(texts) for word in words) and all(
            f"{field}: " not in texts or re.search(rf"\b{field}: {size}\b", texts) for field, size in told
        )

    return tuple(name for name, config in _some_configs(near) if {hidden, heads} <= _numbers(config))


def _numbers(config: Mapping[str, Any]) -> set[int]:
    """Whole numbers of a config and of its sections."""
    own = {value for value in config.values() if type(value) is int}
    return own.union(*(_numbers(value) for value in config.values() if isinstance(value, dict)))


def config_of(model: str | Mapping[str, Any]) -> dict[str, Any]:
    """The config of a shipped name or a file, or a config itself; empty where there is none. Raises UserError."""
    config: Any = model if isinstance(model, Mapping) else find_shipped(model) or find_shipped(find_model(model) or "")
    if config is None and isinstance(model, str) and model.endswith((".json", ".yaml")):
        config = files.load(Path(model), finite=False).data
    return {key: value for key, value in (config or {}).items() if key not in ("source", "name")}


def is_file(name: str) -> bool:
    """Whether a model is the path of a config, and not a name of the catalogue."""
    return name.endswith((".json", ".yaml")) or "/" in name


def in_folder(name: str, beside: Path = Path()) -> str:
    """The config in a downloaded folder that is named, relative to ``beside``; any other name as it is.

    A shipped name means that model, whatever folders there are. Raises UserError for a folder without a config.
    """
    folder = beside / name
    if not os.path.isdir(folder) or not name or find_shipped(name) is not None:  # names may be longer than paths
        return name
    if (folder / CONFIG).is_file():
        return str(Path(name) / CONFIG)
    if find_model(name) is not None:
        return name
    raise UserError(f"{folder}: is a folder without {CONFIG}; a model is a shipped name, a {CONFIG} or its folder")


_IN_CACHE = re.compile(r"(?:^|/)models--[^/]+?--([^/]+)/snapshots/[^/]+/?$")
"""A folder of the hub's cache, which has a model's name in place of a folder above."""


def find_model(text: str) -> str | None:
    """The shipped model that others call ``org/Meta-Llama-3-8B`` or ``Llama3Config8B``; None if there is none."""
    told = cached[1] if (cached := _IN_CACHE.search(text)) else text.rstrip("/").rpartition("/")[2]
    whole = _plain(told.lower().replace("config", ""))
    shipped = {_plain(name): name for name in reversed(list_shipped())}
    for asked in (whole, *_shorter(whole.removeprefix("meta"))):
        # first what people mean: TinyLlama is not the toy of that name
        if (other := next((name for name, said in _names().items() if asked in said), None)) is not None:
            return other
        if asked in shipped:
            return shipped[asked]
    return None


def _shorter(name: str) -> Iterator[str]:
    """A name, and what is left of it without words at its end that say nothing of sizes, the longest first."""
    left = [name]
    while left:
        name = max(left, key=len)
        left.remove(name)
        if name:
            yield name
        left += [name[:cut] for cut in range(1, len(name)) if _VARIANT.fullmatch(name, cut)]


@cache
def _names() -> dict[str, list[str]]:
    """What people call models besides, by the model."""
    names: dict[str, list[str]] = files.load(NAMES).data
    return names


def _plain(name: str) -> str:
    """The letters and digits of a name."""
    return re.sub(r"[^a-z0-9]", "", name)


def _kin(plain: str) -> tuple[Sequence[str], str]:
    """(The nearest shipped models, what it is) of a model that is known by its plain name and not shipped."""
    if _SECRET.fullmatch(plain):
        return OPEN_INSTEAD, "its sizes are not published"
    families: dict[str, Any] = files.load(KIN).data
    near = [each for family, each in families.items() if re.fullmatch(rf"{family}(\d+b?)?", plain)]
    return (near[0]["nearest"], near[0]["what"]) if near else ((), "")


def load_shipped(name: str) -> dict[str, Any]:
    """The config of a shipped model. Raises UserError, with the nearest name, for an unknown one."""
    if (config := find_shipped(name)) is not None:
        return config
    known = catalogue()
    kin, absent = _kin(_plain(name.rpartition("/")[2].lower()))
    others = files.OtherNames(kin=kin, is_absent=absent, usual=USUAL, remedy="simpar list models prints all")
    return known[files.choose(name, known, "model", others)]


def load_model(name: str) -> ModelGraph:
    """A model of the catalogue, or the path of a config.json. Raises UserError."""
    return read(*find_config(name)) if find_shipped(name) is None else _graph_of(name)


@lru_cache(maxsize=256)  # whoever looks for a model by its sizes reads one candidate several times
def _graph_of(name: str) -> ModelGraph:
    """The graph of a shipped model: nobody changes one."""
    return read(load_shipped(name), name)


def find_config(name: str) -> tuple[Any, str]:
    """(Config, name) of a model of the catalogue, of a file or of the hub's local cache. Raises UserError."""
    name = in_folder(name)
    if is_file(name) and (os.path.isfile(name) or find_model(name) is None):
        path = name if os.path.exists(name) else find_cached(name)
        if path is None and _HUB_ID.fullmatch(name):
            try:
                load_shipped(name.rpartition("/")[2].lower())
            except UserError as error:
                raise UserError(f"{name}: no such file, nor an id in the cache of the hub; {error}") from None
        return files.load(Path(path or name), finite=False).data, name
    if find_shipped(name) is None:
        name = find_model(name) or name
    return load_shipped(name), name


def find_cached(name: str) -> str | None:
    """The config of a model in the hub's cache (huggingface_hub, ``constants.py``); None if it is not there."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    home = Path(os.environ.get("HF_HOME") or home)
    folder = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    main = folder / "refs" / "main"
    named = [folder / "snapshots" / main.read_text().strip() / "config.json"] if main.is_file() else []
    configs = [*named, *sorted(folder.glob("snapshots/*/config.json"))]
    return next((str(path) for path in configs if path.is_file()), None)


def list_models() -> dict[str, str]:
    """The models that are shipped: name, and parameters (and those that a token meets), family, source of the sizes.

    >>> models = list_models()
    >>> models["gpt2"].split(",")[0], models["mixtral-8x7b"].split(";")[0]
    ('124 M parameters; gpt2; Radford et al. 2019', '46.7 B parameters, 12.9 B active')
    """
    return {
        name: f"{_count(read(config, name))}; {config['model_type']}; {config['source']}"
        for name, config in catalogue().items()
    }


def _count(graph: ModelGraph) -> str:
    active = f", {format_count(graph.num_active_parameters())} active" if graph.is_mixture else ""
    return f"{format_count(graph.num_parameters())} parameters{active}"
