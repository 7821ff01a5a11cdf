"""Rules of encoders in the bubbles of a pipeline (``pipeline.encoder_in_bubbles``)."""

from simpar.architectures.encoders import encoder_layers
from simpar.architectures.recompute import OPTIMAL, segment_layers
from simpar.layout.layout import Layout
from simpar.plan.choices.pipeline import CUSTOM
from simpar.plan.choices.target import Refusals, Workload, fixed_reason
from simpar.plan.optimizers import BY_VALUE, OPTIMIZERS
from simpar.plan.schedules import HALF_SCHEDULES, SCHEDULES

WHAT = "plan.encoder_in_bubbles = true"


def encoder_refusals(layout: Layout, target: Workload) -> Refusals:
    """What an encoder in the bubbles needs: one in front of the text, a pipeline, and states that all its ranks share.

    Pipeline ranks sum the encoder's gradients once a step, each with as many calls; so all of them run it, and none
    reduces or gathers with every microbatch.
    """
    if not layout.encoder_in_bubbles:
        return
    graph, named = target.graph, SCHEDULES.get(layout.schedule)
    microbatches, pp = layout.num_microbatches(target.training.global_batch), int(layout.pp)
    odd = layout.schedule == CUSTOM or layout.runs_slices or layout.schedule in HALF_SCHEDULES
    whole = [each.name for each in SCHEDULES.values() if not (each.pairs or each.runs_slices or each.half_schedule)]
    optimizer = OPTIMIZERS[layout.optimizer]
    refused: tuple[tuple[bool, str, object], ...] = (
        (not encoder_layers(graph), f"{graph.name} has no encoder in front of its text", "false"),
        (pp == 1, "plan.pp = 1: nothing is pipelined", "pp above 1"),
        (
            odd or named is None or named.pairs,
            f"plan.schedule = {layout.schedule} has passes that overlap, slices or two ends",
            ", ".join(whole),
        ),
        (
            microbatches < pp,
            f"{microbatches} microbatches on {pp} pipeline ranks, each of which runs the encoder",
            f"at least {pp} microbatches",
        ),
        (
            layout.kind != "ddp" or bool(layout.zero > 1),
            f"plan.kind = {layout.kind}, zero = {layout.zero}",
            "ddp, zero 0, 1",
        ),
        (bool(layout.hsdp > 1), f"plan.hsdp = {layout.hsdp}", 1),
        (layout.replicas_are_independent, f"plan.sync = {layout.sync}", "bsp without servers"),
        (layout.offloads, "plan.offload", "none of it"),
        (layout.recompute_early, "plan.recompute_early = true", "false"),
        (
            layout.recompute == OPTIMAL or segment_layers(layout.recompute) is not None,
            f"plan.recompute = {layout.recompute}",
            "choices by layer and simple ones",
        ),
        (
            optimizer.by_shape or bool(optimizer.by_matrix),
            f"plan.optimizer = {layout.optimizer} works on whole matrices",
            BY_VALUE,
        ),
    )
    for is_broken, what, others in refused:
        yield is_broken, fixed_reason(f"{WHAT}: {what}; allowed there: {others}")
