"""A uniform plan written as stages is the same step: to the nanosecond, and to the byte of its states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import simpar
from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.files import bundled
from simpar.plan.stages import StagePlan
from simpar.program.lower_stages import messages
from simpar.simulation import make_job, simulate
from simpar.stacks.stack import load_stack
from tests.as_stages import as_stages
from tests.gate import some

TRAINING = simpar.Training(seq_len=1024, global_batch=32)


STACKS = sorted(set(bundled("stacks")) - {"kempnerforge"})
"""All but the one that keeps the vocabulary whole, which operators in roles of their own split."""
GATE = ("deepspeed", "fsdp", "megatron", "torchtitan")
IN_ROLES = ("maxtext", "nanotron", "simpar")
"""Stacks that are tried in the gate, each with one of two laws."""
MODELS = ("llama-3.2-1b", "gpt2-medium", "gemma-3-1b")
"""Grouped queries; positions and biases; tied tables, windows and a vocabulary of 262,000 words."""
SPARSE, HYBRID = ("mixtral-8x7b", "deepseek-v2-lite"), "nemotron-nano-2-9b"
"""Routed experts, also with shared ones and latent attention; state-space layers."""


def small(model, layers=4):
    """Some layers of a model, with every kind of them."""
    graph = load_model(model)
    first = 11 if graph.has_state else 0
    return replace(graph, layers=graph.layers[first : first + layers])


def both(graph, plan, *, hardware="dgx-h100", stack="megatron", roles=True):
    """Results of a plan on two nodes and of the same written as stages, with a role for every operator or without."""
    cluster = simpar.Cluster(hardware, nodes=2)
    checked = make_job(graph, cluster, plan, TRAINING, stack).layout.to_plan()
    forms = (plan, as_stages(checked, graph, roles=roles))
    return tuple(simulate(graph, cluster, form, TRAINING, stack=stack) for form in forms)


def answers(result):
    """What the two forms must agree on: every class of time in ns; static, highest and reserved bytes."""
    times = {name: round(seconds * 1e9) for name, seconds in result.time_breakdown_s.model_dump().items()}
    memory = result.memory
    moving = [(stage.activations_bytes, stage.peak_op, stage.peak_time_s) for stage in memory.stages]
    return (round(result.step_time_s * 1e9), times, memory.peak_memory_bytes, memory.peak_reserved_bytes, moving)


KEYS = {
    "recompute": ["none", "selective", "full"],
    "micro_batch": [1, 2],
    "overlap_grad_reduce": [None, True, False],
    "overlap_param_gather": [None, True, False],
    "defer_grad_reduce": [None, True],
    "bucket_bytes": [None, 25_000_000, 100_000_000],
    "grad_dtype": [None, "bf16", "fp32"],
    "optimizer": ["adamw", "sgd", "lion"],
    "reduce_dtype": [None, "bf16", "fp32"],
    "gather_dtype": [None, "fp8", "fp32"],
}


def drawn(draw, given):
    """A value of every key, those that are None left out."""
    chosen = {name: draw(st.sampled_from(values)) for name, values in given.items()}
    return {name: value for name, value in chosen.items() if value is not None}


@st.composite
def plans(draw):
    """Plans of dense models that roles can say."""
    tp, pp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    keys = {
        **KEYS,
        "zero": [0, 1, 2],
        "sequence_parallel": [None, True, False] if tp > 1 else [None],
        "schedule": ["1f1b", "gpipe", "zb-h1", "zb-h2"] if pp > 1 else [None],
    }
    return {"tp": tp, "pp": pp, "kind": "ddp", **drawn(draw, keys)}


@st.composite
def wider_plans(draw):
    """Models and plans that stages in Megatron's roles can say: all ZeRO stages, experts, states, offloading."""
    model = draw(st.sampled_from([*MODELS, *SPARSE, HYBRID]))
    tp, pp, zero = (draw(st.sampled_from(some)) for some in ([1, 2], [1, 2, 4], [0, 1, 2, 3]))
    mixture = model in SPARSE
    keys = {
        **KEYS,
        "recompute": ["none", "selective", "full", "every:2", "modules:core_attn"],
        "optimizer": ["adamw", "lion", "adafactor", "muon"],
        "kind": ["ddp", "fsdp"] if zero >= 2 else ["ddp"],
        "hsdp": [1, 2] if zero and not mixture else [1],
        "ep": [1, 2, 4] if mixture else [1],
        "capacity_factor": [None, 1.25] if mixture else [None],
        "ep_overlap": [None, True] if mixture else [None],
        "sequence_parallel": [None] if tp == 1 else [True] if mixture else [None, True, False],
        "schedule": ["1f1b", "gpipe", "zb-h1", "zb-h2"] if pp > 1 else [None],
        "offload_activations": [None, None, 0.5],
    }
    return model, {"tp": tp, "pp": pp, "zero": zero, **drawn(draw, keys)}


