"""NeMo 1: YAML and Hydra's overrides as a plan."""

import pytest
import yaml

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.nemo_yaml import NEMO_WORDS

CONFIG = {
    "trainer": {"devices": 8, "num_nodes": 4, "precision": "bf16"},
    "model": {
        "micro_batch_size": 1, "global_batch_size": 128, "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 4, "sequence_parallel": True,
        "encoder_seq_length": 8192, "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336,
        "num_attention_heads": 32, "num_query_groups": 8, "megatron_amp_O2": True, "vocab_size": 128256,
        "activations_checkpoint_granularity": "selective", "optim": {"name": "distributed_fused_adam"},
        "max_position_embeddings": "${.encoder_seq_length}",
    },
}  # fmt: skip


def changed(**model: object) -> dict[str, object]:
    """The config with other values of its model."""
    return {**CONFIG, "model": {**CONFIG["model"], **model}}


def imported(data: object) -> object:
    """What is read of a config."""
    return read(yaml.safe_dump(data), "gpt.yaml", "nemo-1")


def test_a_config() -> None:
    """Sizes, degrees, the trainer's devices, and the optimizer that shards states."""
    result = imported(CONFIG)
    plan = result.plan
    assert (plan.stack, plan.model, plan.training) == ("nemo", "llama-3-8b", {"seq_len": 8192, "global_batch": 128})
    assert (plan.tp, plan.pp, plan.vpp, plan.dp, plan.zero, plan.precision) == (4, 2, 4, 4, 1, "bf16")
    assert (plan.recompute, plan.sequence_parallel, plan.grad_dtype) == ("selective", True, "fp32")
    assert (plan.overlap_grad_reduce, plan.overlap_param_gather) == (True, False)
    assert [each.key for each in result.assumed] == ["model", "dropout"]
    assert result.dropout == {"attention": 0.1, "hidden": 0.1}


def test_dropout_of_a_config() -> None:
    """As it says, none included; fine-tuning has none where it says none (``megatron_gpt_finetuning_config.yaml``)."""
    assert imported(changed(hidden_dropout=0.0, attention_dropout=0)).dropout == {"attention": 0.0, "hidden": 0.0}
    tuned = imported(changed(hidden_dropout=0.2, data={"train_ds": {"micro_batch_size": 1}}))
    assert tuned.dropout == {"attention": 0.0, "hidden": 0.2}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"optim": {"name": "fused_adam"}}, {"zero": 0, "overlap_grad_reduce": False}),
        ({"optim": {"name": "fused_adam"}, "pipeline_model_parallel_size": 1, "sequence_parallel": False,
          "virtual_pipeline_model_parallel_size": None}, {"zero": 0, "overlap_grad_reduce": True}),
        ({"optim": {"name": "mcore_distributed_optim"}}, {"zero": 1, "overlap_grad_reduce": False}),
        ({"optim": {"name": "distributed_fused_adam", "bucket_cap_mb": 125}}, {"bucket_bytes": "131072000 B"}),
        ({"activations_checkpoint_num_layers": 0, "activations_checkpoint_method": "block",
          "activations_checkpoint_granularity": None}, {"recompute": "none"}),
        ({"optim": {"name": "distributed_fused_adam", "grad_sync_dtype": "bf16"}}, {"grad_dtype": "bf16"}),
        ({"optim": {"name": "distributed_fused_adam", "overlap_param_sync": True}}, {"overlap_param_gather": True}),
        ({"fp8": True, "fp8_hybrid": True}, {"precision": "fp8"}),
        ({"megatron_amp_O2": False}, {"parameter_dtype": "fp32"}),
        ({"peft": {"peft_scheme": "lora", "lora_tuning": {"adapter_dim": 16, "target_modules": ["attention"]}}},
         {"lora_rank": 16, "lora_targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
        ({"activations_checkpoint_granularity": "full", "activations_checkpoint_method": "uniform",
          "activations_checkpoint_num_layers": 1}, {"recompute": "full"}),
    ],
)  # fmt: skip
def test_words_of_its_own(model: dict[str, object], expected: dict[str, object]) -> None:
    """What NeMo 1 calls differently from Megatron-LM."""
    values = imported(changed(**model)).plan.flat_values()
    assert {key: values.get(key) for key in expected} == expected


def test_parameters_in_half_precision_are_said() -> None:
    """A config without the word keeps them in fp32; of a command, whose config is elsewhere, both are simulated."""
    model = {key: value for key, value in CONFIG["model"].items() if key != "megatron_amp_O2"}
    assert imported({**CONFIG, "model": model}).plan.flat_values()["parameter_dtype"] == "fp32"
    words = "model.tensor_model_parallel_size=2 model.num_layers=2 trainer.precision=bf16"
    result = read(f"python megatron_gpt_pretraining.py {words}", "job.sh", "nemo-1")
    assert [(each.key, each.value, each.others) for each in result.assumed] == [
        ("dropout", 0.1, ()), ("parameter_dtype", "bf16", ("fp32",)),
    ]  # fmt: skip


