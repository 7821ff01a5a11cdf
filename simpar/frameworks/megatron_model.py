"""The model that Megatron-LM's arguments state: a shipped one, one with another vocabulary, or one of their own."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from pathlib import PurePath
from typing import Any

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read as read_config
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.architecture import architecture
from simpar.frameworks.match import DECODER, find_released, is_telling, models_with, sizes_of, with_rope
from simpar.frameworks.megatron_arguments import SIZES, Arguments
from simpar.frameworks.megatron_config import (
    CHOSEN,
    GPT2_VOCABULARY,
    PARTLY,
    config_stated,
    dense_layers,
    is_gated,
    is_rotary,
    padded,
    usual_ffn,
    vocabulary_of,
)
from simpar.frameworks.megatron_layers import SKIPPED, WINDOW, pattern_asked, windows_asked
from simpar.frameworks.megatron_layers_said import (
    NEAR,
    further_layers,
    predictions_changed,
    told,
    unlike,
    with_layers_said,
)
from simpar.frameworks.words import Assumed
from simpar.plain import plain_name

UNSTATED = (
    "--experimental-attention-variant", "--enable-mhc-connections", "--linear-attention-freq",
    "--heterogeneous-layers-config-path", "--heterogeneous-layers-config-encoded-json", "--attention-output-gate",
)  # fmt: skip
"""Arguments of layers that no config says here."""
OTHER_EXPERTS = re.compile(r"--(?:moe-)?(?:num|n)-(?:\w+-)?experts?")
"""The number of experts by other names, as MegaBlocks has it: the layers are no dense ones."""
AS_SAID = "as the arguments state it"
"""What stands for a model that is built from arguments alone."""
WHOLE, SCRIPT, ENDS = {
    "--num-layers", "--hidden-size", "--num-attention-heads", "--max-position-embeddings", "--seq-length",
    "--micro-batch-size",
}, "pretrain_gpt.py", ("--train-iters", "--train-samples")  # fmt: skip
"""What Megatron-LM does not start without: a text that has it all is a launch, not a part of one."""


OTHER_PREDICTIONS = (
    "Layers that predict further tokens are those of --mtp-num-layers (none by default), unlike the released model's."
)
TABLE = ("n_positions", "max_position_embeddings")
"""What configs call the length of a table of positions."""
PATCH_TOKENIZER = "--patch-tokenizer-type"
OWN_LAYERS = "--extra-vocab-size"
"""Pai-Megatron-Patch's models have their biases without a switch."""


def kind_asked(given: Arguments) -> str:
    """The kind of model (:func:`~simpar.frameworks.match.kind_of`) that arguments ask for; "other" for unknown ones."""
    pattern = pattern_asked(given)
    if pattern is not None:
        return pattern
    if any(flag in given.values for flag in UNSTATED) or re.search("pretrain_bert|mamba", given.script):
        return "other"
    return "latent" if given.has("--multi-latent-attention") else DECODER


def sizes_asked(given: Arguments) -> dict[str, int]:
    """Sizes of the model, including Megatron-LM's defaults. Raises UserError for experts by a name of another fork."""
    if "--num-experts" not in given.values:
        for flag, said in given.values.items():
            if OTHER_EXPERTS.fullmatch(flag) and said and said[0].isdecimal() and int(said[0]) > 1:
                name = given.name(flag)
                raise UserError(f"{given.source}: {name} = {said[0]}: not Megatron-LM's; allowed: --num-experts")
    sizes = {name: given.number(flag) for flag, name in SIZES.items()}
    if not given.has("--group-query-attention"):
        is_one = given.text("--attention-head-type") == "multiquery"  # BigCode's
        sizes["kv_heads"] = 1 if is_one else sizes["heads"]
    if sizes["num_experts"] is None:
        sizes |= {"num_experts": 0, "expert_ffn": 0}
    else:
        if sizes["expert_ffn"] is None:
            sizes["expert_ffn"] = sizes["ffn"]
        if dense_layers("".join(given.values.get("--moe-layer-freq", ["1"])), sizes["layers"] or 0) == 0:
            sizes["ffn"] = None  # no layer is dense
    return {name: size for name, size in sizes.items() if size is not None}