@pytest.mark.parametrize("stack", some(STACKS, GATE))
@given(flat=plans(), model=st.sampled_from(MODELS), hardware=st.sampled_from(["dgx-h100", "rtx-3090-8", "a100-pcie-8"]))
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
def test_stages_of_one_kind_are_the_uniform_plan(stack, flat, model, hardware):
    """Tensor, sequence, data and pipeline parallelism fall out of roles and states, under every stack's habits.

    Also on nodes whose halves share a bridge or a NIC.
    """
    uniform, staged = both(small(model), simpar.Plan(**flat), hardware=hardware, stack=stack)
    assert answers(staged) == answers(uniform)


def test_owners_of_whole_arrays_broadcast_them_where_operators_have_roles():
    """InternEvo's, behind the update, as in the uniform plan."""
    plan = simpar.Plan(tp=4, zero=1, kind="ddp", micro_batch=1, overlap_param_gather=False)
    uniform, staged = both(small("gpt2-medium"), plan, stack="internevo")
    assert answers(staged) == answers(uniform)
    assert "broadcast" in staged.communication["dp"].algorithm


def test_a_vocabulary_that_is_kept_whole_has_no_roles():
    """One line says so."""
    plan = simpar.Plan(tp=2, dp=8, kind="ddp")
    with pytest.raises(UserError, match="stack kempnerforge: does not split the vocabulary"):
        both(small("llama-3.2-1b"), plan, stack="kempnerforge")


@pytest.mark.parametrize("stack", some(STACKS, IN_ROLES))
@given(drawn=wider_plans(), hardware=st.sampled_from(["dgx-h100", "rtx-3090-8", "a100-pcie-8"]))
@settings(max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate])
def test_a_stage_in_megatrons_roles_is_a_rank_of_the_uniform_plan(stack, drawn, hardware):
    """Mixtures, hybrids, FSDP, offloading and what an optimizer does with matrices are the same on a stage's mesh."""
    model, flat = drawn
    uniform, staged = both(small(model), simpar.Plan(**flat), hardware=hardware, stack=stack, roles=False)
    assert answers(staged) == answers(uniform)


