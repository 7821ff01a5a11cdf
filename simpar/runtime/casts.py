"""Weights in the dtype of the computation, cast once for all microbatches of a step.

The backward of a product reads the weight that its forward read. Cast anew by every microbatch, each of those in flight
would keep a copy of all weights. One copy is one node of autograd's graph, through which the gradient of every
microbatch comes back to the parameter in the parameter's own dtype: the numbers are those of a copy each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_copies: dict[tuple[int, Any, bool], tuple[Tensor, Tensor]] = {}
"""A parameter, so that no other takes its identity, and its copy: by that identity, dtype and whether gradients are
recorded. Backward passes may read it in threads of autograd's."""
_shares: list[bool] = [False]


@contextmanager
def cast_once() -> Iterator[None]:
    """Inside, :func:`cast` makes one copy of every parameter, which must not change meanwhile."""
    _shares.append(True)
    try:
        yield
    finally:
        _shares.pop()
        _copies.clear()


def cast(weight: Tensor, dtype: Any) -> Tensor:
    """A weight in a dtype, itself where it has that.

    Compiled code casts where it needs the copy: it makes it again in backward by itself. Weights that are computed
    from parameters are not kept, nor what is no leaf.
    """
    if torch.compiler.is_compiling() or weight.dtype == dtype or not _shares[-1]:
        return weight.to(dtype)
    if not (
        isinstance(weight, nn.Parameter) and weight.is_leaf
    ):  # the local part of a DTensor passes for a Parameter
        return weight.to(dtype)
    key = (id(weight), dtype, torch.is_grad_enabled())
    if key not in _copies:
        _copies[key] = (weight, weight.to(dtype))
    return _copies[key][1]
