"""Scripts as people publish them: whose they are, and names that other scripts have for what the Trainer says."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read

from .test_trainer_readers import TRAIN, kinds, plan


@pytest.mark.parametrize(
    ("command", "reader"),
    [
        ("python finetune.py --base_model x --micro_batch_size 4 --lora_target_modules [q_proj]", "transformers"),
        ("deepspeed pretrain_clm.py --model_name_or_path x --gradient_accumulation_steps 4 --deepspeed z.json",
         "transformers"),
        ("torchrun pretrain_clm.py --model_name_or_path x --seq_length 512 --micro_batch_size 4", "transformers"),
        ("torchrun pretrain_gpt.py --micro-batch-size 4", "megatron"),
        ("torchrun pretrain_gpt.py --micro-batch-size 4 --lora-target-modules x", "mindspeed"),
    ],
)  # fmt: skip
def test_megatron_s_words_in_other_scripts(command, reader):
    """Scripts of the Trainer may be called pretrain_*.py, and have a micro-batch."""
    assert kinds(command) == reader


def test_a_prompt_and_its_answer_are_one_sequence():
    """But for models with an encoder, whose decoder's length is named; batch_size alone is a device's, and assumed."""
    words = "--max_source_length 512 --max_target_length 128 --batch_size 4"
    for model, length in (("google-t5/t5-3b", 512), ("meta-llama/Llama-3.1-8B", 640)):
        found = read(f"python t.py --model_name_or_path {model} {words} --learning_rate 1", "t.sh", "transformers")
        assert found.plan.training == {"seq_len": length}
        assert found.plan.micro_batch == 4
        assert "micro_batch" in {each.key for each in found.assumed}
        account = load_reader("transformers").words.sort((), found.words.unread)
        assert ("--max_target_length" in account.deciding) is (length == 512)


def test_ranks_that_share_a_sequence_under_deepspeed():
    """ALST: Accelerate's axis of sequences, whose ranks are no replicas; other accelerators start as many."""
    text = (
        "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config: {zero_stage: 3}\n"
        "parallelism_config: {parallelism_config_sp_size: 4, parallelism_config_dp_shard_size: 2}\n"
    )
    values = read(text, "a.yaml", "accelerate").plan.flat_values()
    assert (values["cp"], values["dp"], values["zero"], values["cp_method"]) == (4, 2, 3, "ulysses")
    of_xpu = "distributed_type: MULTI_XPU\nnum_processes: 8\n"
    assert read(of_xpu, "a.yaml", "accelerate").plan.flat_values()["dp"] == 8


def test_a_sum_of_what_is_not_known_is_one_value():
    """Without quotes it is several words."""
    with pytest.raises(UserError, match="allowed: B=VALUE M=VALUE before the command"):
        read(f"{TRAIN} --gradient_accumulation_steps $((${{B}} / ${{M}}))", "t.sh", "transformers")


@pytest.mark.parametrize(
    ("words", "micro"),
    [("--train_bsz_per_gpu 4", 4), ("--batch_size_per_device 2", 2), ("--my_bs 2", None), ("--use_batch_x True", 8)],
)
def test_batches_by_other_names(words, micro):
    """A name that is new and speaks of a batch is refused where nothing else says it: not answered for 8."""
    command = (
        f"python t.py --model_name_or_path Qwen/Qwen3-8B --max_seq_len 512 --gradient_accumulation_steps 2 {words}"
    )
    if micro is not None:
        assert plan(command)["micro_batch"] == micro
        return
    with pytest.raises(UserError, match="--my_bs = 2: speaks of a batch"):
        plan(command)
    assert plan(f"{command} --per_device_train_batch_size 1")["micro_batch"] == 1


@pytest.mark.parametrize(
    ("words", "refused"),
    [("loss_type: simpo", True), ("ref_model: x", True), ("rl: dpo", True), ("loss_type: dft", False),
     ("loss_type: nll", False), ("rl: null", False)],
)  # fmt: skip
def test_configs_of_preferences_are_not_answered_as_sft(words, refused):
    """By words that only their trainers have."""
    text = f"model_name_or_path: Qwen/Qwen3-8B\nmax_length: 512\nper_device_train_batch_size: 1\n{words}\n"
    if refused:
        with pytest.raises(UserError, match=rf"{words.partition(':')[0]} = .*preferences and rewards are not modelled"):
            plan(text, "trl", "a.yaml")
    else:
        assert plan(text, "trl", "a.yaml")["micro_batch"] == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("ACCELERATE_USE_FSDP=1 FSDP_SHARDING_STRATEGY=SHARD_GRAD_OP", {"zero": 2, "precision": "bf16"}),
        ("ACCELERATE_USE_FSDP=true FSDP_OFFLOAD_PARAMS=true FSDP_CPU_RAM_EFFICIENT_LOADING=1",
         {"zero": 3, "offload_parameters": "cpu"}),
        ("ACCELERATE_USE_FSDP=false FSDP_SHARDING_STRATEGY=1", {"zero": 0}),
        ("ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=3", {"zero": 3, "precision": "bf16"}),
        ("ACCELERATE_MIXED_PRECISION=fp16", {"zero": 0, "precision": "bf16"}),
        ("X=1", {"zero": 0, "precision": "bf16"}),
    ],
)  # fmt: skip
def test_variables_say_what_accelerate_shards(variables, expected):
    """Whatever starts the script; arguments win, and `--no_...` is the word of what it turns off."""
    words = "torchrun --nproc_per_node 8 {} --bf16 --model_max_length 512 --no_gradient_checkpointing".format(
        TRAIN.removeprefix("python ")
    )
    found = read(f"{variables} {words}", "job.sh", "transformers")
    values = found.plan.flat_values()
    assert {key: values.get(key) for key in expected} == expected
    assert load_reader("transformers").words.sort(found.words.used, found.words.unread).is_understood
    half = read(f"ACCELERATE_MIXED_PRECISION=fp16 {words.replace('--bf16', '')}", "job.sh", "transformers")
    assert half.plan.flat_values()["precision"] == "fp16"


@pytest.mark.parametrize(
    ("script", "words", "recompute", "precision"),
    [
        ("run_clm.py", "--dataset_name a", "none", "fp32"),
        ("run_clm.py", "--dataset_name a --bf16 --gradient_checkpointing", "full", "bf16"),
        ("train.py", "--dataset_name a --max_length 512 --fp16", "none", "fp16"),
        ("run_sft.py", "--dataset_name a --max_length 512", "full", "bf16"),
        ("train.py", "--dataset_name a --dataset_text_field text --max_length 512", "full", "bf16"),
    ],
)
def test_a_data_set_by_name_is_no_word_of_trl(script, words, recompute, precision):
    """Transformers' examples have one, too, and neither 16 bits nor checkpoints unless they are told."""
    found = read(f"{TRAIN.replace('train.py', script)} {words}", "job.sh", "transformers")
    values = found.plan.flat_values()
    assert (values["recompute"], values.get("precision")) == (recompute, precision)
    assert found.plan.training["seq_len"] == (1024 if script == "run_clm.py" else 512)
    assert ("recompute" in {each.key for each in found.assumed}) is (
        recompute == "full" and "checkpointing" not in words
    )
