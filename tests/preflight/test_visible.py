"""Devices that a command may use: by variables, containers, a launcher's exclusions, Accelerate's config."""

import shlex

import pytest
import yaml

from simpar.errors import UserError
from simpar.preflight.visible import left_out, slice_lister, visible_devices
from simpar.verbs import check

SFT = "sft.py --model_name_or_path gpt2 --per_device_train_batch_size 1 --max_length 512 --packing --bf16"


@pytest.fixture(autouse=True)
def _alone(no_neighbours):
    """Only the launch is simulated."""


def devices(text, **flags):
    """Nodes and devices that a launch starts on eight H100 a node, and what its account says to decide."""
    checked = check(text, hardware="dgx-h100", **flags)
    cluster = checked.result.setup.cluster
    return cluster["nodes"], cluster["devices"], dict(checked.account.deciding)


@pytest.mark.parametrize(
    ("environment", "command", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, "", 2), ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937,GPU-46b12e"}, "", 2),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, "", None), ({"HIP_VISIBLE_DEVICES": "$X"}, "", None), ({}, "", None),
        ({}, "docker run --gpus all image", None), ({}, "docker run --rm --gpus=3 image", 3),
        ({}, "docker run --gpus '\"device=0,2\"' image", 2), ({}, "podman run --gpus device=1 image", 1),
        ({}, "docker run --gpus count=2,capabilities=compute image", 2), ({}, "train --gpus 2", None),
        ({}, "podman run --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 image", 2),
        ({}, "podman run --device nvidia.com/gpu=all image", None),
        ({}, "docker run --gpus all -e A=1 -e NVIDIA_VISIBLE_DEVICES=4,5 image", 2),
        ({}, "docker run --gpus all --env=CUDA_VISIBLE_DEVICES=4 image", 1),
        ({"CUDA_VISIBLE_DEVICES": "0,1,-1,2"}, "", 2), ({"CUDA_VISIBLE_DEVICES": "0-3"}, "", 1),
        ({"CUDA_VISIBLE_DEVICES": "0 1"}, "", 1), ({"CUDA_VISIBLE_DEVICES": "0,"}, "", 1),
        ({"GPU_DEVICE_ORDINAL": "0,1"}, "", 2), ({"HABANA_VISIBLE_MODULES": "0,1,2"}, "", 3),
        ({}, "docker run -e ASCEND_VISIBLE_DEVICES=0-3,7 image", 5),
        ({}, "docker run -e HABANA_VISIBLE_DEVICES=all image", None),
        ({"APPTAINERENV_CUDA_VISIBLE_DEVICES": "0,1"}, "apptainer exec --nv image", 2),
        ({}, "singularity exec --nv --env A=1,CUDA_VISIBLE_DEVICES=3 image", 1),
        ({}, "docker run --gpus ² image", None),
        ({}, "docker run --gpus device=0:0 image", 1), ({"NVIDIA_VISIBLE_DEVICES": ""}, "", None),
        ({}, "docker run --device=/dev/kfd --device=/dev/dri/renderD128 --device /dev/dri/renderD129 image", 2),
    ],
)  # fmt: skip
def test_devices_are_counted(environment, command, count):
    """By a variable before the container's own; all of them, or what only running tells, is no number."""
    assert visible_devices(environment, shlex.split(command)) == count


def test_no_device_is_none():
    """A list of none would train on processors."""
    for listed in ("-1", "", "all", "NoDevFiles", "0,0", "-1,0"):
        with pytest.raises(UserError, match=f"CUDA_VISIBLE_DEVICES={listed}: no device is visible"):
            check(f"CUDA_VISIBLE_DEVICES={listed} python {SFT}", hardware="dgx-h100")


def test_a_device_that_a_node_has_not_is_refused():
    """Its driver would show no device, or fewer."""
    with pytest.raises(
        UserError, match="CUDA_VISIBLE_DEVICES lists device 8: a node of dgx-h100 has 8; allowed: 0 to 7"
    ):
        check(f"CUDA_VISIBLE_DEVICES=7,8 torchrun --nproc_per_node gpu {SFT}", hardware="dgx-h100")
    part = check(f"CUDA_VISIBLE_DEVICES=6,7 torchrun --nproc_per_node gpu {SFT}", hardware="2xH100")
    assert part.result.setup.cluster["devices"] == 2


def test_a_part_of_a_node_is_not_spread_over_nodes_without_a_word():
    """Eight devices, of which a variable shows one of a node, were answered as eight nodes."""
    text = f"CUDA_VISIBLE_DEVICES=0 torchrun --nnodes $N --nproc_per_node gpu {SFT}"
    with pytest.raises(
        UserError, match=r"--gpus 8: .* shows its ranks 1 devices of a node.*allowed: --gpus 1, or --nodes 8"
    ):
        check(text, hardware="dgx-h100", gpus=8)
    whole = check(text.replace("=0", "=0,1,2,3,4,5,6,7"), hardware="dgx-h100", gpus=16)
    assert (whole.result.setup.cluster["nodes"], whole.result.setup.cluster["devices"]) == (2, 16)
    told = check(text, hardware="dgx-h100", nodes=8)
    assert (told.result.setup.cluster["nodes"], told.result.setup.cluster["devices"]) == (8, 8)
    assert "1 of the 8 devices of each of 8 nodes of dgx-h100 are used." in told.notes


