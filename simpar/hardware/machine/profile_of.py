"""From files about a cluster to a profile that is like a shipped one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import Document
from simpar.hardware.machine import host_tools, infiniband, kubernetes, nccl_xml, slurm, topo_matrix, xgmi_tables
from simpar.hardware.machine.reading import Fact, Links, Reading, join_readings
from simpar.hardware.profile import ClusterProfile
from simpar.plain import printable
from simpar.profiles import LIKE, is_file, load_profile, resolve_profile, yaml_text
from simpar.units import GIGA, MIB

MOST_BYTES = 64 * MIB
LINKS = {
    "v100": (25, 6), "a100": (25, 12), "a800": (25, 8), "h100": (25, 18), "h200": (25, 18), "h20": (25, 18),
    "h800": (25, 8), "b200": (50, 18), "b300": (50, 18), "gb200": (50, 18), "gb300": (50, 18),
    "mi300x": (64, 7), "mi325x": (64, 7), "mi350x": (76.8, 7), "mi355x": (76.8, 7),
}  # fmt: skip
"""By device: GB/s of an NVLink or xGMI link in one direction, and links of a device.

Sources: NVIDIA's pages of NVLink (300, 600, 900 and 1,800 GB/s of 6, 12, 18 and 18 links, both directions together); of
A800 and H800 their 400 GB/s; AMD's data sheets of the platforms of MI300X, MI325X (128 GB/s between two devices, both
directions together), MI350X and MI355X (153.6 GB/s)."""
WITH_NETWORK = ("scale_out.kind", "scale_out.nics_per_node", "scale_out.nic_bandwidth", "scale_out.nodes_per_leaf")
KINDS = (
    topo_matrix.KIND, nccl_xml.KIND, slurm.NODES, slurm.TREE, slurm.YAML_TREE, infiniband.DISCOVER, infiniband.LINKS,
    kubernetes.KIND, xgmi_tables.KIND, host_tools.CARDS, host_tools.BUS, host_tools.LISTED,
)  # fmt: skip


@dataclass(frozen=True)
class ImportedProfile:
    """A profile as its file has it, the facts behind it, sentences on what was not read, and the number of nodes."""

    data: dict[str, Any]
    facts: dict[str, Fact]
    unread: tuple[str, ...]
    num_nodes: int | None

    def text(self) -> str:
        """The text of the profile's file; comments at its top say what could not be read."""
        head = [f"# not read: {line}\n" for line in self.unread]
        return "".join(head) + yaml_text(self.data)


def import_profile(
    paths: Sequence[str], name: str, *, like: str | None = None, partition: str | None = None, folder: Path
) -> ImportedProfile:
    """One profile, to be written to ``folder``, from files that all describe the same cluster.

    By default ``like`` is the shipped profile of the instances that a file names, or that with the same device, number
    of devices and fabric, if there is exactly one. Raises UserError for a file of an unknown kind, for files that
    contradict each other, and where no single shipped profile is like the cluster.
    """
    readings = _read(paths, partition)
    facts, unread = join_readings(readings)
    unread = [*unread, *(line for reading in readings for line in reading.unread)]
    devices = _devices(readings)
    base = like or next((each.like for each in readings if each.like), "") or _only_one(devices, facts, readings)
    profile = files.parse(ClusterProfile, load_profile(base, "clusters", "hardware")[0], also=(LIKE,))
    own = profile.device if isinstance(profile.device, str) else profile.device.name
    if len(devices) == 1 and devices[0] != own:
        facts["device"] = Fact(devices[0], next(each.file for each in readings if each.devices))
    elif devices and own not in devices:
        raise UserError(
            f"--like {base}: its device is {own}, the files have {' or '.join(devices)}; "
            "name a profile with one of these"
        )
    for reading in readings:
        if reading.links:
            _scale_up(reading.links, devices[0] if len(devices) == 1 else own, facts, unread)
    if profile.scale_out is None and any(key.startswith("scale_out.") for key in facts):
        unread.append(f"the network: {base} has one node and no network to be like")
        facts = {key: fact for key, fact in facts.items() if not key.startswith("scale_out.")}
    _other_fabric(base, profile, facts, unread)
    order = [*ClusterProfile.model_fields]
    facts = dict(sorted(facts.items(), key=lambda item: (order.index(item[0].partition(".")[0]), item[0])))
    if left := _as_base(profile, facts, devices):
        unread.append(f"as {base} has them: {', '.join(left)}")
    data = _document(name, _beside(base, folder), facts, readings)
    result = ImportedProfile(data, facts, tuple(dict.fromkeys(unread)), _num_nodes(readings))
    document = resolve_profile(Document(data, f"profile of {', '.join(paths)}", {}), folder, "clusters", "hardware")
    files.parse(ClusterProfile, document)
    return result


