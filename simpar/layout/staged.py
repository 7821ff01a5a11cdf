"""Layouts whose stages have devices of their own: their rules, and the layout that repeats a stage."""

from dataclasses import replace

from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import OPTIMAL, SIMPLE
from simpar.layout.layout import Layout
from simpar.plan.choices.target import Refusals, fixed_reason
from simpar.plan.choices.tensor_parallel import has_tensor_ranks
from simpar.plan.mesh import AXES
from simpar.plan.offload import offloads_gradients
from simpar.plan.optimizers import BY_VALUE, OPTIMIZERS
from simpar.plan.schedules import HALF_SCHEDULES


def stage_layout(layout: Layout, index: int) -> Layout:
    """The layout whose stages all have the mesh of one stage in Megatron's roles; layers stay those of each."""
    stages = layout.stages or ()
    dp, tp = stages[index].mesh[0], stages[index].num_devices // stages[index].mesh[0]
    changed = replace(
        layout,
        stages=None,
        layers=tuple(stage.layers for stage in stages),
        micro_batch=layout.micro_batch // dp,
        tp=tp,
        dp=dp,
        sequence_parallel=tp > 1 and bool(layout.sequence_parallel),
        recompute=stages[index].recompute,
    )
    sends = offloads_gradients(changed.offload_optimizer, changed.offload_gradients, changed.zero, changed.width)
    return replace(changed, offload_gradients=sends)


def feature_refusals(layout: Layout) -> Refusals:
    """Features that stages of their own do not support, and fields that each stage states.

    ``sequence_parallel`` false is accepted: stacks decide it where all stages have roles for every operator.
    """
    stages, policy = layout.stages or (), layout.recompute
    for axis, size in {"tp": 1, "cp": 1, "dp": 1, "pp": len(stages)}.items():
        given = getattr(layout, axis)
        yield given != size, fixed_reason(f"plan.{axis} = {given}: stages have meshes of their own; allowed: {size}")
    own = tuple(stage.layers for stage in stages)
    refused: tuple[tuple[bool, str, object], ...] = (
        (bool(layout.vpp > 1), f"plan.vpp = {layout.vpp}: a rank runs one chunk", 1),
        (layout.schedule in HALF_SCHEDULES, f"plan.schedule = {layout.schedule}: has every stage twice", "the others"),
        (layout.runs_slices, "plan.slices: stages run whole sequences", "none"),
        (layout.encoder_in_bubbles, "plan.encoder_in_bubbles = true: all stages share a mesh", "false"),
        (
            layout.replicas_are_independent,
            f"plan.sync = {layout.sync}: stages reduce inside the step",
            "bsp without servers",
        ),
        (layout.kind == "single_process", "plan.kind = single_process: supports a single stage", "ddp, fsdp"),
        (
            OPTIMAL in [policy, *(stage.recompute for stage in stages)],
            f"plan.recompute = {OPTIMAL}: is solved for one layout of all stages",
            "any other",
        ),
        (layout.has_sampled_loads, "plan.expert_load = sampled: loads of stages are alike", "expected"),
        (
            policy != "none" and any(stage.recompute != policy for stage in stages),
            f"plan.recompute = {policy}: every stage states its own",
            "none, or what all of plan.stages say",
        ),
        (
            layout.layers != own,
            f"plan.layers = {list(layout.layers or ())}: every stage states its own",
            f"none, or the stages' {list(own)}",
        ),
        (
            layout.order != AXES,
            f"plan.rank_order = {'-'.join(layout.order)}: stages name their devices in the order of their meshes",
            "-".join(AXES),
        ),
        (
            bool(layout.sequence_parallel) and not has_tensor_ranks(layout.tp, layout.stages),
            "plan.sequence_parallel = true: no stage without a sharding of its own has tensor-parallel ranks",
            "none, or roles in plan.stages",
        ),
    )
    yield from _worded(refused, "with plan.stages; allowed")


def batch_refusals(layout: Layout, index: int) -> Refusals:
    """Where a microbatch does not divide over the data-parallel ranks of a stage."""
    width = (layout.stages or ())[index].mesh[0]
    yield (
        layout.micro_batch % width != 0,
        lambda: (
            f"plan.micro_batch = {layout.micro_batch}: does not divide over the {width} data-parallel ranks of "
            f"plan.stages[{index}]; allowed: multiples of {width}"
        ),
    )


def role_refusals(layout: Layout, graph: ModelGraph, cause: str = "a stage has a sharding of its own") -> Refusals:
    """Features that stages with roles for every operator do not support, with the ``cause`` that they have roles."""
    modes = {stage.recompute for stage in layout.stages or () if stage.sharding} - {*SIMPLE}
    refused: tuple[tuple[bool, str, object], ...] = (
        (graph.is_mixture, f"{graph.name} routes tokens to experts", "dense models"),
        (graph.has_state, f"{graph.name} has layers that carry a state", "transformers"),
        (graph.chooses_keys, f"{graph.name} chooses keys with an indexer", "transformers"),
        (
            layout.kind == "fsdp" or bool(layout.zero > 2),
            f"plan.kind = {layout.kind}, zero = {layout.zero}",
            "ddp, zero 0 to 2",
        ),
        (bool(layout.hsdp > 1), f"plan.hsdp = {layout.hsdp}", 1),
        (layout.offloads, "plan.offload", "none of it"),
        (layout.recompute_early, "plan.recompute_early = true", "false"),
        (bool(modes), f"recompute = {max(modes, default=None)}", "none, selective, full"),
        (
            OPTIMIZERS[layout.optimizer].by_shape,
            f"plan.optimizer = {layout.optimizer} has states by the shape of matrices",
            BY_VALUE,
        ),
    )
    yield from _worded(refused, f"with plan.stages: {cause}; allowed there")


def _worded(refused: tuple[tuple[bool, str, object], ...], where: str) -> Refusals:
    for is_broken, what, others in refused:
        yield is_broken, fixed_reason(f"{what}, {where}: {others}")
