"""fsdp_qlora: arguments of train.py as a plan."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_text

START = "python train.py --model_name meta-llama/Llama-2-7b-hf --context_length 512"
ALL = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--train_type qlora", {"zero": 3, "micro_batch": 1, "recompute": "full", "offload_parameters": "cpu",
                                "lora_rank": 64, "lora_targets": ALL, "frozen_dtype": "nf4", "precision": "bf16"}),
        ("--train_type lora --use_cpu_offload False --lora_target_modules default",
         {"offload_parameters": "none", "lora_targets": ["q_proj", "v_proj"], "frozen_dtype": "bf16"}),
        ("--train_type lora --precision bf16_autocast", {"frozen_dtype": "fp32", "precision": "bf16"}),
        ("--train_type full --sharding_strategy shard_grad_op --use_gradient_checkpointing False",
         {"zero": 2, "recompute": "none", "parameter_dtype": "bf16", "master_weights": False}),
        ("--train_type full --precision bf16_autocast --sharding_strategy ddp", {"zero": 0, "precision": "bf16"}),
        ("--train_type full --no_sync", {"zero": 3, "defer_grad_reduce": True}),
        ("--train_type full", {"zero": 3, "defer_grad_reduce": False}),
        ("--train_type hqq_lora --world_size 2 --batch_size 8 --gradient_accumulation_steps 4",
         {"dp": 2, "micro_batch": 8, "frozen_dtype": "nf4", "global_batch": 64}),
    ],
)  # fmt: skip
def test_arguments_over_its_defaults(words, expected):
    """Which are those of its train.py: all devices, states on the host, 4 bits."""
    found = read(f"{START} {words}", "job.sh", "fsdp_qlora")
    values = {**found.plan.flat_values(), "global_batch": found.global_batch(2)}
    assert {key: values.get(key) for key in expected} == expected
    assert ("lora_rank" in values) is ("full" not in words)
    assert load_reader("fsdp_qlora").words.sort(found.words.used, found.words.unread).is_understood
    assert [(each.key, each.value, each.others) for each in found.assumed] == [("seq_len", 512, (256, 128))]


def test_norms_beside_adapters_decide():
    """DoRA's, of both kinds of 4 bits."""
    found = read(f"{START} --train_type bnb_dora", "job.sh", "fsdp_qlora")
    account = load_reader("fsdp_qlora").words.sort(found.words.used, found.words.unread)
    assert list(account.deciding) == ["--train_type"]
    assert found.plan.tuning.lora_rank == 64


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--train_type bnb_llama_pro", "--train_type = 'bnb_llama_pro': allowed: full, lora"),
        ("--train_type qlora --sharding_strategy zero3", "--sharding_strategy = 'zero3': allowed: full_shard"),
        ("--train_type qlora --precision int8", "--precision = 'int8': allowed: bf16"),
        ("--train_type qlora --optimizer adadelta", "--optimizer = 'adadelta': allowed: adamw"),
        ("--train_type qlora --batch_size NaN", "--batch_size = 'NaN': allowed: a positive integer"),
        ("--train_type qlora --lora_dropout Infinity", "--lora_dropout = 'Infinity': allowed: a number from 0"),
    ],
)
def test_what_it_has_not_is_refused(words, message):
    """By the word as it stands there."""
    with pytest.raises(UserError, match=message):
        read(f"{START} {words}", "job.sh", "fsdp_qlora")


def test_its_commands_are_known_from_the_trainers():
    """By a train_type beside an argument of its own."""
    found = given_text(f"CUDA_VISIBLE_DEVICES=3,4 {START} --train_type qlora --world_size 2\n", "job.sh")
    assert (found.text.target, found.found.plan.mesh.dp) == ("fsdp_qlora", 2)
    with pytest.raises(UserError, match="no command of the framework"):
        read("", "job.sh", "fsdp_qlora")
