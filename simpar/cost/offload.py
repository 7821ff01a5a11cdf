"""What lives on the host: bytes of a rank there and on the drives, and bytes that its processors move."""

from simpar.cost.memory.widths import parameter_widths
from simpar.cost.optimizers import moment_bytes
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES

_WIDE = DTYPE_BYTES["fp32"]


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

    ``frozen`` are its frozen weights, in elements of the compute dtype.

    Gradients wait there in fp32. The buffers through which drives read and write are not counted.
    """
    away = layout.host_share * share
    states = away * host_state_bytes(layout)
    parameters = (share + frozen) * parameter_widths(layout, stack).compute
    return HostMemory(
        optimizer_bytes=states * (layout.offload_optimizer == "cpu"),
        gradients_bytes=away * _WIDE,
        parameters_bytes=parameters * (layout.offload_parameters == "cpu"),
        activations_bytes=activations_bytes,
        nvme_bytes=states * (layout.offload_optimizer == "nvme") + parameters * (layout.offload_parameters == "nvme"),
    )


def host_state_bytes(layout: Layout) -> float:
    """Bytes per parameter of states that the host updates: moments, and the host's own fp32 copy of the parameter."""
    return moment_bytes(layout) + _WIDE


def update_bytes(layout: Layout, stack: Stack) -> float:
    """Bytes of host memory traffic for the update of one parameter.

    AdamW reads the gradient, the parameter and two moments in fp32, writes the last three and the copy that the
    device computes with: 16 + 12 + 2 = 30.
    """
    states = host_state_bytes(layout)
    return _WIDE + 2 * states + parameter_widths(layout, stack).compute
