"""CUDA graphs: which operators of a block the host launches as one.

A graph of the whole step takes the host out of it. Graphs of parts (Megatron-Core's ``cuda_graph_scope``, Transformer
Engine's graphed callables) replay one part of one layer each: its attention, a Mamba mixer, a dense MLP, or of a
mixture the norm, router and shared experts before its experts. Experts' own shapes are known on the device only, so
they stay outside unless the step is captured as a whole.
"""

from collections.abc import Iterable, Sequence

from simpar.architectures.graph import Block, Operator
from simpar.architectures.linear_attention import FLOP_PER_STATE
from simpar.units import Numbers

_MIXERS = {"attention": "attention", "scan": "mamba", **dict.fromkeys(FLOP_PER_STATE, "attention")}
_EXPERTS = ("dispatch", "grouped_matmul", "combine")


def part_names(operators: Sequence[Operator]) -> tuple[str, ...]:
    """The part of its layer that each operator belongs to: attention, mamba, mlp, router, experts or ends.

    The mixer goes up to its residual addition, the part behind it up to the next one. Operators behind the last
    addition, and all of a block that is no layer (embedding, head), are "ends".
    """
    mixers = [_MIXERS[op.kind] for op in operators if op.kind in _MIXERS]
    additions = [index for index, op in enumerate(operators) if op.name.endswith("residual")]
    if not additions:
        return ("ends",) * len(operators)
    mixture = any(op.kind == "router" for op in operators)
    mixed = additions[-2] if mixers and len(additions) > 1 else additions[-1] if mixers else -1
    parts = []
    for index, op in enumerate(operators):
        if index > additions[-1]:
            parts.append("ends")
        elif index <= mixed:
            parts.append(mixers[0])
        elif op.region == "expert" or op.kind in _EXPERTS:
            parts.append("experts")
        else:
            parts.append("router" if mixture else "mlp")
    return tuple(parts)


def launches(block: Block, kernels: Iterable[Numbers], graphs: tuple[str, ...]) -> Numbers:
    """Launches by the host for one pass through a block; ``kernels`` are those of each operator, in order.

    A captured part is one launch, a captured step none. Numbers or arrays, as ``kernels`` has them.
    """
    if not graphs:
        return sum(kernels)
    if "step" in graphs:
        return 0.0
    parts = part_names(block.operators)
    outside = sum(count for count, part in zip(kernels, parts, strict=True) if part not in graphs)
    return outside + len({part for part in parts if part in graphs})
