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
    saved = SearchResult((one,), Counts(), "time", False, 0.5, 0.0, {"stack": "megatron"})
    assert SearchResult.from_dict(saved.to_dict()) == saved


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("mfu", "x", r"^s.json: candidates.0.mfu = 'x': .*valid number"),
        ("rank", None, r"^s.json: candidates.0.rank = None: .*valid integer"),
        ("plan", {"zerro": 1}, r"^s.json: candidates.0.plan.zerro = 1: .*did you mean 'zero'"),
    ],
    ids=str,
)
def test_a_wrong_value_of_a_candidate_is_one_line(key, value, message):
    """File, key, value and rule."""
    whole = SearchResult((candidate(1, 1.5),), Counts(), "time", False, 0.5, 0.0).to_dict()
    whole["candidates"][0][key] = value
    with pytest.raises(UserError, match=message) as refused:
        SearchResult.from_dict(whole, source="s.json")
    assert "\n" not in str(refused.value)


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
