"""TRL's trainers that generate: the update of the policy, the engine beside it or apart, every word accounted for."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.preflight.given import given_text, given_words

OPEN_R1 = {
    "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct", "torch_dtype": "bfloat16", "bf16": True, "use_vllm": True,
    "attn_implementation": "flash_attention_2", "dataset_name": "a/b", "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}, "num_generations": 16,
    "max_prompt_length": 512, "max_completion_length": 1024, "per_device_train_batch_size": 16, "temperature": 0.7,
    "reward_funcs": ["accuracy", "format"], "reward_weights": [1.0, 1.0], "warmup_ratio": 0.1,
    "log_completions": True, "scale_rewards": False, "loss_type": "dr_grpo", "vllm_mode": "colocate",
}  # fmt: skip
"""A recipe of huggingface/open-r1, with its engine beside the trainer."""
START = "accelerate launch --num_processes 4 --mixed_precision bf16 src/open_r1/grpo.py --config grpo.yaml"
SERVE = "CUDA_VISIBLE_DEVICES=0,1 trl vllm-serve --model a --tensor_parallel_size 2 --gpu_memory_utilization 0.8 &\n"
ALIKE = "--tensor-parallel-size 4 --data-parallel-size 2"


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """The recipe in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.yaml").write_text(yaml.safe_dump(OPEN_R1))
    return tmp_path


def account_of(found):
    """The words of a text, sorted."""
    return load_reader("trl-online").words.sort(found.words.used, found.words.unread)


def side(text, name="run.sh"):
    """What a text says beside the update."""
    result = read(text, name, "trl-online").rollout
    assert not result.refused
    return result


def test_a_recipe_is_read_whole(beside):
    """Its update and its rollout: an engine that takes all that its rank generates, and stays beside the update."""
    given = given_words(["grpo.yaml"])
    values = {**given.found.plan.flat_values(), **given.found.plan.training}
    assert given.launch.target == "trl-online"
    assert (given.found.plan.model, given.found.per_replica) == ("qwen2.5-1.5b", 64)
    assert {key: values[key] for key in ("micro_batch", "seq_len", "recompute", "precision", "attention_kernel")} == {
        "micro_batch": 16, "seq_len": 1536, "recompute": "full", "precision": "bf16", "attention_kernel": "flash2"
    }  # fmt: skip
    account = account_of(given.found)
    assert (account.unknown, list(account.deciding)) == ((), ["vllm_mode"])
    found = given.found.rollout
    assert (found.longest, found.apart, found.updates) == ((512, 1024), None, 1)
    assert found.section["rollout"] == {
        "tp": 1, "engine": {"memory_fraction": 0.3, "token_budget": 4096, "max_sequences": 64}
    }  # fmt: skip
    assert found.section["weights"] == {"sleep": False, "offload": False}
    assert found.section["passes"] == {"old_policy": True, "reference": False}
    assert dict(found.of_batch(512))["prompts"] == 32
    with pytest.raises(UserError, match="100 responses of a rollout, 16 of a prompt: allowed: a multiple"):
        found.of_batch(100)


@pytest.mark.parametrize(
    ("words", "finds"),
    [
        ("--beta 0.04", {"passes": {"old_policy": True, "reference": True}}),
        ("--vllm_importance_sampling_correction false", {"passes": {"old_policy": False, "reference": False}}),
        ("--vllm_importance_sampling_correction false --num_iterations 2",
         {"passes": {"old_policy": True, "reference": False}, "epochs": 2}),
        ("--vllm_enable_sleep_mode", {"weights": {"sleep": True, "offload": False}}),
        ("--generation_batch_size 512", {"prompts": 32}),
        ("--reward_model_name_or_path Qwen/Qwen2.5-0.5B-Instruct",
         {"passes": {"old_policy": True, "reference": False, "reward": "qwen2.5-0.5b"}}),
    ],
)  # fmt: skip
def test_words_of_the_rollout(beside, words, finds):
    """Over the recipe."""
    section = side(f"{START} {words}").section
    assert {key: section[key] for key in finds} == finds


