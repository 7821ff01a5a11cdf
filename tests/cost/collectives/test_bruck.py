"""Bruck's all-to-all: rounds and bytes by the formulas of its paper (IEEE TPDS 8(11), 1997), what they are good for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from simpar.cost.collectives.algorithms import ALGORITHMS
from simpar.cost.collectives.algorithms.bruck import rounds_of
from simpar.cost.collectives.choice import collective_time_s
from simpar.cost.collectives.lines import raw_costs, unit_loads
from simpar.cost.collectives.placement import place
from simpar.hardware.catalogue import load_cluster
from simpar.units import KIB, MIB

NODE = load_cluster("dgx-h100", 1)
CLUSTER = load_cluster("dgx-h100", 128)


@pytest.mark.parametrize("members", [2, 3, 4, 6, 8, 9, 64])
def test_every_block_arrives(members):
    """Handed on by the rule, block j of every member has travelled j places: ceil(log2 N) rounds, sizes as stated."""
    sent = rounds_of(members)
    at = np.tile(np.arange(members)[:, None], members)  # where the block for distance j of member i is
    for k, blocks in enumerate(sent):
        moves = np.flatnonzero(np.arange(members) >> k & 1)
        assert len(moves) == blocks <= members / 2 + 1
        at[:, moves] = (at[:, moves] + (1 << k)) % members
    assert len(sent) == math.ceil(math.log2(members))
    assert (at == (np.arange(members)[:, None] + np.arange(members)) % members).all()


def test_bytes_of_a_port_in_one_node():
    """N/2 log2 N blocks of S/N: 1.5 S for eight members, where a direct exchange sends 7/8 S."""
    for algorithm, expected in (("bruck", 1.5), ("direct", 7 / 8)):
        loads = unit_loads("all_to_all", place(np.arange(8)[None, :], NODE), ALGORITHMS[algorithm])
        assert loads.coefficient.tolist() == [expected] * 16


def test_small_blocks_over_many_nodes_gain_large_ones_lose():
    """1,024 members save the latency of peers at 1 KiB, and pay for what travels several times at 256 MiB."""
    shape, sizes = place(np.arange(1024)[None, :], CLUSTER).shape, (1.0 * KIB, 256.0 * MIB)
    bruck, direct = (
        collective_time_s("all_to_all", sizes, shape, CLUSTER, algorithm=name) for name in ("bruck", "direct")
    )
    assert bruck[0] < 0.5 * direct[0]
    assert bruck[1] > 2 * direct[1]


def test_it_has_to_be_named():
    """NCCL would not take it, so that no prediction does."""
    found = [each.algorithm for each in raw_costs("all_to_all", place(np.arange(256)[None, :], CLUSTER))]
    assert found == ["direct"]
