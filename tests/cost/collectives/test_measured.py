"""Calibration: a cluster takes on the bandwidth that a job measured."""

from __future__ import annotations

import pytest

from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.collectives.measured import calibrate_cluster
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.units import GB, GIB


def bus(op: str, cluster: Cluster, nodes: int) -> float:
    """Bus bandwidth at 1 GiB over whole nodes, bytes/s."""
    members = nodes * cluster.profile.devices_per_node
    factor = (2 if op == "all_reduce" else 1) * (members - 1) / members
    return GIB * factor / float(collective_time_s(op, GIB, (nodes, members // nodes), cluster))


@pytest.mark.parametrize("measured", [12.0, 95.0, 161.0, 320.0])
def test_reproduces_the_network(measured: float) -> None:
    """An all-reduce over all ranks runs at the bandwidth measured, poor networks included."""
    state = calibrate_cluster(load_cluster("aws-p5", 8), {"all_reduce": measured * GB, "intra_all_reduce": 450.0 * GB})
    assert bus("all_reduce", state, 8) == pytest.approx(measured * GB, rel=1e-3)
    assert bus("all_reduce", state, 1) == pytest.approx(450.0 * GB, rel=1e-3)


def test_one_node_takes_either_name() -> None:
    """On one node the whole is the inside; a gather serves where no reduction was measured."""
    for measured in ({"all_gather": 300.0 * GB}, {"intra_all_gather": 300.0 * GB}):
        state = calibrate_cluster(load_cluster("aws-p5", 1), measured)
        assert bus("all_gather", state, 1) == pytest.approx(300.0 * GB, rel=1e-3)


def test_all_reduce_decides() -> None:
    """A gather that reads low beside a reduction is not believed."""
    both = calibrate_cluster(load_cluster("aws-p5", 4), {"all_gather": 50.0 * GB, "all_reduce": 100.0 * GB})
    assert bus("all_reduce", both, 4) == pytest.approx(100.0 * GB, rel=1e-3)


def test_faster_than_possible_gives_the_fastest() -> None:
    """A measurement beyond the links leaves every share at most 1."""
    state = calibrate_cluster(load_cluster("aws-p5", 8), {"all_reduce": 9000.0 * GB})
    assert max(state.state.values()) == 1.0


def test_nothing_measured_changes_nothing() -> None:
    """Without measurements the cluster is what it was."""
    here = load_cluster("aws-p5", 2)
    assert calibrate_cluster(here, {}) == here


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"allreduce": 1.0}, "unknown measured bandwidth 'allreduce'; did you mean 'all_reduce'"),
        ({"all_reduce": 0.0}, "measured bandwidth all_reduce = 0.0: must be greater than 0"),
        ({"all_reduce": float("nan")}, "must be greater than 0"),
    ],
)
def test_wrong_measurements_are_refused(measured: dict[str, float], message: str) -> None:
    """An unknown name or a value that is no bandwidth is one line."""
    with pytest.raises(UserError, match=message):
        calibrate_cluster(load_cluster("aws-p5", 2), measured)
