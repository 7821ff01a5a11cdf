"""SHARP: one pass through the network, whatever the number of nodes."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective
from simpar.errors import UserError
from simpar.units import US

from .conftest import make_toy


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_flat_in_nodes(nodes: int) -> None:
    """A node sends S once, half of a ring's bytes, and latency does not grow with nodes."""
    toy = make_toy(nodes, up={"nvls": True}, out={"sharp": True}, sharp_us=31.0)
    cost = collective("all_reduce", np.arange(8 * nodes)[None, :], toy, size_bytes=1e9, algorithm="sharp")
    nic = [
        c
        for k, c in zip(cost.edges.link_id.tolist(), cost.edges.coefficient.tolist(), strict=True)
        if toy.link_name(k).startswith("nic")
    ]
    np.testing.assert_allclose(nic, 1 / 8)
    assert cost.latency_s == pytest.approx(31 * US)


def test_ports_without_switch_reduction() -> None:
    """Without NVLS the node reduces in a ring: 2(g-1)/g on ports, nothing with one member a node."""
    toy = make_toy(2, out={"sharp": True})
    cost = collective("all_reduce", np.arange(16)[None, :], toy, size_bytes=1e9, algorithm="sharp")
    assert cost.edges.coefficient.max() == pytest.approx(2 * 7 / 8)
    lone = collective("all_reduce", np.array([[0, 8]]), toy, size_bytes=1e9, algorithm="sharp")
    assert {toy.link_name(k).split("[")[0] for k in lone.edges.link_id.tolist()} == {"nic_tx", "nic_rx"}


def test_is_off_unless_the_profile_has_it() -> None:
    """Without ``scale_out.sharp`` it is refused by name and never chosen."""
    with pytest.raises(UserError, match=r"scale_out\.sharp is false"):
        collective("all_reduce", np.arange(16)[None, :], make_toy(2), size_bytes=1.0, algorithm="sharp")
    toy = make_toy(8, out={"sharp": True}, tree_hop_us=50.0, nic_hop_us=50.0)
    assert collective("all_reduce", np.arange(64)[None, :], toy, size_bytes=1e9).algorithm == "sharp"
