"""How steps are executed, in Megatron-LM's arguments: out and back in."""

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks import TARGETS, draft, load_target, read, unsupported
from simpar.frameworks.megatron_execution import with_weights
from simpar.plan.plan import Plan
from simpar.stacks.stack import load_stack

from .conftest import TRAINING, checked, exported

EXPERTS = {"dp": 8, "ep": 8}
IN_8_BITS = {"precision": "fp8", "zero": 1}


@pytest.mark.parametrize(
    ("model", "values", "expected"),
    [
        ("llama-3-8b", {"graphs": "attention+mlp"}, ["transformer_engine", "--cuda-graph-modules attn mlp"]),
        ("llama-3-8b", {"graphs": "step"}, ["full_iteration", "--no-check-for-nan-in-loss-and-grad"]),
        ("qwen3-30b-a3b", {**EXPERTS, "graphs": "router"}, ["--cuda-graph-modules moe_router", "--te-rng-tracker"]),
        ("llama-3-8b", {"attention_kernel": "eager"}, ["--attention-backend unfused"]),
        ("llama-3-8b", {"empty_cache_steps": 1}, ["--empty-unused-memory-level 1"]),
        ("llama-3-8b", {"gradient_accumulation_fusion": False}, ["--no-gradient-accumulation-fusion"]),
        ("llama-3-8b", {**IN_8_BITS, "quantized_weights": "stored"}, ["--fp8-param-gather"]),
        ("qwen3-30b-a3b", {**EXPERTS, "dispatcher": "all_gather"}, ["--moe-token-dispatcher-type allgather"]),
    ],
)
def test_what_is_executed_comes_back(model, values, expected):
    """Arguments are Megatron-Core's, and are read as the plan that they come from; nothing of them is left unread."""
    text = exported("megatron", checked(model=model, **values))["command.sh"]
    assert [words for words in expected if words not in text] == []
    back = read(text, "command.sh", "megatron")
    chosen = {name: value for name, value in values.items() if name not in {**EXPERTS, **IN_8_BITS}}
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
        ("llama-3-8b", {**IN_8_BITS, "quantized_weights": "none"}, "caches casts"),
        ("llama-3-8b", {**IN_8_BITS, "zero": 0, "quantized_weights": "stored"}, "distributed optimizer"),
        ("llama-3-8b", {"zero": 1, "quantized_weights": "none"}, None),
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


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ("--fp8-format hybrid", None),  # as the stack has it: cached
        ("--fp8-format hybrid --fp8-param-gather --use-distributed-optimizer", "stored"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --reuse-grad-buf-for-mxfp8-param-ag", "stored"),
        ("--fp4-format e2m1 --fp4-param-gather", "stored"),
        ("--fp8-format hybrid --fp4-param-gather", None),
        ("--fp8-format hybrid --use-torch-fsdp2 --fp8-param-gather", "none"),
        ("--fp8-param-gather", None),
    ],
)
def test_how_weights_in_few_bits_are_held(arguments, kind):
    """Modules of Transformer Engine cache casts, but not under torch's FSDP, which turns 8-bit gathers off."""
    text = f"pretrain_gpt.py --micro-batch-size 1 --bf16 {arguments}"
    found = read(text, "run.sh", "megatron")
    assert found.plan.execution.quantized_weights == kind
    assert not [word for word in found.ignored if "gather" in word or "reuse" in word]
    assert any("timed with 2 bytes" in note for note in found.notes) == (kind == "stored" and "mxfp8" not in arguments)


@pytest.mark.parametrize(
    ("told", "kind", "usual"),
    [({"precision": "fp8"}, "cached", "stored"), ({"precision": "fp8_blockwise"}, None, "cached"),
     ({"precision": "fp8", "quantized_weights": "stored"}, None, "stored"), ({"precision": "bf16"}, None, "cached")],
)  # fmt: skip
def test_under_a_stack_that_stores_them(told, kind, usual):
    """A plan of NeMo's says that its modules cache casts; what its stack does by itself is left open."""
    assert load_stack("nemo").memory.weights_in(told["precision"]) == usual
    assert with_weights(Plan.model_validate(told), "nemo").execution.quantized_weights == kind


@pytest.mark.parametrize(
    ("words", "kernel"),
    [
        ("--data-impl mmap", "eager"),
        ("--DDP-impl local", "eager"),
        ("--checkpoint-activations", "eager"),
        ("--activations-checkpoint-method uniform", "eager"),
        ("--data-impl mmap --use-flash-attn", None),
        ("--data-impl mmap --transformer-impl transformer_engine", None),
        ("--data-path d", None),
    ],
)
def test_attention_before_transformer_engine_was_the_default(words, kernel):
    """Until autumn 2023 --transformer-impl was local, where attention was unfused without --use-flash-attn."""
    found = read(f"torchrun pretrain_gpt.py --micro-batch-size 1 --bf16 {words}\n", "a.sh", "megatron")
    assert found.plan.execution.attention_kernel == kernel
    assert any("is of before autumn 2023" in note for note in found.notes) == (kernel == "eager")


@pytest.mark.parametrize(
    ("words", "dtype"),
    [
        ("--fp16", "bf16"),  # sixteen bits, whichever
        ("--fp16 --accumulate-allreduce-grads-in-fp32", "fp32"),
        ("--bf16", "fp32"),
        ("--bf16 --grad-reduce-in-bf16", "bf16"),
        ("--fp16 --grad-reduce-in-bf16", "bf16"),
    ],
)
def test_gradients_beside_fp16_have_its_bits(words, dtype):
    """validate_args of Megatron-LM sums in 32 bits by itself beside bf16 alone; a bucket is counted in elements."""
    text = f"torchrun pretrain_gpt.py --micro-batch-size 1 --ddp-bucket-size 1000 {words}\n"
    plan = read(text, "a.sh", "megatron").plan
    assert plan.numerics.grad_dtype == dtype
    assert plan.data_parallel.bucket_bytes == (2000 if dtype == "bf16" else 4000)


def test_gradients_in_16_bits_beside_fp16_need_no_argument():
    """--grad-reduce-in-bf16 is of bf16 alone."""
    text = exported("megatron", checked(model="llama-3-8b", precision="fp16", grad_dtype="bf16"))["command.sh"]
    assert "--grad-reduce-in-bf16" not in text
    assert "--accumulate-allreduce-grads-in-fp32" not in text
    assert read(text, "command.sh", "megatron").plan.numerics.grad_dtype == "bf16"


def test_experts_are_gathered_where_no_dispatcher_is_named():
    """``allgather`` is the default of --moe-token-dispatcher-type (TransformerConfig of megatron-core)."""
    words = "torchrun pretrain_gpt.py --micro-batch-size 1 --bf16 --num-experts 8"
    for more, dispatcher in (("--expert-model-parallel-size 8", "all_gather"), ("", None)):
        assert read(f"{words} {more}\n", "a.sh", "megatron").plan.execution.dispatcher == dispatcher
    named = f"{words} --expert-model-parallel-size 8 --moe-token-dispatcher-type alltoall\n"
    assert read(named, "a.sh", "megatron").plan.execution.dispatcher is None
