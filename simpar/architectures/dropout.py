"""Another dropout than a model's own: launches say rates beside a model that they name, or their framework has some."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.config import Config
from simpar.architectures.graph import Block, ModelGraph, Operator
from simpar.architectures.products import HIDDEN, TOKENS
from simpar.errors import UserError

FIELD = "launch_dropout"
"""Rates in a config that hold for all families: a mapping with :data:`ATTENTION`, :data:`HIDDEN_STATES`, or both."""
ATTENTION, HIDDEN_STATES = "attention", "hidden"
TOWERS = ("vision", "connector", "encoder")
"""Scopes of blocks beside the language model, which have rates of their own."""


def with_dropout(graph: ModelGraph, attention: float | None = None, hidden: float | None = None) -> ModelGraph:
    """The model with rates of its attention's weights, and of embeddings and branches; None: as it has them.

    Hidden states are dropped where Megatron-Core does it: behind the embedding, and where branches join the residual.
    """
    rates = graph.details.dropout
    if attention is not None:
        rates = replace(rates, attention=attention)
    if hidden is not None:
        rates = replace(rates, embedding=hidden, residual=hidden)
    if rates == graph.details.dropout:
        return graph
    embedding, blocks = graph.embedding, dict(graph.blocks)
    if hidden is not None:
        embedding = _drop_last(_without(embedding)) if hidden else _without(embedding)
    for name, block in graph.blocks.items():
        if block.scope in TOWERS:
            continue
        if hidden is not None:
            block = _drop_branches(_without(block)) if hidden else _without(block)
        blocks[name] = block if attention is None else _of_attention(block, drops=attention > 0)
    return replace(graph, embedding=embedding, blocks=blocks, details=replace(graph.details, dropout=rates))


def with_dropout_said(graph: ModelGraph, said: Mapping[str, Any] | None, source: str) -> ModelGraph:
    """The model with the rates of :data:`FIELD` in its config. Raises UserError."""
    if said is None:
        return graph
    if other := set(said) - {ATTENTION, HIDDEN_STATES}:
        raise UserError(f"{source}: {FIELD}: {min(other)}: allowed: {ATTENTION}, {HIDDEN_STATES}")
    fields = Config(said, f"{source}: {FIELD}")
    return with_dropout(graph, **{name: fields.rate(name) for name in said})


def _drop(name: str, source: str) -> Operator:
    return Operator(name, "dropout", TOKENS, HIDDEN, "sequence", inputs=(source,), saves=("mask",))


def _without(block: Block) -> Block:
    """The block without its dropout: what reads it reads its input."""
    sources = {op.name: op.inputs[0] for op in block.operators if op.kind == "dropout"}
    if not sources:
        return block

    def swapped(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sources.get(name, name) for name in names)

    kept = (op for op in block.operators if op.name not in sources)
    return replace(
        block, operators=tuple(replace(op, inputs=swapped(op.inputs), saves=swapped(op.saves)) for op in kept)
    )


def _drop_last(block: Block) -> Block:
    return replace(block, operators=(*block.operators, _drop("embedding_dropout", block.operators[-1].name)))


def _drop_branches(block: Block) -> Block:
    """The block with dropout of every branch, before its sum with the residual."""
    ops: list[Operator] = []
    for op in block.operators:
        if op.kind != "add" or not op.name.endswith("residual") or len(op.inputs) == 1:
            ops.append(op)
            continue
        kept, first, *rest = op.inputs
        name = f"{op.name.removesuffix('residual').rstrip('_') or 'branch'}_dropout"
        ops += [_drop(name, first), replace(op, inputs=(kept, name, *rest))]
    return replace(block, operators=tuple(ops))


def _of_attention(block: Block, *, drops: bool) -> Block:
    return replace(block, operators=tuple(
        replace(op, attention=replace(op.attention, dropout=drops)) if op.attention else op for op in block.operators
    ))  # fmt: skip
