"""Kubernetes nodes: GPUs by labels of the clouds, cards, leaves, memory."""

import json

import pytest

from simpar import cli
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.machine.kubernetes import is_nodes, read_nodes
from simpar.hardware.machine.profile_of import import_profile

NVIDIA = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.count": "8"}
INSTANCE = "node.kubernetes.io/instance-type"
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


@pytest.mark.parametrize(
    ("labels", "capacity", "like", "device"),
    [
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb", INSTANCE: "a3-megagpu-8g"}, {}, "gcp-a3-mega",
         "h100-sxm-80gb"),
        ({INSTANCE: "Standard_ND96isr_H100_v5"}, {}, "dgx-h100", "h100-sxm-80gb"),
        ({INSTANCE: "BM.GPU.H100.8"}, {}, "h100-roce-400", "h100-sxm-80gb"),
        ({INSTANCE: "Standard_ND96isr_MI300X_v5"}, {"amd.com/gpu": "8"}, "mi300x-8", "mi300x"),
        ({"cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice", INSTANCE: "ct5p-hightpu-4t"},
         {"google.com/tpu": "4"}, "tpu-v5p-pod", "tpu-v5p"),
        ({INSTANCE: "trn1.32xlarge"}, {"aws.amazon.com/neuron": "16"}, "trn1", "trainium1"),
    ],
)  # fmt: skip
def test_a_profile_by_the_type_of_instances(tmp_path, labels, capacity, like, device):
    """Clouds that install no discovery of devices say the instance: its shipped profile, and its device."""
    path = tmp_path / "nodes.json"
    path.write_text(nodes(4, labels, **({"gpus": 0} if capacity else {}), **capacity))
    made = import_profile([str(path)], "ours", folder=tmp_path)
    assert made.data["like"] == like
    (tmp_path / "ours.yaml").write_text(made.text())
    assert load_cluster(tmp_path / "ours.yaml").device.name == device


def test_nodes_as_people_paste_them():
    """A table with labels, whose devices are those of the instance where no label counts them; a description."""
    table = (
        "NAME   STATUS   ROLES    AGE   VERSION   LABELS\n"
        "n1     Ready    <none>   9d    v1.31.1   gpu=a,node.kubernetes.io/instance-type=p4d.24xlarge\n"
        "n2     Ready    <none>   9d    v1.31.1   gpu=a,node.kubernetes.io/instance-type=p4d.24xlarge\n"
        "cpu    Ready    <none>   9d    v1.31.1   gpu=a,node.kubernetes.io/instance-type=m5.large\n"
    )
    described = (
        "Name:               n1\nRoles:              <none>\n"
        "Labels:             node.kubernetes.io/instance-type=p5.48xlarge\n"
        "                    nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3\nTaints:             <none>\n"
        "Capacity:\n  memory:                 2097152000Ki\n  nvidia.com/gpu:         8\n"
        "  vpc.amazonaws.com/efa:  32\nAllocatable:\n  nvidia.com/gpu:         7\n"
    )
    listed, one = read_nodes(table, "x"), read_nodes(described + described.replace("n1", "n2"), "x")
    assert is_nodes(table)
    assert is_nodes(described)
    assert (listed.like, listed.nodes, listed.facts["devices_per_node"].value) == ("aws-p4d", {"n1", "n2"}, 8)
    assert (one.like, one.nodes, one.devices) == ("aws-p5", {"n1", "n2"}, ("h100-sxm-80gb",))
    told = {key: fact.value for key, fact in one.facts.items()}
    assert told == {
        "devices_per_node": 8, "scale_out.kind": "efa", "scale_out.nics_per_node": 32,
        "host.memory_bytes": "2048000 MiB",
    }  # fmt: skip


def test_devices_that_are_given_out_many_times_or_in_parts():
    """Slices of time are no devices, and parts of devices are left out."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED", "nvidia.com/gpu.count": "8"}
    shared = read_nodes(nodes(2, labels, gpus=32), "x")
    assert (shared.devices, shared.facts["devices_per_node"].value) == (("a100-sxm-80gb",), 8)
    parts = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/gpu.count": "56"}
    with pytest.raises(UserError, match=r"no node with GPUs .*nodes with parts of GPUs \(NVIDIA-A100-SXM4-80GB-MIG"):
        read_nodes(nodes(2, parts, gpus=56), "x")


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
            nodes(1, NVIDIA).replace('"labels": {', '"labels": "a", "other": {'),
            "items.0.metadata.labels: wants a mapping",
        ),
        (json.dumps({"kind": "Node", "metadata": "a"}), "items.0.metadata: wants a mapping, as kubectl writes it"),
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


def test_the_list_of_the_api_is_one_of_nodes():
    """``kubectl get --raw /api/v1/nodes`` names no kind for each of them, and has no line ends."""
    data = {**json.loads(nodes(2, EKS)), "kind": "NodeList"}
    text = json.dumps({**data, "items": [{key: node[key] for key in ("metadata", "status")} for node in data["items"]]})
    assert is_nodes(text)
    assert read_nodes(text, "x").nodes == {"n0", "n1"}
    assert not is_nodes(json.dumps({"kind": "PodList", "items": []}))