@dataclass(frozen=True)
class FoundModel:
    """The shipped models that arguments state, the config of one that is not shipped, and notes.

    ``assumed`` is the other reading of arguments that leave out what decides of a known model's layers.
    """

    models: list[str]
    config: Mapping[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    assumed: tuple[Assumed, ...] = ()


def find_models(given: Arguments, sizes: Mapping[str, int]) -> FoundModel:
    """What arguments state of a model."""
    kind = kind_asked(given)
    sizes = _with_width(given, sizes)
    models = _narrowed(given, models_with(sizes, kind))
    if models or not is_telling(sizes):
        if not is_telling(sizes):
            return FoundModel(models)
        released, other, said = _with_vocabulary(given, sizes, models)
        changed, notes = _changed(given, models[0], other or config_of(models[0]), sizes)
        if changed:
            released, other, said = [], changed, [*said, *notes]
        return _with_unsaid(given, sizes, models[0], FoundModel(released, other, said))
    others = {key: value for key, value in sizes.items() if key != "vocab"}
    same = _narrowed(given, models_with(others, kind)) if "vocab" in sizes else []
    if same:
        words = padded(given, sizes["vocab"])
        note = f"The model is {same[0]} with the vocabulary that the text gives, {words} words with padding."
        own = {**config_of(same[0]), "vocab_size": words}
        adapted, notes = _changed(given, same[0], own, sizes)
        return _with_unsaid(given, sizes, same[0], FoundModel([], adapted or own, [note, *notes]))
    if kind == "other":
        return FoundModel([], None, _strange(given, UNSTATED))
    vocabulary = vocabulary_of(given, sizes)
    if vocabulary is None:
        tokenizer = given.path("--tokenizer-model") or given.path("--tokenizer-type")
        ask = f"The vocabulary of {tokenizer} is not known: give --vocab-size N in the text, or --model."
        return FoundModel([], None, [ask])
    config = config_stated(given, {**sizes, "vocab": vocabulary})
    if config is None:
        return FoundModel([], None, _strange(given, PARTLY) or _ungated(given, sizes))
    notes = [f"No shipped model has these sizes; it is built from the arguments (model_type {config['model_type']})."]
    width = sizes.get("ffn") or sizes.get("expert_ffn")
    if width and "--ffn-hidden-size" not in given.values and "--moe-ffn-hidden-size" not in given.values:
        notes.append(f"An MLP's width is {width}, as Megatron-LM takes where no --ffn-hidden-size says one.")
    if "vocab" not in sizes and "--padded-vocab-size" not in given.values:
        named = given.text("--tokenizer-model") if vocabulary != GPT2_VOCABULARY else "GPT-2's tokenizer"
        notes.append(f"The vocabulary is not said: {config['vocab_size']} words, as {named} has, padded.")
    return FoundModel([], config, notes)


def _strange(given: Arguments, flags: Iterable[str]) -> list[str]:
    """A note on the arguments whose layers no config is built of; none if none of these is there."""
    told = [f"{given.name(flag)} {' '.join(given.values[flag])}".strip() for flag in flags if flag in given.values]
    if not told:
        return []
    return [f"No shipped model has these sizes, and no config is built with {', '.join(told)}: give --model."]


def _ungated(given: Arguments, sizes: Mapping[str, int]) -> list[str]:
    """A note on experts without a gate."""
    if not sizes.get("num_experts") or is_gated(given):
        return []
    return ["No shipped model has these sizes, and no config is built of experts without a gate (--swiglu)."]


def _with_width(given: Arguments, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Sizes with the width that Megatron-LM gives MLPs where no argument says one."""
    if "--ffn-hidden-size" in given.values or "hidden" not in sizes:
        return sizes
    width = usual_ffn(sizes["hidden"], gated=is_gated(given))
    if sizes["num_experts"] and "expert_ffn" not in sizes:
        return {**sizes, "expert_ffn": width}
    return sizes if sizes["num_experts"] else {**sizes, "ffn": width}


def _with_unsaid(given: Arguments, sizes: Mapping[str, int], model: str, taken: FoundModel) -> FoundModel:
    """A known model, or what arguments are without those that decide of its layers, where Megatron-LM trains that.

    Of a whole launch its own defaults are what runs; in other texts they are told as the other reading.
    """
    if not (unsaid := _unsaid(given, model)):
        return taken
    absent = f"without {', '.join(unsaid)}, which the text does not have, Megatron-LM trains others"
    own = dict(taken.config or config_of(model))
    vocabulary = read_config(taken.config).dims["vocab"] if taken.config else load_model(model).dims["vocab"]
    built = config_stated(given, {"vocab": vocabulary, **sizes})
    if built is None:
        note = f"The sizes are those of {model}, and so are its layers here; {absent}."
        return replace(taken, notes=[*taken.notes, note])
    if set(given.values) >= WHOLE and PurePath(given.script).name == SCRIPT and {*ENDS} & set(given.values):
        other = Assumed("model", AS_SAID, f"the sizes are those of {model}; {absent}", (model,), {model: own})
        return FoundModel([], built, assumed=(other,))
    why = f"the sizes are its; {absent}"
    return replace(taken, assumed=(Assumed("model", model, why, (AS_SAID,), {AS_SAID: built}),))


def _unsaid(given: Arguments, model: str) -> list[str]:
    """The arguments that decide of a model's layers and are not in the text."""
    graph = load_model(model)
    style, head = architecture(graph), graph.dims.get("head_dim")
    window = _narrowest(given, graph)
    usual = graph.dims["hidden"] // graph.dims["heads"]
    absent = {
        "--swiglu": style.gated and not is_gated(given),
        "--untie-embeddings-and-output-weights": not style.tied
        and "--untie-embeddings-and-output-weights" not in given.values,
        f"--kv-channels {head}": head not in (None, usual)
        and not {"--kv-channels", "--multi-latent-attention"} & set(given.values),
        f"--moe-router-topk {graph.dims.get('topk')}": graph.dims.get("topk", CHOSEN) != CHOSEN
        and "--moe-router-topk" not in given.values,
        f"--moe-shared-expert-intermediate-size {graph.dims.get('shared_ffn')}": graph.dims.get("shared_ffn")
        and "--moe-shared-expert-intermediate-size" not in given.values,
        f"{WINDOW} {window and window - 1},0": window is not None,
        "--moe-layer-freq": not all(style.experts) and not graph.has_state and "--moe-layer-freq" not in given.values,
    }
    return [flag for flag, is_absent in absent.items() if is_absent]


def _with_vocabulary(
    given: Arguments, sizes: Mapping[str, int], models: list[str]
) -> tuple[list[str], Mapping[str, Any] | None, list[str]]:
    """The first model of those with its own vocabulary, or that of the tokenizer that the text names; with a note."""
    if "vocab" in sizes or not models:
        return models, None, []
    own, told = load_model(models[0]).dims["vocab"], vocabulary_of(given, sizes)
    if not given.path("--tokenizer-type") and not given.text("--padded-vocab-size"):
        told = None  # GPT-2's by default
    if told is not None and abs(told - own) <= NEAR:
        return models, None, []
    if told is None:
        note = f"The vocabulary is not said: {own} words, as {models[0]} has (--vocab-size in the text says another)."
        return models, None, [note]
    words = padded(given, told)
    note = f"The model is {models[0]} with the vocabulary of the text's tokenizer, {words} words with padding."
    return [], {**config_of(models[0]), "vocab_size": words}, [note]


def _changed(
    given: Arguments, model: str, config: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[Mapping[str, Any], list[str]]:
    """A shipped model's config with what the text says beside its sizes, {} if that changes nothing, with notes.

    No layers that predict further tokens where its family has none (:func:`lacks_predictions`). A config is built of
    the arguments where the model's family cannot have layers as they say.
    """
    predictions, positions = predictions_changed(model, further_layers(given)), _with_positions(given, model)
    notes = [OTHER_PREDICTIONS] if predictions else []
    notes += [f"{model} with a table of {rows:,} positions, as the text has." for rows in positions.values()]
    changed = {**config, **predictions, **positions} if predictions or positions else {}
    if not (other := unlike(given, load_model(model))):
        return changed, notes
    result = with_layers_said(given, changed or config)
    left = unlike(given, read_config(result))
    built = config_stated(given, {**sizes, "vocab": load_model(model).dims["vocab"], **sizes}) if left else None
    if built and len(unlike(given, read_config(built))) < len(left):
        return built, [f"{model} has {told(given, other)}: the model is built from the arguments.", *notes]
    kept = {flag: own for flag, own in other.items() if flag not in left}
    return (result, [f"{model} has {told(given, kept)}.", *notes]) if kept else (changed, notes)


def _with_positions(given: Arguments, model: str) -> dict[str, int]:
    """What changes in a shipped model's config, if its table of positions ends before the text's sequences."""
    if _reaches(given, load_model(model)):
        return {}
    length = given.number("--max-position-embeddings") or given.number("--seq-length")
    return {key: length for key in TABLE if length and key in config_of(model)}


def _reaches(given: Arguments, graph: ModelGraph) -> bool:
    """Whether a model's table of positions, if it has one, goes on to the end of the text's sequences."""
    return graph.longest is None or (given.number("--seq-length") or 0) <= graph.longest


def _narrowest(given: Arguments, graph: ModelGraph) -> int | None:
    """The narrowest window of a model where the text says none and its sequences are longer; None without one."""
    windows = [size for size in architecture(graph).windows if size is not None]
    is_open = WINDOW not in given.values and min(windows, default=0) < (given.number("--seq-length") or 0)
    return min(windows) if windows and is_open else None


def _narrowed(given: Arguments, models: list[str]) -> list[str]:
    """Those with the text's tokenizer, biases and windows, and of several those with its rotary base."""
    models = [name for name in models if not _contradicts(given, load_model(name))]
    tokenizer = "".join(given.values.get("--tokenizer-model", [])[:1])
    named = (
        find_released(tokenizer, given.source) if models and tokenizer and "--vocab-size" not in given.values else None
    )
    if named:
        words = load_model(named).dims["vocab"]
        models = [name for name in models if load_model(name).dims["vocab"] == words]
        models = [named] if named in models else models
    if given.has("--add-qkv-bias"):
        models = [name for name in models if "qkv" in architecture(load_model(name)).biases]
    elif given.has("--disable-bias-linear") and OWN_LAYERS not in given.values:
        models = [name for name in models if "qkv" not in architecture(load_model(name)).biases]
    models = _of_tokenizer(given, models)
    base = given.text("--rotary-base") if len(models) > 1 else None
    if base is not None and re.fullmatch(r"[\d.]+(e\d+)?", base):
        models = with_rope(models, float(base), scaled=given.has("--use-rope-scaling"))
    if len(models) > 1:
        ways = {name: _unlike(given, load_model(name)) for name in models}
        models = [name for name in models if ways[name] == min(ways.values())]
    reaching = [name for name in models if _reaches(given, load_model(name))]
    models = reaching if reaching or "--vocab-size" in given.values else models  # without it, none can be built
    if not models or WINDOW not in given.values:
        return models
    asked = {name: windows_asked(given, sizes_of(load_model(name))["layers"]) for name in models}
    same = [name for name in models if asked[name] in ((), architecture(load_model(name)).windows)]
    if same:
        given.used |= {WINDOW, SKIPPED}
    return same


def _of_tokenizer(given: Arguments, models: list[str]) -> list[str]:
    """Those that are called like Pai's tokenizer (DeepSeekV2Tokenizer); all where none is."""
    family = "".join(given.values.get(PATCH_TOKENIZER, [])[:1]).removesuffix("Tokenizer")
    like = [name for name in models if family and plain_name(name).startswith(plain_name(family))]
    return like or models


def _contradicts(given: Arguments, graph: ModelGraph) -> bool:
    """Whether a decoder's layers are not those that arguments name: gates, rotations, biases, norms, tables."""
    if "qk_dim" in graph.dims or graph.has_state:
        return False
    style, kind = architecture(graph), given.text("--position-embedding-type")
    rms = (given.text("--normalization") or "").lower() == "rmsnorm"
    return (
        style.residual == "parallel"  # which no argument says
        or (is_gated(given) and not style.gated)
        or (is_rotary(given) and style.positions != "rope")
        or (kind == "alibi" and not graph.details.positions.alibi)
        or (kind is None and graph.details.positions.alibi and "--max-position-embeddings" in given.values)
        or (rms and style.norm != "rms")
    )


def _unlike(given: Arguments, graph: ModelGraph) -> int:
    """In how many ways a model's layers are not those that arguments, and Megatron-LM's defaults, ask for."""
    style, kind = architecture(graph), given.text("--position-embedding-type")
    gated = is_gated(given)
    rotary = is_rotary(given)
    rms = (given.text("--normalization") or "LayerNorm").lower() == "rmsnorm"
    width = given.number("--ffn-hidden-size") or usual_ffn(graph.dims["hidden"], gated=gated)
    return (
        (graph.details.positions.alibi != (kind == "alibi"))
        + ((style.positions == "rope") != rotary)
        + (style.gated != gated)
        + ((style.norm == "rms") != rms)
        + (style.tied != ("--untie-embeddings-and-output-weights" not in given.values))
        + (not graph.is_mixture and graph.dims.get("ffn") != width)
        + (_narrowest(given, graph) is not None)
        + len(unlike(given, graph))
    )
