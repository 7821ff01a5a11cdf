"""verl's actors and SFT trainers: options of a command, and what the phases beside the update keep."""

import json

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.recipes import nest_names
from simpar.preflight.given import given_words
from simpar.preflight.launcher import launch_of

A, M = "actor_rollout_ref.actor", "actor_rollout_ref.model"
PPO = (
    f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=1024 trainer.nnodes=2 "
    f"data.max_response_length=3072 {M}.path=Qwen/Qwen2.5-7B-Instruct {A}.ppo_mini_batch_size=64 "
    f"actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8"
)
FIXED = f"{PPO} {A}.ppo_micro_batch_size_per_gpu=4"
CORE = f"{FIXED} --config-name=ppo_megatron_trainer.yaml {A}.megatron.tensor_model_parallel_size=4"
OVER = f"{A}.megatron.override_transformer_config"
FULL = f"++{OVER}.recompute_granularity=full ++{OVER}.recompute_method=uniform ++{OVER}.recompute_num_layers=1"
SFT = (
    "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-0.5B "
    "data.max_length=2048"
)


@pytest.mark.parametrize(
    ("command", "finds"),
    [
        # dp_actor.yaml, hf_model.yaml: FSDP of fp32 shards, checkpointing, FlashAttention-2
        (FIXED, {"stack": "verl", "zero": 3, "dp": 16, "micro_batch": 4, "recompute": "full",
                 "attention_kernel": "flash2", "precision": "bf16", "parameter_dtype": None,
                 "offload_optimizer": "none"}),
        # between phases alone (fsdp_workers.py: load_fsdp_model_to_gpu before the update)
        (f"{FIXED} {A}.fsdp_config.param_offload=True {A}.fsdp_config.optimizer_offload=True",
         {"offload_parameters": "none", "offload_optimizer": "none"}),
        (f"{FIXED} {A}.strategy=fsdp2 {A}.fsdp_config.offload_policy=True", {"offload_parameters": "cpu"}),
        (f"{FIXED} {A}.fsdp_config.model_dtype=bfloat16", {"parameter_dtype": "bf16", "moment_dtype": "bf16"}),
        (f"{FIXED} {A}.fsdp_config.fsdp_size=8 {A}.fsdp_config.reshard_after_forward=False", {"hsdp": 2, "zero": 2}),
        (f"{FIXED} {A}.fsdp_config.use_no_sync_for_gradient_accumulation=True", {"defer_grad_reduce": True}),
        (FIXED, {"defer_grad_reduce": None}),
        (f"{FIXED} {A}.ulysses_sequence_parallel_size=2", {"cp": 2, "cp_method": "ulysses", "dp": 8, "micro_batch": 4}),
        (f"{PPO} {A}.ppo_micro_batch_size=64", {"micro_batch": 4}),
        # dp_actor.py: tokens of a rank times those of its sequence; 32 samples a rank
        (f"{PPO} {A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=12288", {"micro_batch": 2}),
        (f"{PPO} {A}.use_dynamic_bsz=True {A}.ppo_max_token_len_per_gpu=8192 {A}.ulysses_sequence_parallel_size=2",
         {"micro_batch": 4, "cp": 2}),
        (f"{FIXED} +{M}.lora_rank=32 {M}.target_modules=[q_proj,v_proj]",
         {"lora_rank": 32, "lora_targets": ["q_proj", "v_proj"]}),
        (f"{FIXED} {M}.use_fused_kernels=True {M}.use_liger=True",
         {"loss_chunks": 32, "fused_kernels": "norm+activation+rope"}),
        # megatron_utils.py: bf16, distributed optimizer, fp32 gradients
        (CORE, {"stack": "megatron", "tp": 4, "dp": 4, "zero": 1, "sequence_parallel": True, "precision": "bf16",
                "grad_dtype": "fp32", "recompute": "none", "cp": 1}),
        (f"{CORE} {FULL} +{A}.optim.override_optimizer_config.optimizer_cpu_offload=True",
         {"recompute": "full", "offload_optimizer": "cpu"}),
        (f"{CORE} {M}.lora.rank=16 {M}.lora.target_modules=[linear_qkv]",
         {"lora_rank": 16, "lora_targets": ["q_proj", "k_proj", "v_proj"]}),
        (f"{SFT} data.micro_batch_size_per_gpu=8 model.lora_rank=8",
         {"stack": "huggingface", "zero": 3, "micro_batch": 8, "lora_rank": 8}),
    ],
)  # fmt: skip
def test_commands(command, finds):
    """The plan of the update: mini-batch times samples, prompt and answer."""
    found = read(command, "train.sh", "verl")
    values = {"stack": found.plan.stack, **found.plan.flat_values()}
    assert {key: values.get(key, "none" if "offload" in key else None) for key in finds} == finds
    is_sft = "sft" in command
    assert found.plan.training == (
        {"seq_len": 2048, "global_batch": 256} if is_sft else {"seq_len": 4096, "global_batch": 512}
    )
    assert found.plan.model == ("qwen2.5-0.5b" if is_sft else "qwen2.5-7b")
    assert launch_of(command, "a command").world_size == (8 if is_sft else 16)
    account = load_reader("verl").words.sort(found.words.used, found.words.unread)
    assert not account.unknown
    assert set(account.deciding) <= {f"{M}.use_fused_kernels"}
    assert any(
        "A step is one update of the policy" in note
        for note in (*found.notes, "A step is one update of the policy" * is_sft)
    )


