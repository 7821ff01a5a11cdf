"""The training state of a rank as named tensors: parameters, and what the optimizer remembers of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor

from simpar.runtime.decoder import TABLE
from simpar.runtime.update import Owned, Update

MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": (), "sgd_momentum": ("momentum_buffer",)}


def named_tensors(update: Update) -> list[dict[str, Any]]:
    """Every tensor a checkpoint of this rank holds, by name; DTensors where a parameter is sharded.

    The second dict holds tensors whose name is taken in the first: both copies of tied embeddings, where first and
    last stage are on one rank. They are loaded after the first and need not be saved.
    """
    found: list[dict[str, Any]] = [{}, {}]
    for name, tensor in _tensors(update):
        found[name in found[0]][name] = tensor
    return found


def _tensors(update: Update) -> Iterator[tuple[str, Any]]:
    """What the optimizer does not remember yet is made (zero), so that it can be loaded into."""
    for each in update.owned:
        yield f"model.{_name(each)}", each.parameter.detach()
    for each, state in _remembered(update):
        for moment in MOMENTS[update.scope.plan.numerics.optimizer]:
            if state.get(moment) is None:
                state[moment] = torch.zeros_like(each.local)
            yield f"optimizer.{_name(each)}.{moment}", _like(state[moment], each.parameter)


def set_steps(update: Update, steps: int) -> None:
    """Tell the optimizer how many steps lie behind it (AdamW corrects its moments by them)."""
    if update.scope.plan.numerics.optimizer != "adamw":
        return
    for each, state in _remembered(update):
        state["step"] = torch.tensor(float(steps), device=each.local.device)


def _name(each: Owned) -> str:
    """Both copies of tied embeddings go by the table's name."""
    return TABLE if each.twin else each.name


def _remembered(update: Update) -> Iterator[tuple[Owned, dict[str, Any]]]:
    """Parameters with the optimizer's state of each; under ZeRO-1 only those that this rank updates."""
    local = [each.optim if isinstance(each, ZeroRedundancyOptimizer) else each for each in update.optimizers]
    holder = {
        id(parameter): optimizer
        for optimizer in local
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for each in update.owned:
        if id(each.local) in holder:
            yield each, holder[id(each.local)].state[each.local]


def _like(local: Any, parameter: Any) -> Any:
    """A local tensor as a shard of what the parameter is a shard of."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip
