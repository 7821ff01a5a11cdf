"""Launches of reinforcement learning as whole steps: what each framework says beside the update, and the answer."""

import pytest

import simpar
from simpar import verbs
from simpar.cli import run
from simpar.errors import UserError
from simpar.frameworks import read
from simpar.frameworks.target import ImportedStep

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=16 data.max_prompt_length=128 "
    f"data.max_response_length=128 actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B {A}.ppo_mini_batch_size=8 {R}.n=4 "
    f"{R}.tensor_model_parallel_size=1 trainer.n_gpus_per_node=8 trainer.nnodes=1 {A}.ppo_micro_batch_size_per_gpu=1 "
    f"{A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=256"
)
ASYNC = VERL.replace("verl.trainer.main_ppo", "verl.experimental.fully_async_policy.fully_async_main") + (
    " data.train_batch_size=0 rollout.nnodes=1 rollout.n_gpus_per_node=4"
)
NEMO = (
    "uv run examples/run_grpo.py policy.model_name=Qwen/Qwen2.5-0.5B cluster.num_nodes=2 cluster.gpus_per_node=8 "
    "policy.generation.colocated.enabled=false policy.generation.colocated.resources.num_nodes=1 "
    "policy.generation.colocated.resources.gpus_per_node=8 grpo.async_grpo.enabled=true policy.precision=bfloat16 "
    "grpo.async_grpo.in_flight_weight_updates=true policy.generation.vllm_cfg.precision=fp8"
)
RLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-0.5B --advantage_estimator group_norm "
    "--actor_num_nodes 1 --actor_num_gpus_per_node 4 --vllm_num_engines 2 --vllm_tensor_parallel_size 2 --bf16 "
    "--rollout_batch_size 32 --n_samples_per_prompt 4 --init_kl_coef 0 --remote_rm_url a.py --async_train"
)
SLIME = (
    "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate --rollout-batch-size 32 "
    "--n-samples-per-prompt 8 --rollout-max-response-len 4096 --global-batch-size 256 --hf-checkpoint a/Qwen3-4B-FP8 "
    "--rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 --use-kl-loss --kl-loss-coef 0.001 "
    "--num-layers 36 --hidden-size 2560 --num-attention-heads 32 --max-tokens-per-gpu 8192 --use-dynamic-batch-size"
)


CORE = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --bf16 "
    "--seq-length 1024 --micro-batch-size 4 --global-batch-size 64 --max-position-embeddings 1024 --vocab-size 50304"
)


def side(command, framework):
    """What a launch says beside the update."""
    found = read(command, "train.sh", framework).rollout
    assert not found.refused
    return found


