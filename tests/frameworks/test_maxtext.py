"""MaxText: meshes and batches by device, models by its own names."""

import os
import subprocess

import pytest
from ruamel.yaml import YAML

from simpar import cli
from simpar.architectures.catalogue import catalogue, load_model
from simpar.frameworks import unsupported
from simpar.frameworks.maxtext import MODELS
from simpar.frameworks.source import SourceFlags, load_source
from simpar.plan.plan import Plan

from .conftest import TRAINING, checked, exported


@pytest.mark.parametrize("target", ["maxtext", "torchtitan"])
def test_replicas_of_one_rank_shard_nothing(target):
    """Frameworks reduce their gradients as plain replicas', at another time than shards'."""
    for replicas, lost in ((2, True), (1, False)):
        plan = checked("llama-3.1-8b", tp=4, dp=2, zero=3, hsdp=replicas, recompute="full")
        reasons = unsupported(plan, load_model("llama-3.1-8b"), TRAINING, target)
        assert any("hsdp = 2: replicas of one rank shard nothing" in each for each in reasons) is lost


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"dp": 8, "zero": 3, "micro_batch": 8}, {"ici_fsdp_parallelism": 8, "per_device_batch_size": 8.0}),
        ({"dp": 8, "zero": 3}, {"gradient_accumulation_steps": 8, "per_device_batch_size": 1.0}),
        ({"tp": 4, "dp": 2, "zero": 3, "micro_batch": 32, "precision": "fp8"},
         {"ici_fsdp_parallelism": 2, "ici_tensor_sequence_parallelism": 4, "per_device_batch_size": 8.0,
          "quantization": "fp8"}),
        ({"tp": 4, "dp": 2, "zero": 3, "sequence_parallel": False}, {"ici_tensor_parallelism": 4}),
        ({"dp": 8, "zero": 3, "hsdp": 2, "micro_batch": 8}, {"ici_data_parallelism": 2, "ici_fsdp_parallelism": 4}),
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


@pytest.mark.parametrize(
    ("values", "hardware", "expected"),
    [
        ({"dp": 16, "zero": 3}, "dgx-h100", (1, 2, 1, 8)),
        ({"dp": 16, "zero": 3}, "tpu-v5e-pod", (1, 1, 1, 16)),
        ({"dp": 16, "zero": 3, "hsdp": 4}, "dgx-h100", (2, 1, 2, 4)),
        ({"dp": 16}, "dgx-h100", (2, 1, 8, 1)),
        ({"dp": 4, "tp": 4, "zero": 3}, "dgx-h100", (1, 2, 1, 2)),
    ],
)
def test_axes_of_a_slice_multiply_up_to_its_devices(values, hardware, expected):
    """A node of GPUs is a slice, all of a pod of TPUs is one: what is between slices is on axes of their own."""
    plan = checked("llama-3.1-8b", 16, **values, recompute="full", cluster={"hardware": hardware, "nodes": 2})
    found = YAML(typ="safe", pure=True).load(exported("maxtext", plan)["maxtext.yml"])
    axes = ("dcn_data", "dcn_fsdp", "ici_data", "ici_fsdp")
    assert tuple(found[f"{axis}_parallelism"] for axis in axes) == expected
    tensor = found.get("ici_tensor_parallelism", 1) * found.get("ici_tensor_sequence_parallelism", 1)
    inside = found["ici_data_parallelism"] * found["ici_fsdp_parallelism"] * tensor
    assert inside == (16 if hardware.startswith("tpu") else 8)
    assert found["hardware"] == ("tpu" if hardware.startswith("tpu") else "gpu")


@pytest.mark.parametrize(
    "hardware",
    [
        "gb200-nvl72",
        {"name": "ours", "groups": [{"hardware": "gb200-nvl72"}, {"hardware": "gb300-nvl72"}], "between": {}},
    ],
)
def test_nodes_are_those_of_the_plans_cluster(hardware, tmp_path):
    """Four devices each, in Python and from the command line; eight are those of no cluster."""
    values = {"dp": 8, "zero": 3, "recompute": "full"}
    plan = checked("llama-3.1-8b", 8, **values, cluster={"hardware": hardware, "nodes": 2})
    found = exported("maxtext", plan)
    assert YAML(typ="safe", pure=True).load(found["maxtext.yml"])["dcn_fsdp_parallelism"] == 2
    assert "--nodes=2" in found["slurm.sh"]
    plan.save(tmp_path / "plan.json")
    assert load_source(str(tmp_path / "plan.json"), SourceFlags()).devices_per_node == 4
    alone = exported("maxtext", checked("llama-3.1-8b", 8, **values))
    assert "--nodes=1" in alone["slurm.sh"]


