"""Tensor and sequence parallelism of a Decoder with DTensor, derived from the graph.

Column-parallel products gather the residual stream; row-parallel products and the embedding sum their partial results.
Under sequence parallelism these become all-gather and reduce-scatter over the sequence [Korthikanti et al. 2022, arXiv
2205.05198]. Everything between works on plain local tensors. Parameters that every rank keeps whole but applies to its
own part (norms and biases under sequence parallelism, norms of local heads) have gradients that are partial sums:
:func:`partial_parameters` names them, and one all-reduce per step sums them.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

from simpar.architectures.graph import Operator, is_column_parallel, is_row_parallel
from simpar.runtime.adapters import AdaptedLinear, InnerHalf
from simpar.runtime.attention import CoreAttention
from simpar.runtime.decoder import SEQUENCE_DIM, BlockModule, Decoder
from simpar.runtime.experts import Router
from simpar.runtime.latent import LatentRotary
from simpar.runtime.mamba import OfHeads
from simpar.runtime.operators import GatedProjection, HeadNorm, NormLayer, PositionEmbedding


class AdapterColwise(ColwiseParallel):
    """A product split by outputs; an adapter's outer half is split with it, the inner half stays whole."""

    def _partition_linear_fn(self, _: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        _distribute(module, device_mesh, {"weight": 0, "bias": 0, "lora_up": 0})


class AdapterRowwise(RowwiseParallel):
    """A product split by inputs; an adapter's inner half is split with it, the outer half stays whole."""

    def _partition_linear_fn(self, _: str, module: nn.Module, device_mesh: DeviceMesh) -> None:
        _distribute(module, device_mesh, {"weight": 1, "lora_down": 1})


def _distribute(module: nn.Module, mesh: DeviceMesh, dims: Mapping[str, int]) -> None:
    """Make DTensors of a product's parameters, split along the given dims; others stay whole."""
    for name, whole in list(module.named_parameters(recurse=False)):
        placement = Shard(dims[name]) if name in dims else Replicate()
        split = distribute_tensor(whole, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(split, requires_grad=whole.requires_grad))


def apply(model: Decoder, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Shard the products and tables of a Decoder over a one-axis mesh, in place."""
    residual = Shard(SEQUENCE_DIM) if sequence_parallel else Replicate()
    for block in _blocks(model):
        styles: dict[str, Any] = {}
        for op in block.operators:
            styles |= _styles(op, residual)
        parallelize_module(block, mesh, styles)
        for module in block.children():
            if isinstance(module, LatentRotary):
                module.share = partial(_shared, mesh=mesh, layout=residual)
            if isinstance(module, CoreAttention | OfHeads):
                module.part = (mesh.get_local_rank(), mesh.size())
        for op in block.operators:
            _place_adapters(op, getattr(block, op.name), mesh, sequence_parallel=sequence_parallel)
    model.tie()


def _place_adapters(op: Operator, module: nn.Module, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Inner halves that outputs share are whole; those of whole products drop elements of this rank's rows."""
    for each in module.modules():
        if isinstance(each, InnerHalf) and is_column_parallel(op):
            _distribute(each, mesh, {})
        if isinstance(each, InnerHalf | AdaptedLinear) and getattr(module, "whole", False) and sequence_parallel:
            each.dropout.dim, each.dropout.part = SEQUENCE_DIM, (mesh.get_local_rank(), mesh.size())


class Settled(torch.autograd.Function):
    """A tensor that has arrived, and its gradient: code compiled by torch returns no other kind of gradient."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        """Shape in and out."""
        return _arrived(x).view(x.shape)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        """Shape in and out."""
        return _arrived(gradient)


def _arrived(x: Tensor) -> Tensor:
    result: Tensor = x.wait() if isinstance(x, AsyncCollectiveTensor) else x
    return result


def settle(model: Decoder) -> None:
    """Let layers that are compiled one by one take and return tensors that have arrived, in place.

    A tensor that a collective is still bringing has a class of its own; given one, a compiled layer's backward returns
    a plain tensor where DTensor expects one of that class.
    """
    if model.embedding is not None:
        model.embedding.register_forward_hook(lambda _, __, output: Settled.apply(output))
    if model.head is not None:
        model.head.register_forward_pre_hook(lambda _, inputs: tuple(map(Settled.apply, inputs)))


def _styles(op: Operator, residual: Any) -> dict[str, Any]:
    if op.kind == "embedding":
        return {op.name: RowwiseParallel(input_layouts=Replicate(), output_layouts=residual)}
    if is_column_parallel(op):
        logits = op.name == "lm_head"
        column = AdapterColwise(use_local_output=not logits, output_layouts=Shard(-1))
        gather = PrepareModuleInput(input_layouts=(residual,), desired_input_layouts=(Replicate(),))
        return {op.name: gather, f"{op.name}.parts.*": column}
    if is_row_parallel(op):
        return {f"{op.name}.parts.0": AdapterRowwise(output_layouts=residual)}
    return {}


def _shared(x: Any, mesh: DeviceMesh, layout: Any) -> Any:
    """A tensor of the residual stream, whole on every rank; each rank returns the gradient from its heads."""
    here = DTensor.from_local(x, mesh, (layout,), run_check=False)
    return here.redistribute(mesh, (Replicate(),)).to_local(grad_placements=(Partial(),))


def _blocks(model: Decoder) -> Iterator[BlockModule]:
    yield from (block for block in (model.embedding, *model.layers.values(), model.head) if block is not None)


def partial_parameters(model: nn.Module, *, sequence_parallel: bool) -> list[str]:
    """Names of whole parameters whose local gradient covers only the rank's heads or part of the sequence."""
    result = []
    for name, module in model.named_modules():
        per_head = isinstance(module, HeadNorm | OfHeads)
        whole = isinstance(module, NormLayer | PositionEmbedding | Router) or getattr(module, "whole", False)
        on_sequence = sequence_parallel and whole
        if isinstance(module, GatedProjection):
            result.append(f"{name}.score")
        if isinstance(module, CoreAttention) and module.sinks is not None:
            result.append(f"{name}.sinks")
        if per_head or on_sequence:
            result += [f"{name}.{leaf}" for leaf, _ in module.named_parameters()]
    return result


def sum_partial(gradients: list[Any], group: Any) -> None:
    """Sum partial gradients over the tensor-parallel ranks, in one message."""
    if not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))
