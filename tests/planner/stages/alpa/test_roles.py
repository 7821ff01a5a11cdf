"""Codes of states, and what changes of them cost."""

import numpy as np
import pytest

import simpar
from simpar.plan.placement import transfers
from simpar.planner.stages.alpa.roles import AGAIN, SERIAL, SUMMED, Pricer, codes, moves, states_of
from simpar.program.emission.collective_prices import Prices
from simpar.simulation import make_job


@pytest.fixture(scope="module")
def pricer():
    """Prices on two nodes of eight GPUs, of a mesh of both kinds of links."""
    cluster = simpar.Cluster("dgx-h100", nodes=2)
    training = simpar.Training(seq_len=128, global_batch=16)
    job = make_job("tiny-llama", cluster, simpar.Plan(), training)
    return Pricer(Prices.of_job(job, cluster.in_training), (2, 8))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_code_is_a_place(axes):
    """Of the combination in the list of all."""
    every = states_of(axes)
    assert codes(every).tolist() == list(range(len(every)))


def test_legal_changes_are_those_of_the_runtime():
    """A change that no collective makes costs nothing because it is not there."""
    mesh = (2, 2)
    known, states = moves(mesh), states_of(2)
    for one in range(0, len(states), 5):
        for two in range(len(states)):
            assert known.legal[one, two] == (transfers(states[one], states[two], mesh) is not None)
    assert known.summands.tolist() == ["P" in each for each in states]


def test_a_tensor_that_stays_moves_nothing(pricer):
    """And a sliced one that is needed whole is gathered, for a price that grows with its size."""
    small, large = pricer.changes_s(1e6), pricer.changes_s(2e6)
    stays, sliced, whole = (int(code) for code in codes([("R", "R"), ("R", "S"), ("R", "R")]))
    assert small[:, stays, stays].sum() == 0
    assert 0 < small[SERIAL, sliced, whole] < large[SERIAL, sliced, whole]
    assert (large >= small).all()
    assert small.shape[0] == len({SERIAL, SUMMED, AGAIN})


def test_prices_are_asked_once(pricer):
    """Of every collective along the same axes; links inside a node are quicker than those between."""
    assert pricer.price("all_gather", (1,)) is pricer.price("all_gather", (1,))
    inside, between = (pricer.collective_s("all_gather", axis, np.array([1e8]))[0] for axis in (1, 0))
    assert inside < between
