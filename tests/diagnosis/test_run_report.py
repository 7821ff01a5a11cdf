"""What ``simpar run`` leaves, read again: the report of all ranks, one rank's file, rank 0's rows."""

import json

import pytest

from simpar import cli
from simpar.architectures.training import Training
from simpar.diagnosis.answer import explain
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.runtime.summary import summarise_ranks

TRAINING = Training(seq_len=256, global_batch=8)
STEPS = 20


def phases(rank, slow, data_s):
    """A step of 1 s on rank 0, where only the forward pass is without waiting for others."""
    forward = 0.5 if rank == slow else 0.3
    return {"data": data_s if rank == 1 else 0.001, "forward": forward, "backward": 0.9 - forward, "optimizer": 0.05}


def leave(folder, slow=None, data_s=0.001, device="cpu", pp=1):
    """The files of a run on four ranks; every second step is 1 % longer on rank 3, which ends last."""
    folder.mkdir()
    ranks = []
    for rank in range(4):
        rows = [
            {"step": at, "loss": 1.0, "step_time_s": 1.0 + 0.01 * (rank == 3) * (at % 2),
             "phases_s": phases(rank, slow, data_s)}
            for at in range(STEPS)
        ]  # fmt: skip
        sizes = {"peak_memory_bytes": 2.0**30, "peak_reserved_bytes": 2.0**31, "beside_allocator_bytes": 0.0}
        ranks.append({"rank": rank, "steps": rows, **sizes})
        (folder / f"rank{rank}.json").write_text(json.dumps(ranks[-1]) + "\n")
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ranks[0]["steps"]))
    report = {
        "model": "tiny-llama",
        "plan": Plan(dp=4 // pp, pp=pp).model_dump(mode="json"),
        "training": TRAINING.model_dump(),
        "ranks": 4,
        "machine": {"device": device},
        "strategy": "ddp",
        "measured": summarise_ranks(ranks, TRAINING, warmup=2),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=2))
    return folder


def test_folder_report_and_ranks_are_one_run(tmp_path, capsys):
    """Steps are the slowest rank's, phases by rank; rank 0's rows alone are steps of rank 0."""
    folder = leave(tmp_path / "run")
    whole, ranks = (explain(*paths).log for paths in ([folder], sorted(folder.glob("rank*.json"))))
    assert whole == ranks
    assert whole.times_s == (1.0, 1.01) * 9
    assert whole.step_time_s() == pytest.approx(1.005)
    assert [each["optimizer"] for each in whole.phases_s] == [0.05] * 4
    assert set(explain(folder / "log.jsonl").log.times_s) == {1.0}
    assert cli.run(["explain", str(folder)]) == 0
    assert "simpar run log: 18 logged, steps 2 to 19" in capsys.readouterr().out
    (folder / "report.json").unlink()
    assert explain(folder).log.path.endswith("log.jsonl")
    assert set(explain(folder / "rank3.json").log.times_s) == {1.0, 1.01}


def test_memory_is_read_of_devices_alone(tmp_path):
    """On a CPU a report has the growth of the process."""
    assert "allocated_bytes" not in explain(leave(tmp_path / "cpu")).log.figures
    figures = explain(leave(tmp_path / "cuda", device="cuda")).log.figures
    assert (figures["allocated_bytes"], figures["reserved_bytes"]) == (2.0**30, 2.0**31)


def test_a_rank_and_a_loader_are_named_without_a_plan(tmp_path):
    """A forward of 0.5 s where the others take 0.3 s, a fifth of a step on data; not what stages do by themselves."""
    assert explain(leave(tmp_path / "even")).likely == ()
    (slow,) = explain(leave(tmp_path / "slow", slow=2)).likely
    assert slow.cause == "slow rank"
    assert slow.signature == "rank 2's forward lasts 500 ms, 300 ms on the median of the others"
    assert explain(leave(tmp_path / "stages", slow=2, pp=2)).likely == ()
    (loader,) = explain(leave(tmp_path / "loader", data_s=0.201)).likely
    assert loader.signature == "rank 1 spends 201 ms of a step on data, 20%"


def test_a_plan_of_another_job_is_refused(tmp_path):
    """Batch, sequence length and ranks of the report are compared with the plan."""
    folder = leave(tmp_path / "run")
    with pytest.raises(UserError, match=r"global batch: 8 logged, 16 planned"):
        explain(folder, plan="gpt2-laptop")


@pytest.mark.parametrize(
    "text", ['{"rank": 0, "steps": [{}]}', '{"strategy": "ddp", "measured": {}}', '{"rank": 0, "steps": ']
)
def test_damaged_files_are_refused(tmp_path, text):
    """One line with the file."""
    (tmp_path / "rank0.json").write_text(text)
    with pytest.raises(UserError, match=r"rank0\.json"):
        explain(tmp_path / "rank0.json")
