"""ERNIE 4.5, dense and with experts in every n-th layer from a first to a last one, beside two shared experts."""

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.graph import ModelGraph
from simpar.architectures.mixture import Mixture
from simpar.architectures.reading import ALL_BIASES, llama_like, llama_shape, style_of, with_experts
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.weights import LLAMA, Packing
from simpar.errors import UserError

STYLE = Style(tied=True)
BIASES = {"use_bias": ALL_BIASES}
POSITIONS = Positions(Rope(500_000.0, interleaved=True))


def _read_sparse(config: Config, name: str) -> ModelGraph:
    shape = llama_shape(config, ffn="moe_intermediate_size", kv_heads=4)
    width = config.size("moe_intermediate_size", default=1536)
    shared = config.data.get("moe_num_shared_experts", 2)
    mixture = Mixture(
        config.size("moe_num_experts", "num_experts", default=64),
        config.size("moe_k", "num_experts_per_tok", default=6), width,
        shared_ffn=width * config.size("moe_num_shared_experts", default=2) if shared else 0, router_bias=True,
    )  # fmt: skip
    layers = _layers(config, shape.layers)
    style = style_of(config, STYLE, BIASES)
    if style.mlp_bias and shared:
        raise UserError(f"{config.source}: use_bias = true: allowed: false, shared experts have no biases here")
    dense = any(not layer.experts for layer in layers)
    full = with_experts(shape, mixture, ffn=config.size("intermediate_size") if dense else 0)
    return build(name, full, style, layers=layers)


def _layers(config: Config, count: int) -> tuple[LayerVariant, ...]:
    """Which layers have experts. Raises UserError."""
    first, last = config.data.get("moe_layer_start_index", 1), config.data.get("moe_layer_end_index", -1)
    if not isinstance(first, int) or not isinstance(last, int):
        raise UserError(
            f"{config.source}: moe_layer_start_index = {first!r}, moe_layer_end_index = {last!r}: allowed: integers"
        )
    step = config.size("moe_layer_interval", default=1)
    last = count - 1 if last == -1 else last
    return tuple(LayerVariant(experts=(at + 1) % step == 0 and first <= at <= last) for at in range(count))


FAMILIES = (
    ModelFamily(
        "ernie4_5",
        llama_like(STYLE, head_dim=128, kv_heads=2, biases=BIASES),
        Details(positions=POSITIONS),
        tiny={**TINY, "head_dim": 8, "use_bias": True},
        classes={"ernie4_5": "Ernie4_5ForCausalLM"},
    ),
    ModelFamily(
        "ernie4_5_moe",
        _read_sparse,
        Details(positions=POSITIONS, gating=Gating(bias="chooses")),
        LLAMA.changed(tensors={"router.bias": ("mlp.moe_statics.e_score_correction_bias", Packing.ROW)}),
        {**TINY, "num_hidden_layers": 3, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
        classes={"ernie4_5_moe": "Ernie4_5_MoeForCausalLM"},
    ),
)
