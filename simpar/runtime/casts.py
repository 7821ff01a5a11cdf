"""Weights in the compute dtype, cast once for all microbatches of a step.

The backward of a product reads the weight that its forward read. If every microbatch cast anew, each microbatch in
flight would keep a copy of all weights. A single copy is one node of autograd's graph, through which the gradient of
every microbatch returns to the parameter in the parameter's own dtype, so the numbers are the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_copies: dict[tuple[int, Any, bool], tuple[Tensor, Tensor]] = {}
"""Copies by the parameter's id, dtype and whether gradients are recorded, each with its parameter.

Keeping the parameter keeps its id unique. Backward passes may read the copies in autograd's threads.
"""
_shares: list[bool] = [False]


@contextmanager
def cast_once() -> Iterator[None]:
    """Inside this context :func:`cast` makes one copy of every parameter; parameters must not change meanwhile."""
    _shares.append(True)
    try:
        yield
    finally:
        _shares.pop()
        _copies.clear()


def cast(weight: Tensor, dtype: Any) -> Tensor:
    """A weight in a dtype; the weight itself if it has that dtype.

    Compiled code casts where it needs the copy, and recomputes it in the backward by itself. Weights that are computed
    from parameters, and other non-leaf tensors, are not kept.
    """
    if torch.compiler.is_compiling() or weight.dtype == dtype or not _shares[-1]:
        return weight.to(dtype)
    if not (isinstance(weight, nn.Parameter) and weight.is_leaf):  # the local part of a DTensor looks like a Parameter
        return weight.to(dtype)
    key = (id(weight), dtype, torch.is_grad_enabled())
    if key not in _copies:
        _copies[key] = (weight, weight.to(dtype))
    return _copies[key][1]
