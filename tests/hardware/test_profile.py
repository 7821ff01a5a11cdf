"""Every cluster profile that ships passes one suite; profiles that cannot be are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simpar.errors import UserError
from simpar.files import bundled, parse
from simpar.hardware.catalogue import load_cluster, written
from simpar.hardware.cluster import Cluster
from simpar.hardware.device import load_device
from simpar.hardware.profile import ClusterProfile
from simpar.units import GB, GIB

CLUSTERS = tuple(bundled("clusters"))


def cluster_of(name: str, nodes: int = 2) -> Cluster:
    """Two nodes where the profile has a network, else one."""
    try:
        return load_cluster(name, nodes)
    except UserError:
        return load_cluster(name, 1)


@pytest.mark.parametrize("name", CLUSTERS)
def test_profile_is_plausible(name: str) -> None:
    """Its device ships, sources are given, and the fabric inside a node is no slower than the way out of it."""
    profile = load_cluster(name).profile
    assert profile.name == name
    assert all(len(source) > 20 for source in profile.sources)
    assert profile.sources
    assert load_device(profile.device).name == profile.device
    assert 2 * GB < profile.scale_up.bandwidth < 2000 * GB
    assert profile.host.memory_bytes > 8 * GIB
    if profile.scale_out:
        rate = profile.scale_out.nic_bandwidth * profile.scale_out.nics_per_node / profile.devices_per_node
        assert 0.5 * GB < rate <= profile.scale_up.bandwidth
    assert profile.provenance


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_every_rank_reaches_every_other(name: str, nodes: int) -> None:
    """Every pair of ranks is joined by links of positive capacity, both ways by as many; nobody to itself."""
    cluster = cluster_of(name, nodes)
    assert (cluster.link_capacity_bytes_per_s > 0).all()
    ranks = np.arange(min(cluster.world_size, 48))
    src, dst = (pair.ravel() for pair in np.meshgrid(ranks, ranks))
    there, links = cluster.route(src, dst)
    back, _ = cluster.route(dst, src)
    crossed = np.bincount(there, minlength=len(src))
    assert ((crossed > 0) == (src != dst)).all()
    assert (crossed == np.bincount(back, minlength=len(src))).all()
    assert links.min(initial=0) >= 0
    assert links.max(initial=0) < cluster.num_links


@pytest.mark.parametrize("name", CLUSTERS)
def test_links_are_numbered_without_gaps(name: str) -> None:
    """Every link id belongs to exactly one name."""
    cluster = cluster_of(name)
    names = [cluster.link_name(link) for link in range(cluster.num_links)]
    assert len(set(names)) == cluster.num_links == len(cluster.link_capacity_bytes_per_s)
    with pytest.raises(IndexError):
        cluster.link_name(cluster.num_links)


def changed(tmp_path: Path, name: str, old: str, new: str) -> Path:
    """A shipped profile with one text replaced."""
    text = bundled("clusters")[name].read_text()
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("tpu-v5e-pod", "dims: [16, 16]", "dims: [16, 8]", r"scale_up.dims = \[16, 8\]: must hold 256 devices"),
        ("tpu-v5e-pod", "dims: [16, 16]", "dims: []", "a torus needs its sides"),
        ("hgx-h100", "nvls: true", "dims: [4, 2]", r"dims = \[4, 2\]: a torus needs its sides.*others have none"),
        ("gb200-nvl72", "domain: 72", "domain: 70", "scale_up.domain = 70: allowed: multiples of 4"),
        ("hgx-h100", "kind: nvswitch", "kind: nvlink", r"mine.yaml:\d+: scale_up.kind = 'nvlink'"),
        ("hgx-h100", "nic_bandwidth: 400 Gb/s", "nic_bandwidth: 400", r"nic_bandwidth = 400: needs a unit"),
        ("meta-llama3-h100", "oversubscription: 7", "oversubscription: 0.5", r"greater than or equal to 1"),
        ("hgx-h100", "device: h100-sxm-80gb", "device: h100", "unknown device 'h100'; did you mean"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    """A profile that cannot be is one clear line that names the file's key."""
    with pytest.raises(UserError, match=message):
        load_cluster(str(changed(tmp_path, name, old, new)), 1)


def test_device_files_lie_beside_the_profile(tmp_path: Path) -> None:
    """A profile may name its own device file, relative to itself."""
    path = changed(tmp_path, "hgx-h100", "device: h100-sxm-80gb", "device: my-gpu.yaml")
    (tmp_path / "my-gpu.yaml").write_text(bundled("devices")["h100-sxm-80gb"].read_text())
    assert load_cluster(path, 2).device.num_sms == 132


def test_a_profile_is_as_good_as_its_name() -> None:
    """The Python constructor takes a profile that is read already; one node is the default."""
    profile = load_cluster("dgx-h100").profile
    assert load_cluster(profile, nodes=16).world_size == 128
    assert load_cluster("dgx-h100").nodes == 1


@pytest.mark.parametrize("nodes", [0, -1, 10**9, True, 2.0, "2"])
def test_impossible_numbers_of_nodes(nodes: int) -> None:
    """Numbers of nodes out of range are refused."""
    with pytest.raises(UserError, match=r"nodes = .*: allowed: 1 to 262144"):
        load_cluster("hgx-h100", nodes)


@pytest.mark.parametrize(
    ("name", "nodes", "rule"), [("laptop-cpu", 2, "nodes = 1"), ("tpu-v4-pod", 1025, "up to 1024")]
)
def test_boxes_without_network_end_where_they_end(name: str, nodes: int, rule: str) -> None:
    """A laptop has one node, a TPU v4 pod 1,024 hosts."""
    with pytest.raises(UserError, match=f"has no network between nodes; allowed: .*{rule}"):
        load_cluster(name, nodes)


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_profile_of_ones_own_is_written_out_whole(name):
    """A shipped profile under another name comes back as it was, device included; under its own it is named."""
    cluster = load_cluster(name)
    assert written(cluster) == name
    own = replace(cluster, profile=cluster.profile.model_copy(update={"name": "ours", "device": cluster.device}))
    again = parse(ClusterProfile, written(own), source="a plan")
    for (_, one), (_, other) in zip(leaves(own.profile.model_dump()), leaves(again.model_dump()), strict=True):
        assert one == (pytest.approx(other, rel=1e-13) if isinstance(one, float) else other)


def leaves(data, at=()):
    """Values of nested data by place."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, (*at, key))
    elif isinstance(data, list | tuple):
        for number, value in enumerate(data):
            yield from leaves(value, (*at, number))
    else:
        yield at, data
