"""Hardware by the names that people say."""

import pytest

from simpar import files
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.instances import instance_named
from simpar.plain import plain_name
from simpar.validation.devices import load_named_profile


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("H100", "dgx-h100"), ("h100-sxm", "dgx-h100"), ("a100", "dgx-a100-80gb"), ("4090", "rtx-4090-8"),
        ("rtx4090", "rtx-4090-8"), ("p5.48xlarge", "aws-p5"), ("p4d", "aws-p4d"), ("a3-megagpu-8g", "gcp-a3-mega"),
        ("ND H100 v5", "dgx-h100"), ("DGX A100", "dgx-a100-80gb"), ("8xH100", "dgx-h100"), ("gb200", "gb200-nvl72"),
        ("h100-8", "dgx-h100"), ("h100:8", "dgx-h100"), ("H100 x 8", "dgx-h100"), ("a100-80", "dgx-a100-80gb"),
        ("a100-800", "a100-800"), ("NVIDIA H100 80GB HBM3", "dgx-h100"), ("NVIDIA A100 80GB PCIe", "a100-pcie-8"),
        ("Tesla V100-SXM2-32GB", "dgx-v100"), ("ND96isr_H100_v5", "dgx-h100"), ("HGX H100", "hgx-h100"),
        ("NVIDIA B300 SXM6 AC", "hgx-b300"), ("AMD Instinct MI300X OAM", "mi300x-8"), ("h800-sxm", "hgx-h800"),
        ("Tesla V100-SXM3-32GB", "dgx-2-v100"), ("a100-80g", "dgx-a100-80gb"),
        ("nvidia-h100-mega-80gb", "gcp-a3-mega"),
    ],
)  # fmt: skip
def test_names_that_people_say(said: str, name: str) -> None:
    """The profile that each means."""
    assert load_cluster(said).profile.name == name


