"""The kind of decoder that a ModelGraph is, derived from its operators: what other frameworks ask about a model."""

from collections.abc import Mapping, Sequence

from simpar.architectures.graph import ModelGraph, Operator
from simpar.dataclass import dataclass

PLAIN_KINDS = {
    "norm", "matmul", "attention", "rope", "gated_activation", "activation", "add", "dropout", "embedding", "loss",
}  # fmt: skip
EXPERT_KINDS = {"router", "dispatch", "grouped_matmul", "clamp", "combine"}


@dataclass(frozen=True)
class Architecture:
    """The style of a decoder.

    ``norm`` is "rms", "layer", "weight" (LayerNorm without a bias) or "none"; ``biases`` is a subset of qkv, output,
    mlp, head; ``positions`` is "rope", "learned" or "none"; ``qk_norm`` is "", "bare" (without weights), "head" or
    "full"; ``residual`` is "pre", "post", "both" (norms before and after every branch) or "parallel"; ``windows`` is
    the attention window of each layer; ``experts`` says which layers have experts (() for none); ``beyond`` names
    features of neither a plain decoder nor one with experts.
    """

    norm: str
    activation: str
    gated: bool
    biases: frozenset[str]
    positions: str
    qk_norm: str
    residual: str
    windows: tuple[int | None, ...]
    tied: bool
    dropout: bool
    experts: tuple[bool, ...]
    beyond: tuple[str, ...]


def architecture(graph: ModelGraph) -> Architecture:
    """Derive the style of a model from its operators; the activation is one of its details."""
    blocks = [graph.blocks[name] for name in graph.layers]
    block = next((each for each in blocks if not each.passes and any(op.attention for op in each.operators)), blocks[0])
    ops = {op.name: op for op in block.operators}
    every = [*(op for b in graph.blocks.values() for op in b.operators), *graph.embedding.operators]
    gated = any(op.kind == "gated_activation" for op in every)
    names = (("qkv", "qkv"), ("o_proj", "output"), ("mlp_up", "mlp"), ("expert_up", "mlp"))
    biases = {what for name, what in names if name in ops and _has_bias(ops[name])}
    biases |= {"head"} if any(_has_bias(op) for op in graph.head.operators if op.kind == "matmul") else set()
    return Architecture(
        norm=_norm(graph),
        activation=_activation(graph),
        gated=gated,
        biases=frozenset(biases),
        positions="rope" if "rope" in ops else "learned" if graph.dims.get("positions") else "none",
        qk_norm=_qk_norm(ops.get("qk_norm")),
        residual=_residual(ops),
        windows=_windows(graph),
        tied=graph.tied_embeddings,
        dropout=any(op.kind == "dropout" for op in every),
        experts=_experts(graph),
        beyond=tuple(sorted(_beyond(every, ops, graph.embedding.operators) | _rare(graph))),
    )


def _has_bias(op: Operator) -> bool:
    return any(weight.name.endswith(".bias") for weight in op.weights)


def _norm(graph: ModelGraph) -> str:
    op = graph.head.operators[0]
    return str(graph.facts.get("norm") or ("none" if not op.weights else "layer" if _has_bias(op) else "rms"))


def _activation(graph: ModelGraph) -> str:
    """The model's activation; all variants of GELU count as one."""
    name = graph.details.activation
    return "gelu" if name.startswith("gelu") else name


def _qk_norm(op: Operator | None) -> str:
    if op is None:
        return ""
    if not op.weights:
        return "bare"
    return "full" if any("heads" in names for _, names in op.weights[0].size) else "head"


def _residual(ops: Mapping[str, Operator]) -> str:
    if "residual" in ops:
        return "parallel"
    if "attention_post_norm" in ops:
        return "both" if "attention_norm" in ops else "post"
    return "pre"


def _windows(graph: ModelGraph) -> tuple[int | None, ...]:
    """The attention window of every layer, evaluated once per distinct block."""
    every = {
        name: next((op.attention.window for op in block.operators if op.attention), None)
        for name, block in graph.blocks.items()
    }
    return tuple(every[layer] for layer in graph.layers)


def _experts(graph: ModelGraph) -> tuple[bool, ...]:
    kinds = {name: {op.kind for op in block.operators} for name, block in graph.blocks.items()}
    sparse = tuple(bool(kinds[layer] & EXPERT_KINDS) for layer in graph.layers)
    return sparse if any(sparse) else ()


def _rare(graph: ModelGraph) -> set[str]:
    """Rare features that targets cannot express, such as positions in some layers only, or norms of rotated heads."""
    inside = [[op.name for op in block.operators] for block in graph.blocks.values()]
    turning = {"rope" in names for names in inside if "attention" in names and "qkv" in names}
    features = {"rotary positions in some layers only"} if len(turning) > 1 else set()
    for names in inside:
        if {"rope", "qk_norm"} <= {*names} and names.index("rope") < names.index("qk_norm"):
            features.add("heads that are normed after they turned")
    features |= {"a vision tower"} if "vision.seq" in graph.dims else set()
    return features | set(graph.details.unbuilt)


def _beyond(every: list[Operator], layer: Mapping[str, Operator], before: Sequence[Operator]) -> set[str]:
    strange = {op.kind for op in every if op.kind not in PLAIN_KINDS | EXPERT_KINDS}
    strange |= {op.name for op in every if op.name in ("kv_down", "join", "shared_up")}
    strange |= {"embedding_norm" for op in before if op.name == "embedding_norm"}
    strange |= {"attention that is not causal" for op in every if op.attention and not op.attention.causal}
    return strange if "qkv" in layer or strange else {"attention without a QKV product"}
