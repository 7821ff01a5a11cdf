"""Megatron-Bridge: the module holds Megatron-LM's options under Bridge's names."""

import ast
import json

import pytest

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.hf_config import read as read_config
from simpar.frameworks import export, load_reader, read, unsupported
from simpar.frameworks.bridge_names import PLAIN, SWITCHES
from simpar.frameworks.megatron import options as arguments
from simpar.frameworks.megatron_bridge import RELEASED
from simpar.frameworks.megatron_layers_said import predictions_in
from simpar.frameworks.subject import subject

from .conftest import MIXTURES, PLANS, TRAINING, checked, comes_back, exported

ELSEWHERE = {
    "--group-query-attention", "--max-position-embeddings", "--swiglu", "--untie-embeddings-and-output-weights",
    "--window-size", "--recompute-modules", "--bf16", "--fp16", "--fp8-format", "--fp8-recipe",
    "--accumulate-allreduce-grads-in-fp32", "--grad-reduce-in-bf16", "--seq-length", "--mock-data",
    "--tokenizer-type", "--transformer-impl", "--attention-backend", "--eval-iters",
    "--distributed-timeout-minutes", "--log-throughput", "--init-method-std", "--make-vocab-size-divisible-by",
}  # fmt: skip


def keywords(text):
    """Values of the module's keyword arguments by section and name, as Python text."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Call):
            found |= {f"{node.arg}.{k.arg}": ast.unparse(k.value) for k in node.value.keywords}
    return found


@pytest.mark.parametrize("label", PLANS)
def test_no_argument_of_megatron_is_forgotten(label):
    """Every argument is translated, or one of those that Bridge says in another way."""
    s = subject(checked(**PLANS[label]), load_model("llama-3-8b"), TRAINING, "megatron")
    assert set(arguments(s)) <= set(PLAIN) | set(SWITCHES) | ELSEWHERE


def test_a_three_dimensional_layout():
    """Degrees, distributed optimizer, recomputation and precision."""
    text = exported("megatron-bridge", checked(tp=2, pp=2, dp=2, zero=1, recompute="full"))["simpar_recipe.py"]
    found = keywords(text)
    expected = {
        "model.tensor_model_parallel_size": "2", "model.pipeline_model_parallel_size": "2",
        "model.sequence_parallel": "True", "model.pipeline_dtype": "torch.bfloat16",
        "model.recompute_granularity": "'full'", "ddp.use_distributed_optimizer": "True",
        "optimizer.use_distributed_optimizer": "True", "train.micro_batch_size": "1",
        "train.global_batch_size": "64", "dataset.seq_length": "1024", "ddp.grad_reduce_in_fp32": "True",
    }  # fmt: skip
    assert expected.items() <= found.items()
    assert "mixed_precision='bf16_mixed'" in text


def test_bf16_gradients_change_the_precision_recipe():
    """The recipe would reduce in fp32: its copy does not."""
    text = exported("megatron-bridge", checked(dp=8, zero=1, grad_dtype="bf16"))["simpar_recipe.py"]
    assert "grad_reduce_in_fp32=False)" in text
    compile(text, "simpar_recipe.py", "exec")


@pytest.mark.parametrize("model", ["gpt-oss-20b", "deepseek-v3", "kimi-k2", "qwen3-30b-a3b", "mixtral-8x7b"])
def test_mixtures_are_told_whole_or_by_their_released_name(model):
    """Families whose options are not written out, and that Bridge has a bridge for, are built from the hub's config."""
    uneven = {"layers": (31, 30)} if model == "kimi-k2" else {}
    plan = checked(model, **MIXTURES["experts-pp"], **uneven)
    assert not unsupported(plan, load_model(model), TRAINING, "megatron-bridge")
    text = exported("megatron-bridge", plan)["simpar_recipe.py"]
    ast.parse(text)
    named = model.startswith(("gpt-oss", "deepseek", "kimi"))
    assert (f"AutoBridge.from_hf_pretrained({RELEASED[model]!r}" in text) is named
    assert ("trust_remote_code=True)" in text) is (model == "kimi-k2")
    assert ("GPTModelProvider(" in text) is not named
    assert "num_moe_experts" not in text or not named
    assert comes_back("megatron-bridge", plan, "simpar_recipe.py")


