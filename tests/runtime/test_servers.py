"""Parameter servers on real ranks: the numbers of one process, staleness as it was, and an end whatever happens."""

import json

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.runtime.prepare import prepare
from simpar.runtime.summary import count_staleness, summarise_replicas
from tests.runtime.test_run import TWO, alive

SHARP = 1e-11
FP32 = {"precision": "fp32"}
CASES = [
    {"dp": 2, "sync": "bsp", "servers": 2, "slow": 0.02, **FP32},
    {"dp": 2, "sync": "bsp", "servers": 1, "model": "gpt2", "optimizer": "sgd_momentum", **FP32},
    {"dp": 2, "sync": "asp", "servers": 1, "slow": 0.3, "model": "window", **FP32},
    {"dp": 2, "sync": "ssp", "servers": 1, "staleness": 1, "slow": 0.3, **FP32},
]


@pytest.mark.slow
def test_servers_hold_what_one_process_has(run_servers):
    """Synchronous servers train as one process; asynchronous ones as one that applies their pushes in their order."""
    results = run_servers(CASES, 4)
    assert [result for result in results if result["difference"] > SHARP] == []
    bsp, momentum, asp, ssp = results
    for each in (bsp, momentum):
        assert each["updates"] == 5
        assert each["replicas_apart"] == 0
    assert asp["updates"] == 10
    assert asp["ahead"] > 1 >= ssp["ahead"]  # nobody waits for the slow replica, or one step behind it
    assert asp["stale"] > 0


@pytest.mark.slow
def test_a_run_reports_measured_beside_simulated_staleness(forked, tmp_path):
    """Two replicas, a server, asynchronous: losses of both, and both distributions."""
    flags = ["--sync", "asp", "--set", "plan.servers=1", "--json", "out.json", "-o", "here"]
    done = forked("run", *TWO[:-2], "--set", "cluster=null", "--steps", 6, *flags)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["strategy"] == "servers"
    found = report["measured"]["staleness"]
    assert sum(found["shares"]) == pytest.approx(1)
    assert 0 <= found["mean"] <= found["maximum"]
    assert len(report["measured"]["losses"]) == 6
    assert len(report["measured"]["step_time_s_by_replica"]) == 2
    assert alive(tmp_path / "here") == []


def test_a_replica_that_dies_ends_the_servers(forked, tmp_path):
    """Exit code 1, the reason, nobody left."""
    (tmp_path / "odd.py").write_text(
        "import os\nfrom torch import nn\n\nclass Odd(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.table = nn.Embedding(9, 9)\n"
        "    def forward(self, tokens):\n"
        "        if os.environ['RANK'] == '1':\n            raise RuntimeError('rank one is odd')\n"
        "        return self.table(tokens)\n"
    )
    flags = ["--model", "odd:Odd", "--set", "plan.recompute=none", "-o", "out", "--timeout", 120]
    done = forked("run", *TWO, "--steps", 3, "--sync", "asp", *flags)
    assert done.returncode == 1
    assert "rank one is odd" in done.stderr
    assert alive(tmp_path / "out") == []


def test_updates_count_from_the_warm_up_until_the_first_replica_ends():
    """Replica 0 ends with its third step; what comes later meets a quiet server."""
    updates = [(0, 0, 0), (1, 0, 1), (0, 1, 1), (0, 2, 0), (1, 1, 2), (1, 2, 0)]
    assert count_staleness(updates, 2, 3, 1) == [1, 0]


def test_replicas_at_their_own_pace_have_the_rate_of_all_together():
    """Steps of 1 s and 3 s: 4/3 local steps a second, so one takes 1.5 s in the mean of two replicas."""
    ranks = [
        {"rank": r, "steps": [{"loss": 1.0 + r, "step_time_s": t, "phases_s": {}}] * 3,
         "peak_memory_bytes": 1.0, "peak_reserved_bytes": 1.0, "beside_allocator_bytes": 0.0}
        for r, t in ((0, 1.0), (1, 3.0))
    ]  # fmt: skip
    servers = [{"rank": 2, "server": 0, "staleness": [0, 2], "most_ahead": 1}]
    found = summarise_replicas([*ranks, *servers], Training(seq_len=4, global_batch=6), warmup=1)
    assert found["step_time_s"] == pytest.approx(1.5)
    assert found["tokens_per_s"] == pytest.approx(16)
    assert found["losses"] == [1.5, 1.5, 1.5]
    assert found["staleness"]["mean"] == 1
    assert found["staleness"]["clock_gap"] == 1


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"dp": 2, "tp": 2, "sync": "asp"}, "plan.tp = 2 with servers = 1: .*is one rank; allowed: 1"),
        ({"dp": 4, "zero": 3, "hsdp": 2, "servers": 2}, "states are on the servers; allowed: 0"),
    ],
)
def test_replicas_of_servers_are_single_ranks(plan, words):
    """Anything that splits a replica is refused."""
    with pytest.raises(UserError, match=words):
        prepare(Plan(**plan), load_model("gpt2"), Training(seq_len=16, global_batch=8), 4)
