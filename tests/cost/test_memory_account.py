"""The account of memory: one plan and arrays of plans to the byte, and what a result says of it adds up."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import reject
from hypothesis import strategies as st

from simpar import files
from simpar.architectures.catalogue import load_model
from simpar.architectures.graph import ModelGraph
from simpar.architectures.training import Training
from simpar.cost.memory.static import flat_shard, held_memory
from simpar.cost.memory.terms import ALWAYS, BETWEEN, PASSES, HeldBlocks
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.layout.sharding import dims_of
from simpar.plan.plan import Plan
from simpar.report.words import assumptions
from simpar.simulation import simulate
from simpar.stacks.stack import load_stack
from simpar.units import GIB
from tests.cost.account import builder_of, stage_static_memory
from tests.gate import assert_law, some

TRAINING = Training(seq_len=512, global_batch=16)
STACKS = tuple(files.bundled("stacks"))
MODELS = ("gpt2", "llama-3.2-1b", "small-mixture", "nemotron-h-4b")
DIAGONAL = [(MODELS[at % len(MODELS)], stack) for at, stack in enumerate(STACKS)]
"""Every stack with a model, every model with several stacks."""
SIZES = ("tp", "dp", "pp", "ep", "zero", "sequence_parallel", "reshard_after_forward")
KINDS = {"ddp": (0, 1, 2), "fsdp": (2, 3)}


@pytest.mark.parametrize(("model", "stack"), some(product(MODELS, STACKS), DIAGONAL, tuples=True))
def test_arrays_are_single_plans_to_the_byte(model: str, stack: str) -> None:
    """Every term of arrays of layouts is that of every layout alone: padding of shards, tied tables and experts too."""
    check_arrays(model, stack, "bf16")


@pytest.mark.parametrize(("stack", "precision"), [("megatron", "fp8"), ("nemo", "fp8"), ("nemo", "mxfp8")])
def test_arrays_of_narrow_weights_are_single_plans_to_the_byte(stack: str, precision: str) -> None:
    """Cached, stored with one scale a tensor, and stored with scales of blocks."""
    check_arrays("small-mixture", stack, precision)


def check_arrays(model: str, stack: str, precision: str) -> None:
    """Compare arrays of layouts with every layout alone."""
    graph, habits = load_model(model), load_stack(stack)
    eps = (1, 2) if graph.is_mixture else (1,)
    for kind, zeros in KINDS.items():
        plans = [
            resolve(Plan(tp=tp, dp=dp, pp=pp, ep=ep, zero=zero, kind=kind, precision=precision), habits)
            for tp, dp, pp, ep, zero in product((1, 2), (2, 3), (1, 2), eps, zeros)
        ]
        builders = [builder_of(graph, plan, TRAINING, habits) for plan in plans]
        singles = [builder.static_memory(0) for builder in builders]
        each = [Layout.of(plan) for plan in plans]
        sizes = {name: np.array([getattr(one, name) for one in each]) for name in SIZES}
        columns = each[0].with_columns(sizes)
        held = [[part.block for part in builder.held(0)] for builder in builders]
        known = {block.name: block for blocks in held for block in blocks}
        counts = {name: np.array([blocks.count(block) for blocks in held]) for name, block in known.items()}
        blocks = tuple((known[name], count) for name, count in counts.items())
        ends = (counts.get(end.name, np.zeros(len(plans))) for end in (graph.embedding, graph.head))
        dims = dims_of(graph, columns, TRAINING)
        device = builders[0].job.kernels.device
        microbatches = np.array([one.num_microbatches(TRAINING.global_batch) for one in each])
        here = HeldBlocks(blocks, *ends, microbatches=microbatches)
        many = held_memory(graph, here, dims.tensor, columns, habits, device)
        for category in ("parameters", "gradients", "optimizer_states", "transient", None):
            for alive in (ALWAYS, PASSES, BETWEEN):
                found = np.broadcast_to(many.bytes_of(category, alive), len(plans))
                assert found.tolist() == [one.bytes_of(category, alive) for one in singles], (category, kind)


MORE = (
    {}, {"cp": 2}, {"ep": 2}, {"ep": 4, "etp": 1}, {"hsdp": 2}, {"recompute": "full"}, {"recompute": "selective"},
    {"recompute": "every:2", "micro_batch": 2}, {"offload_optimizer": "cpu"}, {"offload_activations": 0.5},
    {"offload_parameters": "cpu"}, {"optimizer": "muon"}, {"precision": "fp8"}, {"reshard_after_forward": False},
    {"capacity_factor": 1.25, "ep": 2}, {"grad_dtype": "bf16"}, {"sequence_parallel": False},
)  # fmt: skip


DRAWN = {
    "stack": st.sampled_from(STACKS), "model": st.sampled_from((*MODELS, "gemma-3-1b")), "zero": st.integers(0, 3),
    "tp": st.sampled_from([1, 2]), "pp": st.sampled_from([1, 2, 4]), "late": st.booleans(),
    "schedule": st.sampled_from(["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "v-half", "dualpipev"]),
    "more": st.lists(st.sampled_from(MORE), max_size=2),
}  # fmt: skip


@pytest.mark.parametrize("examples", some([12, 100], 1))
def test_static_peak_and_reserved_are_in_order(examples: int) -> None:
    """What is held between steps is no more than the peak, that no more than is reserved; parts sum to the peak."""
    assert_law(assert_in_order, examples, **DRAWN)


def assert_in_order(stack: str, model: str, zero: int, tp: int, pp: int, **drawn: Any) -> None:
    """The account of a simulated step is in order."""
    schedule = drawn["schedule"] if pp > 1 else "1f1b"
    plan = {"tp": tp, "pp": pp, "zero": zero, "schedule": schedule, "overlap_grad_reduce": not drawn["late"]}
    plan["vpp"] = 2 if schedule in ("interleaved", "zb-v", "v-half", "dualpipev") else 1
    for each in drawn["more"]:
        plan |= each
    try:
        whole = Plan(**plan)
        cluster = load_cluster("dgx-h100", 1)
        memory = simulate(model, cluster, whole, TRAINING, stack=stack, with_timeline=False).memory
    except UserError:
        reject()
    assert memory.static_memory_bytes <= memory.peak_memory_bytes <= memory.peak_reserved_bytes
    for stage in memory.stages:
        assert all(size >= 0 for size in stage.parts_bytes.values())
        assert sum(stage.parts_bytes.values()) == pytest.approx(stage.peak_bytes, abs=1)
    assert memory.peak_memory_bytes == pytest.approx(max(stage.peak_bytes for stage in memory.stages), abs=1)
    assert memory.fits == (memory.peak_reserved_bytes <= memory.capacity_bytes)


def test_copies_between_steps_must_fit() -> None:
    """Flat copies left by the gather of updated parameters fill the device: 94 GB of states do not fit in 85."""
    training = Training(seq_len=512, global_batch=8)
    result = simulate("llama-3-8b", load_cluster("dgx-h100", 1), Plan(zero=1), training, stack="nanotron")
    assert result.memory.static_memory_bytes > result.memory.capacity_bytes
    assert not result.fits
    assert result.memory.stages[0].transient_bytes > 16 * GIB


def test_fsdp_gathers_for_its_passes_only() -> None:
    """ZeRO-2 of FSDP: between steps all is sharded, gathered parameters are parameters."""
    graph, habits = load_model("llama-3.2-1b"), load_stack("torchtitan")
    held = stage_static_memory(graph, resolve(Plan(dp=8, zero=2, kind="fsdp"), habits), TRAINING, habits, 0)
    size = graph.num_parameters()
    assert held.bytes_of("parameters", PASSES) == 2 * size
    assert held.total_bytes == held.resident_bytes - held.bytes_of("parameters", PASSES)
    assert held.bytes_of("gradients") == pytest.approx(4 * size / 8, rel=1e-4)


def held_bytes(graph: ModelGraph, stage: int, stack: str = "megatron", **plan: object) -> tuple[int, int, int]:
    """(parameters, gradients, optimizer) bytes of a pipeline rank."""
    habits = load_stack(stack)
    held = stage_static_memory(graph, resolve(Plan(**plan), habits), TRAINING, habits, stage)
    return held.bytes_of("parameters"), held.bytes_of("gradients"), held.bytes_of("optimizer_states")


@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b"])
def test_a_tied_table_counts_once_where_both_ends_meet(model: str) -> None:
    """2 + 4 + 12 bytes of every parameter; the ends of a pipeline have a table each."""
    graph = load_model(model)
    count, table = graph.num_parameters(), graph.dims["vocab"] * graph.dims["hidden"]
    assert held_bytes(graph, 0) == (2 * count, 4 * count, 12 * count)
    ends = np.array([held_bytes(graph, stage, pp=2) for stage in (0, 1)]).sum(axis=0)
    assert ends.tolist() == [width * (count + table) for width in (2, 4, 12)]


def test_a_frozen_tied_table_counts_once_too() -> None:
    """Under adapters: the whole model in bf16, and nothing of it but adapters has gradients."""
    graph, rank = load_model("llama-3.2-1b"), 4
    adapted = simulate(graph, load_cluster("dgx-h100", 1), Plan(lora_rank=rank, dp=8, stack="megatron"), TRAINING)
    known = adapted.memory.stages[0]
    trained = known.optimizer_states_bytes / 12
    assert 0 < trained < 0.01 * graph.num_parameters()
    assert known.parameters_bytes == pytest.approx(2 * (graph.num_parameters() + trained), rel=1e-9)


def test_a_flat_buffer_is_padded_where_it_is_cut() -> None:
    """To a multiple of lcm(ranks, 128) elements; one rank's is as long as its parameters."""
    assert [int(flat_shard(101, shards)) for shards in (1, 2, 3)] == [101, 64, 128]


