"""Accelerate, nanotron and SageMaker: the files that they read."""

import json
import runpy

import pytest
from ruamel.yaml import YAML

from simpar.architectures.catalogue import load_model
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import export, read, unsupported
from simpar.plan.plan import Plan

from .conftest import PLANS, TRAINING, checked, comes_back, exported


def yaml_of(target, name, **values):
    """A YAML file of an export, read as YAML 1.1 does."""
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    return reader.load(exported(target, checked(**values))[name])


def test_accelerate_shards_and_replicates():
    """Degrees multiply up to the processes; words stay words and switches switches."""
    found = yaml_of("accelerate", "accelerate.yaml", dp=8, zero=3, hsdp=2, recompute="full")
    parallel = found["parallelism_config"]
    assert parallel["parallelism_config_dp_replicate_size"] == 2
    assert parallel["parallelism_config_dp_shard_size"] == 4
    assert found["num_processes"] == 8
    assert found["fsdp_config"]["fsdp_reshard_after_forward"] is True
    assert found["fsdp_config"]["fsdp_activation_checkpointing"] is True
    assert found["mixed_precision"] == "bf16"


def test_accelerate_without_sharding_is_ddp():
    """Zero 0 needs no FSDP section."""
    found = yaml_of("accelerate", "accelerate.yaml", dp=8, precision="fp32")
    assert found["distributed_type"] == "MULTI_GPU"
    assert found["mixed_precision"] == "no"
    assert "fsdp_config" not in found


def test_accelerate_recomputes_with_and_without_sharding():
    """FSDP has an option; without it the script's model does it, if it is told."""
    for zero, recompute, called in ((0, "full", True), (0, "none", False), (3, "full", False)):
        found = exported("accelerate", checked(dp=8, zero=zero, recompute=recompute))
        compile(found["train.py"], "train.py", "exec")
        assert ("--gradient_checkpointing" in found["local.sh"]) is called


def test_accelerate_rotates_keys_as_planned():
    """The two ways of torch's context parallelism."""
    for method, strategy in (("all_gather", "allgather"), ("ring", "alltoall")):
        values = {"cp": 2, "dp": 4, "zero": 3, "cp_method": method, "cp_balance": "zigzag"}
        found = yaml_of("accelerate", "accelerate.yaml", **values)
        assert found["parallelism_config"]["parallelism_config_cp_comm_strategy"] == strategy


def test_nanotron_yaml_keeps_its_types():
    """Numbers are numbers for YAML 1.1 too; batches multiply up."""
    found = yaml_of("nanotron", "nanotron.yaml", tp=2, pp=2, dp=2, zero=1, recompute="full")
    assert found["parallelism"] | {"dp": 2, "pp": 2, "tp": 2} == found["parallelism"]
    assert found["parallelism"]["tp_mode"] == "REDUCE_SCATTER"
    assert found["parallelism"]["recompute_layer"] is True
    rate = found["optimizer"]["learning_rate_scheduler"]["learning_rate"]
    assert rate == pytest.approx(3e-4)
    assert isinstance(found["optimizer"]["optimizer_factory"]["adam_eps"], float)
    tokens = found["tokens"]
    assert tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * 2 == TRAINING.global_batch
    assert found["data_stages"][0]["data"]["dataset"] is None


def test_nanotron_buckets_are_mebibytes():
    """DDP's bucket_cap_mb counts in MiB."""
    found = yaml_of("nanotron", "nanotron.yaml", dp=8, bucket_bytes="32 MiB")
    assert found["model"]["ddp_bucket_cap_mb"] == 32


def test_sagemaker_parameters_and_strategy():
    """Shards a replica, tensor parallelism, and the strategy that keeps or frees parameters."""
    found = exported("sagemaker", checked(dp=8, zero=3, hsdp=2, recompute="full"))
    parameters = json.loads(found["smp.json"])
    assert parameters["hybrid_shard_degree"] == 4
    assert "ShardingStrategy.HYBRID_SHARD," in found["train.py"]
    assert "apply_activation_checkpointing" in found["train.py"]
    assert "_HYBRID_SHARD_ZERO2" in exported("sagemaker", checked(dp=8, zero=2))["train.py"]


@pytest.mark.parametrize("target", ["accelerate", "deepspeed", "sagemaker"])
def test_scripts_are_python_with_the_plans_model(target):
    """The script compiles; config.json is the model's, long enough for the sequences."""
    found = exported(target, checked(dp=8, zero=3))
    for name, text in found.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
    config = json.loads(found["config.json"])
    assert config["model_type"] == "llama"
    assert config["num_hidden_layers"] == 32
    assert config["max_position_embeddings"] >= TRAINING.seq_len
    assert "source" not in config


