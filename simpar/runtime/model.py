"""The modules of one rank: built without memory, sharded, then filled with initial values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from simpar.architectures.graph import ModelGraph
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.layout.layout import Layout
from simpar.plan.plan import Plan
from simpar.precisions import IN_TORCH, PRECISIONS
from simpar.runtime import adapters, eight_bits, experts, four_bits, placed, tensor_parallel
from simpar.runtime.attention import Place
from simpar.runtime.context import ContextRank
from simpar.runtime.decoder import OUTPUT, TABLE, Decoder, Part, Recompute
from simpar.runtime.initial import USUAL, initial_value
from simpar.runtime.offload import save_on_host
from simpar.runtime.operators import TokenEmbedding
from simpar.runtime.ranks import Ranks, StageRanks
from simpar.runtime.released import Released
from simpar.runtime.sharded import local_part
from simpar.runtime.strategy import Strategy
from simpar.runtime.weights import WeightSource

Dtype = Any
DTYPES: Mapping[str, Dtype] = {name: getattr(torch, PRECISIONS[name].in_torch) for name in IN_TORCH}
"""Compute dtypes by precision; 8-bit products compute everything else in these."""


@dataclass(frozen=True)
class Dtypes:
    """The dtypes of parameters, of the computation, and of gradient reduction."""

    storage: Dtype
    compute: Dtype
    reduce: Dtype

    @staticmethod
    def of(plan: Plan) -> Dtypes:
        """The dtypes of a resolved plan: parameters are kept in fp32, unless the plan says bf16."""
        compute = DTYPES[plan.numerics.precision]
        storage = DTYPES[plan.execution.parameter_dtype or "fp32"]
        return Dtypes(storage, compute, DTYPES[plan.numerics.grad_dtype or plan.numerics.precision])


@dataclass(frozen=True)
class Blueprint:
    """What building a stage needs besides its part: resolved plan, strategy, dtypes, switches.

    ``graph`` is None for a user's module. Parameters start from ``released`` weights if there are any. ``library`` is
    the config of a class of transformers of which stages are cut (None: the runtime's decoder builds them).
    """

    graph: ModelGraph | None
    plan: Plan
    strategy: Strategy
    dtypes: Dtypes
    recompute: Recompute
    seed: int = 0
    released: Released | None = None
    compiled: bool = False
    lora_alpha: float | None = None
    library: Mapping[str, Any] | None = None

    @cached_property
    def layout(self) -> Layout:
        """The layout that the plan states, with what follows from it."""
        return Layout.of(self.plan)

    @property
    def fetches(self) -> bool:
        """Whether parameters live on the host and are fetched for every pass."""
        return self.plan.offload.offload_parameters != "none"


def parts(graph: ModelGraph, layout: Layout) -> list[Part]:
    """The content of every virtual stage, in order."""
    counts = layout.stage_layers(len(graph.layers))
    starts = [sum(counts[:stage]) for stage in range(len(counts))]
    last = len(counts) - 1
    return [
        Part(range(start, start + count), embedding=stage == 0, head=stage == last)
        for stage, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]


def build_stage(blueprint: Blueprint, part: Part, ranks: Ranks) -> Decoder:
    """One stage on this rank: tensor-parallel, fully sharded if the strategy says so, with initial values."""
    assert blueprint.graph is not None, "a decoder has a graph"
    # The order is torch's: a module is built without memory, changed in place (adapters, 8-bit products), split over
    # tensor and expert ranks, compiled layer by layer, and sharded last, since fully_shard wraps what it finds
    # [torch.distributed.fsdp]; only then it gets memory and values.
    plan = blueprint.plan
    sequence = bool(plan.tensor_parallel.sequence_parallel)
    recompute, own = blueprint.recompute, ranks.here_mesh if isinstance(ranks, StageRanks) else None
    if own is not None:
        recompute = replace(recompute, kind=own.stage.recompute)
    with torch.device("meta"):
        model = Decoder(blueprint.graph, part, place_of(blueprint.layout, ranks), recompute)
        model.to(blueprint.dtypes.storage)
        if plan.tuning.frozen_dtype == "nf4":
            four_bits.check_device(ranks.device)
        if plan.tuning.is_used:
            adapters.tune(model, plan.tuning, blueprint.dtypes.compute, blueprint.lora_alpha)
        for module in model.modules():
            if isinstance(module, TokenEmbedding):
                module.compute_dtype = blueprint.dtypes.compute
        if plan.numerics.products.is_cast:
            eight_bits.convert(model, ranks.device)
    if own is not None:
        placed.apply(model, blueprint.graph, own, blueprint.dtypes.compute)
    if plan.mesh.tp > 1:
        tensor_parallel.apply(model, ranks.submesh("tp"), sequence_parallel=sequence)
    if blueprint.graph.is_mixture:
        sizes = {"ep": plan.mesh.ep, "etp": plan.mesh.expert_tensor_parallel}
        experts.limit(model, plan.experts.capacity_factor)
        if axes := [axis for axis, size in sizes.items() if size > 1]:
            experts.spread(model, ranks.expert_submesh(*axes), same_tokens=not sequence)
    if blueprint.compiled:
        if plan.mesh.tp > 1:
            tensor_parallel.settle(model)
        for layer in model.layers.values():
            layer.compile()
    if blueprint.strategy.reduction == "fsdp":
        units = [*model.layers.values()]
        if not (model.tied or model.further):  # parameters used twice belong to the root unit
            units += [block for block in (model.embedding, model.head) if block is not None]
        shard(model, units, blueprint, ranks)
    if plan.offload.offload_activations:
        layers = list(model.layers.values())
        # without a head the backward begins with the last layer, whose activations stay on the device
        save_on_host(layers if part.head else layers[:-1], plan.offload.offload_activations)
    model.to_empty(device="cpu" if blueprint.fetches else ranks.device)
    model.tie()
    fill(model, blueprint.seed, blueprint.graph, blueprint.released)
    return model


def place_of(layout: Layout, ranks: Ranks) -> Place:
    """The part of the sequence that this rank works on."""
    sequence, ulysses = bool(layout.sequence_parallel) and layout.tp > 1, int(layout.ulysses_ranks)
    context = ContextRank(
        cp=int(layout.cp),
        rank=ranks.here["cp"],
        ulysses=ulysses,
        method=layout.cp_method,
        balance=layout.cp_balance,
        ring_group=ranks.ring_group(ulysses),
        head_group=ranks.head_group(ulysses),
    )
    return Place(
        context, sequence_ranks=int(layout.tp) if sequence else 1, sequence_rank=ranks.here["tp"] if sequence else 0
    )


def shard(model: nn.Module, units: list[nn.Module], blueprint: Blueprint, ranks: Ranks) -> None:
    """fully_shard every unit, then the rest, over the shard axis (with replicas: over both data axes).

    Experts that are spread over ranks are units of their own, sharded over the ranks that hold the same ones.
    """
    strategy, dtypes = blueprint.strategy, blueprint.dtypes
    pinned = ranks.device.type != "cpu"
    across = strategy.replicas > 1 and not strategy.alone
    axes = ("replicate", "shard") if across else ("shard",)
    policy = MixedPrecisionPolicy(param_dtype=dtypes.compute, reduce_dtype=dtypes.reduce)
    options = {
        "mp_policy": policy if dtypes.compute != dtypes.storage else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy(pin_memory=pinned) if blueprint.fetches else OffloadPolicy(),
        "reshard_after_forward": strategy.reshard,
    }
    if strategy.spread:
        mesh = ranks.expert_submesh(*(f"expert_{axis}" for axis in axes))
        place = partial(_placement, shards=ranks.mesh.expert_data_parallel // strategy.replicas)
        for module in model.modules():
            if isinstance(module, experts.GroupedExperts):
                fully_shard(module, mesh=mesh, shard_placement_fn=place, **options)
    options |= {
        "mesh": ranks.submesh(*axes),
        "shard_placement_fn": partial(_placement, shards=ranks.width // strategy.replicas),
    }
    for unit in units:
        fully_shard(unit, **options)
    fully_shard(model, **options)


def _placement(parameter: nn.Parameter, shards: int) -> Shard | None:
    """The dim that fully_shard slices: rows, or features if another axis cuts the rows into unevenly divisible parts.

    Shards of uneven shards have no offsets in torch, so neither initial values nor checkpoints would know their place.
    Raises UserError if features do not divide either.
    """
    cut = [1] * parameter.ndim
    if isinstance(parameter, DTensor):
        for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
            if placement.is_shard():
                cut[placement.dim] *= size
    if cut[0] == 1 or parameter.shape[0] % (cut[0] * shards) == 0:
        return None
    for dim in range(1, parameter.ndim):
        if cut[dim] == 1 and parameter.shape[dim] % shards == 0:
            return Shard(dim)
    raise UserError(
        f"plan.zero: a tensor of shape {list(parameter.shape)} is cut {cut[0]} x {shards} times; "
        f"allowed: rows that {cut[0] * shards} divides, or features that {shards} divides"
    )


@torch.no_grad()
def fill(model: nn.Module, seed: int, graph: ModelGraph | None = None, released: Released | None = None) -> None:
    """Give every parameter, or its local shard, its initial value; both copies of a tied table get the same.

    With ``released`` weights of the graph, all parameters but adapters come from these. Raises UserError if they lack
    one.
    """
    details = getattr(model, "details", USUAL)
    named = [(name, _origin(name, model), value) for name, value in four_bits.values_of(model)]
    source = None
    if graph is not None and released is not None:
        source = WeightSource.of(released, graph, [origin for _, origin, _ in named if "lora_" not in origin])
    for _, origin, value in named:
        whole, in_four_bits = tuple(value.shape), isinstance(value, four_bits.FourBitMatrix)
        local, here = (value.codes, tuple(slice(0, size) for size in whole)) if in_four_bits else local_part(value)
        if source is not None and origin in source.by_name:
            given = source.part(origin, whole, here)
        else:
            given = initial_value(origin, whole, seed, details, part=here, device=local.device)
        (value.fill if in_four_bits else local.copy_)(given)


def _origin(name: str, model: nn.Module) -> str:
    """The name by which a parameter's value is found: tied tables share one."""
    return TABLE if name == OUTPUT and getattr(model, "tied", False) else name
