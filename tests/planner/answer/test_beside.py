"""The whole of what stands beside the winner, where it is stopped, and where layouts are counted."""

import numpy as np
import pytest

import simpar
from simpar.planner import Constraints
from simpar.planner.answer.continuation import Continuation
from simpar.planner.answer.ranking import LayoutRanking
from simpar.planner.answer.terminal import certificate
from simpar.planner.certify import frontier
from simpar.planner.progress import SearchProgress

TRAINING = simpar.Training(seq_len=1024, global_batch=16)
FEW = Constraints(fixed={"pp": (1, 2), "cp": (1, 2)}, portable="any")


def test_a_stopped_search_says_why_it_compares_nothing(monkeypatch):
    """Nothing was compared, and nothing is called certain."""

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(LayoutRanking, "find", stop)
    found = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=FEW)
    assert found.details["runners_up"]["certified"] == 0
    assert any("stopped (interrupted)" in line for line in certificate(found))


def test_the_short_answer_is_the_whole_one_without_what_it_does_not_show(monkeypatch):
    """The same bytes, kinds and less memory left out; each says how many plans it simulated beside the best."""
    ran, measure = list[object](), frontier.measure

    def counted(*given):
        ran.append(given)
        return measure(*given)

    monkeypatch.setattr(frontier, "measure", counted)
    few = Constraints(fixed={"pp": 1, "cp": 1, "micro_batch": (1, 2), "recompute": "none"}, portable="any")
    each = []
    for whole in (False, True):
        ran.clear()
        told = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=few, progress=SearchProgress(whole=whole))
        each.append(told.to_dict())
        assert told.counts.simulated + told.details["simulated_beside"] == len(ran)
    short, full = each
    assert full["simulated_beside"] > short["simulated_beside"] > 0
    more = {"kinds", "pareto"}
    assert full.keys() - short.keys() == more
    for name in short.keys() - {"search_seconds", "simulated_beside", "swept"}:
        assert short[name] == full[name], name


@pytest.mark.slow
def test_probabilities_do_not_depend_on_how_many_are_shown():
    """The first five have the same figures among twelve, and layouts that no probability is over have none."""
    few, many = (
        simpar.search("gpt2", "dgx-h100", TRAINING, constraints=FEW, progress=SearchProgress(top=top, brief=True))
        for top in (5, 12)
    )
    assert (len(few.candidates), len(many.candidates)) == (5, 12)
    by_plan = {one.plan.model_dump_json(): (one.figures, one.why) for one in many.candidates}
    assert all(by_plan[one.plan.model_dump_json()] == (one.figures, one.why) for one in few.candidates)
    assert few.best.plan == many.best.plan
    assert few.details["tie"] | {"candidates": 0} == many.details["tie"] | {"candidates": 0}
    ties = [bool(one.figures.get("tied")) for one in many.candidates]
    assert ties == sorted(ties, reverse=True)
    told = [one.figures["best_probability"] for one in many.candidates if "best_probability" in one.figures]
    assert 5 <= len(told) <= few.details["tie"]["layouts"]
    assert sum(told) < 1.03  # of those behind the five, what steps are made of is known once they are shown


@pytest.mark.slow
def test_probabilities_are_over_all_layouts_that_may_be_tied():
    """More layouts than are shown: those shown share less than all of it."""
    found = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=FEW, progress=SearchProgress(brief=True))
    assert found.details["tie"]["layouts"] > len(found.candidates) == 5
    assert sum(one.figures["best_probability"] for one in found.candidates) < 0.97


def interrupt(*_):
    """Stands for Ctrl-C."""
    raise KeyboardInterrupt


def test_a_list_that_was_certain_before_a_stop_stays_certain(monkeypatch):
    """Stopped while layouts for probabilities were simulated, an answer still knows its list to be the next best."""
    whole = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=FEW)
    monkeypatch.setattr(LayoutRanking, "settle", interrupt)
    found = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=FEW)
    assert found.details["stopped"] == "interrupted"
    assert found.certified_optimal
    assert found.details["runners_up"] == whole.details["runners_up"]
    assert {one.plan.model_dump_json() for one in found.candidates} == {
        one.plan.model_dump_json() for one in whole.candidates
    }


@pytest.mark.parametrize("most", [0, 1, 2, 4, 8, 16])
def test_a_stop_in_the_middle_of_a_list_says_how_much_of_it_is_certain(monkeypatch, most):
    """What was simulated by then is listed, and as much of it is called certain as the whole search lists."""
    few = Constraints(fixed={"pp": (1, 2), "cp": 1, "recompute": "none"}, portable="any")
    whole = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=few)
    steps, simulate = sorted(one.step_time_s for one in whole.candidates), Continuation.simulate_lowest

    def stops(*given, **how):
        for at, each in enumerate(simulate(*given, **how)):
            if at == most:
                raise KeyboardInterrupt  # behind a simulation, before its place in the list
            yield each

    monkeypatch.setattr(Continuation, "simulate_lowest", stops)
    found = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=few)
    told, listed = found.details["runners_up"], sorted(one.step_time_s for one in found.candidates)
    assert told["found"] == len(listed) - 1
    assert listed[: told["certified"] + 1] == steps[: told["certified"] + 1]
    if found.details.get("stopped"):
        assert told["certified"] == 4 or any("stopped (interrupted)" in line for line in certificate(found))


def test_a_better_layout_found_for_probabilities_is_listed(monkeypatch):
    """A list that was not certain gives way to what is simulated afterwards."""
    whole, find = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=FEW), LayoutRanking.find

    def poor(self, count):
        for row in np.argsort(-self.frontier.bound_s)[: 8 * count].tolist() if len(self.rows) < count else ():
            self._take(row, self.frontier.simulate(row))

    def settle(self, _):
        assert len(self.rows) >= 4
        monkeypatch.setattr(LayoutRanking, "find", find)
        self.find(4)

    monkeypatch.setattr(LayoutRanking, "find", poor)
    monkeypatch.setattr(LayoutRanking, "settle", settle)
    found = simpar.search("gpt2", "dgx-h100", TRAINING, constraints=FEW)
    listed = [sorted(one.step_time_s for one in each.candidates) for each in (found, whole)]
    assert listed[0] == listed[1]
    assert found.details["runners_up"] == whole.details["runners_up"]
