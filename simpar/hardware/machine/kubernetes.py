"""The nodes of a Kubernetes cluster: ``kubectl get nodes -o json`` (or yaml).

Labels: NVIDIA's GPU feature discovery (nvidia.com/gpu.product, .count, .clique), AMD's node labeller
(amd.com/gpu.product-name), and those that the clouds set: GKE (cloud.google.com/gke-accelerator,
gce-topology-subblock), EKS and Karpenter (karpenter.k8s.aws/instance-gpu-name, topology.k8s.aws/network-node-layer-3),
OKE (oci.oraclecloud.com/rdma.local_block_id), CoreWeave (gpu.nvidia.com/class, backend.coreweave.cloud/
leafgroup). Capacities: nvidia.com/gpu, amd.com/gpu, vpc.amazonaws.com/efa, memory.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from simpar.errors import UserError
from simpar.files import read_json, read_yaml
from simpar.hardware.machine.reading import MORE, Reading
from simpar.hardware.machine.slurm import devices_called, only_kind
from simpar.plain import printable
from simpar.units import GIB, KIB, MIB

KIND = "kubectl get nodes"
PRODUCTS = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.nvidia.com/class", "gpu.nvidia.com/model",
    "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name",
)  # fmt: skip
COUNTS = (
    "nvidia.com/gpu.count", "cloud.google.com/gke-accelerator-count", "karpenter.k8s.aws/instance-gpu-count",
    "gpu.nvidia.com/count",
)  # fmt: skip
CAPACITIES = ("nvidia.com/gpu", "amd.com/gpu", "google.com/tpu", "aws.amazon.com/neuron")
INSTANCES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
LEAVES = (
    "topology.k8s.aws/network-node-layer-3", "cloud.google.com/gce-topology-subblock",
    "oci.oraclecloud.com/rdma.local_block_id", "backend.coreweave.cloud/leafgroup", "ib.coreweave.cloud/leafgroup",
)  # fmt: skip
"""Labels whose value nodes below the same switch, or in the same group of racks, share."""
CLIQUE = "nvidia.com/gpu.clique"
EFA = "vpc.amazonaws.com/efa"
_MEMORY = re.compile(r"(\d+)(Ki|Mi|Gi)?")
_UNITS = {"Ki": KIB, "Mi": MIB, "Gi": GIB, None: 1}


def is_nodes(text: str) -> bool:
    """Whether a text is a list of Kubernetes nodes, or one of them."""
    return re.search(r"""["']?kind["']?:\s*["']?Node["']?\s*(,|$)""", text, re.MULTILINE) is not None


def read_nodes(text: str, file: str) -> Reading:
    """Devices, memory and cards of the nodes with GPUs. Raises UserError where these are of several kinds."""
    data = read_json(text, file) if text.lstrip().startswith("{") else read_yaml(text, file)
    items = data.get("items", [data]) if isinstance(data, dict) else None
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise UserError(f"{file}: items: wants a list of nodes, as kubectl get nodes -o json writes it")
    result = Reading(KIND, file)
    kinds: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for node in items:
        if gpus := _gpus(node, file):
            kinds[gpus].append(node)
    told = f"labels {PRODUCTS[0]} or capacity {CAPACITIES[0]}"
    name, of = only_kind(result, kinds, told, "select one by kubectl get nodes -l LABEL=VALUE")
    # only SXM modules of an H100 have HBM3, and only they have an NVSwitch
    result.devices = devices_called(re.sub(r"nvlink|hbm3\b", "sxm", name.lower())) if name else ()
    if name and not result.devices:
        result.unread.append(f"device: the nodes call it {printable(name)}, which is none that simpar knows")
    result.nodes = frozenset(str(node["metadata"].get("name", "")) for node in of)
    _memory(result, of)
    _network(result, of)
    if len(of) < len(items):
        result.unread.append(f"{len(items) - len(of)} nodes without GPUs: left out")
    types = sorted({_first(_labels(node), INSTANCES) for node in of} - {""})
    if types:
        result.unread.append(f"instance type {', '.join(map(printable, types))}: its network is taken from --like")
    return result


def _labels(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return (node.get("metadata") or {}).get("labels") or {}


def _capacity(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return (node.get("status") or {}).get("capacity") or {}


def _first(of: Mapping[str, Any], names: Sequence[str]) -> str:
    return next((str(of[name]) for name in names if of.get(name)), "")


def _gpus(node: Mapping[str, Any], file: str) -> tuple[str, int] | None:
    """Product and number of the GPUs of a node; what it can give counts before its labels."""
    labels, name = _labels(node), (node.get("metadata") or {}).get("name", "a node")
    count = _first(_capacity(node), CAPACITIES) or _first(labels, COUNTS)
    if not count or count == "0":
        return None
    if not re.fullmatch(r"\d{1,4}", count):
        raise UserError(f"{file}: node {printable(str(name))}: {printable(count)!r} GPUs: wants a whole number")
    return _first(labels, PRODUCTS), int(count)


def _memory(reading: Reading, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Memory of the smallest node, in whole MiB."""
    sizes = Counter[int]()
    for node in nodes:
        if match := _MEMORY.fullmatch(str(_capacity(node).get("memory", ""))):
            sizes[int(match[1]) * _UNITS[match[2]] // MIB] += 1
    if sizes:
        reading.say("host.memory_bytes", f"{min(sizes)} MiB", MORE)


def _network(reading: Reading, nodes: Sequence[Mapping[str, Any]]) -> None:
    """Amazon's cards, nodes that share a switch, and racks that NVLink joins, by labels of the clouds."""
    cards = {_first(_capacity(node), (EFA,)) for node in nodes}
    if len(cards) == 1 and (count := cards.pop()).isdigit() and int(count):
        reading.say("scale_out.kind", "efa")
        reading.say("scale_out.nics_per_node", int(count))
    for label in LEAVES:
        groups = Counter(str(_labels(node)[label]) for node in nodes if _labels(node).get(label))
        if groups.total() == len(nodes):
            reading.say("scale_out.nodes_per_leaf", max(groups.values()), MORE)
            break
    racks = Counter(str(_labels(node)[CLIQUE]) for node in nodes if _labels(node).get(CLIQUE))
    if racks:
        reading.unread.append(
            f"scale_up.domain: NVLink joins up to {max(racks.values())} nodes ({CLIQUE}); set it to their devices"
        )
