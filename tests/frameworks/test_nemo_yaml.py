"""NeMo 1: YAML and Hydra's overrides as a plan."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks import read

CONFIG = {
    "trainer": {"devices": 8, "num_nodes": 4, "precision": "bf16"},
    "model": {
        "micro_batch_size": 1, "global_batch_size": 128, "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 4, "sequence_parallel": True,
        "encoder_seq_length": 8192, "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336,
        "num_attention_heads": 32, "num_query_groups": 8, "megatron_amp_O2": True, "vocab_size": 128256,
        "activations_checkpoint_granularity": "selective", "optim": {"name": "distributed_fused_adam"},
        "max_position_embeddings": "${.encoder_seq_length}",
    },
}  # fmt: skip


def changed(**model: object) -> dict[str, object]:
    """The config with other values of its model."""
    return {**CONFIG, "model": {**CONFIG["model"], **model}}


def imported(data: object) -> object:
    """What is read of a config."""
    return read(yaml.safe_dump(data), "gpt.yaml", "nemo-1")


def test_a_config() -> None:
    """Sizes, degrees, the trainer's devices, and the optimizer that shards states."""
    result = imported(CONFIG)
    plan = result.plan
    assert (plan.stack, plan.model, plan.training) == ("nemo", "llama-3-8b", {"seq_len": 8192, "global_batch": 128})
    assert (plan.tp, plan.pp, plan.vpp, plan.dp, plan.zero, plan.precision) == (4, 2, 4, 4, 1, "bf16")
    assert (plan.recompute, plan.sequence_parallel, plan.grad_dtype) == ("selective", True, "fp32")
    assert (plan.overlap_grad_reduce, plan.overlap_param_gather) == (True, False)
    assert result.assumed == ()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"optim": {"name": "fused_adam"}}, {"zero": 0, "overlap_grad_reduce": False}),
        ({"optim": {"name": "distributed_fused_adam", "grad_sync_dtype": "bf16"}}, {"grad_dtype": "bf16"}),
        ({"optim": {"name": "distributed_fused_adam", "overlap_param_sync": True}}, {"overlap_param_gather": True}),
        ({"fp8": True, "fp8_hybrid": True}, {"precision": "fp8"}),
        ({"megatron_amp_O2": False}, {"parameter_dtype": "fp32"}),
        ({"peft": {"peft_scheme": "lora", "lora_tuning": {"adapter_dim": 16, "target_modules": ["attention"]}}},
         {"lora_rank": 16, "lora_targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
        ({"activations_checkpoint_granularity": "full", "activations_checkpoint_method": "uniform",
          "activations_checkpoint_num_layers": 1}, {"recompute": "full"}),
    ],
)  # fmt: skip
def test_words_of_its_own(model: dict[str, object], expected: dict[str, object]) -> None:
    """What NeMo 1 calls differently from Megatron-LM."""
    values = imported(changed(**model)).plan.flat_values()
    assert {key: values[key] for key in expected} == expected


def test_what_is_open_is_assumed() -> None:
    """Without a word on half-precision parameters, both are simulated."""
    model = {key: value for key, value in CONFIG["model"].items() if key != "megatron_amp_O2"}
    (assumed,) = imported({**CONFIG, "model": model}).assumed
    assert (assumed.key, assumed.value, assumed.others) == ("parameter_dtype", "bf16", ("fp32",))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(peft={"peft_scheme": "ia3"}), "model.peft.peft_scheme = ia3: allowed: lora, null"),
        (changed(optim={"name": "came"}), "model.optim.name = came: allowed"),
        ({**CONFIG, "trainer": {"devices": 3, "precision": "bf16"}}, "allowed: a multiple of tp x cp x pp = 8"),
        ({**CONFIG, "trainer": {"precision": "int8"}}, "trainer.precision = int8: allowed"),
        ({"model": {}}, "no config of NeMo 1"),
    ],
)
def test_what_no_plan_has_is_refused(data: object, message: str) -> None:
    """One line with file, field, value and what is allowed."""
    with pytest.raises(UserError, match=r"gpt\.yaml: ") as error:
        imported(data)
    assert message in str(error.value)


def test_a_command_overrides_its_config(tmp_path) -> None:
    """Hydra's folder and name beside the script, and values over them."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "gpt.yaml").write_text(yaml.safe_dump(CONFIG))
    job = tmp_path / "job.sh"
    text = "python megatron_gpt_pretraining.py --config-path=conf --config-name=gpt ++model.micro_batch_size=2"
    assert read(text, str(job), "nemo-1").plan.micro_batch == 2
