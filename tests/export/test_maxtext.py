"""MaxText: meshes and batches by device, models by its own names."""

import pytest
from ruamel.yaml import YAML

from simpar.export import unsupported
from simpar.export.maxtext import MODELS
from simpar.models.catalogue import catalogue, load_model

from .conftest import TRAINING, checked, exported


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"dp": 8, "zero": 3, "micro_batch": 8}, {"ici_fsdp_parallelism": 8, "per_device_batch_size": 8.0}),
        ({"dp": 8, "zero": 3}, {"gradient_accumulation_steps": 8, "per_device_batch_size": 1.0}),
        ({"tp": 4, "dp": 2, "zero": 3, "micro_batch": 32, "precision": "fp8"},
         {"ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 4, "per_device_batch_size": 8.0, "quantization": "fp8"}),
        ({"dp": 8, "zero": 3, "hsdp": 2, "micro_batch": 8}, {"dcn_data_parallelism": 2, "ici_fsdp_parallelism": 4}),
        ({"dp": 8, "micro_batch": 8}, {"ici_data_parallelism": 8, "ici_fsdp_parallelism": 1}),
    ],
)  # fmt: skip
def test_the_mesh_and_the_batch_are_the_plans(values, expected):
    """Axes multiply up to the devices, sequences of devices to the global batch."""
    plan = checked("llama-3.1-8b", **values, recompute="full")
    assert not unsupported(plan, load_model("llama-3.1-8b"), TRAINING, "maxtext")
    found = YAML(typ="safe", pure=True).load(exported("maxtext", plan)["maxtext.yml"])
    assert {name: found.get(name) for name in expected} == expected
    axes = [size for name, size in found.items() if name.endswith("_parallelism")]
    devices = 1
    for size in axes:
        devices *= size
    assert devices == 8
    sequences = found["per_device_batch_size"] * devices * found["gradient_accumulation_steps"]
    assert sequences == TRAINING.global_batch
    assert (found["model_name"], found["remat_policy"]) == ("llama3.1-8b", "full")


def test_what_it_recomputes_is_named_as_rows_of_its_runs_are():
    """The policy "minimal" is what tables of MaxText's runs are read as."""
    plan = checked("llama-3.1-8b", dp=8, zero=3, micro_batch=8, recompute="modules:core_attn+layernorm")
    assert 'remat_policy: "minimal"' in exported("maxtext", plan)["maxtext.yml"]
    assert set(MODELS) <= set(catalogue())
