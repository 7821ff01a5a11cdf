"""Recursive halving and doubling: 2 log2 N steps at the bandwidth of a ring."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective, collective_time_s
from simpar.cost.collectives.lines import list_serving
from simpar.cost.collectives.placement import place, regular_shape
from simpar.errors import UserError
from simpar.units import US

from .conftest import make_toy


def test_steps() -> None:
    """An all-reduce takes 2 log2 N steps, an all-gather log2 N."""
    toy = make_toy(1, port_hop_us=1.0)
    times = [
        float(collective_time_s(op, 0.0, regular_shape(1, 8), toy, algorithm="halving_doubling"))
        for op in ("all_reduce", "all_gather")
    ]
    assert times == pytest.approx([6 * US, 3 * US])


def test_bytes_of_a_ring_on_ports_less_on_nics() -> None:
    """Ports carry 2(g-1)/g, NICs 2(n-1)/n over g: what halves inside the node never leaves it."""
    toy = make_toy(4)
    cost = collective("all_reduce", np.arange(32)[None, :], toy, size_bytes=1e9, algorithm="halving_doubling")
    by_kind: dict[str, set[float]] = {}
    for link, coefficient in zip(cost.edges.link_id.tolist(), cost.edges.coefficient.tolist(), strict=True):
        by_kind.setdefault(toy.link_name(link).split("[")[0], set()).add(coefficient)
    assert by_kind["port_tx"] == {2 * 7 / 8}
    assert by_kind["nic_tx"] == {2 * 3 / 4 / 8}


def test_needs_powers_of_two() -> None:
    """A group of six is refused, with the algorithms that would do."""
    with pytest.raises(UserError, match=r"power of two.*allowed here: auto, ring"):
        collective("all_reduce", np.arange(6)[None, :], make_toy(1), size_bytes=1.0, algorithm="halving_doubling")
    assert "halving_doubling" not in list_serving("all_reduce", place(np.arange(6)[None, :], make_toy(1)))


def test_is_automatic_only_with_one_member_a_node() -> None:
    """As NCCL's PAT, it is considered for gathers with one member a node, where it wins small messages."""
    toy = make_toy(16, nic_hop_us=10.0, tree_hop_us=10.0)
    group = np.arange(0, 128, 8)[None, :]
    assert collective("all_gather", group, toy, size_bytes=1.0).algorithm == "halving_doubling"
    assert collective("all_gather", np.arange(128)[None, :], toy, size_bytes=1.0).algorithm == "ring"