def test_casts_are_of_what_products_read() -> None:
    """Two bytes of every matrix of a product, whatever else is stored wider: no table that is looked up, no norm."""
    graph, habits = load_model("small-llama"), load_stack("simpar")
    assert habits.memory.cast_weights
    assert not graph.tied_embeddings
    held = stage_static_memory(graph, resolve(Plan(), habits), TRAINING, habits, 0)
    cast = [term for term in held.terms if term.name == "cast for all passes"]
    assert [float(term.elements) for term in cast] == [graph.num_matmul_parameters()]


def test_more_ranks_than_experts_cut_experts_apart() -> None:
    """One local expert on four shards is cut by its outputs, not held whole on each of them."""
    graph, habits = load_model("mixtral-8x7b"), load_stack("torchtitan")
    held = stage_static_memory(graph, resolve(Plan(dp=32, ep=8, zero=3), habits), TRAINING, habits, 0)
    assert held.bytes_of("parameters") == pytest.approx(4 * graph.num_parameters() / 32, rel=1e-3)


def test_tensor_ranks_may_each_have_the_whole_vocabulary() -> None:
    """KempnerForge: eight bytes a parameter; every rank of tensor parallelism holds the table, and all logits."""
    forge, graph = load_stack("kempnerforge"), load_model("small-llama")
    split = forge.model_copy(update={"memory": forge.memory.model_copy(update={"whole_vocabulary": False})})
    plan, cluster = Plan(tp=2, dp=4, zero=3, micro_batch=2), load_cluster("dgx-h100", 1)
    whole, shared = (simulate(graph, cluster, plan, TRAINING, stack=stack) for stack in (forge, split))
    table, rows = graph.dims["vocab"] * graph.dims["hidden"], 2 * TRAINING.seq_len
    static = [found.memory.static_memory_bytes for found in (whole, shared)]
    assert static[0] - static[1] == table // 2 * 8 // 4
    peak = [found.peak_memory_bytes for found in (whole, shared)]
    logits = rows * graph.dims["vocab"] // 2 * 8
    assert peak[0] - peak[1] > logits / 2


