"""What a run takes of a machine: devices that are there and shown, cores shared out."""

import re
from fnmatch import fnmatch

import pytest

from simpar import cli
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.runtime import request
from simpar.runtime.job import Machine, RunJob


class Driver:
    """A /dev with the file of one driver, or none."""

    name = ""

    def __init__(self, _):
        pass

    def glob(self, pattern):
        """What ls finds."""
        return [self.name] if fnmatch(self.name, pattern) else []


@pytest.mark.parametrize(("driver", "count"), [("nvidia0", 3), ("kfd", 3), ("dxg", 3), ("nvidiactl", 0), ("", 0)])
def test_devices_are_those_that_torch_counts(monkeypatch, driver, count):
    """Where a driver's file is, NVIDIA's, AMD's or that of WSL; elsewhere torch is not asked."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(Driver, "name", driver)
    monkeypatch.setattr(request, "Path", Driver)
    assert request.accelerators() == count


def job(**machine):
    """A job that says no more of its machine than this."""
    training = Training(seq_len=8, global_batch=8)
    return RunJob(plan=Plan(dp=4), model="gpt2", training=training, steps=1, folder=".", machine=Machine(**machine))


def test_one_process_for_all_replicas_needs_a_device_for_each(monkeypatch):
    """Two devices are enough for one process, not for the four replicas that it drives."""
    monkeypatch.setattr(request, "accelerators", lambda: 2)
    assert request.on_machine(job(), 1).machine.device == "cuda"
    assert request.on_machine(job(), 1, devices=4).machine.device == "cpu"
    with pytest.raises(UserError, match=r"machine.device = cuda: 4 ranks on this node, 2 CUDA devices"):
        request.on_machine(job(device="cuda"), 1, devices=4)


@pytest.mark.parametrize(
    ("flag", "with_it"),
    [
        (["--validation", "0.1"], "--text or an index; simpar tokenize holds out of other --tokens"),
        (["--loss-on", "all"], "--text; "), (["--token-dtype", "uint32"], "--tokens FILE"),
        (["--eval-batches", "3"], "--eval-every N"), (["--lr-decay", "3"], "--lr-schedule wsd"),
        (["--loss-scale", "8"], "--precision fp16"),
    ],
)  # fmt: skip
def test_a_flag_that_nothing_reads_is_refused(capsys, tmp_path, flag, with_it):
    """One line that says with what it would be."""
    assert (
        cli.run(["run", "gpt2-laptop", "--steps", "1", "--set", "cluster=null", "-o", str(tmp_path / "r"), *flag]) == 2
    )
    said = capsys.readouterr().err
    assert said.startswith(flag[0])
    assert f"nothing reads it; allowed: with {with_it}" in said


def test_servers_take_cores_and_no_devices(monkeypatch):
    """Two ranks have a device each, and a quarter of the cores beside two servers."""
    monkeypatch.setattr(request, "accelerators", lambda: 2)
    monkeypatch.setattr(request, "usable_cores", lambda: 12)
    machine = request.on_machine(job(), 2, servers=2).machine
    assert (machine.device, machine.threads) == ("cuda", 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tokens", "a.bin", "--text", "b.txt"], "--tokens a.bin and --text b.txt: allowed: one of them"),
        (["--nproc", "8"], "of gpt2-laptop: 1 x 4 devices for 8 ranks; .* or --set cluster=null, which"),
        (["--nproc", "8", "--hardware", "laptop-cpu-4"], "laptop-cpu-4: 1 x 4 .* or no --hardware, which predicts"),
        (
            ["--learning-rate", "1e-4", "--min-learning-rate", "1e-3"],
            "--min-learning-rate.* = 0.001: allowed: at most learning_rate = 0.0001",
        ),
        (["--seq-len", "2048"], "seq_len = 2048: gpt2 has 1024 positions; allowed: as many or fewer"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, monkeypatch, capsys, arguments, words):
    """One line with exit code 2, and nothing is written."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["run", "gpt2-laptop", "--steps", "4", *arguments]) == 2
    said = capsys.readouterr().err
    assert re.search(words, said)
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("hardware", "nodes", "ranks", "here", "of"),
    [
        ("laptop-cpu-4", 1, 2, 1, (1, 2)),
        ("laptop-cpu-4", 1, 4, 1, (1, 4)),
        ("laptop-cpu-4", 1, 8, 1, (1, 4)),
        ("dgx-h100", 4, 16, 2, (2, 8)),
        ("dgx-h100", 4, 8, 1, (1, 8)),
        ("dgx-h100", 4, 8, 2, (4, 8)),
        ("dgx-h100", 4, 16, 1, (4, 8)),
    ],
)
def test_fewer_ranks_are_predicted_on_a_part(hardware, nodes, ranks, here, of):
    """Some devices of one node, or whole nodes; what is neither keeps the whole cluster, which is then refused."""
    values = {"model": "gpt2", "training": {"seq_len": 64, "global_batch": 16}, "plan": {}}
    chosen = {"cluster": {"hardware": hardware, "nodes": nodes}}
    asked = request.Request.model_validate({**values, **chosen})
    part = asked.part_of(asked.build_cluster(), ranks, here)
    assert part is not None
    assert (part.nodes, part.profile.devices_per_node) == of
