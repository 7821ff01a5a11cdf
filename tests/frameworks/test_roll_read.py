"""ROLL: the update of its actor, and the engines, references and critics around it."""

import copy

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.roll_rollout import devices_of

EIGHT = "list(range(0,8))"
RLVR = {
    "hydra": {"run": {"dir": "."}}, "exp_name": "a", "seed": 42, "num_gpus_per_node": 8, "rollout_batch_size": 64,
    "prompt_length": 2048, "response_length": 4096, "num_return_sequences_in_group": 8, "ppo_epochs": 1,
    "adv_estimator": "reinforce", "value_clip": 0.5, "pretrain": "Qwen/Qwen2.5-7B",
    "reward_pretrain": "Qwen/Qwen2.5-7B",
    "actor_train": {
        "model_args": {"disable_gradient_checkpointing": False, "dtype": "bf16", "model_type": None},
        "training_args": {"learning_rate": 1e-6, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 32},
        "data_args": {"template": "qwen2_5"}, "device_mapping": EIGHT, "infer_batch_size": 4,
        "strategy_args": {"strategy_name": "megatron_train", "strategy_config": {
            "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1,
            "use_distributed_optimizer": True, "recompute_granularity": "full"}},
    },
    "actor_infer": {
        "generating_args": {"max_new_tokens": "${response_length}"}, "device_mapping": EIGHT,
        "strategy_args": {"strategy_name": "vllm", "strategy_config": {
            "gpu_memory_utilization": 0.8, "block_size": 16, "tensor_parallel_size": 2}},
    },
    "reference": {"strategy_args": {"strategy_name": "megatron_infer"}, "device_mapping": EIGHT},
}  # fmt: skip
"""A config as those of alibaba/ROLL (examples/qwen2.5-7B-rlvr_megatron)."""


def found(**values):
    """What the config says with values by dotted key over it (``__`` for dots)."""
    data = copy.deepcopy(RLVR)
    for key, value in values.items():
        *sections, name = key.split("__")
        section = data
        for each in sections:
            section = section.setdefault(each, {})
        section[name] = value
    return read(yaml.safe_dump(data), "rlvr.yaml", "roll")


def test_the_update_is_that_of_a_rank_s_backward_batch():
    """1 x 32 samples of 4 ranks, four times a rollout of 64 x 8, in rows padded to both lengths."""
    plan = found().plan
    assert (plan.model, plan.mesh.tp, plan.mesh.dp, plan.micro_batch) == ("qwen2.5-7b", 2, 4, 1)
    assert plan.training == {"seq_len": 6144, "global_batch": 128}
    assert plan.memory.recompute == "full"
    assert any("4 such steps, of 128 samples" in note for note in found().notes)
    few = found(actor_train__training_args__gradient_accumulation_steps=256).plan
    assert few.training["global_batch"] == 512
    with pytest.raises(UserError, match="512 responses of a rollout, 96 of an update on 4 data-parallel ranks"):
        found(actor_train__training_args__gradient_accumulation_steps=24)


def test_every_word_is_accounted_for():
    """Of the example, none is unknown or decides."""
    words = found().words
    account = load_reader("roll").words.sort(words.used, words.unread)
    assert not account.unknown
    assert not account.deciding


def test_what_the_rollout_is():
    """Log-probabilities again where a rollout has several updates, a reference for init_kl_coef, 0.2 by default."""
    side = found().rollout
    assert (side.longest, side.apart, side.refused) == ((2048, 4096), None, "")
    section = side.section
    assert (section["prompts"], section["samples"], section["algorithm"]) == (64, 8, "grpo")
    assert section["lengths"] == {"padding": "context"}
    assert section["passes"] == {"old_policy": True, "reference": True}
    engine = section["rollout"]["engine"]
    assert (section["rollout"]["tp"], engine["memory_fraction"], engine["max_sequences"]) == (2, 0.8, 128)
    other = found(init_kl_coef=0, actor_train__training_args__gradient_accumulation_steps=256).rollout.section
    assert other["passes"] == {"old_policy": False, "reference": False}
    assert found(actor_train__use_sequence_packing=True).rollout.section["lengths"] == {"padding": "none"}
    assert found(adv_estimator="gae", critic__device_mapping=EIGHT).rollout.section["algorithm"] == "ppo"
    sglang = {"strategy_name": "sglang", "strategy_config": {"mem_fraction_static": 0.7, "disable_radix_cache": True}}
    engine = found(actor_infer__strategy_args=sglang, actor_infer__num_gpus_per_worker=4).rollout.section["rollout"]
    assert (engine["tp"], engine["engine"]["memory_fraction"], engine["engine"]["prefix_sharing"]) == (4, 0.7, False)


