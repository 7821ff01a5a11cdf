"""AReaL: the update of its actor, the engine that runs ahead of it, and every word accounted for."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.areal_rollout import allocation_of
from simpar.frameworks.target import ImportedStep
from simpar.preflight.given import given_text, given_words

TOGETHER = {"type": "colocation", "target": "actor"}
GSM8K = {
    "experiment_name": "gsm8k-grpo", "trial_name": "trial0", "seed": 1, "tokenizer_path": "${actor.path}",
    "cluster": {"n_nodes": 1, "n_gpus_per_node": 8, "name_resolve": {"type": "nfs"}}, "scheduler": {"type": None},
    "rollout": {"backend": "sglang:d4p1t1", "max_concurrent_rollouts": 256, "max_head_offpolicyness": 2,
                "consumer_batch_size": "${train_dataset.batch_size}", "scheduling_spec": "${actor.scheduling_spec}"},
    "gconfig": {"n_samples": 4, "max_new_tokens": 1024, "temperature": 1.0},
    "actor": {"backend": "fsdp:d4p1t1", "path": "Qwen/Qwen2.5-1.5B-Instruct", "gradient_checkpointing": True,
              "dtype": "bfloat16", "mb_spec": {"max_tokens_per_mb": 10240}, "optimizer": {"type": "adam", "lr": 1e-5},
              "kl_ctl": 0.0, "ppo_n_minibatches": 1, "recompute_logprob": True, "use_decoupled_loss": True,
              "rejection_sampling": {"metric": "ratio", "upper": 5.0}, "weight_update_mode": "xccl",
              "scheduling_spec": [{"task_type": "worker", "gpu": 1}]},
    "ref": {"backend": "${actor.backend}", "path": "${actor.path}", "scheduling_strategy": TOGETHER},
    "sglang": {"model_path": "${actor.path}", "mem_fraction_static": 0.8, "max_running_requests": None},
    "vllm": {"max_num_seqs": 128, "max_model_len": 32768, "gpu_memory_utilization": 0.7},
    "train_dataset": {"batch_size": 256, "path": "openai/gsm8k", "type": "rl", "max_length": 1024},
}  # fmt: skip
"""A config of inclusionAI/AReaL (examples/math/gsm8k_grpo.yaml), without what has no effect."""
START = "python3 examples/math/gsm8k_rl.py --config gsm8k.yaml"
MEGATRON = (
    "'actor.backend=megatron:(attn:d4p4t2|ffn:d2p4e4)' actor.path=Qwen/Qwen3-30B-A3B actor.megatron.ddp."
    "grad_reduce_in_fp32=true actor.megatron.recompute_granularity=full actor.megatron.moe_enable_deepep=true"
)


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """The config in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k.yaml").write_text(yaml.safe_dump(GSM8K))
    return tmp_path


def found_of(words=""):
    """The config with words of a command over it."""
    return read(f"{START} {words}", "run.sh", "areal")


def side(words=""):
    """What it says beside the update."""
    result = found_of(words).rollout
    assert not result.refused
    return result


def account_of(found):
    """The words of a text, sorted."""
    return load_reader("areal").words.sort(found.words.used, found.words.unread)


@pytest.mark.parametrize(
    ("text", "devices", "experts"),
    [
        ("fsdp:d8", 8, None),
        ("sglang:d2t4", 8, None),
        ("megatron:d2p2t4c2e4", 32, {"d": 2, "t": 1, "p": 2, "c": 2, "e": 4}),
        ("megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)", 32, {"d": 2, "t": 4, "p": 2, "c": 1, "e": 2}),
    ],
)
def test_allocations(text, devices, experts):
    """Devices are those of data, tensor, pipeline and context parallelism; experts lie on them."""
    found = allocation_of(text, "a.yaml")
    assert (found.backend, found.devices, found.experts) == (text.partition(":")[0], devices, experts)


@pytest.mark.parametrize("text", ["", "d8", "fsdp:", "fsdp:d0", "fsdp:d4d2", "fsdp:x4", "fsdp:d4t", "fsdp:(attn:d4)"])
def test_what_is_no_allocation(text):
    """One line with what is allowed."""
    with pytest.raises(UserError, match=r"backend = .*: allowed: BACKEND:SIZES, such as sglang:d4t2"):
        allocation_of(text, "a.yaml")