@pytest.mark.parametrize(
    "flat",
    [
        {"zero": 1, "offload_optimizer": "cpu", "offload_delayed": True},
        {"zero": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
        {"zero": 1, "recompute": "full", "recompute_early": True},
        {"zero": 2, "kind": "fsdp", "optimizer": "muon"},
    ],
    ids=str,
)
def test_what_goes_on_beside_passes_agrees(flat):
    """Updates on the host, parameters from there, recomputation ahead of its backward, exchanged matrices."""
    uniform, staged = both(small("llama-3.2-1b"), simpar.Plan(tp=2, pp=2, **flat), roles=False)
    assert answers(staged) == answers(uniform)
    assert staged.memory.host == uniform.memory.host


TUNED = [
    (model, {**layout, **tuning})
    for model in ("llama-3.2-1b", "deepseek-v2-lite", HYBRID)
    for layout in (
        {"pp": 2, "zero": 3},
        {"tp": 2, "pp": 4, "zero": 1, "recompute": "full"},
        {"pp": 2, "schedule": "zb-h1"},
    )
    for tuning in ({"frozen_layers": 2}, {"lora_rank": 8, "frozen_dtype": "nf4"})
    if model != "deepseek-v2-lite" or "lora_rank" not in tuning
]


@pytest.mark.parametrize(("model", "flat"), some(TUNED, TUNED[2:4], tuples=True))
def test_what_is_frozen_is_so_on_meshes_of_its_own(model, flat):
    """Adapters beside frozen weights, and layers that run forward only."""
    uniform, staged = both(small(model), simpar.Plan(**flat), roles=False)
    assert answers(staged) == answers(uniform)


def test_operators_with_roles_are_all_trained():
    """One line says so."""
    with pytest.raises(UserError, match=r"plan\.tuning: not with stages whose operators have roles of their own"):
        both(small("llama-3.2-1b"), simpar.Plan(pp=2, frozen_layers=2))


@pytest.mark.parametrize("flat", [{"tp": 2, "pp": 4, "layers": [5, 4, 4, 3]}, {"tp": 8, "pp": 2}], ids=str)
def test_whole_models_agree(flat):
    """With all layers, spread unevenly or not."""
    uniform, staged = both(load_model("llama-3.2-1b"), simpar.Plan(zero=1, **flat))
    assert answers(staged) == answers(uniform)


def test_late_hosts_and_slow_agreements_count_in_both_forms():
    """What a stack's host adds to every tensor-parallel collective is not left out of stages."""
    stack = load_stack("megatron")
    slow = stack.model_copy(update={"launch": stack.launch.model_copy(update={"dispatch_s": 5e-5})})
    graph, plan = small("llama-3.2-1b"), simpar.Plan(zero=1, tp=4, pp=2)
    uniform, staged = both(graph, plan, stack=slow)
    assert answers(staged) == answers(uniform)
    assert uniform.step_time_s > both(graph, plan)[0].step_time_s


def test_encoder_decoders_run_as_stages():
    """The encoder's output crosses every later boundary, and its reduction stands where it is made."""
    uniform, staged = both(load_model("t5-3b"), simpar.Plan(zero=1, tp=2, pp=4, micro_batch=4))
    assert staged.step_time_s == pytest.approx(uniform.step_time_s, rel=0.02)
    assert staged.memory.static_memory_bytes == pytest.approx(uniform.memory.static_memory_bytes, rel=1e-3)


@pytest.mark.parametrize(("senders", "receivers"), [(4, 4), (8, 2), (2, 8), (6, 4)])
def test_every_piece_crosses_once(senders, receivers):
    """Messages of a boundary carry every piece from one sender to the receiver that owns it, evenly."""
    one = StagePlan(layers=1, first_device=0, mesh=(senders,), sharding={})
    two = StagePlan(layers=1, first_device=senders, mesh=(receivers,), sharding={})
    pairs = np.concatenate(messages(one, two))
    pieces = np.lcm(senders, receivers)
    assert len(pairs) == pieces
    for column, count in ((0, senders), (1, receivers)):
        assert np.bincount(pairs[:, column] - pairs[:, column].min()).tolist() == [pieces // count] * count


def test_uneven_stages_on_different_meshes_run():
    """A deep narrow stage and a shallow wide one: all devices work, the plan survives its file."""
    graph, cluster = load_model("llama-3.2-1b"), simpar.Cluster("dgx-h100", nodes=2)
    plan = as_stages(make_job(graph, cluster, simpar.Plan(zero=1, tp=4, pp=2), TRAINING).layout.to_plan(), graph)
    first, second = plan.pipeline.stages
    stages = (
        first.model_copy(update={"layers": 4, "mesh": (1, 4)}),
        second.model_copy(update={"layers": 12, "mesh": (3, 4), "first_device": 4}),
    )
    training = simpar.Training(seq_len=1024, global_batch=12)
    uneven = plan.model_copy(update={"micro_batch": 3, "pipeline": plan.pipeline.model_copy(update={"stages": stages})})
    again = simpar.Plan.model_validate_json(uneven.model_dump_json())
    results = [simulate(graph, cluster, each, training) for each in (uneven, again)]
    assert results[0].step_time_s == results[1].step_time_s
    assert [stage.stage for stage in results[0].memory.stages] == [0, 1]
    assert results[0].setup.fold["classes"] >= 2


def test_a_stage_holds_what_the_uniform_plan_on_its_mesh_does():
    """Two stages of experts on different meshes, each against the plan that repeats it."""
    graph, cluster = small("mixtral-8x7b"), simpar.Cluster("dgx-h100", nodes=2)
    meshes, common = ((4, 2), (2, 4)), {"zero": 3, "ep": 2, "pp": 2, "micro_batch": 4, "recompute": "full"}
    stages = tuple(
        StagePlan(layers=2, first_device=8 * index, mesh=mesh, recompute="full") for index, mesh in enumerate(meshes)
    )
    own = simulate(graph, cluster, simpar.Plan(**common, pipeline={"stages": stages}), TRAINING)
    for index, (dp, tp) in enumerate(meshes):
        plan = simpar.Plan(**{**common, "tp": tp, "micro_batch": 4 // dp})
        alone = simulate(graph, cluster, plan, TRAINING)
        for name in ("parameters", "optimizer_states", "gradients", "activations"):
            assert own.memory.stages[index].parts_bytes[name] == alone.memory.stages[index].parts_bytes[name]


def spoiled(plan, **changes):
    """The plan with fields of its first stage replaced."""
    first, *rest = plan.pipeline.stages
    stages = (first.model_copy(update=changes), *rest)
    return plan.model_copy(update={"pipeline": plan.pipeline.model_copy(update={"stages": stages})})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 3}, "layers in all"),
        ({"first_device": 1}, "exactly one stage"),
        ({"sharding": {}, "mesh": (4, 1)}, "micro_batch = 2: does not divide"),
        ({"recompute": "every:2"}, "has a sharding of its own; allowed there: none, selective, full"),
    ],
)
def test_impossible_stages_say_why(change, message):
    """The broken rule and what is allowed, in one line."""
    graph, cluster = load_model("tiny-llama"), simpar.Cluster("dgx-h100")
    plan = as_stages(make_job(graph, cluster, simpar.Plan(zero=1, tp=2, pp=2), TRAINING).layout.to_plan(), graph)
    with pytest.raises(UserError, match=message):
        simulate(graph, cluster, spoiled(plan, **change), TRAINING)