def test_the_answer_is_that_of_the_section(capsys):
    """A check simulates what the same words give as a section."""
    checked = verbs.check(VERL, hardware="dgx-h100", rl=True, prompts="100", responses="60,120")
    lengths = {"prompt": {"fixed": 100}, "response": {"mean": 60, "p99": 120}}
    engine = {"token_budget": 8192, "max_sequences": 256, "memory_fraction": 0.5, "logprobs": False}
    section = {"prompts": 16, "samples": 4, "lengths": lengths, "rollout": {"tp": 1, "engine": engine}}
    section["weights"] = {"offload": False}
    training = {"seq_len": 256, "global_batch": 32}
    plan = {key: value for key, value in checked.result.setup.plan.items() if key != "stack"}
    plan["dp"] = None
    alone = simpar.post_train("qwen2.5-0.5b", "dgx-h100", simpar.Plan(**plan), training, section, stack="verl")
    assert checked.whole.result.step_time_s == alone.step_time_s
    assert not checked.whole.supposed
    assert run(["check", "--hardware", "dgx-h100", "--rl", "--", *VERL.split()]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The whole step step" in said
    assert "with responses of 32 tokens on average, of which 1 in 100 is longer than 128: " in said
    assert "with prompts of 32 tokens on average, of which 1 in 100 is longer than 128: " in said
    assert "12.0 us of the host for every sequence in it" in said
    assert "every response is taken to have 128 tokens, the longest allowed (--responses TOKENS" in said


@pytest.mark.parametrize(
    ("words", "finds"),
    [
        ("", {"algorithm": "grpo", "prompts": 16, "samples": 4, "epochs": 1}),
        (f"{R}.n_agent=3", {"samples": 12}),
        (f"{A}.ppo_epochs=2", {"epochs": 2, "lengths": {"padding": "none"}}),
        ("actor_rollout_ref.model.use_remove_padding=False", {"lengths": {"padding": "context"}}),
        ("algorithm.adv_estimator=gae critic.model.path=Qwen/Qwen2.5-1.5B",
         {"algorithm": "ppo", "passes": {"old_policy": True, "reference": False, "critic": "qwen2.5-1.5b"}}),
        (f"{A}.use_kl_loss=True algorithm.rollout_correction.bypass_mode=True",
         {"passes": {"old_policy": False, "reference": True}}),
        (f"{A}.fsdp_config.param_offload=True {A}.fsdp_config.optimizer_offload=True {R}.free_cache_engine=False",
         {"weights": {"sleep": False, "offload": True}}),
    ],
)  # fmt: skip
def test_what_verl_says(words, finds):
    """Its config's defaults, and options over them."""
    section = side(f"{VERL} {words}", "verl").section
    assert {key: section[key] for key in finds} == finds


def test_engines_of_verl():
    """Layout, precision and limits of a replica."""
    words = (
        f"{R}.tensor_model_parallel_size=2 {R}.data_parallel_size=2 {R}.expert_parallel_size=4 {R}.quantization=fp8 "
        f"{R}.max_num_seqs=64 {R}.enforce_eager=True +{R}.engine_kwargs.vllm.kv_cache_dtype=fp8_e4m3"
    )
    found = side(f"{VERL} {words}", "verl").section["rollout"]
    engine = found.pop("engine")
    assert found == {"tp": 2, "pp": 1, "ep": 4, "precision": "fp8_blockwise"}
    assert (engine["max_sequences"], engine["graphs"], engine["cache_dtype"]) == (64, False, "fp8")


def test_pools_that_run_ahead():
    """A step is what is trained between two arrivals of weights; log-probabilities come from the rollout there."""
    found = side(f"{ASYNC} async_training.trigger_parameter_sync_step=2", "verl")
    assert found.apart == (4, 4)
    assert (found.section["prompts"], found.section["passes"]["old_policy"]) == (16, False)
    assert found.section["synchrony"] == {"steps_off": 1, "in_flight": True}
    assert any("staleness_threshold = 0.1: whole steps off policy" in note for note in found.notes)
    checked = verbs.check(ASYNC, hardware="dgx-h100", rl=True, responses="100")
    assert checked.whole.result.figures.speed.devices == 12
    assert checked.whole.result.figures.staleness.allowed == 1


def test_what_nemo_rl_says():
    """Over its example of GRPO: an eighth of 512 tokens is the prompt's."""
    found = side(NEMO, "nemo-rl")
    assert (found.longest, found.apart) == ((64, 448), (8, 8))
    assert (found.section["prompts"], found.section["samples"]) == (32, 16)
    assert found.section["rollout"]["precision"] == "fp8_blockwise"
    assert found.section["synchrony"] == {"steps_off": 1, "in_flight": True, "recompute_cache": False}
    assert found.section["passes"] == {"reference": True}
    assert side(f"{NEMO} loss_fn.reference_policy_kl_penalty=0", "nemo-rl").section["passes"] == {"reference": False}
    alone = "uv run examples/run_sft.py cluster.num_nodes=1 cluster.gpus_per_node=8"
    assert not isinstance(read(alone, "train.sh", "nemo-rl"), ImportedStep)


def test_replicas_of_nemo_rl_in_8_bits():
    """Scales of blocks of 128 x 128 weights, or of 32 with ``is_mx``; layers that stay in 16 bits are said."""
    words = "policy.generation.vllm_cfg.is_mx=true policy.generation.vllm_cfg.num_last_layers_in_bf16=2"
    found = side(f"{NEMO} {words}", "nemo-rl")
    assert found.section["rollout"]["precision"] == "mxfp8"
    assert any("num_last_layers_in_bf16 = 2: these layers" in note for note in found.notes)


def test_what_openrlhf_says():
    """Engines have devices of their own unless all models share them."""
    found = side(RLHF, "openrlhf")
    assert (found.apart, found.longest) == ((4, 4), (1024, 1024))
    assert found.section["synchrony"] == {"steps_off": 1, "in_flight": False}
    assert found.section["rollout"]["engine"]["memory_fraction"] == 0.95
    assert (found.section["prompts"], found.section["passes"]["reference"]) == (32, False)
    in_turns = RLHF.replace(" --async_train", "")
    together = side(f"{in_turns} --colocate_all_models --vllm_enable_sleep --deepspeed_enable_sleep", "openrlhf")
    assert together.apart is None
    assert together.section["weights"] == {"sleep": True, "offload": True}
    dotted = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-4B --vllm.num_engines 2 "
    dotted += "--actor.num_gpus_per_node 2 --data.max_len 8192 --rollout.max_new_tokens 6000 --train.colocate_all "
    dotted += "--algo.advantage.estimator reinforce_baseline --rollout.n_samples_per_prompt 8"
    beside, engines = (side(f"{dotted}{words}", "openrlhf") for words in ("", " --train.async_enable"))
    assert (beside.longest, beside.apart, engines.apart) == ((2192, 6000), None, (2, 2))
    assert engines.section["placement"] == "split"
    assert not any(key.endswith("_devices") for key in engines.section["passes"])
    words = RLHF.replace("group_norm", "gae").replace("--remote_rm_url a.py", "")
    apart = side(f"{words} --critic_num_gpus_per_node 2 --reward_pretrain Qwen/Qwen2.5-1.5B", "openrlhf").section
    assert (apart["algorithm"], apart["passes"]["critic_devices"], apart["passes"]["reward_devices"]) == ("ppo", 2, 8)
    more = f"{words} --reward_pretrain Qwen/Qwen2.5-1.5B --colocate_critic_reward --init_kl_coef 0.1 --ref_num_nodes 2"
    passes = side(more, "openrlhf").section["passes"]
    assert passes["reward_beside_critic"]
    assert (passes["reference_devices"], passes["critic_devices"]) == (16, 8)
    beside = side(f"{more} --colocate_actor_ref", "openrlhf").section["passes"]
    assert "reference_devices" not in beside


def test_what_slime_says():
    """Turns on the devices of the actor, or a pool one step ahead."""
    found = side(SLIME, "slime")
    assert (found.longest, found.apart) == ((512, 4096), None)
    assert found.section["rollout"]["tp"] == 2
    assert found.section["rollout"]["precision"] == "fp8_blockwise"
    assert found.section["weights"] == {"offload": True}
    assert found.section["passes"] == {"old_policy": True, "reference": True}
    apart = side(SLIME.replace("train.py", "train_async.py").replace("--colocate", "--rollout-num-gpus 4"), "slime")
    assert apart.apart == (4, 4)
    assert apart.section["synchrony"] == {"steps_off": 1}
    taught = side(f"{SLIME} --use-opd --opd-type megatron --opd-teacher-load a", "slime").section["passes"]
    assert taught["teacher"] == "qwen3-4b"
    critic = side(f"{SLIME} --advantage-estimator ppo", "slime").section
    assert (critic["algorithm"], "critic_devices" in critic["passes"]) == ("ppo", False)
    alone = f"{SLIME} --advantage-estimator ppo --critic-num-nodes 2 --critic-num-gpus-per-node 4"
    assert side(alone, "slime").section["passes"]["critic_devices"] == 8


def test_words_about_memory_are_answered():
    """The reference beside the update decides; in the whole step it is there."""
    words = f"{VERL} {A}.use_kl_loss=True"
    update, whole = (verbs.check(words, hardware="dgx-h100", rl=rl, responses=told) for rl, told in
                     ((False, None), (True, "64")))  # fmt: skip
    assert (update.is_sure, whole.is_sure) == (False, True)
    assert f"{A}.use_kl_loss" in whole.account.used
    full = verbs.check(f"{VERL} {R}.gpu_memory_utilization=1.0", hardware="dgx-h100", rl=True, responses="64")
    assert (full.fits_surely, full.is_sure, full.whole.result.fits) == (True, False, False)


@pytest.mark.parametrize(
    ("words", "flags", "said"),
    [
        (VERL, ["--responses", "0"], "--responses 0: allowed: TOKENS, MEAN,P99 in tokens, or a file"),
        (VERL, ["--responses", "1,2,3"], "--responses 1,2,3: allowed: TOKENS"),
        (VERL, ["--responses", "none.csv"], "none.csv: cannot be read as text"),
        (VERL, ["--responses", "100,50"], "p99 = 50: allowed: at least the mean, 100"),
        (VERL, ["--prompts", "900"], "900 tokens: allowed: below the context, training.seq_len = 256"),
        (f"{VERL} {R}.name=hf", [], "rollout.name = hf: allowed: vllm, sglang"),
        (f"{VERL} {R}.tensor_model_parallel_size=3", [], "a replica of 3 devices: allowed"),
        (f"{VERL} data.train_batch_size=12", [], "training.global_batch = 32: allowed: divisors of the 48 responses"),
        (CORE, [], "--rl: no rollout of reinforcement learning is read; allowed: launches of verl"),
    ],
)  # fmt: skip
def test_what_is_no_whole_step_is_one_line(capsys, words, flags, said):
    """Refused with what is allowed."""
    assert run(["check", "--hardware", "dgx-h100", "--rl", *flags, "--", *words.split()]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "\n" not in error


def test_an_update_is_answered_where_the_step_is_not():
    """Without --rl nothing of the rollout is asked for."""
    assert verbs.check(f"{VERL} {R}.name=hf", hardware="dgx-h100").is_sure
    with pytest.raises(UserError, match=r"rollout\.name = hf"):
        verbs.check(f"{VERL} {R}.name=hf", hardware="dgx-h100", rl=True)
