"""The nodes of a Kubernetes cluster: ``kubectl get nodes -o json`` (yaml, --show-labels), ``kubectl describe nodes``.

Labels: NVIDIA's GPU feature discovery (nvidia.com/gpu.product, .count, .clique), AMD's node labeller
(amd.com/gpu.product-name), and those that the clouds set: GKE (cloud.google.com/gke-accelerator,
gce-topology-subblock), EKS and Karpenter (karpenter.k8s.aws/instance-gpu-name, topology.k8s.aws/network-node-layer-3),
OKE (oci.oraclecloud.com/rdma.local_block_id), CoreWeave (gpu.nvidia.com/class, backend.coreweave.cloud/
leafgroup). Capacities: nvidia.com/gpu, amd.com/gpu, vpc.amazonaws.com/efa, memory.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simpar.errors import UserError
from simpar.files import meant_by, read_json, read_yaml
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.instances import instance_named
from simpar.hardware.machine.reading import MORE, Reading
from simpar.hardware.machine.slurm import devices_called, only_kind
from simpar.plain import printable
from simpar.units import GIB, KIB, MIB

KIND = "kubectl get nodes"
PRODUCTS = (
    "nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.nvidia.com/class", "gpu.nvidia.com/model",
    "cloud.google.com/gke-accelerator", "cloud.google.com/gke-tpu-accelerator", "karpenter.k8s.aws/instance-gpu-name",
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
Node = Mapping[str, Any]
CLIQUE = "nvidia.com/gpu.clique"
EFA = "vpc.amazonaws.com/efa"
SHARED, PARTS = "-SHARED", "MIG-"
"""In a product: every device is given out several times (time slices), and in parts."""
_WORD = re.compile(r"([\w./-]+)[=:]\s*(\S*)")
_MEMORY = re.compile(r"(\d+)(Ki|Mi|Gi)?")
_UNITS = {"Ki": KIB, "Mi": MIB, "Gi": GIB, None: 1}


def is_nodes(text: str) -> bool:
    """Whether a text is a list of Kubernetes nodes, or one of them."""
    return (
        re.search(r"""["']?kind["']?:\s*["']?Node(List)?["']?\s*(,|\}|$)""", text, re.MULTILINE) is not None
        or _is_list(text)
        or _is_description(text)
    )


def _is_list(text: str) -> bool:
    return re.match(r"NAME +STATUS .*\bLABELS\s*\n", text) is not None


def _is_description(text: str) -> bool:
    return re.match(r"Name: .*\n", text) is not None and re.search(r"^Capacity:\s*$", text, re.MULTILINE) is not None


def _listed(text: str) -> Iterator[Node]:
    """The nodes of a table whose last column has labels."""
    for line in text.splitlines()[1:]:
        if words := line.split():
            labels = dict(each.partition("=")[::2] for each in words[-1].split(","))
            yield {"metadata": {"name": words[0], "labels": labels}}


def _described(text: str) -> Iterator[Node]:
    """The nodes of a description: labels stand below each other, capacities in a section."""
    for part in re.split(r"(?m)^(?=Name: )", text):
        section, told = "", {"Name": dict[str, str](), "Labels": dict[str, str](), "Capacity": dict[str, str]()}
        for line in part.splitlines():
            if match := re.match(r"(\w[\w ]*):", line):
                section = match[1]
            words = line[len(section) + 1 :] if line.startswith(section) else line
            if section == "Name" and words.strip():
                told["Name"]["name"] = words.strip()
            elif section in told:
                told[section] |= dict(_WORD.findall(words))
        if told["Name"]:
            metadata = {**told["Name"], "labels": told["Labels"]}
            yield {"metadata": metadata, "status": {"capacity": told["Capacity"]}}


def _items(text: str, file: str) -> list[Node]:
    """The nodes of a file. Raises UserError."""
    if _is_list(text) or _is_description(text):
        return [*(_listed(text) if _is_list(text) else _described(text))]
    data = read_json(text, file) if text.lstrip().startswith("{") else read_yaml(text, file)
    items = data.get("items", [data]) if isinstance(data, dict) else None
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise UserError(f"{file}: items: wants a list of nodes, as kubectl get nodes -o json writes it")
    for at, node in enumerate(items):
        for names in (("metadata",), ("metadata", "labels"), ("status",), ("status", "capacity")):
            inner: Any = node
            for name in names:
                inner = inner.get(name) or {}
            if not isinstance(inner, dict):
                raise UserError(f"{file}: items.{at}.{'.'.join(names)}: wants a mapping, as kubectl writes it")
    return items


