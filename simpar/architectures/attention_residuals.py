"""Attention residuals: what attention, the MLP and the head read is a weighted sum over the depth of the model.

Every ``period`` layers a copy of the stream is kept in a bank, and a new sum of layers' outputs begins. Before
attention and before the MLP, a learned query scores this sum and the rows of the bank, each behind a norm, and their
mean by these weights is read [Kimi team 2026, arXiv 2603.15031, block attention residuals; arXiv 2607.24653, section
2.2]. The bank travels with the stream from one pipeline stage to the next, and is copied when it grows, as in NVIDIA's
implementation (Megatron-Bridge, models/kimi/kimi_k3_layers.py and kimi_k3_pipeline.py).
"""

from dataclasses import replace

from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, Weight, term
from simpar.architectures.products import HIDDEN
from simpar.architectures.streams import mix
from simpar.architectures.transformer import add


def with_attention_residuals(graph: ModelGraph, period: int) -> ModelGraph:
    """The decoder, of layers with attention and an MLP, with attention residuals."""
    names = tuple(f"{name}_{_rows(at, period)}{'_first' * (at % period == 0)}" for at, name in enumerate(graph.layers))
    made = {
        new: _layer(graph.blocks[old], new, _rows(at, period), first=at % period == 0)
        for at, (new, old) in enumerate(zip(names, graph.layers, strict=True))
    }
    facts = {**graph.facts, "reads_passed": True}
    return replace(graph, blocks=made, layers=names, head=_head(graph.head, _rows(len(names), period)), facts=facts)


def _rows(layer: int, period: int) -> int:
    """Rows of the bank before a layer."""
    return -(-layer // period)


def _layer(block: Block, name: str, rows: int, *, first: bool) -> Block:
    """The layer that reads a bank of ``rows``; the ``first`` one of a period adds one and begins a new sum."""
    held = rows + first
    end = block.operator("attention_residual").inputs[-1]
    picks = {
        "attention_norm": _pick("attention_pick", rows + 1, INPUT),
        "mlp_norm": _pick("mlp_pick", held + 1, "attention_residual", *(["bank"] if first else [])),
    }
    result: list[Operator] = []
    for op in block.operators:
        if op.name in picks:
            result += _behind(picks[op.name], op)
        elif first and op.name == "attention_residual":
            result.append(add(op.name, end))
        else:
            result.append(op)
    bank = term("hidden", times=held)
    if first:
        result.insert(0, mix("bank", bank, bank, INPUT))
    stream = (*HIDDEN, *bank) if first else HIDDEN
    return replace(
        block, name=name, operators=tuple(result), stream=stream, passes=term("batch", "seq", "hidden", times=held)
    )


def _head(block: Block, rows: int) -> Block:
    """The head behind a sum over the bank and the last stream."""
    final, *others = block.operators
    return replace(block, operators=(*_behind(_pick("head_pick", rows + 1, INPUT), final), *others))


def _behind(pick: Operator, norm: Operator) -> list[Operator]:
    """A weighted mean, and the norm that reads it in place of the stream."""
    return [pick, replace(norm, inputs=(pick.name,), saves=(pick.name, "stats"))]


def _pick(name: str, sources: int, *inputs: str) -> Operator:
    """The weighted mean of so many tensors, with the weights of a norm and of a query."""
    weights = tuple(Weight(f"{name}.{each}", HIDDEN, "vector") for each in ("norm", "query"))
    kept = tuple(INPUT if each == "bank" else each for each in inputs)
    return replace(mix(name, term("hidden", times=sources), HIDDEN, *inputs, saves=kept), weights=weights)
