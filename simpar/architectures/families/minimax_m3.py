"""MiniMax M3: grouped queries that see the blocks of keys an indexer chooses, experts behind three dense layers.

Every group of heads has a head of the indexer that chooses for it [Lai et al. 2026, arXiv 2606.13392]. Norms multiply
by 1 + weight, inputs of activations are limited; patches of the vision tower pass two MLPs, one before 2 x 2 become a
token [transformers, models/minimax_m3_vl]. Activations between these products are left out. Layers that predict further
tokens are as the last one (NVIDIA NeMo Automodel, components/models/minimax_m3_vl/mtp.py).
"""

from dataclasses import replace

from simpar.architectures.config import Config
from simpar.architectures.details import Details, Gating, Positions, Rope
from simpar.architectures.families.family import TINY, ModelFamily
from simpar.architectures.families.vision_family import vision_family
from simpar.architectures.graph import Block, ModelGraph, Operator, Weight, term
from simpar.architectures.indexer import INDEX_QUERIES, Indexer, choose, learn
from simpar.architectures.mixture import Mixture
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.architectures.reading import INDEXER, layers_in, llama_shape, mark_unbuilt, style_of, with_experts
from simpar.architectures.transformer import LayerVariant, Style, build
from simpar.architectures.vision import ProjectorStep, Vision
from simpar.architectures.vision_reading import VIT, patches_of, vit_shape
from simpar.errors import UserError

STYLE = Style(qk_norm="head", extra={"clamped": True})
LATER = {
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}  # fmt: skip
"""Fields of the configuration class -> those of the released config's ``sparse_attention_config``."""


def _read(config: Config, name: str) -> ModelGraph:
    if config.flag("attention_output_gate", default=False):
        raise UserError(f"{config.source}: attention_output_gate = true: allowed: false, as published")
    given = Config(config.mapping("sparse_attention_config") or {}, f"{config.source}: sparse_attention_config")
    shape = llama_shape(config, kv_heads=4, head_dim=128, ffn="dense_intermediate_size")
    sparse = layers_in(config, shape.layers, "layer_types", {"full_attention": 0, "minimax_m3_sparse": 1})
    if sparse is None:
        sparse = layers_in(given, shape.layers, "sparse_attention_freq", {0: 0, 1: 1}) or [0] * shape.layers
    experts = layers_in(config, shape.layers, "mlp_layer_types", {"dense": 0, "sparse": 1})
    if experts is None:
        experts = layers_in(config, shape.layers, "moe_layer_freq", {0: 0, 1: 1}) or [1] * shape.layers
    mixture = Mixture(
        config.size("num_local_experts", default=128), config.size("num_experts_per_tok", default=4),
        config.size("intermediate_size", default=3072), config.size("shared_intermediate_size", default=3072),
        router_bias=True, clamped=True,
    )  # fmt: skip
    for field in ("swiglu_alpha", "swiglu_limit", "use_qk_norm", "qk_norm_type", "use_gemma_norm"):
        config.data.get(field)
    full = with_experts(shape, mixture, ffn=0 if all(experts) else shape.ffn)
    further = config.optional_size("num_mtp_modules")
    layers = [LayerVariant(experts=bool(each)) for each in experts]
    layers += [replace(layers[-1], prediction=True)] * further
    sparse += sparse[-1:] * further
    graph = build(name, full, style_of(config, STYLE), layers=tuple(layers))
    if not any(sparse):
        return graph
    names = tuple(f"{layer}_sparse" if own else layer for layer, own in zip(graph.layers, sparse, strict=True))
    blocks = {new: graph.blocks[new.removesuffix("_sparse")] for new in names}
    indexer = _indexer(config, given)
    blocks = {new: _choosing(block, new, indexer) if new != block.name else block for new, block in blocks.items()}
    graph = replace(
        graph, blocks=blocks, layers=names, dims={**graph.dims, **indexer.dims},
        auxiliary=tuple(new for new in blocks if new.startswith("prediction")),
    )  # fmt: skip
    return mark_unbuilt(graph, INDEXER)


