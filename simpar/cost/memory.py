"""Static memory of a rank, exact to the byte: parameters, gradients, optimizer states, and fixed overheads.

| scheme | bytes a parameter (bf16 compute, fp32 AdamW with master weights, bf16 gradients) |
|---|---|
| none, DDP | 2 + 2 + 12 |
| ZeRO-1 | 4 + 12/N |
| ZeRO-2 | 2 + 14/N |
| ZeRO-3 | 16/N |

With fp32 gradients add 2 [Rajbhandari et al. 2020, arXiv 1910.02054].
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.cost.stack import Stack
from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.units import DTYPE_BYTES, MIB

MOMENTS = {"adamw": 2, "sgd_momentum": 1, "sgd": 0}
_SMALL, _LARGE = 20 * MIB, 2 * MIB


@dataclass(frozen=True)
class StaticMemory:
    """Bytes that a rank holds for the whole step."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    buffers_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes + self.buffers_bytes


def static_memory(num_parameters: int, plan: Plan, stack: Stack) -> StaticMemory:
    """Static bytes of a rank that is responsible for ``num_parameters`` (before data-parallel sharding).

    ``plan`` must be resolved (dp, gradient dtype and master weights decided). Shards are rounded up to whole
    elements.
    """
    data, numerics = plan.data_parallel, plan.numerics
    shards = int(plan.mesh.dp or 1) * plan.mesh.cp // data.hsdp if data.zero else 1
    shard = -(-num_parameters // shards)
    stored = stored_parameter_bytes(plan, stack)
    gradient = DTYPE_BYTES[numerics.grad_dtype or "fp32"]
    states = MOMENTS[numerics.optimizer] * DTYPE_BYTES["fp32"]
    if numerics.master_weights and stored < DTYPE_BYTES["fp32"]:
        states += DTYPE_BYTES["fp32"]
    return StaticMemory(
        parameters_bytes=int(stored * (shard if data.zero == 3 else num_parameters)),
        gradients_bytes=int(gradient * (shard if data.zero >= 2 else num_parameters)),
        optimizer_bytes=int(states * (shard if data.zero >= 1 else num_parameters)),
    )


def stored_parameter_bytes(plan: Plan, stack: Stack) -> float:
    """Bytes of a stored parameter: the compute precision, or fp32 where the stack keeps parameters in it."""
    if plan.numerics.precision == "fp32" or stack.numerics.parameter_dtype == "fp32":
        return DTYPE_BYTES["fp32"]
    return DTYPE_BYTES["bf16"]


def overhead_bytes(plan: Plan, stack: Stack, cluster: Cluster) -> float:
    """CUDA context and communicators: one per kind of group that the plan communicates in."""
    if cluster.device.kind == "cpu":
        return 0.0
    mesh = plan.mesh
    communicators = sum(size > 1 for size in (mesh.tp, int(mesh.dp or 1), mesh.pp, mesh.cp))
    return stack.memory.context_bytes + communicators * stack.memory.communicator_bytes


def round_allocation(size_bytes: int) -> int:
    """What the caching allocator reserves for one tensor in an empty pool.

    512 B granularity; up to 1 MiB from a 2 MiB segment, up to 10 MiB from a 20 MiB segment, larger ones rounded
    up to 2 MiB. Source: torch c10 CUDACachingAllocator constants.
    """
    rounded = -(-size_bytes // 512) * 512
    if rounded <= MIB:
        return _LARGE
    if rounded <= 10 * MIB:
        return _SMALL
    return -(-rounded // _LARGE) * _LARGE


def reserved_bytes(allocated_peak_bytes: float, stack: Stack) -> float:
    """Peak the allocator reserves: the allocated peak plus the stack's fragmentation, in whole segments."""
    padded = allocated_peak_bytes * (1.0 + stack.memory.fragmentation)
    return float(-(-padded // _LARGE) * _LARGE)


def checkpointed_peak(num_layers: int, every: int, layer_bytes: float, boundary_bytes: float) -> float:
    """Activation peak of a chain with a checkpoint every ``every`` layers.

    All boundaries plus one segment in full: minimal at about sqrt(num_layers x boundary / layer) [Chen et al.
    2016, arXiv 1604.06174].
    """
    return -(-num_layers // every) * boundary_bytes + every * layer_bytes
