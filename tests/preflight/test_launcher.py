"""What a launch command starts: nodes, ranks of each, and the variables of the command."""

import pytest

from simpar.preflight.launcher import launch_of

TRAIN = "train.py --tensor-model-parallel-size 1"


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "ranks"),
    [
        (f"torchrun --nproc-per-node 4 {TRAIN}", 1, 4, None),
        (f"torchrun --nnodes 2:2 --nproc_per_node=gpu {TRAIN}", 2, None, None),
        (f"NNODES=2 NPROC_PER_NODE=4 python {TRAIN}", 2, 4, None),
        (f"deepspeed --num_gpus 2 {TRAIN}", 1, 2, None),
        (f"deepspeed --include localhost:0,3 {TRAIN}", 1, 2, None),
        (f"deepspeed --include=worker-0:0,1@worker-1:2,3 {TRAIN}", 2, 2, None),
        (f"deepspeed -i worker-0@worker-1 {TRAIN}", 2, None, None),
        (f"accelerate launch --num_processes 4 {TRAIN}", None, None, 4),
        (f"CUDA_VISIBLE_DEVICES=0 python {TRAIN}", None, 1, None),
        (f"export HIP_VISIBLE_DEVICES=0,1\npython {TRAIN}", None, 2, None),
        (f"#SBATCH --nodes=4\n#SBATCH --gpus-per-node=a100:4\nsrun python {TRAIN}", 4, 4, None),
        (f"torchrun {TRAIN}", 1, 1, None),
        (f"torchrun --nproc-per-node=$(nvidia-smi -L | wc -l) {TRAIN}", 1, None, None),
        (f"#SBATCH -N4 --gpus-per-node=4\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node $GPUS {TRAIN}".replace(
            "$GPUS", "${SLURM_GPUS_PER_NODE}"), 4, 4, None),
        (f"#SBATCH --ntasks=16\n#SBATCH --ntasks-per-node=8\nsrun python {TRAIN}", 2, 8, 16),
        (f"srun -N 1 -n 1 hostname\nsrun -N 4 --ntasks-per-node 8 bash -c 'python {TRAIN}'", 4, 8, None),
        (f"sbatch -N 2 <<EOF\n#!/bin/bash\n#SBATCH --gpus-per-node=8\ntorchrun --nproc-per-node 8 {TRAIN}\nEOF",
         2, 8, None),
        (f"#SBATCH -N 2\n#SBATCH --gres=gpu:h100:4\nsrun torchrun --nnodes 2 {TRAIN}", 2, 1, None),
    ],
)  # fmt: skip
def test_nodes_and_ranks(text: str, nodes: int | None, per_node: int | None, ranks: int | None) -> None:
    """Every way in which a part of a node, or several nodes, are asked for."""
    found = launch_of(text, "job.sh")
    assert (found.target, found.nodes, found.per_node, found.ranks) == ("megatron", nodes, per_node, ranks)


def test_a_command_has_its_own_variables() -> None:
    """Those that the script set by then, and those before its words, which no other command has."""
    text = f"A=1\nB=2 C=3 true\nenv D=4 B=5 torchrun {TRAIN}\nA=6"
    assert launch_of(text, "job.sh").environment == {"A": "1", "B": "5", "D": "4"}


@pytest.mark.parametrize(
    ("text", "note", "is_single"),
    [
        (f"python {TRAIN}", "", True),
        (f"torchrun {TRAIN}", "torchrun starts one process of a node", False),
        (f"torchrun --nproc-per-node ${{GPUS}} {TRAIN}", "taken as all devices of a node", False),
        (f"#SBATCH -N 1 --gpus-per-node=8\nsrun python {TRAIN}", "srun starts one task of a node", False),
        (f"#SBATCH -N 1 --gpus-per-node=8 --ntasks-per-node=8\nsrun python {TRAIN}", "", False),
    ],
)
def test_what_is_taken_for_granted_is_noted(text: str, note: str, is_single: bool) -> None:
    """Processes that nothing counts."""
    found = launch_of(text, "job.sh")
    assert (note in " ".join(found.notes), bool(found.notes), found.is_single) == (True, bool(note), is_single)


def test_a_line_may_go_on_behind_the_end() -> None:
    """A backslash ends the file."""
    assert launch_of(f"torchrun --nnodes 2 {TRAIN} \\\n  --bf16 \\\n", "job.sh").nodes == 2