CLASSES = {
    "nemotron-h-8b": {"model.hybrid_layer_pattern": "'M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-'",
                      "model.mamba_num_heads": "128", "model.activation_func": "squared_relu"},
    "nemotron-3-super": {"model.mtp_hybrid_override_pattern": "'*E'", "model.mtp_num_layers": "2",
                         "model.moe_latent_size": "1024"},
    "gemma-7b": {"model.layernorm_zero_centered_gamma": "True", "model.kv_channels": "256"},
    "gemma-2-27b": {"model.query_pre_attn_scalar": "144", "model.attn_logit_softcapping": "50.0",
                    "model.final_logit_softcapping": "30.0", "model.window_size": "(4095, 0)"},
    "gemma-3-27b": {"model.rotary_base": "(10000, 1000000)", "model.rope_scaling_factor": "8.0",
                    "model.window_size": "1024", "model.softmax_scale": str(168**-0.5)},
}  # fmt: skip
"""Fields of models that have a class of their own."""


@pytest.mark.parametrize("model", CLASSES)
def test_hybrids_and_gemma_have_classes_of_their_own(model):
    """HybridModelProvider, and Gemma's three; what the class has is not said twice."""
    experts = {"etp": 1, "ep": 2} if "3-super" in model else {}
    plan = checked(model, tp=2, dp=4, zero=1, sequence_parallel=True, **experts)
    text = exported("megatron-bridge", plan)["simpar_recipe.py"]
    found = keywords(text)
    assert CLASSES[model].items() <= found.items()
    assert not {"model.window_attn_skip_freq", "model.num_layers"} & found.keys() or model.startswith("gemma")
    assert "functional.silu" not in text.partition("def plan")[2]
    kind = {"nemotron": "Hybrid", "gemma-7b": "Gemma", "gemma-2-": "Gemma2", "gemma-3-": "Gemma3"}[model[:8]]
    assert f"model={kind}ModelProvider(" in text
    assert comes_back("megatron-bridge", plan, "simpar_recipe.py")


@pytest.mark.parametrize(
    ("model", "values", "reason"),
    [
        ("nemotron-h-8b", {"pp": 2, "vpp": 2, "dp": 4}, "no virtual stages"),
        ("gemma-2-9b", {"cp": 2, "dp": 4}, "whole sequences"),
        ("llama-4-scout", {"dp": 8}, "no class that builds Llama 4"),
    ],
)
def test_what_a_class_cannot_is_refused(model, values, reason):
    """By name, not left to fail at the start of a run."""
    plan = checked(model, **values)
    assert any(reason in each for each in unsupported(plan, load_model(model), TRAINING, "megatron-bridge"))


@pytest.mark.parametrize(
    ("model", "changed", "reason"),
    [
        ("gemma-2-9b", {"attn_logit_softcapping": None}, "capped in Gemma 2"),
        ("gemma-3-1b", {"sliding_window_pattern": 4}, "windows by layer"),
        ("gemma-7b", {"hidden_activation": "silu"}, "gated silu"),
    ],
)
def test_a_gemma_unlike_its_class_is_refused(model, changed, reason, tmp_path):
    """The class would build the family's own layers."""
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({**config_of(model), **changed}))
    plan = checked(model, dp=8)
    found = unsupported(
        plan.model_copy(update={"model": str(path)}), load_model(str(path)), TRAINING, "megatron-bridge"
    )
    assert any(reason in each for each in found)


@pytest.mark.parametrize("model", ["gemma-2b", "gemma-2-2b", "gemma-3-1b"])
def test_an_unreleased_gemma_comes_back_as_its_config(model, tmp_path):
    """With sizes that no shipped model has, the recipe's own config is read: a Gemma, no Llama of these sizes."""
    path = tmp_path / "ours.json"
    path.write_text(json.dumps({**config_of(model), "intermediate_size": 4608}))
    graph = load_model(str(path))
    plan = checked(model, tp=2, dp=4).model_copy(update={"model": str(path)})
    text = export(plan, graph, TRAINING, "megatron-bridge").files["simpar_recipe.py"]
    back = read(text, "simpar_recipe.py", "megatron-bridge")
    again = read_config(back.config)
    assert (back.plan.model, again.dims, again.details) == (None, graph.dims, graph.details)
    assert any(graph.name == "ours" or "No shipped model" in note for note in back.notes)


