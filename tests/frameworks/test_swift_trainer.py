"""ms-swift on Hugging Face's Trainer: its commands, presets and defaults."""

import json

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_words
from simpar.preflight.launcher import launch_of

SFT = "swift sft --model Qwen/Qwen2.5-7B --model_name robot --max_length 2048"


@pytest.mark.parametrize(
    ("command", "finds"),
    [
        # base_args.py: adapters of all projections unless full is asked for; checkpointing, and one sequence at a time
        (SFT, {"stack": "ddp", "lora_rank": 8, "recompute": "full", "micro_batch": 1, "precision": "bf16"}),
        (f"{SFT} --tuner_type full", {"lora_rank": None, "parameter_dtype": "bf16", "moment_dtype": "bf16"}),
        (f"{SFT} --train_type full --torch_dtype float32", {"lora_rank": None, "precision": "fp16"}),
        (f"{SFT} --quant_method bnb --quant_bits 4", {"frozen_dtype": "nf4"}),
        (f"{SFT} --deepspeed zero3_offload", {"stack": "deepspeed", "zero": 3, "offload_parameters": "cpu"}),
        (
            f"{SFT} --tuner_type full --deepspeed zero2",
            {"zero": 2, "moment_dtype": None, "bucket_bytes": "400000000 B"},
        ),
        (
            f"{SFT} --fsdp fsdp2 --gradient_checkpointing false",
            {"stack": "huggingface", "zero": 3, "recompute": "full"},
        ),
        (f"{SFT} --attn_impl flash_attn --packing true", {"attention_kernel": "flash2"}),
        (f"{SFT} --sequence_parallel_size 4", {"cp": 4, "cp_method": "ulysses"}),
        (f"torchrun --nproc_per_node 2 swift/cli/{SFT[6:].replace('sft', 'sft.py', 1)}", {"lora_rank": 8}),
        (f"{SFT.replace('sft', 'rlhf', 1)} --rlhf_type grpo --max_completion_length 1024", {"lora_rank": 8}),
    ],
)
def test_commands(command, finds):
    """What ms-swift does, by its own names; all words of a preset are its own, none of the text."""
    found = read(f"NPROC_PER_NODE=4 {command}", "train.sh", "swift")
    values = {"stack": found.plan.stack, **found.plan.flat_values()}
    assert {key: values.get(key) for key in finds} == finds
    assert found.plan.model == "qwen2.5-7b"
    assert found.plan.training == {"seq_len": 3072 if "grpo" in command else 2048}
    assert all(word in command for word in (*found.words.used, *found.words.unread) if word.startswith("--"))
    assert not any(word.startswith("zero_optimization") for word in found.words.used)


OLD = "--model_id_or_path qwen/Qwen1.5-7B-Chat --sft_type lora --tuner_backend peft --lora_dropout_p 0.1 --batch_size 1"


@pytest.mark.parametrize(
    ("command", "finds"),
    [
        (f"torchrun --nproc_per_node=2 llm_sft.py {OLD} --max_length 2048 --lora_target_modules DEFAULT",
         {"stack": "ddp", "lora_targets": ["q_proj", "k_proj", "v_proj"], "lora_dropout": 0.1}),
        (f"NPROC_PER_NODE=2 swift sft {OLD} --max_length 2048",
         {"lora_targets": ["q_proj", "k_proj", "v_proj"], "lora_rank": 8}),
        (f"NPROC_PER_NODE=2 swift sft {OLD} --max_length 2048 --lora_target_modules ALL", {"lora_dropout": 0.1}),
        (f"NPROC_PER_NODE=2 swift sft {OLD} --max_length 2048 --deepspeed default-zero2",
         {"stack": "deepspeed", "zero": 2, "bucket_bytes": "400000000 B"}),
        (f"NPROC_PER_NODE=2 swift sft {OLD} --max_length 2048 --deepspeed default-zero3", {"zero": 3}),
        (f"NPROC_PER_NODE=2 swift sft --max_length 2048 --model_type qwen1half-7b-chat {OLD[40:]}", {"lora_rank": 8}),
    ],
)  # fmt: skip
def test_commands_of_earlier_releases(command, finds):
    """The names, presets and targets that ms-swift had before 3.0."""
    found = read(command, "train.sh", "swift")
    values = {"stack": found.plan.stack, **found.plan.flat_values()}
    assert {key: values.get(key) for key in finds} == finds
    assert (found.plan.model, found.plan.training, found.plan.micro_batch) == ("qwen1.5-7b", {"seq_len": 2048}, 1)
    assert load_reader("swift").words.sort(found.words.used, found.words.unread).is_understood


