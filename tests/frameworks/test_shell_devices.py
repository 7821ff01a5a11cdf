"""Programs by which scripts count the devices of their node."""

import pytest

from simpar.frameworks.shell import Script
from simpar.frameworks.shell_devices import devices_shown, note_of_count
from simpar.preflight.launcher import launch_of

TORCH = 'python3 -c "import torch; print(torch.cuda.device_count())"'
COUNTS = (
    "nvidia-smi -L | wc -l", "nvidia-smi --list-gpus 2>/dev/null | wc -l", "nvidia-smi -L | grep -c GPU",
    "nvidia-smi --query-gpu=name --format=csv,noheader | wc -l", "ls /dev/nvidia[0-9]* | wc -l",
    "nvidia-smi --query-gpu=count --format=csv,noheader | head -n 1", TORCH,
    "python -c 'import torch; print(torch.cuda.device_count());'",
)  # fmt: skip
OTHERS = (
    "nvidia-smi", "nvidia-smi -L", "nproc", "ls | wc -l", "nvidia-smi --query-gpu=name --format=csv | wc -l",
    "python3 -c 'import os; print(os.cpu_count())'", "nvidia-smi -L | wc -l; echo 3",
)  # fmt: skip


def printed(command, before=""):
    """The words of a command that a script gives what another one prints."""
    return Script(f"{before}\nrun $(({64} / $({command})))\n", "train.sh").commands[-1][1]


@pytest.mark.parametrize("command", COUNTS)
def test_a_node_shows_the_devices_that_the_hardware_has(command):
    """Where that is known, and a note says so; else only running would tell."""
    assert "$(" in printed(command)
    with devices_shown(4):
        assert (printed(command), note_of_count()) == (
            "16",
            "Programs that count the devices of a node are taken to print 4.",
        )
    assert note_of_count() == ""


@pytest.mark.parametrize("command", OTHERS)
def test_what_counts_something_else_stays_unknown(command):
    """Lines of a heading, cores, files."""
    with devices_shown(4):
        assert printed(command).startswith("$")
        assert note_of_count() == ""


def test_the_batch_system_and_what_a_process_sees_come_first():
    """Directives say the devices of a node; variables what torch sees, though not the driver."""
    with devices_shown(8):
        assert printed(COUNTS[0], "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=2") == "32"
        assert printed(TORCH, "export CUDA_VISIBLE_DEVICES=0,1,2,3") == "16"
        assert printed(COUNTS[0], "export CUDA_VISIBLE_DEVICES=0,1,2,3") == "8"
        assert printed(TORCH, "export CUDA_VISIBLE_DEVICES=$MINE") == "8"


def test_a_launch_says_what_is_taken():
    """The ranks are a number then, and no longer left to the node."""
    text = f"N=$({COUNTS[0]})\ntorchrun --nproc_per_node $N train.py --model_name_or_path a --max_steps 1\n"
    with devices_shown(4):
        launch = launch_of(text, "train.sh")
    assert (launch.per_node, *launch.notes) == (4, "Programs that count the devices of a node are taken to print 4.")
    assert launch_of(text, "train.sh").per_node is None
