"""simpar search as a user types it."""

import json
import os
import signal

import pytest

from simpar import cli
from simpar.cli.search import SEARCH_FLAGS
from simpar.plan.plan import Plan
from simpar.planner.certify.branch_and_bound import BranchAndBound
from tests.gate import some

SMALL = [
    "search", "--model", "tiny-llama", "--hardware", "dgx-h100", "--seq-len", "512", "--global-batch", "16",
    "--recompute", "none", "--fix", "tp=1,2", "--fix", "hsdp=1", "--schedules", "1f1b", "--micro-batch", "1",
]  # fmt: skip
ONE_STAGE = [*SMALL, "--pp", "1", "--cp", "1"]
"""For what needs a search and no pipelines in it."""
FROZEN_FLAGS = {
    "--space", "--objective", "--deadline", "--budget", "--top", "--fix", "--schedules", "--portable", "--headroom",
    "--fit-probability", "--output,-o", "--set", "--json", "--csv", "--over", "--jobs", "--backend", "--time-limit",
    "--suggest", "--suggest-to", "--verbose,-v", "--rl", "--staleness", "--rollout-precision", "--cache-dtype",
}  # fmt: skip
KEYS = {
    "candidates", "space_size", "feasible", "bounded", "swept", "simulated", "certified_optimal", "search_seconds",
    "objective",
}  # fmt: skip


