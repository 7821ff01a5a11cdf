"""Kubernetes nodes: GPUs by labels of the clouds, cards, leaves, memory."""

import json

import pytest

from simpar import cli
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.machine.kubernetes import is_nodes, read_nodes

NVIDIA = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
EKS = {**NVIDIA, "node.kubernetes.io/instance-type": "p5.48xlarge"}
LEAVES = (
    "topology.k8s.aws/network-node-layer-3", "cloud.google.com/gce-topology-subblock",
    "oci.oraclecloud.com/rdma.local_block_id",
)  # fmt: skip


def nodes(count, labels, *, gpus=8, **capacity):
    """``kubectl get nodes -o json`` of some nodes, and one without GPUs; {at} in a label is its pair of nodes."""
    items = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"n{at}", "labels": {key: value.format(at=at // 2) for key, value in labels.items()}},
            "status": {"capacity": {"cpu": "192", "memory": "2097152000Ki", "nvidia.com/gpu": str(gpus), **capacity}},
        }
        for at in range(count)
    ]
    plain = {"kind": "Node", "metadata": {"name": "cpu", "labels": {}}, "status": {"capacity": {"cpu": "8"}}}
    return json.dumps({"apiVersion": "v1", "items": [*items, plain], "kind": "List"}, indent=4)


@pytest.mark.parametrize(
    ("labels", "device"),
    [
        (NVIDIA, "h100-sxm-80gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}, "a100-sxm-80gb"),
        ({"nvidia.com/gpu.product": "NVIDIA-GB200"}, "gb200"),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, "l4"),
        ({"gpu.nvidia.com/class": "H100_NVLINK_80GB"}, "h100-sxm-80gb"),
        ({"karpenter.k8s.aws/instance-gpu-name": "h200"}, "h200-sxm"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "mi300x"),
    ],
)
def test_devices_by_labels(labels, device):
    """As discovery, AMD's labeller and the clouds call them; what has no GPU is left out."""
    text = nodes(4, labels)
    assert is_nodes(text)
    result = read_nodes(text, "x")
    assert result.devices == (device,)
    assert result.nodes == {"n0", "n1", "n2", "n3"}
    assert result.facts["devices_per_node"].value == 8
    assert result.facts["host.memory_bytes"].value == "2048000 MiB"
    assert any("1 nodes without GPUs" in line for line in result.unread)


@pytest.mark.parametrize("label", LEAVES)
def test_leaves_and_racks(label):
    """Nodes with one value of the cloud's label share a switch; a clique of NVLink is said."""
    result = read_nodes(nodes(6, {**NVIDIA, label: "nn-{at}", "nvidia.com/gpu.clique": "c.{at}"}), "x")
    assert result.facts["scale_out.nodes_per_leaf"].value == 2
    assert any("NVLink joins up to 2 nodes" in line for line in result.unread)


def test_a_cluster_of_eks_becomes_a_profile(tmp_path):
    """Its cards are EFA's: the one shipped profile that has them is like it."""
    path = tmp_path / "nodes.json"
    path.write_text(nodes(4, EKS, **{"vpc.amazonaws.com/efa": "32"}))
    output = tmp_path / "ours.yaml"
    assert cli.run(["hardware", "import", str(path), "-o", str(output)]) == 0
    ours = load_cluster(output).profile
    assert (ours.scale_out.kind, ours.scale_out.nics_per_node) == ("efa", 32)
    assert "like: aws-p5" in output.read_text()


def test_nodes_as_yaml():
    """One node as kubectl get node -o yaml writes it."""
    text = "kind: Node\nmetadata:\n  name: a\n  labels:\n    nvidia.com/gpu.product: NVIDIA-H200\nstatus:\n"
    result = read_nodes(text + '  capacity:\n    memory: 2Gi\n    nvidia.com/gpu: "4"\n', "x")
    assert is_nodes(text)
    assert (result.devices, result.facts["devices_per_node"].value) == (("h200-sxm",), 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (nodes(2, NVIDIA)[:300], "x:.*: not valid JSON"),
        (nodes(0, NVIDIA), "no node with GPUs"),
        (nodes(1, NVIDIA, gpus="many"), "node n0: 'many' GPUs: wants a whole number"),
        (json.dumps({"kind": "Node", "items": 5}), "items: wants a list of nodes"),
        (
            json.dumps({"items": [json.loads(each)["items"][0] for each in (nodes(1, NVIDIA), nodes(1, {}, gpus=4))]}),
            "several kinds of nodes: 1 nodes with 8 x NVIDIA-H100-80GB-HBM3, 1 nodes with 4 x gpu",
        ),
    ],
)
def test_nodes_that_are_not_read(text, words):
    """Cut, without GPUs, of several kinds."""
    with pytest.raises(UserError, match=words):
        read_nodes(text, "x")
