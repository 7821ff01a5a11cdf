"""llama-cookbook: arguments of finetuning.py as a plan."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import READERS, load_reader, read

START = "torchrun --nnodes 1 --nproc_per_node 4 finetuning.py --enable_fsdp --model_name meta-llama/Llama-3.1-8B"


def told(words, start=START):
    """What is read of the command with further words."""
    return read(f"{start} {words}", "job.sh", "llama-cookbook")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {"zero": 3, "defer_grad_reduce": False, "recompute": "full", "micro_batch": 4,
              "parameter_dtype": "bf16", "seq_len": 4096}),
        ("--use_peft --peft_method lora --quantization 4bit", {"lora_rank": 8, "frozen_dtype": "nf4"}),
        ("--use_peft --lora_config.r 16 --target_modules all-linear", {"lora_rank": 16, "frozen_dtype": "bf16"}),
        ("--fsdp_config.fsdp_activation_checkpointing False --fsdp_cpu_offload", {"recompute": "none",
                                                                              "offload_parameters": "cpu"}),
        ("--sharding_strategy SHARD_GRAD_OP --context_length 8192", {"zero": 2, "seq_len": 8192}),
        ("--hsdp --sharding_strategy HYBRID_SHARD --replica_group_size 2", {"zero": 3, "hsdp": 2}),
        ("--batch_size_training 1 --gradient_accumulation_steps 8", {"micro_batch": 1, "global_batch": 32}),
        ("--freeze_layers --num_freeze_layers 24", {"frozen_layers": 24}),
    ],
)  # fmt: skip
def test_arguments_by_themselves_and_in_their_sections(words, expected):
    """Over the defaults of its configs."""
    found = told(words)
    values = {**found.plan.flat_values(), **(found.plan.training or {}), "global_batch": found.global_batch(4)}
    assert {key: values.get(key) for key in expected} == expected
    account = load_reader("llama-cookbook").words.sort(found.words.used, found.words.unread)
    assert account.is_understood
    assert ("lora_rank" in values) is ("use_peft" in words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--use_peft --peft_method llama_adapter", "--peft_method = 'llama_adapter': allowed: lora"),
        ("--use_peft --quantization 8bit", "--quantization = '8bit': allowed: 4bit beside --enable_fsdp"),
        ("--fsdp_config.sharding_strategy ALL", "--fsdp_config.sharding_strategy = 'ALL': allowed: full_shard"),
    ],
)
def test_what_it_cannot_run_is_refused(words, message):
    """By the word as it stands there."""
    with pytest.raises(UserError, match=message):
        told(words)


def test_one_device_without_fsdp():
    """Python alone; 8 bits beside adapters, without recomputation."""
    start = "python -m llama_cookbook.finetuning --model_name meta-llama/Llama-2-7b-hf"
    found = told("--use_peft --quantization 8bit --batching_strategy padding", start)
    values = found.plan.flat_values()
    assert (values["dp"], values["zero"], values["recompute"], values["frozen_dtype"]) == (1, 0, "none", "int8")
    assert [each.key for each in found.assumed] == ["seq_len"]
    assert [each.key for each in told("", start).assumed] == ["parameter_dtype"]
    assert told("--pure_bf16", start).assumed == ()


@pytest.mark.parametrize(
    ("command", "reader"),
    [
        (START, "llama-cookbook"),
        ("torchrun a/llama_finetuning.py --use_peft --model_name x", "llama-cookbook"),
        ("python finetuning.py --model_name x --batch_size_training 2", "llama-cookbook"),
        ("python finetune.py --model_name x --use_peft --max_length 8", "transformers"),
    ],
)
def test_whose_a_command_is(command, reader):
    """By the name of the script, or by words that no other has."""
    assert next((name for name in READERS if load_reader(name).starts(command.split())), None) == reader
