"""Words for networks as numbers: what published tables write, read by hand."""

import pytest

from simpar.hardware.catalogue import load_cluster
from simpar.validation.networks import Network, network_of
from simpar.validation.rows import case
from tests.validation.test_validate import ROW

GB = 1e9 / 8


@pytest.mark.parametrize(
    ("words", "nics", "gbits"),
    [
        ("8x200 Gb/s HDR IB per node", 8, 200),
        ("NVLink pairs + PCIe; 4x100 Gb/s", 4, 100),
        ("4 NICs of 100 Gb/s", 4, 100),
        ("4 NVLink links, 4x Omni-Path links per node", 4, 100),
        ("NVLink; 4x ConnectX-6 HDR IB per node", 4, 200),
        ("2x NVIDIA ConnectX-7", 2, 400),
        ("NVLink; 100 Gb/s RoCE per GPU", 8, 100),
        ("NVSwitch, 50 GB/s per GPU", 8, 400),
        ("1 Tb/s per node", 2, 500),
        ("800 Gb/s inter-node", 2, 400),
        ("100 Gbps between nodes", 1, 100),
        ("6x100 Gb/s", 2, 300),  # six do not go evenly to eight devices: two carry what they do
    ],
)
def test_words_are_numbers(words, nics, gbits):
    """NICs of a node of eight devices beside a profile with 16 NICs of 400 Gb/s."""
    usual = load_cluster("dgx-h100").profile.scale_out.model_copy(update={"nics_per_node": 16})
    assert network_of(words, 8, usual) == Network(nics, pytest.approx(gbits * GB))


@pytest.mark.parametrize(
    "words", ["", "InfiniBand", "NVLink 900 GB/s per GPU", "xGMI 4x64 GB/s", "NVSwitch single node", "8 nodes"]
)
def test_what_is_no_network_between_nodes_is_none(words):
    """Names alone, and links inside a node."""
    assert network_of(words, 8, load_cluster("dgx-h100").profile.scale_out) is None


def test_the_profile_s_own_network_is_no_other():
    """And where a profile has no network, words make none."""
    assert network_of("8x400 Gb/s", 8, load_cluster("dgx-h100").profile.scale_out) is None
    assert network_of("8x400 Gb/s", 8, None) is None
    assert Network(1, 100 * GB).words == "1 NIC of 100 Gb/s"


def test_rates_in_words_replace_those_of_the_profile() -> None:
    """Four nodes' NICs of 100 Gb/s in place of eight of 400; other words are listed, and one node has no network."""
    found = case({**ROW, "interconnect": "4x 100 Gb/s RoCE dragonfly"})
    assert found.hardware_changes == {"scale_out.nics_per_node": 4, "scale_out.nic_bandwidth": 12.5e9}
    assert "of interconnect not read: dragonfly" in found.read_as
    assert case({**ROW, "interconnect": "4x 100 Gb/s RoCE", "n_gpus": "8", "dp": "4"}).hardware_changes == {}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("25 Gb/s Ethernet", "dgx-h100 over 1x 25 Gb/s ethernet"), ("RoCE over Ethernet", "h100-roce-400"),
        ("NVLink; 2x 100 Gbps TCP", "dgx-h100 over 2x 100 Gb/s ethernet"),
        ("Ethernet, TCP sockets", "dgx-h100 over ethernet"),
    ],
)  # fmt: skip
def test_ethernet_without_rdma_is_tcp(words: str, named: str) -> None:
    """A network of its own kind, whose words are all read; RDMA over Ethernet is none."""
    found = case({**ROW, "interconnect": words})
    assert found.hardware == named
    assert "not read" not in found.read_as
    assert not found.hardware_changes


def test_a_rate_of_nothing_is_listed() -> None:
    """Of one card or of all of a node? Those inside a node, and all that are counted, are no question."""
    assert "of interconnect not read: 100 Gb/s" in case({**ROW, "interconnect": "NVLink; 100 Gb/s RoCE"}).read_as
    assert "not read" not in case({**ROW, "interconnect": "NVLink 900 GB/s; 4x 100 Gb/s RoCE"}).read_as
