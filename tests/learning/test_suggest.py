"""Layouts worth measuring: from a search to a table, to what is learnt of it, to a search that knows."""

import csv
from dataclasses import replace

import pytest

from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster, make_mixed
from simpar.hardware.profile import MixedProfile
from simpar.learning.answer import learn
from simpar.learning.suggest import COLUMNS, learned_from, suggestions, write
from simpar.planner.api import find_space
from simpar.planner.problem import Constraints, make_problem
from simpar.planner.progress import SearchProgress
from simpar.stacks.stack import load_stack
from simpar.validation.columns import RUN_COLUMNS

FIXED = {"recompute": "none", "hsdp": 1, "micro_batch": "1,2", "cp": 1, "pp": "1,2", "sequence_parallel": False}


def _problem(stack="megatron", hardware="dgx-h100", **options):
    return make_problem(
        "llama-3.2-1b",
        load_cluster(hardware, 4),
        Training(seq_len=2048, global_batch=128),
        stack=stack,
        constraints=Constraints(fixed=FIXED),
        **options,
    )


def _searched(*profiles):
    problem = _problem(*profiles)
    return problem, find_space(None, problem.cluster)(problem, SearchProgress(top=4))


@pytest.fixture(scope="module")
def searched():
    """A problem and what is found, which no test changes."""
    return _searched()


def _fill(table, times):
    """Write measured steps into a table of suggestions."""
    rows = list(csv.DictReader(table.open(encoding="utf-8")))
    for row, time_s in zip(rows, times, strict=True):
        row["iteration_time_s"] = str(time_s)
    with table.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.slow
def test_what_was_suggested_is_learnt_known_and_not_suggested_again(tmp_path, searched):
    """A runner-up that was measured to be the fastest is chosen then, and says what was measured."""
    problem, found = searched
    chosen = suggestions(found, problem, 2)
    assert [one.gain for one in chosen] == sorted(one.gain for one in chosen)
    assert all(one.fit_probability >= 0.95 and one.devices == 8 * one.nodes for one in chosen)
    shown = found.candidates[:2]
    whole = [replace(chosen[0], plan=one.plan, nodes=4, devices=32, step_time_s=one.step_time_s) for one in shown]
    table = tmp_path / "suggested.csv"
    plans = write(whole, table)
    fast = 0.98 * min(one.step_time_s for one in shown)
    times = [1.25 * one.step_time_s if one is found.shortest else fast for one in shown]
    _fill(table, times)
    answer = learn(str(table), stack="megatron", hardware="dgx-h100")
    assert answer.runs.count == 2
    ours = tmp_path / "ours.yaml"
    ours.write_text(answer.to_yaml(ours.name), encoding="utf-8")
    known_s = [one.step_time_s for one in load_stack(str(ours)).measured]
    assert known_s == pytest.approx(times, rel=1e-3)
    problem, again = _searched(str(ours), str(ours))
    measured = [one for one in again.candidates if "measured_step_time_s" in one.figures]
    assert measured
    assert again.best.figures["measured_step_time_s"] == pytest.approx(fast, rel=1e-3)
    assert again.best.why[0].startswith("measured: ")
    more = suggestions(again, problem, 4)
    named = [(one.plan.flat_values(), one.nodes) for one in whole]
    assert not [one for one in more if (one.plan.flat_values(), one.nodes) in named]
    assert learned_from(str(ours), str(ours)) == (("suggested.csv",), "megatron", "dgx-h100")
    assert len(plans) == 2


def test_what_cannot_be_suggested_is_said(searched):
    """One candidate, another objective, several kinds of nodes."""
    problem, found = searched
    alone = type(found)(found.candidates[:1], found.counts, found.objective, True, 0.0, 0.0)
    assert suggestions(alone, problem, 1) == []
    with pytest.raises(UserError, match="allowed: --objective regret or time, not energy"):
        suggestions(found, _problem(objective="energy"), 1)
    groups = MixedProfile.model_validate(
        {"name": "two", "groups": [{"hardware": name, "nodes": 1} for name in ("dgx-h100", "dgx-a100-80gb")]}
    )
    mixed = make_problem("tiny-llama", make_mixed(groups), Training(seq_len=512, global_batch=16))
    with pytest.raises(UserError, match="several kinds of nodes"):
        suggestions(found, mixed, 1)


def test_a_table_that_is_there_is_left_alone(tmp_path, searched):
    """It may hold measurements."""
    problem, found = searched
    chosen = suggestions(found, problem, 1)
    table = tmp_path / "runs.csv"
    write(chosen, table)
    before = table.read_bytes()
    with pytest.raises(UserError, match=r"runs\.csv: is there, and may hold measurements"):
        write(chosen, table)
    assert table.read_bytes() == before
    assert set(COLUMNS) <= {*RUN_COLUMNS, "notes"}


def test_what_is_suggested_is_as_small_as_tells(searched):
    """The same layouts on fewer nodes cost less and tell most of what they would; batches shrink with replicas."""
    problem, found = searched
    chosen = suggestions(found, problem, 3)
    by_rank = {one.rank: one for one in found.candidates}
    assert any(one.nodes < problem.cluster.nodes for one in chosen)
    for one in chosen:
        plan, whole = one.plan, by_rank[one.candidate].plan
        assert plan.cluster["nodes"] == one.nodes
        assert plan.training["global_batch"] * problem.cluster.nodes == problem.training.global_batch * one.nodes
        assert plan.mesh.dp * problem.cluster.nodes == whole.mesh.dp * one.nodes
        assert (plan.mesh.tp, plan.mesh.pp, plan.micro_batch) == (whole.mesh.tp, whole.mesh.pp, whole.micro_batch)
        assert one.to_dict()["device_hours"] == pytest.approx(30 * one.step_time_s * one.devices / 3600)
