"""How optimizers work on matrices that tensor parallelism divides: work, bytes and what is refused, by hand."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.graph import evaluate
from simpar.cost.kernels import KernelModel
from simpar.cost.optimizers import lay_out_matrices, matrices_time_s, matrix_exchange
from simpar.hardware.device import load_device
from simpar.layout.sharding import before_tensor_parallelism
from simpar.plan.choices.numerics import DecidedNumerics

MUON, TP = DecidedNumerics(optimizer="muon"), 8
GRAPH = simpar.Model("llama-3-8b")
BLOCKS = [GRAPH.blocks[GRAPH.layers[0]]]
LOCAL = {**GRAPH.dims, "heads": 4, "kv_heads": 1, "ffn": 14336 // TP}
WHOLE = before_tensor_parallelism(GRAPH, LOCAL)
ELEMENTS = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336)
"""Of the matrices of a layer: queries and outputs, keys and values, gate, up and down."""


def work_flop(matrices):
    """Muon's FLOP for some matrices, each rank's part of those that several work on: 4 n^2 m / ranks + 2 n^3."""
    total = 0.0
    for each in matrices:
        n, m = sorted((each.rows, each.columns))
        total += each.count * 5 * (4 * n * n * m / each.ranks + 2 * n**3)
    return total


def test_dims_before_tensor_parallelism_are_the_models():
    """Heads, key-value heads and ffn are whole again, batch and sequence stay."""
    assert before_tensor_parallelism(GRAPH, {**LOCAL, "batch": 2, "seq": 512}) == {**GRAPH.dims, "batch": 2, "seq": 512}


@pytest.mark.parametrize(
    ("layout", "elements"),
    [
        ("blockwise", ELEMENTS / TP),
        ("duplicated", ELEMENTS),
        ("distributed", ELEMENTS),
        ("layer_sharded", ELEMENTS / TP),
    ],
)
def test_a_rank_works_on_its_matrices(layout, elements):
    """Shards, whole matrices, whole ones with others, or an eighth of the whole ones."""
    matrices = lay_out_matrices(BLOCKS, LOCAL, WHOLE, layout)
    assert sum(m.rows * m.columns * m.count for m in matrices) == pytest.approx(elements)


def test_work_is_shared_as_the_layout_says():
    """Duplicated work is eight times that of shared layers; ranks that work together share two of three products."""
    flop = {
        name: work_flop(lay_out_matrices(BLOCKS, LOCAL, WHOLE, name))
        for name in ("duplicated", "distributed", "layer_sharded")
    }
    grams = sum(
        m.count * 10 * min(m.rows, m.columns) ** 3 for m in lay_out_matrices(BLOCKS, LOCAL, WHOLE, "duplicated")
    )
    assert flop["duplicated"] == pytest.approx(TP * flop["layer_sharded"])
    assert flop["distributed"] == pytest.approx((flop["duplicated"] - grams) / TP + grams)
    kernels = KernelModel(load_device("h100-sxm-80gb"))
    seconds = {name: matrices_time_s(lay_out_matrices(BLOCKS, LOCAL, WHOLE, name), MUON, kernels)[0] for name in flop}
    assert seconds["layer_sharded"] < seconds["distributed"] < seconds["duplicated"]


@pytest.mark.parametrize(
    ("layout", "op", "values"),
    [
        ("duplicated", "all_gather", ELEMENTS),
        ("layer_sharded", "all_to_all", ELEMENTS / TP),
        ("distributed", "all_reduce", 5 * (5 * 4096**2 + 2 * 1024**2)),
    ],
)
def test_bytes_that_move(layout, op, values):
    """Whole matrices, a rank's part of them, or five Gram matrices of each, in fp32; seven matrices a layer."""
    assert matrix_exchange(BLOCKS, LOCAL, WHOLE, layout, MUON) == (op, {False: (pytest.approx(4 * values), 7)})


