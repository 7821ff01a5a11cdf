"""Words of tables for devices and networks, against the profiles that are shipped."""

from __future__ import annotations

import pytest

from benchmarks.normalise.clusters import devices_of_node, profile_of
from simpar import files
from simpar.validation.cells import Unmodelled


@pytest.mark.parametrize(
    ("device", "network", "profile"),
    [
        ("h100 sxm 80gb", "", "dgx-h100"), ("h100 sxm 80gb", "efa v2", "aws-p5"), ("h800", "ib", "hgx-h800"),
        ("a800 sxm 80gb", "", "hgx-a800"), ("h20", "", "hgx-h20"), ("h200 sxm", "", "hgx-h200"),
        ("gb200 nvl72", "", "gb200-nvl72"), ("b200 sxm", "", "hgx-b200"), ("a100 pcie 80gb", "", "a100-pcie-8"),
        ("v100 sxm2 16gb", "", "dgx-v100-16gb"), ("mi250x (one gcd, 64 gb)", "", "mi250x-8"),
        ("tpu v6e (trillium)", "ICI", "tpu-v6e-pod"), ("trainium2 (trn2.48xlarge)", "", "trn2"),
    ],
)  # fmt: skip
def test_words_name_shipped_profiles(device: str, network: str, profile: str) -> None:
    """The most special words win; what they name exists."""
    assert profile_of(device, network) == profile
    assert profile in files.bundled("clusters")


@pytest.mark.parametrize("device", ["", "gaudi 3", "gh200 96gb", "trainium (trn1)"])
def test_unknown_devices_are_reasons(device: str) -> None:
    """Not a guess at something like it."""
    with pytest.raises(Unmodelled):
        profile_of(device, "")


def test_nodes_of_four_devices() -> None:
    """Grace Blackwell trays and boards of TPUs; all else has eight."""
    named = ("gb300", "tpu v5p", "b300", "h100 sxm", "tpu v6e", "trainium2")
    assert [devices_of_node(device) for device in named] == [4, 4, 8, 8, 8, 16]


def test_a_dgx_2_is_its_own_node() -> None:
    """Sixteen devices behind a switch, not the eight of a DGX-1."""
    assert profile_of("v100 (dgx-2)", "nvswitch intra-node") == "dgx-2-v100"
    assert profile_of("v100 sxm2 32gb", "") == "dgx-v100"
    assert devices_of_node("v100 (dgx-2)") == 16