def test_one_of_two_overlaps_of_experts_is_on():
    """A released DeepSeek-V3 overlaps its shared experts, beside which Megatron-Core refuses other microbatches."""
    for values in MIXTURES["experts-overlapped"], MIXTURES["experts"]:
        plan = checked("deepseek-v3", **values)
        text = exported("megatron-bridge", plan)["simpar_recipe.py"]
        assert "moe_shared_expert_overlap = False" in text
        assert comes_back("megatron-bridge", plan, "simpar_recipe.py")
    plan = checked("deepseek-v3", **MIXTURES["experts"], shared_expert_overlap=True)
    assert "moe_shared_expert_overlap = True" in exported("megatron-bridge", plan)["simpar_recipe.py"]
    assert comes_back("megatron-bridge", plan, "simpar_recipe.py")


def test_an_unreleased_gpt_oss_is_written_out(tmp_path):
    """Sizes of one's own have no name on the hub: YaRN, sinks and the clamped activation are fields."""
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(config_of("gpt-oss-20b")))
    graph = load_model(str(path))
    plan = checked("gpt-oss-20b", **MIXTURES["experts"])
    text = export(plan, graph, TRAINING, "megatron-bridge").files["simpar_recipe.py"]
    compile(text, "simpar_recipe.py", "exec")
    expected = {
        "model.position_embedding_type": "'yarn'", "model.yarn_rotary_scaling_factor": "32.0",
        "model.yarn_correction_range_round_to_int": "False", "model.softmax_type": "'learnable'",
        "model.activation_func": "quick_gelu", "model.gated_linear_unit": "True", "model.glu_linear_offset": "1.0",
        "model.activation_func_clamp_value": "7.0", "model.window_size": "(127, 0)",
    }  # fmt: skip
    assert expected.items() <= keywords(text).items()
    assert "model.add_bias_linear" not in keywords(text)
    assert "import quick_gelu" in text


def test_learned_positions_must_be_as_long_as_sequences():
    """Bridge sizes the table by the sequence length."""
    plan = checked(model="gpt3-6.7b", dp=8)
    reasons = unsupported(plan, load_model("gpt3-6.7b"), TRAINING, "megatron-bridge")
    assert any("2048" in reason for reason in reasons)


@pytest.mark.parametrize(
    "label", ["3d", "pp-uneven", "interleaved", "cp-hybrid", "zero-3", "every-second", "modules", "mxfp8"]
)
def test_a_recipe_comes_back(label):
    """Export and import give the same plan, though nothing is run."""
    assert comes_back("megatron-bridge", checked(**PLANS[label]), "simpar_recipe.py")


@pytest.mark.parametrize("target", ["megatron-bridge", "nemo-run"])
def test_modules_that_are_recomputed_are_a_list(target):
    """A word each, as Megatron-Core compares them with those it knows."""
    found = keywords(exported(target, checked(**PLANS["modules"]))["simpar_recipe.py"])
    assert found["model.recompute_modules"] == "['core_attn', 'layernorm']"


OF_A_LIBRARY = """
from nemo.collections import llm

def ours():
    recipe = llm.llama3_8b.pretrain_recipe(name="x", num_nodes=4)
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.data.global_batch_size = 128
    recipe.data.seq_length = 8192
    return recipe
"""


def test_a_recipe_of_the_library_has_its_model_and_precision():
    """What its function sets is not in the file; its name says the model, and all of them train in bf16, sharded."""
    found = read(OF_A_LIBRARY, "a.py:ours", "megatron-bridge")
    assert (found.plan.model, found.plan.mesh.tp) == ("llama-3-8b", 2)
    assert (found.plan.numerics.precision, found.plan.data_parallel.zero) == ("bf16", 1)
    assert any("llm.llama3_8b.pretrain_recipe() sets is in another file" in note for note in found.notes)


BRIDGE = """def pretrain_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Meta-Llama-3-8B").to_megatron_provider()
    cfg.model.tensor_model_parallel_size = 2
    cfg.train.micro_batch_size = 1
{}
    return cfg
"""
NEMO = """def recipe():
    cfg = llm.llama3_8b.pretrain_recipe(dir="/c", name="x")
    cfg.trainer.strategy.tensor_model_parallel_size = 2
{}
    return cfg
"""
LOW = "grad_reduce_in_fp32 = False"


