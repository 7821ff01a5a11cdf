"""Devices and networks by a vocabulary: what people call them, and what is no device of simpar."""

from __future__ import annotations

import pytest

from simpar import files
from simpar.validation.cells import Unmodelled
from simpar.validation.devices import hardware_of


@pytest.mark.parametrize(
    ("device", "network", "profile"),
    [
        ("H100 SXM 80GB", "", "dgx-h100"), ("NVIDIA H100 80GB HBM3", "EFA", "aws-p5"), ("A100", "EFA", "dgx-a100-80gb"),
        ("H100 SXM5", "NVLink; RoCE", "h100-roce-400"), ("A100-SXM4-40GB", "", "dgx-a100-40gb"),
        ("A100 SXM 40 GB", "EFA", "aws-p4d"), ("A100 PCIe 80GB", "", "a100-pcie-8"), ("Trainium2", "", "trn2"),
        ("GB200 NVL72", "", "gb200-nvl72"), ("B200 SXM", "InfiniBand", "hgx-b200"), ("NVIDIA L4", "", "l4-8"),
        ("AMD Instinct MI300X", "", "mi300x-8"), ("Google TPU v5p", "ICI", "tpu-v5p-pod"),
        ("V100 (DGX-2)", "", "dgx-2-v100"), ("V100 SXM2 16GB", "", "dgx-v100-16gb"),
        ("MI250X (one GCD, 64 GB)", "", "mi250x-8"), ("GeForce RTX 4090", "", "rtx-4090-8"),
        ("Intel Gaudi 3", "RoCE", "gaudi-3-8"), ("Ascend 910B", "", "ascend-910b-8"),
        ("Ascend 910B3", "", "ascend-910b3-8"),
        ("Tesla T4", "", "t4-4"),
        ("NVIDIA RTX 6000 Ada Generation", "", "rtx-6000-ada-8"), ("RTX A6000 48 GB", "", "rtx-a6000-8"),
        ("H100 NVL", "", "h100-nvl-8"), ("Google TPU v7x", "ICI", "tpu-v7x-pod"), ("Trainium3", "", "trn3"),
    ],
)  # fmt: skip
def test_usual_names_are_shipped_profiles(device: str, network: str, profile: str) -> None:
    """In any case and order, with words that do not matter."""
    assert hardware_of({"gpu_type": device, "interconnect": network}) == profile
    assert hardware_of({"gpu_type": device.upper(), "interconnect": network.lower()}) == profile
    assert profile in files.bundled("clusters")


@pytest.mark.parametrize(
    ("device", "network", "reason"),
    [
        ("", "", "gpu_type not published"), ("Gaudi 1", "", "no profile for gaudi 1; name one in the column hardware"),
        ("MI250X 128GB", "", "no profile for mi250x 128gb: that of mi250x-8 has 69 GB"),
        ("H100 power-limited", "", "no profile for h100 power-limited"), ("trn9", "", "no profile for trn9"),
    ],
)  # fmt: skip
def test_other_words_are_reasons(device: str, network: str, reason: str) -> None:
    """Not a guess at something like it."""
    with pytest.raises(Unmodelled, match=reason):
        hardware_of({"gpu_type": device, "interconnect": network})


def test_a_profile_by_name_comes_first() -> None:
    """Whatever the words beside it."""
    assert hardware_of({"gpu_type": "Gaudi 3", "hardware": "dgx-h100"}) == "dgx-h100"
