"""The training state of a rank as named tensors: parameters, and the optimizer's state of each."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from simpar.plan.optimizers import InTorch, in_torch
from simpar.runtime.decoder import TABLE
from simpar.runtime.offload import OnHost
from simpar.runtime.saved import DELAYED
from simpar.runtime.sharded import shard_like
from simpar.runtime.update import Owned, StepUpdate


def named_tensors(update: StepUpdate) -> list[dict[str, Any]]:
    """Every tensor in this rank's checkpoints, by name; DTensors for sharded parameters.

    The second dict holds the copy of tied embeddings on the last stage under the name of the first copy. It may be
    sharded differently, so only the first copy is saved, and this one is loaded after it.
    """
    result: list[dict[str, Any]] = [{}, {}]
    for each, name, tensor in _tensors(update):
        result[each.twin][name] = tensor
    if update.loss_scale is not None:
        result[0]["loss_scale"] = update.loss_scale.state
    return result


def _tensors(update: StepUpdate) -> Iterator[tuple[Owned, str, Any]]:
    """The tensors of an update; optimizer states that do not exist yet are created as zeros, to load into.

    With delayed updates the host is a step ahead of the parameters.
    """
    for optimizer in update.hosted():
        optimizer.settle()
    for each in update.owned:
        yield each, f"model.{_name(each)}", each.parameter.detach()
    for each, home, state in _remembered(update):
        if update.scope.plan.offload.offload_delayed and home is not each.local:
            yield each, f"{DELAYED}.{_name(each)}", shard_like(home.detach(), each.parameter)
        for moment in _of(update).states:
            if state.get(moment) is None:
                state[moment] = torch.zeros_like(home, dtype=_kept_dtype(update, home))
            yield each, f"optimizer.{_name(each)}.{moment}", shard_like(state[moment], each.parameter)


def finish_loading(update: StepUpdate, steps: int) -> None:
    """After loading: tell the optimizer the number of past steps, and the host its parameters.

    Some optimizers correct their states by that number.
    """
    if update.rounding is not None:
        update.rounding.step = steps
    if not update.scope.plan.offload.offload_delayed:
        for optimizer in update.hosted():
            optimizer.read_again()
    if not _of(update).counts_steps:
        return
    if update.loss_scale is not None:
        steps -= update.loss_scale.left_out
    for _, home, state in _remembered(update):
        state["step"] = torch.tensor(float(steps), device=home.device)


def _kept_dtype(update: StepUpdate, home: Any) -> Any:
    """Of what an optimizer keeps beside a parameter: the parameter's, unless that has 16 bits and these more."""
    kept = update.scope.plan.numerics.moment_dtype
    return home.dtype if update.rounding is None or kept == "bf16" else torch.float32


def _of(update: StepUpdate) -> InTorch:
    """The entry of the plan's optimizer in torch."""
    return in_torch(update.scope.plan.numerics.optimizer)


def _name(each: Owned) -> str:
    """Both copies of tied embeddings have the table's name."""
    return TABLE if each.twin else each.name


def _remembered(update: StepUpdate) -> Iterator[tuple[Owned, Any, dict[str, Any]]]:
    """Parameters, the tensor that is updated, and the optimizer's state of each.

    Under ZeRO-1, only of the parameters that this rank updates.
    """
    local = [each.optim if isinstance(each, ZeroRedundancyOptimizer) else each for each in update.optimizers]
    holder = {
        id(parameter): optimizer
        for optimizer in local
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for each in update.owned:
        optimizer = holder.get(id(each.local))
        if optimizer is not None:
            home = optimizer.copies[each.local] if isinstance(optimizer, OnHost) else each.local
            yield each, home, optimizer.state[each.local]
