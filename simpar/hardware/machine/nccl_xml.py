"""The topology that NCCL or RCCL found (``NCCL_TOPO_DUMP_FILE``): devices, their links, PCIe switches, network cards.

Elements and attributes: github.com/NVIDIA/nccl, src/graph/topo.cc and xml.cc: ``speed`` of a ``net`` in Mb/s,
``tclass`` of an ``nvlink`` the PCI class of what it leads to (0x0680: an NVSwitch, 0x0302: a GPU). RCCL
(github.com/ROCm/rccl, the same files) writes ``xgmi``, which always leads to another GPU. Topologies that are written
by hand or before the network is asked have no ``speed``. Entities and document types, which such files do not have, are
refused.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

from simpar.errors import UserError
from simpar.hardware.machine.reading import MORE, Links, Reading
from simpar.plain import MAX_DEPTH

KIND = "NCCL topology"
SWITCH, DEVICE_CLASSES = "0x0680", {"0x0302", "0x0300"}  # PCI classes
DEVICES = {
    "10de:1db1": "v100-sxm2-16gb", "10de:1db5": "v100-sxm2-32gb", "10de:1db8": "v100-sxm3-32gb",
    "10de:20b0": "a100-sxm-40gb", "10de:20b2": "a100-sxm-80gb", "10de:20f3": "a100-sxm-80gb",
    "10de:20b5": "a100-pcie-80gb", "10de:2204": "rtx-3090", "10de:2237": "a10g",
    "10de:2330": "h100-sxm-80gb", "10de:2324": "h100-sxm-80gb", "10de:2331": "h100-pcie", "10de:2335": "h200-sxm",
    "10de:2321": "h100-nvl-94gb", "10de:2329": "h20-sxm", "10de:1eb8": "t4", "10de:2235": "a40", "10de:2236": "a10",
    "10de:2230": "rtx-a6000", "10de:2206": "rtx-3080", "10de:2503": "rtx-3060", "10de:2504": "rtx-3060",
    "10de:2684": "rtx-4090", "10de:2704": "rtx-4080", "10de:26b1": "rtx-6000-ada", "10de:26b9": "l40s",
    "10de:26ba": "l20", "10de:27b8": "l4", "10de:2b85": "rtx-5090", "10de:2e12": "gb10",
    "10de:2901": "b200-sxm", "10de:2941": "gb200", "10de:3182": "b300-sxm", "10de:31c2": "gb300", "10de:31c3": "gb300",
    "10de:2bb5": "rtx-pro-6000", "10de:2bb1": "rtx-pro-6000",
    "1002:7408": "mi250x", "1002:740c": "mi250x", "1002:74a1": "mi300x", "1002:74b5": "mi300x",
    "1002:74a5": "mi325x", "1002:74b9": "mi325x", "1002:75a0": "mi350x", "1002:75a3": "mi355x",
}  # fmt: skip
"""Shipped devices by PCI vendor and device (pci-ids.ucw.cz). An A800 (20f3) and an H800 (2324) are an A100 and an H100
with fewer NVLinks; ids of virtual functions stand beside AMD's physical ones."""
SOCKETS = ("0", "65536")
"""Port and connections of cards that NCCL reaches over TCP (src/transport/net_socket.cc); RDMA has ports."""
MOST_MBIT_PER_S = 3_200_000
"""More than any port carries: the fastest cards that are announced have 1.6 Tb/s."""
MOST_DIGITS = 6  # of a clock in GT/s
ENCODING = {2.5: 0.8, 5.0: 0.8}
"""Share of a PCIe lane's bits that are data: 8 of 10 up to the second generation, 128 of 130 since the third."""


def is_topology(text: str) -> bool:
    """Whether a text looks like a topology file of NCCL."""
    return re.search(r"<(system|gpu|cpu)\b", text[:100_000]) is not None and text.lstrip().startswith("<")


