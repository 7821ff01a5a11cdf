"""LongCat-Flash: two latent attentions and two MLPs a layer, and experts that start behind the first attention.

The experts' result joins the stream at the layer's end. Some choices of a token are "zero" experts, which pass it on:
of ``moe_topk`` choices, as many are taken for experts as their share of all; on balance that is 8 of 12 [Meituan 2025,
arXiv 2509.01322].
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.deepseek import TINY_LATENT, latent_of
from simpar.architectures.families.family import ModelFamily
from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, Weight, term
from simpar.architectures.latent import latent_attention
from simpar.architectures.mixture import Mixture, mixture, outputs
from simpar.architectures.products import HIDDEN
from simpar.architectures.reading import llama_shape, mark_unbuilt, style_of, with_experts
from simpar.architectures.transformer import Shape, Style, add, embedding, head, mlp, norm
from simpar.errors import UserError

SHORTCUT = "experts beside two attentions of one layer"
USUAL = {
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
RENAMED = {
    "num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size", "moe_topk": "num_experts_per_tok",
    "expert_ffn_hidden_size": "moe_intermediate_size",
}  # fmt: skip


def _read(config: Config, name: str) -> ModelGraph:
    given = {new: config.data.get(old) for old, new in RENAMED.items() if old in config.data}
    config = config.having(USUAL, unless_given=True).having({**given, "head_dim": None})
    shape = llama_shape(config)
    latent = latent_of(config)
    if latent is None or config.flag("attention_bias", default=False):
        raise UserError(f"{config.source}: allowed: kv_lora_rank, and attention_bias = false")
    experts, chosen = config.size("n_routed_experts", default=512), config.size("num_experts_per_tok", default=12)
    zero = config.optional_size("zero_expert_num") if "zero_expert_num" in config.data else 256
    config.data.get("zero_expert_type")
    sizes = Mixture(
        experts, max(round(chosen * experts / (experts + zero)), 1),
        config.size("moe_intermediate_size", default=2048), router_bias=True,
    )  # fmt: skip
    full = replace(with_experts(shape, sizes, ffn=shape.ffn), latent=latent)
    said = f"{sizes.topk} of {chosen} choices of a token are experts, the others pass it on (zero_expert_num = {zero})"
    graph = _build(name, full, style_of(config, Style()), zero)
    return mark_unbuilt(replace(graph, facts={**graph.facts, "assumed": (said,) if zero else ()}), SHORTCUT)


def _build(name: str, shape: Shape, style: Style, zero: int) -> ModelGraph:
    return ModelGraph(
        name=name,
        dims=shape.dims,
        blocks={"layer_moe": Block("layer_moe", tuple(_layer(shape, style, zero)))},
        layers=("layer_moe",) * shape.layers,
        embedding=embedding(shape, style, dropout=False),
        head=head(style),
        tied_embeddings=style.tied,
        facts={"norm": style.norm},
    )


def _layer(shape: Shape, style: Style, zero: int) -> list[Operator]:
    """Half a layer twice, with the experts' input taken from the middle of the first and their sum at the end."""
    assert shape.mixture is not None, "asked for only with experts"
    router, *experts = mixture("mlp_norm", shape.mixture)
    first, second = _half(shape, style, INPUT), _half(shape, style, "mlp_residual")
    again = {op.name: f"second_{op.name}" for op in second}
    ends = outputs(shape.mixture)
    return [
        *first, _wider(router, zero), *experts,
        *(_renamed(op, {**again, "mlp_residual.first": "mlp_residual"}) for op in second),
        add("layer_residual", "second_mlp_residual", *ends),
    ]  # fmt: skip


def _half(shape: Shape, style: Style, source: str) -> list[Operator]:
    """Attention and an MLP, each with its norm and residual."""
    assert shape.latent is not None, "asked for only with latents"
    start = source if source == INPUT else f"{source}.first"
    return [
        norm("attention_norm", start, style), *latent_attention("attention_norm", shape.latent),
        add("attention_residual", start, "o_proj"), norm("mlp_norm", "attention_residual", style),
        *mlp("mlp_norm", style), add("mlp_residual", "attention_residual", "mlp_down"),
    ]  # fmt: skip


def _renamed(op: Operator, names: dict[str, str]) -> Operator:
    """The operator and its weights under another name, reading and keeping others under theirs."""
    weights = tuple(replace(weight, name=f"second_{weight.name}") for weight in op.weights)
    reads, keeps = (tuple(names.get(name, name) for name in each) for each in (op.inputs, op.saves))
    return replace(op, name=names[op.name], weights=weights, inputs=reads, saves=keeps)


def _wider(router: Operator, zero: int) -> Operator:
    """The router that also scores ``zero`` experts."""
    columns = (*router.columns, *term(times=zero)) if zero else router.columns
    sizes = [tuple((a * b, (*x, *y)) for a, x in HIDDEN for b, y in columns), columns]
    weights = tuple(Weight(old.name, size, old.kind) for old, size in zip(router.weights, sizes, strict=True))
    return replace(router, columns=columns, weights=weights)


FAMILIES = (
    ModelFamily(
        "longcat_flash",
        _read,
        Details(
            positions=Positions(Rope(10_000_000.0, interleaved=True)),
            gating=Gating(normalised=False, factor=6.0, bias="chooses"),
        ),
        None,
        {
            "head_dim": TINY_LATENT["qk_rope_head_dim"],  # of its class, which rotates that many
            **{key: value for key, value in TINY_LATENT.items() if key in USUAL},
            "vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4, "num_layers": 2, "ffn_hidden_size": 48,
            "expert_ffn_hidden_size": 16, "moe_topk": 3, "n_routed_experts": 8, "zero_expert_num": 4,
        },
    ),
)  # fmt: skip
