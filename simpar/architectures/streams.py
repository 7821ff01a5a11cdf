"""Residual streams wider than what a layer reads: hyper-connections with manifold constraints.

Every token has n streams of the hidden size. Before attention, and before the MLP, a product of all streams makes 2 n +
n^2 maps: n that add the streams up to the layer's input, n that spread its output over the streams, and n^2 that mix
them, made doubly stochastic by Sinkhorn's iterations [Xie et al. 2025, arXiv 2512.24880, section 4.1; Megatron-Core,
core/transformer/hyper_connection.py; transformers, models/deepseek_v4]. Kernels are fused as in section 4.3 there: the
product reads the streams once, one kernel iterates, one adds up, one mixes and spreads. Every tensor-parallel rank does
so for its rows of the sequence, in 16 bits or more.
"""

from dataclasses import replace

from simpar.architectures.graph import Operator, Size, Weight, term
from simpar.architectures.products import HIDDEN, TOKENS, product, project
from simpar.precisions import narrower

STREAMS: Size = term("streams", "hidden")
MAPS: Size = (*term("streams", times=2), *term("streams", "streams"))


def mix(name: str, read: Size, written: Size, *inputs: str, saves: tuple[str, ...] = ()) -> Operator:
    """One kernel that reads ``read`` elements of the inputs a row and writes ``written``, without a product."""
    return Operator(name, "mix", TOKENS, written, "sequence", contraction=read, inputs=inputs, saves=saves)


def spread(source: str) -> Operator:
    """The embedding of a token as every one of its streams."""
    return mix("streams", HIDDEN, STREAMS, source)


def collapse(branch: str, source: str, maps: Size = MAPS, factors: int = 3) -> list[Operator]:
    """The input of a branch from the streams; ``factors`` scale the maps."""
    made = project(f"{branch}_maps", source, STREAMS, maps, region="sequence")
    vectors = (Weight(f"{branch}_maps.base", maps, "vector"), Weight(f"{branch}_scale", term(times=factors), "vector"))
    made = replace(made, weights=(*made.weights, *vectors), kept_in=dict.fromkeys(narrower(16), "bf16"))
    both = (source, f"{branch}_weights")
    return [
        made,
        mix(f"{branch}_weights", maps, maps, made.name, saves=(made.name,)),
        mix(f"{branch}_collapse", STREAMS, HIDDEN, *both, saves=both),
    ]


def merge(branch: str, source: str, *ends: str) -> list[Operator]:
    """The streams behind a branch: mixed, with the sum of what the branch ends with spread over them."""
    result = Operator(f"{branch}_output", "add", TOKENS, HIDDEN, "sequence", inputs=ends)
    read = (source, f"{branch}_weights", result.name)
    return [result, mix(f"{branch}_merge", (*STREAMS, *HIDDEN), STREAMS, *read, saves=read)]


def end(source: str) -> list[Operator]:
    """What the head reads: the sum of the streams, by n maps of their own."""
    return collapse("head", source, term("streams"), 1)


def stream_product(name: str, source: str) -> Operator:
    """One product with every stream."""
    op = project(name, source, HIDDEN, HIDDEN, region="sequence")
    return replace(op, rows=product(TOKENS, term("streams")))
