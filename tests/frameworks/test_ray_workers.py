"""Ranks that Ray starts, as options and variables say: never those of the whole node."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.verbs import check

FACTORY = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "stage": "sft", "do_train": True, "finetuning_type": "full",
           "dataset": "x", "output_dir": "o", "cutoff_len": 1024, "per_device_train_batch_size": 1}  # fmt: skip
AXOLOTL = {"base_model": "Qwen/Qwen2.5-0.5B", "sequence_len": 1024, "micro_batch_size": 1, "sample_packing": True}


def started(given, **flags):
    """Devices of a launch, and the words that decide."""
    checked = check(given, hardware="dgx-h100", **flags)
    return checked.result.setup.cluster["devices"], set(checked.account.deciding) | set(checked.account.unknown)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A folder to write a file of arguments to, in which commands start."""
    monkeypatch.chdir(tmp_path)
    return lambda config: (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))


def test_llama_factory_starts_workers_where_its_variable_is_set(written):
    """Without it the number has no effect; a file alone that has it is one for Ray."""
    written({**FACTORY, "ray_num_workers": 4, "placement_strategy": "PACK", "resources_per_worker": {"GPU": 1}})
    assert started("c.yaml") == (4, set())
    assert started("USE_RAY=1 llamafactory-cli train c.yaml") == (4, set())
    assert started("llamafactory-cli train c.yaml") == (8, {"ray_num_workers"})
    assert started("USE_RAY=0 llamafactory-cli train c.yaml") == (8, {"ray_num_workers"})
    with pytest.raises(UserError, match="--gpus 8: means 8 ranks"):
        started("c.yaml", gpus=8)
    written(FACTORY)
    assert started("USE_RAY=true llamafactory-cli train c.yaml")[0] == 1
    assert started("llamafactory-cli train c.yaml")[0] == 8


def test_axolotl_starts_workers_where_its_switch_is_on(written):
    """By the file or the command, on as many nodes as they need."""
    written({**AXOLOTL, "use_ray": True, "ray_num_workers": 4})
    assert started("c.yaml") == (4, set())
    written({**AXOLOTL, "ray_num_workers": 4})
    assert started("axolotl train c.yaml")[0] == 8
    assert started("axolotl train c.yaml --use-ray --ray-num-workers 16")[0] == 16
    fsdp = {"fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}
    written({**AXOLOTL, **fsdp, "use_ray": True, "ray_num_workers": 6, "tensor_parallel_size": 2, "dp_shard_size": 3})
    assert started("c.yaml")[0] == 6
    written({**AXOLOTL, **fsdp, "use_ray": True, "ray_num_workers": 5, "tensor_parallel_size": 2, "dp_shard_size": 2})
    with pytest.raises(UserError, match=r"c.yaml:7: ray_num_workers = 5: allowed: a multiple of the 2 ranks"):
        started("c.yaml")
