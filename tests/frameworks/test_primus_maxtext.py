"""AMD Primus on MaxText: options over Primus' own defaults, facts of public experiments."""

import pytest

from simpar.errors import UserError
from simpar.frameworks import load_reader, read

from .test_primus_titan import experiment

DATA = {"dataset_type": "synthetic", "enable_checkpointing": False, "steps": 50, "profiler": ""}


def test_a_dense_model() -> None:
    """AMD-AGI/Primus fd1eeab, examples/maxtext/configs/MI300X/llama3_8B-bf16-pretrain.yaml: bf16, 4 of 8,192."""
    mesh = {"dcn_data_parallelism": -1, "dcn_fsdp_parallelism": 1, "ici_fsdp_parallelism": 8, "ici_data_parallelism": 1}
    shape = {"remat_policy": "minimal_flash", "max_target_length": 8192, "per_device_batch_size": 4}
    result = read(experiment("llama3_8B.yaml", "maxtext", **DATA, **mesh, **shape), "a.yaml", "primus")
    plan = result.plan
    assert (plan.model, plan.stack, plan.training, result.per_replica) == (
        "llama-3-8b", "maxtext", {"seq_len": 8192}, 4,
    )  # fmt: skip
    assert (plan.zero, plan.dp, plan.micro_batch, plan.precision, plan.parameter_dtype, plan.attention_kernel) == (
        3, 8, 4, "bf16", "bf16", "cudnn",
    )  # fmt: skip
    account = load_reader("primus").words.sort(result.words.used, result.words.unread)
    assert (account.unknown, account.deciding) == ((), {})
    assert "weight_dtype" not in account.used


def test_what_experts_are_not_told() -> None:
    """.../MI300X/mixtral_8x7B-bf16-pretrain.yaml: all devices of a node, which the file does not count."""
    with pytest.raises(UserError, match=r"a\.yaml:7: ici_expert_parallelism = -1: allowed: its size"):
        read(experiment("mixtral_8x7B.yaml", "maxtext", ici_expert_parallelism=-1), "a.yaml", "primus")
    with pytest.raises(UserError, match=r"a\.yaml: model is missing"):
        read(experiment("", "maxtext", per_device_batch_size=1), "a.yaml", "primus")
