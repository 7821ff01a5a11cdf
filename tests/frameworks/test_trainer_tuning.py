"""Adapters in exports for trainers, and what these do not have of them."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

import simpar
from simpar.architectures.catalogue import load_model
from simpar.frameworks import unsupported

from .conftest import TRAINING, checked, exported

CONFIGS = {"trl": "sft.yaml", "axolotl": "axolotl.yaml", "llama-factory": "train.yaml"}
FIRST, REST = ("q_proj", "v_proj"), ("k_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def config(target, model="llama-3.1-8b", **values):
    """The config of a plan with adapters."""
    plan = checked(model, **{"lora_rank": 16, **values})
    return YAML(typ="safe", pure=True).load(exported(target, plan)[CONFIGS[target]])


def reasons(target, model="llama-3.1-8b", **values):
    """The fields that a target cannot express."""
    plan = checked(model, **{"lora_rank": 16, "zero": 0, **values})
    return [each.partition(" = ")[0] for each in unsupported(plan, load_model(model), TRAINING, target)]


@pytest.mark.parametrize(("target", "four", "rank", "everywhere"), [
    ("trl", {"load_in_4bit": True, "use_peft": True, "bnb_4bit_quant_storage": "bfloat16"}, "lora_r",
     {"lora_target_modules": ["all-linear"]}),
    ("axolotl", {"load_in_4bit": True, "adapter": "qlora"}, "lora_r", {"lora_target_linear": True}),
    ("llama-factory", {"quantization_bit": 4, "finetuning_type": "lora"}, "lora_rank", {"lora_target": "all"}),
])  # fmt: skip
def test_qlora_is_said_in_the_words_of_each(target, four, rank, everywhere):
    """Rank, targets, dropout and the bits of frozen weights, which FSDP shards in the dtype of the products."""
    found = config(target, frozen_dtype="nf4", zero=3, lora_dropout=0.1)
    assert {**four, **everywhere, rank: 16, "lora_dropout": 0.1}.items() <= found.items()


def test_chosen_modules_are_named_as_the_family_names_them():
    """A family that stores query, key and value as one has no module for one of them."""
    assert config("trl", lora_targets=FIRST)["lora_target_modules"] == [*FIRST]
    assert config("llama-factory", lora_targets=FIRST)["lora_target"] == "q_proj,v_proj"
    assert reasons("trl", "gpt2", lora_targets=FIRST) == ["lora_targets"]
    assert reasons("trl", "gpt2") == []


def test_what_trainers_do_not_have_is_lost():
    """Each with its field: 8 bits under FSDP, weights in fp32 where no option loads them so, adapters of experts."""
    assert reasons("trl", frozen_dtype="int8") == []
    assert reasons("trl", frozen_dtype="int8", zero=3) == ["frozen_dtype"]
    assert reasons("trl", frozen_dtype="fp32") == reasons("trl", frozen_dtype="fp32", zero=3) == []
    assert reasons("llama-factory", frozen_dtype="fp32") == ["frozen_dtype"]
    assert reasons("trl", "qwen3-30b-a3b") == ["lora_targets"]
    assert reasons("trl", "qwen3-30b-a3b", lora_targets=FIRST) == []
    assert reasons("trl", lora_rank=None, frozen_layers=4) == ["frozen_layers"]
    assert reasons("transformers") == ["tuning.lora_rank"]


@pytest.mark.parametrize("values", [{}, {"frozen_dtype": "nf4"}])
def test_a_search_for_adapters_names_a_trainer_that_has_them(values):
    """The stack is theirs where none is named, its framework is TRL, and the best plan can be exported."""
    found = simpar.search("llama-3.2-1b", "rtx-4090-8", {"seq_len": 512, "global_batch": 16},
                          base={"lora_rank": 8, **values})  # fmt: skip
    plan = found.best.plan
    assert plan.stack == "huggingface"
    assert not unsupported(plan, load_model("llama-3.2-1b"), TRAINING, "trl")
