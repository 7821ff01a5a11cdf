"""The work of fully_shard and DTensor around their collectives, timed: copies of shards, and dispatch."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

from simpar.calibrate.request import CalibrationRequest, Sample
from simpar.calibrate.stopwatch import Members, Stopwatch

WIDTH, MATRICES = 512, 8
ROWS, LAYER_WIDTH = (2, 256), 256
LAYER_BYTES = ROWS[0] * ROWS[1] * LAYER_WIDTH * 4


def wrappers(request: CalibrationRequest, members: Members, watch: Stopwatch) -> Iterator[Sample]:
    """Sharded parameters gathered, gradients of a pass over them reduced, and the products of a layer, split."""
    mesh = DeviceMesh.from_group(members.group, watch.device.type, mesh_dim_names=("all",))
    plain, sharded = (_stack(WIDTH).to(watch.device) for _ in range(2))
    fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
    row = torch.randn(1, WIDTH, device=watch.device)

    def gather() -> None:
        sharded.unshard()
        sharded.reshard()

    size = MATRICES * WIDTH**2 * 4
    works = {"unshard": gather, "sharded pass": _pass(sharded, row), "plain pass": _pass(plain, row)}
    works |= _layer(mesh, members, watch.device)
    for name, work in works.items():
        times = watch.time_together(work, members, request.machine.threads)
        moved = LAYER_BYTES if "layer" in name else size
        yield Sample(
            kind="wrapper", name=name, shape=(members.size, moved), seconds=times.seconds, spread=times.spread,
            repeats=times.repeats, load=times.load,
        )  # fmt: skip


def _stack(width: int) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(MATRICES)))


def _pass(model: nn.Module, x: Any) -> Callable[[], None]:
    """Forward and backward of one row: mostly reading weights and writing their gradients."""

    def both_ways() -> None:
        model(x).sum().backward()
        x.grad = None
        for parameter in model.parameters():
            parameter.grad = None

    return both_ways


class Parallel(nn.Module):
    """Products of the same input, each with an output of its own; their sum."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(outputs))

    def forward(self, x: Any) -> Any:
        """Shape [batch, seq, width] in and out."""
        outputs = [part(x) for part in self.parts]
        return sum(outputs[1:], start=outputs[0])


def _layer(mesh: DeviceMesh, members: Members, device: Any) -> dict[str, Callable[[], None]]:
    """All products of a layer on 512 rows, unsplit, and split with sequence parallelism.

    The overhead of DTensor around a collective includes that around its products, of which a layer has seven: query,
    key and value, output, gate and up, down.
    """
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    plain, split = (
        nn.Sequential(
            *(Parallel(LAYER_WIDTH, 3), nn.Linear(LAYER_WIDTH, LAYER_WIDTH, bias=False)),
            *(Parallel(LAYER_WIDTH, 2), nn.Linear(LAYER_WIDTH, LAYER_WIDTH, bias=False)),
        ).to(device)
        for _ in range(2)
    )
    styles = dict.fromkeys(("0", "2"), gather)
    styles |= {f"{each}.parts.*": ColwiseParallel() for each in ("0", "2")}
    styles |= {each: RowwiseParallel(output_layouts=Shard(1)) for each in ("1", "3")}
    parallelize_module(split, mesh, styles)
    whole = torch.randn(*ROWS, LAYER_WIDTH, device=device, requires_grad=True)  # layers precede it
    part = whole.detach().chunk(members.size, dim=1)[0].clone().requires_grad_()
    return {"plain layer": _pass(plain, whole), "split layer": _pass(split, part)}