def test_a_config_is_read_whole(beside):
    """Half of the node trains, and half generates up to two versions ahead."""
    given = given_words(["gsm8k.yaml"])
    found = given.found
    values = {**found.plan.flat_values(), **found.plan.training, "model": found.plan.model}
    expected = {"defer_grad_reduce": False, "model": "qwen2.5-1.5b", "dp": 4,
                "zero": 3, "micro_batch": 4, "seq_len": 2048, "global_batch": 1024,
                "recompute": "full", "parameter_dtype": "bf16", "reduce_dtype": "fp32"}  # fmt: skip
    assert {key: values[key] for key in expected} == expected
    assert account_of(found).is_understood
    rollout = found.rollout
    assert (rollout.apart, rollout.longest, rollout.notes) == ((4, 4), (1024, 1024), ())
    assert rollout.section == {
        "algorithm": "grpo", "prompts": 256, "samples": 4, "placement": "split",
        "synchrony": {"steps_off": 2, "in_flight": True},
        "rollout": {"tp": 1, "pp": 1, "ep": 1, "engine": {
            "token_budget": 32768, "max_sequences": 256, "memory_fraction": 0.8, "graphs": True,
            "prefix_sharing": False}},
        "weights": {"offload": False, "senders": "rank"},
        "passes": {"old_policy": True, "reference": False},
    }  # fmt: skip
    for start in (START, f"python3 -m areal.launcher.local {START.partition(' ')[2]} scheduler.type=local"):
        assert given_text(start, "run.sh").found.rollout == rollout


@pytest.mark.parametrize(
    ("words", "finds"),
    [
        ("rollout.max_head_offpolicyness=0", {"synchrony": {"steps_off": 0, "in_flight": False}}),
        ("actor.kl_ctl=0.1", {"passes": {"old_policy": True, "reference": True}}),
        ("actor.use_decoupled_loss=false actor.recompute_logprob=false",
         {"passes": {"old_policy": False, "reference": False}}),
        ("actor.prox_logp_method=loglinear", {"passes": {"old_policy": False, "reference": False}}),
        ("actor.weight_update_mode=disk", {"weights": {"offload": False, "through": "host"}}),
        ("critic.path=Qwen/Qwen2.5-0.5B critic.scheduling_strategy.type=colocation",
         {"algorithm": "ppo", "passes": {"old_policy": True, "reference": False, "critic": "qwen2.5-0.5b"}}),
        ("critic.path=Qwen2.5-0.5B critic.backend=fsdp:d2 actor.kl_ctl=1 ref.scheduling_strategy= ref.backend=fsdp:d4",
         {"algorithm": "ppo", "passes": {"old_policy": True, "reference": True, "critic": "qwen2.5-0.5b",
                                         "critic_devices": 2, "reference_devices": 4}}),
        ("rollout.backend=vllm:d2t2 vllm.enforce_eager=true vllm.no_enable_prefix_caching=false",
         {"rollout": {"tp": 2, "pp": 1, "ep": 1, "engine": {
             "max_sequences": 128, "memory_fraction": 0.7, "graphs": False, "prefix_sharing": True}}}),
        ("rollout.backend=sglang:d2t2 sglang.ep_size=2 sglang.chunked_prefill_size=4096 actor.path=a/Qwen3-4B-FP8",
         {"rollout": {"tp": 2, "pp": 1, "ep": 2, "precision": "fp8_blockwise", "engine": {
             "token_budget": 4096, "max_sequences": 512, "memory_fraction": 0.8, "graphs": True,
             "prefix_sharing": False}}}),
    ],
)  # fmt: skip
def test_words_of_the_rollout(beside, words, finds):
    """Over the config."""
    section = side(words).section
    assert {key: section[key] for key in finds} == finds


def test_turns_on_the_same_devices(beside):
    """An engine colocated with the actor has no devices of its own, and runs on policy."""
    found = side("rollout.scheduling_strategy.type=colocation enable_offload=true")
    assert found.apart is None
    assert "placement" not in found.section
    assert found.section["weights"] == {"offload": True}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("actor.backend=fsdp:d2t2 actor.gradient_checkpointing=false", {"tp": 2, "dp": 2, "recompute": "none"}),
        ("actor.backend=fsdp:d2c2", {"cp": 2, "cp_method": "ulysses"}),
        ("actor.fsdp.offload_params=true", {"offload_optimizer": "cpu", "offload_parameters": "cpu"}),
        ("actor.use_lora=true actor.lora_rank=16 'actor.target_modules=[q_proj,v_proj]'",
         {"lora_rank": 16, "lora_targets": ["q_proj", "v_proj"]}),
        ("actor.mb_spec.max_tokens_per_mb=null actor.mb_spec.n_mbs=8", {"micro_batch": 32}),
        ("actor.mb_spec.n_mbs=128", {"micro_batch": 2}),
        ("actor.ppo_n_minibatches=4", {"global_batch": 256}),
        ("gconfig.max_tokens=1536", {"seq_len": 1536}),
        (MEGATRON, {"dp": 4, "tp": 2, "pp": 4, "ep": 4, "zero": 1, "recompute": "full", "sequence_parallel": True}),
        (f"{MEGATRON} actor.gradient_checkpointing=false actor.optimizer.type=adam_bf16",
         {"recompute": "none", "moment_dtype": "bf16"}),
        (f"{MEGATRON} actor.megatron.virtual_pipeline_parallel_size=2", {"vpp": 2}),
    ],
)  # fmt: skip
def test_layouts_of_the_actor(beside, words, expected):
    """FSDP and Megatron-Core, and every word accounted for."""
    found = found_of(words)
    values = {**found.plan.flat_values(), **found.plan.training}
    assert {key: values.get(key) for key in expected} == expected
    assert account_of(found).is_understood


