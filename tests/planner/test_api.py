"""The front door of search."""

import subprocess
import sys

import pytest

import simpar
from simpar.errors import UserError
from simpar.planner import Constraints


@pytest.fixture(scope="module")
def small():
    """gpt2 on four laptop-like devices."""
    return (simpar.Model("gpt2"), simpar.Cluster("laptop-cpu-4"), simpar.Training(seq_len=128, global_batch=4))


FIXED = {"micro_batch": 1, "recompute": "none", "zero": 0, "schedule": "1f1b", "tp": 1, "precision": "fp32"}


def test_search_gives_the_best_first(small):
    """Candidates are ranked by simulated step time and the best is certified."""
    found = simpar.search(*small, constraints=Constraints(fixed=FIXED))
    times = [candidate.step_time_s for candidate in found.candidates]
    assert times == sorted(times)
    assert found.best.rank == 1
    assert found.certified_optimal
    assert found.counts.space_size >= found.counts.feasible >= len(found.candidates)


def test_an_unknown_space_or_axis_is_refused(small):
    """One line that names what is allowed."""
    with pytest.raises(UserError, match="uniform"):
        simpar.search(*small, space="unifrom")
    with pytest.raises(UserError, match="micro_batch"):
        simpar.search(*small, constraints=Constraints(fixed={"micro_bath": 1}))


def test_no_package_has_the_name_of_a_verb():
    """``simpar.search`` and ``simpar.explain`` are functions, whatever was imported before."""
    code = (
        "import simpar.planner.api, simpar.diagnosis.answer, simpar, types, sys; "
        "sys.exit(not all(type(each) is types.FunctionType for each in (simpar.search, simpar.explain)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
