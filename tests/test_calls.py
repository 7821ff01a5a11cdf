"""What is wrong with a call from Python is said by name."""

from __future__ import annotations

import gc
import inspect

import pytest

import simpar
from simpar.calls import collects_later
from simpar.errors import UserError

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


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_as_it_was(is_on: bool) -> None:
    """Off while the function runs, and behind it as before, also where that raises."""

    @collects_later
    def told(*, fails: bool) -> bool:
        if fails:
            raise UserError("no")
        return gc.isenabled()

    before = gc.isenabled()
    try:
        (gc.enable if is_on else gc.disable)()
        assert told(fails=False) is False
        assert gc.isenabled() is is_on
        with pytest.raises(UserError):
            told(fails=True)
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if before else gc.disable)()


def test_layouts_do_not_pile_up() -> None:
    """What one simulation leaves in cycles is collected before many more have run."""
    plan = {"zero": 1, "micro_batch": 8}
    counts = list[int]()
    for _ in range(12):
        simpar.simulate("gpt2", "dgx-h100", plan, TRAINING)
        counts.append(len(gc.get_objects()))
    gc.collect()
    assert max(counts[6:]) < 1.5 * max(counts[:6])
