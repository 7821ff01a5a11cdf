"""The model of a row: released, or a decoder that is described by its sizes."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from simpar.architectures.catalogue import catalogue, config_of, is_file, load_shipped
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read
from simpar.architectures.reading import GPT_STYLE, LLAMA_STYLE
from simpar.architectures.transformer import Shape, Style, build
from simpar.errors import UserError
from simpar.files import suggest
from simpar.validation.cells import Row, Unmodelled, number, plain, read_count, read_word, text, values_with_prefix

GPT_VOCABULARY, LLAMA_VOCABULARY = 51200, 32000
"""Sizes of vocabularies where a row has none: GPT-2's, padded as Megatron-LM does, and Llama's and Mixtral's."""
_FIELDS = {
    "n_layers": ("num_hidden_layers", "n_layers", "n_layer"),
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "n_heads": ("num_attention_heads", "n_heads", "n_head"),
    "n_kv_heads": ("num_key_value_heads", "kv_n_heads"),
    "vocab": ("vocab_size",),
    "n_experts": ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    "topk": ("num_experts_per_tok", "moe_top_k"),
}
"""Columns of sizes, and the fields of configs that they are."""
_WIDTHS = ("intermediate_size", "moe_intermediate_size", "ffn_hidden_size", "n_inner")
_EXPERTS = ("moe_intermediate_size", "ffn_hidden_size", "intermediate_size")
SHAPE = frozenset(["head_dim", "positions"])
STYLE = frozenset(each.name for each in fields(Style)) - {"extra", "tied"}
"""Fields of a decoder of given sizes that columns model.FIELD set."""


def graph_of(row: Row) -> ModelGraph:
    """The model of a row.

    The column ``model`` names a released model or a file, or has a config as JSON; without it and without a width,
    ``model_name`` is the name of a released model, in which spaces are hyphens. Columns of sizes and ``model.FIELD``
    replace fields of its config. Any other model is a decoder of the row's sizes. Raises Unmodelled.
    """
    name, changes = text(row, "model_name") or "model", values_with_prefix(row, "model")
    try:
        config = _config(row) or _mixture(row)
        if config is None:
            return _decoder(row, name, changes)
        graph = read({**override_sizes(row, config), **changes}, name)
    except UserError as error:
        raise Unmodelled(str(error).partition("\n")[0]) from None
    if odd := sorted(changes.keys() & set(graph.details.unread)):
        raise Unmodelled(f"column model.{odd[0]}: no field of {config.get('model_type')} that is modelled")
    return graph


def _config(row: Row) -> dict[str, Any] | None:
    """The config that a row names or has; None where it is described by sizes alone. Raises UserError."""
    given = plain(row, "model")
    if isinstance(given, Mapping):
        return dict(given)
    if given is not None:
        return config_of(str(given)) if is_file(str(given)) else dict(load_shipped(str(given)))
    label = text(row, "model_name").rpartition("/")[2]
    released = None if text(row, "hidden") else catalogue().get("-".join(label.lower().split()))
    return None if released is None else dict(released)


def _mixture(row: Row) -> dict[str, Any] | None:
    """The config of a mixture of which sizes alone are known: Llama's layers, with experts in each."""
    if (number(row, "n_experts") or 0) <= 1:
        return None
    return {
        "model_type": "mixtral", "num_hidden_layers": read_count(row, "n_layers"),
        "hidden_size": read_count(row, "hidden"),
        "num_attention_heads": read_count(row, "n_heads"),
        "num_key_value_heads": read_count(row, "n_kv_heads", read_count(row, "n_heads")),
        "intermediate_size": read_count(row, "ffn_hidden"), "vocab_size": read_count(row, "vocab", LLAMA_VOCABULARY),
        "num_local_experts": read_count(row, "n_experts"), "num_experts_per_tok": read_count(row, "topk"),
    }  # fmt: skip


def _decoder(row: Row, name: str, changes: Mapping[str, Any]) -> ModelGraph:
    """A dense decoder of the row's sizes, with the fields of a Shape and a Style that ``changes`` names.

    It is like Llama if its MLP is gated or heads share keys, else like GPT-2. An MLP is taken to be gated if its width
    is not four times the model's.
    """
    if odd := sorted(changes.keys() - STYLE - SHAPE - {"dropout"}):
        raise Unmodelled(f"column model.{odd[0]}: unknown field{suggest(odd[0], STYLE | SHAPE)}")
    hidden, heads = read_count(row, "hidden"), read_count(row, "n_heads")
    kv_heads, ffn = (read_count(row, "n_kv_heads", heads), read_count(row, "ffn_hidden", 4 * hidden))
    gated = changes.get("gated", kv_heads != heads or abs(ffn - 4 * hidden) > hidden // 8)
    if hidden % heads and "head_dim" not in changes:
        raise Unmodelled("hidden is not a multiple of n_heads")
    tied = read_word(row, "tied_embeddings", {"true": True, "false": False}, not gated)
    shape = Shape(
        vocab=read_count(row, "vocab", LLAMA_VOCABULARY if gated else GPT_VOCABULARY),
        hidden=hidden,
        ffn=ffn,
        layers=read_count(row, "n_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        positions=0 if gated else read_count(row, "seq_len"),
    )
    style = replace(LLAMA_STYLE if gated else GPT_STYLE, tied=tied)
    sizes = {key: value for key, value in changes.items() if key in SHAPE}
    kinds = {key: value for key, value in changes.items() if key in STYLE}
    dropout = bool(changes.get("dropout", False))
    return build(name, replace(shape, **sizes), replace(style, **kinds), dropout=dropout)


def override_sizes(row: Row, released: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the sizes that a row gives, which override those of the released model.

    Latent attention has its own key-value heads. For a mixture the width is that of an expert, unless it equals one of
    the released widths.
    """
    result, flat = {**released}, dict(_leaves(released))
    for column, names in _FIELDS.items():
        if number(row, column) is None or (column == "n_kv_heads" and "kv_lora_rank" in flat):
            continue
        name = next((each for each in names if each in flat), None)
        if name is not None and flat[name] != read_count(row, column):
            result = _replaced(result, name, read_count(row, column))
    width = number(row, "ffn_hidden")
    if width is not None and width not in (flat.get(name) for name in _WIDTHS):
        name = next((each for each in _EXPERTS if each in flat), None)
        result = result if name is None else _replaced(result, name, read_count(row, "ffn_hidden"))
    return result


def _leaves(part: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of a config and of its sections."""
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield name, value


def _replaced(part: Mapping[str, Any], name: str, value: int) -> dict[str, Any]:
    return {
        key: _replaced(old, name, value) if isinstance(old, Mapping) else value if key == name else old
        for key, old in part.items()
    }
