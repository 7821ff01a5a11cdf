"""What lives on the host: bytes of a rank there and on the drives, and bytes that its processors move."""

from simpar.cost.memory.widths import host_widths, parameter_widths
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.stacks.stack import Stack


@dataclass(frozen=True)
class HostMemory:
    """Bytes of one rank in its host's memory, and on its drives."""

    optimizer_bytes: float = 0.0
    gradients_bytes: float = 0.0
    parameters_bytes: float = 0.0
    activations_bytes: float = 0.0
    nvme_bytes: float = 0.0

    @property
    def memory_bytes(self) -> float:
        """Bytes in host memory; drives are left out."""
        return self.optimizer_bytes + self.gradients_bytes + self.parameters_bytes + self.activations_bytes


def host_memory(
    layout: Layout, stack: Stack, share: float, frozen: float, activations_bytes: float, *, accumulates: bool = False
) -> HostMemory:
    """What a rank keeps on the host; ``share`` is the number of parameters that it updates.

    ``frozen`` are its frozen weights, in elements of the compute dtype. Widths are those of
    :func:`simpar.cost.memory.widths.host_widths`. :func:`host_notes` says what is not counted.
    """
    widths = host_widths(layout, stack, accumulates=accumulates)
    away = layout.host_share * share
    states = away * widths.states
    parameters = share * widths.parameter + frozen * parameter_widths(layout, stack).compute
    return HostMemory(
        optimizer_bytes=states * (layout.offload_optimizer == "cpu"),
        gradients_bytes=away * (widths.gradient + widths.received),
        parameters_bytes=parameters * (layout.offload_parameters == "cpu") + away * widths.sent,
        activations_bytes=activations_bytes,
        nvme_bytes=states * (layout.offload_optimizer == "nvme") + parameters * (layout.offload_parameters == "nvme"),
    )


PINNED = "host memory without what torch's allocator adds where it is pinned: it rounds arrays up to powers of two"
FLAT = "host memory without what torch's allocator adds where it is pinned: up to as much again, for flat arrays"
DRIVES = "buffers in host memory through which drives read and write are not modelled"
SUMS = "DeepSpeed adds gradients of further microbatches on the device, from and to the host; timed is a sum there"


def host_notes(layout: Layout, stack: Stack, *, accumulates: bool) -> list[str]:
    """What of offloading is not modelled, in words: of the host's memory, and of its copies.

    [torch, ATen/core/CachingHostAllocator.h, roundSize; DeepSpeed, runtime/zero/stage_1_and_2.py,
    async_accumulate_grad_in_cpu_via_gpu, and stage3.py, partition_grads]
    """
    flat, away = stack.numerics.update.flat, layout.offload_optimizer == "cpu"
    pinned = away or layout.offload_parameters == "cpu" or layout.offload_activations > 0
    said = {
        FLAT if flat else PINNED: pinned,
        DRIVES: "nvme" in (layout.offload_optimizer, layout.offload_parameters),
        SUMS: flat and away and accumulates and bool(layout.offload_gradients),
    }
    return [words for words, holds in said.items() if holds]


def update_bytes(layout: Layout, stack: Stack) -> float:
    """Bytes of host memory traffic for the update of one parameter.

    AdamW reads the gradient, the parameter and two moments, and writes the last three: in fp32, 16 + 12. Where it is
    not the offloaded parameter itself, nor sent as it is, a copy as devices store it is written as well: 2 in bf16.
    """
    widths = host_widths(layout, stack)
    beside = widths.copy and (layout.offload_parameters != "none" or widths.updated != widths.parameter)
    moved = widths.gradient + 2 * (widths.updated + widths.moments)
    return moved + (widths.parameter if beside else 0.0)