def test_what_is_not_divided_does_not_move():
    """With one tensor-parallel rank there is nothing to exchange, and shards need no exchange."""
    assert matrix_exchange(BLOCKS, GRAPH.dims, GRAPH.dims, "duplicated", MUON) == ("all_gather", {})
    assert matrix_exchange(BLOCKS, LOCAL, WHOLE, "blockwise", MUON) == ("", {})


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"matrix_layout": "duplicated"}, "plan.optimizer = adamw works value by value"),
        ({"optimizer": "soap", "matrix_layout": "distributed"}, "allowed: blockwise, duplicated, layer_sharded"),
        ({"optimizer": "muon", "matrix_layout": "duplicated", "zero": 3}, "not with FSDP"),
    ],
)
def test_what_a_plan_cannot_have_is_refused(plan, said):
    """In one line that says what is allowed."""
    with pytest.raises(simpar.UserError, match=said):
        simulate(**plan)


def simulate(**plan):
    """A step of Llama 3 8B on a node, with tp 2."""
    return simpar.simulate(
        "llama-3-8b",
        simpar.Cluster("dgx-h100"),
        simpar.Plan(tp=2, **plan),
        simpar.Training(seq_len=4096, global_batch=16),
    )


def test_the_steps_differ_by_their_layouts():
    """Bytes that tensor-parallel ranks send more, and the order of the updates."""
    steps = {
        name: simulate(optimizer="muon", zero=1, matrix_layout=name)
        for name in ("blockwise", "duplicated", "layer_sharded")
    }
    assert steps["blockwise"].step_time_s < steps["layer_sharded"].step_time_s < steps["duplicated"].step_time_s
    assert steps["blockwise"].step_time_s == simulate(optimizer="muon", zero=1).step_time_s


def test_layers_with_convolutions_have_whole_matrices_too():
    """Their filters have three sides, so no rank gathers them, and the update ends with a division by none."""
    graph = simpar.Model("nemotron-h-8b")
    local = {**graph.dims, **{name: graph.dims[name] // 2 for name in ("mamba_heads", "mamba_groups")}}
    block = next(block for block in graph.blocks.values() if any(op.kind == "scan" for op in block.operators))
    matrices = lay_out_matrices([block], local, before_tensor_parallelism(graph, local), "duplicated")
    sizes = {op.name: op.weights[0].size for op in block.operators if op.kind == "matmul"}
    assert set(sizes) == {"in_proj", "out_proj"}
    whole = sum(evaluate(size, block.view(graph.dims)) for size in sizes.values())
    assert sum(m.rows * m.columns * m.count for m in matrices) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "plan", "times"),
    [("glm-4.5-air", {"ep": 8, "etp": 2}, 2.39), ("llama-3-70b", {}, 13.7)],
    ids=["experts", "dense"],
)
def test_a_published_pair_lies_between_experts_and_dense(model, plan, times):
    """632 and 157 ms, duplicated and layer-sharded, on 32 GB300 with 16 ranks a dense matrix and 2 an expert's.

    [NVIDIA/Megatron-LM, issue 6676]; no model is named. Two ranks duplicate twice the work at most, sixteen 16 times.
    """
    cluster, training = simpar.Cluster("gb300-nvl72", nodes=8), simpar.Training(seq_len=4096, global_batch=16)
    usual = {"tp": 16, "sequence_parallel": True, "micro_batch": 1, "zero": 1, "recompute": "full", **plan}

    def step(**own):
        return simpar.simulate(model, cluster, simpar.Plan(**usual, **own), training, with_timeline=False)

    plain = step(optimizer="adamw")
    rest = plain.step_time_s - plain.time_breakdown_s.optimizer
    update = {
        layout: step(optimizer="muon", matrix_layout=layout).step_time_s - rest
        for layout in ("layer_sharded", "distributed", "duplicated")
    }
    assert update["layer_sharded"] < update["distributed"] < update["duplicated"]
    assert update["duplicated"] / update["layer_sharded"] == pytest.approx(times, rel=0.02)