def read_topology(text: str, file: str) -> Reading:
    """The facts about a node in a topology file. Raises UserError for other files and for XML that is not plain."""
    root = _parsed(text, file)
    result = Reading(KIND, file)
    hosts = Counter(cpu.get("host_hash", "") for cpu in root.iter("cpu") for _ in cpu.iter("gpu"))
    devices = list(root.iter("gpu"))
    if not devices or not hosts:
        has_pci = root.find("cpu/pci") is not None
        other = "one for NCCL_TOPO_FILE lists PCI switches alone" if has_pci else "a graph is another file"
        raise UserError(f"{file}: no gpu below a cpu: allowed: what NCCL writes to NCCL_TOPO_DUMP_FILE; {other}")
    if len(set(hosts.values())) > 1:
        result.unread.append(f"devices_per_node: hosts have {sorted(set(hosts.values()))} GPUs of the job")
    else:
        result.say("devices_per_node", next(iter(hosts.values())), MORE)
    if len(hosts) > 1:
        result.unread.append(
            f"scale_up.domain: NVLinks join {len(devices)} GPUs of {len(hosts)} hosts of the job; a rack may have more"
        )
    _device(result, root)
    _cards(result, root, len(hosts))
    _links(result, devices)
    _pcie(result, root)
    return result


def _parsed(text: str, file: str) -> ElementTree.Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise UserError(f"{file}: document types and entities are not read: NCCL writes none")
    depth, root = 0, None
    try:
        element: ElementTree.Element
        for event, element in ElementTree.iterparse(io.StringIO(text), events=("start", "end")):
            depth += 1 if event == "start" else -1
            root = element if root is None else root
            if depth > MAX_DEPTH:
                raise UserError(f"{file}: nested more than {MAX_DEPTH} levels deep")
    except ElementTree.ParseError as error:
        raise UserError(f"{file}:{error.position[0]}: not valid XML ({str(error).partition(':')[0]})") from None
    if root is None or root.tag != "system":
        raise UserError(f"{file}: the outermost element is {root.tag if root is not None else 'none'}: wants system")
    return root


def _number(element: ElementTree.Element, key: str, file: str) -> int:
    text = element.get(key, "")
    if not re.fullmatch(r"\d{1,12}", text):
        raise UserError(f"{file}: {element.tag} {key} = {text!r}: wants a whole number")
    return int(text)


def _device(reading: Reading, root: ElementTree.Element) -> None:
    """Note which device it is, by the PCI id of the element that holds it."""
    holders = [pci for pci in root.iter("pci") if pci.find("gpu") is not None]
    ids = {":".join(pci.get(key, "").lower().removeprefix("0x") for key in ("vendor", "device")) for pci in holders}
    names = {DEVICES.get(each) for each in ids}
    if len(ids) == 1 and None not in names:
        reading.devices = tuple(name for name in names if name)
    elif ids != {":"}:
        reading.unread.append(f"device: PCI {', '.join(sorted(ids))} is none that simpar knows")


