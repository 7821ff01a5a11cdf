"""What a search found, and what it is read back from."""

import pytest

from simpar.errors import Infeasible, UserError
from simpar.plan.plan import Plan
from simpar.planner.result import Candidate, Counts, SearchResult


def candidate(rank, step_time_s):
    """A candidate with a plan of its own."""
    figures = {"fit_probability": 0.99, "nodes": 1}
    return Candidate(rank, Plan(micro_batch=rank), step_time_s, 0.4, 1e9, figures, why=("it is quick",))


@pytest.fixture
def found():
    """An answer of two candidates, of which the second is quicker, and a third that is not shown."""
    shown, hidden = (candidate(1, 2.0), candidate(2, 1.5)), (candidate(3, 3.0),)
    return SearchResult(shown, Counts(9, 5, 5, 2, 2), "regret", True, 0.0, 1.0, {"stack": "fsdp"}, hidden)


def test_the_first_is_the_best_and_another_may_be_shorter(found):
    """The certificate of a search for time is of the shortest; without a candidate there is none."""
    assert found.best.rank == 1
    assert found.shortest.rank == 2
    with pytest.raises(Infeasible, match="found no plan"):
        _ = SearchResult((), Counts(), "time", False, 1.0, 0.0).best


def test_a_candidate_is_read_back():
    """From its plain data, figures and reasons included."""
    one = candidate(2, 1.5)
    assert Candidate.from_dict(one.to_dict()) == one


def test_a_saved_search_is_read_back(found, tmp_path):
    """What is written is read, and nothing else is taken for a search."""
    found.save(tmp_path / "found.json")
    assert SearchResult.load(tmp_path / "found.json").to_json() == found.to_json()
    with pytest.raises(UserError, match="has no search_schema_version"):
        SearchResult.from_dict({})
    with pytest.raises(UserError, match="search_schema_version = 9: allowed: 1"):
        SearchResult.from_dict({"search_schema_version": 9})
    with pytest.raises(UserError, match="not a whole search"):
        SearchResult.from_dict({"search_schema_version": 1, "candidates": []})
