"""What InfiniBand's tools see of a small fabric: ``ibnetdiscover`` and ``iblinkinfo``.

Formats: rdma-core, infiniband-diags (ibnetdiscover.c, iblinkinfo.c and their man pages). ``ibnetdiscover`` lists the
ports of every switch with the node behind each, ``[1] "H-..."[1] # "name" lid 4 4xHDR``; ``iblinkinfo`` one link a
line, with lanes and the rate of one. A host's cards are called "host HCA-1" or "host mlx5_0".
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.machine.reading import Reading
from simpar.plain import printable

DISCOVER, LINKS = "ibnetdiscover", "iblinkinfo"
LANE_GBIT = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 14.0, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
    "XDR": 200.0,
}  # fmt: skip
"""Gb/s of a lane as data, by generation (InfiniBand Trade Association's roadmap)."""
_SIGNALS = {
    2.5: "SDR", 5.0: "DDR", 10.0: "QDR", 10.3125: "FDR10", 14.0625: "FDR", 25.78125: "EDR", 53.125: "HDR",
    106.25: "NDR", 212.5: "XDR",
}  # fmt: skip
"""What iblinkinfo prints as the rate of a lane, before its code takes a part; some versions round it."""
_SWITCH = re.compile(r'^Switch\s+\d+\s+"(?P<id>[^"]+)"')
_OTHER = re.compile(r'^(?:Ca|Rt)\s+\d+\s+"')
_PORT = re.compile(
    r'^\[\d+\](?:\[[^\]]*\])?\s+"(?P<id>[HSR]-[^"]+)"\[\d+\][^#]*#\s*"(?P<name>[^"]*)"'
    r".*?(?P<width>\d+)x(?P<rate>[A-Z]+\d*)"
)
_GROUP = re.compile(r"^(?P<kind>Switch|CA): (?P<id>.*?):?\s*$")
_LINK = re.compile(
    r"==\(\s*(?P<width>\d+)X\s+(?P<rate>[\d.]+) Gbps\s+Active/\s*LinkUp\)==>"
    r"\s+\d+\s+\d+\[[^\]]*\]\s+\"(?P<name>[^\"]*)\""
)
ROUNDED = 0.005
_NO_HOST = re.compile(r"Aggregation Node|SHARP", re.IGNORECASE)


@dataclass(frozen=True)
class _Link:
    """A link of a switch: the name at its other end, whether that is a switch, and Gb/s."""

    switch: str
    name: str
    to_switch: bool
    rate: float

    @property
    def host(self) -> str:
        """The host at the other end: "" for switches, and for cards that switches have themselves."""
        is_host = not self.to_switch and not _NO_HOST.search(self.name)
        return self.name.split()[0] if is_host and self.name.split() else ""


def is_fabric(text: str) -> bool:
    """Whether a text is one of these listings."""
    head = text[:200_000]
    return bool(re.search(_SWITCH.pattern, head, re.M) or re.search(r"^(Switch|CA): .*:\s*$", head, re.M))


def read_fabric(text: str, file: str) -> Reading:
    """Cards of a host and their rate, hosts below a leaf switch, rails and oversubscription. Raises UserError."""
    discovered = re.search(_SWITCH.pattern, text, re.M) is not None
    links = list(_discovered(text, file) if discovered else _listed(text, file))
    result = Reading(DISCOVER if discovered else LINKS, file)
    down = [link for link in links if link.host]
    if not down:
        raise UserError(f"{file}: no switch with a host: is the listing of a subnet, and whole?")
    cards = Counter(link.host for link in down)
    leaves: dict[str, set[str]] = defaultdict(set)
    for link in down:
        leaves[link.switch].add(link.host)
    sizes = Counter(cards.values())
    most = sizes.most_common(1)[0][0]
    # others are storage and login nodes
    hosts = frozenset(host for host, count in cards.items() if count == most)
    if len(hosts) < len(cards):
        result.unread.append(f"{len(cards) - len(hosts)} of {len(cards)} hosts have not {most} cards: left out")
    rates = Counter(link.rate for link in down if link.host in hosts)
    rate = rates.most_common(1)[0][0]
    if len(rates) > 1:
        said = " and ".join(f"{each:g} Gb/s" for each in sorted(rates))
        result.unread.append(f"links of hosts have {said}: most have {rate:g} Gb/s")
    result.say("scale_out.kind", "ib")
    result.say("scale_out.nics_per_node", most)
    result.say("scale_out.nic_bandwidth", f"{rate:g} Gb/s")
    result.say("scale_out.nodes_per_leaf", max(len(of & hosts) for of in leaves.values()))
    result.nodes = hosts
    _above(result, links, leaves, most)
    return result


def _above(reading: Reading, links: list[_Link], leaves: Mapping[str, set[str]], cards: int) -> None:
    """Note whether every card of a host has a leaf of its own, and what leaves have downwards over upwards."""
    spread = Counter(host for of in leaves.values() for host in of)
    if cards > 1 and reading.nodes:
        rails = {spread[host] for host in reading.nodes}
        if rails <= {1} or rails == {cards}:
            reading.say("scale_out.rails", rails == {cards})
        else:
            reading.unread.append(f"scale_out.rails: the {cards} cards of a host hang on {sorted(rails)} switches")
    ratios = set()
    for leaf in leaves:
        up = sum(link.rate for link in links if link.switch == leaf and link.to_switch)
        down = sum(link.rate for link in links if link.switch == leaf and link.host in (reading.nodes or ()))
        if up:
            ratios.add(round(max(1.0, down / up), 2))
    if ratios:
        reading.say("scale_out.oversubscription", max(ratios))
    if len(ratios) > 1:
        reading.unread.append(f"leaf switches differ in oversubscription ({sorted(ratios)}): the most is taken")


def _discovered(text: str, file: str) -> Iterator[_Link]:
    switch = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _SWITCH.match(line):
            switch = match["id"]
        elif _OTHER.match(line):
            switch = ""
        elif switch and line.startswith("["):
            port = _PORT.match(line)
            if port is None or port["rate"] not in LANE_GBIT:
                raise UserError(f"{file}:{number}: not a port of ibnetdiscover: {printable(line)[:60]!r}")
            rate = int(port["width"]) * LANE_GBIT[port["rate"]]
            yield _Link(switch, port["name"], port["id"].startswith("S-"), rate)


def _listed(text: str, file: str) -> Iterator[_Link]:
    lines = text.splitlines()
    groups = [match for line in lines if (match := _GROUP.match(line))]
    switches = {match["id"].split(" ", 1)[-1] for match in groups if match["kind"] == "Switch"}
    switch = ""
    for number, line in enumerate(lines, start=1):
        if match := _GROUP.match(line):
            switch = match["id"] if match["kind"] == "Switch" else ""
        elif switch and "LinkUp" in line:
            link = _LINK.search(line)
            signal = min(_SIGNALS, key=lambda each: abs(each - float(link["rate"]))) if link else 0.0
            if link is None or abs(signal / float(link["rate"]) - 1) > ROUNDED:
                raise UserError(f"{file}:{number}: not a link of iblinkinfo: {printable(line.strip())[:60]!r}")
            yield _Link(
                switch, link["name"], link["name"] in switches, int(link["width"]) * LANE_GBIT[_SIGNALS[signal]]
            )
