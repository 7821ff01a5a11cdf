"""Names of environments, packages, queues and images are no programs, and one process is one, whatever starts it."""

import pytest

from simpar.errors import UserError
from simpar.frameworks.named import image_at, names_other, starts_python
from simpar.verbs import check

SFT = "train.py --model_name_or_path gpt2 --per_device_train_batch_size 1 --max_length 512 --bf16 --output_dir o"


@pytest.mark.parametrize(
    ("command", "image"),
    [
        ("docker run --gpus all -it --rm -v a:b -e A=1 --shm-size=8g img/trl accelerate launch", "img/trl"),
        ("sudo podman run -d --name x img python", "img"), ("docker exec -it trl bash", None),
        ("hf jobs run --flavor a100-large --detach -s TOKEN huggingface/trl trl sft", "huggingface/trl"),
        ("hf jobs uv run --flavor t4-small train.py", None), ("torchrun train.py", None), ("docker run --rm", None),
    ],
)  # fmt: skip
def test_the_image_of_a_container(command, image):
    """The first word behind the options, of which some take a value."""
    words = command.split()
    at = image_at(words)
    assert (None if at is None else words[at]) == image


def test_values_of_flags_name_others():
    """What stands behind a flag that names an environment is that."""
    words = ["conda", "run", "-n", "trl", "accelerate", "launch", "--num_processes", "2"]
    assert [words[at] for at in range(len(words)) if names_other(words, at)] == ["trl"]


@pytest.mark.parametrize(
    ("start", "ranks"),
    [
        ("conda run -n trl accelerate launch --num_processes 2", 2), ("conda run -n axolotl python", 1),
        ("uv run --with trl python", 1), ("uv run --with accelerate --with deepspeed torchrun --nproc_per_node 2", 2),
        ("docker run --gpus all -v a:b huggingface/trl accelerate launch --num_processes 2", 2),
        ("srun -N 1 -p deepspeed -J trl torchrun --nproc_per_node 2", 2),
        ("python -m accelerate.commands.launch --num_processes 2", 2),
        ("uv run", 1), ("uv run --with trl", 1), ("pixi run python", 1), ("pdm run python -u", 1), ("ipython", 1),
        ("hf jobs uv run --flavor t4-small --with trl", 1), ("hf jobs run --flavor a10g-large img/trl python", 1),
        ("hf jobs run --flavor a10g-largex4 huggingface/trl accelerate launch", 4),
    ],
)  # fmt: skip
def test_ranks_behind_names(start, ranks):
    """Never all eight devices of a node, because an environment is called like a launcher."""
    assert check(f"{start} {SFT}", hardware="dgx-h100").result.setup.cluster["devices"] == ranks


@pytest.mark.parametrize(
    ("command", "alone"),
    [
        ("python train.py", True), ("python3.11 -u -m llava.train", True), ("./train.py --x", True),
        ("uv run --with trl train.py", True), ("hf jobs uv run --flavor t4 train.py", True), ("python", True),
        ("numactl -N 0 python train.py", True),
        ("ibrun -n 8 python train.py", False),
        ("modal run train.py", False), ("ray job submit train.py", False), ("uv run trl sft", False), ("", False),
    ],
)  # fmt: skip
def test_what_starts_python(command, alone):
    """Python itself, a manager of environments, or the script; not a service that may start several."""
    assert starts_python(command.split()) == alone


@pytest.mark.parametrize(
    "start",
    [
        "tmux new-session -d -s trl '{}'", 'tmux send-keys -t axolotl "{}" C-m',
        "screen -S a -dm bash -c '{}; exec sh'",
        "screen -dmS trl {}", "sky launch -c trl --gpus A100:4 '{}'", 'hf jobs run --flavor l4x4 img bash -c "ls; {}"',
    ],
)  # fmt: skip
def test_what_a_terminal_or_a_service_is_told(start):
    """The text that it is given, with the devices that it asks for; not as a program by its name."""
    command = start.format(f"accelerate launch --num_processes 2 {SFT}")
    checked = check(command, hardware="dgx-h100")
    assert (checked.given.text.target, checked.result.setup.cluster["devices"]) == ("transformers", 2)


def test_devices_of_a_machine():
    """Those that its name counts, where nothing else does."""
    start = f"accelerate launch {SFT}"
    for service, count in (("hf jobs run --flavor a10g-largex2 img", 2), ("hf jobs run --flavor h200 img", 1)):
        assert check(f"{service} {start}", hardware="dgx-h100").result.setup.cluster["devices"] == count
    for told, count in (("accelerate launch", 4), ("python", 1)):
        checked = check(f"sky launch --gpus H100:4 '{told} {SFT}'", hardware="dgx-h100")
        assert checked.result.setup.cluster["devices"] == count
    with pytest.raises(UserError, match="no launch of a framework that is known"):
        check(f"sky launch --num-nodes 2 --gpus H100:4 '{start}'", hardware="dgx-h100")