def test_what_runs_on_gpus_is_told_by_the_command_line_too(tmp_path):
    """A cluster that --hardware names makes slices of nodes, and processes that find each other."""
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    facts = {"model": "llama-3.1-8b", "training": {"seq_len": 1024, "global_batch": 64}, "recompute": "full"}
    Plan.model_validate({"dp": 16, "zero": 3, **facts}).save(plan)
    assert cli.run(["export", str(plan), "--to", "maxtext", "-o", str(out)]) == 0
    found = YAML(typ="safe", pure=True).load((out / "maxtext.yml").read_text())
    assert (found.get("hardware"), found["dcn_fsdp_parallelism"]) == (None, 1)
    command = ["export", str(plan), "--to", "maxtext", "-o", str(out), "--hardware", "dgx-h100", "--nodes", "2"]
    assert cli.run(command) == 0
    found = YAML(typ="safe", pure=True).load((out / "maxtext.yml").read_text())
    assert (found["hardware"], found["dcn_fsdp_parallelism"], found["ici_fsdp_parallelism"]) == ("gpu", 2, 8)


def test_every_node_knows_its_rank_and_the_first(tmp_path):
    """What jax.distributed.initialize is told on GPUs, with SLURM's and python's places taken."""
    plan = checked("llama-3.1-8b", 16, dp=16, zero=3, recompute="full", cluster={"hardware": "dgx-h100", "nodes": 2})
    (tmp_path / "slurm.sh").write_text(exported("maxtext", plan)["slurm.sh"])
    stubs = {
        "scontrol": "printf 'first\\nsecond\\n'",
        "srun": 'for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done',
        "python": 'echo "$JAX_COORDINATOR_IP:$JAX_COORDINATOR_PORT $NNODES $NODE_RANK $*"',
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "first,second",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", str(tmp_path / "slurm.sh"), "steps=3"], env=environment, capture_output=True, text=True, check=True
    )
    command = "-m maxtext.trainers.pre_train.train maxtext.yml steps=3"
    assert done.stdout.splitlines() == [f"first:29500 2 {rank} {command}" for rank in (0, 1)]


def test_experts_are_an_axis_and_a_slice_holds_them():
    """Experts share the axis of shards; a slice that cannot hold them, or tensor parallelism over nodes, is refused."""
    plan = checked("mixtral-8x7b", dp=8, ep=4, zero=3, recompute="full")
    found = YAML(typ="safe", pure=True).load(exported("maxtext", plan)["maxtext.yml"])
    assert (found["ici_expert_parallelism"], found["ici_fsdp_parallelism"]) == (4, 2)
    graph, place = load_model("qwen3-30b-a3b"), {"hardware": "dgx-h100", "nodes": 4}
    for values, field in (
        ({"dp": 32, "ep": 8, "zero": 3}, None),
        ({"dp": 32, "ep": 16, "zero": 3}, "ep"),
        ({"dp": 2, "tp": 16}, "tp"),
    ):
        plan = checked("qwen3-30b-a3b", 32, **values, recompute="full", cluster=place)
        reasons = unsupported(plan, graph, TRAINING, "maxtext")
        assert [reason.partition(" = ")[0] for reason in reasons] == ([field] if field else [])


def test_what_it_recomputes_is_named_as_rows_of_its_runs_are():
    """The policy "minimal" is what tables of MaxText's runs are read as."""
    plan = checked("llama-3.1-8b", dp=8, zero=3, micro_batch=8, recompute="modules:core_attn+layernorm")
    assert 'remat_policy: "minimal"' in exported("maxtext", plan)["maxtext.yml"]
    assert set(MODELS) <= set(catalogue())
