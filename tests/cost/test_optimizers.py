"""Optimizers: state bytes by formula, passes over memory, products of matrix optimizers and who computes them."""

import pytest

import simpar
from simpar.architectures.graph import evaluate
from simpar.cost.optimizers import Matrix, arrays_host_s, inner_matrices, moment_bytes, products_time_s, state_bytes
from simpar.errors import UserError
from simpar.plan.choices.numerics import DecidedNumerics, Numerics
from simpar.plan.optimizers import OPTIMIZERS
from simpar.planner import make_problem
from simpar.planner.space.fit import FIRST, compute_least
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import memory_rows
from simpar.simulation import make_job
from simpar.validation.predict import change_stack
from tests.cost.account import stage_static_memory

H100 = simpar.Cluster("dgx-h100")
TRAINING = simpar.Training(seq_len=1024, global_batch=8)
KERNELS = make_job("gpt2", H100, simpar.Plan(), TRAINING).kernels


def states(optimizer, model="llama-3-8b", **numerics):
    """Bytes of states of a whole model, master weights left out."""
    graph, chosen = simpar.Model(model), DecidedNumerics(optimizer=optimizer, **numerics)
    blocks = [graph.embedding, *(graph.blocks[name] for name in graph.layers), graph.head]
    return sum(float(sum(state_bytes(block, graph.dims, chosen))) for block in blocks)


def inner_parameters(graph):
    """Parameters of the matrices inside layers."""
    found = inner_matrices([graph.blocks[name] for name in graph.layers], graph.dims)
    return sum(matrix.rows * matrix.columns * matrix.count for matrix in found)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "nemotron-3-nano", "qwen3-next-80b-a3b", "lfm2-8b-a1b", "deepseek-v3"])
def test_matrices_are_those_of_products_alone(name):
    """Biases of experts and filters of convolutions are parameters beside them: each matrix counts once."""
    graph = simpar.Model(name)
    blocks = [graph.blocks[each] for each in graph.layers]
    others = ("router", "convolution")
    expected = sum(
        evaluate(weight.size, block.view(graph.dims))
        for block in blocks
        for op in block.operators
        if op.kind not in others
        for weight in op.weights
        if weight.kind in ("matrix", "expert") and not weight.name.endswith("bias")
    )
    assert inner_parameters(graph) == pytest.approx(expected, rel=1e-12)


def seconds(optimizer, matrix):
    """Seconds of the products of one matrix on one rank."""
    return products_time_s([matrix], (1, 1), DecidedNumerics(optimizer=optimizer), KERNELS)


def step(training=TRAINING, **plan):
    """One step of Llama 3 8B on eight H100."""
    return simpar.simulate("llama-3-8b", H100, simpar.Plan(**plan), training)


@pytest.mark.parametrize(
    ("optimizer", "width"),
    [
        ("adamw", 8),
        ("lion", 4),
        ("sgd_momentum", 4),
        ("sgd", 0),
        ("adamw_8bit", 2 + 8 / 256),
        ("lion_8bit", 1 + 4 / 256),
        ("paged_adamw", 8),
        ("paged_adamw_8bit", 2 + 8 / 256),
    ],
)
def test_states_of_elementwise_optimizers(optimizer, width):
    """Bytes a parameter: two or one fp32 moments, or two bytes and a scale in every 256 [arXiv 2110.02861]."""
    assert states(optimizer) == pytest.approx(width * simpar.Model("llama-3-8b").num_parameters())


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 4), ("fp8", 2)])
def test_moments_may_be_narrow(dtype, width):
    """Both moments of AdamW in the dtype of the plan; DeepSeek-V3 keeps them in bf16 (arXiv 2412.19437, 3.3.3)."""
    assert states("adamw", moment_dtype=dtype) == pytest.approx(width * simpar.Model("llama-3-8b").num_parameters())


