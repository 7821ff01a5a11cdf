"""Encoders alone: BERT-like models, whose tokens see the whole sequence and whose norms follow every sum.

They are trained on masked tokens; as in Hugging Face's models, logits are computed for all tokens [Devlin et al. 2018,
arXiv 1810.04805; Liu et al. 2019, arXiv 1907.11692].
"""

from dataclasses import replace

from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, Weight, term
from simpar.architectures.products import HIDDEN, TOKENS, project
from simpar.architectures.transformer import LayerVariant, Shape, Style, add, attention, embedding, mlp, norm

STYLE = Style(
    norm="layer", gated=False, tied=True, qkv_bias=True, output_bias=True, mlp_bias=True, head_bias=True,
    rotary=False, extra={"embedding_norm": True, "bidirectional": True},
)  # fmt: skip


def encoder(name: str, shape: Shape, *, token_types: int, dropout: bool, tied: bool = True) -> ModelGraph:
    """A BERT-like model with ``token_types`` kinds of segments, whose logits' table may be its own."""
    return ModelGraph(
        name=name,
        dims={**shape.dims, "token_types": token_types},
        blocks={"layer": Block("layer", _layer(dropout))},
        layers=("layer",) * shape.layers,
        embedding=_with_types(embedding(shape, STYLE, dropout)),
        head=Block("head", _head()),
        tied_embeddings=tied,
        facts={"norm": "layer"},
    )


def _with_types(block: Block) -> Block:
    """The embedding block with segment types; positions and types are added in one pass."""
    types = Weight("token_type_embedding.weight", term("token_types", "hidden"), "embedding")
    ops = tuple(
        replace(op, weights=(*op.weights, types)) if op.name == "position_embedding" else op for op in block.operators
    )
    return replace(block, operators=ops)


def _layer(dropout: bool) -> tuple[Operator, ...]:
    """Attention, sum, norm, MLP, sum, norm."""
    branch = attention(INPUT, STYLE, LayerVariant(), dropout)
    ops = [*branch, *_joined("attention", branch[-1].name, INPUT, dropout=dropout)]
    inner = mlp("attention_norm", STYLE)
    return (*ops, *inner, *_joined("mlp", inner[-1].name, "attention_norm", dropout=dropout))


def _joined(name: str, branch: str, residual: str, *, dropout: bool) -> list[Operator]:
    """The end of a branch: dropout where the attention branch has none of its own, sum, norm."""
    ops = []
    if dropout and not branch.endswith("dropout"):
        branch_drop = f"{name}_dropout"
        ops.append(Operator(branch_drop, "dropout", TOKENS, HIDDEN, "sequence", inputs=(branch,), saves=("mask",)))
        branch = branch_drop
    ops.append(add(f"{name}_residual", residual, branch))
    ops.append(norm(f"{name}_norm", f"{name}_residual", STYLE))
    return ops


def _head() -> tuple[Operator, ...]:
    """The transform of masked-language heads, the output projection with its bias, and the loss."""
    transform = project("transform", INPUT, HIDDEN, HIDDEN, bias=True)
    act = Operator(
        "transform_activation", "activation", TOKENS, HIDDEN, "tensor", inputs=("transform",), saves=("transform",)
    )
    after = norm("transform_norm", "transform_activation", STYLE)
    lm_head = project("lm_head", "transform_norm", HIDDEN, term("vocab"), bias=STYLE.head_bias)
    loss = Operator("loss", "loss", TOKENS, term("vocab"), "tensor", inputs=("lm_head",), saves=("lm_head",))
    return (transform, act, after, lm_head, loss)
