"""Which of the plans found is chosen where predictions err by more than they differ."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import simpar
from simpar import cli
from simpar.plan.plan import Plan
from simpar.planner.answer.candidates import answer_of
from simpar.planner.answer.ranking import LayoutRanking
from simpar.planner.answer.terminal import certificate, ties
from simpar.planner.answer.ties import rank_results
from simpar.planner.certify.branch_and_bound import fields_of
from simpar.planner.certify.exact import exact
from simpar.planner.problem import Constraints, Problem, make_problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import Counts, SearchResult
from simpar.planner.uniform import search_uniform
from simpar.report.result import Result

TRAINING = simpar.Training(seq_len=128, global_batch=64)
SMALL = [
    "search", "--model", "tiny-llama", "--hardware", "dgx-h100", "--seq-len", "512", "--global-batch", "16",
    "--recompute", "none", "--cp", "1", "--fix", "tp=1,2", "--fix", "pp=1,2", "--fix", "hsdp=1", "--schedules", "1f1b",
    "--micro-batch", "1",
]  # fmt: skip


@pytest.fixture(scope="module")
def problem() -> Problem:
    """A tiny model on two nodes of eight devices."""
    return make_problem("tiny-llama", simpar.Cluster("dgx-h100", nodes=2), TRAINING)


def alike(problem: Problem, *steps: tuple[dict[str, int | str], float]) -> list[Result]:
    """Results of layouts that are made up like one another, with steps of their own in seconds."""
    model = exact(problem, Plan(zero=1))
    parts = model.time_breakdown_s.model_copy(
        update={**dict.fromkeys(model.time_breakdown_s.model_dump(), 0.0), "compute": 1.0}
    )
    found = []
    for layout, step_s in steps:
        setup = exact(problem, Plan.model_validate({"zero": 1, **layout})).setup
        speed = model.speed.model_copy(update={"step_time_s": step_s})
        found.append(replace(model, setup=setup, speed=speed, time_breakdown_s=parts))
    return found


def test_of_what_loses_as_little_the_simplest_is_chosen(problem: Problem) -> None:
    """Fewer axes in use; the certificate is still that of the shortest, and says which it is."""
    results = alike(problem, ({"tp": 2, "pp": 2}, 1.0), ({}, 1.001), ({"pp": 2}, 2.0))
    found = answer_of(problem, SearchProgress(), results, Counts(), 0.0, True)
    assert [one.step_time_s for one in found.candidates] == [1.001, 1.0, 2.0]
    assert [one.figures["tied"] for one in found.candidates] == [True, True, False]
    assert found.shortest.rank == 2
    assert found.best.why[0].startswith("candidates 1 and 2 are tied; if predictions err, 1 loses as little as any (")
    assert found.best.why[0].endswith("and it uses fewer axes: dp, not tp, dp, pp")
    assert found.candidates[1].why[0].startswith("predicted faster by 1.00 ms (0.1%)")
    said = list(certificate(found))
    assert said[0] == "certified: no plan of the space is predicted to be faster than 1.00 s (candidate 2)"
    (gap, *_) = certificate(replace(found, certified_optimal=False, gap=0.01))
    assert gap == "not certified: a plan that was not simulated may be better by up to 1.00% than candidate 2"


def test_fewer_that_are_shown_are_chosen_among_as_many(problem: Problem) -> None:
    """The first is the same; the sentences name what is not shown."""
    results = alike(problem, ({"tp": 2, "pp": 2}, 1.0), ({}, 1.0002), ({"pp": 2}, 2.0))
    whole = answer_of(problem, SearchProgress(), results, Counts(), 0.0, True)
    found = answer_of(problem, SearchProgress(top=1), results, Counts(), 0.0, True)
    assert found.candidates == whole.candidates[:1]
    assert (found.shortest, found.tied) == (whole.candidates[1], whole.candidates[:2])
    assert len(found.to_dict()["candidates"]) == 1
    assert next(certificate(found)).endswith("faster than 1.00 s (candidate 2, which --top 2 shows)")
    tie = found.details["tie"]
    assert (tie["candidates"], tie["shortest_step_time_s"]) == (2, 1.0)
    assert 1.0002 < tie["limit_s"] < 2.0
    (said,) = ties(found)
    assert said.startswith("1 and 2 cannot be told apart (--top 2 shows them): predictions err")
    again = SearchResult.from_dict(json.loads(found.to_json()))
    assert list(ties(again)) == [said]
    assert next(certificate(again)).endswith("faster than 1.00 s (a candidate that is not shown)")
    for count, words in ((1, "1 plan that was not"), (12345, "up to 12,345 plans that were not"), (0, "")):
        more = list(ties(found.with_details({"tie": {**tie, "not_simulated": count}})))[1:]
        assert [line.startswith(f"{words} simulated may be as good: bounded below") for line in more] == [True] * bool(
            words
        )
    assert (
        "tie"
        not in answer_of(replace(problem, objective="time"), SearchProgress(), results, Counts(), 0.0, True).details
    )


@pytest.mark.slow
def test_plans_that_may_be_tied_are_those_bounded_below_the_limit_and_not_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted by the bounds of the search, if none is simulated for it; --top 1 chooses what --top 5 does."""
    problem = make_problem("tiny-llama", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=512, global_batch=16))
    fixed = {"recompute": "none", "hsdp": 1, "cp": 1, "tp": (1, 2), "pp": (1, 2), "micro_batch": 1, "schedule": "1f1b"}
    held = Constraints(fixed=fixed, portable="any")
    problem = replace(problem, constraints=held)
    one, five = (search_uniform(problem, SearchProgress(top=top, brief=True)) for top in (1, 5))
    assert len(one.candidates) == 1
    assert one.best.to_dict() == five.best.to_dict()
    assert one.details["tie"] == five.details["tie"]
    assert one.details["tie"]["not_simulated"] == 0
    for name in ("find", "settle"):
        monkeypatch.setattr(LayoutRanking, name, lambda *_: None)
    one = search_uniform(problem, SearchProgress(top=1, brief=True))
    (field,) = fields_of(problem, [1])
    assert field.frontier is not None
    frontier, limit_s = field.frontier, one.details["tie"]["limit_s"]
    assert 0 < one.details["tie"]["not_simulated"] <= frontier.count_unseen(limit_s)
    assert frontier.count_unseen(np.inf) == frontier.rows.count
    frontier.simulate(0)
    frontier.close(1)
    assert frontier.count_unseen(np.inf) == frontier.rows.count - 2
    assert frontier.count_unseen(0.0) == 0


