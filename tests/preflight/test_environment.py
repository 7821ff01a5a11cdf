"""Variables of a command that decide time or memory."""

import pytest

from simpar.frameworks.target import Imported
from simpar.hardware.catalogue import load_cluster
from simpar.plan.plan import Plan
from simpar.preflight.environment import account_of, hardware_as_told, with_allocator


@pytest.mark.parametrize(
    ("environment", "segments"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "'expandable_segments:True,max_split_size_mb:128'"}, True),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:128, expandable_segments:False"}, False),
        ({"PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:128"}, None),
        ({}, None),
    ],
)
def test_segments_of_the_allocator(environment, segments):
    """A setting among others; what the plan says wins."""
    assert with_allocator(Imported(Plan()), environment).plan.execution.expandable_segments is segments
    said = Imported(Plan(expandable_segments=False))
    assert with_allocator(said, environment).plan.execution.expandable_segments is False


def test_other_variables_are_accounted_for():
    """The allocator's other settings and NCCL's decide; the script's own are no words of the text."""
    found = account_of(
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512", "NCCL_ALGO": "Ring", "TP": "8",
         "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        load_cluster("dgx-h100"),
    )  # fmt: skip
    assert found.used == ("expandable_segments",)
    assert found.idle == ("CUDA_DEVICE_MAX_CONNECTIONS",)
    assert set(found.deciding) == {"max_split_size_mb", "NCCL_ALGO"}
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("hardware", "value", "told"),
    [
        ("dgx-h100", "1", "dgx-h100 over ethernet"), ("dgx-h100", "0", "dgx-h100"), ("aws-p5", "1", "aws-p5"),
        ("dgx-h100 over 25GbE", "1", "dgx-h100 over 25GbE"),
    ],
)  # fmt: skip
def test_nodes_without_rdma_are_joined_by_tcp(hardware, value, told):
    """Where the profile has RDMA and no flag names the network; a note says so, and the variable was used."""
    notes = []
    environment = {"NCCL_IB_DISABLE": value}
    assert hardware_as_told(hardware, environment, notes) == told
    assert bool(notes) == (told != hardware)
    assert account_of(environment, load_cluster(told)).used == ("NCCL_IB_DISABLE",)


@pytest.mark.parametrize(("hardware", "decides"), [("rtx-4090-8", False), ("rtx-5090-8", False), ("l40s-8", True)])
def test_peers_that_there_are_not_cannot_be_turned_off(hardware: str, decides: bool) -> None:
    """GeForce cards have no peer-to-peer: the variable that turns it off is without effect there."""
    found = account_of({"NCCL_P2P_DISABLE": "1"}, load_cluster(hardware))
    assert (list(found.deciding), list(found.idle)) == (
        (["NCCL_P2P_DISABLE"], []) if decides else ([], ["NCCL_P2P_DISABLE"])
    )
