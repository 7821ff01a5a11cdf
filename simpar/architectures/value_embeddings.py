"""Value embeddings: in some layers, a table of its own gives every token a vector that is added to its values.

A layer looks its tokens up in a table of V x k d, multiplies every head's part by a gate, a sigmoid of a product with
the first g features of the normed stream (k x g weights), and adds it to the values before attention [nanochat,
nanochat/gpt.py, ``value_embeds`` and ``ve_gate``; modded-nanogpt; cf. Zhou et al. 2024, arXiv 2410.17897]. That takes
2 g k FLOP a token. One kernel reads values, embedding and gate and writes the sum; embedding and gate are kept for
backward. Tensor parallelism divides tables and gates by heads, so that no sum of partial tables follows.
"""

from collections.abc import Sequence
from dataclasses import replace

from simpar.architectures.graph import Block, ModelGraph, Operator, Size, Weight, term
from simpar.architectures.products import TOKENS, product, project
from simpar.architectures.streams import mix

ROWS = "value_vocab"
VALUES: Size = term("kv_heads", "head_dim")
READ: Size = (*term("kv_heads", "head_dim", times=2), *term("kv_heads"))


def with_value_embeddings(graph: ModelGraph, layers: Sequence[bool], features: int) -> ModelGraph:
    """The decoder with a table in the marked layers, whose gates read ``features`` of the stream (0: no gates)."""
    names = tuple(
        f"{name}_value_embedding" if marked else name for name, marked in zip(graph.layers, layers, strict=True)
    )
    blocks = {
        new: replace(_with_table(graph.blocks[old], features), name=new) if marked else graph.blocks[old]
        for new, old, marked in zip(names, graph.layers, layers, strict=True)
    }
    return replace(graph, blocks=blocks, layers=names, dims={**graph.dims, ROWS: graph.dims["vocab"]})


def _with_table(block: Block, features: int) -> Block:
    """The layer with the table's values beside those of its packed product."""
    table = Weight("value_embedding.weight", product(term(ROWS), VALUES), "embedding")
    source = block.operator("qkv").inputs[0]
    gate = project("value_gate", source, term(times=features), term("kv_heads")) if features else None
    reads = ("value_embedding", *(["value_gate"] if features else []))
    size = READ if features else READ[:1]
    added = replace(mix("value_sum", size, VALUES, "qkv", *reads, saves=reads if features else ()), region="tensor")
    result: list[Operator] = []
    for op in block.operators:
        if op.name == "attention":
            op = replace(op, inputs=(*op.inputs, "value_sum"))
        result.append(op)
        if op.name == "qkv":
            looked_up = Operator("value_embedding", "embedding", TOKENS, VALUES, "tensor", weights=(table,))
            result += [looked_up, *([gate] if gate else []), added]
    return replace(block, operators=tuple(result))
