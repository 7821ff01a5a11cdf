"""Llama-Nemotron (DeciLM): Llama whose layers a search has left with fewer keys, narrower MLPs, or neither branch.

A layer's entry of ``block_configs`` says how many heads share a key, how wide its MLP is, or that a branch is left out
or is one product [NVIDIA 2025, arXiv 2505.00949, section 2; vLLM, models/nemotron_nas.py].
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.details import Positions, Rope
from simpar.architectures.families.family import TINY, USUAL, ModelFamily
from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator
from simpar.architectures.products import HIDDEN, project
from simpar.architectures.reading import ATTENTION_BIAS, MLP_BIAS, llama_shape, mark_unbuilt, style_of
from simpar.architectures.transformer import LayerVariant, Style, add, attention, build, mlp, norm
from simpar.errors import UserError

UNEQUAL = "layers whose keys and MLPs have different widths"
MULTIPLE = 256
"""Widths of MLPs are multiples of it."""
OF_ATTENTION = ("no_op", "replace_with_linear", "n_heads_in_group")
OF_MLP = ("no_op", "replace_with_linear", "ffn_mult", "intermediate_size", "hidden_act")
LINEAR = -1
"""In the place of a number of keys, or of a width: the branch is one product."""
Kind = tuple[int, int]
"""Heads of keys and values, and the width of the MLP (0: the branch is left out)."""


def _read(config: Config, name: str) -> ModelGraph:
    heads, hidden = config.size("num_attention_heads"), config.size("hidden_size")
    kinds = _kinds(config, heads, hidden)
    widest = [max((kind[at] for kind in kinds), default=0) for at in (0, 1)]
    if min(widest) < 1:
        raise UserError(f"{config.source}: block_configs: allowed: at least one layer with attention, and with an MLP")
    full = {"intermediate_size": widest[1], "num_key_value_heads": widest[0]}
    style = style_of(config, Style(), {**ATTENTION_BIAS, **MLP_BIAS})
    graph = build(name, llama_shape(config.having(full)), style)
    layers = tuple(_name(kind) for kind in kinds if any(kind))
    blocks = {_name(kind): _block(kind, style) for kind in dict.fromkeys(kinds) if any(kind)}
    dims = dict(graph.dims)
    for kind in dict.fromkeys(kinds):
        sizes = zip(("kv_heads", "ffn"), kind, strict=True)
        dims |= {f"{_name(kind)}.{size}": wide for size, wide in sizes if wide > 0}
    facts = dict(graph.facts)
    if left := sum(not any(kind) for kind in kinds):
        facts["assumed"] = (f"{left} of {len(kinds)} layers have neither attention nor an MLP: they are left out",)
    return mark_unbuilt(replace(graph, dims=dims, blocks=blocks, layers=layers, facts=facts), UNEQUAL)


def _kinds(config: Config, heads: int, hidden: int) -> list[Kind]:
    """What every layer has. Raises UserError."""
    count, listed = config.size("num_hidden_layers"), config.data.get("block_configs")
    if not isinstance(listed, list) or len(listed) != count or not all(isinstance(each, Mapping) for each in listed):
        raise UserError(f"{config.source}: block_configs: allowed: a mapping for each of {count} layers")
    return [
        (
            _keys(_section(config, each, "attention", at, OF_ATTENTION), heads),
            _width(_section(config, each, "ffn", at, OF_MLP), hidden),
        )
        for at, each in enumerate(listed)
    ]


def _section(config: Config, block: Mapping[str, Any], part: str, at: int, known: tuple[str, ...]) -> Config:
    """The fields of a branch. Raises UserError for one that says more than ``known`` ones do."""
    fields = block.get(part)
    source = f"{config.source}: block_configs[{at}].{part}"
    if not isinstance(fields, Mapping):
        raise UserError(f"{source} = {fields!r}: allowed: a mapping")
    for field, value in fields.items():
        if field not in known and value not in (None, False):
            raise UserError(f"{source}.{field} = {value!r}: allowed: null; only {', '.join(known)} are modelled")
    return Config(dict(fields), source)


def _keys(fields: Config, heads: int) -> int:
    if fields.flag("no_op", default=False):
        return 0
    if fields.flag("replace_with_linear", default=False):
        return LINEAR
    shared = fields.size("n_heads_in_group")
    if heads % shared:
        raise UserError(f"{fields.source}.n_heads_in_group = {shared}: allowed: divisors of {heads}")
    return heads // shared


def _width(fields: Config, hidden: int) -> int:
    if fields.flag("no_op", default=False):
        return 0
    if fields.flag("replace_with_linear", default=False):
        return LINEAR
    if fields.data.get("ffn_mult") is None:
        return fields.size("intermediate_size")
    wanted = int(2 * fields.number("ffn_mult", default=1) * hidden / 3)
    return -(-wanted // MULTIPLE) * MULTIPLE


def _name(kind: Kind) -> str:
    """The name of a layer's block, which is that of its sizes."""
    keys, width = ("linear" if each == LINEAR else str(each) if each else "none" for each in kind)
    return f"layer_{keys}_{width}"


def _block(kind: Kind, style: Style) -> Block:
    """A layer with the branches that it has."""
    keys, width = kind
    operators: list[Operator] = []
    last = INPUT
    if keys:
        made = attention("attention_norm", style, LayerVariant(), dropout=False)
        branch = (
            made if keys > 0 else [project("attention_linear", "attention_norm", HIDDEN, HIDDEN, region="sequence")]
        )
        operators += [norm("attention_norm", last, style), *branch, add("attention_residual", last, branch[-1].name)]
        last = "attention_residual"
    if width:
        made = mlp("mlp_norm", style)
        branch = made if width > 0 else [project("mlp_linear", "mlp_norm", HIDDEN, HIDDEN, region="sequence")]
        operators += [norm("mlp_norm", last, style), *branch, add("mlp_residual", last, branch[-1].name)]
    return Block(_name(kind), tuple(operators), _name(kind))


def _layer(keys: dict[str, Any], width: dict[str, Any]) -> dict[str, Any]:
    return {"attention": keys, "ffn": width}


FAMILIES = (
    ModelFamily(
        "nemotron-nas",
        _read,
        replace(USUAL, positions=Positions(Rope(500_000.0))),
        None,
        {
            **{key: value for key, value in TINY.items() if key not in ("intermediate_size", "num_key_value_heads")},
            "num_hidden_layers": 5,
            "block_configs": [
                _layer({"n_heads_in_group": 2}, {"ffn_mult": 16.0}), _layer({"no_op": True}, {"ffn_mult": 8.0}),
                _layer({"n_heads_in_group": 4}, {"no_op": True}), _layer({"no_op": True}, {"no_op": True}),
                _layer({"replace_with_linear": True}, {"replace_with_linear": True}),
            ],
        },
        classes={"nemotron-nas": "DeciLMForCausalLM"},
    ),
)  # fmt: skip
