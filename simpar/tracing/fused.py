"""Functions of transformers that stand for fused kernels of other packages: recorded as one call, read as one operator.

Where such a package is missing, transformers computes what its kernel does with torch's own operators, in loops over
chunks. Training runs the kernel, so the call is recorded whole, by the kernel's name that the library states.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from types import FunctionType
from typing import Any

from simpar.dataclass import dataclass
from simpar.tracing.nodes import CallNode, divide_size
from simpar.tracing.raw_operators import DraftWeight, OperatorDraft, RecurrenceDraft
from simpar.tracing.vocabulary import CONVOLUTION


@dataclass(frozen=True)
class FusedKernel:
    """What a kernel counts as (``op``), the arguments that it reads, and whether it also returns a state.

    Its output is like its argument ``like``.
    """

    op: str
    reads: tuple[str, ...]
    like: str
    with_state: bool = False


SELECTIVE = "selective_scan"
"""The scan of Mamba-1 [Gu and Dao 2023, arXiv 2312.00752]. It counts as one of Mamba-2 with heads of one feature."""
_DELTA = ("query", "key", "value", "g", "beta", "chunk_size")
KERNELS: Mapping[str, FusedKernel] = {
    "chunk_gated_delta_rule": FusedKernel("gated_delta", _DELTA, "value", with_state=True),
    "chunk_kda": FusedKernel("channel_delta", _DELTA, "value", with_state=True),
    "mamba_chunk_scan_combined": FusedKernel(
        "scan", ("hidden_states", "B", "C", "dt", "A", "D", "dt_bias", "chunk_size"), "hidden_states"
    ),
    "selective_scan_fn": FusedKernel(
        SELECTIVE, ("hidden_states", "B", "C", "dt", "A", "D", "z", "delta_bias"), "hidden_states"
    ),
    "causal_conv1d_fn": FusedKernel("convolution", ("hidden_states", "weight", "bias"), "hidden_states"),
}
"""By name in flash-linear-attention, mamba-ssm and causal-conv1d."""
CHUNK = 256
"""Tokens of a piece of a scan whose call names none: the default of Mamba-2."""
Note = Callable[[str, tuple[Any, ...], Any], Any]
"""Records a call of an operator with arguments that makes a tensor like another one; the tensor."""


@contextmanager
def whole_kernels(module: Any, note: Note) -> Iterator[None]:
    """While it lasts, the classes of ``module`` and its parts call ``note`` in place of functions of KERNELS."""
    replaced: list[tuple[dict[str, Any], str, Any]] = []
    for place in {type(each).__module__ for each in module.modules()}:
        names = vars(sys.modules[place])
        for name, function in list(names.items()):
            if (kernel := KERNELS.get(kernel_name(function))) is not None:
                replaced.append((names, name, function))
                names[name] = _stand_in(function, kernel, note)
    try:
        yield
    finally:
        for names, name, function in replaced:
            names[name] = function


def kernel_name(function: Any) -> str:
    """The kernel that a function of transformers stands for ("" for all others)."""
    if not isinstance(function, FunctionType) or "func_name" not in function.__code__.co_freevars:
        return ""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return str(cells["func_name"].cell_contents)


def _stand_in(function: Any, kernel: FusedKernel, note: Note) -> Callable[..., Any]:
    signature = inspect.signature(function)

    def recorded(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = tuple(bound.arguments.get(name) for name in kernel.reads)
        result = note(kernel.op, given, bound.arguments[kernel.like])
        return (result, None) if kernel.with_state else result

    return recorded


def convolution_draft(
    node: CallNode, values: tuple[str, ...], weight: tuple[DraftWeight, ...], bias: tuple[DraftWeight, ...]
) -> OperatorDraft:
    """A short convolution of every channel [batch, channels, seq], its activation included, that reads ``values``."""
    channels = node.sizes[1]
    pieces = (*(replace(each, kind="matrix") for each in weight), *bias)
    return OperatorDraft(
        node.name, CONVOLUTION, divide_size(node.numel, channels), channels, values, (node.name,), node.owners, 0,
        pieces, values,
    )  # fmt: skip


def recurrence_draft(
    node: CallNode, nodes: Mapping[str, CallNode], values: tuple[str, ...], pieces: tuple[DraftWeight, ...]
) -> RecurrenceDraft:
    """A pass over the sequence with a state for every head; tensors are [batch, seq, heads, width].

    Those of Mamba-1 are [batch, channels, seq], and [batch, states, seq] its B and C.
    """
    if node.op == SELECTIVE:
        channels, states = (nodes[each.name].sizes[1] for each in node.args[:2])
        columns, chunk = channels, CHUNK
        dims = {"mamba_heads": channels, "mamba_head_dim": 1, "mamba_groups": 1, "state": states}
    else:
        columns, chunk = prod(node.sizes[2:]), int(node.args[-1])
        dims = _state(node.op, *(nodes[each.name].sizes[-2:] for each in node.args[:3]))
    kind = "scan" if node.op == SELECTIVE else node.op
    return RecurrenceDraft(
        node.name, kind, divide_size(node.numel, columns), columns, values, (node.name,), node.owners, 0, pieces,
        values, dims=(*dims.items(), ("chunk", chunk)),
    )  # fmt: skip


def _state(op: str, one: tuple[int, ...], two: tuple[int, ...], three: tuple[int, ...]) -> dict[str, int]:
    """The sizes of a pass's state, by the heads and widths of its first three tensors."""
    if op == "scan":
        return {"mamba_heads": one[0], "mamba_head_dim": one[1], "mamba_groups": two[0], "state": two[1]}
    return {
        "linear_heads": three[0], "linear_key_heads": two[0], "linear_key_dim": two[1], "linear_value_dim": three[1],
    }  # fmt: skip
