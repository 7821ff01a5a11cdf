"""What Megatron-LM's arguments say of a model's layers beside the sizes by which models are recognised.

Two models of equal sizes may differ in the experts of a token, in the width of heads, or in shared experts. What a text
says of these is held against the model that was found, and decides.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks.architecture import architecture
from simpar.frameworks.match import sizes_of
from simpar.frameworks.megatron_arguments import SIZES, Arguments

LIMIT = "--moe-router-group-topk"
OF_EXPERTS = {
    "--moe-router-topk": ("topk", ("num_experts_per_tok", "moe_top_k", "moe_topk")),
    "--moe-router-num-groups": ("expert_groups", ("n_group",)),
    LIMIT: ("chosen_groups", ("topk_group",)),
    "--moe-latent-size": ("expert_hidden", ("moe_latent_size",)),
}
OF_LATENTS = {
    "--q-lora-rank": ("q_rank", ("q_lora_rank",)),
    "--kv-lora-rank": ("kv_rank", ("kv_lora_rank",)),
    "--qk-head-dim": ("plain_dim", ("qk_nope_head_dim",)),
    "--qk-pos-emb-head-dim": ("rotary_dim", ("qk_rope_head_dim",)),
    "--v-head-dim": ("value_dim", ("v_head_dim",)),
}
OF_HEADS = {"--kv-channels": ("head_dim", ("head_dim",))}
"""Sizes of experts, of latent attention and of other heads: an argument's name in a graph, and in configs."""
OF_SHARED, FREQUENCY, NORMED = "--moe-shared-expert-intermediate-size", "--moe-layer-freq", "--qk-layernorm"
UNTIED = "--untie-embeddings-and-output-weights"
PREDICTIONS, FURTHER_LAYERS = "num_nextn_predict_layers", "--mtp-num-layers"
SAID = (*OF_EXPERTS, *OF_LATENTS, *OF_HEADS, OF_SHARED, FREQUENCY, NORMED, UNTIED)
"""All arguments that are held against the model."""
SIZE_FIELDS = {
    "layers": ("num_hidden_layers", "n_layer"), "hidden": ("hidden_size", "n_embd"), "ffn": ("intermediate_size",),
    "heads": ("num_attention_heads", "n_head"), "kv_heads": ("num_key_value_heads",), "vocab": ("vocab_size",),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_ffn": ("moe_intermediate_size", "intermediate_size"),
}  # fmt: skip
"""What configs call the sizes by which models are recognised."""
NEAR = 4096
"""Words by which vocabularies differ that are one with other padding or a few special tokens."""
MOST = 10_000
"""Layers that a pattern may have."""


def unlike(given: Arguments, graph: ModelGraph) -> dict[str, str]:
    """The arguments of layers that a model does not have as they say, each with what the model has."""
    result = {flag: str(graph.dims.get(name, 0)) for flag, name, _, size in _sizes(given, graph)
              if graph.dims.get(name, 1 if flag in OF_EXPERTS else 0) != size}  # fmt: skip
    if graph.is_mixture:
        own = graph.dims.get("shared_ffn", 0)
        if OF_SHARED in given.values and _number(given, OF_SHARED) != own:
            result[OF_SHARED] = str(own)
        experts = architecture(graph).experts[: sizes_of(graph)["layers"]]
        if FREQUENCY in given.values and not graph.has_state and _frequency(given, len(experts)) != experts:
            result[FREQUENCY] = f"{experts.count(False)} dense layers"
    if UNTIED in given.values and graph.tied_embeddings:
        result[UNTIED] = "a table that the output shares"
    if NORMED in given.values and "qk_dim" not in graph.dims and not graph.has_state:
        style = architecture(graph)
        if not style.qk_norm and style.norm == "rms":
            result[NORMED] = "no such norms"
    return result


def told(given: Arguments, other: Mapping[str, str]) -> str:
    """What a model has and what the text says instead, for a note."""
    return ", ".join(f"{own} where the text says {given.name(flag)} {' '.join(given.values[flag])}".rstrip()
                     for flag, own in other.items())  # fmt: skip


def mark_told(given: Arguments, models: Sequence[str], config: Mapping[str, Any] | None) -> None:
    """Count as used what the model has as the text says, and what no known model can be held against."""
    graph = read_config(config) if config else load_model(models[0]) if models else None
    told = SAID if graph is None else set(SAID) - set(unlike(given, graph))
    given.used -= {*SAID}
    given.used |= {*told} & set(given.values)
    if lacks_predictions(given, models, config):
        given.used.discard(FURTHER_LAYERS)  # a word that decides


