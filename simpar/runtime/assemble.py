"""From a prepared plan to the engine of one rank: stages built, sharded and wrapped, with their update."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from simpar.architectures.training import Training
from simpar.plan.plan import Plan
from simpar.plan.schedules.actions import Schedule
from simpar.runtime import tensor_parallel
from simpar.runtime.adapters import num_still
from simpar.runtime.cut import cut_stage, message_dtype
from simpar.runtime.data import IGNORED_TARGET
from simpar.runtime.decoder import OUTPUT, TABLE
from simpar.runtime.engine import TrainingEngine
from simpar.runtime.experts import GroupedExperts
from simpar.runtime.job import Learning
from simpar.runtime.loss import mean_loss
from simpar.runtime.model import Blueprint, build_stage, parts, shard
from simpar.runtime.offload import save_on_host
from simpar.runtime.one_process import ReplicatedModule
from simpar.runtime.pipeline import MicrobatchTensors, PipelineRank
from simpar.runtime.prediction import layers_of
from simpar.runtime.ranks import Ranks, StageRanks
from simpar.runtime.servers import RemoteUpdate
from simpar.runtime.stage_pipeline import TiedEmbeddings, make_pipeline
from simpar.runtime.update import Owned, Scope, StepUpdate
from simpar.units import MIB


def make_engine(
    blueprint: Blueprint, training: Training, learning: Learning, schedule: Schedule, ranks: Ranks
) -> TrainingEngine:
    """Build, shard and wrap the stages of this rank. Every rank of the mesh calls it, in the same order."""
    assert blueprint.graph is not None, "a decoder has a graph"
    plan, here = blueprint.plan, ranks.here["pp"]
    if blueprint.strategy.reduction != "servers":
        ranks.make_groups(experts=blueprint.strategy.spread)
    every = parts(blueprint.graph, blueprint.layout)
    mine = [stage for stage, rank in enumerate(schedule.rank_of_stage) if rank == here]
    if blueprint.library is None:
        stages = {stage: build_stage(blueprint, every[stage], ranks) for stage in mine}
    else:
        stages = {stage: cut_stage(blueprint, every, stage, ranks) for stage in mine}
    owned = [each for stage in stages.values() for each in owned_parameters(stage, plan)]
    wrapped = {index: wrap(stage, blueprint, ranks) for index, stage in stages.items()}
    engine = TrainingEngine(
        plan=plan, ranks=ranks, stages=stages, wrapped=wrapped, owned=owned,
        update=make_update(
            Scope(plan, learning, blueprint.strategy, ranks, _twins(blueprint, ranks, schedule)), owned, blueprint
        ),
        microbatches=schedule.num_microbatches,
    )  # fmt: skip
    if isinstance(ranks, StageRanks):
        like = torch.empty(0, dtype=blueprint.dtypes.compute, device=ranks.device)
        engine.pipeline = make_pipeline(stages[here], blueprint.graph, training, schedule, ranks, like)
    elif plan.mesh.pp > 1:
        count = schedule.num_microbatches

        def loss(outputs: Any, targets: Any) -> Any:
            return mean_loss(outputs, targets) * (engine.scale / count)

        engine.pipeline = PipelineRank(schedule, dict(wrapped), _shapes(blueprint, training), loss, ranks)
        engine.pipeline.rest(num_still(every, plan.tuning, blueprint.graph))
    rehearse(engine, training, blueprint)
    return engine


def _twins(blueprint: Blueprint, ranks: Ranks, schedule: Schedule) -> Callable[[Any], object] | None:
    """The function that sums the gradients of both copies of tied embeddings; None if they are on one rank."""
    assert blueprint.graph is not None, "a decoder has a graph"
    if isinstance(ranks, StageRanks):
        return TiedEmbeddings.of(blueprint.graph, ranks)
    shared = blueprint.graph.tied_embeddings or layers_of(blueprint.graph) > 0
    if not shared or schedule.rank_of_stage[0] == schedule.rank_of_stage[-1]:
        return None
    return partial(dist.all_reduce, group=ranks.embedding_group)


def outermost_units(model: nn.Module) -> list[nn.Module]:
    """Members of a model's module lists, but of those within a member: they are shared and recomputed with it."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    units = [unit for module in lists for unit in module]
    inner = {id(each) for unit in units for each in unit.modules() if each is not unit}
    return [unit for unit in units if id(unit) not in inner]