def _read(paths: Sequence[str], partition: str | None) -> list[Reading]:
    """Every file read by its kind; a topology tree last, because it counts only nodes with GPUs. Raises UserError."""
    texts = {path: files.read_text(path, most=MOST_BYTES) for path in paths}
    readings: list[Reading] = []
    trees: list[str] = []
    for path, text in texts.items():
        if nccl_xml.is_topology(text):
            readings.append(nccl_xml.read_topology(text, path))
        elif topo_matrix.is_matrix(text):
            readings.append(topo_matrix.read_matrix(text, path))
        elif xgmi_tables.is_tables(text):
            readings.append(xgmi_tables.read_tables(text, path))
        elif slurm.is_nodes(text):
            readings.append(slurm.read_nodes(text, path, partition))
        elif infiniband.is_fabric(text):
            readings.append(infiniband.read_fabric(text, path))
        elif kubernetes.is_nodes(text):
            readings.append(kubernetes.read_nodes(text, path))
        elif host_tools.is_cards(text):
            readings.append(host_tools.read_cards(text, path))
        elif host_tools.is_list(text):
            readings.append(host_tools.read_list(text, path))
        elif host_tools.is_bus(text):
            readings.append(host_tools.read_bus(text, path))
        elif slurm.is_tree(text):
            trees.append(path)
        else:
            raise UserError(f"{path}: is none of {', '.join(KINDS)}")
    named = [reading.nodes for reading in readings if reading.nodes is not None]
    if partition is not None and not named:
        raise UserError(f"--partition {partition}: wants the output of {slurm.NODES} among the files")
    nodes = frozenset().union(*named) if named else None
    return [*readings, *(slurm.read_tree(texts[path], path, nodes) for path in trees)]


def _devices(readings: Sequence[Reading]) -> tuple[str, ...]:
    """The devices that agree with all files that name one. Raises UserError where there is none."""
    named = [reading for reading in readings if reading.devices]
    left = [device for device in (named[0].devices if named else ()) if all(device in each.devices for each in named)]
    if named and not left:
        said = "; ".join(f"{each.file}: {' or '.join(each.devices)}" for each in named)
        raise UserError(f"device: the files name different ones ({said})")
    return tuple(left)


def _only_one(devices: Sequence[str], facts: dict[str, Fact], readings: Sequence[Reading]) -> str:
    """The shipped profile with one of these devices, as many, linked alike; of several, the one that all are like.

    Raises UserError for none, and for several that have nothing in common.
    """
    if not devices:
        told = [line for reading in readings for line in reading.unread if line.startswith("device:")]
        why = f" ({'; '.join(told)})" if told else ""
        raise UserError(
            f"the files do not say which GPU it is{why}: name a shipped profile to start from with --{LIKE}"
        )
    profiles = {
        name: files.parse(ClusterProfile, load_profile(name, "clusters", "hardware")[0])
        for name in files.bundled("clusters")
    }
    wanted = {"devices_per_node": facts.get("devices_per_node"), "kind": facts.get("scale_out.kind")}
    alike = {
        name: profile
        for name, profile in profiles.items()
        if profile.device in devices
        and (wanted["devices_per_node"] is None or profile.devices_per_node == wanted["devices_per_node"].value)
        and (wanted["kind"] is None or (profile.scale_out and profile.scale_out.kind == wanted["kind"].value))
        and not any(each.links and profile.scale_up.kind == "pcie" for each in readings)
    }
    if base := next((name for name in alike if all(name in _lineage(other) for other in alike)), None):
        return base
    said = [
        f"{name} ({profile.devices_per_node} x {profile.device}, "
        f"{f'{profile.scale_out.nics_per_node} x {profile.scale_out.kind}' if profile.scale_out else 'no network'})"
        for name, profile in (alike or {n: p for n, p in profiles.items() if p.device in devices}).items()
    ]
    what = "several shipped profiles are" if alike else "no shipped profile is"
    raise UserError(
        f"{what} like it ({' or '.join(devices)}): name one to start from with --{LIKE}"
        + (f": {', '.join(said)}" if said else "")
    )


