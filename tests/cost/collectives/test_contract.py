"""Every algorithm obeys one contract; the folder and the table list the same algorithms."""

from __future__ import annotations

from functools import lru_cache
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest

from simpar.cost.collectives import algorithms
from simpar.cost.collectives.algorithms import ALGORITHMS, OPS
from simpar.cost.collectives.choice import (
    collective,
    collective_time_s,
    link_loads,
    offers,
    offers_and_loads,
    shape_numbers,
)
from simpar.cost.collectives.lines import lines, list_serving, raw_costs
from simpar.cost.collectives.parameters import PARAMETERS, parameters
from simpar.cost.collectives.placement import place
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.units import MIB
from tests.gate import some

GROUPS = {
    "node": np.arange(8),
    "pair": np.array([0, 1]),
    "far pair": np.array([3, 11]),
    "two nodes": np.arange(16),
    "rail": np.arange(2, 64, 8),
    "half nodes": np.arange(64).reshape(8, 8)[:, ::2].ravel(),
    "uneven": np.array([0, 1, 2, 8, 9, 17]),
}
SIZES = (1.0, float(MIB), float(2**30))


@lru_cache
def cluster() -> Cluster:
    """Eight nodes with every kind of reduction in switches."""
    found = load_cluster("dgx-h100", 8)
    out = found.profile.scale_out.model_copy(update={"sharp": True, "nodes_per_leaf": 3})
    return Cluster(found.profile.model_copy(update={"scale_out": out}), 8)


CASES = [
    (op, name, algorithm)
    for op in OPS
    for name, group in GROUPS.items()
    if op != "send" or len(group) == 2
    for algorithm in list_serving(op, place(group[None, :], cluster()))
]


