"""Trainers on Hugging Face's: the same arguments under the same names, models whole or by their released name."""

import json

import pytest
from ruamel.yaml import YAML

from simpar.architectures.catalogue import catalogue, find_model, load_model
from simpar.architectures.hf_config import read as read_config
from simpar.frameworks import unsupported
from simpar.frameworks.hub import HUB
from simpar.frameworks.nearest import ExportJob, find_nearest

from .conftest import TRAINING, checked, exported

CONFIGS = {"trl": "sft.yaml", "axolotl": "axolotl.yaml", "llama-factory": "train.yaml"}
MICRO = {"axolotl": "micro_batch_size"}
NAMES = {"axolotl": "base_model"}
LENGTHS = {"trl": "max_length", "axolotl": "sequence_len", "llama-factory": "cutoff_len"}


def config(target, **values):
    """The config of a plan, read as YAML 1.1 does."""
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    if target == "axolotl" and values.get("precision") != "fp32":
        values = {"master_weights": False, **values}
    return reader.load(exported(target, checked("llama-3.1-8b", **values))[CONFIGS[target]])


@pytest.mark.parametrize("target", CONFIGS)
def test_a_released_model_is_named(target):
    """By its name on the hub; batches multiply up, sequences have the plan's length."""
    found = config(target, dp=8, zero=3, micro_batch=2, recompute="full")
    assert found[NAMES.get(target, "model_name_or_path")] == "meta-llama/Llama-3.1-8B"
    micro = found[MICRO.get(target, "per_device_train_batch_size")]
    assert micro * found["gradient_accumulation_steps"] * 8 == TRAINING.global_batch
    assert found[LENGTHS[target]] == TRAINING.seq_len
    assert found["fsdp_config"]["activation_checkpointing"] is True
    assert found["fsdp_config"]["reshard_after_forward"] is True
    assert found["bf16"] is True
    assert isinstance(found["learning_rate"], float)


@pytest.mark.parametrize(("zero", "resharded"), [(2, False), (3, True)])
@pytest.mark.parametrize("target", ["axolotl", "trl"])
def test_whole_parameters_are_resharded_nowhere(target, zero, resharded):
    """Below ZeRO-3 a plan's word on resharding means nothing, and FSDP would take it for ZeRO-3."""
    found = config(target, dp=8, zero=zero, reshard_after_forward=True)
    assert found["fsdp_config"]["reshard_after_forward"] is resharded


def test_checkpointing_is_said_where_it_is_a_habit():
    """LLaMA-Factory recomputes layers unless it is told not to."""
    for zero, recompute, disabled in ((0, "full", False), (0, "none", True), (3, "full", True)):
        found = config("llama-factory", dp=8, zero=zero, recompute=recompute)
        assert found["disable_gradient_checkpointing"] is disabled


def test_replicas_of_shards_are_axolotls_alone():
    """The others have no option for them."""
    plan, graph = checked("llama-3.1-8b", dp=8, zero=3, hsdp=2), load_model("llama-3.1-8b")
    for target in ("transformers", "trl", "llama-factory"):
        assert any(reason.startswith("hsdp = 2") for reason in unsupported(plan, graph, TRAINING, target))
    found = config("axolotl", dp=8, zero=3, hsdp=2)
    assert (found["dp_replicate_size"], found["dp_shard_size"]) == (2, 4)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b"])
def test_the_trainer_builds_the_plans_architecture(model, tmp_path):
    """The model's config travels whole, mixtures of experts included."""
    made = exported("transformers", checked(model, dp=8, zero=3))
    compile(made["train.py"], "train.py", "exec")
    back = read_config(json.loads(made["config.json"]), name=model)
    assert (back.dims, back.layers) == (load_model(model).dims, load_model(model).layers)
    found = json.loads(made["training_args.json"])
    assert found["fsdp"] is True
    assert found["fsdp_config"]["version"] == 2