def test_engines_on_devices_of_their_own():
    """Apart where no device trains, ahead by the ratio; references on others have a pool."""
    side = found(actor_infer__device_mapping="list(range(8,16))", async_generation_ratio=1.5).rollout
    assert side.apart == (8, 8)
    assert side.section["placement"] == "split"
    assert side.section["synchrony"] == {"steps_off": 2, "in_flight": True}
    assert any("async_generation_ratio = 1.5: whole steps" in note for note in side.notes)
    apart = found(reference__device_mapping="[8, 9, 10, 11]").rollout.section["passes"]
    assert apart["reference_devices"] == 4


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"actor_infer__device_mapping": "list(range(0,6))"}, r"actor_infer\.device_mapping: a part of the devices"),
        ({"async_generation_ratio": 1}, r"async_generation_ratio = 1 on devices that train"),
        ({"actor_infer__strategy_args": {"strategy_name": "hf_infer"}}, r"hf_infer: allowed: vllm, sglang"),
        ({"reference__device_mapping": "[0, 1]"}, r"reference\.device_mapping: allowed: the devices of actor_train"),
    ],
)
def test_rollouts_that_no_section_says(values, said):
    """The update is answered all the same."""
    imported = found(**values)
    assert imported.plan.mesh.tp == 2
    with pytest.raises(UserError, match=said):
        raise UserError(imported.rollout.refused)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"actor_train__strategy_args__strategy_name": "deepspeed_train"}, "allowed: megatron_train, fsdp2_train"),
        ({"actor_train__device_mapping": None}, r"actor_train\.device_mapping: missing"),
        ({"actor_train__device_mapping": "open('x')"}, r"open\('x'\): allowed: device numbers"),
        ({"actor_train__device_mapping": "list(range(0,7))"}, "7 devices: allowed: a multiple of 2"),
        ({"response_length": None}, "no response_length: allowed: it, or sequence_length"),
        ({"sequence_length": 1000}, "sequence_length = 1000: allowed: more than prompt_length"),
    ],
)
def test_what_cannot_be_answered_is_refused(values, said):
    """In one line."""
    with pytest.raises(UserError, match=said):
        found(**values)


def test_sharded_actors():
    """FSDP 2 with Ulysses: shards of a group, parameters in bf16, sums in fp32."""
    config = {"fsdp_size": 4, "param_dtype": "bf16", "offload_policy": True, "reshard_after_forward": True,
              "wrap_policy": {"wrap_embeddings": True}}  # fmt: skip
    given = found(
        actor_train__strategy_args={"strategy_name": "fsdp2_train", "strategy_config": config},
        actor_train__model_args__ulysses_size=2,
        actor_train__model_args__lora_rank=8,
        actor_train__model_args__lora_target="all",
    )
    plan = given.plan
    assert (plan.data_parallel.zero, plan.data_parallel.hsdp, plan.mesh.cp, plan.mesh.dp) == (3, 2, 2, 4)
    assert (plan.memory.recompute, plan.offload.offload_parameters, plan.tuning.lora_rank) == ("full", "cpu", 8)
    assert any("whole weights are sent" in note for note in given.rollout.notes)


def test_device_mappings_are_read_and_not_run():
    """The forms that ROLL's examples have."""
    from simpar.frameworks.policy_update import options_of

    for text, devices in (
        ("list(range(0,3))", (0, 1, 2)), ("[0, 1, 5]", (0, 1, 5)), ("list([4,5])", (4, 5)), ("range(2)", (0, 1)),
        ("list(range(0,2)) + list(range(8,10))", (0, 1, 8, 9)), ([3, 4], (3, 4)),
    ):  # fmt: skip
        assert devices_of(options_of((), {"a": {"device_mapping": text}}, "x"), "a") == devices


def test_commands_name_their_config(tmp_path, monkeypatch):
    """Beside the text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rlvr.yaml").write_text(yaml.safe_dump(RLVR))
    command = "python examples/start_rlvr_pipeline.py --config_path here --config_name rlvr"
    assert read(command, "run.sh", "roll").plan == found().plan
    with pytest.raises(UserError, match="no --config_name"):
        read("python examples/start_rlvr_pipeline.py", "run.sh", "roll")
