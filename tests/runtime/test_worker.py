"""What ranks of several nodes leave for each other's launchers."""

import json
import os
import re
import subprocess
import sys
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from simpar.calibrate.request import quick  # noqa: E402
from simpar.errors import UserError  # noqa: E402
from simpar.plan.plan import Plan  # noqa: E402
from simpar.runtime import worker  # noqa: E402
from simpar.runtime.job import Machine, RunJob, WeightedPath  # noqa: E402


@pytest.mark.parametrize(("rank", "local", "left"), [(0, 0, [2, 3]), (1, 1, []), (2, 0, [0, 1]), (3, 1, [])])
def test_every_node_gets_what_the_others_measured(tmp_path, monkeypatch, rank, local, left):
    """Two nodes of two ranks: the first rank of each writes those of the other, whichever node has rank 0."""
    monkeypatch.setenv("LOCAL_RANK", str(local))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)

    def gather(every, found):
        assert found == {"rank": rank}
        every[:] = [{"rank": other} for other in range(4)]

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    worker._bring_home({"rank": rank}, tmp_path)
    found = {path.name: json.loads(path.read_text())["rank"] for path in tmp_path.iterdir()}
    assert found == {f"rank{other}.json": other for other in left}


def job(folder, **plan):
    """A job of a shipped model on one node, with some keys of its plan."""
    training = {"global_batch": 8, "seq_len": 32}
    return RunJob(plan=Plan().with_values(**plan), model="tiny-llama", training=training, steps=3, folder=folder)


@pytest.mark.parametrize(
    ("plan", "weights", "words"),
    [
        ({}, (), None),
        ({}, (0.7, 0.3), "data.blend: [] on the node of rank 0, [0.7, 0.3] on that of rank 1; allowed: the same"),
        (
            {"zero": 3},
            (),
            "plan.data_parallel.zero: 0 on the node of rank 0, 3 on that of rank 1; allowed: the same command",
        ),
    ],
)
def test_nodes_with_unlike_commands_are_told_the_first_difference(monkeypatch, plan, weights, words):
    """Every rank compares what all nodes were told to train; folders of their own do not count."""

    def gather(every, here):
        there = job("there", **plan)
        blend = tuple(WeightedPath(path=f"there/{weight}", weight=weight) for weight in weights)
        data = there.data.model_copy(update={"blend": blend})
        every[:] = [here, worker.agreed(there.model_copy(update={"data": data}))]

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    if words is None:
        worker._agree(job("here"))
    else:
        with pytest.raises(UserError, match=re.escape(words)):
            worker._agree(job("here"))


ABORTING = "import atexit, os, runpy; atexit.register(os.abort); runpy.run_module('{}', run_name='__main__')"
"""A process that runs a module and aborts if its interpreter is finalized, as now and then beside gloo's threads."""


@pytest.mark.parametrize(
    ("module", "handed"),
    [
        pytest.param("simpar.runtime.worker", job, id="run"),
        pytest.param("simpar.calibrate.worker", partial(quick, 2, Machine()), id="calibrate", marks=pytest.mark.slow),
    ],
)
def test_a_rank_ends_before_its_interpreter_is_finalized(tmp_path, module, handed):
    """So that an abort there does not decide its exit code: here that of a job that has failed on another rank."""
    path = handed(str(tmp_path)).save()
    (tmp_path / "failed1.json").write_text(json.dumps({"kind": "user"}))
    command = [sys.executable, "-c", ABORTING.format(module), str(path)]
    done = subprocess.run(command, env={**os.environ, "RANK": "0"}, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (worker.BAD_INPUT, b"")


def test_what_a_rank_has_said_is_written_before_it_ends():
    """Its output, when it goes to a file, is kept back until then."""
    text = "from simpar.runtime.worker import leave; print(1); leave(3)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (3, b"1\n")


@pytest.mark.parametrize(
    ("message", "waits"),
    [("Connection closed by peer [127.0.0.1]:4321", [worker.BEHIND_PEERS_S]), ("shapes differ", [])],
)
def test_a_rank_that_lost_a_peer_ends_behind_it(tmp_path, monkeypatch, message, waits):
    """It has left its reason before it waits; a rank that fails by itself does not wait."""
    monkeypatch.setenv("RANK", "1")
    slept = []

    def sleep(seconds):
        assert message in json.loads((tmp_path / "failed1.json").read_text())["message"]
        slept.append(seconds)

    monkeypatch.setattr(worker.time, "sleep", sleep)

    def work():
        raise RuntimeError(message)

    assert worker.serve(tmp_path, work) == worker.FAILURE_EXIT_CODE
    assert slept == waits
