"""Messages in a torus go dimension by dimension, the short way round."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.hardware.catalogue import load_cluster
from simpar.hardware.torus import hops, slice_sides


@pytest.mark.parametrize(
    ("chips", "sides"),
    [
        (4, (1, 2, 2)), (8, (2, 2, 2)), (32, (2, 4, 4)), (64, (4, 4, 4)), (128, (4, 4, 8)), (256, (4, 8, 8)),
        (512, (8, 8, 8)), (1024, (8, 8, 16)), (2048, (8, 16, 16)), (4096, (16, 16, 16)), (6144, (16, 16, 24)),
    ],
)  # fmt: skip
def test_slices_of_a_v5p_pod(chips: int, sides: tuple[int, ...]) -> None:
    """The table of slice shapes in Google's documentation of TPU v5p."""
    assert slice_sides(chips, (16, 16, 24), 4) == sides


@pytest.mark.parametrize(
    ("chips", "sides"), [(16, (4, 4)), (32, (4, 8)), (64, (8, 8)), (128, (8, 16)), (256, (16, 16))]
)
def test_slices_of_a_v5e_pod(chips: int, sides: tuple[int, ...]) -> None:
    """The table of slice shapes in Google's documentation of TPU v5e."""
    assert slice_sides(chips, (16, 16), 16) == sides


@given(st.integers(1, 512), st.sampled_from([(8, 8, 8), (16, 16), (512,), (2, 4, 8, 8)]))
def test_a_slice_holds_its_devices_and_fits_the_pod(count: int, most: tuple[int, ...]) -> None:
    """Whatever the number of devices, there is a box for it inside the pod."""
    count = min(count, math.prod(most))
    sides = slice_sides(count, most, 4)
    assert count <= math.prod(sides) <= math.prod(most)
    assert all(a <= b for a, b in zip(sorted(sides), sorted(most), strict=True))


SIDES = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)


@given(SIDES, st.sampled_from([1, 2, 4, 7]), st.data())
def test_hops_form_a_shortest_path(sides: tuple[int, ...], wrap: int, data: st.DataObject) -> None:
    """Hops join source and destination without a gap; their number is the distance, the same back."""
    rank = st.integers(0, math.prod(sides) - 1)
    pairs = data.draw(st.lists(st.tuples(rank, rank), min_size=1, max_size=8))
    src, dst = np.array(pairs).T
    message, left, reached = hops(src, dst, sides, wrap)
    for index, (start, end) in enumerate(pairs):
        here, there = (np.array(np.unravel_index(rank, sides)) for rank in (start, end))
        away = np.abs(here - there)
        rings = np.array([side % wrap == 0 for side in sides])
        distance = np.where(rings, np.minimum(away, np.array(sides) - away), away).sum()
        mine = message == index
        assert mine.sum() == distance
        assert [start, *reached[mine]] == [*left[mine], end]
    back, _, _ = hops(dst, src, sides, wrap)
    assert len(back) == len(message)


def test_a_ring_is_closed_where_the_side_is_whole() -> None:
    """Three steps along a ring of four are one step back; half of a v5e side is a line."""
    ring, line = load_cluster("tpu-v4-pod", 16), load_cluster("tpu-v5e-pod", 2)
    assert (ring.torus_sides, line.torus_sides) == ((4, 4, 4), (4, 4))
    for cluster, num_hops in ((ring, 1), (line, 3)):
        _, links = cluster.route(np.array([0]), np.array([3]))
        assert len(links) == 2 * num_hops
        assert {cluster.link_name(link).split("[")[0] for link in links.tolist()} == {"port_tx", "port_rx"}


def test_pods_are_joined_by_the_network() -> None:
    """Inside the second v5e pod messages hop among its own chips; between pods they leave by the host's NICs."""
    cluster = load_cluster("tpu-v5e-pod", 64)
    assert cluster.torus_sides == (16, 16)
    message, links = cluster.route(np.array([256, 0]), np.array([258, 300]))
    names = [[cluster.link_name(link) for link in links[message == i].tolist()] for i in range(2)]
    assert sorted(names[0]) == ["port_rx[257]", "port_rx[258]", "port_tx[256]", "port_tx[257]"]
    assert names[1] == ["nic_tx[0]", "nic_rx[75]"]


def test_all_pairs_load_the_links_of_a_torus_evenly() -> None:
    """By symmetry every port of a closed torus carries the same number of messages, up to ties broken one way."""
    cluster = load_cluster("tpu-v4-pod", 16)
    ranks = np.arange(64)
    src, dst = (pair.ravel() for pair in np.meshgrid(ranks, ranks))
    _, links = cluster.route(src, dst)
    sent = np.bincount(links, minlength=cluster.num_links)[cluster.port_tx(ranks)]
    assert sent.min() == sent.max()
