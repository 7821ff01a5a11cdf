"""The choice: fastest line, irregular placements, degraded links, errors in one line."""

from __future__ import annotations

import time

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective, collective_time_s, offers
from simpar.cost.collectives.lines import list_serving
from simpar.cost.collectives.placement import place, regular_shape
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.units import GIB, KIB

from .conftest import make_toy


def test_auto_is_the_fastest_considered() -> None:
    """The automatic time is the minimum over the algorithms that the library considers."""
    here = load_cluster("dgx-h100", 16)
    sizes = np.logspace(2, 10, 60)
    best = collective_time_s("all_reduce", sizes, (16, 8), here)
    named = [collective_time_s("all_reduce", sizes, (16, 8), here, algorithm=a) for a in ("ring", "tree", "nvls")]
    np.testing.assert_array_equal(best, np.min(named, axis=0))


def test_small_messages_take_a_low_latency_protocol() -> None:
    """Small messages go by LL, large ones by Simple; NVLS takes over at large sizes."""
    here, group = load_cluster("dgx-h100", 1), np.arange(8)[None, :]
    small = collective("all_reduce", group, here, size_bytes=4.0 * KIB)
    large = collective("all_reduce", group, here, size_bytes=float(GIB))
    assert (small.algorithm, small.protocol) == ("ring", "ll")
    assert (large.algorithm, large.protocol) == ("nvls", "simple")


def test_one_member_costs_nothing() -> None:
    """A group of one neither waits nor sends."""
    toy = make_toy(1)
    cost = collective("all_reduce", np.arange(8)[:, None], toy, size_bytes=1e9)
    assert (cost.latency_s, len(cost.edges.link_id), cost.algorithm) == (0.0, 0, "none")
    assert collective_time_s("all_reduce", [1.0, 2.0], regular_shape(1, 1), toy).tolist() == [0.0, 0.0]


def test_irregular_groups_are_costed_each_as_placed() -> None:
    """Groups inside a node and across nodes in one call keep their own algorithm and links."""
    here = load_cluster("dgx-h100", 4)
    groups = np.array([[0, 1, 2, 3], [4, 5, 12, 13], [8, 9, 10, 11]])
    both = collective("all_reduce", groups, here, size_bytes=float(GIB))
    for index, group in enumerate(groups):
        alone = collective("all_reduce", group[None, :], here, size_bytes=float(GIB))
        mine = both.edges.take(both.edges.group_index == index)
        order = np.argsort(mine.link_id)
        assert mine.link_id[order].tolist() == alone.edges.link_id.tolist()
        assert both.latency_s >= alone.latency_s
        assert alone.algorithm in both.algorithm


def test_uneven_nodes_load_the_lonely_nic() -> None:
    """A member alone in its node moves the whole exchange over its one NIC."""
    toy = make_toy(2)
    cost = collective("all_gather", np.array([[0, 1, 2, 8]]), toy, size_bytes=1e9, algorithm="ring")
    load = {toy.link_name(k): c for k, c in zip(cost.edges.link_id, cost.edges.coefficient, strict=True)}
    assert load["nic_tx[8]"] == pytest.approx(3 / 4)
    assert load["nic_tx[0]"] == pytest.approx(1 / 4)


def test_a_degraded_link_slows_but_does_not_change_the_choice() -> None:
    """The library chooses on nominal links, then runs at the pace of the slowest."""
    here = load_cluster("dgx-h100", 4)
    slow = here.with_degraded({"nic_tx[3]": 0.25})
    group = np.arange(32)[None, :]
    before, after = (collective("all_gather", group, c, size_bytes=float(GIB)) for c in (here, slow))
    assert before.algorithm == after.algorithm
    assert after.solo_time_s(GIB, slow) > 2 * before.solo_time_s(GIB, here)
    assert collective_time_s("all_gather", GIB, (4, 8), slow) == collective_time_s("all_gather", GIB, (4, 8), here)


def test_sizes_keep_their_form() -> None:
    """Times have the shape of the sizes."""
    toy = make_toy(2)
    assert collective_time_s("all_reduce", 1.0, (2, 8), toy).shape == ()
    assert collective_time_s("all_reduce", np.ones((3, 2)), (2, 8), toy).shape == (3, 2)


@pytest.mark.parametrize(
    ("op", "algorithm", "message"),
    [
        ("allreduce", "auto", "unknown collective 'allreduce'; did you mean 'all_reduce'"),
        ("all_reduce", "rings", "unknown collective algorithm 'rings'; did you mean 'ring'"),
        ("all_to_all", "ring", "all_to_all has no ring form; allowed here: auto, direct"),
        ("all_gather", "nvls", "all_gather has no nvls form; allowed here: auto, ring"),
    ],
)
def test_errors_say_what_is_allowed(op: str, algorithm: str, message: str) -> None:
    """A wrong op or algorithm is one line with what would do."""
    with pytest.raises(UserError, match=message):
        collective(op, np.arange(8)[None, :], make_toy(1), size_bytes=1.0, algorithm=algorithm)


def test_algorithms_of_a_group() -> None:
    """The list of what can serve a group, by name."""
    placed = place(np.arange(8)[None, :], make_toy(1))
    assert list_serving("all_reduce", placed) == ["ring", "tree", "halving_doubling", "star"]
    with pytest.raises(UserError, match="unknown collective"):
        offers("gossip", np.arange(8), make_toy(1))


def test_bulk_is_fast() -> None:
    """131,072 ranks in 16,384 groups of 8 or 128 groups of 1,024 take well under a second."""
    here = load_cluster("dgx-h100", 16384)
    ranks = np.arange(131072)
    started = time.process_time()
    nodes = collective("all_reduce", ranks.reshape(16384, 8), here, size_bytes=1e9)
    rails = collective("reduce_scatter", ranks.reshape(1024, 128).T, here, size_bytes=1e9)
    assert time.process_time() - started < 3.0
    assert len(nodes.edges.link_id) == 2 * 131072
    assert len(rails.edges.link_id) >= 2 * 131072