@pytest.mark.parametrize(
    ("text", "lines", "precision", "grad_dtype"),
    [
        (BRIDGE, ["mixed_precision = bf16_mixed()", f"mixed_precision.{LOW}"], "bf16", "bf16"),
        (BRIDGE, [f"mixed_precision.{LOW}"], "bf16", "bf16"),
        (BRIDGE, ["mixed_precision = fp16_mixed()"], "fp16", "bf16"),
        (BRIDGE, ["mixed_precision = fp16_mixed()", f"mixed_precision.{LOW.replace('False', 'True')}"], "fp16", "fp32"),
        (BRIDGE, ['mixed_precision = "bf16_mixed"', f"ddp.{LOW}"], "bf16", "fp32"),
        (
            BRIDGE,
            ['mixed_precision = get_mixed_precision_config("bf16_with_mxfp8_mixed")', f"mixed_precision.{LOW}"],
            "mxfp8",
            "bf16",
        ),
        (BRIDGE, ['mixed_precision = MixedPrecisionConfig(bf16=True, fp8="hybrid")'], "fp8", "fp32"),
        (NEMO, [f"trainer.plugins.{LOW}"], "bf16", "bf16"),
        (NEMO, ["trainer.plugins = bf16_with_fp8_mixed()", f"trainer.plugins.{LOW}"], "fp8", "bf16"),
        (NEMO, ["trainer.plugins = bf16_with_fp8_mixed()", 'trainer.plugins.fp8_recipe = "mxfp8"'], "mxfp8", "fp32"),
        (NEMO, ['trainer.plugins = nl.MegatronMixedPrecision(precision="bf16-mixed")'], "bf16", "fp32"),
    ],
)
def test_fields_of_the_precision_go_over_what_its_function_sets(text, lines, precision, grad_dtype):
    """The function or the recipe says the precision, also where one of its fields is set later."""
    found = read(text.format("\n".join(f"    cfg.{line}" for line in lines)), "r.py", "megatron-bridge")
    numerics = found.plan.numerics
    assert (numerics.precision, numerics.grad_dtype) == (precision, grad_dtype)
    assert not [name for name in found.ignored if "mixed_precision" in name or "plugins" in name]


@pytest.mark.parametrize(
    ("precision", "kept"),
    [
        ("bf16_mixed()", None),  # its optimizer is told of tensorwise scaling
        ("MixedPrecisionConfig(bf16=True, fp8_recipe='delayed')", "remainder"),
        ("MixedPrecisionConfig(bf16=True, fp8='hybrid', fp8_recipe='delayed')", "remainder"),
        ("MixedPrecisionConfig(bf16=True, fp8='hybrid')", None),
        ("bf16_with_fp8_delayed_scaling_mixed()", None),  # gathers weights in 8 bits
        ("bf16_with_mxfp8_mixed()", None),
    ],
)
def test_master_weights_go_by_the_recipe_of_8_bits(precision, kept):
    """Its optimizer keeps the low bits of them alone without one, or under delayed scaling."""
    lines = (f"mixed_precision = {precision}", "optimizer.use_precision_aware_optimizer = True")
    found = read(BRIDGE.format("\n".join(f"    cfg.{line}" for line in lines)), "r.py", "megatron-bridge")
    assert found.plan.numerics.master_dtype == kept


@pytest.mark.parametrize(
    ("precision", "said"),
    [
        ("bf16_with_fp8_current_scaling_mixed()", ["gathers weights in 8 bits: timed", "runs the first and the last"]),
        ('get_mixed_precision_config("bf16_with_mxfp8_mixed")', []),
        ("bf16_with_fp8_delayed_scaling_mixed()", ["gathers weights in 8 bits: timed"]),
        ("bf16_with_fp8_subchannel_scaling_mixed()", []),
        ('MixedPrecisionConfig(bf16=True, fp8="hybrid")', []),
        ("bf16_mixed()", []),
    ],
)
def test_what_precisions_of_8_bits_keep_is_said(precision, said):
    """Weights and end layers that a plan has no words for."""
    notes = read(BRIDGE.format(f"    cfg.mixed_precision = {precision}"), "r.py", "megatron-bridge").notes
    about = [note for note in notes if "8 bits" in note]
    assert len(about) == len(said)
    assert all(words in note for words, note in zip(said, about, strict=True))