def test_axolotl_keeps_no_second_copy_of_weights():
    """It loads them in the precision: without a copy in fp32 it can be said, with one it is lost."""
    graph = load_model("llama-3.1-8b")
    plan = checked("llama-3.1-8b", dp=8, zero=3)
    (reason,) = unsupported(plan, graph, TRAINING, "axolotl")
    assert reason.startswith("master_weights = true: bf16 loads parameters of bf16")
    near = find_nearest(plan, ExportJob(graph, TRAINING, "axolotl", 8))
    assert [each.changes for each in near] == [("master_weights = false",)]
    for precision, attention in (("bf16", "flash_attention_2"), ("fp32", "sdpa")):
        found = config("axolotl", dp=8, zero=3, precision=precision)
        assert found["attn_implementation"] == attention
    for target in ("trl", "llama-factory", "transformers"):
        assert not unsupported(plan, graph, TRAINING, target)


@pytest.mark.parametrize(
    ("model", "widened"), [("gpt-oss-20b", "Mxfp4Config"), ("deepseek-v3", "FineGrainedFP8Config")]
)
def test_weights_of_few_bits_are_widened_or_refused(model, widened):
    """Trainers train no weights of 4 or 8 bits: Axolotl has an option, LLaMA-Factory does it by itself, TRL neither."""
    plan, graph = checked(model, dp=8, zero=3, master_weights=False), load_model(model)
    found = YAML(typ="safe", pure=True).load(exported("axolotl", plan)["axolotl.yaml"])
    assert found["model_quantization_config"] == widened
    assert found["model_quantization_config_kwargs"] == {"dequantize": True}
    plan = checked(model, dp=8, zero=3)
    assert not unsupported(plan, graph, TRAINING, "llama-factory")
    assert [reason.partition(":")[0] for reason in unsupported(plan, graph, TRAINING, "trl")] == [f"model = {model}"]


def test_models_without_a_released_name_are_refused():
    """A target that loads weights cannot train a shape that nobody released."""
    reasons = unsupported(checked("gpt3-6.7b", dp=8), load_model("gpt3-6.7b"), TRAINING, "trl")
    assert any("released model" in reason for reason in reasons)


def test_names_on_the_hub_are_of_shipped_models():
    """Every name is one that an import would read as the same model, where their sizes are in it."""
    assert set(HUB) <= set(catalogue())
    read = {name: find_model(hub) for name, hub in HUB.items()}
    assert {name for name, found in read.items() if found not in (name, None)} == set()
    assert sum(found is None for found in read.values()) < 5


@pytest.mark.parametrize(("micro", "told"), [(1, True), (TRAINING.global_batch // 8, False)])
def test_trainers_are_asked_to_reduce_every_microbatch(micro, told):
    """Where a plan of several microbatches under FSDP says so; else they keep whole gradients until the last one."""
    for target in ("trl", "transformers", "axolotl", "llama-factory", "accelerate"):
        needed = {"master_weights": False} if target == "axolotl" else {}
        plan = checked("llama-3.1-8b", dp=8, zero=3, micro_batch=micro, **needed)
        usual, each = (exported(target, plan.with_values(defer_grad_reduce=waits)) for waits in (None, False))
        said = [
            any("sync_each_batch" in text for name, text in files.items() if name != "train.py")
            for files in (usual, each)
        ]
        assert said == [False, told], target
        late = plan.with_values(defer_grad_reduce=True)
        assert not unsupported(late, load_model("llama-3.1-8b"), TRAINING, target)


def test_the_script_of_sagemaker_reduces_every_microbatch():
    """Gradients that wait are lost there, and no others."""
    plan = checked("llama-3.1-8b", dp=8, zero=3, micro_batch=1, stack="huggingface")
    graph = load_model("llama-3.1-8b")
    lost = [
        unsupported(plan.with_values(defer_grad_reduce=waits), graph, TRAINING, "sagemaker")
        for waits in (None, True, False)
    ]
    assert ["defer_grad_reduce" in " ".join(map(str, each)) for each in lost] == [True, True, False]