@pytest.mark.parametrize(
    ("words", "updates"), [("", 1), ("--steps_per_generation 8", 2), ("--steps_per_generation 4", 1)]
)
def test_a_rollout_has_whole_updates(beside, words, updates):
    """As many as its steps are multiples of those that are accumulated."""
    found = side(f"{START} {words}")
    assert found.updates == updates
    assert found.section["rollout"]["engine"]["max_sequences"] == 64 * updates


@pytest.mark.parametrize(
    ("words", "apart", "rollout"),
    [
        (SERVE, (2, 2), {"tp": 2, "engine": {"memory_fraction": 0.8, "graphs": True, "prefix_sharing": True}}),
        (f"vllm serve a {ALIKE} --enforce-eager --kv-cache-dtype fp8 &\n", (8, 8),
         {"tp": 4, "engine": {"memory_fraction": 0.9, "graphs": False, "prefix_sharing": True, "cache_dtype": "fp8"}}),
        ("python -m trl.scripts.vllm_serve --model a --data_parallel_size 16 &\n", (16, 8),
         {"tp": 1, "engine": {"memory_fraction": 0.9, "graphs": True, "prefix_sharing": True}}),
    ],
)  # fmt: skip
def test_an_engine_of_its_own(beside, words, apart, rollout):
    """A script that starts one beside the trainer, whichever comes first; the trainer is what is read."""
    for text in (f"{words}{START} --vllm_mode server", f"{START} --vllm_mode server &\n{words}"):
        given = given_text(text, "run.sh")
        assert (given.launch.target, given.launch.world_size) == ("trl-online", 4)
        found = given.found.rollout
        assert (found.refused, found.apart, found.notes) == ("", apart, ())
        assert found.section["rollout"] == rollout
        assert found.section["placement"] == "split"
    unknown = f"{words.replace(' &', ' --speculative_config x --new_word 1 &')}{START} --vllm_mode server"
    assert side(unknown).notes == ("the engine's --speculative_config: drafted tokens, not modelled",
                                   "the engine's --new_word is not read")  # fmt: skip


def test_releases_before_servers(beside):
    """A device of the node that generates."""
    found = side(f"{START} --vllm_device auto --vllm_gpu_memory_utilization 0.7")
    assert (found.apart, found.section["rollout"]) == ((1, 1), {"engine": {"memory_fraction": 0.7}})
    assert "vllm_device: one device more than those that train generates" in found.notes


@pytest.mark.parametrize(
    ("words", "deciding"),
    [
        ("--vllm_enable_sleep_mode true", []),
        ("", ["vllm_mode"]),
        ("--vllm_gpu_memory_utilization 0.4", ["--vllm_gpu_memory_utilization"]),
        ("--vllm_mode server", []),
        ("--vllm_mode server --beta 0.1", ["--beta"]),
        ("--vllm_mode server --beta 0.1 --use_peft --lora_r 8", []),
        ("--vllm_mode server --use_vllm false --cast_lm_head_to_fp32", ["--cast_lm_head_to_fp32"]),
    ],
)
def test_what_stays_on_the_devices_decides(beside, words, deciding):
    """The engine beside the update unless it sleeps, and a reference unless adapters are what differs."""
    found = read(f"{START} {words}", "run.sh", "trl-online")
    account = account_of(found)
    assert (list(account.deciding), account.unknown) == (deciding, ())
    if deciding and "cast" not in deciding[0]:
        assert deciding[0].lstrip("-") in found.rollout.answers


