"""What a launch runs on: ranks and devices, and flags that contradict the text."""

import pytest
import yaml

from simpar.errors import UserError
from simpar.frameworks.alike import readers_alike
from simpar.preflight.given import given_text
from simpar.verbs import check

NEMO = {
    "trainer": {"devices": 8, "num_nodes": 1, "precision": "bf16"},
    "model": {
        "mcore_gpt": True, "micro_batch_size": 1, "global_batch_size": 32, "tensor_model_parallel_size": 2,
        "encoder_seq_length": 512, "max_position_embeddings": 512, "num_layers": 2, "hidden_size": 512,
        "num_attention_heads": 8, "optim": {"name": "distributed_fused_adam"},
    },
}  # fmt: skip
TRAINS = "run_clm.py --model_name_or_path gpt2 --per_device_train_batch_size 1 --block_size 512 --bf16"


def test_ranks_on_cores_are_not_taken_for_devices():
    """A trn1.32xlarge has 16 devices of 2 cores; 32 ranks of a node were answered as two nodes."""
    with pytest.raises(UserError, match="32 ranks of a node are cores of trainium1: a node has 16 devices of 2 cores"):
        check(f"torchrun --nproc_per_node=32 {TRAINS}", hardware="trn1.32xlarge", model="gpt2")
    whole = check(f"torchrun --nproc_per_node=16 {TRAINS}", hardware="trn1.32xlarge", model="gpt2")
    cluster = whole.result.setup.cluster
    assert (cluster["nodes"], cluster["devices"]) == (1, 16)
    assert any("on each of the 2 cores of a device" in note for note in whole.notes)


def test_a_file_with_another_number_of_nodes_says_how_to_lay_one_over_it(tmp_path):
    """NeMo 1's commands take values over their config; what the line says is read."""
    path = tmp_path / "gpt.yaml"
    path.write_text(yaml.safe_dump(NEMO))
    with pytest.raises(UserError, match=r"says 8 ranks; allowed: what the text says.*trainer\.num_nodes=N") as error:
        check(path, hardware="dgx-h100", nodes=2, model="gpt2")
    command = str(error.value).partition("simpar check -- ")[2].replace("=N", "=2")
    assert given_text(command, "the command").found.plan.world_size == 16


def test_values_over_a_recipe_of_bridge_say_what_they_are():
    """With the words that they are behind a recipe; a file of other sections is none."""
    data = {"model": {"tensor_model_parallel_size": 2}, "train": {"train_iters": 5}, "logger": {"log_interval": 1}}
    with pytest.raises(UserError, match="values over a recipe of Megatron-Bridge, which it does not name") as error:
        given_text(yaml.safe_dump(data), "over.yaml", suffix=".yaml")
    assert "--recipe NAME train.train_iters=5 model.tensor_model_parallel_size=2 ..." in str(error.value)
    with pytest.raises(UserError, match="no config that is known here"):
        given_text(yaml.safe_dump({**data, "agent": {}}), "over.yaml", suffix=".yaml")


def test_the_readers_nearest_to_a_text_are_named():
    """By its words; a text without any of theirs names none, and the line where all of them are listed."""
    assert readers_alike("python x.py --deepspeed ds.json") == ["deepspeed"]
    assert readers_alike("hello: world") == []
    with pytest.raises(UserError, match="those of deepspeed, which have words of it, or others of simpar list readers"):
        given_text("python x.py --deepspeed", "job.sh")
    with pytest.raises(UserError, match="allowed: those of simpar list readers, or --from and one of them"):
        given_text("python x.py", "job.sh")


@pytest.mark.parametrize(
    ("start", "nodes", "devices"),
    [
        ("composer -n 4", 1, 4),
        ("composer --nproc 8 --world_size 16 --node_rank 0", None, 16),
        ("srun -N 2 composer -n 4 --world_size 8", 2, 8),
        ("composer", 1, 8),
        ("fabric run --devices 2 --strategy fsdp", 1, 2),
        ("fabric run --devices=4 --num-nodes 2", 2, 8),
        ("lightning run model --accelerator=cuda --devices=2", 1, 2),
        ("python -m accelerate.commands.launch --num_processes 2", None, 2),
        ("python -m deepspeed.launcher.runner --num_gpus 2", 1, 2),
        ("ds --num_gpus=4", 1, 4),
        ("conda run -n lightning torchrun --nnodes 2 --nproc-per-node=2", 2, 4),
    ],
)
def test_a_part_of_a_node_by_every_launcher(start, nodes, devices):
    """Also where ``--nodes 1`` is given, which is never taken for all devices of it."""
    found = given_text(f"{start} {TRAINS}", "the command")
    launch = found.launch
    assert (launch.nodes, launch.world_size or launch.per_node or 8) == (nodes, devices)
    assert found.found.plan.mesh.dp is None
    if start in ("composer -n 4", "python -m accelerate.commands.launch --num_processes 2"):
        whole = check(f"{start} {TRAINS}", hardware="dgx-h100", nodes=1)
        assert (whole.result.setup.cluster["nodes"], whole.result.setup.cluster["devices"]) == (1, devices)
    if start.startswith("srun"):
        alone = given_text(f"srun -N 2 composer -n 4 {TRAINS}", "the command").launch.gaps
        assert alone == {"--world_size": "composer is not told it: on each of 2 nodes it starts a job of its own"}
