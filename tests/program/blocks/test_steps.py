"""Collectives follow from the graph: where a region changes or a partial sum is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import make_cluster
from simpar.plan.plan import Plan
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import CollectiveUse, Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import make_segment
from simpar.program.blocks.steps import BlockSteps, BlockWalk, block_steps
from simpar.program.job import TrainingJob
from simpar.simulation import make_job
from simpar.stacks.stack import Stack, load_stack
from simpar.validation.predict import change_stack


def layer_job(model: str, stack: str | Stack = "megatron", **plan: object) -> TrainingJob:
    """A model on one DGX H100."""
    training = Training(seq_len=2048, global_batch=8)
    return make_job(model, load_cluster("dgx-h100", 1), Plan(**plan), training, stack)


def layer_steps_of(job: TrainingJob, recompute: str = "none") -> BlockSteps:
    """Steps of the first layer of a job."""
    graph = job.graph
    return block_steps(RankBlock.of(graph.blocks[graph.layers[0]], RankView.of(job)), recompute=recompute)


def layer_steps(model: str, recompute: str = "none", stack: str = "megatron", **plan: object) -> BlockSteps:
    """Steps of the first layer of a model on one DGX H100."""
    return layer_steps_of(layer_job(model, stack, **plan), recompute)


def collectives(phase: Phase) -> Counter[str]:
    """How often each collective is called."""
    return Counter(step.collective.op for step in phase.steps if step.collective)


def test_tensor_parallel_layer_all_reduces_twice_each_way() -> None:
    """Without sequence parallelism: two all-reduces forward, two backward."""
    steps = layer_steps("llama-3-8b", tp=4, sequence_parallel=False)
    assert collectives(steps.forward) == {"all_reduce": 2}
    assert collectives(steps.backward) == {"all_reduce": 2}


def test_sequence_parallelism_splits_all_reduce() -> None:
    """Each all-reduce becomes a gather and a scatter; backward gathers kept shards again."""
    steps = layer_steps("llama-3-8b", tp=4, sequence_parallel=True)
    assert collectives(steps.forward) == {"all_gather": 2, "reduce_scatter": 2}
    assert collectives(steps.backward) == {"all_gather": 4, "reduce_scatter": 2}


def bytes_moved(phase: Phase) -> float:
    """Bytes of all collectives."""
    return sum(step.collective.size_bytes * step.collective.count for step in phase.steps if step.collective)


def kernel_s(phase: Phase) -> float:
    """Time of all kernels."""
    return sum(step.duration_s for step in phase.steps)


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_decomposed_products_move_and_compute_the_same(part: str) -> None:
    """Overlapped gathers and scatters are cut into pieces: as many bytes, as many kernel seconds."""
    whole = getattr(layer_steps("llama-3-8b", tp=4, sequence_parallel=True), part)
    cut = getattr(layer_steps("llama-3-8b", tp=4, tensor_parallel={"sequence_parallel": True, "overlap": True}), part)
    assert bytes_moved(cut) == pytest.approx(bytes_moved(whole))
    assert kernel_s(cut) == pytest.approx(kernel_s(whole))


def test_decomposed_products_expose_one_piece_of_each_collective() -> None:
    """Where kernels take longer than their collectives, a forward waits for a tp-th of each: 4 gathers and scatters."""

    def price(use: CollectiveUse) -> int:
        return round(use.size_bytes)

    spans = {}
    for overlap in (False, True):
        parts = {"sequence_parallel": True, "overlap": overlap}
        forward = layer_steps("llama-3-8b", tp=4, tensor_parallel=parts).forward
        slow = tuple(replace(step, duration_s=step.duration_s * 1e6) for step in forward.steps)
        segment = make_segment(replace(forward, steps=slow), price)
        kernels = sum(round(step.duration_s * 1e9) for step in slow)
        spans[overlap] = segment.duration_ns - kernels
    assert spans[True] == pytest.approx(spans[False] / 4, rel=1e-3)


def test_parallel_branches_share_one_reduction() -> None:
    """Attention and MLP side by side are summed first, so one all-reduce serves both."""
    steps = layer_steps("falcon-40b", tp=4, sequence_parallel=False)
    assert collectives(steps.forward)["all_reduce"] == 1


def test_single_rank_communicates_nothing() -> None:
    """Without tensor parallelism a layer has no collective."""
    steps = layer_steps("llama-3-8b")
    assert not collectives(steps.forward) + collectives(steps.backward)


def test_bytes_of_a_gather_are_the_whole_residual_stream() -> None:
    """The gathered tensor has b s h elements of two bytes."""
    steps = layer_steps("llama-3-8b", tp=4, micro_batch=2)
    sizes = {step.collective.size_bytes for step in steps.forward.steps if step.collective}
    assert sizes == {2 * 2048 * 4096 * 2}


@pytest.mark.parametrize("tp", [1, 4])
def test_halves_of_backward_make_the_whole(tp: int) -> None:
    """Input-gradient and weight-gradient passes together take the kernels of the full backward."""
    steps = layer_steps("llama-3-8b", tp=tp)

    def kernels(phase: Phase) -> float:
        return sum(step.duration_s for step in phase.steps)

    halves = kernels(steps.input_gradient) + kernels(steps.weight_gradient)
    assert halves == pytest.approx(kernels(steps.backward), rel=1e-12)


def test_full_recompute_adds_one_forward() -> None:
    """The backward of a recomputed layer starts with its forward, collectives included."""
    plain = layer_steps("llama-3-8b", tp=2)
    again = layer_steps("llama-3-8b", "full", tp=2)
    added = [step for step in again.backward.steps if step.kind == "recompute"]
    assert sum(s.duration_s for s in added) == pytest.approx(sum(s.duration_s for s in plain.forward.steps))
    assert collectives(again.backward) == collectives(plain.backward) + collectives(plain.forward)


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        ("llama-3-8b", {"tp": 2, "tensor_parallel": {"overlap": True}}),
        ("llama-3-8b", {"cp": 4}),
        ("mixtral-8x7b", {"ep": 4, "tp": 2}),
        ("nemotron-h-8b", {"tp": 2, "cp": 2}),
    ],
)
def test_full_recompute_is_the_forward_walked_again(model: str, plan: dict[str, object]) -> None:
    """Taken from the forward, it has the steps that a walk of its own makes."""
    job = layer_job(model, **plan)
    for name in dict.fromkeys(job.graph.layers):
        walk = BlockWalk(RankBlock.of(job.graph.blocks[name], RankView.of(job)))
        assert walk.again("full", operators=False) == walk.forward("recompute", walk.view.times)


def test_selective_recompute_repeats_attention_only() -> None:
    """Selective recompute in the Megatron sense runs core attention again and nothing else."""
    steps = layer_steps("llama-3-8b", "selective")
    assert [step.name for step in steps.backward.steps if step.kind == "recompute"] == ["attention"]


def test_gradient_waits_are_acyclic() -> None:
    """Every step waits for earlier steps only."""
    steps = layer_steps("gemma-2-9b", tp=4)
    for phase in (steps.forward, steps.backward, steps.input_gradient, steps.weight_gradient):
        assert phase.steps
        assert all(position < index for index, step in enumerate(phase.steps) for position in step.after)


def test_gradients_that_kernels_of_their_own_add_up_are_steps() -> None:
    """Behind every product of a weight's gradient: made fp32, added, each half of the bytes; fp32 is only added."""
    stack = load_stack("simpar")
    size, elements = stack.numerics.sum_bytes, 4096 * 14336
    for precision, ends in (("bf16", ("", ".widen", ".add")), ("fp32", ("", ".add"))):
        job = layer_job("llama-3-8b", stack=stack, precision=precision)
        steps = layer_steps_of(job).backward.steps
        mine = [step for step in steps if step.kind == "weight_gradient" and step.name.startswith("mlp_down")]
        assert [step.name for step in mine] == [f"mlp_down{end}" for end in ends]
        at = [steps.index(step) for step in mine]
        assert [step.after for step in mine[1:]] == [(before,) for before in at[:-1]]
        for step in mine[1:]:
            wanted = job.kernels.latency_s + size / 2 * elements / job.kernels.bandwidth
            assert step.duration_s == pytest.approx(wanted)