@pytest.mark.parametrize(("dtype", "saved"), [("remainder", 2), ("fp16", 4)])
def test_master_weights_may_be_narrow(dtype, saved):
    """10 bytes of states a parameter instead of 12: an update moves 4 bytes less, or 2 where it reads both halves."""
    narrow, wide = (step(tp=4, zero=1, stack="megatron", master_dtype=each) for each in (dtype, "fp32"))
    held, whole = (each.memory.stages[0].optimizer_states_bytes for each in (narrow, wide))
    assert held == pytest.approx(10 / 12 * whole, rel=1e-9)
    assert whole == step(tp=4, zero=1, stack="megatron").memory.stages[0].optimizer_states_bytes
    ratio = narrow.time_breakdown_s.optimizer / wide.time_breakdown_s.optimizer
    assert ratio == pytest.approx(1 - saved / 38, rel=1e-3)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"master_weights": False}, "no master weights"),
        ({"precision": "fp32"}, "no master weights"),
        ({"precision": "fp16"}, "bf16, not fp16; allowed: fp32, fp16"),
        ({"optimizer": "muon"}, "muon keeps them in fp32"),
        ({"offload_optimizer": "cpu", "zero": 2}, "an offloaded optimizer keeps them in fp32"),
        ({"stack": "fsdp"}, "stack fsdp keeps parameters in fp32, with no master weights"),
    ],
)
def test_a_remainder_needs_the_other_half_of_a_master_weight(plan, words):
    """Parameters in bf16, with master weights that a fused Adam on the device keeps."""
    with pytest.raises(UserError, match=words):
        step(**{"stack": "megatron", "master_dtype": "remainder", **plan})


def test_adafactor_keeps_a_row_and_a_column():
    """Of a matrix r x c it keeps r + c fp32 values, so states of an 8B model are megabytes [arXiv 1804.04235]."""
    graph = simpar.Model("llama-3-8b")
    d = graph.dims
    h, f, q, kv = d["hidden"], d["ffn"], d["heads"] * d["head_dim"], d["kv_heads"] * d["head_dim"]
    layer = (q + h) + 2 * (kv + h) + (h + q) + 2 * (f + h) + (h + f) + 2 * h
    expected = 4 * (len(graph.layers) * layer + 2 * (d["vocab"] + h) + h)
    assert states("adafactor") == pytest.approx(expected)


def test_muon_halves_the_states_of_matrices_inside_layers():
    """One moment there, two of embeddings, output projection and vectors [arXiv 2502.16982, section 2]."""
    graph = simpar.Model("llama-3-8b")
    inner = inner_parameters(graph)
    assert states("muon") == pytest.approx(8 * graph.num_parameters() - 4 * inner)
    assert inner == pytest.approx(graph.num_parameters() - 2 * graph.dims["vocab"] * graph.dims["hidden"], rel=1e-3)


def test_shampoo_keeps_two_factors_and_their_roots():
    """In whole blocks of 1,024 that is 16 bytes a parameter beside the 8 of grafting [arXiv 2309.06497]."""
    graph = simpar.Model("llama-3-8b")
    inner = inner_parameters(graph)
    assert states("shampoo") == pytest.approx(8 * graph.num_parameters() + 16 * inner, rel=0.01)


def test_newton_schulz_runs_at_the_rate_of_its_products():
    """Between the peak and a third of it for a large matrix, and the longer side only counts once."""
    tall, wide = (seconds("muon", Matrix(*shape)) for shape in ((16384, 4096), (4096, 16384)))
    assert tall == wide
    flop = 5 * (4.0 * 4096**2 * 16384 + 2.0 * 4096**3)
    least = flop / KERNELS.peak("bf16")
    assert least < tall < 3 * least


def test_ranks_share_whole_matrices():
    """N ranks take a share each, never less than the dearest matrix; other optimizers have no products."""
    numerics, found = DecidedNumerics(optimizer="muon"), [Matrix(4096, 4096, 6), Matrix(4096, 16384, 2)]
    whole, four, many = (products_time_s(found, (n, 1), numerics, KERNELS) for n in (1, 4, 1024))
    assert four == pytest.approx(whole / 4)
    assert many == pytest.approx(seconds("muon", Matrix(4096, 16384)))
    assert products_time_s(found, (1, 1), DecidedNumerics(), KERNELS) == 0


def test_experts_are_matrices_of_their_own():
    """Every expert's up, gate and down projection counts once, apart from what all ranks hold."""
    graph = simpar.Model("mixtral-8x7b")
    layer = graph.blocks[graph.layers[0]]
    experts = [m for m in inner_matrices([layer], graph.dims) if m.expert]
    assert sum(m.count for m in experts) == 3 * graph.dims["experts"]
    size = sum(m.rows * m.columns * m.count for m in experts)
    assert size == pytest.approx(float(layer.trained_experts(graph.dims)))