def test_folder_and_table_agree() -> None:
    """Every file of the folder declares the algorithm of its name, each with a rank of its own."""
    names = {path.stem for path in Path(algorithms.__file__).parent.glob("*.py")}
    assert names - {"__init__"} == set(ALGORITHMS)
    assert len({each.RANK for each in ALGORITHMS.values()}) == len(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_algorithm_is_complete(name: str) -> None:
    """Every rate and protocol of an algorithm has its parameters."""
    module = ALGORITHMS[name]
    assert {key for op in module.OPS for key in module.rates(op)} <= set(PARAMETERS)
    assert module.PROTOCOLS[-1] == "simple"
    assert set(module.PROTOCOLS) <= {"ll", "ll128", "simple"}


def test_every_op_has_an_automatic_algorithm() -> None:
    """Whatever the op and the group, some algorithm is considered without being named."""
    for op in OPS:
        for name, group in GROUPS.items():
            if op != "send" or len(group) == 2:
                assert raw_costs(op, place(group[None, :], cluster())), (op, name)


@pytest.mark.parametrize(("op", "name", "algorithm"), CASES)
def test_contract(op: str, name: str, algorithm: str) -> None:
    """Nothing costs the latency; time grows with size; links are the group's own; both price lists agree."""
    here, group = cluster(), GROUPS[name]
    costs = [collective(op, group[None, :], here, size_bytes=size, algorithm=algorithm) for size in SIZES]
    times = [cost.solo_time_s(size, here) for cost, size in zip(costs, SIZES, strict=True)]
    assert times == sorted(times)
    for cost in costs:
        assert cost.algorithm == algorithm
        assert cost.solo_time_s(0.0, here) == cost.latency_s > 0
        assert (cost.edges.coefficient > 0).all()
        assert len(set(cost.edges.link_id.tolist())) == len(cost.edges.link_id)
        assert set(cost.edges.link_id.tolist()) <= links_of(group, here)
    if name != "uneven":
        analytic = collective_time_s(op, SIZES, place(group[None, :], here).shape, here, algorithm=algorithm)
        np.testing.assert_allclose(times, analytic, rtol=1e-9)


def links_of(group: np.ndarray, here: Cluster) -> set[int]:
    """Links that a group may touch: of its members, of neighbours that forward for it, of its leaves."""
    nodes = np.unique(here.node_of(group))
    near = (nodes[:, None] * 8 + np.arange(8)).ravel()
    ports = [here.port_tx(near), here.port_rx(near)]
    network = [link(near) for link in (here.nic_tx, here.nic_rx, here.leaf_up, here.leaf_down)]
    return set(np.concatenate([*ports, *network]).tolist())


@pytest.mark.parametrize(("op", "name", "algorithm"), CASES)
def test_protocols_trade_latency_for_bandwidth(op: str, name: str, algorithm: str) -> None:
    """The last protocol has the highest latency and the lowest seconds per byte."""
    here = cluster()
    (raw_cost,) = raw_costs(op, place(GROUPS[name][None, :], here), algorithm)
    found = lines(raw_cost, parameters(here))
    assert found[-1].latency_s == max(line.latency_s for line in found)
    assert found[-1].seconds_per_byte == min(line.seconds_per_byte for line in found)


@pytest.mark.parametrize("op", OPS)
def test_bulk_equals_one_by_one(op: str) -> None:
    """Many groups at once have the links and coefficients that each has alone."""
    here = cluster()
    groups = np.arange(64).reshape(8, 8) if op != "send" else np.arange(64).reshape(2, 32).T
    bulk = collective(op, groups, here, size_bytes=float(MIB))
    for index, group in enumerate(groups):
        alone = collective(op, group[None, :], here, size_bytes=float(MIB))
        mine = bulk.edges.take(bulk.edges.group_index == index)
        assert mine.link_id.tolist() == alone.edges.link_id.tolist()
        assert mine.coefficient.tolist() == alone.edges.coefficient.tolist()


def test_symmetric_links_have_equal_coefficients() -> None:
    """A ring and a tree over whole nodes load all ports alike and all NICs alike, to the last bit."""
    here = load_cluster("dgx-h100", 96)
    for algorithm in ("ring", "tree", "nvls"):
        cost = collective("all_reduce", np.arange(768)[None, :], here, size_bytes=1e9, algorithm=algorithm)
        kinds = [here.link_name(link).split("[")[0] for link in cost.edges.link_id.tolist()]
        for kind in set(kinds):
            found = {c for k, c in zip(kinds, cost.edges.coefficient.tolist(), strict=True) if k == kind}
            assert len(found) == 1, (algorithm, kind)


STEPS = {"device": (1, 8), "node": (8, 3), "leaf": (24, 2)}
"""Strides of what may move, and how many there are: devices in a node, nodes under a leaf, leaves."""


def moved(links: np.ndarray, here: Cluster, by: int) -> np.ndarray:
    """The links of the ranks that lie ``by`` further."""
    owner, block = here.owner_of(links) + by, here.block_of(links)
    return np.array([getattr(here, here.blocks[b])(rank) for b, rank in zip(block, owner, strict=True)])


@pytest.mark.parametrize(("step", "op"), some(product(STEPS, OPS), zip(cycle(STEPS), OPS, strict=False), tuples=True))
def test_moved_groups_load_the_moved_links(op: str, step: str) -> None:
    """Groups in places that are alike for the fabric cost the same; what folding by orbits builds on."""
    out = cluster().profile.scale_out
    here = Cluster(cluster().profile.model_copy(update={"scale_out": out}), 6)
    stride, many = STEPS[step]
    draw = np.random.default_rng(sum(map(ord, op + step)))
    for size in (2, 2, 3, 4) if op != "send" else (2, 2):
        others = {s: n for s, n in STEPS.values() if s != stride}
        places = sum(draw.integers(n, size=8) * s for s, n in others.items())
        members = draw.permutation(np.unique(places))[:size]
        if len(members) < 2 or (op == "send" and len(members) != 2):
            continue
        by = int(draw.integers(1, many)) * stride
        group, further = members[None, :], members[None, :] + by
        assert shape_numbers(np.concatenate([group, further]), here).tolist() == [0, 0]
        assert offers(op, group[0], here) == offers(op, further[0], here)
        ours, theirs = link_loads(op, group, here), link_loads(op, further, here)
        loads = offers_and_loads(op, group[0], here)[1]
        assert loads.keys() == ours.keys()
        for name, edges in loads.items():
            assert np.array_equal(edges.link_id, ours[name].link_id)
            assert np.array_equal(edges.coefficient, ours[name].coefficient)
        assert ours.keys() == theirs.keys()
        for name, edges in ours.items():
            found = dict(zip(moved(edges.link_id, here, by).tolist(), edges.coefficient.tolist(), strict=True))
            assert found == dict(zip(theirs[name].link_id.tolist(), theirs[name].coefficient.tolist(), strict=True))
