"""AMD Primus on MaxText: options over Primus' own defaults, facts of public experiments."""

from pathlib import Path

import pytest

from simpar import check
from simpar.errors import UserError
from simpar.frameworks import load_reader, read
from simpar.frameworks.open_axes import devices_of_slice

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


@pytest.mark.parametrize(("devices", "ep"), [(8, 8), (4, 4)])
def test_an_open_axis_takes_the_devices_of_a_slice(devices: int, ep: int) -> None:
    """.../MI300X/deepseek_v2_16B-bf16-pretrain.yaml: experts on what the other axes leave of a node."""
    mesh = {"dcn_data_parallelism": -1, "ici_fsdp_parallelism": 1, "ici_expert_parallelism": -1}
    text = experiment("deepseek_v2_16B.yaml", "maxtext", **mesh, per_device_batch_size=8)
    with devices_of_slice(devices):
        result = read(text, "a.yaml", "primus")
    assert (result.plan.mesh.ep, result.plan.zero) == (ep, 3)
    assert any(f"ici_expert_parallelism is {ep}" in note for note in result.notes)
    with devices_of_slice(devices), pytest.raises(UserError, match=r"ici_fsdp_parallelism is -1, too|ici_expert.* too"):
        read(text.replace("ici_fsdp_parallelism: 1", "ici_fsdp_parallelism: -1"), "a.yaml", "primus")
    with devices_of_slice(3), pytest.raises(UserError, match="whose product, 2, divides 3 devices"):
        read(text.replace("ici_fsdp_parallelism: 1", "ici_fsdp_parallelism: 2"), "a.yaml", "primus")


def test_check_knows_the_devices_of_a_node(tmp_path: Path) -> None:
    """Of the hardware, of which a flag may say fewer."""
    mesh = {"dcn_data_parallelism": -1, "ici_fsdp_parallelism": 2, "ici_expert_parallelism": -1}
    file = tmp_path / "a.yaml"
    shape = {"per_device_batch_size": 1, "max_target_length": 512}
    file.write_text(experiment("deepseek_v2_16B.yaml", "maxtext", **mesh, **shape))
    for flags, ep, copies in (({"nodes": 2}, 4, 2), ({"gpus": 4}, 2, 1)):
        plan = check(file, hardware="mi300x-8", **flags).result.plan
        assert (plan.mesh.ep, plan.data_parallel.hsdp) == (ep, copies)


def test_what_experts_are_not_told() -> None:
    """.../MI300X/mixtral_8x7B-bf16-pretrain.yaml: all devices of a node, which the file does not count."""
    with pytest.raises(UserError, match=r"a\.yaml:\d: ici_expert_parallelism = -1: allowed: its size"):
        read(
            experiment("mixtral_8x7B.yaml", "maxtext", ici_fsdp_parallelism=1, ici_expert_parallelism=-1),
            "a.yaml",
            "primus",
        )
    with pytest.raises(UserError, match=r"a\.yaml: model is missing"):
        read(experiment("", "maxtext", per_device_batch_size=1), "a.yaml", "primus")
