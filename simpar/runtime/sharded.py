"""Tensors with and without their mesh: DTensors gathered, and local tensors as shards like those of a parameter."""

from typing import Any

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


def plain(tensor: Any) -> Any:
    """A tensor without its mesh, gathered from all ranks that share it; all of them must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(local: Any, parameter: Any) -> Any:
    """A local tensor, on the device or the host, as a DTensor sharded like the parameter."""
    if not isinstance(parameter, DTensor):
        return local
    whole = TensorMeta(parameter.shape, parameter.stride(), local.dtype)
    spec = DTensorSpec(parameter.device_mesh, parameter.placements, tensor_meta=whole)
    return DTensor(local, spec, requires_grad=False)  # from_local would move it to the device


def local_part(tensor: Any) -> tuple[Any, tuple[slice, ...]]:
    """The plain tensor on this rank, and its place in the whole tensor."""
    if not isinstance(tensor, DTensor):
        return tensor, tuple(slice(0, size) for size in tensor.shape)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor.to_local(), tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
