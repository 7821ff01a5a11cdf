"""``simpar run`` as a user types it: a report at the end, one clear line otherwise, and nobody left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simpar import cli
from simpar.diagnosis.answer import explain
from simpar.errors import UserError
from simpar.runtime import launch as launching
from simpar.runtime.job import Machine
from simpar.runtime.traces import MEASURED_PID
from tests.runtime.conftest import LIMIT_S, environment
from tests.trace_rules import check_trace

TINY = ["gpt2-laptop", "--model", "tiny-llama", "--seq-len", "32", "--global-batch", "8", "--micro-batch", "2"]
SMALL = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
    "num_attention_heads": 4,
}  # fmt: skip
TWO = [*TINY, "--nproc", "2", "--set", "cluster=null"]


def alive(folder: Path) -> list[int]:
    """Ranks of a run that are still processes."""
    pids = [int(path.read_text()) for path in folder.glob("rank*.pid")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_run_reports_measured_beside_predicted(forked, tmp_path):
    """Four ranks train; table, JSON, log and report agree, and one trace shows the step twice."""
    (tmp_path / "small.json").write_text(json.dumps(SMALL))
    flags = ["--json", "out.json", "-o", "here", "--learning-rate", "1e-3", "--trace", "both.json"]
    done = forked("run", *TINY, "--model", "small.json", "--steps", 4, *flags)
    assert done.returncode == 0, done.stderr
    for word in ("predicted", "measured", "step time", "tokens/s", "MFU", "peak memory"):
        assert word in done.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    assert report == json.loads((tmp_path / "here/report.json").read_text())
    assert 0 <= report["cores_used_by_others"] <= 1
    found, predicted = report["measured"], report["predicted"]
    assert report["ranks"] == 4
    assert found["steps_measured"] == 2
    assert found["tokens_per_s"] == pytest.approx(8 * 32 / found["step_time_s"])
    error = 100 * (predicted["step_time_s"] / found["step_time_s"] - 1)
    assert report["error_percent"]["step_time_s"] == pytest.approx(error)
    log = [json.loads(line) for line in (tmp_path / "here/log.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in log] == found["losses"]
    assert found["losses"][-1] < found["losses"][0]
    assert {"forward", "backward", "optimizer", "waiting"} <= set(found["phases_s_by_rank"][3])
    assert len(found["peak_memory_bytes_by_rank"]) == 4
    assert alive(tmp_path / "here") == []
    both = json.loads((tmp_path / "both.json").read_text())
    assert check_trace(both) == []
    own = explain(tmp_path / "here/report.json").log
    assert (own.step_time_s(), own.phases_s) == (found["step_time_s"], tuple(found["phases_s_by_rank"]))
    assert explain(tmp_path / "here/log.jsonl").log.times_s == tuple(row["step_time_s"] for row in log[1:])
    named = [e["args"]["name"] for e in both["traceEvents"] if e.get("name") == "process_name"]
    assert [name for name in named if name.startswith("measured: rank")] == [f"measured: rank {r}" for r in range(4)]
    assert any(name.startswith("simulated: ") for name in named)
    spans = {e["name"] for e in both["traceEvents"] if e["ph"] == "X" and e["pid"] >= MEASURED_PID}
    assert {"forward", "backward", "optimizer", "aten::mm"} <= spans


@pytest.mark.slow
def test_one_process_that_drives_all_replicas_trains_as_ddp_does(forked, tmp_path):
    """torch.nn.DataParallel's way, replicas in turn in one process, gives the losses of two processes under DDP."""
    losses, held_out = [], []
    for kind in ("single_process", "ddp"):
        flags = ["--set", f"plan.kind={kind}", "--threads", 1, "--learning-rate", "1e-3", "--eval-every", "3"]
        done = forked("run", *TWO, "--steps", 4, *flags, "--json", f"{kind}.json", "-o", kind)
        assert done.returncode == 0, done.stderr
        measured = json.loads((tmp_path / f"{kind}.json").read_text())["measured"]
        losses.append(measured["losses"])
        held_out.append(measured["evaluations"])
        assert "held-out loss" in done.stdout
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    assert list(held_out[0]) == ["3", "4"]
    assert held_out[0] == pytest.approx(held_out[1], abs=2e-5)
    assert held_out[0]["4"] < held_out[0]["3"] < losses[0][0]
    assert losses[0][-1] < losses[0][0]
    assert len(list((tmp_path / "single_process").glob("rank*.json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.json", "--steps", "2"], "nowhere.json: cannot be read"),
        ([*TWO, "--steps", "2", "--checkpoint", "/dev/null"], "--checkpoint /dev/null: is a file; allowed: a folder"),
        ([*TWO, "--steps", "2", "--tp", "3"], "plan: tp x cp x pp = 3 x 1 x 1 = 3 does not divide the 2 devices"),
        ([*TWO, "--steps", "2", "--dp", "4"], "plan.dp = 4: .*leaves 2; allowed: 2"),
        (
            [*TINY, "--steps", "2", "--nproc", "8", "--micro-batch", "1"],
            "laptop-cpu-4 of gpt2-laptop: 1 x 4 devices for 8 ranks; allowed",
        ),
        ([*TWO, "--steps", "2", "--set", "plan.version=9"], "plan.version = .*plans of another version"),
        ([*TWO, "--steps", "2", "--device", "cuda"], "machine.device = cuda: .*CUDA"),
        ([*TWO, "--steps", "2", "--tokens", "none.bin"], "none.bin: cannot be read"),
        ([*TWO, "--steps", "2", "--precision", "mxfp8"], "plan.precision = mxfp8"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(monkeypatch, tmp_path, capsys, arguments, words):
    """What is wrong, where, and what is allowed: on standard error, in one line, without a traceback."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(["run", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    assert re.search(words, said), said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc", "0"], "--nproc 0: allowed: 1 or more"),
        (["--timeout", "0"], "machine.timeout_s = 0.0: "),
        (["--learning-rate", "-1"], "learning.learning_rate = -1.0: "),
        (["--nnodes", "0"], "--nnodes 0: allowed: 1 or more"),
        (["--node-rank", "1"], "--node-rank 1 of 1 nodes: allowed: 0 to 0"),
        (["--nnodes", "2"], "--rendezvous None: 2 nodes meet at a port of one; allowed: HOST:PORT"),
        (["--nnodes", "2", "--rendezvous", "here"], "--rendezvous here: .*HOST:PORT"),
        (["--max-restarts", "-1"], "--max-restarts -1: allowed: 0 or more"),
        (["--sync", "asp", "--checkpoint", "saved"], "--checkpoint with plan.sync = asp: .*no checkpoints"),
        (["--sync", "asp", "--tp", "2", "--dp", "1"], "plan.sync = asp: one replica"),
    ],
)
def test_flags_out_of_range_are_refused_before_anything_starts(monkeypatch, tmp_path, capsys, arguments, words):
    """One line that names the flag or field; no worker, no folder."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(["run", *TWO, "--steps", "2", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert re.search(words, said), said
    assert len(said.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_checkpoints_that_do_not_fit_are_said_in_one_line(simpar_run, tmp_path):
    """One of another model, then one whose bytes have changed: exit code 2, nobody left."""
    one = [*TINY, "--nproc", 1, "--set", "cluster=null", "--checkpoint", "saved", "-o", "out"]
    assert simpar_run(*one, "--steps", 1).returncode == 0
    (tmp_path / "other.json").write_text(json.dumps(SMALL))
    other = simpar_run(*one, "--steps", 2, "--model", "other.json")
    data = next((tmp_path / "saved/step-00000001").glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    corrupt = simpar_run(*one, "--steps", 2)
    for done, words in (
        (other, "is a checkpoint of another model: "),
        (corrupt, ": is corrupt; remove the checkpoint"),
    ):
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert alive(tmp_path / "out") == []


def test_files_do_not_get_to_run_code(monkeypatch, tmp_path, capsys):
    """A plan that names a module:function is refused unless the command line says the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').write('x')\ndef build():\n    pass\n")
    plan = {"version": "1", "model": "evil:build", "training": {"seq_len": 32, "global_batch": 2}, "mesh": {"dp": 1}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert cli.run(["run", "plan.json", "--steps", "1"]) == 2
    assert "pass --model evil:build" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_missing_torch_is_said_in_one_line(monkeypatch, capsys):
    """Without the extra, the command says how to install it."""
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda _: None)
    assert cli.run(["run", *TWO, "--steps", "1"]) == 2
    assert "pip install '.[torch]'" in capsys.readouterr().err


def test_a_port_in_use_is_said_in_one_line(monkeypatch, tmp_path, capsys):
    """The port is named, and nothing is started."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.run(["run", *TWO, "--steps", "1", "--port", str(port)]) == 2
    assert f"--port {port}" in capsys.readouterr().err


ODD = """
import os
from torch import nn

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 9)
    def forward(self, tokens):
        if os.environ["RANK"] == "1":
            raise RuntimeError("rank one is odd")
        return self.table(tokens)
"""
FAILS = ["--steps", 2, "--model", "odd:Odd", "--set", "plan.recompute=none", "-o", "out"]


def assert_failed(done, folder: Path) -> None:
    """A model's code failed on one rank: exit code 1, the reason, and no process left."""
    assert done.returncode == 1
    assert "rank one is odd" in done.stderr
    assert "running the code of odd:Odd" in done.stderr
    assert alive(folder) == []


def test_a_failing_rank_is_the_failure_of_the_run(forked, tmp_path):
    """A model whose code fails on one rank: exit code 1, the reason, and no process left."""
    (tmp_path / "odd.py").write_text(ODD)
    assert_failed(forked("run", *TWO, *FAILS), tmp_path / "out")


@pytest.mark.slow
def test_a_failing_rank_ends_all_of_them(simpar_run, tmp_path):
    """The same where torchrun starts the ranks and ends those that are left."""
    (tmp_path / "odd.py").write_text(ODD)
    started = time.monotonic()
    assert_failed(simpar_run(*TWO, *FAILS), tmp_path / "out")
    assert time.monotonic() - started < 300


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (launching.NodeRendezvous(), {"nnodes": "1", "local_addr": "127.0.0.1", "node_rank": 0}),
        (
            launching.NodeRendezvous(2, 1, "there:29500"),
            {"nnodes": "2", "rdzv_endpoint": "there:29500", "node_rank": 1},
        ),
    ],
)
def test_ranks_are_started_in_words_of_torchrun(tmp_path, nodes, said):
    """Torch's own parser reads how many ranks of which module, where they meet and where their logs go."""
    from torch.distributed.run import get_args_parser

    workers = launching.RankLauncher("simpar.runtime.worker", tmp_path / "job.json", tmp_path, Machine())
    start, words = (command := launching.torchrun(workers, 3, nodes, 2))[:3], command[3:]
    found = vars(get_args_parser().parse_args(words))
    assert start == [sys.executable, "-m", "torch.distributed.run"]
    assert {key: found[key] for key in said} == said
    assert (found["nproc_per_node"], found["max_restarts"], found["log_dir"]) == ("3", 2, str(tmp_path / "logs"))
    assert (found["module"], found["training_script"]) == (True, "simpar.runtime.worker")
    assert found["training_script_args"] == [str(tmp_path / "job.json")]


@pytest.mark.slow
def test_stopping_the_command_stops_the_ranks(tmp_path):
    """However the launcher ends, its workers end with it."""
    import signal
    import subprocess
    import sys

    from tests.runtime.conftest import environment

    command = [sys.executable, "-m", "simpar", "run", *TWO, "--steps", "100000", "-o", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not (tmp_path / "out/log.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert len(alive(tmp_path / "out")) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while alive(tmp_path / "out") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert alive(tmp_path / "out") == []


@pytest.mark.slow
def test_a_killed_rank_is_named(tmp_path):
    """SIGKILL without checkpoints: rank, stage, signal and step in one line, and not the rank that lost its peer."""
    command = [sys.executable, "-m", "simpar", "run", *TWO, "--pp", "2", "--steps", "100000", "-o", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    log, deadline = tmp_path / "out/log.jsonl", time.monotonic() + LIMIT_S
    while not log.exists() or len(log.read_text().splitlines()) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(int((tmp_path / "out/rank1.pid").read_text()), signal.SIGKILL)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert re.match(r"rank 1 \(stage 1 of 2\): was ended by signal 9 \(SIGKILL\) after \d+ steps: ", said), said
    assert said.count("\n") == 1
    assert alive(tmp_path / "out") == []


def test_a_torch_that_is_too_old_is_refused(monkeypatch):
    """The version found and the one needed are named."""
    from importlib import metadata

    monkeypatch.setattr(metadata, "version", lambda _: "2.4.1+cpu")
    with pytest.raises(UserError, match=r"torch 2.4.1\+cpu: allowed: 2.11 or newer"):
        launching.require_torch()


def heard():
    """Let Ctrl-C end a command even where these tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_an_interrupted_run_says_what_was_done_and_goes_on(simpar_run, tmp_path):
    """Ctrl-C: exit code 130, steps and losses printed and written; the same command goes on, its log whole."""
    flags = [*TINY, "--nproc", "1", "--set", "cluster=null", "-o", "here", "--checkpoint", "ck", "--checkpoint-every"]
    command = [sys.executable, "-m", "simpar", "run", *flags, "2", "--lr-schedule", "wsd", "--lr-steps", "900"]
    process = subprocess.Popen(
        [*command, "--steps", "900"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=heard,
    )  # fmt: skip
    log = tmp_path / "here/log.jsonl"
    deadline = time.monotonic() + LIMIT_S
    while not log.exists() or len(log.read_text().splitlines()) < 5:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    report = json.loads((tmp_path / "here/report.json").read_text())
    done = report["steps_done"]
    assert report["interrupted"]
    assert done >= 5
    assert f"interrupted after {done} of 900 steps" in said
    assert f"the same command goes on from {report['checkpoint']}" in said
    assert alive(tmp_path / "here") == []
    before = [json.loads(line) for line in log.read_text().splitlines()]
    again = simpar_run(*flags, "2", "--lr-schedule", "wsd", "--lr-steps", "900", "--steps", str(done + 2))
    assert again.returncode == 0, again.stderr
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(done + 2))
    kept = int(report["checkpoint"].rsplit("-", 1)[1])
    assert rows[:kept] == before[:kept]
    assert [row["loss"] for row in rows[kept:done]] == [row["loss"] for row in before[kept:done]]
    assert {row["learning_rate"] for row in rows} == {1e-4}


@pytest.mark.slow
def test_nodes_with_folders_of_their_own_report_all_ranks(tmp_path):
    """The first node's report has what ranks of the second one measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [*TINY, "--nproc", "1", "--set", "cluster=null", "--nnodes", "2", "--rendezvous", f"127.0.0.1:{port}"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "simpar", "run", *flags, "--node-rank", str(node), "--steps", "3", "-o", f"n{node}"],
            cwd=tmp_path, env=environment(),
        )
        for node in range(2)
    ]  # fmt: skip
    assert [node.wait(LIMIT_S) for node in nodes] == [0, 0]
    report = json.loads((tmp_path / "n0/report.json").read_text())
    assert len(report["measured"]["peak_memory_bytes_by_rank"]) == report["ranks"] == 2
    assert len(report["measured"]["phases_s_by_rank"]) == 2