def read_nodes(text: str, file: str) -> Reading:
    """Devices, memory and cards of the nodes with GPUs. Raises UserError where these are of several kinds."""
    items = _items(text, file)
    result = Reading(KIND, file)
    kinds: dict[tuple[str, int], list[Node]] = defaultdict(list)
    for node in items:
        if gpus := _gpus(node, result):
            kinds[gpus].append(node)
    told = "; ".join(dict.fromkeys([f"labels {PRODUCTS[0]} or capacity {CAPACITIES[0]}", *result.unread]))
    name, of = only_kind(result, kinds, told, "select one by kubectl get nodes -l LABEL=VALUE")
    # only SXM modules of an H100 have HBM3, and only they have an NVSwitch
    result.devices = devices_called(re.sub(r"nvlink|hbm3\b", "sxm", name.lower())) if name else ()
    if name and not result.devices:
        result.unread.append(f"device: the nodes call it {printable(name)}, which is none that simpar knows")
    result.nodes = frozenset(str(node["metadata"].get("name", "")) for node in of)
    _memory(result, of)
    _network(result, of)
    _instances(result, of)
    if len(of) < len(items):
        result.unread.append(f"{len(items) - len(of)} nodes without GPUs: left out")
    return result


def _instances(reading: Reading, nodes: Sequence[Node]) -> None:
    """Note the shipped profile that the type of all instances means."""
    types = sorted({_first(_labels(node), INSTANCES) for node in nodes} - {""})
    meant = {meant_by(each, "clusters") for each in types}
    if len(meant) == 1 and (like := meant.pop()):
        reading.like = like
        # several devices of H100 may be meant by a label, and the instance has one
        profile = load_cluster(types[0]).profile
        reading.devices = tuple(each for each in reading.devices if each == profile.device) or reading.devices
        if instance_named(types[0]) is not None:
            reading.unread.append(f"instance type {types[0]}: a part of a node of {like}, whose network is taken whole")
    elif types:
        reading.unread.append(f"instance type {', '.join(map(printable, types))}: its network is taken from --like")


def _labels(node: Node) -> Mapping[str, Any]:
    return (node.get("metadata") or {}).get("labels") or {}


def _capacity(node: Node) -> Mapping[str, Any]:
    return (node.get("status") or {}).get("capacity") or {}


def _first(of: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of some fields that is neither empty nor 0; "" if all are."""
    return next((str(of[name]) for name in names if of.get(name) not in (None, "", "0", 0)), "")


def _gpus(node: Node, reading: Reading) -> tuple[str, int] | None:
    """Product and number of the GPUs of a node: of what it can give, else by its labels, else by its type."""
    labels = _labels(node)
    name = printable(str((node.get("metadata") or {}).get("name", "a node")))
    product, count = _first(labels, PRODUCTS), _first(_capacity(node), CAPACITIES) or _first(labels, COUNTS)
    if PARTS in product:
        reading.unread.append(f"nodes with parts of GPUs ({printable(product)}): left out")
        return None
    if product.endswith(SHARED):
        product, count = product.removesuffix(SHARED), _first(labels, COUNTS) or count
    if not count:
        instance = _first(labels, INSTANCES)
        count = str(load_cluster(instance).world_size) if instance and meant_by(instance, "clusters") else ""
    if not count:
        return None
    if not re.fullmatch(r"\d{1,4}", count):
        raise UserError(f"{reading.file}: node {name}: {printable(count)!r} GPUs: wants a whole number")
    return product, int(count)


def _memory(reading: Reading, nodes: Sequence[Node]) -> None:
    """Memory of the smallest node, in whole MiB."""
    sizes = Counter[int]()
    for node in nodes:
        if match := _MEMORY.fullmatch(str(_capacity(node).get("memory", ""))):
            sizes[int(match[1]) * _UNITS[match[2]] // MIB] += 1
    if sizes:
        reading.say("host.memory_bytes", f"{min(sizes)} MiB", MORE)


def _network(reading: Reading, nodes: Sequence[Node]) -> None:
    """Amazon's cards, nodes that share a switch, and racks that NVLink joins, by labels of the clouds."""
    cards = {_first(_capacity(node), (EFA,)) for node in nodes}
    if len(cards) == 1 and (count := cards.pop()).isdecimal() and int(count):
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