def test_parameters_that_are_freed_between_passes_take_less() -> None:
    """In pipelines, too, where a stack gathers once a step unless a plan says otherwise."""
    cluster, graph = load_cluster("dgx-h100", 1), load_model("small-llama")
    keeps, frees = (
        simulate(
            graph, cluster, Plan(pp=2, zero=3, micro_batch=1, reshard_after_forward=frees), TRAINING, stack="torchtitan"
        )
        for frees in (False, True)
    )
    assert frees.peak_memory_bytes < keeps.peak_memory_bytes


@pytest.mark.parametrize("zero", [2, 3])
def test_one_rank_keeps_its_parameters_once(zero: int) -> None:
    """Without others to share with nothing is gathered beside what is stored."""
    cluster, graph = load_cluster("dgx-h100", 1), load_model("small-llama")
    alone, whole = (simulate(graph, cluster, Plan(tp=8, zero=each), TRAINING, stack="torchtitan") for each in (zero, 0))
    assert alone.memory.static_memory_bytes == whole.memory.static_memory_bytes


def test_gradients_that_wait_under_fsdp_are_whole_in_the_dtype_of_their_reduction() -> None:
    """Without a pipeline, too: 2 bytes of every parameter, where shards of fp32 have 4 of an eighth.

    Of several microbatches they wait unless a plan says otherwise, and reduced beside the last backward take no more.
    """
    graph, cluster = load_model("llama-3-8b"), load_cluster("dgx-h100", 1)
    late, usual, each, single = (
        simulate(graph, cluster, Plan(zero=3, **said), Training(seq_len=1024, global_batch=batch), stack="huggingface")
        for said, batch in (
            ({"overlap_grad_reduce": False}, 16), ({}, 16), ({"defer_grad_reduce": False}, 16), ({}, 8),
        )
    )  # fmt: skip
    held = graph.num_parameters()
    for waits in (late, usual):
        assert waits.memory.stages[0].gradients_bytes == pytest.approx(2 * held, rel=0.01)
    for at_once in (each, single):
        assert at_once.memory.stages[0].gradients_bytes == pytest.approx(4 * held / 8, rel=0.02)
    assert usual.peak_memory_bytes <= late.peak_memory_bytes
    assert usual.step_time_s < late.step_time_s
    # between steps no whole ones are left
    assert usual.memory.static_memory_bytes == each.memory.static_memory_bytes < late.memory.static_memory_bytes


