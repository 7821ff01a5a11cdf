"""Classes of lightning attention that loop over pieces of the sequence: training runs a kernel that passes over it.

Such a class makes queries, keys and values by one product with an activation, and holds how much its heads decay within
a piece; the output is normed as a whole, gated and projected [Qin et al. 2024, arXiv 2405.17381].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from simpar.tracing.fused import Note

_PARTS = ("qkv_proj", "act_fn", "norm", "output_gate", "out_proj", "slope_rate", "diagonal_decay", "block_size")
LIGHTNING = "lightning"


@contextmanager
def whole_lightning(module: Any, note: Note) -> Iterator[None]:
    """While it lasts, parts of ``module`` that loop over pieces record their pass over the sequence as one call."""
    replaced = [each for each in module.modules() if all(hasattr(each, part) for part in _PARTS)]
    for each in replaced:
        each.forward = partial(_forward, each, note)
    try:
        yield
    finally:
        for each in replaced:
            del each.forward


def _forward(module: Any, note: Note, hidden_states: Any, *_: Any, **__: Any) -> tuple[Any, None]:
    import torch

    mixed = module.act_fn(module.qkv_proj(hidden_states))
    heads = (*hidden_states.shape[:2], module.num_attention_heads, 3 * module.head_dim)
    query, key, value = mixed.reshape(heads).split(module.head_dim, dim=3)
    made = note(LIGHTNING, (query, key, value, module.block_size), value)
    normed = module.norm(made.reshape(*hidden_states.shape[:2], -1))
    return module.out_proj(torch.sigmoid(module.output_gate(hidden_states)) * normed), None
