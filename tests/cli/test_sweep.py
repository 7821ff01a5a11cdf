"""``simulate --over``: every combination is the simulation that its own flags give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simpar import cli
from simpar.cli.search import _over as grid_axis
from simpar.cli.sweep import parse
from simpar.report.result import Result
from simpar.verbs import scenario_key

SMALL = ["--model", "small-llama", "--hardware", "dgx-h100", "--nodes", "2", "--seq-len", "512", "--global-batch", "32"]


def test_every_combination_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two keys of two values are four rows, each equal to one run with those settings."""
    path, page, table = tmp_path / "sweep.json", tmp_path / "sweep.html", tmp_path / "sweep.csv"
    over = ["--over", "bucket_bytes=10MB,20GB", "--over", "sharp=false,true"]
    files = ["--json", str(path), "--html", str(page), "--csv", str(table)]
    assert cli.run(["simulate", *SMALL, *over, *files]) == 0
    said = capsys.readouterr().out
    assert "dp busy / exposed" in said
    assert page.read_text().count('class="shaded"') == 4 + 4  # the grid of two keys, and the list
    assert "Step time by bucket_bytes and sharp" in page.read_text()
    head, *lines = table.read_text().splitlines()
    assert head.startswith("bucket_bytes,sharp,step_time_s,step_time_low_s")
    assert len(lines) == 4
    assert all(words in said for words in ("* fastest that fits", "90 % interval", "fits, over 99 % sure"))
    rows = json.loads(path.read_text())["sweep"]
    assert len(rows) == 4
    for row in rows:
        one = tmp_path / "one.json"
        bucket, sharp = row["choice"]["bucket_bytes"], row["choice"]["sharp"]
        settings = ["--set", f"plan.bucket_bytes={bucket}", "--set", f"cluster.sharp={sharp}"]
        assert cli.run(["simulate", *SMALL, *settings, "--json", str(one)]) == 0
        alone = Result.load(one)
        assert row["step_time_s"] == alone.step_time_s
        assert tuple(row["step_time_interval_s"]) == alone.certainty.step_time_interval_s
        assert row["fit_probability"] == alone.certainty.fit_probability
        assert row["communication"]["dp"] == alone.communication["dp"].model_dump()


def test_choices_that_cannot_be_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The others are simulated all the same."""
    assert cli.run(["simulate", *SMALL, "--over", "tp=1,3"]) == 0
    assert "does not divide the 16 devices" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--over", "tp"], "wants tp=VALUE,VALUE; --over help lists the keys"),
        (["--over", "=1"], "wants key=value,value"),
        (["--over", "bucketbytes=1"], "did you mean 'bucket_bytes'?"),
        (["--over", "tp=1,2", "--trace", "t.json"], "--trace: shows one run"),
        (["--over", "tp=1,2", "--jobs", "0"], "jobs = 0: allowed: at least 1"),
        (["--jobs", "2"], "--jobs: is the number of processes that share --over"),
        (["--over", "tp=1,2", "--days", "3"], "--days: shows one run"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and what is wanted."""
    assert cli.run(["simulate", *SMALL, *words]) == 2
    assert said in capsys.readouterr().err


def test_short_keys() -> None:
    """Keys of a plan stand alone; a dot means the scenario's own."""
    assert parse("bucket_bytes=25MB, 1GB") == ("bucket_bytes", ["25MB", "1GB"])
    wanted = {
        "tp": "plan.tp", "sharp": "cluster.sharp", "seq_len": "training.seq_len", "model": "model",
        "perturbation.jitter.sigma": "perturbation.jitter.sigma",
    }  # fmt: skip
    assert {key: scenario_key(key) for key in wanted} == wanted


def test_batches_are_compared_by_tokens_and_pipelines_by_their_bubble(capsys):
    """A larger batch takes longer a step and is the faster one; without either there is no such column."""
    job = ["simulate", "--model", "gpt2", "--hardware", "dgx-h100", "--seq-len", "1024", "--zero", "1"]
    assert cli.run([*job, "--over", "global_batch=8,256"]) == 0
    said = capsys.readouterr().out
    assert "tokens/s" in said
    assert "bubble" not in said
    assert "* fastest that fits (most tokens/s)" in said
    assert next(line for line in said.splitlines() if line.startswith("* ")).split()[1] == "256"
    assert cli.run([*job, "--global-batch", "64", "--pp", "4", "--over", "schedule=1f1b,zb-h1"]) == 0
    said = capsys.readouterr().out
    assert "bubble" in said
    assert "tokens/s" not in said


def test_models_are_compared_by_the_flop_that_train_them(capsys):
    """A token of a larger model needs more: the smallest is not the fastest for being small."""
    job = ["simulate", "--hardware", "dgx-h100", "--seq-len", "1024", "--global-batch", "256", "--zero", "1"]
    assert cli.run([*job, "--over", "model=gpt2,gpt2-xl"]) == 0
    said = capsys.readouterr().out
    assert "* fastest that fits (most model PFLOP/s)" in said
    assert next(line for line in said.splitlines() if line.startswith("* ")).split()[1] == "gpt2-xl"


def test_keys_may_be_written_as_their_flags(capsys):
    """Bare ones; and axes of a grid of searches as keys."""
    assert parse("global-batch=8,16") == ("global_batch", ["8", "16"])
    assert parse("perturbation.degraded_links.a-b=0.5")[0] == "perturbation.degraded_links.a-b"
    assert grid_axis("global_batch=8,16") == ("global-batch", [8, 16])


def test_schedules_run_chunks_of_their_own(tmp_path, capsys):
    """Of a scenario with three chunks 1F1B runs one, ZB-V two, interleaving all; those asked for are kept."""
    scenario = {
        "model": "gpt2", "cluster": {"hardware": "dgx-h100"}, "training": {"seq_len": 256, "global_batch": 16},
        "plan": {"pp": 2, "schedule": "interleaved", "vpp": 3, "zero": 1},
    }  # fmt: skip
    (tmp_path / "three.yaml").write_text(json.dumps(scenario))
    over = ["--over", "schedule=1f1b,interleaved,zb-v"]
    assert cli.run(["simulate", str(tmp_path / "three.yaml"), *over, "--json", str(tmp_path / "over.json")]) == 0
    rows = json.loads((tmp_path / "over.json").read_text())["sweep"]
    assert [row.get("vpp") for row in rows] == [1, None, 2]
    assert all("step_time_s" in row for row in rows)
    assert "where they cannot run the scenario's: vpp 1 with 1f1b; vpp 2 with zb-v\n" in capsys.readouterr().out
    assert cli.run(["simulate", str(tmp_path / "three.yaml"), *over, "--vpp", "3"]) == 0
    assert "schedule=1f1b: schedule 1f1b: vpp = 3; allowed: 1" in capsys.readouterr().out