@pytest.mark.parametrize(
    ("words", "deciding"),
    [
        ("actor.kl_ctl=0.1", ["ref.path"]),
        ("actor.kl_ctl=0.1 ref.scheduling_strategy.type=separation", []),
        ("actor.kl_ctl=0.1 actor.use_lora=true", []),
        ("critic.path=a critic.scheduling_strategy.type=colocation", ["critic.path"]),
        ("actor.pad_to_maximum=true actor.enable_tree_training=true",
         ["actor.pad_to_maximum", "actor.enable_tree_training"]),
    ],
)  # fmt: skip
def test_what_decides(beside, words, deciding):
    """Models that stay beside the update, and what is not modelled."""
    found = found_of(words)
    account = account_of(found)
    assert (list(account.deciding), account.unknown) == (deciding, ())
    assert set(deciding) & {"ref.path", "critic.path"} <= set(found.rollout.answers)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rollout.backend=fsdp:d4", "rollout.backend = fsdp:d4: allowed: sglang and vllm with d, t and p"),
        ("critic.path=a", "critic.backend: missing, a critic on devices of its own; allowed: BACKEND:SIZES"),
        ("sglang.enable_dp_attention=true", "sglang.enable_dp_attention: allowed: false"),
        ("sglang.ep_size=3", "sglang.ep_size = 3: allowed: 1, or the tensor-parallel 1"),
        ("sglang.mem_fraction_static=x", "sglang.mem_fraction_static = x: allowed: a number"),
    ],
)
def test_what_is_no_whole_step(beside, words, said):
    """Refused by the word; the update is answered all the same."""
    found = found_of(words)
    assert said in found.rollout.refused
    assert found.plan.micro_batch == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("actor.backend=archon:d8", "actor.backend = archon:d8: allowed: fsdp and megatron"),
        ("actor.backend=", "backend = None: allowed: BACKEND:SIZES"),
        ("actor.ppo_n_minibatches=3", "ppo_n_minibatches = 3: allowed: a divisor of the 1024 samples"),
        ("actor.optimizer.type=sgd", "optimizer.type = sgd: allowed: adam, adam_bf16"),
        ("actor.dtype=int8", "actor.dtype = 'int8': allowed"),
        ("train_dataset.type=dpo", "train_dataset.type = dpo: preferences and rewards are not modelled"),
        ("actor.backend=fsdp:d3", "1024 samples of an update: allowed: a multiple of 3"),
    ],
)
def test_updates_are_refused_by_the_word(beside, words, said):
    """One line with what is allowed."""
    with pytest.raises(UserError, match=said):
        found_of(words)


def test_earlier_releases_and_sft(tmp_path):
    """One string places engine and actor there; a config without a rollout trains on samples of its data."""
    old = {**GSM8K, "allocation_mode": "sglang:d2p1t2+d2p1t1c2"}
    for part in ("actor", "rollout"):
        old[part] = {key: value for key, value in old[part].items() if key != "backend"}
    found = read(yaml.safe_dump(old), "a.yaml", "areal")
    assert (found.plan.mesh.dp, found.plan.mesh.cp, found.rollout.apart) == (2, 2, (4, 4))
    sft = {key: each for key, each in GSM8K.items() if key not in ("rollout", "gconfig", "ref")}
    sft["train_dataset"] = {**GSM8K["train_dataset"], "type": "sft"}
    found = read(yaml.safe_dump(sft), "a.yaml", "areal")
    assert not isinstance(found, ImportedStep)
    assert found.plan.training == {"seq_len": 1024, "global_batch": 256}
    with pytest.raises(UserError, match="allocation_mode = sglang:d4: allowed: ENGINE:SIZES"):
        read(yaml.safe_dump({**old, "allocation_mode": "sglang:d4"}), "a.yaml", "areal")