def test_a_stack_may_cast_both_operands_of_every_product() -> None:
    """Two casts a product, one product an output: the input of qkv is cast three times."""
    stack = load_stack("simpar")
    cast = stack.numerics.tensor_cast
    assert cast
    bare = stack.model_copy(update={"numerics": stack.numerics.model_copy(update={"tensor_cast": None})})
    job, without = (layer_job("llama-3-8b", stack=each, precision="fp8") for each in (stack, bare))
    tokens, hidden, heads, wide = 2048, 4096, 6144, 14336
    elements = {"qkv": (3, hidden, heads), "o_proj": (1, hidden, hidden), "mlp_up": (2, hidden, 2 * wide)}
    for phase, gradients in (("forward", False), ("input_gradient", True)):
        found, plain = (
            {step.name: step.duration_s for step in getattr(layer_steps_of(each), phase).steps}
            for each in (job, without)
        )
        for name, (outputs, width, columns) in elements.items():
            own = tokens * columns if gradients else outputs * tokens * width
            wanted = 2 * outputs * cast.kernels * job.kernels.latency_s
            wanted += cast.element_bytes * (own + width * columns) / job.kernels.bandwidth
            before = job.kernels.memory_time_s(3 * tokens * columns) if gradients else 0.0
            assert found[name] - plain[name] == pytest.approx(wanted - before), (phase, name)
    issued = [layer_steps_of(each).forward.issue_s for each in (job, without)]
    casts = 2 * cast.kernels * 7  # of q, k, v, the output, the gate, up and down
    assert issued[0] - issued[1] == pytest.approx(casts * stack.launch.host_time_per_kernel_s)


