"""What offloading adds to a step: which bytes cross to the host and back, and the update on its processors.

| what | where it goes | beside |
|---|---|---|
| gradients, a block at a time | device to host | the backward |
| states, tile by tile | drives to host and back (nvme) | the update of other tiles |
| update | host memory | the device's own share (ratio < 1), or the next step's passes (delayed) |
| updated parameters, tile by tile | host to device | the update of the next tile |

The update begins when all gradients are there, because their norm clips them [Ren et al. 2021, arXiv 2101.06840,
sections 4 and 5]. A delayed update works on the gradients of the step before and begins with the step.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from simpar.cost.memory.widths import HostWidths, host_widths
from simpar.cost.offload import update_bytes
from simpar.dataclass import dataclass
from simpar.program.blocks.phases import COMPUTE
from simpar.program.job import TrainingJob
from simpar.program.structure.templates import (
    DELAYED,
    HOST_IN,
    HOST_OUT,
    HOST_UPDATE,
    TemplateNode,
    TemplateNodes,
    host_copy,
)
from simpar.units import DTYPE_BYTES, MIB

TILE_ELEMENTS = int(128 * MIB)
"""Parameters that a CPU optimizer updates before it sends them. Source: DeepSpeed, csrc/includes/cpu_adam.h."""
MOST_TILES = 32


@dataclass(frozen=True)
class HostUpdate:
    """A job's traffic with the host; ``late``: gradients are reduced behind the last backward, and not beside it.

    ``deferred``: they are reduced beside the last backward alone, and leave then.
    """

    job: TrainingJob
    late: bool
    deferred: bool = False

    @property
    def fetches(self) -> bool:
        """Whether parameters come from the host for every pass."""
        return self.job.layout.offload_parameters != "none"

    @property
    def gradient_bytes(self) -> float:
        """Bytes a parameter of gradients as the device has them."""
        return DTYPE_BYTES[self.job.layout.grad_dtype]

    @property
    def widths(self) -> HostWidths:
        """Bytes of a parameter on the host."""
        return host_widths(self.job.layout, self.job.stack)

    @property
    def accumulation(self) -> float:
        """Bytes moved on the host, per byte of gradients, to add them to their sum: read both, write one."""
        return (self.gradient_bytes + 2 * self.widths.gradient) / self.gradient_bytes

    def fetched_bytes(self, shards: int, kind: str) -> float:
        """Bytes a parameter that a rank brings from the host before a pass."""
        return self.widths.parameter / shards if self.fetches and kind != "weight_gradient" else 0.0

    def sent_bytes(self, shards: int, kind: str, *, boundary: bool) -> float:
        """Bytes a parameter of gradient that a rank sends to the host beside a pass."""
        layout = self.job.layout
        sends = kind in ("backward", "weight_gradient") and not self.late
        if not sends or not (boundary or (layout.offload_gradients and not self.deferred)):
            return 0.0
        return layout.host_share * self.gradient_bytes / shards

    def behind(self, before: Iterable[TemplateNode], parameters: float, optimizer: TemplateNode) -> TemplateNodes:
        """Nodes ``before``, then the update of a rank's ``parameters``; ``optimizer`` is the device's own update.

        The last node ends when all parameters are where they are used.
        """
        nodes = TemplateNodes(before)
        away, whole = parameters * self.job.layout.host_share, parameters * self.widths.parameter
        if away and self.late:
            copy = host_copy("gradients to host", away * self.gradient_bytes)
            nodes.add(replace(copy, streams=(COMPUTE, HOST_OUT)))
        delayed = self.job.layout.offload_delayed
        others = () if delayed else (HOST_OUT, HOST_UPDATE)
        ready = nodes.add(TemplateNode("optimizer", "all gradients", (*optimizer.streams, *others)))
        ends = [nodes.add(optimizer)]
        if away:
            start = len(nodes)
            ends += self._tiles(nodes, away, waits=() if delayed else (ready,))
            if delayed:
                apart = [replace(n, streams=tuple(s + DELAYED for s in n.streams)) for n in nodes[start:]]
                nodes[start:] = apart
        elif self.fetches:
            ends.append(nodes.add(host_copy("parameters to host", whole, after=(ends[0],))))
        if self.job.layout.offload_parameters == "nvme":
            copy = host_copy("parameters to drives", whole, op="to_nvme", after=tuple(ends))
            ends.append(nodes.add(copy))
        streams = (*optimizer.streams, HOST_OUT, HOST_IN, HOST_UPDATE)
        nodes.add(TemplateNode("optimizer", "parameters in place", streams, after=tuple(ends)))
        return nodes

    def _tiles(self, nodes: TemplateNodes, away: float, *, waits: tuple[int, ...]) -> list[int]:
        """Append updates of ``away`` parameters, tile by tile, with states from and to drives; ends to wait for."""
        layout, stack = self.job.layout, self.job.stack
        count = min(max(1, math.ceil(away / TILE_ELEMENTS)), MOST_TILES)
        share, drives = away / count, layout.offload_optimizer == "nvme"
        states, ends = self.widths.states * share, list[int]()
        for _ in range(count):
            after = waits
            if drives:
                after = (nodes.add(host_copy("states from drives", states, op="from_nvme", after=after)),)
            moved = share * update_bytes(layout, stack)
            updated = (nodes.add(host_copy("update on host", moved, op="host_update", after=after)),)
            ends += updated
            if drives:
                ends.append(nodes.add(host_copy("states to drives", states, op="to_nvme", after=updated)))
            if not self.fetches:
                size = share * self.widths.parameter
                copy = host_copy("parameters to device", size, op="to_device", after=updated)
                ends.append(nodes.add(copy))
        return ends