@pytest.mark.parametrize(
    ("stack", "plan", "sequences", "is_told"),
    [
        ("huggingface", {"zero": 3}, 16, True),
        ("automodel", {"zero": 2}, 16, True),
        ("huggingface", {"zero": 3}, 8, False),  # one microbatch
        ("huggingface", {"zero": 3, "overlap_grad_reduce": False}, 16, False),
        ("huggingface", {"zero": 3, "defer_grad_reduce": True}, 16, False),
        ("huggingface", {"zero": 3, "pp": 2}, 16, False),  # once a step anyway
        ("huggingface", {"zero": 0}, 16, False),
        ("torchtitan", {"zero": 3}, 16, False),
    ],
)
def test_what_trainers_do_with_gradients_is_said_where_a_plan_leaves_it_open(stack, plan, sequences, is_told) -> None:
    """Whole gradients until the last microbatch are assumed, in words that name the key that says otherwise."""
    graph, cluster = load_model("small-llama"), load_cluster("dgx-h100", 1)
    training = Training(seq_len=512, global_batch=sequences)
    result = simulate(graph, cluster, Plan(**plan), training, stack=stack)
    assert any("defer_grad_reduce" in words for words in assumptions(result)) is is_told


def test_tensor_ranks_may_gather_all_logits() -> None:
    """Automodel's loss on 4 ranks holds 14 bytes of 1,024 x 128,256 logits on each instead of a quarter of them."""
    automodel = load_stack("automodel")
    split = automodel.model_copy(update={"memory": automodel.memory.model_copy(update={"whole_logits": False})})
    plan = {"tp": 4, "zero": 3, "micro_batch": 8, "recompute": "full", "sequence_parallel": False}
    job = load_model("llama-3-8b"), load_cluster("dgx-h100", 1), Plan(**plan), Training(seq_len=1024, global_batch=16)
    whole, cut = (simulate(*job, stack=stack) for stack in (automodel, split))
    more = whole.memory.stages[0].peak_bytes - cut.memory.stages[0].peak_bytes
    assert more == pytest.approx(14 * 8 * 1024 * 128_256 * 3 / 4, rel=0.01)


def test_pipelines_add_up_whole_gradients_in_the_dtype_of_their_reduction() -> None:
    """Automodel reduces in bf16 once a step: 2 bytes of every parameter of the stage; with fp32 it keeps 4."""
    graph, cluster = load_model("llama-3-8b"), load_cluster("dgx-h100", 1)
    training = Training(seq_len=1024, global_batch=16)
    narrow, wide = (
        simulate(graph, cluster, Plan(pp=2, zero=3, reduce_dtype=dtype), training, stack="automodel").memory.stages[0]
        for dtype in ("bf16", "fp32")
    )
    held = graph.num_parameters() / 2
    assert narrow.gradients_bytes == pytest.approx(2 * held, rel=0.01)
    assert wide.gradients_bytes == pytest.approx(4 * held, rel=0.01)
