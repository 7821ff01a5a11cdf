"""How steps are executed, in Megatron-LM's arguments: out and back in."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks import TARGETS, draft, load_target, read, unsupported
from simpar.plan.plan import Plan

from .conftest import TRAINING, checked, exported

EXPERTS = {"dp": 8, "ep": 8}


@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        ("llama-3-8b", {"graphs": "attention+mlp"}, ["transformer_engine", "--cuda-graph-modules attn mlp"]),
        ("llama-3-8b", {"graphs": "step"}, ["full_iteration", "--no-check-for-nan-in-loss-and-grad"]),
        ("qwen3-30b-a3b", {**EXPERTS, "graphs": "router"}, ["--cuda-graph-modules moe_router", "--te-rng-tracker"]),
        ("llama-3-8b", {"attention_kernel": "eager"}, ["--attention-backend unfused"]),
        ("llama-3-8b", {"empty_cache_steps": 1}, ["--empty-unused-memory-level 1"]),
        ("llama-3-8b", {"gradient_accumulation_fusion": False}, ["--no-gradient-accumulation-fusion"]),
        ("qwen3-30b-a3b", {**EXPERTS, "dispatcher": "all_gather"}, ["--moe-token-dispatcher-type allgather"]),
    ],
)
def test_what_is_executed_comes_back(model, values, expected):
    """Arguments are Megatron-Core's, and are read as the plan that they come from; nothing of them is left unread."""
    text = exported("megatron", checked(model=model, **values))["command.sh"]
    assert [words for words in expected if words not in text] == []
    back = read(text, "command.sh", "megatron")
    chosen = {name: value for name, value in values.items() if name not in EXPERTS}
    assert {name: getattr(back.plan.execution, name) for name in chosen} == chosen
    assert not any("graph" in option or "rng" in option for option in back.ignored)


@pytest.mark.parametrize(
    ("model", "values", "words"),
    [
        ("llama-3-8b", {"graphs": "attention", "recompute": "full"}, "recomputed whole"),
        ("llama-3-8b", {"graphs": "step", "recompute": "full"}, None),
        ("llama-3-8b", {"graphs": "attention+step"}, "no other beside it"),
        ("llama-3-8b", {"graphs": "router"}, "no router"),
        ("llama-3-8b", {"graphs": "mamba"}, "no Mamba"),
        ("qwen3-30b-a3b", {**EXPERTS, "graphs": "mlp"}, "has experts"),
        ("qwen3-30b-a3b", {**EXPERTS, "graphs": "attention+router"}, None),
        ("llama-3-8b", {"attention_kernel": "latent"}, "flash, fused and unfused"),
        ("llama-3-8b", {"loss_chunks": 4}, "knows no setting of this framework"),
        ("llama-3-8b", {"empty_cache_steps": 4}, "in every step"),
    ],
)
def test_what_megatron_core_cannot_execute_is_a_loss(model, values, words):
    """With its reason, which is Megatron-Core's own."""
    reasons = unsupported(Plan.model_validate({"dp": 8, **values}), load_model(model), TRAINING, "megatron")
    assert (words is None) == (not reasons)
    assert words is None or any(words in reason for reason in reasons)


@pytest.mark.parametrize(
    ("arguments", "graphs"),
    [
        ("--cuda-graph-impl local --cuda-graph-scope attn moe_router moe_preprocess", "attention+router"),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", "step"),
        ("--cuda-graph-impl none", "none"),
        ("", None),
    ],
)
def test_graphs_as_people_write_them(arguments, graphs):
    """Names of older releases as well; the router's preprocessing is captured with it."""
    given = read(f"--micro-batch-size 1 {arguments}", "train.sh", "megatron")
    assert given.plan.execution.graphs == graphs
    assert not given.ignored


@pytest.mark.parametrize(
    ("words", "decides"),
    [
        ("", False),
        ("--use-flash-attn", False),
        ("--transformer-impl local", True),
        ("--attention-backend unfused", True),
        ("--transformer-impl local --use-flash-attn", False),
    ],
)
def test_a_softmax_of_its_own_is_only_beside_unfused_attention(words, decides):
    """Where scores are never stored, that nothing fuses it changes nothing."""
    found = read(f"pretrain_gpt.py --micro-batch-size 2 --no-masked-softmax-fusion {words}", "a.sh", "megatron")
    assert ("--no-masked-softmax-fusion" in found.words.unread) is decides


@pytest.mark.parametrize("scope", ["full", "moe", "moe_preprocess", ""])
def test_graphs_that_no_plan_can_say_are_listed(scope):
    """They are not read as something else."""
    given = read(f"--micro-batch-size 1 --cuda-graph-impl local --cuda-graph-scope {scope}", "train.sh", "megatron")
    assert given.plan.execution.graphs is None
    assert {"--cuda-graph-impl", "--cuda-graph-scope"} <= set(given.ignored)


@pytest.mark.parametrize("target", TARGETS)
def test_the_allocator_is_told_by_every_target_that_starts_torch(target):
    """An environment variable of the command; a loss elsewhere. What the plan leaves to the stack stays as it was."""
    if "expandable_segments" not in load_target(target).features:
        plan = Plan(dp=8, expandable_segments=True)
        reasons = unsupported(plan, load_model("llama-3-8b"), TRAINING, target)
        assert any("expandable_segments" in reason for reason in reasons)
        return
    model = "llama-2-7b" if target == "nanotron" else "llama-3.1-8b"  # nanotron scales no rotary positions
    own = {"master_weights": False, "zero": 3} if target == "axolotl" else {}
    file = "launch.py" if target == "nemo-run" else "command.sh"
    for chosen in (True, False):
        text = exported(target, checked(model=model, dp=8, **own, expandable_segments=chosen))[file]
        assert f"expandable_segments:{chosen}" in text
        assert f"expandable_segments:{not chosen}" not in text


@pytest.mark.parametrize(
    ("target", "values", "absent"),
    [
        ("megatron", {"attention_kernel": "latent"}, "latent"),
        ("megatron", {"graphs": "router"}, "--cuda-graph"),
        ("megatron", {"graphs": "attention+step"}, "--cuda-graph"),
        ("megatron-bridge", {"graphs": "step"}, "cuda_graph"),
        ("nemo-run", {"graphs": "step"}, "cuda_graph"),
        ("transformers", {"zero": 3, "attention_kernel": "cudnn"}, "--attn_implementation "),
        ("trl", {"zero": 3, "attention_kernel": "cudnn"}, "attn_implementation"),
        ("axolotl", {"zero": 3, "attention_kernel": "cudnn"}, "cudnn"),
        ("llama-factory", {"zero": 3, "attention_kernel": "latent"}, "flash_attn"),
    ],
)
def test_what_is_lost_of_the_execution_is_as_the_stack_does_it(target, values, absent):
    """An export that may lose it writes and predicts nothing of it, and lists it."""
    made = draft(
        checked(model="llama-3.1-8b", dp=8, **values), load_model("llama-3.1-8b"), TRAINING, target, lossy=True
    )
    [name] = set(values) - {"zero"}
    assert name in {loss.field for loss in made.lost}
    assert getattr(made.plan.execution, name) is None
    written = made.written().files
    told = {"plan.json", "README.md"}  # the plan as it was asked for, and what is lost of it
    assert [file for file, text in written.items() if absent in str(text) and file not in told] == []
