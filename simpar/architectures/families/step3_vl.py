"""Step-3: queries pass a latent, and all heads share one key and one value (multi-matrix factorization attention).

The products into the latent and into key and value are whole on every tensor-parallel rank; the one out of the latent
is sharded by heads [StepFun 2025, arXiv 2507.19427, section 3; vLLM, models/step3_text.py].
"""

from collections.abc import Iterator
from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.step3 import RENAMED, experts_in
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import ONE, Block, ModelGraph, Operator, term
from simpar.architectures.latent import compress
from simpar.architectures.mixture import Mixture
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.architectures.reading import llama_shape, mark_unbuilt, style_of, with_experts
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, patches_of, vit_shape
from simpar.errors import UserError

FACTORED = "queries that pass a latent, beside a key and a value that all heads share"
UNUSED = ("max_seq_len", "norm_expert_weight", "need_fp32_gate", "use_moe", "moe_every_n_layer", "rope_theta")
RANK, QUERY, SHARED = term("q_rank"), term("heads", "head_dim"), term("head_dim", times=2)


def _read(config: Config, name: str) -> ModelGraph:
    given = {new: config.data.get(old) for old, new in RENAMED.items() if old in config.data}
    config = config.having(given)
    shape = llama_shape(config, kv_heads=1, head_dim=256, ffn="moe_intermediate_size")
    if shape.kv_heads != 1:
        raise UserError(f"{config.source}: num_attention_groups = {shape.kv_heads}: allowed: 1")
    experts = experts_in(config, shape.layers, dense=(0, 1, 2, 3, shape.layers - 1))
    mixture = Mixture(
        config.size("n_routed_experts", default=48), config.size("num_experts_per_tok", default=3),
        config.size("moe_intermediate_size", default=5120), shared_ffn=config.size("share_expert_dim", default=5120),
    )  # fmt: skip
    full = with_experts(shape, mixture, ffn=0 if all(experts) else config.size("intermediate_size"))
    rank = config.size("share_q_dim", default=2048)
    for unused in UNUSED:
        config.data.get(unused)
    layers = tuple(LayerVariant(experts=wide) for wide in experts)
    graph = build(name, full, style_of(config, Style()), layers=layers)
    blocks = {key: _factored(block) for key, block in graph.blocks.items()}
    return mark_unbuilt(replace(graph, dims={**graph.dims, "q_rank": rank}, blocks=blocks), FACTORED)


def _factored(block: Block) -> Block:
    return replace(block, operators=tuple(each for op in block.operators for each in _in_place_of(op)))


def _in_place_of(op: Operator) -> Iterator[Operator]:
    """What stands for an operator of usual attention."""
    if op.name == "qkv":
        (source,) = op.inputs
        yield from compress("q", source, RANK, RANK, bias=False)
        yield project("q_up", "q_norm", RANK, QUERY)
        yield project("kv", source, HIDDEN, SHARED, region="sequence")
    elif op.name == "rope":
        yield Operator("k_rotary", "rope", TOKENS, SHARED, "sequence", inputs=("kv",))
        yield replace(op, columns=QUERY, inputs=("q_up",))
    elif op.attention:
        read = ("rope", "k_rotary")
        pattern = replace(op.attention, kv_heads=ONE)
        yield replace(op, inputs=read, saves=(*read, "attention", "lse"), attention=pattern)
    else:
        yield op


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    around.data.get("understand_projector_stride")
    patches = patches_of(
        vision.having({"image_size": 728}, unless_given=True), around, fixed=True, side=14, merge=4, bias=False,
        positions=(vision.size("image_size", default=728) // vision.size("patch_size", default=14)) ** 2 + 1,
        norm="layer",
    )  # fmt: skip
    width, out = vision.size("hidden_size", default=1792), vision.size("output_hidden_size", default=4096)
    shape = replace(
        vit_shape(vision, hidden=1792, layers=63, heads=16), ffn=vision.size("intermediate_size", default=15360)
    )
    steps = (
        ProjectorStep("conv", out, reads=4 * width, rows=4),
        ProjectorStep("conv", 2 * out, reads=9 * out),
        ProjectorStep("linear", hidden, bias=around.flag("projector_bias", default=False)),
    )
    return Vision(patches, shape, VIT, steps)


TEXT = {
    **TINY, "num_hidden_layers": 4, "num_attention_groups": 1, "num_key_value_heads": None, "head_dim": 16,
    "share_q_dim": 24, "moe_num_experts": 8, "moe_top_k": 2, "moe_intermediate_size": 16, "share_expert_dim": 16,
    "moe_layers_enum": "1,2",
}  # fmt: skip
FAMILIES = (
    ModelFamily("step3_text", _read, Details(positions=Positions(Rope())), None, TEXT),
    vision_family(
        "step3_vl",
        _tower,
        "step3_text",
        {
            "text_config": TEXT,
            "vision_config": {
                "hidden_size": 32, "output_hidden_size": 48, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "image_size": 112,
            },
        },
    ),
)  # fmt: skip
