"""Fitted profiles against a few published figures; the whole table is benchmarks/fit_collectives.py."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.collectives.choice import collective, collective_time_s
from simpar.hardware.catalogue import load_cluster
from simpar.units import GB, GIB, MIB, US


def bus(op: str, cluster: str, shape: tuple[int, int], size: float, algorithm: str = "auto") -> float:
    """Predicted bus bandwidth, GB/s."""
    members = shape[0] * shape[1]
    factor = (2 if op == "all_reduce" else 1) * (members - 1) / members
    here = load_cluster(cluster, shape[0])
    return size * factor / float(collective_time_s(op, size, shape, here, algorithm=algorithm)) / GB


@pytest.mark.parametrize(
    ("members", "algorithm", "measured"),
    [(4, "ring", 363), (8, "ring", 366), (5, "nvls", 414), (6, "nvls", 436), (7, "nvls", 460), (8, "nvls", 473)],
)
def test_h200_node(members: int, algorithm: str, measured: float) -> None:
    """8 GiB all-reduce in an H200 node, GB/s (Bekman, ML Engineering, network/benchmarks)."""
    assert bus("all_reduce", "hgx-h200", (1, members), 8.0 * GIB, algorithm) == pytest.approx(measured, rel=0.06)


def test_h200_switches_to_nvls_between_four_and_six() -> None:
    """NCCL takes the ring with 4 devices and NVLS from 5 or 6 on."""
    here = load_cluster("hgx-h200", 1)
    chosen = [collective("all_reduce", np.arange(n)[None, :], here, size_bytes=8.0 * GIB).algorithm for n in (3, 6, 8)]
    assert chosen == ["ring", "nvls", "nvls"]


@pytest.mark.parametrize(
    ("nodes", "size_mib", "measured"),
    [
        (8, 16, 83), (8, 128, 259), (8, 1024, 349), (64, 16, 58), (64, 128, 212), (64, 1024, 341),
        (1024, 16, 35), (1024, 128, 158), (1024, 1024, 308),
    ],
)  # fmt: skip
def test_dgx_h100_all_reduce(nodes: int, size_mib: int, measured: float) -> None:
    """NVLSTree all-reduce on DGX H100, GB/s (NVIDIA GTC 2025, S72583)."""
    assert bus("all_reduce", "dgx-h100", (nodes, 8), size_mib * MIB) == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize(("per_node", "measured"), [(1, 48.2), (2, 97.3), (4, 194.4), (8, 324.3)])
def test_bandwidth_follows_the_devices_of_a_node(per_node: int, measured: float) -> None:
    """16 GiB all-gather over 10 H100 nodes at 400 Gb/s: 49 GB/s a device of a node, until it binds."""
    assert bus("all_gather", "dgx-h100", (10, per_node), 16.0 * GIB) == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(("nodes", "measured"), [(2, 478), (4, 357), (8, 355), (16, 356), (32, 321)])
def test_p5_all_reduce(nodes: int, measured: float) -> None:
    """8 GiB all-reduce on AWS P5 with EFA, GB/s (AWS P5 scaling study, 2 to 32 nodes)."""
    assert bus("all_reduce", "aws-p5", (nodes, 8), 8.0 * GIB) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("nodes", "measured"), [(2, 79.2), (4, 54.1), (8, 49.6), (16, 44.2), (32, 40.8)])
def test_p5_all_to_all(nodes: int, measured: float) -> None:
    """2 GiB all-to-all on AWS P5 with EFA, GB/s (AWS P5 scaling study)."""
    assert bus("all_to_all", "aws-p5", (nodes, 8), 2.0 * GIB) == pytest.approx(measured, rel=0.12)


@pytest.mark.parametrize(("cluster", "low", "high"), [("dgx-h100", 20, 60), ("dgx-a100-80gb", 30, 70)])
def test_small_messages_are_all_latency(cluster: str, low: float, high: float) -> None:
    """An 8 KiB all-reduce in a node takes tens of microseconds (Azure AI benchmarking guide: 27, 43)."""
    seconds = float(collective_time_s("all_reduce", 8192, (1, 8), load_cluster(cluster, 1)))
    assert low * US < seconds < high * US


@pytest.mark.parametrize(("op", "measured"), [("all_gather", 158), ("all_to_all", 153)])
def test_h800_node(op: str, measured: float) -> None:
    """NVLink of an H800 reaches 153 to 158 GB/s of 200 (DeepEP, performance of intranode kernels)."""
    assert bus(op, "hgx-h800", (1, 8), 1.0 * GIB) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(("less", "whole"), [("hgx-h800", "dgx-h100"), ("hgx-a800", "dgx-a100-80gb")])
def test_fewer_links_slow_groups_inside_a_node_alone(less: str, whole: str) -> None:
    """The same chips and NICs: what travels over the network is as fast."""
    inside, across = (
        bus("all_gather", less, shape, 1.0 * GIB) / bus("all_gather", whole, shape, 1.0 * GIB)
        for shape in ((1, 8), (8, 1))
    )
    links = load_cluster(less, 1).profile.scale_up.bandwidth / load_cluster(whole, 1).profile.scale_up.bandwidth
    assert inside == pytest.approx(links, rel=0.02)
    assert across == 1.0
