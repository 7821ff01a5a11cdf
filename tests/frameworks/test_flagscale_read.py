"""FlagScale: an experiment, the training that it names, and commands that start one; facts of public files."""

import pytest
import yaml

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words

SOURCE = "github.com/FlagOpen/FlagScale/blob/da4935e/examples"
LLAMA_70B = {  # llama3/conf/train/70b.yaml
    "system": {
        "tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "make_vocab_size_divisible_by": 64,
        "disable_bias_linear": True, "sequence_parallel": True, "use_flash_attn": True, "use_mcore_models": True,
        "use_distributed_optimizer": True, "transformer_impl": "transformer_engine",
        "precision": {"bf16": True, "attention_softmax_in_fp32": True, "accumulate_allreduce_grads_in_fp32": True},
        "logging": {"log_interval": 1, "wandb_project": "train-llama3-70B"},
        "checkpoint": {"ckpt_format": "torch", "save_interval": 100},
    },
    "model": {
        "num_layers": 80, "hidden_size": 8192, "num_attention_heads": 64, "group_query_attention": True,
        "num_query_groups": 8, "ffn_hidden_size": 28672, "seq_length": 8192, "max_position_embeddings": 8192,
        "norm_epsilon": 1e-5, "norm_init_weight": 0.02, "use_rotary_position_embeddings": True, "rotary_base": 500000,
        "no_position_embedding": True, "add_qkv_bias": False, "swiglu": True, "normalization": "RMSNorm",
        "untie_embeddings_and_output_weights": True, "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "micro_batch_size": 1, "global_batch_size": 1024, "seed": 42,
        "optimizer": {"adam_beta1": 0.9, "lr_scheduler": {"lr": 1.5e-4, "lr_decay_style": "cosine"}},
    },
    "data": {"split": 1, "tokenizer": {"tokenizer_type": "Llama3TokenizerFS", "vocab_size": 128256}},
}  # fmt: skip
EXPERIMENT = {  # llama3/conf/train.yaml
    "defaults": [{"train": "70b"}, "_self_"],
    "experiment": {
        "exp_name": "llama3", "exp_dir": "./outputs_llama3_70b",
        "task": {"type": "train", "backend": "megatron", "entrypoint": "./flagscale/train/train_gpt.py"},
        "runner": {"backend": "torchrun", "nnodes": 4, "nproc_per_node": 8},
    },
    "action": "run",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A folder with the experiment and its training."""
    (tmp_path / "conf" / "train").mkdir(parents=True)
    (tmp_path / "conf" / "train.yaml").write_text(yaml.safe_dump(EXPERIMENT))
    (tmp_path / "conf" / "train" / "70b.yaml").write_text(yaml.safe_dump(LLAMA_70B))
    return tmp_path


@pytest.mark.parametrize("words", [["conf/train.yaml"], ["python run.py --config-path ./conf --config-name train"]])
def test_an_experiment(folder, monkeypatch, words):
    """The training that it names, on the devices that it starts: 32, of which a replica has all."""
    monkeypatch.chdir(folder)
    result = given_words(words)
    plan = result.found.plan
    assert (result.text.target, plan.model, plan.tp, plan.pp, plan.dp) == ("flagscale", "llama-3-70b", 8, 4, 1)
    assert (plan.zero, plan.sequence_parallel, plan.precision, plan.grad_dtype) == (1, True, "bf16", "fp32")
    assert (plan.micro_batch, plan.training) == (1, {"seq_len": 8192, "global_batch": 1024})
    words = result.found.words
    account = load_reader("flagscale").words.sort(words.used, words.unread)
    assert not set(account.deciding) | set(account.unknown)


def test_a_training_alone_has_what_an_experiment_would_say_open():
    """No devices, references as they stand, and a width of FlagScale's own arguments (aquila/conf/train/70b.yaml)."""
    model = {**LLAMA_70B["model"], "multiple_of": 4096, "hidden_dim_multiplier": 1.3, "seed": "${experiment.seed}"}
    del model["ffn_hidden_size"]
    result = read(yaml.safe_dump({**LLAMA_70B, "model": model}), "70b.yaml", "flagscale")
    assert (result.plan.model, result.plan.dp, result.sizes["ffn"]) == ("llama-3-70b", None, 28672)
    assert set(load_reader("flagscale").words.sort((), result.words.unread).deciding) == {"experiment.task.entrypoint"}


def test_words_of_its_own():
    """Another schedule decides (deepseek_v3/conf/train/11b_a2b.yaml), how an old tokenizer is loaded does not."""
    system = {**LLAMA_70B["system"], "use_dualpipev": True, "moe_fb_overlap": True}
    data = {**LLAMA_70B["data"], "tokenizer": {**LLAMA_70B["data"]["tokenizer"], "legacy_tokenizer": True}}
    result = read(yaml.safe_dump({**LLAMA_70B, "system": system, "data": data}), "x.yaml", "flagscale")
    account = load_reader("flagscale").words.sort((), result.words.unread)
    assert (set(account.deciding), account.unknown) == (
        {"experiment.task.entrypoint", "use_dualpipev", "moe_fb_overlap"}, (),
    )  # fmt: skip


def test_a_model_of_images_is_refused():
    """Its decoder has a text model's sizes (qwen2_5_vl/conf/train/7b.yaml)."""
    system = {**LLAMA_70B["model"], "disable_vision_class_token": True}
    with pytest.raises(UserError, match="disable_vision_class_token: a model of images and text: not modelled"):
        read(yaml.safe_dump({**LLAMA_70B, "model": system}), "x.yaml", "flagscale")


def test_a_model_that_is_not_shipped_is_built():
    """Half the layers: 40 of 0.8556 billion (attention 0.1510, MLP 0.7046), and two tables of 1.0507."""
    model = {**LLAMA_70B["model"], "num_layers": 40}
    result = read(yaml.safe_dump({**LLAMA_70B, "model": model}), "x.yaml", "flagscale")
    assert read_config(result.config).num_parameters() / 1e9 == pytest.approx(40 * 0.8556 + 2 * 1.0507, rel=1e-3)


def test_what_is_not_modelled_is_refused(tmp_path):
    """Several kinds of devices, other tasks and back ends, and experiments without a training."""
    hetero = {**LLAMA_70B["system"], "hetero": {"enable_hetero": True}}
    with pytest.raises(UserError, match="enable_hetero: meshes of devices of several kinds"):
        read(yaml.safe_dump({**LLAMA_70B, "system": hetero}), "x.yaml", "flagscale")
    task = {"experiment": {**EXPERIMENT["experiment"], "task": {"type": "serve", "backend": "vllm"}}}
    with pytest.raises(UserError, match=r"experiment.task = serve by vllm: allowed: train by megatron"):
        read(yaml.safe_dump(task), "x.yaml", "flagscale")
    task["experiment"]["task"] = {"entrypoint": "./flagscale/train/train_rwkv.py"}
    with pytest.raises(UserError, match=r"entrypoint = ./flagscale/train/train_rwkv.py: not modelled"):
        read(yaml.safe_dump(task), "x.yaml", "flagscale")
    adapted = {**LLAMA_70B["model"], "peft_type": "lora"}
    with pytest.raises(UserError, match="peft_type = lora: adapters of FlagScale are not read"):
        read(yaml.safe_dump({**LLAMA_70B, "model": adapted}), "x.yaml", "flagscale")
    with pytest.raises(UserError, match="defaults has no train"):
        read(yaml.safe_dump({"experiment": EXPERIMENT["experiment"]}), "x.yaml", "flagscale")
    with pytest.raises(UserError, match=r"train/70b\.yaml: no such file"):
        read(yaml.safe_dump(EXPERIMENT), str(tmp_path / "train.yaml"), "flagscale")
