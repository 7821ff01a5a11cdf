"""What batch systems beside Slurm are asked for, in Slurm's words."""

import pytest

from simpar.errors import UserError
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
        ("#PBS -l ngpus=4\n#PBS -l ncpus=48", "--nodes 1 --gpus-per-node 4"),
        ("#MSUB -l nodes=2:ppn=8:gpus=4", "--nodes 2 --gpus-per-node 4"),
        ("#BSUB -R 'rusage[ngpus_excl_p=2]'", "--gpus-per-node 2"),
        ("#$ -cwd\n#$ -l h_vmem=16G,gpu=2", "--nodes 1 --gpus-per-node 2"),
        ("#$ -l gpus=4 -pe omp 8", "--nodes 1 --gpus-per-node 4"),
        ("#$ -l gpu=4\n#$ -pe mpi 64", ""),  # slots on hosts whose number is not said
        ("#$ -l gpus=0.25", ""),
        ("#$ -l gpu_type=V100,h_rt=1:0:0", ""),
        ("#PJM -L node=2\n#PJM -L gpu=4", "--nodes 2 --gpus-per-node 4"),
        ("#OAR -l /nodes=2/gpu=4,walltime=1:0:0", "--nodes 2 --gpus-per-node 4"),
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
    """Comments are none; a host that stands there twice has the slots of both lines."""
    assert hosts_of("# all\na slots=8\nb slots = 8\n", "hosts") == {"a": 8, "b": 8}
    assert hosts_of("a:4\nb:8\nc\n", "hosts") == {"a": 4, "b": 8, "c": None}
    assert hosts_of("a\na\nb\nb\n", "hosts") == {"a": 2, "b": 2}  # as a batch system lists them
    for slots in ("0", "1025", "9" * 30):
        with pytest.raises(UserError, match=rf"hosts: a: slots = {slots}: allowed: 1 to 1,024 of a node"):
            hosts_of(f"a slots={slots}", "hosts")
