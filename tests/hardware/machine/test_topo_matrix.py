"""The matrix of nvidia-smi: what it tells, and what is damaged."""

import pytest

from simpar.errors import UserError
from simpar.hardware.machine.profile_of import import_profile
from simpar.hardware.machine.reading import Links
from simpar.hardware.machine.topo_matrix import is_matrix, read_matrix
from tests.hardware.machine.samples import matrix


def test_gpus_links_and_the_cards_behind_their_switches():
    """Eight GPUs, 18 links between any two, a card each; cards behind no switch of a GPU are said to be left out."""
    found = read_matrix(matrix(), "topo.txt")
    assert {key: fact.value for key, fact in found.facts.items()} == {
        "devices_per_node": 8,
        "scale_out.nics_per_node": 8,
    }
    assert found.links == Links("topo.txt", 18, switched=None)
    assert any("NIC8, NIC9" in line for line in found.unread)


def test_a_paste_without_tabs_or_with_colours_is_the_same():
    """Columns are words; escapes of a terminal are none."""
    plain = read_matrix(matrix().expandtabs(), "x")
    assert read_matrix("\x1b[4m" + matrix().replace("\tCPU Aff", "\tCPU\x1b[0m Aff"), "x").facts == plain.facts
    assert plain.facts == read_matrix(matrix(), "x").facts
    assert read_matrix(matrix().lstrip("\t"), "x").facts == plain.facts


def test_what_the_matrix_leaves_open_is_listed():
    """Cards that only some GPUs have beside them, pairs with different links; without links devices talk over PCIe."""
    found = read_matrix(matrix(near={0: 0}), "x")
    assert "scale_out.nics_per_node" not in found.facts
    assert any("which of 10 the GPUs use" in line for line in found.unread)
    mixed = matrix(4, "NV1", 0).replace("NV1", "NV2", 2)
    assert any("1 NVLinks and 2 NVLinks" in line for line in read_matrix(mixed, "x").unread)
    assert read_matrix(matrix(4, "SYS", 0), "x").facts["scale_up.kind"].value == "pcie"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (matrix()[:300], "row GPU1 of the matrix"),
        (matrix().replace("GPU7\tNV18", "GPU9\tNV18"), "is it whole"),
        (matrix().replace("NV18\tNV18\tNV18", "NV18\tNV18NV18", 1), "'NV18NV18' is not a connection"),
        ("\tGPU0\tGPU1\n", "no row of a matrix"),
    ],
)
def test_a_damaged_matrix_is_refused(text, words):
    """Cut, a row of another machine, cells that ran into one."""
    with pytest.raises(UserError, match=words):
        read_matrix(text, "topo.txt")


def test_a_matrix_is_known_by_its_rows():
    """Other texts are none."""
    assert is_matrix(matrix())
    assert not is_matrix("GPU0 is hot")


def test_groups_of_gpus_that_bridges_join(tmp_path):
    """Pairs with NVLinks, and PCIe between them: collectives of all pass PCIe, at the rate of a PCIe link."""
    rows = ["GPU0 X NV12 SYS SYS", "GPU1 NV12 X SYS SYS", "GPU2 SYS SYS X NV12", "GPU3 SYS SYS NV12 X"]
    path = tmp_path / "topo.txt"
    path.write_text("\n".join(["\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity", *rows]))
    found = import_profile([str(path)], "ours", like="dgx-a100-80gb", folder=tmp_path)
    assert found.facts["scale_up.kind"].value == "pcie"
    assert found.facts["scale_up.bandwidth"].value == "25 GB/s"
    assert any("NVLinks join groups of 2 of 4 GPUs" in line for line in found.unread)


def test_matrices_of_several_kinds_of_nodes_are_refused():
    """The first one was taken for all; equal ones are of equal nodes."""
    with pytest.raises(UserError, match=r"topo.txt: 2 matrices that differ, as of several kinds of nodes"):
        read_matrix(matrix(4) + matrix(8), "topo.txt")
    assert read_matrix(matrix() + matrix(), "topo.txt").facts["devices_per_node"].value == 8