@pytest.mark.parametrize(
    ("start", "count"),
    [
        ("docker run --gpus 2 image accelerate launch --multi_gpu", 2),
        ("docker run --gpus all -e NVIDIA_VISIBLE_DEVICES=0,1,2,3 image torchrun --nproc-per-node gpu", 4),
        ("deepspeed --exclude localhost:6,7", 6), ("deepspeed --exclude=localhost:7 --num_nodes 1", 7),
    ],
)  # fmt: skip
def test_a_part_of_a_node_is_started(start, count):
    """Never answered for all eight devices."""
    assert devices(f"{start} {SFT}")[:2] == (1, count)


def test_nodes_without_the_same_number_of_devices():
    """The devices that are left of every host, if these are as many; not all of them."""
    assert left_out(["deepspeed", "--exclude", "w1:0,1@w2:3", "train.py", "-e", "x:1"]) == {"w1": 2, "w2": 1}
    assert left_out(["torchrun", "--exclude", "w1:0", "train.py"]) == {}
    assert devices(f"deepspeed --num_nodes 2 --exclude w1:0,1@w2:3,4 {SFT}")[:2] == (2, 12)
    for hosts in ("w1:0,1@w2:3", "w1:0"):
        with pytest.raises(UserError, match="--exclude leaves nodes with unlike numbers of devices"):
            devices(f"deepspeed --num_nodes 2 --exclude {hosts} {SFT}")
    with pytest.raises(UserError, match="--exclude leaves out 8 of the 8 devices of a node"):
        devices(f"deepspeed --exclude localhost:0,1,2,3,4,5,6,7 {SFT}")


def test_one_process_on_several_devices_or_on_a_slice_is_not_sure():
    """Both are answered for one whole device, and said."""
    nodes, count, deciding = devices(f"CUDA_VISIBLE_DEVICES=0,1 python {SFT}")
    assert (nodes, count, "DataParallel" in deciding["CUDA_VISIBLE_DEVICES"]) == (1, 1, True)
    assert devices(f"CUDA_VISIBLE_DEVICES=1 python {SFT}") == (1, 1, {})
    assert slice_lister({"CUDA_VISIBLE_DEVICES": "MIG-7d2b9f"}) == "CUDA_VISIBLE_DEVICES"
    assert slice_lister({"NVIDIA_VISIBLE_DEVICES": "0:1"}) == "NVIDIA_VISIBLE_DEVICES"
    assert slice_lister({"CUDA_VISIBLE_DEVICES": "0"}) == slice_lister({}) == ""
    assert "a slice of a device" in devices(f"CUDA_VISIBLE_DEVICES=MIG-7d2b9f python {SFT}")[2]["CUDA_VISIBLE_DEVICES"]


def test_a_config_of_accelerate_that_distributes_nothing_starts_one_process(tmp_path):
    """Whatever its number of processes, or that of a flag, says; a switch of the command wins over it."""
    config = tmp_path / "no.yaml"
    config.write_text(yaml.safe_dump({"distributed_type": "NO", "num_machines": 1, "num_processes": 8}))
    start = f"accelerate launch --config_file {config}"
    assert devices(f"{start} {SFT}")[:2] == (1, 1)
    assert devices(f"{start} --num_processes 4 {SFT}")[:2] == (1, 1)
    assert devices(f"{start} --multi_gpu --num_processes 4 {SFT}")[:2] == (1, 4)
    several = tmp_path / "several.yaml"
    several.write_text(yaml.safe_dump({"distributed_type": "MULTI_GPU", "num_machines": 1, "num_processes": 1}))
    own = f"accelerate launch --config_file {several} --num_processes 4 own.py"
    assert devices(own, model="gpt2", seq_len=512, global_batch=4)[:2] == (1, 4)
    assert devices(config, model="gpt2", seq_len=512, global_batch=4)[:2] == (1, 1)
    assert devices(f"{start} own.py", model="gpt2", seq_len=512, global_batch=4)[:2] == (1, 1)
    with pytest.raises(UserError, match="--gpus 8: means 8 ranks on dgx-h100; the command says 1 ranks"):
        devices(f"{start} {SFT}", gpus=8)


def test_python_that_is_told_a_world_is_one_of_its_ranks():
    """As many as it says; a number that only running tells is asked for, and never taken as one."""
    assert devices(f"export WORLD_SIZE=16 RANK=0\npython {SFT}")[:2] == (2, 16)
    assert devices(f"WORLD_SIZE=1 python {SFT}")[:2] == (1, 1)
    untold = f"export WORLD_SIZE=$(expr $SLURM_NTASKS / 1)\npython {SFT}"
    assert devices(untold, nodes=2)[:2] == (2, 16)
    with pytest.raises(UserError, match="does not say how many nodes it starts"):
        devices(untold)
