"""What fully_shard and DTensor do around their collectives, timed: copies of shards, and dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from simpar.calibrate.request import Request, Sample
from simpar.calibrate.stopwatch import Members, Stopwatch

WIDTH, MATRICES = 512, 8
ROWS = (2, 256)
PAIR_BYTES = ROWS[0] * ROWS[1] * WIDTH * 4


def wrappers(request: Request, members: Members, watch: Stopwatch) -> Iterator[Sample]:
    """Sharded parameters gathered; gradients of a pass over them reduced; a tensor-parallel pair of products."""
    mesh = DeviceMesh.from_group(members.group, watch.device.type, mesh_dim_names=("all",))
    plain, sharded = (_stack(WIDTH).to(watch.device) for _ in range(2))
    fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
    row = torch.randn(1, WIDTH, device=watch.device)

    def gather() -> None:
        sharded.unshard()
        sharded.reshard()

    size = MATRICES * WIDTH**2 * 4
    works = {"unshard": gather, "sharded pass": _pass(sharded, row), "plain pass": _pass(plain, row)}
    works |= _pair(mesh, members, watch.device)
    for name, work in works.items():
        times = watch.time_together(work, members, request.machine.threads)
        moved = PAIR_BYTES if "pair" in name else size
        yield Sample(
            kind="wrapper", name=name, shape=(members.size, moved), seconds=times.seconds, spread=times.spread,
            repeats=times.repeats, load=times.load,
        )  # fmt: skip


def _stack(width: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(MATRICES)))


def _pass(model: nn.Module, x: Any) -> Callable[[], None]:
    """Forward and backward of one row: little but reading weights and writing their gradients."""

    def both_ways() -> None:
        model(x).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None

    return both_ways


def _pair(mesh: DeviceMesh, members: Members, device: Any) -> dict[str, Callable[[], None]]:
    """Two products of half a thousand rows forward and backward, as they are, and split with sequence parallelism."""
    plain, split = (
        nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)).to(device)
        for _ in range(2)
    )
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    styles = {"": gather, "0": ColwiseParallel(), "1": RowwiseParallel(output_layouts=Shard(1))}
    parallelize_module(split, mesh, styles)
    whole = torch.randn(*ROWS, WIDTH, device=device)
    part = whole.chunk(members.size, dim=1)[0].clone()
    return {"plain pair": _pass(plain, whole), "split pair": _pass(split, part)}
