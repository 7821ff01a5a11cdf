"""Encoders in front of a language model: the layers that make tokens of images or sound, and what they hand over."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simpar.architectures.graph import Block, Dims, ModelGraph, evaluate
from simpar.units import Numbers

LEFT_OUT = "left_out"
"""Key of the fact that says, in words, which parts of a config a graph has not though whoever trains it may."""
JOIN = "join"
"""Name of the operator at the end of an encoder, which copies what it made between the tokens of the text."""


def encoder_layers(graph: ModelGraph) -> int:
    """Layers up to the last one behind which the text has what the encoders made; 0 without encoders in front.

    What layers of the text attend to by themselves travels on beside them, and is no encoder in this sense.
    """
    ends = [at for at, name in enumerate(graph.layers) if _joins(graph.blocks[name])]
    front = graph.layers[: ends[-1] + 1] if ends else ()
    return len(front) if all(graph.blocks[name].scope for name in front) else 0


def encoded_elements(graph: ModelGraph, dims: Dims) -> Numbers:
    """Elements that the encoders in front hand to the language model, without the text that travels past them."""
    made: Numbers = 0.0
    for block in _ends(graph):
        own = block.view(dims)
        source = block.operator(block.operators[-1].inputs[0])
        made = made + evaluate(source.rows, own) * evaluate(source.columns, own) + evaluate(block.passes, own)
    return made


def leave_out(graph: ModelGraph, said: Sequence[str]) -> ModelGraph:
    """The graph of which parts are left out, which is assumed; the same without any."""
    return replace(graph, facts={**graph.facts, LEFT_OUT: tuple(said)}).assuming(*said) if said else graph


def left_out_of(graph: ModelGraph) -> tuple[str, ...]:
    """The parts of a graph's config that it has not, in words."""
    return tuple(graph.facts.get(LEFT_OUT, ()))


def _ends(graph: ModelGraph) -> Iterator[Block]:
    return (block for block in (graph.blocks[name] for name in graph.layers) if _joins(block))


def _joins(block: Block) -> bool:
    return bool(block.scope) and block.operators[-1].name == JOIN
