"""Variables that launchers, containers and batch systems set for what they start."""

import pytest

from simpar.frameworks.shell_passed import passed_variables
from simpar.preflight.launcher import launch_of

SEGMENTS = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
TRAIN = "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2"


@pytest.mark.parametrize(
    "before",
    [
        "docker run --gpus all -e {} image", "docker run --rm -it --env={} -v /a:/b image", "podman run -e{} image",
        "docker run -e WANDB_API_KEY -e A=1 -e {} nvcr.io/nvidia/pytorch:24.10-py3",
        "apptainer exec --nv --env {} image.sif", "singularity run --env A=1,{} image.sif",
        "enroot start --env {} name",
        "mpirun -np 8 -x {} -x PATH", "mpirun -x A=1 -x {} --bind-to none", "srun --export=ALL,{}",
        "srun --export ALL,{},A=1", "srun -N 2 --export=ALL apptainer exec --env {} image.sif", "env {}", "sudo {}",
    ],
)  # fmt: skip
def test_launchers_and_containers_set_variables(before):
    """By their own flags, one by one or listed, also behind one another."""
    launch = launch_of(f"{before.format(SEGMENTS)} {TRAIN}\n", "job.sh")
    assert launch.environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert "pretrain_gpt.py" in launch.words


@pytest.mark.parametrize("flag", ["-genv", "-env"])
def test_hydra_takes_a_variable_and_its_value_as_two_words(flag):
    """As MPICH's and Intel's ``mpiexec`` do."""
    launch = launch_of(f"mpiexec -n 8 {flag} A 1 python pretrain_gpt.py --num-layers 2\n", "job.sh")
    assert launch.environment["A"] == "1"


@pytest.mark.parametrize(
    "line",
    [
        "#SBATCH --export=ALL,A=1,B=x", "#SBATCH --export ALL,A=1,B=x", "#PBS -v A=1,B=x", "#PBS -V -v A=1,B=x",
        "#$ -v A=1,B=x", '#BSUB -env "all, A=1, B=x"',
    ],
)  # fmt: skip
def test_lines_of_batch_systems_set_variables(line):
    """For what the script starts, and for its own words."""
    launch = launch_of(f"#!/bin/bash\n{line}\n{TRAIN} --seq-length $A\n", "job.sh")
    assert {name: launch.environment.get(name) for name in "AB"} == {"A": "1", "B": "x"}
    assert launch.words[-1] == "1"


def test_the_command_that_submits_has_the_last_word(tmp_path):
    """Over the lines of the script, and what the script sets goes over both."""
    (tmp_path / "job.slurm").write_text(
        f"#!/bin/bash\n#SBATCH --export=ALL,A=1,B=1,C=1\nexport C=3\n{TRAIN} $A $B $C\n"
    )
    launch = launch_of("sbatch --export=ALL,B=2,C=2 job.slurm\n", str(tmp_path / "submit.sh"))
    assert launch.words[-3:] == ("1", "2", "3")


def test_flags_of_what_is_started_are_its_own():
    """An ``-e`` of the script, or of its shell, is no variable."""
    words = ["docker", "run", "-e", "A=1", "image", "bash", "-c", "x", "-e", "B=2"]
    assert passed_variables(words) == {"A": "1"}
    assert passed_variables(["mpirun", "-np", "2", "python", "train.py", "-x", "C=1"]) == {}
    assert passed_variables(["docker", "run", "--rm", "image", "prog", "-e", "B=2"]) == {}
    assert passed_variables(["srun", "--export=ALL,A=1,2,B=3", "torchrun"]) == {"A": "1,2", "B": "3"}