def test_switches_that_another_file_may_set_are_left_open():
    """Of a recipe that builds on one elsewhere, only what is set here is known."""
    line = "    cfg.trainer.strategy.ddp.overlap_param_gather = False"
    data = read(NEMO.format(line), "r.py", "nemo-run").plan.data_parallel
    assert (data.overlap_grad_reduce, data.overlap_param_gather) == (None, False)


def test_fp16_gradients_are_reduced_in_fp32_where_the_plan_says_so():
    """Bridge's precision of fp16 would reduce in fp16, over what the replicas' config says: a copy does not."""
    plan = checked(dp=8, zero=1, precision="fp16", grad_dtype="fp32")
    assert "grad_reduce_in_fp32=True)" in exported("megatron-bridge", plan)["simpar_recipe.py"]
    assert comes_back("megatron-bridge", plan, "simpar_recipe.py")


def test_what_an_optimizer_config_says_is_read():
    """Dtypes are PyTorch's; without a share nothing is offloaded, unlike with Megatron-LM's argument."""
    dtypes = ["exp_avg_dtype = torch.bfloat16", "exp_avg_sq_dtype = torch.bfloat16"]
    lines = [f"    cfg.optimizer.{line}" for line in (*dtypes, "optimizer_cpu_offload = True")]
    plan = read(BRIDGE.format("\n".join(lines)), "r.py", "megatron-bridge").plan
    assert (plan.numerics.moment_dtype, plan.offload.offload_optimizer) == ("bf16", "none")
    lines.append("    cfg.optimizer.optimizer_offload_fraction = 0.5")
    offload = read(BRIDGE.format("\n".join(lines)), "r.py", "megatron-bridge").plan.offload
    assert (offload.offload_optimizer, offload.offload_ratio) == ("cpu", 0.5)


FURTHER = """
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
def recipe():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("{hub}").to_megatron_provider(load_weights=False)
    cfg.model.mtp_num_layers = {layers}
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
    return cfg
"""


@pytest.mark.parametrize(
    ("hub", "layers", "model", "predicts"),
    [
        ("deepseek-ai/DeepSeek-V3", "1", "deepseek-v3", None), ("deepseek-ai/DeepSeek-V3", "None", None, 0),
        ("deepseek-ai/DeepSeek-V3", "0", None, 0), ("moonshotai/Moonlight-16B-A3B", "1", None, 1),
        ("Qwen/Qwen3-30B-A3B", "0", "qwen3-30b-a3b", None), ("Qwen/Qwen3-30B-A3B", "None", "qwen3-30b-a3b", None),
        ("Qwen/Qwen3-30B-A3B", "1", "qwen3-30b-a3b", "model.mtp_num_layers"),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", "0", "nemotron-3-super", "model.mtp_num_layers"),
    ],
)  # fmt: skip
def test_layers_that_predict_beside_a_named_model(hub, layers, model, predicts):
    """As many as the model has, another number where its family can have it, or a word that decides."""
    found = read(FURTHER.format(hub=hub, layers=layers), "a.py:recipe", "megatron-bridge")
    deciding = load_reader("megatron-bridge").words.sort(found.words.used, found.words.unread).deciding
    assert found.plan.model == model
    assert (found.config is None) == (model is not None)
    if isinstance(predicts, int):
        assert predictions_in(read_config(found.config)) == predicts
        assert not deciding
    else:
        assert list(deciding) == ([predicts] if predicts else [])


def test_a_layout_with_layers_that_its_model_does_not_have():
    """Those that predict stand in the layout; of a model without them the stages are those of its own layers."""
    fields = {"size": 4, "layout": '"Et*12|t*12|t*12|t*12mL"'}
    layout = "".join(f"    cfg.model.pipeline_model_parallel_{key} = {value}\n" for key, value in fields.items())
    text = FURTHER.format(hub="Qwen/Qwen3-30B-A3B", layers=1).replace(
        "    cfg.train.global", f"{layout}    cfg.train.global"
    )
    found = read(text, "a.py:recipe", "megatron-bridge")
    assert found.plan.pipeline.layers == (12, 12, 12, 12)
    assert "model.mtp_num_layers" in found.words.unread
