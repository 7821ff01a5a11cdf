"""Launchers as they are read, and texts with one option changed."""

import pytest

from simpar.preflight.launcher import launch_of
from simpar.preflight.patch import Edit, shell, toml, tree

MEGATRON = "pretrain_gpt.py --tensor-model-parallel-size 8"


@pytest.mark.parametrize(
    ("text", "target", "world"),
    [
        (f"torchrun --nproc-per-node 8 --nnodes=4 {MEGATRON}", "megatron", 32),
        (f"torchrun --nproc_per_node=8 {MEGATRON}", "megatron", 8),
        (f"python -m torch.distributed.run --nnodes 2 --nproc-per-node 8 {MEGATRON}", "megatron", 16),
        (f"#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\nsrun python {MEGATRON}", "megatron", 32),
        (f"#SBATCH -N 4\nsrun torchrun --nproc-per-node 8 --nnodes $SLURM_NNODES {MEGATRON}", "megatron", 32),
        (f"srun -N 4 --ntasks-per-node=1 torchrun --nproc-per-node 8 {MEGATRON}", "megatron", 32),
        (f"srun -n 4 torchrun --nnodes $N --nproc-per-node 8 {MEGATRON}", "megatron", None),
        (
            f"#SBATCH -N 4 --ntasks-per-node=1 --gpus-per-node=8\nsrun torchrun --nproc_per_node $G {MEGATRON}",
            "megatron",
            32,
        ),
        (f"mpirun -np 64 python {MEGATRON}", "megatron", 64),
        (f"N=3\ntorchrun --nnodes $N --nproc-per-node 8 {MEGATRON}", "megatron", 24),
        (f"torchrun --nnodes $NNODES --nproc-per-node 8 {MEGATRON}", "megatron", None),
        ("deepspeed --num_nodes 2 --num_gpus 8 train.py --deepspeed ds.json", "deepspeed", 16),
        ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", "deepspeed", 8),
        ("deepspeed --hostfile hosts --num_gpus 8 train.py --deepspeed ds.json", "deepspeed", None),
        ("accelerate launch --num_processes 16 --config_file a.yaml train.py", "accelerate", 16),
        ("torchrun --nproc-per-node 8 -m torchtitan.train --job.config_file a.toml", "torchtitan-0.2", 8),
        ("torchrun --nproc-per-node 8 run_train.py --config-file a.yaml", "nanotron", 8),
        ("python train.py --lr 1", None, None),
    ],
)
def test_launchers(text, target, world):
    """What is started, and on how many ranks."""
    found = launch_of(text, "a command")
    assert (found.target, found.world_size) == (target, world)


@pytest.mark.parametrize(
    ("text", "edit", "changed"),
    [
        ("x --tp 8 --bf16", Edit("--tp", "4"), "x --tp 4 --bf16"),
        ("x --tp=8 --bf16", Edit("--tp", "4"), "x --tp=4 --bf16"),
        ('x --tp "8" --bf16', Edit("--tp", "4"), 'x --tp "4" --bf16'),
        ("x --micro_batch 8", Edit("--micro-batch", "4"), "x --micro_batch 4"),
        ("TP=8\nx --tp $TP", Edit("--tp", "4"), "TP=4\nx --tp $TP"),
        ("TP=${TP:-8}\nx --tp ${TP}", Edit("--tp", "4"), "TP=${TP:-4}\nx --tp ${TP}"),
        ("TP=8\nTP=2\nx --tp $TP", Edit("--tp", "4"), None),
        ("# --tp 1\nx --tp 8", Edit("--tp", "4"), "# --tp 1\nx --tp 4"),
        ("x --tp-comm 2 --tp 8", Edit("--tp", "4"), "x --tp-comm 2 --tp 4"),
        ("x --tp 8 --bf16 --lr 1", Edit("--bf16", is_gone=True), "x --tp 8 --lr 1"),
        ("x \\\n  --tp 8 \\\n  --bf16 \\\n  --lr 1", Edit("--tp", is_gone=True), "x \\\n  --bf16 \\\n  --lr 1"),
        ("x --use-a --lr 1", Edit("--use-b"), "x --use-a --use-b --lr 1"),
        ("x --lr 1", Edit("--use-b"), None),
    ],
)
def test_shell(text, edit, changed):
    """A flag's value, through a variable too; a flag that goes, with its line; a new one behind its like."""
    assert shell(text, edit) == changed


def test_toml():
    """Comments stay; keys are of their own section."""
    text = '[a]\nx = 1  # one\n\n[b]\nx = 2\ny = "s"\n'
    assert toml(text, Edit("b.x", "3")) == text.replace("x = 2", "x = 3")
    assert toml(text, Edit("a.x", "3")) == text.replace("x = 1", "x = 3")
    assert toml(text, Edit("a.z", "3")) == text.replace("# one\n", "# one\nz = 3\n")
    assert toml(text, Edit("b.y", is_gone=True)) == text.replace('y = "s"\n', "")
    assert toml(text, Edit("c.y", "3")) is None


def test_yaml_and_json():
    """Values, entries that go and new ones, in blocks and in braces, nested ones too."""
    text = "a:\n  x: 1  # one\n  y: 2\nb: 3\n"
    assert tree(text, Edit("a.x", "4")) == text.replace("x: 1", "x: 4")
    assert tree(text, Edit("a.y", is_gone=True)) == "a:\n  x: 1  # one\nb: 3\n"
    assert tree(text, Edit("a.z", "5")) == "a:\n  x: 1  # one\n  y: 2\n  z: 5\nb: 3\n"
    assert tree(text, Edit("c.d", "5")) == text + "c:\n  d: 5\n"
    code = '{\n  "a": {"x": 1},\n  "b": 2\n}\n'
    assert tree(code, Edit("a.x", "4")) == code.replace("1", "4")
    assert tree(code, Edit("b", is_gone=True)) == '{\n  "a": {"x": 1}\n}\n'
    assert tree(code, Edit("a.y", "true")) == code.replace('{"x": 1}', '{"x": 1, "y": true}')
    assert tree(code, Edit("c.d", "5")) == code.replace('"b": 2', '"b": 2,\n  "c": {"d": 5}')