def test_hooks_run_for_every_module_in_every_pass() -> None:
    """Six modules of a layer have parameters, nine with projections apart; recomputation runs them once more."""
    hooks = {"launch.host_time_per_module_s": 1e-3, "launch.host_time_per_unit_s": 0.5e-3}
    bare = {f"launch.host_time_per_{name}_s": 0.0 for name in ("kernel", "collective")}
    apart = {"fusion.projections": False}

    def issued_s(recompute: str = "none", **plan: object) -> tuple[float, float]:
        changes = {**hooks, **bare, **(apart if plan.pop("apart", False) else {})}
        steps = layer_steps_of(layer_job("llama-3-8b", change_stack("fsdp", changes), **plan), recompute)
        return float(steps.forward.issue_s), float(steps.backward.issue_s)

    assert issued_s(zero=3, dp=8) == pytest.approx((6.5e-3, 6.5e-3))
    assert issued_s(zero=3, dp=8, apart=True) == pytest.approx((9.5e-3, 9.5e-3))
    assert issued_s("full", zero=3, dp=8) == pytest.approx((6.5e-3, 13e-3))
    assert issued_s("modules:mlp", zero=3, dp=8) == pytest.approx((6.5e-3, 8.5e-3))
    assert issued_s(zero=1, dp=8) == (0.0, 0.0)


def test_products_of_tensor_parallel_layers_are_dtensors() -> None:
    """Four of a layer, backward 1.6 times as long as forward; none on one rank, in graphs, or of compiled layers.

    Frozen ones take 1.3 times as long, and adapters beside q and v are six modules more.
    """
    changes = {"launch.host_time_per_dtensor_s": 1e-3, "fusion.projections": True}
    changes |= {f"launch.host_time_per_{name}_s": 0.0 for name in ("kernel", "collective", "module", "unit")}

    def issued_s(recompute: str = "none", **plan: object) -> tuple[float, float]:
        steps = layer_steps_of(layer_job("llama-3-8b", change_stack("fsdp", changes), **plan), recompute)
        return float(steps.forward.issue_s), float(steps.backward.issue_s)

    assert issued_s(tp=8) == pytest.approx((4e-3, 6.4e-3))
    assert issued_s("full", tp=8) == pytest.approx((4e-3, 10.4e-3))
    for alike in ({"dp": 8}, {"tp": 8, "fused_kernels": "compiled"}, {"tp": 8, "graphs": "step"}):
        assert issued_s(**alike) == (0.0, 0.0), alike


def test_hooks_run_on_one_device_as_well() -> None:
    """Sharded over one rank; a captured step has none."""
    changes = {
        "launch.host_time_per_module_s": 1e-3, "launch.host_time_per_kernel_s": 0.0, "fusion.projections": True,
    }  # fmt: skip
    cluster = make_cluster(load_cluster("dgx-h100", 1).profile.model_copy(update={"devices_per_node": 1}), 1)

    def issued_s(**more: object) -> float:
        stack = change_stack("deepspeed", {**changes, **more})
        training = Training(seq_len=2048, global_batch=1)
        return float(layer_steps_of(make_job("llama-3-8b", cluster, Plan(zero=3), training, stack)).forward.issue_s)

    assert issued_s() == pytest.approx(6e-3)
    assert issued_s(**{"launch.graphs": ("step",)}) == 0.0


def test_hooks_of_frameworks_that_wrap_what_is_shared_need_several_ranks() -> None:
    """Of data or context parallelism: tensor-parallel ranks alone share no block."""
    changes = {"launch.host_time_per_unit_s": 1e-3, "launch.host_time_per_kernel_s": 0.0}
    changes |= {"launch.host_time_per_collective_s": 0.0, "launch.host_time_per_dtensor_s": 0.0}

    def issued_s(*, alone: bool, **plan: object) -> float:
        stack = change_stack("fsdp", {**changes, "launch.hooks_alone": alone})
        return float(layer_steps_of(layer_job("llama-3-8b", stack, zero=3, **plan)).forward.issue_s)

    for plan, hooks_s in (({"tp": 8, "dp": 1}, 0.0), ({"tp": 4, "dp": 2}, 1e-3), ({"tp": 4, "dp": 1, "cp": 2}, 1e-3)):
        assert issued_s(alone=False, **plan) == pytest.approx(hooks_s)
        assert issued_s(alone=True, **plan) == pytest.approx(1e-3)
