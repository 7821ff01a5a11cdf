"""What a host's own tools say of it: ``ibstat`` (its cards), ``lspci -nn`` and ``nvidia-smi -L`` (its devices).

Formats: ibstat of rdma-core (infiniband-diags/ibstat.c: a section for every card, in it one for every port), lspci of
pciutils with ``-n`` or ``-nn``, whose ids are those that NCCL's topology has, and the list of NVIDIA's driver, with a
line for every device and, below it, for every slice of it (MIG).
"""

import re
from collections import Counter
from collections.abc import Iterator

from simpar.errors import UserError
from simpar.files import meant_by
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.machine.nccl_xml import DEVICES
from simpar.hardware.machine.reading import COUNTED, MORE, Reading
from simpar.hardware.machine.slurm import devices_called
from simpar.plain import printable

CARDS, BUS, LISTED = "ibstat", "lspci -nn", "nvidia-smi -L"
_LINE = re.compile(r"^GPU \d{1,4}: (?P<name>[^\n(]{1,80}?) \(UUID: GPU-", re.MULTILINE)
_SLICED = re.compile(r"^\s+MIG \S+\s+Device", re.MULTILINE)
_CARD = re.compile(r"^CA '([^']{1,80})'\s*$", re.MULTILINE)
_PORT = re.compile(r"^\s+Port \d+:\s*$", re.MULTILINE)
_FIELD = re.compile(r"^\s+(State|Rate|Link layer): *(.*?)\s*$", re.MULTILINE)
_RATE = re.compile(r"\d{1,4}")
_DEVICE = re.compile(
    r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (?:[^\[\n]*\[(?P<long>03\d\d|1200)\]:|(?P<short>03\d\d|1200):)"
    r"[^\n]*?\[?(?P<id>(?:10de|1002):[0-9a-f]{4})\]?",
    re.MULTILINE,
)
_NAMED = re.compile(r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] \d?[A-Z][\w /-]*: ", re.MULTILINE)
INFINIBAND = "InfiniBand"


def is_cards(text: str) -> bool:
    """Whether a text is the output of ``ibstat``."""
    return _CARD.search(text) is not None and _PORT.search(text) is not None


def is_bus(text: str) -> bool:
    """Whether a text is the output of ``lspci``."""
    return _DEVICE.search(text) is not None or _NAMED.match(text) is not None


def is_list(text: str) -> bool:
    """Whether a text is the output of ``nvidia-smi -L``."""
    return _LINE.search(text) is not None


def read_list(text: str, file: str) -> Reading:
    """The devices of a host by what its driver calls them. Raises UserError for several kinds, and for slices."""
    result = Reading(LISTED, file)
    names = Counter(match["name"].strip() for match in _LINE.finditer(text))
    if len(names) > 1:
        listed = ", ".join(f"{count} x {printable(name)}" for name, count in sorted(names.items()))
        raise UserError(f"{file}: several kinds of devices: {listed}; a profile has one")
    if _SLICED.search(text):
        raise UserError(f"{file}: devices are in slices (MIG), of which no profile has one; allowed: whole devices")
    name, count = next(iter(names.items()))
    result.say("devices_per_node", count, MORE)
    meant = meant_by(name, "clusters")
    result.devices = (load_cluster(meant).device.name,) if meant else devices_called(name)
    if not result.devices:
        result.unread.append(f"device: the driver calls it {printable(name)}, which is none that simpar knows")
    return result


def read_cards(text: str, file: str) -> Reading:
    """The fastest ports of a host that are up, their rate, and whether they speak InfiniBand. Raises UserError."""
    result = Reading(CARDS, file)
    ports = list(_ports(text, file))
    up = [(rate, layer) for state, rate, layer in ports if state == "Active" and rate]
    if not up:
        raise UserError(f"{file}: {CARDS}: none of {len(ports)} ports is active")
    if down := len(ports) - len(up):
        result.unread.append(f"{down} of {len(ports)} ports are not active: left out of the network")
    rates = Counter(rate for rate, _ in up)
    fastest = max(rates)
    result.say("scale_out.nics_per_node", rates[fastest], COUNTED)
    result.say("scale_out.nic_bandwidth", f"{fastest} Gb/s", MORE)
    for rate, count in sorted(rates.items())[:-1]:
        result.unread.append(f"slower ports, {count} of {rate} Gb/s: left out of the network")
    layers = sorted({layer for rate, layer in up if rate == fastest})
    if layers == [INFINIBAND]:
        result.say("scale_out.kind", "ib")
    else:
        said = " and ".join(map(printable, layers))
        result.unread.append(f"scale_out.kind: the fastest ports speak {said}; whether the job uses RDMA is not said")
    return result


def _ports(text: str, file: str) -> Iterator[tuple[str, int, str]]:
    """State, Gb/s and link layer of every port. Raises UserError for one without."""
    names, sections = _CARD.findall(text), _CARD.split(text)[2::2]
    for name, section in zip(names, sections, strict=True):
        for port in _PORT.split(section)[1:]:
            said = dict(_FIELD.findall(port))
            rate = said.get("Rate", "")
            if "State" not in said or not _RATE.fullmatch(rate):
                told = f"a port of {printable(name)} has the rate {printable(rate)!r}: wants Gb/s; is it whole?"
                raise UserError(f"{file}: {CARDS}: {told}")
            yield said["State"], int(rate), said.get("Link layer", "")


def read_bus(text: str, file: str) -> Reading:
    """The accelerators of a host by their PCI ids. Raises UserError for a list without ids or without accelerators."""
    result = Reading(BUS, file)
    ids = Counter(match["id"] for match in _DEVICE.finditer(text.lower()))
    known = {each: count for each, count in ids.items() if each in DEVICES}
    if not ids:
        raise UserError(f"{file}: no accelerator with its numbers ([10de:2330]): allowed: the output of {BUS}")
    unknown = [each for each in ids if each not in DEVICES]
    if len({DEVICES[each] for each in known}) == 1:
        result.devices = (DEVICES[next(iter(known))],)
        result.say("devices_per_node", sum(known.values()), MORE)
        if unknown:
            result.unread.append(f"PCI {', '.join(sorted(unknown))}: other displays or accelerators, left out")
    elif known:
        listed = ", ".join(f"{count} x {DEVICES[each]}" for each, count in sorted(known.items()))
        raise UserError(f"{file}: several kinds of devices: {listed}; a profile has one")
    else:
        result.unread.append(f"device: PCI {', '.join(sorted(unknown))} is none that simpar knows")
    return result
