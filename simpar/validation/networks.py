"""A table's words for the network between nodes as numbers: NICs per node, and the rate of each."""

from __future__ import annotations

import re
from math import gcd

from simpar.dataclass import dataclass
from simpar.hardware.profile import ScaleOut
from simpar.units import GIGA, TERA, number_of

BITS_OF_BYTE = 8
RATE = r"(\d+(?:\.\d+)?)\s*([TG])(b(?:/s|ps|it/s|\b)|B/s)"
"""A rate with its unit: Gb/s, Gbps and Gbit/s are bits, GB/s bytes."""
_CLAUSES, _INSIDE = re.compile(r"[;,|+]"), re.compile(r"nvlink|nvswitch|xgmi|pcie", re.IGNORECASE)
"""Separators between words for different networks, and names of links inside a node."""
_NICS = re.compile(rf"(\d+)\s*(?:x|NICs? (?:of|at))\s*{RATE}")
_COUNTED = re.compile(rf"(?:(\d+)\s*x\s*)?{RATE}", re.IGNORECASE)
_OF_DEVICE = re.compile(rf"{RATE}[^;,|]*?(?:per|/)\s*(?:GPU|device|accelerator|chip)", re.IGNORECASE)
_OF_NODE = re.compile(rf"{RATE}[^;,|]*?(?:(?:per|/)\s*node|inter-?node|between nodes|across nodes)")
_TCP, _RDMA = (
    re.compile(rf"\b(?:{names})\b", re.IGNORECASE)
    for names in ("ethernet|tcp|sockets", r"roce\w*|rdma|ib|infiniband|efa")
)
"""Networks of TCP, and words of those that have RDMA."""
_CARDS = re.compile(
    r"(\d+)\s*(?:x\s*)?(?:Mellanox |NVIDIA |Intel )?(ConnectX-?\d|CX-?\d|XDR|NDR|HDR|EDR|FDR|Omni-?Path|OPA)",
    re.IGNORECASE,
)
CARDS_BITS_PER_S = {
    "connectx4": 100 * GIGA, "connectx5": 100 * GIGA, "connectx6": 200 * GIGA, "connectx7": 400 * GIGA,
    "connectx8": 800 * GIGA, "fdr": 56 * GIGA, "edr": 100 * GIGA, "hdr": 200 * GIGA, "ndr": 400 * GIGA,
    "xdr": 800 * GIGA, "omnipath": 100 * GIGA, "opa": 100 * GIGA,
}  # fmt: skip
"""Rates of a port: InfiniBand generations (four lanes), NVIDIA adapters at their fastest, Intel Omni-Path 100."""


@dataclass(frozen=True)
class Network:
    """The NICs of a node, and the bandwidth of each in bytes/s per direction."""

    nics: int
    nic_bandwidth: float

    @property
    def words(self) -> str:
        """The network in a report's words."""
        rate = self.nic_bandwidth * BITS_OF_BYTE / GIGA
        return f"{number_of(self.nics, 'NIC')} of {rate:g} Gb/s"

    def laid_over(self, network: ScaleOut) -> ScaleOut:
        """A profile's network with these NICs."""
        return network.model_copy(update={"nics_per_node": self.nics, "nic_bandwidth": self.nic_bandwidth})


def network_of(words: str, devices: int, usual: ScaleOut | None) -> Network | None:
    """The NICs of a node of ``devices`` devices, from words; None if they give none, or the profile's.

    A rate of a whole node is split over as many NICs of the profile's rate as it takes.
    """
    if usual is None:
        return None
    named = _named(words, devices, usual)
    if named is None or named == Network(usual.nics_per_node, usual.nic_bandwidth):
        return None
    return _even(named, devices)


def sockets_of(words: str) -> str:
    """The network of a table's words as hardware names it, where that is TCP over Ethernet; "" for others.

    >>> sockets_of("NVLink; 2x 25 Gb/s Ethernet"), sockets_of("100 Gb/s RoCE over Ethernet")
    ('2x 25 Gb/s ethernet', '')
    """
    if not _TCP.search(words) or _RDMA.search(words):
        return ""
    clause = next(each for each in _CLAUSES.split(words) if _TCP.search(each))
    rate = _COUNTED.search(clause)
    if rate is None:
        return "ethernet"
    number = _bytes_per_s(rate[2], rate[3], rate[4]) * BITS_OF_BYTE / GIGA
    return f"{int(rate[1] or 1)}x {number:g} Gb/s ethernet"


def unread_rates(words: str) -> list[str]:
    """Rates that say neither of how many cards nor of what they are, so that nothing is read of them.

    >>> unread_rates("NVLink 900 GB/s; 100 Gb/s RoCE"), unread_rates("4x 100 Gb/s RoCE"), unread_rates("25 Gb/s TCP")
    (['100 Gb/s'], [], [])
    """
    read, said = (_NICS, _CARDS, _OF_DEVICE, _OF_NODE), [] if sockets_of(words) else _CLAUSES.split(words)
    open_ = [each for each in said if not _INSIDE.search(each) and not any(form.search(each) for form in read)]
    return [rate[0] for each in open_ if (rate := _COUNTED.search(each))]


def without_rates(words: str) -> str:
    """The words of a cell without counts and rates.

    >>> without_rates("4x 200 Gb/s slingshot")
    '  slingshot'
    """
    return _COUNTED.sub(" ", words)


def _named(words: str, devices: int, usual: ScaleOut) -> Network | None:
    for clause in (each for each in _CLAUSES.split(words) if not _INSIDE.search(each)):
        if nics := _NICS.search(clause):
            return Network(int(nics[1]), _bytes_per_s(nics[2], nics[3], nics[4]))
        if cards := _CARDS.search(clause):
            name = cards[2].lower().replace("-", "").replace("cx", "connectx")
            if name in CARDS_BITS_PER_S:
                return Network(int(cards[1]), CARDS_BITS_PER_S[name] / BITS_OF_BYTE)
        if each := _OF_DEVICE.search(clause):
            return Network(devices, _bytes_per_s(*each.groups()))
        if whole := _OF_NODE.search(clause):
            total = _bytes_per_s(*whole.groups())
            count = max(1, round(total / usual.nic_bandwidth))
            return Network(count, total / count)
    return None


def _even(named: Network, devices: int) -> Network:
    """NICs that devices share evenly, with the same total rate."""
    if named.nics % devices == 0 or devices % named.nics == 0:
        return named
    nics = gcd(named.nics, devices)
    return Network(nics, named.nics * named.nic_bandwidth / nics)


def _bytes_per_s(number: str, prefix: str, unit: str) -> float:
    scale = TERA if prefix.upper() == "T" else GIGA
    return float(number) * scale / (1 if unit.startswith("B") else BITS_OF_BYTE)