LLAMA = {
    "activation": "fast-swiglu", "normalization": "rmsnorm", "bias": False, "position_embedding_type": "rope",
    "share_embeddings_and_output_weights": False, "vocab_size": None,
}  # fmt: skip


def test_a_model_of_its_own_is_built_by_its_words() -> None:
    """As many layers of Llama's kind as it says, with the vocabulary of the tokenizer, and Llama's by its tokenizer."""
    huge = {
        **LLAMA, "num_layers": 126, "hidden_size": 16384, "ffn_hidden_size": 53248, "num_attention_heads": 128,
        "num_query_groups": 16, "virtual_pipeline_model_parallel_size": None, "make_vocab_size_divisible_by": 1,
        "tokenizer": {"library": "huggingface", "type": "meta-llama/Meta-Llama-3.1-8B"},
    }  # fmt: skip
    graph = read_config(imported(changed(**huge)).config)
    assert round(graph.num_parameters() / 1e9) == 410  # 405 with half the queries' groups
    named = {"tokenizer": {"library": "huggingface", "type": "meta-llama/Meta-Llama-3.1-8B"}}
    assert imported(changed(**LLAMA, **named)).plan.model == "llama-3.1-8b"
    other = imported(changed(**LLAMA, tokenizer={"library": "sentencepiece", "model": "/data/t.model"}))
    assert other.plan.model == "llama-3-8b"
    biased = imported(changed(**LLAMA, qkv_bias=True, tokenizer={"library": "huggingface", "type": "Qwen/Qwen2.5-7B"}))
    assert (biased.plan.model, biased.config["model_type"], biased.config["vocab_size"]) == (None, "qwen2", 152064)


def test_a_hybrid_says_how_many_layers_are_of_which_kind() -> None:
    """Mamba's config: layers are state space where no pattern or ratio says another, in groups of its own name."""
    mamba = {"hybrid_override_pattern": None, "mamba_ssm_ngroups": 4, "num_layers": 48, "num_query_groups": None}
    found = imported(changed(**mamba))
    config = found.config
    assert (config["model_type"], config["hybrid_override_pattern"], config["n_groups"]) == ("nemotron_h", "M" * 48, 4)
    assert NEMO_WORDS.sort(found.words.used, found.words.unread).is_understood
    asked = imported(changed(**mamba, hybrid_attention_ratio=0.125, hybrid_mlp_ratio=0.5)).config
    assert [asked["hybrid_override_pattern"].count(letter) for letter in "*-M"] == [6, 24, 18]


def test_bert_is_no_gpt() -> None:
    """Of twelve layers of 768, with a word that only BERT has."""
    words = {"num_layers": 12, "hidden_size": 768, "ffn_hidden_size": 3072, "num_attention_heads": 12,
             "num_query_groups": None, "vocab_size": None, "encoder_seq_length": 512}  # fmt: skip
    assert imported(changed(**words)).plan.model == "gpt2"
    assert imported(changed(**words, bert_binary_head=True)).plan.model == "bert-base"


def test_notes_and_words_are_a_configs_own() -> None:
    """In fp32 because it says so, whatever says how parameters are kept in half precision; learned positions."""
    data = changed(megatron_amp_O2=False, gradient_accumulation_fusion=True, apply_rope_fusion=False)
    found = imported({**data, "trainer": {**CONFIG["trainer"], "precision": 32}})
    assert found.plan.numerics.precision == "fp32"
    assert not any("--bf16" in note or "--gradient" in note for note in found.notes)
    assert NEMO_WORDS.sort(found.words.used, found.words.unread).is_understood
    rotary = imported(changed(apply_rope_fusion=False, position_embedding_type="rope")).words
    assert set(NEMO_WORDS.sort(rotary.used, rotary.unread).deciding) == {"model.apply_rope_fusion"}


def test_attention_is_fused_by_transformer_engine() -> None:
    """Or by flash attention; with neither, scores are kept."""
    for words, kernel in (({}, "eager"), ({"transformer_engine": True}, None), ({"use_flash_attention": True}, None)):
        assert imported(changed(**words)).plan.execution.attention_kernel == kernel


def test_a_softmax_of_its_own_is_only_beside_unfused_attention() -> None:
    """Where scores are never stored, that nothing fuses it changes nothing."""
    for words, deciding in (({}, {"model.masked_softmax_fusion"}), ({"use_flash_attention": True}, set())):
        found = imported(changed(masked_softmax_fusion=False, **words)).words
        assert set(NEMO_WORDS.sort(found.used, found.unread).deciding) == deciding


