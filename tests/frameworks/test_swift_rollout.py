"""ms-swift's GRPO: what its words say beside the update, and that the whole step answers for them."""

import pytest

from simpar import verbs
from simpar.frameworks import load_reader, read
from simpar.frameworks.target import ImportedStep

GRPO = (
    "CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-0.5B-Instruct "
    "--reward_funcs accuracy format --reward_weights 1.0 0.5 --tuner_type full --torch_dtype bfloat16 --use_vllm true "
    "--vllm_mode colocate --vllm_gpu_memory_utilization 0.5 --vllm_tensor_parallel_size 2 --vllm_max_model_len 8192 "
    "--sleep_level 1 --offload_model true --offload_optimizer true --num_generations 8 --attn_impl flash_attn "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_completion_length 256 --max_length 128 "
    "--dynamic_sample true --max_resample_times 3 --overlong_filter true --temperature 1.0 --log_completions true"
)
"""A launch of ms-swift's examples (examples/train/grpo/internal), with a small model."""


def side(words=""):
    """What the launch says beside the update, with further words."""
    found = read(f"{GRPO} {words}", "run.sh", "swift").rollout
    assert not found.refused
    return found


def test_what_a_launch_says():
    """An engine on the devices that train, which takes all that its ranks generate, and leaves with the states."""
    found = side()
    assert (found.longest, found.apart, found.updates) == ((128, 256), None, 1)
    assert found.section == {
        "algorithm": "grpo", "samples": 8, "epochs": 1, "lengths": {"padding": "longest"},
        "rollout": {"tp": 2, "engine": {"memory_fraction": 0.5, "max_sequences": 16, "token_budget": 8192,
                                        "graphs": True, "prefix_sharing": True}},
        "weights": {"sleep": True, "offload": True}, "passes": {"reference": True},
    }  # fmt: skip
    assert found.notes == ("groups that are filtered out, and generated for nothing, are not modelled",)


@pytest.mark.parametrize(
    ("words", "finds"),
    [
        ("--beta 0 --num_iterations 2", {"passes": {"reference": False}, "epochs": 2}),
        ("--generation_batch_size 64", {"prompts": 8}),
        ("--sleep_level 0 --offload_model false --offload_optimizer false",
         {"weights": {"sleep": False, "offload": False}}),
        ("--padding_free true", {"lengths": {"padding": "none"}}),
        ("--reward_model Qwen/Qwen2.5-1.5B", {"passes": {"reference": True, "reward": "qwen2.5-1.5b"}}),
    ],
)  # fmt: skip
def test_words_of_the_rollout(words, finds):
    """Over the launch."""
    section = side(words).section
    assert {key: section[key] for key in finds} == finds


def test_a_server_has_devices_of_its_own():
    """Two replicas of two devices, by the arguments of swift rollout; one rank sends, a step ahead if asked."""
    server = (
        "CUDA_VISIBLE_DEVICES=4,5,6,7 swift rollout --model Qwen/Qwen2.5-0.5B-Instruct --vllm_tensor_parallel_size 2 "
        "--vllm_data_parallel_size 2 --vllm_gpu_memory_utilization 0.8 --vllm_enforce_eager true &\n"
    )
    launch = GRPO.replace("--vllm_mode colocate", "--vllm_mode server --async_generate true")
    found = read(f"#!/bin/bash\n{server}{launch}\n", "run.sh", "swift").rollout
    assert (found.refused, found.apart) == ("", (4, 4))
    assert found.section["rollout"]["tp"] == 2
    engine = found.section["rollout"]["engine"]
    assert (engine["memory_fraction"], engine["graphs"]) == (0.8, False)
    assert found.section["weights"] == {"senders": "rank", "offload": False}
    assert (found.section["placement"], found.section["synchrony"]) == ("split", {"steps_off": 1})


def test_the_whole_step_answers_for_every_word():
    """However they are spelt; the update alone is another loss than the next token's, as before."""
    for words in (GRPO, GRPO.replace("--vllm_mode", "--vllm-mode").replace("--sleep_level", "--sleep-level")):
        update, whole = (verbs.check(words, hardware="dgx-h100", rl=rl, responses="64" if rl else None)
                         for rl in (False, True))  # fmt: skip
        assert (len(update.account.deciding), dict(whole.account.deciding)) == (13, {})
        assert whole.account.is_understood
        assert whole.whole.to_dict()["step"]["setup"]["post_training"]["prompts"] == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--use_vllm false", "no use_vllm: allowed: use_vllm true; generation by transformers is not modelled"),
        ("--vllm_mode server", "vllm_mode = server, and no command says its devices: allowed: a script with swift"),
        ("--vllm_mode both", "vllm_mode = both: allowed: colocate, server"),
        (
            "--steps_per_generation 6",
            "--steps_per_generation = 6: allowed: a multiple of gradient_accumulation_steps, 4",
        ),
        ("--generation_batch_size 100", "--generation_batch_size = 100: allowed: a multiple of num_generations, 8"),
        ("--vllm_gpu_memory_utilization x", "vllm_gpu_memory_utilization = x: allowed: a number"),
    ],
)
def test_what_is_no_whole_step(words, said):
    """Refused by the word; the update is answered all the same."""
    found = read(f"{GRPO} {words}", "run.sh", "swift")
    assert said in found.rollout.refused
    assert found.plan.micro_batch == 2
    assert load_reader("swift").words.sort(found.words.used, found.words.unread).unknown == ()
    other = read(GRPO.replace("rlhf_type grpo", "rlhf_type dpo"), "run.sh", "swift")
    assert not isinstance(other, ImportedStep)
