"""Short convolutions in the place of attention: a gate before and a gate behind a causal convolution over few tokens.

One product makes both gates and the input; the convolution runs over every channel by itself [Liquid AI 2025, LFM2
Technical Report, arXiv 2511.23404; transformers, models/lfm2]. Channels are those of all heads, by which tensor
parallelism divides them. The first product's output, the convolution's input and its result are kept for backward.
"""

from simpar.architectures.graph import Operator, Weight, term
from simpar.architectures.products import HIDDEN, QUERY, TOKENS, project
from simpar.dataclass import dataclass


@dataclass(frozen=True)
class ShortConvolution:
    """A convolution over ``kernel`` tokens; ``bias`` is that of it and of both products."""

    kernel: int
    bias: bool


def short_convolution(source: str, sizes: ShortConvolution) -> list[Operator]:
    """Operators of one mixer that reads ``source``; the last is the output projection."""
    columns = term("heads", "head_dim", times=3)
    weights = [Weight("conv.weight", term("heads", "head_dim", times=sizes.kernel))]
    weights += [Weight("conv.bias", QUERY, "vector")] * sizes.bias
    return [
        project("in_proj", source, HIDDEN, columns, bias=sizes.bias),
        Operator(
            "conv_gate", "gated_activation", TOKENS, QUERY, "tensor", inputs=("in_proj",), saves=("in_proj",)
        ),
        Operator(
            "conv", "convolution", TOKENS, QUERY, "tensor", weights=tuple(weights), inputs=("conv_gate",),
            saves=("conv_gate",),
        ),
        Operator(
            "gate", "gated_activation", TOKENS, QUERY, "tensor", inputs=("conv", "in_proj"), saves=("conv", "in_proj")
        ),
        project("out_proj", "gate", QUERY, HIDDEN, bias=sizes.bias),
    ]  # fmt: skip