@pytest.mark.parametrize(
    ("words", "deciding"),
    [
        (f"{A}.use_kl_loss=True", [f"{A}.use_kl_loss"]),
        (f"{A}.use_kl_loss=True actor_rollout_ref.ref.fsdp_config.param_offload=True", []),
        (f"{A}.use_kl_loss=True {M}.lora_rank=8", []),  # the policy without its adapters
        ("algorithm.adv_estimator=gae critic.model.path=a", ["critic.model.path"]),
        ("algorithm.adv_estimator=gae critic.model.path=a critic.model.fsdp_config.optimizer_offload=True", []),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.6", []),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.free_cache_engine=False",
         ["actor_rollout_ref.rollout.gpu_memory_utilization"]),
        (f"{A}.entropy_coeff=0.01", [f"{A}.entropy_coeff"]),
    ],
)  # fmt: skip
def test_what_stays_on_the_devices_decides(words, deciding):
    """Reference, critic and engine of the rollout, unless they leave for the update."""
    found = read(f"{FIXED} {words}", "train.sh", "verl")
    account = load_reader("verl").words.sort(found.words.used, found.words.unread)
    assert list(account.deciding) == deciding


def test_lengths_are_assumed_with_their_micro_batches(tmp_path):
    """Samples may be shorter; micro-batches of tokens then hold more of them. A YAML is read as its command."""
    found = read(f"{PPO} {A}.use_dynamic_bsz=True", "train.sh", "verl")
    (assumed,) = found.assumed
    assert "data.train_batch_size" in read(f"{FIXED} data.train_batch_size=64", "train.sh", "verl").words.used
    assert (assumed.value, assumed.others, found.plan.micro_batch) == (4096, (2048, 1024), 4)
    assert dict(assumed.together) == {2048: {"micro_batch": 8}, 1024: {"micro_batch": 16}}
    assert not read(f"{FIXED} {M}.use_remove_padding=False", "train.sh", "verl").assumed  # padded to the longest
    (tmp_path / "job.yaml").write_text(
        "defaults: [ppo_trainer, _self_]\nactor_rollout_ref:\n  actor: {ppo_micro_batch_size_per_gpu: 2}\n"
        "  model: {path: Qwen/Qwen3-8B}\n"
    )
    (tmp_path / "train.sh").write_text(
        f"python -m recipe.dapo.main_dapo --config-name=job {A}.ppo_mini_batch_size=32\n"
    )
    alone, named = given_words([str(tmp_path / "job.yaml")]), given_words([str(tmp_path / "train.sh")])
    assert (alone.text.target, named.text.target) == ("verl", "verl")
    assert (alone.found.plan.training["global_batch"], named.found.plan.training["global_batch"]) == (256, 32)
    assert (alone.found.plan.micro_batch, named.found.plan.model) == (2, "qwen3-8b")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (PPO, "no actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu: allowed: it, or .*use_dynamic_bsz=True"),
        (f"{FIXED} {A}.strategy=veomni", "strategy = veomni: allowed: fsdp, fsdp2, megatron"),
        (f"{CORE} trainer.n_gpus_per_node=3", "= 6: allowed: a multiple of 4, the ranks of a replica"),
        (f"{FIXED} {A}.ppo_mini_batch_size=$N", r"ppo_mini_batch_size = \$\{?N\}?: a value that the text does not say"),
        (
            f"{CORE} {M}.path=/models/mine {OVER}.num_layers_in_last_pipeline_stage=3",
            "layers of the policy, which is not known",
        ),
    ],
)
def test_bad_input(command, told):
    """One line with the option and what is allowed."""
    with pytest.raises(UserError, match=told):
        read(command, "train.sh", "verl")


def test_the_micro_batch_of_all_ranks_decides():
    """Earlier versions share it out; it has no effect beside that of a rank."""
    command = "torchrun --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=Qwen/Qwen2.5-0.5B"
    for words, deciding in (("data.micro_batch_size=8", ["data.micro_batch_size"]),
                            ("data.micro_batch_size=8 data.micro_batch_size_per_gpu=2", [])):  # fmt: skip
        result = read(f"{command} {words}", "train.sh", "verl")
        account = load_reader("verl").words.sort(result.words.used, result.words.unread)
        assert (list(account.deciding), account.unknown) == (deciding, ())


