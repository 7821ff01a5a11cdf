"""What the host launches where CUDA graphs capture a layer, a part of it or the whole step."""

from collections.abc import Sequence

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import Block, ModelGraph
from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.program.blocks.graphs import launches, part_names
from simpar.simulation import simulate
from simpar.stacks.stack import load_stack
from simpar.validation.predict import change_stack


def _block(graph: ModelGraph, kind: str) -> Block:
    """The first layer that has an operator of a kind."""
    blocks = (graph.blocks[name] for name in graph.layers)
    return next(block for block in blocks if any(op.kind == kind for op in block.operators))


def _parts(name: str, kind: str) -> dict[str, str]:
    block = _block(load_model(name), kind)
    return dict(zip([op.name for op in block.operators], part_names(block.operators), strict=True))


def test_layers_fall_into_parts() -> None:
    """Attention with its residual, then an MLP; of a mixture what is known beforehand and what is not."""
    dense = _parts("llama-3.1-8b", "attention")
    assert (dense["attention_norm"], dense["attention_residual"]) == ("attention", "attention")
    assert (dense["mlp_norm"], dense["mlp_residual"]) == ("mlp", "mlp")
    mixture = _parts("deepseek-v3", "router")
    assert {mixture[name] for name in ("mlp_norm", "router", "shared_up", "mlp_residual")} == {"router"}
    assert {mixture[name] for name in ("dispatch", "expert_up", "expert_activation", "combine")} == {"experts"}


def test_hybrids_and_ends_have_parts_of_their_own() -> None:
    """A Mamba mixer, a mixture without attention, and blocks that are no layers."""
    assert set(_parts("nemotron-3-super", "scan").values()) == {"mamba"}
    assert set(_parts("nemotron-3-super", "router").values()) == {"router", "experts"}
    assert set(part_names(load_model("llama-3.1-8b").head.operators)) == {"ends"}


@pytest.mark.parametrize(
    ("graphs", "launched"),
    [((), 15 * 2), (("attention",), 8 * 2 + 1), (("attention", "router"), 5 * 2 + 2), (("mamba",), 30), (("step",), 0)],
)
def test_a_captured_part_is_one_launch(graphs: tuple[str, ...], launched: int) -> None:
    """Fifteen operators of two kernels: seven of attention, three before and after the experts, five of these."""
    block = _block(load_model("qwen3-30b-a3b"), "router")
    assert launches(block, [2] * len(block.operators), graphs) == launched


def _host_s(graphs: Sequence[str]) -> float:
    """Seconds that the host holds up a small mixture on eight devices."""
    stack = change_stack("nemo", {"launch.graphs": tuple(graphs), "launch.host_time_per_kernel_s": 1e-4})
    plan = Plan.model_validate({"dp": 8, "ep": 8, "micro_batch": 1})
    training = Training(seq_len=256, global_batch=8)
    result = simulate(
        load_model("qwen3-30b-a3b"), load_cluster("hgx-b200", 1), plan, training, stack=stack, with_timeline=False
    )
    return result.time_breakdown_s.host


def test_each_captured_part_frees_the_host_further() -> None:
    """Short sequences wait for the host, until the step is captured."""
    some, more = _host_s(["router"]), _host_s(["router", "attention"])
    assert _host_s([]) > some > more > _host_s(["step"])
    assert load_stack("nemo").launch.graphs == ()
