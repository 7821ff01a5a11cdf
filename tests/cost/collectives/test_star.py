"""Star: the root's port serialises."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective

from .conftest import make_toy


@pytest.mark.parametrize(("op", "most"), [("broadcast", 7), ("reduce", 7), ("scatter", 7 / 8), ("gather", 7 / 8)])
def test_root_carries_all(op: str, most: float) -> None:
    """The root carries N-1 messages, of S or of S/N."""
    cost = collective(op, np.arange(8)[None, :], make_toy(1), size_bytes=1e9, algorithm="star")
    assert cost.edges.coefficient.max() == pytest.approx(most)


def test_parameter_server() -> None:
    """An all-reduce at a server receives N-1 gradients on one port and sends N-1 results on the other."""
    toy = make_toy(1)
    cost = collective("all_reduce", np.arange(8)[None, :], toy, size_bytes=1e9, algorithm="star")
    load = {toy.link_name(k): c for k, c in zip(cost.edges.link_id, cost.edges.coefficient, strict=True)}
    assert load["port_tx[0]"] == load["port_rx[0]"] == pytest.approx(7)
    assert load["port_tx[3]"] == load["port_rx[3]"] == pytest.approx(1)


def test_far_members_share_the_root_nic() -> None:
    """Members of other nodes are reached over the root's NIC, those of its own over its port."""
    toy = make_toy(2)
    group = np.array([[0, 1, 2, 8]])
    cost = collective("broadcast", group, toy, size_bytes=1e9, algorithm="star")
    load = {toy.link_name(k): c for k, c in zip(cost.edges.link_id, cost.edges.coefficient, strict=True)}
    assert load["port_tx[0]"] == pytest.approx(2)
    assert load["nic_tx[0]"] == pytest.approx(1)


def test_automatic_only_for_scatter_and_gather() -> None:
    """A broadcast takes a ring by itself; a scatter has no other form than the star."""
    toy = make_toy(1)
    chosen = [collective(op, np.arange(8)[None, :], toy, size_bytes=1e9).algorithm for op in ("broadcast", "scatter")]
    assert chosen == ["ring", "star"]