def test_trl_s_own_commands(beside):
    """``trl grpo`` loads fp32, and RLOO has two samples and a reference unless it is told; Liger's loss has pieces."""
    for start in ("trl grpo", "python -m trl.scripts.grpo", "accelerate launch trl/scripts/grpo.py"):
        found = read(f"{start} --config grpo.yaml --use_liger_kernel", "run.sh", "trl-online")
        assert (found.plan.flat_values()["loss_chunks"], found.plan.training["seq_len"]) == (16, 1536)
    words = "--model_name_or_path Qwen/Qwen2.5-0.5B --use_vllm --vllm_enable_sleep_mode --per_device_train_batch_size 2"
    found = read(f"trl rloo {words}", "run.sh", "trl-online")
    section = found.rollout.section
    assert (section["samples"], section["passes"]["reference"]) == (2, True)
    assert found.rollout.longest == (512, 512)
    assert any("beta is 0.05 where nothing is said" in note for note in found.notes)
    assert any("vllm_mode is not said: colocate" in note for note in found.rollout.notes)
    alone = given_text(f"python train_grpo.py --num_generations 8 {words}", "run.sh")
    assert (alone.launch.target, alone.launch.is_single) == ("trl-online", True)
    for script in ("-m team.train.grpo_math", "train.py", "-m team.train"):
        text = f"accelerate launch --num_processes 4 {script} --num_generations 8 {words}"
        assert given_text(text, "run.sh").launch.target == "trl-online"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--use_vllm false", "--use_vllm = False: allowed: use_vllm: true; generation by transformers is not modelled"),
        ("--vllm_mode server", "no command says its devices: allowed: a script with trl vllm-serve beside it"),
        ("--steps_per_generation 6", "--steps_per_generation = 6: allowed: a multiple of gradient_accumulation_steps"),
        ("--generation_batch_size 100", "--generation_batch_size = 100: allowed: a multiple of num_generations, 16"),
        ("--generation_batch_size 64 --steps_per_generation 4", "allowed: it or steps_per_generation, not both"),
        ("--num_iterations 0", "--num_iterations = 0: allowed: a positive integer"),
        ("--vllm_gpu_memory_utilization x", "vllm_gpu_memory_utilization = x: allowed: a number"),
    ],
)
def test_what_is_no_whole_step(beside, words, said):
    """Refused by the word; the update is answered all the same."""
    found = read(f"{START} {words}", "run.sh", "trl-online")
    assert said in found.rollout.refused
    assert found.plan.micro_batch == 16


def test_updates_are_refused_by_the_word(beside):
    """Modes and lengths that no release has."""
    for words, said in (("--vllm_mode no", "'no': allowed: colocate, server"), ("--beta x", "a number"),
                        ("--max_completion_length abc", "'abc': allowed: a positive integer")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            read(f"{START} {words}", "run.sh", "trl-online")
    with pytest.raises(UserError, match="no command of TRL's GRPO and RLOO"):
        read("trl sft --model_name_or_path a", "run.sh", "trl-online")


def test_others_are_none_of_it(beside):
    """Front ends over TRL, its other trainers, and its engine alone."""
    own = load_reader("trl-online").owns
    assert own(OPEN_R1)
    assert not own({**OPEN_R1, "rlhf_type": "grpo"})
    starts = load_reader("trl-online").starts
    told = "--num_generations 8 --use_vllm true --model_name_or_path a"
    assert not starts(f"swift rlhf --rlhf_type grpo {told}".split())
    assert not starts(["python", "open_instruct/grpo_fast.py", "--num_samples_per_prompt_rollout", "4"])
    assert not own({"base_model": "a", "rl": "grpo", "trl": {"num_generations": 8}})
    assert not own({"model_name_or_path": "a", "beta": 0.1, "max_completion_length": 8})
    with pytest.raises(UserError, match="no launch of a framework that is known here"):
        given_text("trl vllm-serve --model a", "run.sh")
    with pytest.raises(UserError, match="trl dpo: allowed: trl sft"):
        given_text("trl dpo --model_name_or_path a", "run.sh")