def test_probabilities_count_layouts_that_are_not_shown(problem: Problem) -> None:
    """They count as results of the same make-up would, although they cannot be chosen."""
    shown, hidden = (({}, 1.0), ({"tp": 2}, 1.01)), (({"pp": 2}, 0.999), ({"tp": 2, "pp": 2}, 1.02))
    alone, whole = (rank_results(problem, alike(problem, *each)) for each in (shown, shown + hidden))
    choice = rank_results(problem, alike(problem, *shown), [one for _, one in hidden])
    of_step = {one.step_time_s: figures for one, figures in zip(whole.results, whole.figures, strict=True)}
    assert [one.step_time_s for one in choice.results] == [1.0, 1.01]
    for at, (one, figures) in enumerate(zip(choice.results, choice.figures, strict=True)):
        told, listed = figures["best_probability"], of_step[one.step_time_s]["best_probability"]
        assert told == pytest.approx(listed, abs=0.005)
        assert told < 0.8 * alone.figures[at]["best_probability"]
        assert figures["expected_regret"] == pytest.approx(of_step[one.step_time_s]["expected_regret"], abs=0.005)
    assert choice.limit_s == alone.limit_s


def test_groups_that_span_domains_are_chosen_last_of_what_loses_as_little(problem: Problem) -> None:
    """Tensor ranks of two nodes against more axes inside of them."""
    results = alike(problem, ({"tp": 2, "rank_order": "dp-tp-cp-pp"}, 1.0), ({"tp": 2, "pp": 2}, 1.0002))
    choice = rank_results(problem, results)
    assert [one.step_time_s for one in choice.results] == [1.0002, 1.0]
    assert choice.why[0].endswith("no tensor or context group of it spans several scale-up domains")


def test_what_loses_more_is_not_chosen_for_being_simple(problem: Problem) -> None:
    """Two percent are more than nothing: the shortest is chosen, and what it is expected to lose is said."""
    choice = rank_results(problem, alike(problem, ({"tp": 2, "pp": 2}, 1.0), ({}, 1.02)))
    assert [one.step_time_s for one in choice.results] == [1.0, 1.02]
    assert all(one["tied"] for one in choice.figures)
    assert "if predictions err, 1 loses least: " in choice.why[0]


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_other_objectives_and_single_plans_choose_nothing(problem: Problem, objective: str) -> None:
    """They stay in their order, without figures."""
    results = alike(problem, ({"tp": 2, "pp": 2}, 1.0), ({}, 1.0002))
    assert rank_results(replace(problem, objective=objective), results).results == tuple(results)
    assert rank_results(replace(problem, objective=objective), results).figures == ({}, {})
    assert rank_results(problem, results[:1]).figures == ({},)


def test_a_search_says_how_probably_each_is_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON and on the terminal; the bare shortest is had, too, and the two answers hold the same plans."""
    answers = {}
    for objective in ("regret", "time"):
        asked = [] if objective == "regret" else ["--objective", objective]
        assert cli.run([*SMALL, *asked, "--json", str(tmp_path / "answer.json")]) == 0
        answers[objective] = json.loads((tmp_path / "answer.json").read_text())
        said = capsys.readouterr().out
        assert ("is best" in said, "is predicted to be faster than" in said) == (objective == "regret",) * 2
        assert ("has a better time" in said) == (objective == "time")
        assert ("cannot be told apart" in said) == (objective == "regret")
    assert answers["regret"]["objective"] == "regret"
    rows, bare = (answers[objective]["candidates"] for objective in ("regret", "time"))
    assert sum(row["best_probability"] for row in rows) == pytest.approx(1, abs=1e-3)
    tied = [row for row in rows if row["tied"]]
    assert rows[: len(tied)] == tied
    assert rows[0]["expected_regret"] <= min(row["expected_regret"] for row in tied) + 0.001
    assert not any("best_probability" in row for row in bare)
    assert [row["step_time_s"] for row in bare] == sorted(row["step_time_s"] for row in rows)