def with_layers_said(given: Arguments, config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's config with layers as the text says, as far as its family has them so."""
    result = dict(config)
    graph = read_config(result)
    for flag in unlike(given, graph):
        for field in _fields(given, graph, flag):
            try:
                left = unlike(given, read_config({**result, **field}))
            except UserError:
                continue
            if flag not in left:
                result |= field
                break
    return result


def predictions_changed(model: str, asked: int) -> dict[str, int]:
    """What changes in a shipped model's config with so many layers that predict further tokens; {} if it cannot."""
    graph, config = load_model(model), config_of(model)
    own = predictions_in(graph)
    if asked == own or graph.has_state or (config.get(PREDICTIONS) or 0) != own:
        return {}
    changed = {PREDICTIONS: asked}
    return changed if predictions_in(read_config({**config, **changed})) == asked else {}


def further_layers(given: Arguments) -> int:
    """Layers that predict further tokens, by their argument, which may be 0."""
    return 0 if given.text(FURTHER_LAYERS) == "0" else given.number(FURTHER_LAYERS) or 0


def predictions_in(graph: ModelGraph) -> int:
    """Layers of a model that predict further tokens."""
    return sum(kind in graph.auxiliary for kind in graph.layers)


def lacks_predictions(given: Arguments, models: Sequence[str], config: Mapping[str, Any] | None) -> bool:
    """Whether a text asks for layers that predict further tokens of a model, known here, that gets none."""
    if not further_layers(given) or not (models or config):
        return False
    return not predictions_in(read_config(config) if config else load_model(models[0]))


def with_all_said(given: Arguments, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The config of a model that is given by name with sizes and layers as the text says, as far as it can have them.

    And what the model has otherwise, by the argument. Sizes that say what it has change nothing.
    """
    result, other = dict(config), dict[str, str]()
    for flag, name in SIZES.items():
        said, own = _number(given, flag), sizes_of(read_config(result))[name]
        if said is None or said == own or not own or (name == "vocab" and abs(said - own) <= NEAR):
            continue  # a model without experts, or without dense layers, has none of their sizes
        other[flag] = f"{own} of {name}"
        for field in SIZE_FIELDS[name]:
            if field in result and _has({**result, field: said}, name, said):
                result[field] = said
                break
    other |= unlike(given, read_config(result))
    return with_layers_said(given, result), other


def sizes_left(given: Arguments, graph: ModelGraph) -> set[str]:
    """The arguments of sizes and layers that a model does not have as the text says."""
    own = sizes_of(graph)
    sizes = {flag for flag, name in SIZES.items() if (said := _number(given, flag)) is not None and own[name]
             and said != own[name] and (name != "vocab" or abs(said - own[name]) > NEAR)}  # fmt: skip
    return sizes | {*unlike(given, graph)}


def _has(config: Mapping[str, Any], name: str, size: int) -> bool:
    """Whether a config can be read, and has a size."""
    try:
        return sizes_of(read_config(config))[name] == size
    except UserError:
        return False


def _sizes(given: Arguments, graph: ModelGraph) -> Iterator[tuple[str, str, Sequence[str], int | None]]:
    """Flag, name in graphs, names in configs and the said size (None: no number) of what a graph of its kind has."""
    latent = "qk_dim" in graph.dims
    groups = {**(OF_EXPERTS if graph.is_mixture else {}), **(OF_LATENTS if latent else OF_HEADS)}
    for flag, (name, fields) in groups.items():
        if "group" in flag and LIMIT not in given.values:  # without it, groups limit nothing
            continue
        if flag in given.values:
            yield flag, name, fields, _number(given, flag)


def _fields(given: Arguments, graph: ModelGraph, flag: str) -> Iterator[dict[str, Any]]:
    """Changes of a config, one of which may give its layers what an argument says."""
    for each, _, fields, said in _sizes(given, graph):
        if each == flag and said is not None:
            yield from ({field: said} for field in fields)
    if flag == UNTIED:
        yield {"tie_word_embeddings": False}
    if flag == OF_SHARED:
        said, width = _number(given, OF_SHARED), graph.dims["expert_ffn"]
        yield {"shared_expert_intermediate_size": said}
        if said is not None and said % width == 0:
            yield {"n_shared_experts": said // width or None}
    if flag == FREQUENCY:
        flags = _frequency(given, sizes_of(graph)["layers"])
        dense = (*flags, True).index(True)
        yield {"first_k_dense_replace": dense}
        yield {"mlp_only_layers": [at for at, has_experts in enumerate(flags) if not has_experts]}


def _number(given: Arguments, flag: str) -> int | None:
    """The value of an option that is a number; None where it is absent or a variable."""
    text = next(iter(given.values.get(flag, [])), "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _frequency(given: Arguments, layers: int) -> tuple[bool, ...]:
    """Which layers have experts; () where the pattern is not one of so many layers."""
    return expert_layers("".join(given.values.get(FREQUENCY, [])), layers) or ()


def expert_layers(text: str, layers: int) -> tuple[bool, ...] | None:
    """Which of the layers have experts, by ``--moe-layer-freq``: every N-th, or lists of 0 and 1 joined and repeated.

    None if it is no such pattern, or one of another number of layers.
    """
    if text.isascii() and text.isdecimal() and 0 < int(text) <= MOST:
        return tuple(at % int(text) == 0 for at in range(layers))
    try:
        flags = _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    is_one = isinstance(flags, list) and len(flags) == layers and set(flags) <= {0, 1}
    return tuple(map(bool, flags)) if is_one and isinstance(flags, list) else None


def _evaluated(node: ast.expr) -> list[int] | int:
    """The value of a list of numbers, of lists that are joined, or of one that is repeated. Raises ValueError."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.List(elts=elements):
            return [
                value for each in map(_evaluated, elements) for value in ([each] if isinstance(each, int) else each)
            ]
        case ast.BinOp(left=left, op=operation, right=right):
            one, other = _evaluated(left), _evaluated(right)
            if isinstance(operation, ast.Add) and isinstance(one, list) and isinstance(other, list):
                return [*one, *other]
            if isinstance(operation, ast.Mult) and isinstance(one, list) != isinstance(other, list):
                times, values = (other, one) if isinstance(one, list) else (one, other)
                if isinstance(times, int) and isinstance(values, list) and times * len(values) <= MOST:
                    return values * times
    raise ValueError