def test_impossible_roles_say_why():
    """An attention has no rows of a matrix to share out."""
    graph, cluster = load_model("tiny-llama"), simpar.Cluster("dgx-h100")
    plan = as_stages(make_job(graph, cluster, simpar.Plan(zero=1, tp=2, pp=2), TRAINING).layout.to_plan(), graph)
    sharding = plan.pipeline.stages[0].sharding
    layer = sharding["layer"]
    wrong = layer.model_copy(update={"operators": {**layer.operators, "attention": ("batch", "row")}})
    with pytest.raises(UserError, match=r"layer\.attention as 'row'"):
        simulate(graph, cluster, spoiled(plan, sharding={**sharding, "layer": wrong}), TRAINING)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vpp": 2}, "vpp = 2"),
        ({"schedule": "dualpipe"}, "dualpipe"),
        ({"cp": 2}, "cp = 2"),
        ({"slices": [512, 512]}, "slices"),
        ({"recompute": "optimal"}, "recompute = optimal"),
        ({"sync": "local-sgd"}, "sync = local-sgd"),
        ({"kind": "single_process"}, "single_process"),
        ({"ep": 2}, r"stages\[0\]: plan.ep = 2"),
        ({"zero": 1, "kind": "fsdp"}, r"stages\[0\]: plan.kind = fsdp with zero = 1"),
    ],
    ids=str,
)
def test_what_stages_do_not_do_is_refused_in_one_line(keys, message):
    """What lies between stages or is chosen for one layout; the rest is refused as a uniform plan would be."""
    stages = [{"layers": 2, "first_device": 8 * index, "mesh": [4, 2]} for index in (0, 1)]
    plan = simpar.Plan.model_validate({"micro_batch": 4, "pipeline": {"stages": stages}, **keys})
    with pytest.raises(UserError, match=message) as caught:
        simulate(small("llama-3.2-1b"), simpar.Cluster("dgx-h100", nodes=2), plan, TRAINING)
    assert "allowed" in str(caught.value)
    assert "\n" not in str(caught.value)
