"""Which models a serving engine's model holds for, and what their layers keep in its cache."""

from simpar.architectures.flops import RECURRENCES
from simpar.architectures.graph import AttentionPattern, Block, ModelGraph, evaluate
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.layout.sharding import RankDims
from simpar.posttraining.iterations import NO_WINDOW

UNSERVED = ("indexer", "index_loss")
"""Operators of layers that choose their keys."""
TOWERS = ("vision", "connector", "audio", "audio_connector")
"""Scopes of towers whose tokens take the places of text, and so are in the cache like all others."""


IMAGES = {"vision": "visual.seq", "audio": "sound.seq"}
"""Towers that encode, and the dim with the tokens that they make for a sequence."""


def check_served(graph: ModelGraph) -> None:
    """Raise UserError for a model whose decoding is not modelled."""
    if any(name.endswith(".experts") for name in graph.dims):
        raise UserError(f"model {graph.name}: visual tokens have experts of their own; allowed for rollouts: models "
                        "whose tokens share theirs")  # fmt: skip
    for block in (graph.blocks[name] for name in dict.fromkeys(graph.layers)):
        if block.scope in TOWERS:
            continue
        masks = [op.attention for op in block.operators if op.attention]
        odd = any(m.chunked or m.selection or m.context != "context" or not m.causal or m != masks[0] for m in masks)
        chosen = any(op.kind in UNSERVED for op in block.operators)
        if f"{block.scope}.seq" in graph.dims or odd or chosen or not graph.has_vocabulary:
            raise UserError(
                f"model {graph.name}: layers {block.name} decode in a way that is not modelled; allowed for rollouts: "
                "causal attention to all keys, to a sliding window or to latents, Mamba-2, linear attention and short "
                "convolutions, behind towers whose tokens stand between those of the text"
            )


def layers_of(graph: ModelGraph, *, towers: bool) -> dict[str, int]:
    """How many layers there are of each kind, of the decoder or of towers, without those that only training has."""
    names = [name for name in graph.layers if name not in graph.auxiliary]
    chosen = [name for name in names if (graph.blocks[name].scope in TOWERS) == towers]
    return {name: chosen.count(name) for name in dict.fromkeys(chosen)}


def image_tokens(graph: ModelGraph) -> int:
    """Tokens of a prompt that towers make, of its images and sounds."""
    return sum(graph.dims.get(name, 0) for name in IMAGES.values())


@dataclass(frozen=True)
class CachedLayer:
    """The cache of one layer on one device: ``elements`` a token, read with ``flop`` for each key, in ``kernels``."""

    elements: float
    flop: float
    window: int
    kernels: int = 1


def cached_layer(block: Block, dims: RankDims) -> CachedLayer | None:
    """What a token of a layer leaves in the cache, and what reading it takes: FLOP 2 a (d_k + d_v) a key for a heads.

    Latents are kept on every tensor-parallel rank, and heads read them with products into and out of the latent, whose
    weights are those of the layer's product that would widen latents (DeepSeek-AI 2024, arXiv 2405.04434, section
    2.1.2). None for a layer without attention.
    """
    own = dims.of_block(block).tensor
    masks: list[AttentionPattern] = [op.attention for op in block.operators if op.attention]
    if not masks:
        return None
    count, mask = len(masks), masks[0]
    window, heads = mask.window or NO_WINDOW, 2.0 * float(own["heads"]) * count
    if any(op.name == "kv_down" for op in block.operators):
        latent = float(own["kv_rank"]) + float(own["rotary_dim"])
        return CachedLayer(count * latent, heads * (latent + float(own["kv_rank"])), window, count)
    widths = float(evaluate(mask.key_dim, own)) + float(evaluate(mask.value_dim, own))
    return CachedLayer(count * float(evaluate(mask.kv_heads, own)) * widths, heads * widths, window, count)


def left_out(block: Block) -> frozenset[str]:
    """Operators that iterations time by the sequences in them, not by rows: core attention and recurrences."""
    return frozenset(op.name for op in block.operators if op.kind == "attention" or op.kind in RECURRENCES)
