"""AMD Primus on torchtitan: job configs over Primus' own defaults, facts of public experiments."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import load_reader, read

TURBO = "primus_turbo.enable_primus_turbo"


def experiment(model, framework="torchtitan", **overrides):
    """The YAML of an experiment with sections laid over the defaults."""
    module = {"framework": framework, "config": "pre_trainer.yaml", "model": model, "overrides": overrides}
    return yaml.safe_dump({"work_group": "amd", "modules": {"pre_trainer": module}})


def imported(model, **overrides):
    """What is read, and the words that decide, of which none is unknown."""
    found = read(experiment(model, **overrides), "experiment.yaml", "primus")
    account = load_reader("primus").words.sort(found.words.used, found.words.unread)
    assert not account.unknown
    return found, set(account.deciding)


def test_an_experiment_in_16_bits():
    """AMD-AGI/Primus fd1eeab, examples/torchtitan/configs/MI300X/llama3.1_8B-BF16-pretrain.yaml: 4 of 8,192 each."""
    found, deciding = imported(
        "llama3.1_8B.yaml", stderr_sink_level="INFO", metrics={"log_freq": 1, "enable_wandb": False},
        lr_scheduler={"warmup_steps": 10},
        training={"local_batch_size": 4, "seq_len": 8192, "mock_data": False, "steps": 50, "gc_freq": 100},
        activation_checkpoint={"mode": "none", "selective_ac_option": "op"},
        primus_turbo={"enable_primus_turbo": True, "enable_attention_float8": False},
    )  # fmt: skip
    plan = found.plan
    assert (plan.model, plan.stack, plan.training, found.per_replica) == (
        "llama-3.1-8b", "torchtitan", {"seq_len": 8192}, 4,
    )  # fmt: skip
    assert (plan.zero, plan.micro_batch, plan.recompute, plan.precision, deciding) == (3, 4, "none", "bf16", {TURBO})
    assert plan.numerics.products.is_cast is False


def test_a_mixture_in_8_bits():
    """AMD-AGI/Primus fd1eeab, .../MI300X/gpt_oss_20B-FP8-pretrain.yaml: torchao's 8 bits by the model's name."""
    found, deciding = imported(
        "gpt_oss_20b-fp8.yaml", optimizer={"name": "AdamW", "lr": 2.2e-4, "eps": 1e-8},
        training={"local_batch_size": 6, "seq_len": 4096, "max_norm": 1.0, "steps": 50},
        parallelism={"data_parallel_replicate_degree": 1, "data_parallel_shard_degree": -1, "expert_parallel_degree": 8,
                     "fsdp_reshard_after_forward": "default", "tensor_parallel_degree": 1,
                     "pipeline_parallel_degree": 1, "expert_tensor_parallel_degree": 1},
        activation_checkpoint={"mode": "selective", "selective_ac_option": "op"},
        compile={"enable": True, "components": ["model", "loss"]},
        primus_turbo={"enable_primus_turbo": False, "use_turbo_attention": False},
    )  # fmt: skip
    plan = found.plan
    assert (plan.model, plan.ep, plan.zero, plan.micro_batch) == ("gpt-oss-20b", 8, 3, 6)
    assert (plan.recompute, plan.precision, deciding) == ("selective", "fp8", set())
    assert not any("Primus-Turbo" in note for note in found.notes)


def test_what_is_not_said_is_as_primus_has_it():
    """Eight sequences of 2,048 a replica, nothing recomputed, and its own kernels, as a note says."""
    found, _ = imported("qwen3_32b.yaml", training={"steps": 50})
    assert (found.plan.model, found.per_replica, found.plan.training) == ("qwen3-32b", 8, {"seq_len": 2048})
    assert any("kernels of Primus-Turbo" in note for note in found.notes)


def test_models_that_are_not_shipped_are_asked_for_and_back_ends_refused():
    """By their names."""
    found, _ = imported("llama5_17Bx16E.yaml", training={"steps": 50})
    assert "llama5_17Bx16E" in found.asks["model"]
    with pytest.raises(UserError, match=r"framework = hummingbirdxt: .*allowed: megatron, torchtitan, maxtext, meg"):
        read(experiment("x.yaml", framework="hummingbirdxt"), "experiment.yaml", "primus")


@pytest.mark.parametrize(
    ("asked", "model"), [("llama4_17Bx16E", "llama-4-scout"), ("llama4_17Bx128E-fp8", "llama-4-maverick")]
)
def test_mixtures_of_llama_4(asked, model):
    """Files of models whose names count the experts."""
    assert imported(asked)[0].plan.model == model
