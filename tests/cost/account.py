"""The account of one pipeline rank of a resolved plan, on a cluster of whatever size the plan has."""

from __future__ import annotations

from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.cost.kernels import KernelModel
from simpar.cost.memory.static import parameter_terms
from simpar.cost.memory.terms import ParameterGroup, StaticMemory
from simpar.cost.optimizers import moment_bytes
from simpar.hardware.catalogue import load_cluster
from simpar.layout.action_table import schedule_of
from simpar.layout.layout import Layout
from simpar.plan.plan import Plan
from simpar.program.blocks.rank_view import RankView
from simpar.program.job import TrainingJob
from simpar.program.structure.stages import StageBuilder
from simpar.stacks.stack import Stack


def builder_of(graph: ModelGraph, plan: Plan | Layout, training: Training, stack: Stack) -> StageBuilder:
    """Its stages."""
    layout = plan if isinstance(plan, Layout) else Layout.of(plan)
    job = TrainingJob(graph, training, layout, stack, KernelModel(load_cluster("dgx-h100", 1).device))
    ranks = schedule_of(layout, training).rank_of_stage
    return StageBuilder(RankView.of(job), ranks)


def stage_static_memory(
    graph: ModelGraph, plan: Plan | Layout, training: Training, stack: Stack, stage: int
) -> StaticMemory:
    """Terms of a pipeline rank that no pass brings or takes."""
    return builder_of(graph, plan, training, stack).static_memory(stage)


def static_memory(num_parameters: int, plan: Plan, stack: Stack) -> StaticMemory:
    """Terms of so many parameters of matrices inside layers, whose shards are rounded up to whole elements."""
    layout = Layout.of(plan)
    shard, moments = -(-num_parameters // layout.shards), num_parameters * moment_bytes(layout)
    part = ParameterGroup(num_parameters, shard, moments)
    return StaticMemory(parameter_terms([part], layout, stack, accumulates=True))