@pytest.mark.parametrize(
    ("said", "devices", "name", "gigabits_per_s"),
    [
        ("g5.xlarge", 1, "1 of a10g-8", 10), ("g5.12xlarge", 4, "4 of a10g-8", 40), ("g5.48xlarge", 8, "a10g-8", 100),
        ("Standard_NC96ads_A100_v4", 4, "4 of a100-pcie-8", 80), ("a3-highgpu-2g", 2, "2 of gcp-a3-high", 50),
        ("4xH100", 4, "4 of dgx-h100", 1600), ("8x H100", 8, "dgx-h100", 3200), ("16xH100", 16, "dgx-h100", 3200),
        ("gpu_8x_h100_sxm5", 8, "dgx-h100", 3200), ("gpu_1x_a100_sxm4", 1, "1 of dgx-a100-40gb", 200),
        ("gpu_8x_a100", 8, "dgx-a100-40gb", 1600), ("gpu_8x_a100_80gb_sxm4", 8, "dgx-a100-80gb", 1600),
        ("8xA100", 8, "dgx-a100-80gb", 1600), ("gpu_8x_v100", 8, "dgx-v100-16gb", 400), ("8xV100", 8, "dgx-v100", 400),
        ("ml.p5.48xlarge", 8, "aws-p5", 3200), ("ml.g5.12xlarge", 4, "4 of a10g-8", 40),
        ("Standard_ND96isrf_H100_v5", 8, "dgx-h100", 3200), ("Standard_NV36ads_A10_v5", 1, "1 of a10-4", 40),
        ("gd-8xh100ib-i128", 8, "dgx-h100", 3200), ("gd-8xh200ib-i128", 8, "hgx-h200", 3200),
        ("b200-8x", 8, "hgx-b200", 3200), ("gb200-4x", 4, "gb200-nvl72", 1600),
        ("2x4090", 2, "2 of rtx-4090-8", 100), ("p5en.48xlarge", 8, "aws-p5en", 3200),
        ("p6-b300.48xlarge", 8, "aws-p6-b300", 6400), ("BM.GPU.B200.8", 8, "b200-roce-400", 3200),
        ("ND GB200 v6", 4, "gb200-nvl72", 1600), ("Gaudi 3", 8, "gaudi-3-8", 4800),
        ("ct6e-standard-4t", 4, "tpu-v6e-4t", 400), ("ct6e-standard-1t", 1, "1 of tpu-v6e-pod", 200),
        ("DGX Spark", 1, "dgx-spark", 200), ("h100-4", 4, "4 of dgx-h100", 1600), ("4090-2", 2, "2 of rtx-4090-8", 100),
        ("a100-16", 16, "dgx-a100-80gb", 1600), ("v5litepod-16", 16, "tpu-v5e-pod", 200),
        ("v6e-8", 8, "tpu-v6e-pod", 800), ("v5p-16", 8, "tpu-v5p-pod", 200),
        ("p3.16xlarge", 8, "dgx-v100-16gb over 25 Gb/s ethernet", 25), ("p3.8xlarge", 4, "4 of dgx-v100-16gb", 10),
        ("Standard_ND40rs_v2", 8, "dgx-v100 over 100 Gb/s ib", 100), ("g7e.12xlarge", 2, "2 of aws-g7e", 400),
        ("Standard_ND128isr_GB300_v6", 4, "gb300-nvl72", 3200), ("a4x-maxgpu-4g-metal", 4, "gb300-roce-800", 3200),
        ("BM.GPU.B300.8", 8, "b300-roce-800", 6400), ("a2-megagpu-16g", 16, "gcp-a2-mega", 100),
        ("g4-standard-384", 8, "rtx-pro-6000-8 over 2x 200 Gb/s ethernet", 400), ("MI400", 4, "helios-mi455x", 9600),
        ("p6e-gb300", 4, "aws-p6e-gb300", 1600), ("p6e-gb300r.36xlarge", 4, "aws-p6e-gb300", 1600),
        ("a4x-maxgpu-4g", 4, "gb300-roce-800", 3200), ("GB200 NVL36", 4, "gb200-nvl36", 1600),
        ("GB200 NVL36x2", 4, "gb200-nvl72", 1600), ("Ascend 910B3", 8, "ascend-910b3-8", 1600),
        ("910B2", 8, "ascend-910b-8", 1600), ("HL-325L", 8, "gaudi-3-8", 4800),
        ("a3-edgegpu-8g", 8, "gcp-a3-high over 4x 100 Gb/s", 400),
    ],
)  # fmt: skip
def test_instances_have_their_devices_and_their_network(
    said: str, devices: int, name: str, gigabits_per_s: float
) -> None:
    """Devices in all, and the bandwidth of a node's network as the cloud states it."""
    cluster = load_cluster(said)
    out = cluster.profile.scale_out
    assert (cluster.world_size, cluster.profile.name) == (devices, name)
    assert out.nics_per_node * out.nic_bandwidth == pytest.approx(gigabits_per_s * 1e9 / 8)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("g5.xlarge", "ethernet"), ("g5.8xlarge", "efa"), ("g5.48xlarge", "efa"), ("g4dn.xlarge", "ethernet"),
        ("Standard_NC24ads_A100_v4", "ethernet"), ("Standard_ND40rs_v2", "ib"), ("a3-highgpu-4g", "ethernet"),
        ("a3-highgpu-8g", "tcpxo"), ("BM.GPU.A10.4", "ethernet"), ("g7e.2xlarge", "ethernet"), ("g7e.8xlarge", "efa"),
    ],
)  # fmt: skip
def test_instances_without_rdma_are_joined_by_sockets(said: str, kind: str) -> None:
    """Sizes below those that a cloud gives RDMA have TCP, whatever the whole machine has."""
    assert load_cluster(said).profile.scale_out.kind == kind


def test_half_a_rack_is_a_domain_of_its_own() -> None:
    """Nine instances of four devices reach each other over NVLink, ten do not."""
    assert load_cluster("u-p6e-gb200x36").profile.domain_size == 36
    assert load_cluster("GB200 NVL36").profile.domain_size == 36
    assert load_cluster("GB200 NVL36x2").profile.domain_size == 72  # two racks in one domain


def test_nodes_and_devices_beside_an_instance_count_instances() -> None:
    """Nodes of four, not of eight; a file whose name begins with a count is a file."""
    assert load_cluster("g5.12xlarge", nodes=3).world_size == 12
    assert load_cluster("g5.12xlarge", devices=8).nodes == 2
    assert load_cluster("8xH100", nodes=2).world_size == 16
    assert load_cluster("16xH100", nodes=2).world_size == load_cluster("16xH100", devices=16).world_size == 16
    assert instance_named("4xh100.yaml") is None
    assert load_named_profile("g5.xlarge").devices_per_node == 1


