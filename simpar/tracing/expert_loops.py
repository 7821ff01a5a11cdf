"""Classes of experts that loop over those that tokens chose, which depends on data: they run as grouped products.

A class of experts reads the tokens, each token's experts and their weights, and holds one stack of matrices for the
products before the activation and one for the product behind it. Training groups the tokens by expert, as transformers
does itself where a class leaves the choice to it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

ROUTED = ("hidden_states", "top_k_index", "top_k_weights")
"""What ``forward`` of a class of experts reads in transformers."""
ONE_HOT = ("hidden_states", "selected_experts", "routing_weights")
"""The same of Switch Transformers: experts are modules of their own, a token's is told by ones among zeros."""


@contextmanager
def grouped_experts(module: Any) -> Iterator[None]:
    """While it lasts, parts of ``module`` that loop over experts run as grouped products."""
    replaced = []
    for each in module.modules():
        if (experts := _stacks(each)) is not None:
            each.forward = partial(_grouped, each, *experts)
        elif (experts := _modules(each)) is not None:
            each.forward = partial(_one_hot, each, *experts)
        else:
            continue
        replaced.append(each)
    try:
        yield
    finally:
        for each in replaced:
            del each.forward


def _stacks(module: Any) -> tuple[Callable[[], tuple[Any, Any]], Callable[[Any], Any]] | None:
    """What gives the stacks [experts, columns, contraction] of a class that loops, and its activation; else None."""
    forward = type(module).forward
    if tuple(inspect.signature(forward).parameters)[1:] != ROUTED or hasattr(forward, "__wrapped__"):
        return None  # the decorator of transformers wraps those that leave the choice to it
    if _dims(module, "gate_up_proj", "down_proj") == (3, 3):
        gate = getattr(module, "_apply_gate", None) or partial(_gated, module.act_fn)
        return lambda: (module.gate_up_proj, module.down_proj), gate
    inner = getattr(module, "mlp", None)
    if inner is not None and _dims(inner, "w1", "v1", "w2") == (2, 2, 2):  # DBRX: experts below each other
        return partial(_unpacked, module), partial(_gated, inner.activation_fn)
    return None


def _modules(module: Any) -> tuple[Callable[[], tuple[Any, Any]], Callable[[Any], Any]] | None:
    """The same of a class that holds its experts as modules of two products; else None."""
    if tuple(inspect.signature(type(module).forward).parameters)[1:] != ONE_HOT:
        return None
    first = next(iter(module.values()), None)
    if first is None or _dims(first.wi, "weight") != (2,) or _dims(first.wo, "weight") != (2,):
        return None
    return partial(_stacked, module), lambda rows: first.dropout(first.act(rows))


def _stacked(module: Any) -> tuple[Any, Any]:
    import torch

    experts = list(module.values())
    return torch.stack([each.wi.weight for each in experts]), torch.stack([each.wo.weight for each in experts])


def _one_hot(
    module: Any,
    stacks: Callable[[], tuple[Any, Any]],
    gate: Callable[[Any], Any],
    hidden_states: Any,
    selected_experts: Any,
    routing_weights: Any,
) -> Any:
    return _grouped(module, stacks, gate, hidden_states, selected_experts.argmax(-1), routing_weights)


def _dims(module: Any, *names: str) -> tuple[int, ...]:
    return tuple(getattr(getattr(module, name, None), "ndim", 0) for name in names)


def _unpacked(module: Any) -> tuple[Any, Any]:
    import torch

    sizes = (module.num_experts, module.ffn_hidden_size, module.hidden_size)
    first, other, down = (weight.view(sizes) for weight in (module.mlp.w1, module.mlp.v1, module.mlp.w2))
    return torch.cat([first, other], dim=1), down.transpose(1, 2)


def _gated(activation: Callable[[Any], Any], rows: Any) -> Any:
    first, other = rows.chunk(2, dim=-1)
    return activation(first) * other


def _grouped(
    module: Any,
    stacks: Callable[[], tuple[Any, Any]],
    gate: Callable[[Any], Any],
    hidden_states: Any,
    top_k_index: Any,
    top_k_weights: Any,
) -> Any:
    """The sum of a token's experts: rows picked by expert, two grouped products, rows weighted and summed up."""
    import torch

    up, down = stacks()
    tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
    chosen = _chosen(module, top_k_index)
    index, weights = top_k_index[:, :chosen], top_k_weights[:, :chosen]
    experts, order = torch.sort(index.reshape(-1))
    ends = torch.cumsum(torch.histc(experts.float(), bins=down.shape[0], min=0, max=down.shape[0] - 1), 0)
    rows = torch._grouped_mm(tokens[order // chosen], up[: down.shape[0]].transpose(1, 2), ends.int())
    rows = torch._grouped_mm(gate(rows), down.transpose(1, 2), ends.int())
    weighted = rows * weights.reshape(-1)[order].unsqueeze(-1)
    back = torch.argsort(order)
    return weighted[back].view(tokens.shape[0], chosen, -1).sum(1).view_as(hidden_states)


def _chosen(module: Any, index: Any) -> int:
    """Experts of a token; where some choices are "zero" experts, which cost nothing, the experts' share of all."""
    zero = getattr(module, "zero_expert_num", 0)
    return max(round(index.shape[-1] * (1 - zero / module.total_experts)), 1) if zero else int(index.shape[-1])


__all__ = ["grouped_experts"]