def _lineage(name: str) -> list[str]:
    """A shipped cluster profile, the one that it is like, the one that this is like, and so on."""
    result = [name]
    while (base := files.load(files.bundled("clusters")[result[-1]]).data.get(LIKE)) is not None:
        result.append(str(base))
    return result


def _scale_up(links: Links, device: str, facts: dict[str, Fact], unread: list[str]) -> None:
    """Note the bandwidth of a device from its links, and whether switches or the links themselves join all devices."""
    rate, most = LINKS.get(device.partition("-")[0], (None, 0))
    others = int(facts["devices_per_node"].value) - 1 if "devices_per_node" in facts else 0
    if rate is None:
        unread.append(f"scale_up: {links.per_device} links of {device}, whose rate simpar does not know")
        return
    count, switched = links.per_device, links.switched
    if switched is None:
        # two devices with as many links between them as either has look alike with a switch and without
        switched = links.per_device * others > most if others > 1 else None
        count = links.per_device * (1 if switched is not False else others)
    if count > most:
        raise UserError(f"{links.file}: {count} links, and a {device} has {most}")
    if switched is not None:
        facts["scale_up.kind"] = Fact("nvswitch" if switched else "mesh", links.file)
    facts["scale_up.bandwidth"] = Fact(f"{count * rate:g} GB/s", links.file)
    if count < most:
        unread.append(f"scale_up: {count} of {most} links of a {device} are there")


def _other_fabric(base: str, profile: ClusterProfile, facts: dict[str, Fact], unread: list[str]) -> None:
    """Note where devices are linked differently than in the base, whose constants of collectives then do not apply."""
    kind = facts.get("scale_up.kind")
    if kind is None or kind.value == profile.scale_up.kind:
        return
    unread.append(
        f"collectives: those of {base} are fitted to its {profile.scale_up.kind}, and this is {kind.value}; "
        "start from a profile of the same fabric, or measure them"
    )
    if kind.value == "pcie" and "scale_up.bandwidth" not in facts:
        facts["scale_up.bandwidth"] = Fact(f"{profile.host.pcie_bandwidth / GIGA:g} GB/s", f"a PCIe link of {base}")
    if profile.scale_up.nvls and kind.value != "nvswitch":
        facts["scale_up.nvls"] = Fact(False, kind.file)


def _as_base(profile: ClusterProfile, facts: dict[str, Fact], devices: Sequence[str]) -> list[str]:
    """Important fields that no file gives, and that are therefore taken from the base."""
    fields = ["scale_up.bandwidth", "host.memory_bytes", *(WITH_NETWORK if profile.scale_out else ())]
    return [*(["device"] if len(devices) != 1 else []), *(key for key in fields if key not in facts)]


def _document(name: str, like: str, facts: dict[str, Fact], readings: Sequence[Reading]) -> dict[str, Any]:
    """A profile's file."""
    data: dict[str, Any] = {"name": name, LIKE: like}
    for key, fact in facts.items():
        section, _, field = key.partition(".")
        if field:
            data.setdefault(section, {})[field] = fact.value
        else:
            data[section] = fact.value
    data["sources"] = [f"{reading.kind}, {Path(reading.file).name}" for reading in readings]
    return data


def _beside(base: str, folder: Path) -> str:
    """The name of a file relative to the folder of the profile."""
    return os.path.relpath(base, folder) if is_file(base) else base


def _num_nodes(readings: Sequence[Reading]) -> int | None:
    named = [reading.nodes for reading in readings if reading.nodes]
    return len(frozenset.intersection(*named)) if named else None


def name_of(output: str) -> str:
    """The name of a profile, from that of its file. Raises UserError where a shipped profile has this name."""
    name = Path(output).stem
    if name in files.bundled("clusters"):
        raise UserError(f"-o {printable(output)}: {name} is a shipped profile; call yours otherwise (--name)")
    return name