@pytest.mark.parametrize(
    ("said", "nodes", "message"),
    [
        ("16xH100", 3, "hardware 16xH100: means 16 devices, not 24; allowed: the same number beside it, or a name"),
        ("0xH100", None, "hardware 0xH100: 0 devices; allowed: 1 or more"),
        ("13xH100", None, "devices = 13: allowed on 2 nodes of 8 of dgx-h100: multiples of 2"),
        ("4xH1000", None, "unknown hardware '4xH1000'; did you mean"), ("h101", None, "did you mean 'h100'"),
        ("dgx-h100-2", None, "dgx-h100 is a whole machine; allowed: dgx-h100 with a number of nodes or devices"),
        ("v5p-15", None, "hardware v5p-15: tpu-v5p-pod counts cores, two of a chip; allowed: even numbers"),
        ("g5.13xlarge", None, "did you mean 'g516xlarge'"),
    ],
)  # fmt: skip
def test_counts_that_no_node_has_are_one_line(said: str, nodes: int | None, message: str) -> None:
    """Not another number of devices in silence."""
    with pytest.raises(UserError, match=message):
        load_cluster(said, nodes)


def test_every_alias_is_one_shipped_profile() -> None:
    """None names what is not there, and none is written twice; a part has no more devices than its node."""
    data = files.other_names("clusters")
    table, parts = data["clusters"], data["parts"]["clusters"]
    names = [name for listed in (*table.values(), *(part["names"] for part in parts)) for name in listed]
    assert {*table, *(part["of"] for part in parts)} <= set(files.bundled("clusters"))
    assert len(names) == len(set(names))
    assert all(name == plain_name(name) for name in names)
    for part in parts:
        whole = load_named_profile(part["of"]).devices_per_node
        assert part["devices"] < whole or (part["devices"] == whole and part["network"])


@pytest.mark.parametrize("kind", ["clusters", "stacks"])
def test_what_comes_near_a_name_is_shipped_and_the_name_is_not(kind: str) -> None:
    """Such names are shown beside an error; a name that is taken for a profile never gets there."""
    data = files.other_names(kind)
    entries = data["near"][kind]
    names = [name for entry in entries for name in entry["names"]]
    assert len(names) == len(set(names))
    assert all(name == plain_name(name) and files.meant_by(name, kind) is None for name in names)
    assert {name for entry in entries for name in entry["like"]} <= set(files.bundled(kind))
    assert set(data["usual"]["clusters"]) <= set(files.bundled("clusters"))


@pytest.mark.parametrize(
    ("kind", "said", "message"),
    [
        ("clusters", "2xGH200", r"not shipped \(Grace Hopper: .*\); nearest: dgx-h100, hgx-h200; simpar list"),
        ("clusters", "blackwell", "did you mean 'hgx-b200' or 'gb200-nvl72'"),
        ("clusters", "ND96isr", "nearest: dgx-h100, hgx-h200, mi300x-8"),
        ("clusters", "h1oo", "nearest: dgx-h100, hgx-h100, h100-nvl-8, h100-pcie-8, h100-roce-400; simpar list"),
        (
            "clusters",
            "mac-studio",
            r"not shipped \(Apple silicon: .*\); nearest: laptop-cpu, laptop-cpu-4; simpar list",
        ),
        (
            "clusters",
            "Apple M2 Ultra",
            r"not shipped \(Apple silicon: .*\); nearest: laptop-cpu, laptop-cpu-4; simpar list",
        ),
        ("clusters", "A100-PCIE-40GB", r"not shipped .an A100 of 40 GB on PCIe.; nearest: a100-pcie-8, dgx-a100-40gb"),
        ("clusters", "Standard_NC24rs_v3", r"not shipped .a V100 on PCIe.; nearest: dgx-v100-16gb"),
        ("clusters", "a100_3g.20gb", r"'a100_3g.20gb': not shipped .a slice of a device .MIG..; nearest: "),
        ("clusters", "v3-8", r"not shipped .a TPU before v4.; nearest: tpu-v4-pod"),
        ("clusters", "ecs.gn7e-c16g1.32xlarge", "'ecs.gn7e-c16g1.32xlarge'; such as dgx-h100"),  # not g7e
        ("clusters", "Arc B580", "'Arc B580'; such as dgx-h100"),
        ("clusters", "threadripper", "'threadripper'; such as dgx-h100, "),
        ("clusters", "foo", "'foo'; such as dgx-h100, dgx-a100-80gb, .*; simpar list hardware prints all"),
        ("stacks", "pytorch", "did you mean 'fsdp' or 'ddp' or 'torchtitan'; allowed: automodel"),
    ],
)
def test_an_unknown_name_gets_what_people_may_mean(kind: str, said: str, message: str) -> None:
    """By what it stands for, before how it is spelled; the usual ones where nothing is near."""
    with pytest.raises(UserError, match=message):
        files.find(said, kind, "hardware")
