"""Traffic: what domains exchange becomes loads on NICs and leaf links."""

from __future__ import annotations

import numpy as np

from simpar.cost.collectives.lines import Line
from simpar.cost.collectives.placement import place
from simpar.cost.collectives.traffic import (
    Domains,
    Edges,
    concatenate,
    is_port,
    occupancy,
    round_significant,
    spread_loads,
)

from .conftest import make_toy


def test_spread_shares_among_members() -> None:
    """What a domain sends is spread over its members; uneven domains share unevenly."""
    toy = make_toy(2)
    placed = place(np.array([[0, 1, 8]]), toy)
    pattern = Domains(np.array([0, 1]), np.array([1, 0]), np.array([1.0, 3.0]))
    edges = occupancy(spread_loads(placed, 0.0, 0.0, pattern), toy.num_links)
    load = {toy.link_name(k): c for k, c in zip(edges.link_id.tolist(), edges.coefficient.tolist(), strict=True)}
    assert load == {
        "nic_tx[0]": 0.5, "nic_tx[1]": 0.5, "nic_tx[8]": 3.0, "nic_rx[0]": 1.5, "nic_rx[1]": 1.5,
        "nic_rx[8]": 1.0,
    }  # fmt: skip


def test_leaf_links_see_what_changes_leaf() -> None:
    """Traffic between nodes of one leaf does not climb."""
    toy = make_toy(4, out={"nodes_per_leaf": 2})
    placed = place(np.array([[0, 8, 16, 24]]), toy)
    pattern = Domains(np.array([0, 1]), np.array([1, 2]), np.array([1.0, 1.0]))
    edges = occupancy(spread_loads(placed, 0.0, 0.0, pattern), toy.num_links)
    names = {toy.link_name(k) for k in edges.link_id.tolist() if toy.link_name(k).startswith("leaf")}
    assert names == {"leaf_up[0]", "leaf_down[8]"}


def test_occupancy_adds_and_drops() -> None:
    """Edges of one group and link become one; zeros disappear."""
    edges = Edges(np.array([0, 0, 1, 0]), np.array([5, 5, 5, 6]), np.array([1.0, 2.0, 4.0, 0.0]))
    found = occupancy(concatenate([edges, edges]), 10)
    assert found.group_index.tolist() == [0, 1]
    assert found.link_id.tolist() == [5, 5]
    assert found.coefficient.tolist() == [6.0, 8.0]


def test_shares_divide() -> None:
    """A port of which half is reached is occupied twice as long; ports come before NICs."""
    toy = make_toy(2)
    link = np.array([int(toy.port_rx(np.array([15]))[0]), int(toy.nic_tx(np.array([0]))[0])])
    share = Line("ring", "simple", 0.0, 0.0, None, 0.5, 0.25).share(is_port(link, toy))
    assert Edges(np.zeros(2, int), link, np.ones(2)).over(share).coefficient.tolist() == [2.0, 4.0]


def test_significant_digits() -> None:
    """Rounding noise below 12 digits vanishes, zeros stay."""
    assert round_significant(np.array([0.1 + 0.2, 0.0, 123456.0])).tolist() == [0.3, 0.0, 123456.0]
    assert len(concatenate([]).link_id) == 0