def _indexer(config: Config, given: Config) -> Indexer:
    named = {new: given.data.get(old) for new, old in LATER.items() if old in given.data}
    own = config.having({name: value for name, value in named.items() if value is not None})
    block, chosen = own.size("index_block_size", default=128), own.size("index_topk_blocks", default=16)
    if own.optional_size("index_local_blocks") > 1:
        raise UserError(f"{config.source}: index_local_blocks = {own.data['index_local_blocks']}: allowed: 0, 1")
    return Indexer(
        own.size("index_n_heads", default=4), own.size("index_head_dim", default=128), block * chosen, block=block,
        apart=True,
    )  # fmt: skip


def _choosing(block: Block, name: str, indexer: Indexer) -> Block:
    """The block with an indexer before its attention."""
    result: list[Operator] = []
    for op in block.operators:
        if op.attention:
            pairs = (*term("kv_heads", "head_dim", times=2), *term("index_dim"))
            mask = replace(op.attention, selection=indexer.selection, exchanged=pairs)
            inputs = (*op.inputs, "indexer")
            attention = replace(op, inputs=inputs, saves=("indexer", *op.saves), attention=mask)
            result += [*_index("attention_norm"), attention, learn(term("head_dim"), *inputs)]
        else:
            result.append(op)
    return Block(name, tuple(result))


def _index(source: str) -> list[Operator]:
    """Queries of every head, one key for all of them, their norms, and the choice."""
    weights = {"q": INDEX_QUERIES, "k": term("index_dim")}
    products = [project(f"index_{key}", source, HIDDEN, wide, region="sequence") for key, wide in weights.items()]
    norms = [
        Operator(
            f"index_{key}_norm", "norm", TOKENS, wide, "sequence", inputs=(f"index_{key}",),
            weights=(Weight(f"index_{key}_norm.weight", term("index_dim"), "vector"),),
            saves=(f"index_{key}", "stats"),
        )
        for key, wide in weights.items()
    ]  # fmt: skip
    return [*products, *norms, choose(*(norm.name for norm in norms))]


def _tower(vision: Config, around: Config, hidden: int) -> Vision:
    """A ViT with rotary positions over patches of two frames; an MLP of every patch, and one of 2 x 2 of them."""
    own = vision.mapping("img_token_compression_config") or {}
    vision = vision.having({key: own[key] for key in ("spatial_merge_size", "temporal_patch_size") if key in own})
    merge = vision.size("spatial_merge_size", default=2)
    vision.data.get("image_size")
    patches = patches_of(
        vision, around, side=14, frames=vision.size("temporal_patch_size", default=2), merge=merge, bias=False,
        norm="layer",
    )  # fmt: skip
    shape = vit_shape(vision, hidden=1280, layers=32, heads=16, ffn=5120)
    inner = around.size("projector_hidden_size", default=hidden)
    steps = (
        ProjectorStep("conv", inner, reads=shape.hidden, rows=merge**2),
        ProjectorStep("conv", hidden, reads=inner, rows=merge**2),
        ProjectorStep("conv", inner, reads=hidden * merge**2),
        ProjectorStep("linear", hidden),
    )
    return Vision(patches, shape, replace(VIT, rotary=True), steps)


TINY_TEXT = {
    **TINY, "num_hidden_layers": 3, "head_dim": 8, "intermediate_size": 16, "dense_intermediate_size": 48,
    "shared_intermediate_size": 16, "rotary_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
    "layer_types": ["full_attention", "full_attention", "minimax_m3_sparse"],
    "mlp_layer_types": ["dense", "sparse", "sparse"], "index_n_heads": 2, "index_head_dim": 8, "index_block_size": 4,
    "index_topk_blocks": 2,
}  # fmt: skip
FAMILIES = (
    ModelFamily(
        "minimax_m3_vl_text",
        _read,
        Details(
            "quick_gelu", 0.000001, 1.0, positions=Positions(Rope(5_000_000.0)),
            gating=Gating("sigmoid", factor=2.0, bias="chooses"),
        ),
        None,
        TINY_TEXT,
        aliases=("minimax_m3", "minimax_m3_text"),
        activations={"silu": "quick_gelu", "swigluoai": "quick_gelu"},
    ),
    vision_family(
        "minimax_m3_vl",
        _tower,
        "minimax_m3_vl_text",
        {
            "text_config": TINY_TEXT,
            "vision_config": {
                "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            },
            "projector_hidden_size": 24,
        },
        either=True,
    ),
)  # fmt: skip
