"""What stands beside the winner: the front of time and memory."""

from dataclasses import replace
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

import simpar
from simpar.planner import Constraints
from simpar.planner.answer import baselines, beside
from simpar.planner.answer.ranking import LayoutRanking
from simpar.planner.answer.terminal import certificate
from simpar.planner.certify import exact, frontier, held_steps
from simpar.planner.certify.branch_and_bound import Field
from simpar.planner.problem import make_problem
from simpar.planner.progress import SearchProgress
from simpar.program.emission import emit
from simpar.program.perturbation import Perturbation
from tests.gate import some


def test_no_point_of_the_front_is_beaten():
    """Down the front memory falls and the step grows, from the winner on."""
    model, cluster = simpar.Model("llama-3-8b"), simpar.Cluster("grand-teton-h100")
    found = simpar.search(
        model,
        cluster,
        simpar.Training(seq_len=8192, global_batch=8),
        stack="torchtitan",
        constraints=Constraints(fixed={"tp": (1, 8), "cp": 1, "pp": 1, "micro_batch": 1}),
    )
    front = found.details["pareto"]
    assert len(front) > 2
    assert front[0]["step_time_s"] <= found.shortest.step_time_s * (1 + 1e-9)  # swept without contention
    for more, less in pairwise(front):
        assert less["needed_bytes"] < more["needed_bytes"]
        assert less["step_time_s"] > more["step_time_s"]


@pytest.mark.slow
def test_points_of_less_memory_are_among_rows_that_are_bounded_already(monkeypatch):
    """Where no row is promising for itself, one is found among those that the certificate has looked at."""

    def bound_in_whole(ranking, _):
        everything = np.arange(ranking.frontier.rows.count)
        ranking.frontier._raise_passes(everything)
        ranking.frontier._raise_steps(everything)

    monkeypatch.setattr(LayoutRanking, "find", bound_in_whole)
    monkeypatch.setattr(baselines.AlternativesSearch, "find_promising", lambda _, mask: np.zeros_like(mask))
    model, cluster = simpar.Model("llama-3-8b"), simpar.Cluster("grand-teton-h100")
    found = simpar.search(model, cluster, simpar.Training(seq_len=8192, global_batch=16), stack="torchtitan")
    first, *others = found.details["pareto"]
    assert others[-1]["needed_bytes"] < 0.75 * first["needed_bytes"]


@pytest.mark.slow
def test_runners_up_are_ranked_as_they_were_simulated():
    """With contention: no choice made without a search that fits comes before the second of the answer."""
    model, cluster = simpar.Model("olmoe-1b-7b"), simpar.Cluster("dgx-h100")
    found = simpar.search(
        model, cluster, simpar.Training(seq_len=4096, global_batch=32), stack="nemo", objective="time"
    )
    times = [one.step_time_s for one in found.candidates]
    assert times == sorted(times)
    naive = [one for one in found.details["naive"] if one["loses_s"] is not None]
    assert naive
    assert all(times[0] + one["loses_s"] >= times[1] for one in naive if one["loses_s"] > 0)


@pytest.mark.slow
@pytest.mark.parametrize("schedules", some([("1f1b", "interleaved"), None], 1))
def test_runners_up_are_the_best_variants_of_their_layouts(schedules):
    """No other choice of data parallelism is quicker, where the certificate swept some variants and bounded others."""
    model, training = simpar.Model("llama-3.2-3b"), simpar.Training(seq_len=4096, global_batch=32)
    cluster, fixed = simpar.Cluster("rtx-4090-8"), {"pp": 4, "cp": (1, 2), "tp": 1, "micro_batch": 1}
    found = simpar.search(
        model,
        cluster,
        training,
        stack="megatron",
        progress=SearchProgress(brief=True),
        constraints=Constraints(fixed=fixed, schedules=schedules),
    )
    assert len(found.candidates) == 5
    for one in found.candidates:
        for reduces, gathers in product((True, False), repeat=2):
            changed = {"overlap_grad_reduce": reduces, "overlap_param_gather": gathers}
            data = one.plan.data_parallel.model_copy(update=changed)
            plan = one.plan.model_copy(update={"data_parallel": data})
            try:
                other = simpar.simulate(model, cluster, plan, training, stack="megatron", with_timeline=False)
            except simpar.UserError:
                continue
            assert other.step_time_s >= one.step_time_s or not other.fits, plan