def test_states_and_updates_in_a_step():
    """Fewer state bytes take less memory and less time; matrix optimizers take longer, less so when sharded."""
    results = {name: step(tp=4, optimizer=name) for name in ("adamw", "lion", "adamw_8bit", "muon", "shampoo")}
    held = {name: result.memory.stages[0].optimizer_states_bytes for name, result in results.items()}
    spent = {name: result.time_breakdown_s.optimizer for name, result in results.items()}
    assert held["adamw_8bit"] < held["lion"] < held["muon"] < held["adamw"] < held["shampoo"]
    assert spent["adamw_8bit"] < spent["lion"] < spent["adamw"] < spent["muon"] < spent["shampoo"]
    sharded = step(zero=1, optimizer="muon").time_breakdown_s.optimizer
    assert sharded < 0.2 * step(zero=0, optimizer="muon").time_breakdown_s.optimizer


def test_rows_of_a_matrix_are_exchanged_under_fsdp():
    """Muon on FSDP shards sends its matrices out and back in bf16, which flat shards of whole matrices need not."""

    def sent(zero, optimizer):
        return step(zero=zero, optimizer=optimizer).communication["dp"].bytes_per_rank

    graph = simpar.Model("llama-3-8b")
    inner = inner_parameters(graph)
    assert sent(3, "muon") - sent(3, "adamw") == pytest.approx(2 * 2 * inner / 8, rel=1e-3)
    assert sent(1, "muon") == sent(1, "adamw")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_search_and_simulation_hold_the_same_states(optimizer):
    """The closed form over arrays of layouts and the exact one of a plan agree on what stays all step."""
    problem = make_problem(
        "llama-3-8b",
        H100,
        TRAINING,
        base=simpar.Plan(optimizer=optimizer),
        constraints=simpar.Constraints(
            fixed={
                "zero": (0, 1),
                "tp": (1, 4),
                "pp": (1, 2),
                "micro_batch": 1,
                "schedule": "1f1b",
                "recompute": "none",
                "cp": 1,
            }
        ),
    )
    rows = memory_rows(problem)
    for row in range(0, rows.count, max(1, rows.count // 4)):
        plan = plan_of(rows, row)
        exact = make_job("llama-3-8b", H100, plan, TRAINING)
        static = stage_static_memory(exact.graph, exact.layout, TRAINING, exact.stack, 0).resident_bytes
        assert compute_least(rows.subset([row]), (FIRST,)).static_bytes.tolist() == [[static]]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"optimizer": "muon", "sync": "asp", "servers": 1}, "parameter servers"),
        ({"optimizer": "muon", "zero": 2, "offload_optimizer": "cpu"}, "value by value"),
    ],
)
def test_matrix_optimizers_need_whole_matrices(plan, words):
    """Where states are cut or on the host, the plan is refused with what is allowed."""
    with pytest.raises(UserError, match=words):
        step(**plan)


def test_states_of_fixed_width_take_no_dtype():
    """One line names the field."""
    with pytest.raises(ValueError, match="moment_dtype"):
        Numerics(optimizer="adafactor", moment_dtype="bf16")
    assert moment_bytes(DecidedNumerics(optimizer="adamw", moment_dtype="bf16")) == 4


@pytest.mark.parametrize(
    ("model", "loop", "plan", "arrays"),
    [
        ("llama-3-8b", False, {}, 32 * 6 + 3),
        ("llama-3-8b", False, {"pp": 2}, (32 * 6 + 3) / 2),
        ("qwen3-30b-a3b", False, {"ep": 4}, 48 * 8 + 3),  # those of a rank's experts in one
        ("qwen3-30b-a3b", True, {"ep": 4}, 48 * (6 + 2 * 32) + 3),  # 32 of 128 experts with two each
    ],
)
def test_the_host_goes_through_the_arrays_of_a_rank(model, loop, plan, arrays):
    """Of a layer: two norms, qkv and output, gate with up and down; qk norm and router, and experts in their place."""
    stack = change_stack("deepspeed", {"launch.host_time_per_array_s": 1e-3, "experts.loop": loop})
    job = make_job(model, H100, simpar.Plan(**plan), TRAINING, stack)
    assert arrays_host_s(job.graph, job.layout, stack) == pytest.approx(arrays * 1e-3)


def test_an_update_takes_as_long_as_its_host():
    """GPT-2's 124 M parameters are updated in a millisecond or two; 148 arrays of 1 ms take 148."""
    stack = change_stack("deepspeed", {"launch.host_time_per_array_s": 1e-3})
    found = simpar.simulate("gpt2", H100, simpar.Plan(), TRAINING, stack=stack)
    assert found.time_breakdown_s.optimizer == pytest.approx(0.148, rel=1e-6)
    usual = simpar.simulate("gpt2", H100, simpar.Plan(), TRAINING, stack=change_stack("deepspeed", {}))
    assert usual.time_breakdown_s.optimizer < 0.03