@pytest.mark.parametrize(
    ("start", "steps", "world"), [("", 16, 1), ("NPROC_PER_NODE=8", 2, 8), ("NNODES=4 NPROC_PER_NODE=8", 1, 32)]
)
def test_accumulation_fills_a_step_up(start, steps, world):
    """Where it is not given: up to sixteen sequences, of all ranks (trainers/arguments.py)."""
    found = read(f"{start} {SFT}", "train.sh", "swift")
    assert found.per_replica == steps
    assert any(f"on {world} ranks: {steps}" in note for note in found.notes)
    assert launch_of(f"{start} {SFT}", "a command").world_size == world


def test_yaml_is_read_as_its_command(tmp_path):
    """Alone and named by a command; words of preferences decide."""
    values = {"model": "Qwen/Qwen2.5-7B", "tuner_type": "full", "max_length": 4096, "gradient_accumulation_steps": 3}
    (tmp_path / "sft.json").write_text(json.dumps(values))
    (tmp_path / "train.sh").write_text(
        "swift export --model a --to_cached_dataset true\nswift rlhf sft.json --beta 0.1\n"
    )
    alone = given_words([str(tmp_path / "sft.json")])
    named = given_words([str(tmp_path / "train.sh")])
    assert (alone.text.target, named.text.target) == ("swift", "swift")
    assert (alone.found.plan.training, named.found.plan.training) == ({"seq_len": 4096},) * 2
    assert (alone.found.per_replica, named.found.per_replica) == (3, 3)
    assert set(load_reader("swift").words.sort((), named.found.words.unread).deciding) == {"rlhf_type", "--beta"}


def test_yaml_of_megatron_is_not_taken_for_it(tmp_path):
    """The same names, on the other engine: alone and named by a command, whose words win."""
    values = {"model": "Qwen/Qwen2.5-7B", "tuner_type": "full", "tensor_model_parallel_size": 2, "micro_batch_size": 1}
    file = tmp_path / "sft.json"
    file.write_text(json.dumps({**values, "max_length": 4096}))
    alone, named = given_words([str(file)]), given_words([f"megatron sft {file} --tensor_model_parallel_size 4"])
    assert (alone.text.target, named.text.target) == ("megatron-swift", "megatron-swift")
    assert (alone.found.plan.mesh.tp, named.found.plan.mesh.tp) == (2, 4)
    assert (alone.found.plan.numerics.precision, named.found.plan.training["seq_len"]) == ("bf16", 4096)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("megatron export --model Qwen/Qwen2.5-7B --tensor_model_parallel_size 2", "export, infer.* train nothing"),
        (f"CUDA_VISIBLE_DEVICES=0,1 {SFT}", "0,1 without NPROC_PER_NODE: one process spreads the layers"),
        (f"CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=2 {SFT}", "0,1,2,3 beside NPROC_PER_NODE = 2: each process"),
        (f"{SFT} --tuner_type longlora", "adapters of kind longlora: allowed: lora, qlora, full, freeze"),
    ],
)
def test_what_is_not_read_is_refused_by_name(command, told):
    """One process over several devices, other tuners, and what trains nothing."""
    with pytest.raises(UserError, match=told):
        given_words([command])
