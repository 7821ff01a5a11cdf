"""NCCL's topology: what it tells, and XML that is not read."""

import pytest

from simpar.errors import UserError
from simpar.files import bundled
from simpar.hardware.machine.nccl_xml import DEVICES, read_topology
from simpar.hardware.machine.reading import Links
from tests.hardware.machine.samples import rccl, topology


def values(reading):
    """Facts without where they come from."""
    return {key: fact.value for key, fact in reading.facts.items()}


def test_devices_links_switches_and_cards():
    """The device by its PCI id, links through switches, the fastest cards; slower ones and the fabric are listed."""
    found = read_topology(topology(eth0=25000), "nccl.xml")
    assert values(found) == {
        "devices_per_node": 8,
        "scale_out.nics_per_node": 8,
        "scale_out.nic_bandwidth": "400 Gb/s",
        "host.devices_per_switch": 1,
    }
    assert found.devices == ("h200-sxm",)
    assert found.links == Links("nccl.xml", 18, switched=True)
    said = "\n".join(found.unread)
    assert "1 of 25 Gb/s" in said
    assert "InfiniBand from RoCE" in said
    assert "63.0 GB/s by their clock" in said  # 32 GT/s x 16 lanes x 128 / 130 / 8


def test_links_from_device_to_device():
    """Two GPUs with twelve links to each other are joined by them; links that miss a pair are listed."""
    pair = topology(2, "0x20b5", '<nvlink target="other" count="12" tclass="0x030200"/>')
    assert read_topology(pair, "x").links == Links("x", 12, switched=False)
    ring = topology(4, "0x20b5", '<nvlink target="next" count="12" tclass="0x030200"/>')
    found = read_topology(ring, "x")
    assert found.links is None
    assert any("do not join every pair" in line for line in found.unread)
    assert values(read_topology(topology(4, "0x2204", ""), "x"))["scale_up.kind"] == "pcie"


def test_meshes_of_rccl():
    """Links of xGMI are a mesh of the devices, not PCIe; where one is missing, that is said."""
    found = read_topology(rccl(), "x")
    assert found.devices == ("mi300x",)
    assert found.links == Links("x", 7, switched=False)
    assert "scale_up.kind" not in found.facts
    assert read_topology(rccl(device="0x74a5"), "x").devices == ("mi325x",)
    broken = read_topology(rccl(missing=1), "x")
    assert broken.links is None
    assert any("GPUs have [6, 7] xGMI links" in line for line in broken.unread)


def test_cards_without_a_speed():
    """Those on the widest PCIe links count, and their speed is said to be unknown; one among others is left out."""
    text = topology(2, eth0=25000).replace(' speed="400000"', "").replace(' speed="25000"', "")
    wide = text.replace('device="0x1021">', 'device="0x1021" link_speed="32.0 GT/s PCIe" link_width="16">')
    found = read_topology(
        wide.replace(
            '<nic><net name="eth0', '<pci link_speed="8.0 GT/s PCIe" link_width="4"><nic><net name="eth0'
        ).replace("</nic></cpu>", "</nic></pci></cpu>"),
        "x",
    )
    assert values(found)["scale_out.nics_per_node"] == 2
    assert "scale_out.nic_bandwidth" not in found.facts
    said = "\n".join(found.unread)
    assert "no network card of the file has a speed, at most the 504 Gb/s of their PCIe links" in said
    assert "1 of 32 Gb/s: left out" in said
    assert values(read_topology(text, "x"))["scale_out.nics_per_node"] == 3
    strange = read_topology(topology(2).replace('speed="400000"', 'speed="200000000"'), "x").unread
    assert any("net speed = 200000000: not the Mb/s of a card" in line for line in strange)
    assert any("no network card of the file has a speed" in line for line in strange)
    for untold in ("", ' speed="-1"', ' speed="0"'):
        mixed = read_topology(topology(2).replace(' speed="400000"', untold, 1), "x")
        assert values(mixed)["scale_out.nic_bandwidth"] == "400 Gb/s"
        assert any("1 of 2 network cards have no speed" in line for line in mixed.unread)


def test_every_shipped_device_is_known_by_its_pci_id():
    """All GPUs; variants of one PCI id, and devices of which NCCL writes no file, are named here."""
    without = {"cpu-laptop", "b200-sxm-throttled", "b200-sxm-limited", "h100-sxm-96gb-500w", "vr200", "mi455x"}
    others = {name for name in bundled("devices") if name.startswith(("tpu", "trainium", "gaudi", "ascend"))} | without
    assert set(DEVICES.values()) == set(bundled("devices")) - others
    assert read_topology(topology(device="0x2329"), "x").devices == ("h20-sxm",)


def test_several_hosts_in_one_file_are_counted_by_host():
    """A rack whose hosts NVLink joins: devices and cards of one host; the domain is left to the user."""
    one = topology(4)
    two = one.replace("</system>", one[len('<system version="1">') :].replace("0x1", "0x2", 1))
    found = read_topology(two, "x")
    assert values(found)["devices_per_node"] == 4
    assert values(found)["scale_out.nics_per_node"] == 4
    assert any("scale_up.domain: NVLinks join 8 GPUs of 2 hosts" in line for line in found.unread)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<!DOCTYPE x [<!ENTITY a "b">]><system/>', "document types and entities"),
        (topology()[:500], "not valid XML"),
        ("<system><cpu/></system>", "no gpu below a cpu: allowed: what NCCL writes to NCCL_TOPO_DUMP_FILE; a graph is"),
        ('<system><cpu><pci busid="ffff:ff:01.0"/></cpu></system>', "one for NCCL_TOPO_FILE lists PCI switches alone"),
        ("<graphs><cpu><gpu/></cpu></graphs>", "the outermost element is graphs"),
        ("<a>" * 60 + "</a>" * 60, "nested more than"),
        (topology().replace('speed="400000"', 'speed="fast"', 1), "net speed = 'fast'"),
        (topology(links='<nvlink count="-1"/>'), "nvlink count = '-1'"),
    ],
)
def test_what_is_no_such_file_is_refused(text, words):
    """Entities, cut files, graphs, depths, numbers that are none."""
    with pytest.raises(UserError, match=words):
        read_topology(text, "nccl.xml")


def test_sockets_are_told_from_rdma():
    """Cards of NCCL's sockets have no port and 65,536 connections; one with a port among them tells nothing."""
    text = topology(2, eth0=25000).replace('speed="400000" port="1"', 'speed="25000" port="0" maxconn="65536"')
    tcp = text.replace('dev="9"', 'dev="9" port="0" maxconn="65536"')
    assert values(read_topology(tcp, "x"))["scale_out.kind"] == "ethernet"
    assert "scale_out.kind" not in values(read_topology(tcp.replace('port="0"', 'port="1"', 1), "x"))


def test_a_link_of_a_width_without_end():
    """Digits that no float holds say nothing of the link."""
    told = topology(eth0=25000)
    assert any("pcie_bandwidth" in line for line in read_topology(told, "x").unread)
    wide = told.replace('link_width="16"', f'link_width="{"9" * 400}"')
    assert not any("pcie_bandwidth" in line for line in read_topology(wide, "x").unread)
