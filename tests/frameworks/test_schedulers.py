"""What batch systems beside Slurm are asked for, in Slurm's words."""

import pytest

from simpar.frameworks.schedulers import directives, hosts_of, ranks_of_jsrun


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("#PBS -l select=4:ngpus=8:mpiprocs=8", "--nodes 4 --gpus-per-node 8 --ntasks-per-node 8"),
        ("#PBS -l walltime=1:00:00,select=2:ngpus=4", "--nodes 2 --gpus-per-node 4"),
        ("#PBS -lselect=1:ngpus=4+1:ngpus=2", "--nodes 2"),
        ("#PBS -l nodes=node1", ""),
        ("#BSUB -nnodes 3\n#BSUB -gpu 'num=6/task'", "--nodes 3"),
        ("#BSUB -n 64", ""),
        ("#flux: -N2 -n 16", "--nodes 2 --ntasks 16"),
        ("echo\n#PBS -l select=4", ""),
        ("#SBATCH -N 4", ""),
    ],
)
def test_sizes_of_a_job(lines, expected):
    """Chunks of equal nodes, hosts and their devices; what stands behind a command is none."""
    assert directives(f"#!/bin/bash\n{lines}\n") == expected.split()


@pytest.mark.parametrize(("words", "ranks"), [("-n 6 -a 4", 24), ("--nrs 6", 6), ("-n $N -a 4", None), ("-g 1", None)])
def test_ranks_of_jsrun(words, ranks):
    """Sets of resources, times the tasks of each."""
    assert ranks_of_jsrun(words.split()) == ranks


def test_hosts_of_a_file():
    """Comments are none; hosts of unequal slots have no common number."""
    assert hosts_of("# all\na slots=8\nb slots = 8\n") == (2, 8)
    assert hosts_of("a:4\nb:8\n") == (2, None)
