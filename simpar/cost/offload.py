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


def host_memory(layout: Layout, stack: Stack, share: float, frozen: float, activations_bytes: float) -> HostMemory:
    """What a rank keeps on the host; ``share`` is the number of parameters that it updates.

    ``frozen`` are its frozen weights, in elements of the compute dtype. Widths are those of
    :func:`simpar.cost.memory.widths.host_widths`. The buffers through which drives read and write are not counted, nor
    what allocators of pinned memory round up.
    """
    widths = host_widths(layout, stack)
    away = layout.host_share * share
    states = away * widths.states
    parameters = share * widths.parameter + frozen * parameter_widths(layout, stack).compute
    return HostMemory(
        optimizer_bytes=states * (layout.offload_optimizer == "cpu"),
        gradients_bytes=away * (widths.gradient + widths.received),
        parameters_bytes=parameters * (layout.offload_parameters == "cpu"),
        activations_bytes=activations_bytes,
        nvme_bytes=states * (layout.offload_optimizer == "nvme") + parameters * (layout.offload_parameters == "nvme"),
    )


def update_bytes(layout: Layout, stack: Stack) -> float:
    """Bytes of host memory traffic for the update of one parameter.

    AdamW reads the gradient, the parameter and two moments, and writes the last three: in fp32, 16 + 12. Where it is
    not the offloaded parameter itself, nor sent as it is, a copy as devices store it is written as well: 2 in bf16.
    """
    widths = host_widths(layout, stack)
    beside = widths.copy and (layout.offload_parameters != "none" or widths.updated != widths.parameter)
    moved = widths.gradient + 2 * (widths.updated + widths.moments)
    return moved + (widths.parameter if beside else 0.0)