SMALL = {"tp": (1, 2), "cp": 1, "micro_batch": (1, 2), "schedule": ("1f1b", "interleaved"), "recompute": "none"}


def small_search(*pp, batch=16):
    """Some hundred plans, of which those in pipelines have hundreds of ops where a batch is 64."""
    training, constraints = (
        simpar.Training(seq_len=1024, global_batch=batch),
        Constraints(fixed=SMALL | {"pp": pp}, fit_probability=0.5),
    )
    return simpar.search("gpt2", simpar.Cluster("dgx-h100"), training, objective="time", constraints=constraints)


@cache
def usual_search():
    """One that tests only look at."""
    return small_search(1, 2)


@pytest.mark.slow
def test_plans_of_too_many_ops_leave_a_gap(monkeypatch):
    """They are not simulated, nor forgotten: the answer is the best of the others, with the gap that they leave."""
    best = small_search(2, 4, batch=64)
    assert best.certified_optimal
    assert best.details["not_built"] == 0
    monkeypatch.setattr(emit, "MOST_OPS", 300)
    found = small_search(2, 4, batch=64)
    assert found.details["not_built"] > 0
    assert not found.certified_optimal
    assert found.best.step_time_s * (1 - found.gap) <= best.best.step_time_s <= found.best.step_time_s
    assert any("ops a step: bounded, not simulated" in line for line in certificate(found))
    monkeypatch.setattr(emit, "MOST_OPS", 1)
    with pytest.raises(simpar.Infeasible, match=r"^none of the [\d,]+ plans that may be best can be simulated"):
        small_search(2, 4, batch=64)


def test_few_ops_are_simulated_beside_the_winner(monkeypatch):
    """Lists hold what the ops they may have are enough for, and say what was not simulated."""
    whole = small_search(1, 2, batch=64)
    for owner, name in ((LayoutRanking, "find"), (LayoutRanking, "settle"), (beside, "cost_kinds")):
        monkeypatch.setattr(owner, name, lambda *_: None)  # what these simulate would be taken
    monkeypatch.setattr(baselines, "MOST_OPS", 1)
    monkeypatch.setattr(baselines, "TOO_LARGE", "more than 1 ops a step")
    found = small_search(1, 2, batch=64)
    assert found.best.plan == whole.best.plan
    assert len(found.details["pareto"]) < len(whole.details["pareto"])
    said = [one["why"][0] for one in found.details["naive"] if one["loses_s"] is None]
    assert "not simulated: more than 1 ops a step" in said


def few_plans():
    """A problem with the plans of a small search."""
    training, few = simpar.Training(seq_len=1024, global_batch=16), Constraints(fixed=SMALL | {"pp": (1, 2)})
    return make_problem("gpt2", simpar.Cluster("dgx-h100"), training, constraints=few)


def beside_the_winner(problem):
    """A list beside the best plan of a field, nothing in it, and that plan as it was simulated."""
    field = Field.of(problem)
    winner = field.frontier.shortest(np.ones(field.frontier.rows.count, dtype=bool))
    best = field.frontier.simulate(winner)
    return baselines.AlternativesSearch(field, field.frontier.rows.subset([winner])), best


@pytest.mark.parametrize(
    ("most_ops", "slow", "run_again"), [(held_steps.MAX_KEPT_OPS, {}, 0), (0, {}, 0), (0, {0: 1.5}, 2)]
)
def test_the_best_plans_are_reported_as_they_were_run(most_ops, slow, run_again, monkeypatch):
    """They are reported before their steps are let go; with slow ranks all but the best and the last one run again."""
    problem = replace(few_plans(), perturbation=Perturbation(slow_ranks=slow))
    field, again, run = Field.of(problem).frontier, [], exact.exact
    monkeypatch.setattr(held_steps, "MAX_KEPT_OPS", most_ops)
    order = np.argsort(field.bound_s, kind="stable")
    first = np.unique(field.layouts()[order], return_index=True)[1]  # of variants of a layout, lists show one
    rows = order[np.sort(first)[:4]].tolist()
    for row in rows:
        field.simulate(row)
    monkeypatch.setattr(exact, "exact", lambda *what: again.append(what) or run(*what))
    for found in (field.simulated[row] for row in rows):
        assert found.report() is found.report()
        assert found.report().step_time_s == found.step_time_s == run(problem, found.plan).step_time_s
    best = min(rows, key=lambda row: field.simulated[row].worth)
    assert len(again) == run_again + (run_again > 0 and best == rows[-1])


