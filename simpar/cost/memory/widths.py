"""What data parallelism does to a parameter in memory: bytes of each of its copies, and which of them are sharded.

Every function takes one plan, or arrays of the columns that it names.
"""

from dataclasses import replace

import numpy as np

from simpar.cost.optimizers import master_bytes, moment_bytes
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.stacks.stack import Stack
from simpar.units import DTYPE_BYTES, Flags


@dataclass(frozen=True)
class Widths:
    """Bytes per parameter: as stored, of its gradient, as computed with, of states other than moments, of moments."""

    stored: float
    gradient: float
    compute: float
    master: float
    moments: float

    @property
    def states(self) -> float:
        """Bytes of all optimizer states per parameter of a matrix inside layers."""
        return self.moments + self.master


def parameter_widths(layout: Layout, stack: Stack) -> Widths:
    """Bytes per parameter on devices and their hosts: :func:`kept_widths` without what parameter servers keep."""
    kept = kept_widths(layout, stack)
    return replace(kept, master=0.0, moments=0.0) if layout.servers else kept


def kept_widths(layout: Layout, stack: Stack) -> Widths:
    """Bytes per parameter under a resolved plan; stacks may store parameters in fp32 whatever they compute in.

    ``master`` is a master weight (:func:`simpar.cost.optimizers.master_bytes`) and what DiLoCo's outer optimizer keeps:
    the parameters at the beginning of a round and a momentum, both in fp32 [Douillard et al. 2023, arXiv 2311.08105,
    algorithm 1].
    """
    whole = DTYPE_BYTES["fp32"]
    compute = layout.products.handed_bytes
    stored = whole if stack.numerics.parameter_dtype == "fp32" else compute
    master = master_bytes(layout) if layout.master_weights and stored < whole else 0.0
    outer = 2 * whole if layout.sync == "diloco" else 0.0
    gradient = DTYPE_BYTES[layout.grad_dtype]
    return Widths(stored, gradient, compute, master + outer, moment_bytes(layout))


@dataclass(frozen=True)
class HostWidths:
    """Bytes per parameter on the host of what it updates, and of parameters that live there.

    ``updated`` is the parameter as the update changes it, and ``copy`` what the host keeps of that for itself: nothing
    where it changes the offloaded parameter in place. ``received`` is a buffer of gradients as the device makes them,
    beside those that the update reads. ``parameter`` is what devices fetch or are sent, and ``sent`` a buffer of these
    where they live on the device.
    """

    updated: float
    copy: float
    received: float
    moments: float
    parameter: float
    sent: float = 0.0

    @property
    def gradient(self) -> float:
        """Bytes of the gradient as the update reads it: in the dtype of what it updates."""
        return self.updated

    @property
    def states(self) -> float:
        """Bytes that an update reads from the drives and writes there, if states are on them."""
        return self.moments + self.copy


def host_widths(layout: Layout, stack: Stack, *, accumulates: bool = False) -> HostWidths:
    """Bytes per parameter on the host under a resolved plan, from the dtypes that it has on the device.

    ``accumulates``: a step has several microbatches.

    An optimizer works on gradients of its parameters' dtype: fp32 beside master weights, else as parameters are stored.
    FSDP's shard on the host is the one that torch's optimizer changes, with its gradient in the same dtype [torch,
    fsdp/_fully_shard/_fsdp_param.py and ``foreach_reduce``, CPUOffloadPolicy]. Others have a copy for the update
    [torchao, CPUOffloadOptimizer; NVIDIA Megatron-LM, HybridDeviceOptimizer; DeepSpeed, fp32_partitioned_groups_flat].
    Flat states have one, too; under ZeRO-3 partitions of gradients as they arrive lie beside those of the update
    [DeepSpeed, runtime/zero/stage3.py, grad_partitions_flat_buffer]. Under ZeRO-1 and 2 updated parameters are cast
    into a buffer there, and with several microbatches sums of gradients wait in another one between them
    [DeepSpeed, runtime/zero/stage_1_and_2.py, param_buffer_of_bit16_for_cpu_offload_groups, accumulated_grads_in_cpu].
    """
    widths = parameter_widths(layout, stack)
    updated = max(widths.stored, DTYPE_BYTES["fp32"] * layout.master_weights)
    flat, away = stack.numerics.update.flat, layout.offload_parameters != "none"
    in_place = layout.kind == "fsdp" and away and not flat and updated == widths.stored
    whole = flat and not away and layout.zero < 3
    arrives = (flat and layout.zero == 3 and layout.offload_gradients) or (whole and accumulates)
    return HostWidths(
        updated=updated,
        copy=0.0 if in_place else updated,
        received=widths.gradient if arrives else 0.0,
        moments=widths.moments,
        parameter=widths.stored,
        sent=widths.compute if whole else 0.0,
    )


def reduced_bytes(layout: Layout, stack: Stack) -> float:
    """Bytes per parameter that a reduction of gradients moves: as the stack reduces, unless the plan says otherwise."""
    usual = (stack.numerics.reduce_dtype or layout.grad_dtype) if layout.products.is_mixed else "fp32"
    return DTYPE_BYTES[layout.reduce_dtype or usual]


def once_a_step(layout: Layout, stack: Stack) -> Flags:
    """Whether FSDP gathers parameters and reduces whole gradients once a step."""
    return stack.once_a_step(layout.kind == "fsdp", layout.is_pipelined)


def reduces_late(layout: Layout, stack: Stack) -> Flags:
    """Whether gradients wait for their reduction until the last backward has ended."""
    return np.asarray((not layout.overlap_grad_reduce) & ~stack.reduces_in_turn(layout.zero))


def defers(layout: Layout, stack: Stack) -> Flags:
    """Whether gradients are reduced beside the backward of the last microbatch alone, and are whole before.

    They are where ranks share them, which stages with devices of their own say themselves.
    """
    waits = np.asarray(layout.zero) >= 2
    if not (layout.defer_grad_reduce and np.any(waits)):
        return np.zeros((), dtype=bool)
    elsewhere = reduces_late(layout, stack) | once_a_step(layout, stack)
    return np.asarray(waits & ~elsewhere)


def holds_whole(layout: Layout, stack: Stack) -> bool:
    """Whether ranks of one plan hold whole gradients until the last of several microbatches."""
    return bool(defers(layout, stack)) and (bool(layout.stages) or bool(layout.shards > 1))


def keeps_parameters(layout: Layout) -> Flags:
    """Whether sharded parameters stay gathered from the first forward to the last backward."""
    zero = np.asarray(layout.zero)
    stays = (zero == 2) | ((zero == 3) & ~np.asarray(layout.reshard_after_forward))
    return np.asarray((layout.kind == "fsdp") & stays)


def narrows_frozen(layout: Layout) -> bool:
    """Whether frozen weights that are stored wider than products read them are narrowed on their way to a gather.

    FSDP casts the shard of a unit before it gathers it [torch, fsdp/_fully_shard/_fsdp_param.py,
    all_gather_inputs; fsdp/_flat_param.py, _use_low_precision_shard]; shards on the host cross as they are stored.
    """
    return layout.kind == "fsdp" and layout.offload_parameters == "none"


def kept_gradients(layout: Layout) -> float:
    """Share of the gradients that is kept on the device: those of offloaded states may leave as they are made."""
    return 1.0 - layout.host_share * bool(layout.offload_gradients)
