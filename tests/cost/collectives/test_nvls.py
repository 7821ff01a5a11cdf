"""NVLS: S + S/N on every port, and two trees between nodes."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective
from simpar.errors import UserError
from simpar.units import US

from .conftest import make_toy


def test_port_carries_the_tensor_once_and_a_share() -> None:
    """A port carries S + S/N each way."""
    toy = make_toy(1, up={"nvls": True})
    cost = collective("all_reduce", np.arange(8)[None, :], toy, size_bytes=1e9, algorithm="nvls")
    np.testing.assert_allclose(cost.edges.coefficient, 1 + 1 / 8)


def test_beats_the_ring_from_a_certain_size() -> None:
    """With the same efficiency the switch moves (1 + 1/N) against 2(N-1)/N: it wins from four members on."""
    toy = make_toy(1, up={"nvls": True})
    chosen = [collective("all_reduce", np.arange(n)[None, :], toy, size_bytes=1e9).algorithm for n in (2, 3, 4, 8)]
    assert chosen == ["ring", "ring", "nvls", "nvls"]


def test_between_nodes() -> None:
    """Two nodes exchange the data once, more nodes twice, over all NICs of a node."""
    for nodes, volume in ((2, 1.0), (4, 2.0)):
        toy = make_toy(nodes, up={"nvls": True}, nvls_us=5.0, tree_hop_us=10.0)
        cost = collective("all_reduce", np.arange(8 * nodes)[None, :], toy, size_bytes=1e9, algorithm="nvls")
        nic = [
            c
            for k, c in zip(cost.edges.link_id.tolist(), cost.edges.coefficient.tolist(), strict=True)
            if toy.link_name(k).startswith("nic_tx")
        ]
        np.testing.assert_allclose(nic, volume / 8)
        assert cost.latency_s == pytest.approx((5 + 20 * np.log2(nodes)) * US)


def test_needs_the_switch() -> None:
    """A fabric whose switches do not reduce is refused by name."""
    with pytest.raises(UserError, match="switches of toy do not reduce"):
        collective("all_reduce", np.arange(8)[None, :], make_toy(1), size_bytes=1.0, algorithm="nvls")