def test_a_config_that_verl_resolves_itself():
    """All of its keys at their defaults (0.9.1): what nothing switches on decides nothing."""
    told = {
        "data.train_batch_size": 64, "actor_rollout_ref.model.path": "Qwen/Qwen3-8B", "trainer.nnodes": 1,
        "actor_rollout_ref.actor.strategy": "fsdp", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.model.lora.type": "lora", "critic.model.path": "a", "critic.model.lora.type": "lora",
        "critic.model.enable_gradient_checkpointing": True, "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 1, "skip.rollout.enable": False,
        "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 1, "distillation.enabled": False,
        "actor_rollout_ref.actor.fsdp_config.qat.enable": False, "actor_rollout_ref.actor.qat.mode": "w4a16",
        "actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.tensor_parallel_size": 1,
        "actor_rollout_ref.actor.pad_to_length": False, "skip.rollout.dump_dir": "a", "distillation.nnodes": 0,
        "trainer.n_gpus_per_node": 8,
    }  # fmt: skip
    found = read(json.dumps(nest_names(told)), "answer of verl.yaml", "verl")
    assert load_reader("verl").words.sort(found.words.used, found.words.unread).is_understood
    switched = {**told, "skip.rollout.enable": True, "distillation.enabled": True, "algorithm.adv_estimator": "gae",
                "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 2}  # fmt: skip
    found = read(json.dumps(nest_names(switched)), "answer of verl.yaml", "verl")
    account = load_reader("verl").words.sort(found.words.used, found.words.unread)
    assert {"skip.rollout.enable", "distillation.enabled", "critic.model.path"} <= set(account.deciding)
    assert found.plan.mesh.cp == 2


OLD = """
data: {train_batch_size: 1024, max_prompt_length: 512, max_response_length: 512}
actor_rollout_ref:
  model: {path: ~/models/deepseek-llm-7b-chat, enable_gradient_checkpointing: false, use_remove_padding: false}
  actor: {strategy: STRATEGY, ppo_mini_batch_size: 256, ppo_micro_batch_size: 64, use_kl_loss: false, entropy_coeff: 0,
          grad_clip: 1.0, fsdp_config: {param_offload: false, fsdp_size: -1}}
  rollout: {n: 1, name: vllm}
algorithm: {adv_estimator: grpo}
verifier: {type: ground_truth, reward_coef: 4}
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""


@pytest.mark.parametrize(
    ("name", "config", "command", "values"),
    [
        ("ppo_trainer", OLD.replace("STRATEGY", "fsdp"), "", {"recompute": "none", "micro_batch": 8, "zero": 3}),
        ("ppo_trainer", OLD.replace("STRATEGY", "fsdp"), f"{M}.enable_gradient_checkpointing=True",
         {"recompute": "full"}),
        ("ppo_megatron_trainer", OLD.replace("fsdp_config: {param_offload: false, fsdp_size: -1}",
         "megatron: {tensor_model_parallel_size: 4}").replace("STRATEGY", "megatron"),
         "--config-name=ppo_megatron_trainer", {"tp": 4, "dp": 2, "micro_batch": 32}),
        # composed of groups, whose values are the defaults
        ("ppo_trainer", f"defaults: [actor: dp_actor]\n{OLD}", f"{A}.ppo_micro_batch_size_per_gpu=2",
         {"recompute": "full"}),
    ],
)  # fmt: skip
def test_configs_of_an_earlier_verl_in_its_checkout_are_the_defaults(
    name, config, command, values, tmp_path, monkeypatch
):
    """Before 0.5 each is one file of its own values: no recomputation before 0.2, four tensor ranks before 0.4."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "verl/trainer/config"
    folder.mkdir(parents=True)
    (folder / f"{name}.yaml").write_text(config)
    script = f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {M}.path=Qwen/Qwen2.5-7B {command}"
    found = read(script, "run.sh", "verl")
    plan = found.plan.flat_values()
    assert {key: plan.get(key) for key in values} == values
    assert not load_reader("verl").words.sort((), found.words.unread).unknown


def test_without_a_checkout_the_version_is_assumed():
    """A batch by its earlier name: recomputation may be off; tensor ranks that nobody says decide."""
    old = read(f"{PPO} {A}.ppo_micro_batch_size=64", "run.sh", "verl")
    assert ("recompute", "full", ("none",)) in [(each.key, each.value, each.others) for each in old.assumed]
    assert "recompute" not in [each.key for each in read(FIXED, "run.sh", "verl").assumed]
    untold = read(CORE.replace(f"{A}.megatron.tensor_model_parallel_size=4", ""), "run.sh", "verl")
    assert (
        f"{A}.megatron.tensor_model_parallel_size" in load_reader("verl").words.sort((), untold.words.unread).deciding
    )
