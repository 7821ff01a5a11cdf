"""Ranks that are lost: the run goes on from its last checkpoint on what is left, as a search plans it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from simpar import cli
from simpar.runtime.failures import RankFailure
from simpar.runtime.replan import Replanner, replanner_of
from simpar.runtime.request import load_request, make_ready
from simpar.runtime.saved import list_complete

from .conftest import environment

RUN = ["gpt2-laptop", "--model", "tiny-llama", "--seq-len", "32", "--micro-batch", "1", "--threads", "1"]


def replanner(tmp_path, batch, **plan):
    """Of a run of a small model on four ranks of a laptop."""
    values = {"model": "tiny-llama", "training.seq_len": 32, "training.global_batch": batch, "plan.micro_batch": 1}
    request = load_request("gpt2-laptop", values, [f"plan.{key}={value}" for key, value in plan.items()])
    options = {"steps": 4, "folder": str(tmp_path / "run"), "checkpoints": {"folder": str(tmp_path / "saved")}}
    return Replanner(request, options), make_ready(request, 4, 1, options)


def test_what_is_left_has_the_plan_that_a_search_finds(tmp_path):
    """Three ranks of four, on their own devices; what is no layout stays. Then two of these, the first gone as well."""
    said = []
    again, before = replanner(tmp_path, 12, optimizer="sgd", dp=4)
    after = again.after(RankFailure(2, "was ended", lost=(2,)), before, say=said.append)
    plan = after.prepared.plan
    assert after.world_size == plan.world_size == 3
    assert after.job.machine.devices == (0, 1, 3)
    assert (plan.numerics.optimizer, plan.numerics.precision) == ("sgd", before.prepared.plan.numerics.precision)
    assert after.job.training == before.job.training
    assert after.cluster.world_size == 3
    assert said[0].startswith("rank 2: was ended: 3 ranks go on from the beginning, without a checkpoint with ")
    last = again.after(RankFailure(0, "was ended", lost=(0,)), after, say=said.append)
    assert (last.world_size, last.job.machine.devices) == (2, (1, 3))


def test_fewer_ranks_than_are_left_if_that_is_faster(tmp_path):
    """A batch of two on three ranks of a model of which no axis has three parts: two of them."""
    again, before = replanner(tmp_path, 4)
    request = again.request.model_copy(update={"model": {**SHALLOW}})
    after = Replanner(request, again.options).on(3, 1)
    assert after.world_size == 2
    assert before.world_size == 4


SHALLOW = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "name": "shallow",
}  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--on-loss", "replan"], "--on-loss replan: goes on from a checkpoint; allowed: with --checkpoint DIR"),
        (["--on-loss", "replan", "--checkpoint", "a", "--set", "cluster=null"], "replan: a search needs hardware"),
        (["--on-loss", "replan", "--checkpoint", "a", "--max-restarts", "2"], "--on-loss replan with --max-restarts 2"),
        (["--on-loss", "replam"], "--on-loss"),
    ],
)  # fmt: skip
def test_a_run_that_could_not_go_on_is_refused(tmp_path, monkeypatch, capsys, flags, words):
    """One line, exit code 2."""
    monkeypatch.chdir(tmp_path)
    assert cli.run(["run", *RUN, "--global-batch", "8", "--steps", "2", *flags]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert words in said


def test_a_run_restarts_unless_it_says_otherwise(tmp_path):
    """The default, as before."""
    again, _ = replanner(tmp_path, 12)
    assert replanner_of(None, again.request, again.options, "") is None


@pytest.mark.slow
def test_a_killed_rank_of_four_leaves_three_that_go_on(tmp_path):
    """SIGKILL of rank 2: the losses of an undisturbed run, by another layout. Then the same command on two ranks."""
    pytest.importorskip("torch")

    def start(steps, ranks, *more):
        flags = ["--global-batch", "12", "--learning-rate", "1e-3", "--json", "out.json", "--nproc", ranks, *more]
        command = [sys.executable, "-m", "simpar", "run", *RUN, *flags, "--steps", steps]
        given = [str(each) for each in command]
        return subprocess.Popen(given, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)

    saved = ["--checkpoint", "saved", "--checkpoint-every", "4", "--on-loss", "replan", "-o", "out"]
    process, deadline = start(24, 4, *saved), time.monotonic() + 300
    log = tmp_path / "out/log.jsonl"
    while not (list_complete(tmp_path / "saved") and log.exists() and len(log.read_text().splitlines()) > 6):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(int((tmp_path / "out/rank2.pid").read_text()), signal.SIGKILL)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "rank 2: was ended by signal 9 (SIGKILL)" in errors
    report = json.loads((tmp_path / "out.json").read_text())
    (lost,) = report["lost"]
    assert (lost["ranks"], lost["of"], lost["left"], report["ranks"]) == ([2], 4, 3, 3)
    assert report["predicted"]["step_time_s"] > 0
    process = start(30, 2, *saved)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "step-00000024 was written on 3 ranks, 2 are here: 2 ranks go on from step 24 with " in errors
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(30))
    process = start(30, 4, "-o", "undisturbed")
    assert process.wait(timeout=300) == 0
    alone = json.loads((tmp_path / "out.json").read_text())["measured"]["losses"]
    assert [row["loss"] for row in rows] == pytest.approx(alone, abs=1e-5)