def make_own_engine(
    model: Any, blueprint: Blueprint, training: Training, learning: Learning, ranks: Ranks
) -> TrainingEngine:
    """An engine for a user's module: data parallel only, sharded by the members of its module lists."""
    plan, dtypes = blueprint.plan, blueprint.dtypes
    # fully_shard itself moves what lives on the host
    model = model.to(device=ranks.device, dtype=dtypes.storage)
    units = outermost_units(model)
    if plan.memory.recompute != "none":
        for unit in units:
            unit.forward = partial(checkpoint, unit.forward, use_reentrant=False)
    if plan.offload.offload_activations:
        save_on_host(units, plan.offload.offload_activations)
    if blueprint.compiled:
        for unit in units:
            unit.compile()
    if blueprint.strategy.reduction == "fsdp":
        shard(model, units, blueprint, ranks)
    elif dtypes.compute != dtypes.storage:
        model.forward = torch.autocast(ranks.device.type, dtype=dtypes.compute)(model.forward)
    owned = owned_parameters(model, plan)
    engine = TrainingEngine(
        plan=plan, ranks=ranks, stages={0: model}, wrapped={0: wrap(model, blueprint, ranks)}, owned=owned,
        update=make_update(Scope(plan, learning, blueprint.strategy, ranks), owned, blueprint),
        microbatches=blueprint.layout.num_microbatches(training.global_batch),
    )  # fmt: skip
    rehearse(engine, training, blueprint)
    return engine


def make_update(scope: Scope, owned: list[Owned], blueprint: Blueprint) -> StepUpdate | RemoteUpdate:
    """An optimizer on this rank, or a client of the parameter servers."""
    if blueprint.strategy.reduction == "servers":
        return RemoteUpdate(scope, owned, blueprint.dtypes)
    return StepUpdate(scope, owned)


def rehearse(engine: TrainingEngine, training: Training, blueprint: Blueprint) -> None:
    """One backward on zeros under DDP, which rearranges its buckets after the first backward.

    Without it, the first step of a resumed run would sum gradients in another order than the run it continues.
    """
    if blueprint.strategy.reduction == "ddp":
        ranks = engine.ranks
        shape = (training.global_batch // ranks.mesh.replicas, training.seq_len // ranks.mesh.cp)
        zeros = torch.zeros(shape, dtype=torch.int64, device=ranks.device)
        further = layers_of(blueprint.graph)
        targets = torch.stack([zeros, *[torch.full_like(zeros, IGNORED_TARGET)] * further], 1) if further else zeros
        engine.forward_backward(zeros, targets)
        for owned in engine.owned:
            owned.parameter.grad = None


def owned_parameters(stage: Any, plan: Plan) -> list[Owned]:
    """The trained parameters of a stage, with their local tensors."""
    for module in stage.modules():
        if isinstance(module, FSDPModule):  # its shards are moved once, at the first gather
            module.unshard()
            module.reshard()
    sequence = bool(plan.tensor_parallel.sequence_parallel)
    names = tensor_parallel.partial_parameters(stage, sequence_parallel=sequence)
    shares = set(names) if plan.mesh.tp > 1 else set()
    twin = {OUTPUT} if getattr(stage, "tied", False) else set()
    twin |= {TABLE} if getattr(stage, "copies_table", False) else set()
    of_experts = {
        id(each) for module in stage.modules() if isinstance(module, GroupedExperts) for each in module.parameters()
    }
    return [
        Owned.of(name, parameter, partial=name in shares, twin=name in twin, expert=id(parameter) in of_experts)
        for name, parameter in stage.named_parameters()
        if parameter.requires_grad
    ]


def wrap(stage: Any, blueprint: Blueprint, ranks: Ranks) -> Any:
    """The stage under DDP with the planned buckets, or unchanged."""
    if blueprint.strategy.reduction == "one_process":
        return ReplicatedModule(stage, blueprint.strategy.replicas, ranks.device)
    if blueprint.strategy.reduction != "ddp" or not any(each.requires_grad for each in stage.parameters()):
        return stage
    data = blueprint.plan.data_parallel
    model = DistributedDataParallel(
        stage,
        process_group=ranks.data_group,
        bucket_cap_mb=float(data.bucket_bytes or 25 * MIB) / MIB,
        gradient_as_bucket_view=True,
        broadcast_buffers=False,  # matrices in 4 bits are the same everywhere
        find_unused_parameters=getattr(stage, "skips_parameters", False),
    )
    if blueprint.dtypes.reduce != blueprint.dtypes.storage:
        half = blueprint.dtypes.reduce == torch.float16
        model.register_comm_hook(ranks.data_group, fp16_compress_hook if half else bf16_compress_hook)
    return model


def _shapes(blueprint: Blueprint, training: Training) -> MicrobatchTensors:
    assert blueprint.graph is not None, "a pipeline has a graph"
    plan, dims = blueprint.plan, blueprint.graph.dims
    length = training.seq_len // plan.mesh.cp
    sequence = plan.tensor_parallel.sequence_parallel and plan.mesh.tp > 1
    rows = length // plan.mesh.tp if sequence else length
    widths = (dims["hidden"], dims["vocab"])
    result = MicrobatchTensors.of(plan.micro_batch, (length, rows), widths, blueprint.dtypes.compute)
    if blueprint.library is not None:
        result = replace(result, hidden=result.hidden.to(message_dtype(blueprint)))
    return replace(result, outputs=1 + layers_of(blueprint.graph))
