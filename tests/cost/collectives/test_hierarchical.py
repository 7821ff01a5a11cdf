"""Hierarchical: rings inside domains and along rails."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective, collective_time_s
from simpar.cost.collectives.placement import regular_shape
from simpar.errors import UserError
from simpar.units import US

from .conftest import make_toy


def test_two_levels() -> None:
    """Ports carry 2(g-1)/g, NICs 2(n-1)/n of S/g; steps are 2(g-1) inside and 2(n-1) across."""
    toy = make_toy(4, port_hop_us=1.0, nic_hop_us=10.0)
    cost = collective("all_reduce", np.arange(32)[None, :], toy, size_bytes=1e9, algorithm="hierarchical")
    kinds = {toy.link_name(k).split("[")[0]: c for k, c in zip(cost.edges.link_id, cost.edges.coefficient, strict=True)}
    assert kinds["port_tx"] == pytest.approx(2 * 7 / 8)
    assert kinds["nic_rx"] == pytest.approx(2 * 3 / 4 / 8)
    assert cost.latency_s == pytest.approx((14 + 60) * US)


def test_fewer_steps_than_a_ring() -> None:
    """With free links and equal hops it beats the flat ring, which takes N-1 steps."""
    toy = make_toy(4, port_hop_us=1.0, far_hop_us=1.0, nic_hop_us=1.0)
    flat, levels = (
        float(collective_time_s("all_gather", 0.0, regular_shape(4, 8), toy, algorithm=name))
        for name in ("ring", "hierarchical")
    )
    assert (flat, levels) == (pytest.approx(31 * US), pytest.approx(10 * US))


@pytest.mark.parametrize("group", [np.arange(8), np.array([0, 8, 16]), np.array([0, 1, 8])])
def test_needs_equal_domains(group: np.ndarray) -> None:
    """One node, one member a node, or uneven nodes are refused by name."""
    with pytest.raises(UserError, match="several domains with equally many members"):
        collective("all_reduce", group[None, :], make_toy(4), size_bytes=1.0, algorithm="hierarchical")
