"""What Slurm knows: ``scontrol show nodes`` (devices, memory), its topology (nodes below a switch).

That is a ``topology.conf`` or ``.yaml``, or what ``scontrol show topology`` prints.

Formats: slurm.schedmd.com/topology.conf.html, topology.yaml.html and scontrol.html. Names of parameters are
read in any case, lists of hosts as Slurm writes them (``n[01-16,20]``).
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from simpar.errors import UserError
from simpar.files import bundled, read_yaml
from simpar.hardware.machine.reading import Reading
from simpar.plain import printable

SHOWN = {"level", "blockindex", "blocksize"}
"""What ``scontrol show topology`` says beside a topology.conf."""
NODES, TREE, YAML_TREE = "scontrol show nodes", "topology.conf", "topology.yaml"
MOST_HOSTS = 200_000
MOST_DEVICES = 1024
Node = TypeVar("Node")
MAKES = ("rtx", "tpu", "cpu")
"""First words of device names that do not name a device on their own."""
_MIG = re.compile(r"\d+g\.\d+gb")
_GRES = re.compile(r"gpu(?::(?P<type>[^:(]+))??(?::(?P<count>\d+))?(?:\(.*)?$")


def is_nodes(text: str) -> bool:
    """Whether a text is the output of ``scontrol show nodes``."""
    return re.search(r"^NodeName=\S+ .*\b(Arch|CPUTot|CoresPerSocket|RealMemory)=", text, re.MULTILINE) is not None


def is_tree(text: str) -> bool:
    """Whether a text is a topology.conf or topology.yaml."""
    return (
        _is_yaml(text) or re.search(r"^\s*(SwitchName|BlockName)\s*=", text, re.MULTILINE | re.IGNORECASE) is not None
    )


def _is_yaml(text: str) -> bool:
    return re.search(r"^\s*-\s*topology\s*:", text, re.MULTILINE) is not None


def read_nodes(text: str, file: str, partition: str | None = None) -> Reading:
    """Devices and memory of the nodes with GPUs, in one partition if it is named. Raises UserError.

    Where nodes have different GPUs, a partition must be named.
    """
    nodes = [_fields(record) for record in re.split(r"(?m)^(?=NodeName=)", text) if record.startswith("NodeName=")]
    kept = [node for node in nodes if partition is None or partition in node.get("Partitions", "").split(",")]
    if not kept:
        names = sorted({name for node in nodes for name in node.get("Partitions", "").split(",") if name})
        raise UserError(f"{file}: partition {partition!r} has no node; allowed: {', '.join(names)}")
    result = Reading(NODES, file)
    kinds: dict[tuple[str, int], list[Mapping[str, str]]] = defaultdict(list)
    for node in kept:
        if gpus := _gpus(node, result):
            kinds[gpus].append(node)
    name, of = only_kind(result, kinds, "Gres=gpu:...", "name one by --partition, and write a mixture of them")
    result.devices = devices_called(name) if name else ()
    if name and not result.devices:
        result.unread.append(f"device: Gres calls it {printable(name)}, which is none that simpar knows")
    result.nodes = frozenset(node["NodeName"] for node in of)
    _memory(result, of)
    if len(of) < len(kept):
        result.unread.append(f"{len(kept) - len(of)} nodes without GPUs: left out")
    away = sum(re.search(r"DOWN|DRAIN|FAIL|MAINT", node.get("State", "")) is not None for node in of)
    if away:
        result.unread.append(f"{away} of {len(of)} nodes are down or drained now; they count")
    return result


def _fields(record: str) -> dict[str, str]:
    return dict(re.findall(r"(?:^|\s)(NodeName|Gres|RealMemory|State|Partitions)=(\S*)", record))


def _gpus(node: Mapping[str, str], reading: Reading) -> tuple[str, int] | None:
    """Type and number of the whole GPUs of a node."""
    listed = []
    for entry in re.split(r",(?![^(]*\))", node.get("Gres", "")):
        match = _GRES.match(entry)
        if match is None or not entry.startswith("gpu"):
            continue
        kind, count = match["type"] or "", int(match["count"] or 1)
        if _MIG.search(kind):
            reading.unread.append(f"{printable(node['NodeName'])}: {count} parts of GPUs ({printable(kind)}): left out")
            continue
        listed += [(kind, count)] if count else []
    if len(listed) > 1:
        raise UserError(f"{reading.file}: node {printable(node['NodeName'])} has several kinds of GPUs: {listed}")
    return listed[0] if listed else None


def _memory(reading: Reading, nodes: Sequence[Mapping[str, str]]) -> None:
    """Memory of the smallest node, as it is configured."""
    sizes = Counter(int(node["RealMemory"]) for node in nodes if node.get("RealMemory", "").isdecimal())
    if sizes:
        reading.say("host.memory_bytes", f"{min(sizes)} MiB")
    if len(sizes) > 1:
        reading.unread.append(f"nodes have {' and '.join(f'{size} MiB' for size in sorted(sizes))}: the least is taken")


def only_kind(
    reading: Reading, kinds: Mapping[tuple[str, int], list[Node]], told: str, remedy: str
) -> tuple[str, list[Node]]:
    """The device's name of the nodes with GPUs, which are of one kind, and these nodes; says how many devices each has.

    ``kinds`` are nodes by the name and number of their devices. Raises UserError where there is none (``told`` would
    say that a node has GPUs), and where there are several, with the ``remedy``.
    """
    if not kinds:
        raise UserError(f"{reading.file}: no node with GPUs ({told})")
    if len(kinds) > 1:
        said = ", ".join(f"{len(of)} nodes with {count} x {name or 'gpu'}" for (name, count), of in kinds.items())
        raise UserError(f"{reading.file}: several kinds of nodes: {said}; {remedy}")
    ((name, count), nodes) = next(iter(kinds.items()))
    if count > MOST_DEVICES:
        raise UserError(f"{reading.file}: {count} GPUs of a node; allowed: at most {MOST_DEVICES}")
    reading.say("devices_per_node", count)
    return name, nodes


def devices_called(name: str) -> tuple[str, ...]:
    """Shipped devices that a type of Gres may mean: "h100", "nvidia_h100_80gb_hbm3", "a100-sxm4-40gb"."""
    words = [re.sub(r"^(sxm|pcie)\d?$", r"\1", word) for word in re.split(r"[-_ ]+", name.lower())]
    devices = {device: device.split("-") for device in bundled("devices")}
    called = {device: own[: 2 if own[0] in MAKES else 1] for device, own in devices.items()}
    alike = [device for device, own in called.items() if {*own} <= {*words}]
    told = [word for word in words if re.fullmatch(r"\d+gb|sxm|pcie|nvl", word)]
    exact = [device for device in alike if all(_agrees(word, devices[device]) for word in told)]
    return tuple(exact or alike)


def _agrees(word: str, own: Sequence[str]) -> bool:
    """Whether a memory size or form factor in a name agrees with a device; one without such a word always agrees."""
    said = [each for each in own if each.endswith("gb")] if word.endswith("gb") else [
        re.sub(r"\d+$", "", each) for each in own if each.startswith(("sxm", "pcie", "nvl"))
    ]  # fmt: skip
    return not said or word in said


def read_tree(text: str, file: str, nodes: frozenset[str] | None = None) -> Reading:
    """Nodes below a leaf switch, among ``nodes`` if given. Raises UserError for a line that is not understood."""
    result = Reading(YAML_TREE if _is_yaml(text) else TREE, file)
    leaves, above, blocks = _yaml_tree(text, result) if _is_yaml(text) else _tree(text, file)
    kept = {name: [host for host in hosts if nodes is None or host in nodes] for name, hosts in leaves.items()}
    sizes = Counter(len(hosts) for hosts in kept.values() if hosts)
    named, left = (sum(map(len, of.values())) for of in (leaves, kept))
    if 0 < left < named:
        result.unread.append(
            f"{named - left} of {named} nodes below leaf switches are not among the nodes with GPUs that were given: "
            "they do not count"
        )
    if sizes:
        most = max(sizes)
        result.say("scale_out.nodes_per_leaf", most)
        if len(sizes) > 1:
            said = ", ".join(f"{count} with {size}" for size, count in sorted(sizes.items()))
            result.unread.append(f"leaf switches differ ({said}): the largest is taken")
        result.nodes = frozenset(host for hosts in kept.values() for host in hosts)
    if leaves and not sizes:
        result.unread.append("scale_out.nodes_per_leaf: none of the GPUs' nodes hangs on a switch of the file")
    if len(above) > 1:
        result.unread.append(f"{len(above)} switches above the leaves: a profile joins leaves by one spine")
    if len(leaves) > 1:
        result.unread.append("scale_out.oversubscription and rails: the file does not say how leaves are joined")
    if blocks:
        size = max(len(hosts) for hosts in blocks.values())
        result.unread.append(
            f"scale_up.domain: blocks of {size} nodes; where a block is a rack that NVLinks join, set it to {size} "
            "times the devices of a node"
        )
    return result


def _tree(text: str, file: str) -> tuple[dict[str, list[str]], list[str], dict[str, list[str]]]:
    """Hosts of leaf switches, switches above them, hosts of blocks. Raises UserError."""
    leaves: dict[str, list[str]] = {}
    above: list[str] = []
    blocks: dict[str, list[str]] = {}
    for number, line in _joined_lines(text):
        words = line.partition("#")[0].split()
        said = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
        place = f"{file}:{number}"
        if not said or "blocksizes" in said or "aggregatedblock" in said:
            continue
        if unknown := said.keys() - {"switchname", "blockname", "nodes", "switches", "linkspeed", *SHOWN}:
            raise UserError(f"{place}: {printable(min(unknown))} is not a parameter of topology.conf")
        if "switches" in said and "switchname" in said:  # scontrol shows its nodes, too
            above.append(said["switchname"])
        elif "blockname" in said:
            blocks[said["blockname"]] = list(hosts_of(said.get("nodes", ""), place))
        elif "nodes" in said and "switchname" in said:
            leaves[said["switchname"]] = list(hosts_of(said["nodes"], place))
        else:
            raise UserError(f"{place}: wants SwitchName or BlockName, and Nodes or Switches")
    return leaves, above, blocks


def _joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; those that end in a backslash go on in the next."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first or number
        begun += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, begun
            begun, first = "", 0
    if begun:
        yield first, begun


def _yaml_tree(text: str, reading: Reading) -> tuple[dict[str, list[str]], list[str], dict[str, list[str]]]:
    """As :func:`_tree`, of the default topology of a topology.yaml, or its first. Raises UserError."""
    file, data = reading.file, read_yaml(text, reading.file)
    if not isinstance(data, list) or not all(isinstance(each, dict) for each in data):
        raise UserError(f"{file}: wants a list of topologies")
    chosen = next((each for each in data if each.get("cluster_default") is True), data[0])
    name = printable(str(chosen.get("topology")))
    if len(data) > 1:
        reading.unread.append(f"{len(data) - 1} topologies beside {name}, which is the cluster's: left out")
    leaves: dict[str, list[str]] = {}
    above: list[str] = []
    blocks: dict[str, list[str]] = {}
    place = f"{file}: topology {name}"
    if "tree" not in chosen and "block" not in chosen:
        reading.unread.append(f"scale_out.nodes_per_leaf: topology {name} names no switches")
    for each in _entries(chosen, "tree", "switches", place):
        if "nodes" in each:
            leaves[str(each.get("switch"))] = list(hosts_of(str(each["nodes"]), place))
        elif "children" in each:
            above.append(str(each.get("switch")))
        else:
            raise UserError(f"{place}: switch {printable(str(each.get('switch')))} wants nodes or children")
    for each in _entries(chosen, "block", "blocks", place):
        blocks[str(each.get("block"))] = list(hosts_of(str(each.get("nodes", "")), place))
    return leaves, above, blocks


def _entries(topology: Mapping[str, Any], kind: str, key: str, place: str) -> list[Mapping[str, Any]]:
    """The switches of a tree, or the blocks; none if the topology is of another kind. Raises UserError."""
    if kind not in topology:
        return []
    section = topology[kind]
    entries = section.get(key) if isinstance(section, dict) else None
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise UserError(f"{place}: {kind}.{key}: wants a list")
    return entries


def hosts_of(text: str, place: str) -> Iterator[str]:
    """The names of a list of hosts: "n[01-03,7],login". Raises UserError."""
    count = 0
    for part in re.split(r",(?![^\[]*\])", text):
        pieces = re.split(r"\[([^\]]*)\]", part)
        if not part or any(mark in piece for piece in pieces[::2] for mark in "[]"):
            raise UserError(f"{place}: {printable(text)[:60]!r} is not a list of hosts")
        options = [[piece] if index % 2 == 0 else list(_ranges(piece, place)) for index, piece in enumerate(pieces)]
        for name in itertools.product(*options):
            count += 1
            if count > MOST_HOSTS:
                raise UserError(f"{place}: more than {MOST_HOSTS:,} hosts")
            yield "".join(name)


def _ranges(text: str, place: str) -> Iterator[str]:
    """The numbers of "01-03,7", with their leading zeros."""
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if match is None or int(match[2] or match[1]) - int(match[1]) not in range(MOST_HOSTS):
            raise UserError(f"{place}: [{printable(text)[:60]}] is not a range of hosts")
        first = match[1]
        for number in range(int(first), int(match[2] or first) + 1):
            yield f"{number:0{len(first)}d}"