def _cards(reading: Reading, root: ElementTree.Element, hosts: int) -> None:
    """Note the fastest cards of a node; slower ones serve other traffic."""
    cards = list(root.iter("net"))
    # 0 is how NCCL writes a speed that the card did not tell, -1 how Linux does for a link that is down
    silent = ("", "-1")
    told = {id(card): 0 if card.get("speed", "") in silent else _number(card, "speed", reading.file) for card in cards}
    if strange := {speed for speed in told.values() if speed > MOST_MBIT_PER_S}:  # plugins write other units
        listed = ", ".join(map(str, sorted(strange)))
        reading.unread.append(f"net speed = {listed}: not the Mb/s of a card (at most {MOST_MBIT_PER_S})")
        told = {card: 0 if speed in strange else speed for card, speed in told.items()}
    speeds = Counter(speed for speed in told.values() if speed)
    if not cards:
        reading.unread.append("network cards: the file has none")
        return
    if speeds:
        fastest = max(speeds)
        count, what = speeds[fastest], f"of {fastest / 1000:g} Gb/s"
        reading.say("scale_out.nic_bandwidth", f"{fastest / 1000:g} Gb/s")
        for speed, others in sorted(speeds.items())[:-1]:
            reading.unread.append(f"slower cards, {others} of {speed / 1000:g} Gb/s: left out of the network")
        if untold := len(cards) - speeds.total():
            reading.unread.append(f"{untold} of {len(cards)} network cards have no speed: left out of the network")
    else:
        count, what = _widest(reading, root), "on the widest PCIe links"
    if count % hosts:
        reading.unread.append(f"scale_out.nics_per_node: {count} cards {what} on {hosts} hosts")
    else:
        reading.say("scale_out.nics_per_node", count // hosts, MORE)
    if any(pci.get("vendor") == "0x1d0f" for pci in root.iter("pci") if pci.find("nic/net") is not None):
        reading.say("scale_out.kind", "efa")  # Amazon's cards
    elif cards and {(card.get("port"), card.get("maxconn")) for card in cards} == {SOCKETS}:
        reading.say("scale_out.kind", "ethernet")
    else:
        reading.unread.append("scale_out.kind: the file does not tell InfiniBand from RoCE")


def _widest(reading: Reading, root: ElementTree.Element) -> int:
    """Number of the cards on the fastest PCIe links, where no card has a speed; their own speed stays unknown."""
    links = Counter[float]()
    for pci in root.iter("pci"):
        links[_rate_gb_per_s(pci) or 0.0] += len(pci.findall("nic/net"))
    links[0.0] += sum(1 for _ in root.iter("net")) - links.total()  # of cards that hang on no PCI device
    links = +links
    best = max(links, default=0.0)
    most = f", at most the {best * 8:.0f} Gb/s of their PCIe links" if best else ""
    reading.unread.append(f"scale_out.nic_bandwidth: no network card of the file has a speed{most}")
    for rate, count in sorted(links.items())[:-1]:
        reading.unread.append(f"cards on narrower PCIe links, {count} of {rate * 8:.0f} Gb/s: left out of the network")
    return links[best]


def _links(reading: Reading, devices: Sequence[ElementTree.Element]) -> None:
    """Note the NVLinks or xGMI links, if every device has equally many and all lead to switches or all to devices."""
    what = "xGMI links" if any(device.find("xgmi") is not None for device in devices) else "NVLinks"
    counts = {sum(_number(link, "count", reading.file) for link in _links_of(device)) for device in devices}
    classes = {link.get("tclass", "")[:6] for device in devices for link in device.findall("nvlink")}
    if counts == {0}:
        reading.say("scale_up.kind", "pcie")
    elif len(counts) > 1 or len(classes) > 1:
        reading.unread.append(f"scale_up: GPUs have {sorted(counts)} {what}; a profile has as many of each")
    elif classes == {SWITCH}:
        reading.links = Links(reading.file, counts.pop(), switched=True)
    elif classes <= DEVICE_CLASSES and _all_joined(devices):
        reading.links = Links(reading.file, counts.pop(), switched=False)
    else:
        reading.unread.append(f"scale_up: {what} do not join every pair of GPUs; a profile has as many between all")


def _links_of(device: ElementTree.Element) -> list[ElementTree.Element]:
    return [*device.findall("nvlink"), *device.findall("xgmi")]


def _all_joined(devices: Sequence[ElementTree.Element]) -> bool:
    """Whether every device has equally many links to each of the others."""
    pairs = [
        Counter(link.get("target") for link in _links_of(device) for _ in range(int(link.get("count", 0))))
        for device in devices
    ]
    return all(len(each) == len(devices) - 1 and len(set(each.values())) == 1 for each in pairs)


def _pcie(reading: Reading, root: ElementTree.Element) -> None:
    """Note the number of devices below one PCIe switch, and the rate of their links."""
    shares = {sum(1 for _ in top.iter("gpu")) for top in _highest(root)} - {0}
    if len(shares) == 1:
        reading.say("host.devices_per_switch", shares.pop(), MORE)
    elif shares:
        reading.unread.append(f"host.devices_per_switch: PCIe switches have {sorted(shares)} GPUs")
    rates = {_rate_gb_per_s(pci) for pci in root.iter("pci") if pci.find("gpu") is not None}
    if len(rates) == 1 and (rate := rates.pop()):
        reading.unread.append(
            f"host.pcie_bandwidth: links of {rate:.1f} GB/s by their clock, of which copies reach less; measure it"
        )


def _highest(root: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """PCI devices directly below a processor: switches, and directly attached devices."""
    for cpu in root.iter("cpu"):
        yield from cpu.findall("pci")


def _rate_gb_per_s(pci: ElementTree.Element) -> float | None:
    """Rate of a link in GB/s from its clock and width; None where the file has neither."""
    clock = re.match(r"(\d+(?:\.\d+)?) GT/s", pci.get("link_speed", ""))
    width = pci.get("link_width", "0")
    if clock is None or not re.fullmatch(r"\d{1,3}", width) or len(clock[1]) > MOST_DIGITS:
        return None
    return float(clock[1]) * ENCODING.get(float(clock[1]), 128 / 130) * int(width) / 8