def test_notes_have_the_words_of_the_config() -> None:
    """Not the flags of Megatron-LM, neither of what the config says nor of what it leaves out."""
    named = {word: CONFIG["model"][word] for word in CONFIG["model"] if "vocab" not in word}
    found = imported({**CONFIG, "model": {**named, "optim": {"name": "fused_adam"}, "tokenizer": {"library": "none"}}})
    assert "model.override_vocab_size" in " ".join(found.notes)
    assert "--" not in " ".join((*found.notes, *found.asks.values())).replace("--model", "")
    blocks = {f"activations_checkpoint_{word}": value for word, value in (
        ("granularity", "full"), ("method", "block"), ("num_layers", 2))}  # fmt: skip
    with pytest.raises(UserError, match=r"gpt\.yaml:\d+: model\.activations_checkpoint_num_layers = 2: of how many"):
        imported(changed(num_layers=None, **blocks))


def test_words_are_sorted_as_megatrons() -> None:
    """Of the model by their plain name; kernels that are not fused decide, and a switch that is off ends its words."""
    words = {
        "bias_activation_fusion": False, "masked_softmax_fusion": True, "fp32_residual_connection": True,
        "fsdp_sharding_strategy": "full", "cpu_offloading_num_layers": 3, "gc_interval": 100, "hidden_dropout": 0.1,
    }  # fmt: skip
    found = imported(changed(**words)).words
    account = NEMO_WORDS.sort(found.used, found.unread)
    assert set(account.deciding) == {"model.bias_activation_fusion", "model.fp32_residual_connection"}
    assert account.unknown == ()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(peft={"peft_scheme": "ia3"}), "model.peft.peft_scheme = ia3: allowed: lora, null"),
        (changed(optim={"name": "came"}), "model.optim.name = came: allowed"),
        ({**CONFIG, "trainer": {"devices": 3, "precision": "bf16"}}, "allowed: a multiple of tp x cp x pp = 8"),
        ({**CONFIG, "trainer": {"precision": "int8"}}, "trainer.precision = int8: allowed"),
        ({"model": {}}, "no config of NeMo 1"),
        (changed(hyena={"order": 2}), "model.hyena.order: Hyena's filters in place of attention: not modelled"),
        (changed(retro={"retro_num_neighbors": 2}), "retrieval beside a language model"),
        (changed(adapter_tuning={"adapter_dim": 50}), "model.adapter_tuning.adapter_dim: adapters of their own layers"),
        (changed(p_tuning={"encoder_type": "lstm"}), "tables of prompts: not modelled"),
    ],
)
def test_what_no_plan_has_is_refused(data: object, message: str) -> None:
    """One line with file, field, value and what is allowed."""
    with pytest.raises(UserError, match=r"gpt\.yaml(:\d+)?: ") as error:
        imported(data)
    assert message in str(error.value)


def test_a_command_overrides_its_config(tmp_path) -> None:
    """Hydra's folder and name beside the script, and values over them."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "gpt.yaml").write_text(yaml.safe_dump(CONFIG))
    job = tmp_path / "job.sh"
    text = "python megatron_gpt_pretraining.py --config-path=conf --config-name=gpt ++model.micro_batch_size=2"
    assert read(text, str(job), "nemo-1").plan.micro_batch == 2


def test_a_tokenizer_below_a_folder_that_is_not_said():
    """Its name tells the vocabulary, as far as anything does: the sizes are those of a shipped model."""
    model = {"num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 22016, "num_attention_heads": 64,
             "encoder_seq_length": 2048, "activation": "fast-swiglu", "normalization": "rmsnorm", "bias": False,
             "position_embedding_type": "rope", "share_embeddings_and_output_weights": False, "micro_batch_size": 1,
             "global_batch_size": 64, "tensor_model_parallel_size": 8,
             "tokenizer": {"library": "sentencepiece", "model": "${data_dir}/llama/llama_tokenizer.model"}}  # fmt: skip
    config = {"trainer": {"devices": 8, "num_nodes": 1, "precision": "bf16"}, "model": model}
    assert read(yaml.safe_dump(config), "llama1_65b.yaml", "nemo-1").plan.model == "llama-65b"
    config["model"]["mm_cfg"] = {"llm": {"freeze": True}}
    with pytest.raises(UserError, match=r"model\.mm_cfg\.llm\.freeze: a model of images and text: not modelled"):
        read(yaml.safe_dump(config), "neva.yaml", "nemo-1")


def test_switches_that_are_on_decide() -> None:
    """What no plan has is not read because words beside it depend on it: offloading was passed over, under OK."""
    switches = {"cpu_offloading": True, "defer_embedding_wgrad_compute": True}
    result = imported(changed(**switches))
    assert NEMO_WORDS.sort(result.words.used, result.words.unread).deciding.keys() >= {
        f"model.{key}" for key in switches
    }
    off = imported(changed(**dict.fromkeys(switches, False)))
    assert not {f"model.{key}" for key in switches} & {*NEMO_WORDS.sort(off.words.used, off.words.unread).deciding}