def test_beside_the_program_that_is_made_the_best_alone_is_held(monkeypatch):
    """Steps of many ops are let go before the next is simulated, except the best."""
    problem = few_plans()
    field, held, run = Field.of(problem).frontier, [], frontier.measure
    monkeypatch.setattr(held_steps, "MAX_KEPT_OPS", 0)

    def measured(*what):
        what[-1]()  # makes room
        held.append([one for one in field.simulated.values() if one.kept])
        return run(*what)

    monkeypatch.setattr(frontier, "measure", measured)
    rows = np.argsort(-field.bound_s, kind="stable")[-4:].tolist()  # the longest first: each is the best so far
    for row in rows:
        field.simulate(row)
    assert [len(each) for each in held] == [0, 1, 1, 1]
    for each in held[1:]:
        assert each[0] in field.simulated.values()


def test_what_is_not_simulated_says_what_was_in_the_way(monkeypatch):
    """The ops of one step, those of the whole list, or the export target: each in its own words."""
    training = simpar.Training(seq_len=1024, global_batch=16)
    fixed = {**SMALL, "pp": (1, 2)}
    cluster = simpar.Cluster("dgx-h100")

    def said(constraints, ops_left=None):
        beside, best = beside_the_winner(make_problem("gpt2", cluster, training, constraints=constraints))
        beside.ops_left = beside.ops_left if ops_left is None else ops_left
        return {one["name"]: one["why"][0] for one in baselines.naive_choices(beside, best.report())}

    free = said(Constraints(fixed=fixed))
    assert not any("not simulated" in words for words in free.values())
    name = next(name for name, words in free.items() if words.startswith("slower by"))
    used_up = said(Constraints(fixed=fixed), ops_left=3)
    assert used_up[name] == ("not simulated: more than the 3 ops that are left of those simulated for this list")
    monkeypatch.setattr(baselines, "refusals", lambda _rows, _row: ["no"])
    refused = said(Constraints(fixed=fixed, portable="megatron"))
    assert refused[name] == "not simulated: megatron cannot express it"
    monkeypatch.undo()
    monkeypatch.setattr(baselines, "MOST_OPS", 1)
    assert said(Constraints(fixed=fixed))[name] == f"not simulated: {baselines.TOO_LARGE}"


@pytest.mark.parametrize(
    ("batch", "options", "fixed", "name", "words"),
    [
        (8, {}, {"tp": (1, 2)}, "TP = node", "--fix tp=1,2"),
        pytest.param(
            4, {}, {}, "pure DDP", "a batch of 4 sequences does not divide over 8 replicas", marks=pytest.mark.slow
        ),
        (8, {"base": simpar.Plan(kind="fsdp", zero=3)}, {}, "pure DDP", "plan.kind = fsdp has zero 2|3, not 0"),
        pytest.param(8, {}, {"zero": 1}, "pure ZeRO-3", "--fix zero=1", marks=pytest.mark.slow),
        pytest.param(8, {}, {"tp": 4}, "TP = node", "--fix tp=4", marks=pytest.mark.slow),
    ],
)
def test_layouts_that_cannot_be_say_what_is_in_the_way(batch, options, fixed, name, words):
    """One reason, that which excludes them."""
    held = {"cp": 1, "pp": 1, "hsdp": 1, "micro_batch": 1, "recompute": "none", "schedule": "1f1b"}
    constraints = Constraints(fixed={**held, **fixed})
    found = simpar.search(
        "llama-3.2-1b",
        simpar.Cluster("dgx-h100"),
        simpar.Training(seq_len=512, global_batch=batch),
        constraints=constraints,
        **options,
    )
    said = {one["name"]: one["why"][0] for one in found.details["naive"]}
    assert said[name] == f"not in the space: {words}"


def test_an_answer_that_was_stopped_is_not_certified_though_nothing_beats_it():
    """A gap of zero among what was bounded says nothing of the rest, and the line says why."""
    found = usual_search()
    assert found.certified_optimal
    stopped = list(certificate(replace(found, certified_optimal=False)))
    assert stopped[0] == "not certified: stopped before the whole space was bounded"
