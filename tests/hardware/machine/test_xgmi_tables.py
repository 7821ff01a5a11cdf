"""Tables of rocm-smi and amd-smi: what they tell, and what is damaged."""

import json

import pytest

from simpar.errors import UserError
from simpar.hardware.machine.profile_of import import_profile
from simpar.hardware.machine.reading import Links
from simpar.hardware.machine.xgmi_tables import is_tables, read_tables


def rocm(inside="XGMI", between="XGMI", hops="1", devices=8):
    """What rocm-smi --showtopo prints of a node: links inside of hives of four, and between these."""
    names = "       " + "".join(f"GPU{at:<9}" for at in range(devices))

    def table(heading, near, far):
        def cell(one, other):
            return "0" if one == other else near if one // 4 == other // 4 else far

        rows = ["".join(f"{cell(one, other):<12}" for other in range(devices)) for one in range(devices)]
        return [f"{heading:=^90}", names, *(f"GPU{one}   {row}" for one, row in enumerate(rows)), ""]

    return "\n".join(
        [
            *table(" Weight between two GPUs ", "15", "15"),
            *table(" Hops between two GPUs ", hops, hops),
            *table(" Link Type between two GPUs ", inside, between),
            f"{' Numa Nodes ':=^90}", "GPU[0]\t\t: (Topology) Numa Node: 0", f"{' End of ROCm SMI Log ':=^90}",
        ]
    )  # fmt: skip


AMD_SMI = """HOPS TABLE:
             0000:05:00.0 0000:15:00.0
0000:05:00.0 0            1
0000:15:00.0 1            0

LINK TYPE TABLE:
             0000:05:00.0 0000:15:00.0
0000:05:00.0 SELF         XGMI
0000:15:00.0 XGMI         SELF

NUMA BW TABLE:
             0000:05:00.0 0000:15:00.0
0000:05:00.0 N/A          50000-50000
0000:15:00.0 50000-50000  N/A
"""


def test_a_mesh():
    """Every two devices by one link."""
    found = read_tables(rocm(), "topo.txt")
    assert (found.facts["devices_per_node"].value, found.links) == (8, Links("topo.txt", 7, switched=False))
    found = read_tables(AMD_SMI, "topo.txt")
    assert (found.facts["devices_per_node"].value, found.links) == (2, Links("topo.txt", 1, switched=False))


def listed(far="XGMI", hops=1, devices=4):
    """What amd-smi topology --json prints."""
    names = [f"0000:{at:02x}:00.0" for at in range(devices)]
    return json.dumps(
        [
            {"gpu": one, "bdf": names[one], "links": [
                {"gpu": other, "bdf": names[other], "link_type": "SELF" if one == other else far,
                 "num_hops": 0 if one == other else hops} for other in range(devices)]}
            for one in range(devices)
        ],
        indent=4,
    )  # fmt: skip


def test_the_json_of_amd_smi():
    """As its tables."""
    assert is_tables(listed())
    assert read_tables(listed(), "x").links == Links("x", 3, switched=False)
    assert read_tables(listed(hops=2), "x").links is None
    assert read_tables(listed(far="PCIE"), "x").facts["scale_up.kind"].value == "pcie"
    for text in ('[{"bdf": "a", "link_type": 1, "num_hops": 1}]', listed(far="NVLINK"), listed().replace("links", "x")):
        with pytest.raises(UserError, match="x: not a topology of amd-smi"):
            read_tables(text, "x")
    with pytest.raises(UserError, match=r"x:.*not valid JSON"):
        read_tables(listed()[:-40], "x")


def test_groups_and_ways_over_others():
    """Two hives of four talk over PCIe; devices two hops apart are no mesh; one device has no links."""
    hives = read_tables(rocm(between="PCIE"), "x")
    assert hives.facts["scale_up.kind"].value == "pcie"
    assert any("xGMI joins 4 and 4 of 8 GPUs" in line for line in hives.unread)
    assert read_tables(rocm("PCIE", devices=4), "x").facts["scale_up.kind"].value == "pcie"
    far = read_tables(rocm(hops="2"), "x")
    assert far.links is None
    assert any("does not join every pair" in line for line in far.unread)
    assert "scale_up.kind" not in read_tables(rocm(devices=1), "x").facts


def test_as_a_profile(tmp_path):
    """The rate of its links is that of the device of --like."""
    path = tmp_path / "topo.txt"
    path.write_text(rocm())
    found = import_profile([str(path)], "ours", like="mi300x-8", folder=tmp_path)
    assert {key: fact.value for key, fact in found.facts.items()} == {
        "devices_per_node": 8, "scale_up.kind": "mesh", "scale_up.bandwidth": "448 GB/s",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (rocm().replace("XGMI", "xyz", 1), r"topo\.txt:\d+: row GPU0 of the table: 'xyz'"),
        (rocm()[: rocm().rindex("GPU7")], "the table of link type has 7 rows, and not as many columns"),
    ],
)
def test_a_damaged_table_is_refused(text, words):
    """Another word, a table that is cut."""
    assert is_tables(text)
    with pytest.raises(UserError, match=words):
        read_tables(text, "topo.txt")
