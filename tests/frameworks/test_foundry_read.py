"""LLM Foundry: its YAML, and commands of composer with one."""

import pytest
import yaml

from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.foundry_read import READER
from simpar.frameworks.recipes import nest_names
from simpar.preflight.given import given_text, given_words
from simpar.verbs import check

MPT = {
    "variables.max_seq_len": 2048, "max_seq_len": "${variables.max_seq_len}", "model.name": "mpt_causal_lm",
    "model.d_model": 4096, "model.n_heads": 32, "model.n_layers": 32, "model.expansion_ratio": 4,
    "model.max_seq_len": "${variables.max_seq_len}", "model.vocab_size": 50368, "train_loader.name": "text",
    "optimizer.name": "decoupled_adamw", "global_train_batch_size": 1024, "device_train_microbatch_size": 8,
    "precision": "amp_bf16", "fsdp_config.sharding_strategy": "FULL_SHARD", "fsdp_config.mixed_precision": "PURE",
    "fsdp_config.activation_checkpointing": True,
}  # fmt: skip


def text_with(**other):
    """A config with other values, a dot written as two underscores."""
    return yaml.safe_dump(nest_names({**MPT, **{key.replace("__", "."): value for key, value in other.items()}}))


def imported(**other):
    """What is read of a config with other values."""
    return read(text_with(**other), "mpt.yaml", "llm-foundry")


def test_a_config():
    """Values that refer to others, FSDP, and no word that is left."""
    found = imported()
    plan = found.plan
    assert plan.training == {"seq_len": 2048, "global_batch": 1024}
    assert (plan.zero, plan.micro_batch, plan.precision, plan.reduce_dtype, plan.recompute, plan.optimizer) == (
        3, 8, "bf16", "bf16", "full", "adamw",
    )  # fmt: skip
    account = READER.words.sort(found.words.used, found.words.unread)
    assert (account.deciding, account.unknown) == ({}, ())


def test_the_model_of_the_config():
    """Tied words, learned positions, and biases everywhere, as MPT has without `no_bias`."""
    width, layers, words, positions = 4096, 32, 50368, 2048
    layer = 12 * width**2 + (3 + 1 + 4 + 1) * width + 4 * width
    expected = layers * layer + (words + positions) * width + 2 * width
    model = read_config(imported().config, "mpt.yaml")
    assert model.num_parameters() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"fsdp_config__sharding_strategy": "SHARD_GRAD_OP"}, {"zero": 2}),
        ({"fsdp_config__sharding_strategy": "NO_SHARD"}, {"zero": 0}),
        ({"fsdp_config__mixed_precision": "DEFAULT"}, {"reduce_dtype": None}),
        ({"precision": "amp_fp16"}, {"precision": "fp16"}),
        ({"precision": None}, {"precision": "bf16"}),
        ({"fsdp_config__sharding_strategy": None}, {"zero": 3}),
        ({}, {"expandable_segments": True}),
        ({"expandable_segments": False}, {"expandable_segments": False}),
        ({"optimizer__name": "decoupled_lionw"}, {"optimizer": "lion"}),
        ({"model__attn_config__attn_impl": "torch"}, {"attention_kernel": "eager"}),
        ({"fsdp_config__activation_checkpointing": False}, {"recompute": "none"}),
    ],
)
def test_words_of_its_own(other, expected):
    """Each in its place."""
    plan = imported(**other).plan
    assert {key: getattr(plan, key) for key in expected} == expected


def test_a_micro_batch_that_is_tried_out():
    """It is assumed, with others to compare."""
    found = imported(device_train_microbatch_size="auto")
    assert [(each.key, each.value) for each in found.assumed] == [("micro_batch", 1)]


def test_a_micro_batch_above_a_ranks_sequences_is_made_smaller(tmp_path):
    """As Composer does it, where the batch can be parted at all."""
    path = tmp_path / "mpt.yaml"
    path.write_text(text_with(global_train_batch_size=48, model__n_layers=2))
    for ranks, micro in ((2, 8), (8, 6)):
        answer = check(path, hardware="dgx-h100", gpus=ranks)
        assert answer.result.setup.plan["micro_batch"] == micro
        assert any("all sequences of a rank's step" in note for note in answer.notes) is (micro < 8)
    with pytest.raises(UserError, match="does not divide"):
        check(path, hardware="dgx-h100", gpus=5)


def test_adapters():
    """Of PEFT's config, whose other words are left; all is trained without."""
    peft = {"peft_type": "LORA", "r": 64, "lora_dropout": 0.05, "target_modules": ["Wqkv"], "use_dora": True}
    found = imported(**{f"model__peft_config__{key}": value for key, value in peft.items()})
    tuning = found.plan.tuning
    assert (tuning.lora_rank, tuning.lora_dropout) == (64, 0.05)
    assert tuning.lora_targets == ("q_proj", "k_proj", "v_proj")
    assert READER.words.sort(found.words.used, found.words.unread).unknown == ("model.peft_config.use_dora",)
    assert imported().plan.tuning.lora_rank is None


def test_released_models():
    """By the hub's name, else asked for."""
    hub = {"model__name": "hf_causal_lm"}
    assert imported(**hub, model__pretrained_model_name_or_path="meta-llama/Llama-2-7b-hf").plan.model == "llama-2-7b"
    found = imported(**hub, model__pretrained_model_name_or_path="me/mine")
    assert "me/mine is not shipped" in found.asks["model"]
    assert "give --model" in imported(model__attn_config__rope=True).asks["model"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"model__name": "my_model"}, "model.name = my_model"),
        ({"model__peft_config__peft_type": "IA3"}, "model.peft_config.peft_type = 'IA3': allowed: LORA"),
        ({"model__peft_config__peft_type": "LORA", "model__peft_config__r": "many"}, "model.peft_config.r = 'many'"),
        ({"fsdp_config__sharding_strategy": "SOME"}, "fsdp_config.sharding_strategy"),
        ({"global_train_batch_size": 0}, "global_train_batch_size"),
    ],
)
def test_what_is_refused(other, message):
    """By the name of the option."""
    with pytest.raises(UserError, match=message):
        imported(**other)


def test_a_command(tmp_path):
    """With words over the config's, and a config alone by its sections."""
    config = tmp_path / "mpt.yaml"
    config.write_text(text_with())
    given = given_text(
        f"composer -n 8 train.py {config} device_train_microbatch_size=4 train_loader.num_workers=2\n", "job.sh"
    )
    assert (given.launch.target, given.found.plan.micro_batch) == ("llm-foundry", 4)
    assert given_words([str(config)]).launch.target == "llm-foundry"
