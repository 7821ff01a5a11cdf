"""What is wrong with a call from Python is said by name."""

from __future__ import annotations

import inspect

import pytest

import simpar

SHAPE = ("gpt2", simpar.Cluster("dgx-h100"), simpar.Plan(micro_batch=8))
TRAINING = simpar.Training(seq_len=1024, global_batch=64)


@pytest.mark.parametrize("keyword", ["pertubation", "engin", "sed", "stak", "with_timline"])
def test_a_misspelt_keyword_of_simulate_is_refused(keyword: str) -> None:
    """With the function's own name, and the nearest keyword."""
    meant = {"pertubation": "perturbation", "engin": "engine", "sed": "seed", "stak": "stack"}
    nearest = meant.get(keyword, "with_timeline")
    with pytest.raises(TypeError, match=rf"^simulate\(\) .* '{keyword}'; did you mean '{nearest}'\?$") as refused:
        simpar.simulate(*SHAPE, TRAINING, **{keyword: 1})
    assert isinstance(refused.value, simpar.UserError)


def test_other_verbs_refuse_under_their_own_name() -> None:
    """Not under that of a class that they fill in."""
    with pytest.raises(TypeError, match=r"^search\(\) .* 'objectiv'; did you mean 'objective'\?$"):
        simpar.search(*SHAPE[:2], TRAINING, objectiv="time")
    with pytest.raises(TypeError, match=r"^explain\(\) .* 'kernel_clases'; did you mean 'kernel_classes'\?$"):
        simpar.explain("trace.json", kernel_clases="own.yaml")


def test_a_keyword_near_none_lists_those_that_there_are() -> None:
    """All of them, as choices are listed."""
    with pytest.raises(TypeError, match=r"'zzz'; allowed: cluster, engine, .* with_timeline$"):
        simpar.simulate(*SHAPE, TRAINING, zzz=1)


def test_signatures_are_those_written() -> None:
    """Editors and ``help`` see every keyword and its default."""
    parameters = inspect.signature(simpar.simulate).parameters
    assert list(parameters)[:4] == ["model", "cluster", "plan", "training"]
    assert parameters["engine"].default == "auto"
    assert "engine" in simpar.simulate.__doc__