def test_the_flags_are_frozen():
    """A flag is added or removed by changing this list."""
    assert {flag.spelling for flag in SEARCH_FLAGS} == FROZEN_FLAGS


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The files that one search writes: its plan and its answer."""
    folder = tmp_path_factory.mktemp("search")
    plan, answer = folder / "plan.json", folder / "answer.json"
    assert cli.run([*SMALL, "--json", str(answer), "-o", str(plan), "--top", "3"]) == 0
    return plan, answer


def test_the_json_has_the_promised_keys_and_the_plan_is_simulated_as_predicted(written, tmp_path):
    """What search writes, simulate reads: the same step to the last digit."""
    (plan, answer), again = written, tmp_path / "again.json"
    found = json.loads(answer.read_text())
    assert set(found) >= KEYS
    assert found["certified_optimal"] is True
    first = found["candidates"][0]
    assert set(first) >= {"rank", "step_time_s", "mfu", "peak_memory_bytes", "plan", "why"}
    assert Plan.load(plan).mesh.world_size == 8
    arguments = ["simulate", str(plan), "--hardware", "dgx-h100", "--json", str(again)]
    assert cli.run(arguments) == 0
    assert json.loads(again.read_text())["step_time_s"] == first["step_time_s"]


def test_stages_of_their_own_are_printed_and_written(tmp_path, capsys):
    """The Alpa space says what was searched, that it ranks by estimates, and writes the same keys."""
    answer = tmp_path / "answer.json"
    small = ["--model", "tiny-llama", "--hardware", "dgx-h100", "--seq-len", "512", "--global-batch", "16"]
    fixed = ["--recompute", "none", "--micro-batch", "2", "--schedules", "1f1b"]
    assert cli.run(["search", "--space", "alpa", *small, *fixed, "--json", str(answer), "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "tiny-llama" in said.splitlines()[0]
    assert "not certified: a plan that was not simulated may be better by up to" in said
    assert "- micro_batch: sequences of all devices of a stage; in the even stages that compete" in said
    assert "by --fix: micro_batch, recompute" in said
    assert set(json.loads(answer.read_text())) >= KEYS


def test_the_same_search_gives_the_same_answer(written, capsys):
    """All but the seconds it took."""
    assert cli.run([*SMALL, "--json", "-", "--top", "3"]) == 0
    answers = [json.loads(text) for text in (written[1].read_text(), capsys.readouterr().out)]
    assert all(answer.pop("search_seconds") for answer in answers)
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fix", "tpp=2"], "did you mean 'tp'"),
        (["--fix", "tp"], "axis=value"),
        (["--fix", "zero=7"], "zero"),
        (["--space", "alphabet"], "unknown space"),
        (["--objective", "speed"], "allowed"),
        (["--schedules", "1f2b"], "1f1b"),
        (["--headroom", "1.5"], "headroom"),
        (["--deadline", "soon"], "--deadline soon"),
        (["--objective", "devices"], "--deadline"),
        (["--portable", "megatrom"], "megatron"),
        (["--top", "0"], "--top 0"),
        (["--jobs", "0"], "--jobs 0"),
        (["--jobs", "2", "--backend", "spark"], "dask"),
        (["--time-limit", "soon"], "--time-limit soon"),
        (["--time-limit", "0"], "--time-limit 0"),
        (["--time-limit", "-5 s"], "--time-limit -5 s"),
        (["--over", "nodes"], "axis=value"),
        (["--over", "nodez=1,2"], "did you mean 'nodes'"),
        (["--over", "nodes=1,half"], "whole numbers"),
        (["--over", "nodes=1,2", "--backend", "spark", "--jobs", "2"], "dask"),
        (["--over", "nodes=1,2", "--jobs", "-3"], "--jobs -3"),
    ],
)
def test_bad_input_is_one_line(arguments, words, capsys):
    """Exit code 2 and what is allowed, never a traceback."""
    assert cli.run([*SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_axes_on_request_are_searched_and_said(capsys):
    """The optimizer that wins stands in the table, with what was asked for."""
    asked = ["--fix", "optimizer=adamw,sgd", "--fix", "bucket_bytes=1MB,64MB", "--fix", "zero=0", "-v"]
    assert cli.run([*ONE_STAGE, *asked]) == 0
    said = capsys.readouterr().out
    assert ", sgd, bucket_bytes " in next(line for line in said.splitlines() if line.startswith("1 "))
    assert "certified: no plan of the space is predicted to be faster than" in said


@pytest.mark.slow
def test_switches_are_an_axis_of_a_grid(capsys):
    """With and without switches that reduce; the fastest algorithm is taken in both."""
    assert cli.run([*SMALL, "--over", "nvls=true,false", "--json", "-"]) == 0
    on, off = json.loads(capsys.readouterr().out)["cells"]
    assert (on["nvls"], off["nvls"]) == (True, False)
    assert on["best"]["step_time_s"] <= off["best"]["step_time_s"]
    assert cli.run([*SMALL, "--over", "nvls=on"]) == 2
    assert "true, false" in capsys.readouterr().err


def test_what_cannot_fit_says_why(capsys):
    """Exit code 3, the smallest layout, what fills it, and what to try."""
    arguments = [
        "search", "--model", "gpt-neox-20b", "--hardware", "l4-8", "--nodes", "1", "--seq-len", "2048",
        "--global-batch", "8", "--schedules", "1f1b", "--micro-batch", "1", "--recompute", "full",
    ]  # fmt: skip
    assert cli.run(arguments) == 3
    error = capsys.readouterr().err
    assert "nothing fits: the smallest layout needs" in error
    assert "mostly model states" in error
    assert "; try --nodes 4" in error


GIVEN = {"zero": "0", "tp": "1", "pp": "1", "cp": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", some([{"--fix": GIVEN}, {"--headroom": "0.9", "--fix": {"cp": "1", "micro_batch": "1"}}], 1)
)
def test_flags_that_are_named_where_nothing_fits_have_a_plan_that_does(options, capsys):
    """Each of them, in place of what was given."""

    def command(changed):
        words = ["search", "--model", "llama-3-8b", "--hardware", "dgx-h100", "--seq-len", "4096", "--top", "1"]
        for flag, value in ({"--nodes": "1", "--global-batch": "16"} | changed).items():
            each = [f"{name}={one}" for name, one in value.items()] if flag == "--fix" else [value]
            words += [word for one in each for word in (flag, one)]
        return words

    assert cli.run(command(options)) == 3
    hints = capsys.readouterr().err.strip().partition("; try ")[2].split(" or ")
    assert len(hints) >= 2
    for hint in hints:
        flag, value = hint.split(" ")
        if flag == "--fix":
            value = options["--fix"] | dict([value.split("=")])
        assert cli.run(command(options | {flag: value})) == 0, hint
        capsys.readouterr()


def test_a_deadline_that_nobody_meets_says_so(capsys):
    """Exit code 3 and the shortest step there is."""
    assert cli.run([*ONE_STAGE, "--deadline", "1 ms"]) == 3
    error = capsys.readouterr().err
    assert "no plan meets the deadline of 1.00 ms: every step takes at least" in error
    assert cli.run([*ONE_STAGE, "--deadline", error.partition('; try --deadline "')[2].rstrip('"\n')]) == 0


def test_portable_plans_can_be_exported(tmp_path):
    """The best plan for a target exports to it without loss."""
    plan = tmp_path / "plan.json"
    assert cli.run([*ONE_STAGE, "--portable", "megatron", "-o", str(plan), "--top", "1"]) == 0
    assert cli.run(["export", str(plan), "--to", "megatron", "-o", str(tmp_path / "out")]) == 0


def test_ctrl_c_prints_the_best_so_far_with_its_gap(monkeypatch, tmp_path, capsys):
    """A real SIGINT behind the first simulated plan: exit code 130, the plan and its gap are there, no traceback."""
    simulate = BranchAndBound.simulate

    def interrupted(self, frontier, row):
        found = simulate(self, frontier, row)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(BranchAndBound, "simulate", interrupted)
    plan = tmp_path / "plan.json"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell runs tests behind itself
    try:
        assert cli.run([*SMALL, "--objective", "time", "-o", str(plan)]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    captured = capsys.readouterr()
    assert "not certified" in captured.out
    assert "Traceback" not in captured.err
    assert Plan.load(plan).mesh.world_size == 8


def test_a_time_limit_is_no_error(tmp_path, capsys):
    """Exit code 0, the best so far with its gap, and its plan is written."""
    plan, answer = tmp_path / "plan.json", tmp_path / "answer.json"
    assert cli.run([*SMALL, "--time-limit", "0.000001 s", "-o", str(plan), "--json", str(answer)]) == 0
    assert "stopped early (time limit)" in capsys.readouterr().out
    found = json.loads(answer.read_text())
    assert (found["stopped"], found["certified_optimal"]) == ("time limit", False)
    assert 0 < found["gap"] <= 1
    assert Plan.load(plan).mesh.world_size == 8
    assert cli.run([*ONE_STAGE, "--time-limit", "2 h", "--jobs", "2", "--backend", "local", "--top", "1"]) == 0
    assert "stopped" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_grid_of_searches_is_drawn_as_a_heat_map(tmp_path, capsys):
    """Every cell is what its own search finds; what does not fit says so; the picture is written."""
    grid, picture = tmp_path / "grid.json", tmp_path / "grid.svg"
    assert (
        cli.run([*SMALL, "--over", "model=tiny-llama,llama-3.1-405b", "--over", "nodes=1,2", "--json", str(grid)]) == 0
    )
    said = capsys.readouterr().out
    assert all(words in said for words in ("nothing fits", "90 % interval", "over 99 % sure"))
    cells = json.loads(grid.read_text())["cells"]
    assert [(cell["model"], cell["nodes"]) for cell in cells] == [
        (model, nodes) for model in ("tiny-llama", "llama-3.1-405b") for nodes in (1, 2)
    ]
    assert all(cell["certified_optimal"] for cell in cells[:2])
    assert cells[2]["best"] is None
    alone = tmp_path / "alone.json"
    assert cli.run([*SMALL, "--nodes", "2", "--json", str(alone)]) == 0
    first = json.loads(alone.read_text())["candidates"][0]
    for figure in ("step_time_s", "step_time_interval_s", "reserved_memory_interval_bytes", "fit_probability"):
        assert first[figure] == cells[1]["best"][figure]
    assert cli.run(["plot", str(grid), "--kind", "heatmap", "-o", str(picture)]) == 0
    assert picture.read_text().startswith("<?xml")
    assert cli.run(["plot", str(grid), "--kind", "timeline", "-o", str(picture)]) == 2


def test_what_is_worth_measuring_is_a_table_and_plans_that_simulate_as_they_are(tmp_path, capsys, monkeypatch):
    """The hint names the command that learns from it; a table that is there is never written over."""
    monkeypatch.chdir(tmp_path)
    asked = [*ONE_STAGE, "--suggest", "2", "--suggest-to", "runs.csv", "--json", "answer.json"]
    assert cli.run(asked) == 0
    out = capsys.readouterr().out
    assert "Worth measuring" in out
    answer = json.loads((tmp_path / "answer.json").read_text())
    named = answer["suggestions"]
    assert 1 <= len(named) <= 2
    assert "simpar learn runs.csv --stack" in out
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + len(named)
    assert cli.run(["simulate", "runs-1.plan.json", "--json", "again.json"]) == 0
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["step_time_s"] == pytest.approx(named[0]["step_time_s"])
    capsys.readouterr()
    assert cli.run(["learn", "runs.csv", "--stack", "megatron", "-o", "ours.yaml"]) == 2
    assert "nothing to learn from" in capsys.readouterr().err
    assert cli.run(asked) == 2
    assert "runs.csv: is there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--suggest", "0"], "--suggest 0: allowed: at least 1"),
        (["--suggest-to", "runs.csv"], "needs --suggest"),
        (["--suggest", "1", "--suggest-to", "runs.txt"], "ends in .csv"),
        (["--suggest", "1", "--top", "1"], "needs several candidates"),
        (["--suggest", "1", "--over", "nodes=1,2"], "--suggest: is of one search"),
        (["--suggest", "1", "--objective", "energy"], "not energy"),
    ],
)
def test_suggestions_that_cannot_be_are_one_line(flags, why, capsys, tmp_path, monkeypatch):
    """Before anything is searched."""
    monkeypatch.chdir(tmp_path)
    assert cli.run([*SMALL, *flags]) == 2
    assert why in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flags", [["-o"], ["--json"], ["--csv"], ["--suggest", "2", "--suggest-to"]])
def test_what_cannot_be_written_is_said_before_the_search(flags, capsys, tmp_path, monkeypatch):
    """In one line: nobody waits for an answer that has no place."""
    monkeypatch.setattr("simpar.planner.api.find_space", lambda *_: pytest.fail("searched before that was known"))
    path = tmp_path / "none" / "out.csv"
    assert cli.run([*SMALL, *flags, str(path)]) == 2
    assert capsys.readouterr().err == f"{path}: cannot be written (No such file or directory)\n"