@pytest.mark.parametrize(
    ("target", "model", "values", "words"),
    [
        ("accelerate", "llama-3-8b", {"dp": 8, "zero": 1}, "zero = 1"),
        ("accelerate", "llama-3-8b", {"tp": 2, "dp": 4, "zero": 3, "sequence_parallel": False}, "checkpoint"),
        ("accelerate", "gemma-2-2b", {"dp": 8, "zero": 3}, None),
        ("nanotron", "llama-3-8b", {"dp": 8, "zero": 3}, "zero = 3"),
        ("nanotron", "qwen2.5-7b", {"dp": 8}, "Llama decoders"),
        ("nanotron", "llama-3-8b", {"pp": 2, "dp": 4, "layers": (10, 22)}, "by their cost"),
        ("nanotron", "llama-3-8b", {"pp": 2, "dp": 4, "schedule": "gpipe"}, None),
        (
            "nanotron",
            "llama-3-8b",
            {"tp": 2, "dp": 4, "sequence_parallel": False, "tensor_parallel": {"overlap": True}},
            "overlap = true",
        ),
        (
            "nanotron",
            "llama-3-8b",
            {"tp": 2, "dp": 4, "sequence_parallel": True, "tensor_parallel": {"overlap": True}},
            "overlap = true",
        ),
        ("nanotron", "llama-3-8b", {"pp": 2, "vpp": 2, "dp": 4}, "schedule = interleaved"),
        ("sagemaker", "llama-3-8b", {"dp": 8}, "zero = 0"),
        ("sagemaker", "qwen2.5-7b", {"tp": 2, "dp": 4, "zero": 3, "sequence_parallel": False}, "tp = 2"),
        ("sagemaker", "llama-3-8b", {"tp": 2, "dp": 4, "zero": 3, "sequence_parallel": False}, None),
    ],
)
def test_what_they_cannot_say_is_named(target, model, values, words):
    """A reason for every loss, none where it can be said."""
    reasons = unsupported(Plan.model_validate(values), load_model(model), TRAINING, target)
    assert (words is None) == (not reasons), reasons
    assert words is None or any(words in reason for reason in reasons)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "sagemaker"])
@pytest.mark.parametrize("model", ["llama-3-8b", "llama-3.1-8b", "qwen3-8b", "gemma-2-2b", "gpt-neox-20b", "opt-1.3b"])
def test_the_config_says_the_model_to_transformers(target, model):
    """What transformers makes of the written config.json has every detail of the model, and its sizes."""
    transformers = pytest.importorskip("transformers")
    config = json.loads(exported(target, checked(model=model, dp=8, zero=3))["config.json"])
    theirs = transformers.AutoConfig.for_model(**config).to_dict()
    graph = read_config({key: value for key, value in theirs.items() if value is not None}, model)
    own = load_model(model)
    assert (graph.dims, graph.details.positions) == (own.dims, own.details.positions)
    for name in ("activation", "norm_eps", "norm_offset", "scales", "caps"):
        assert getattr(graph.details, name) == getattr(own.details, name), name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("llama-3-8b", "LlamaDecoderLayer"), ("gpt2", "GPT2Block"), ("opt-1.3b", "OPTDecoderLayer"),
        ("falcon-7b", "FalconDecoderLayer"), ("gpt-neox-20b", "GPTNeoXLayer"),
    ],
)  # fmt: skip
def test_sagemaker_wraps_the_layers_of_every_family(model, layer, tmp_path):
    """Wherever a family keeps them: the script finds them in the model that it builds."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    found = exported("sagemaker", checked(model=model, dp=8, zero=3), lossy=True)
    for name in ("train.py", "config.json"):
        (tmp_path / name).write_text(found[name])
    script = runpy.run_path(str(tmp_path / "train.py"))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    assert type(built.get_submodule(script["first_layer"](built))).__name__ == layer


@pytest.mark.parametrize("label", ["ddp", "tp-without-sp", "gpipe", "fp32", "buckets"])
def test_a_config_of_nanotron_comes_back(label):
    """Export and import give the same plan."""
    assert comes_back("nanotron", checked(**PLANS[label]), "nanotron.yaml")


@pytest.mark.parametrize(
    ("mode", "beside", "said"),
    [("REDUCE_SCATTER", True, 0), ("REDUCE_SCATTER", False, 1), ("REDUCE_SCATTER", None, 1), ("ALL_REDUCE", False, 0)],
)
def test_communication_that_waits_is_said(mode, beside, said):
    """A plan has no word for nanotron's asynchronous linear layers; its stack has them."""
    layout = {"dp": 4, "tp": 2, "pp": 1, "tp_mode": mode, "tp_linear_async_communication": beside}
    found = read(json.dumps({"parallelism": layout}), "config.yaml", "nanotron")
    assert sum("tp_linear_async_communication is off" in note for note in found.notes) == said
    assert "parallelism.tp_linear_async_communication" not in found.ignored
    notes = export(checked(tp=2, dp=4), load_model("llama-3-8b"), TRAINING, "nanotron").notes
    assert any("tp_linear_async_communication" in note for note in notes)
    with pytest.raises(UserError, match=r"tp_linear_async_communication = true: allowed: false, or .*REDUCE_SCATTER"):
        read(json.dumps({"parallelism": layout | {"tp_mode": "ALL_REDUCE", "tp_linear_async_communication": True}}),
             "config.yaml", "nanotron")  # fmt: skip


@pytest.mark.parametrize("label", ["ddp", "zero-3", "hsdp", "offloaded"])
def test_a_config_of_accelerate_comes_back(label):
    """Ranks and what they share; the model and the batch are in no config of Accelerate."""
    plan = checked(**PLANS[label])
    back = read(exported("accelerate", plan)["accelerate.yaml"], "accelerate.yaml", "accelerate").plan
    for name in ("dp", "zero", "hsdp", "precision", "offload_parameters", "cp"):
        assert back.flat_values().get(name) == plan.flat_values().get(name), name
