"""Fabrics that ibnetdiscover and iblinkinfo list: cards, leaves, rails, oversubscription."""

import pytest

from simpar.errors import UserError
from simpar.hardware.machine.infiniband import is_fabric, read_fabric


def fabric(rails, hosts=4, cards=2, uplinks=2):
    """Links (switch, name at the other end, is a switch): ``cards`` of every host on one leaf, or on a rail each."""
    links = []
    for host in range(hosts):
        for card in range(cards):
            leaf = card if rails else host // 2
            links.append((f"leaf{leaf}", f"n{host} mlx5_{card}", False))
    links += [(f"leaf{leaf}", "spine0", True) for leaf in range(2) for _ in range(uplinks)]
    links += [("spine0", f"leaf{leaf}", True) for leaf in range(2) for _ in range(uplinks)]
    return [*links, ("leaf0", "Mellanox Technologies Aggregation Node", False), ("leaf1", "login HCA-1", False)]


def discover(links, rate="4xHDR"):
    """As ibnetdiscover prints it, with channel adapters after the switches."""
    lines = ["#", "# Topology file: generated on Thu Jan  1 00:00:00 2026", "#", "vendid=0x2c9", ""]
    for switch in dict.fromkeys(link[0] for link in links):
        lines.append(f'Switch\t41 "S-{switch}"\t\t# "MF0;{switch}:MQM8700/U1" enhanced port 0 lid 6 lmc 0')
        for port, (_, name, up) in enumerate((link for link in links if link[0] == switch), start=1):
            end = f'"S-{name}"[3]' if up else f'"H-08c0eb{port}"[1](8c0eb{port})'
            lines.append(f'[{port}]\t{end} \t\t# "{name}" lid {port} {rate}')
        lines.append("")
    return "\n".join([*lines, 'Ca\t1 "H-08c0eb1"\t# "n0 mlx5_0"', '[1](8c0eb1)\t"S-leaf0"[1]\t\t# lid 1 "leaf0" 4xHDR'])


def linkinfo(links, rate="53.125"):
    """As iblinkinfo prints it."""
    up = f"==( 4X          {rate} Gbps Active/  LinkUp)==>"
    lines = ["CA: n0 mlx5_0:", f'      0x08c0eb1      1    1[  ] {up}       6    1[  ] "leaf0" ( )']
    for switch in dict.fromkeys(link[0] for link in links):
        lines.append(f"Switch: 0x08c0eb0300{switch} {switch}:")
        lines += [
            f'           6   {port}[  ] {up}      {port}    1[  ] "{name}" ( )'
            for port, (_, name, _) in enumerate((link for link in links if link[0] == switch), start=1)
        ]
        lines.append('           6   40[  ] ==(                Down/ Polling)==>             [  ] "" ( )')
    return "\n".join(lines)


@pytest.mark.parametrize("written", [discover, linkinfo])
@pytest.mark.parametrize(("rails", "per_leaf"), [(True, 4), (False, 2)])
def test_cards_leaves_and_uplinks(written, rails, per_leaf):
    """The same of both tools: two cards of 200 Gb/s a host; login nodes and switches' own nodes are left out."""
    text = written(fabric(rails))
    assert is_fabric(text)
    result = read_fabric(text, "x")
    assert {key: fact.value for key, fact in result.facts.items()} == {
        "scale_out.kind": "ib", "scale_out.nics_per_node": 2, "scale_out.nic_bandwidth": "200 Gb/s",
        "scale_out.nodes_per_leaf": per_leaf, "scale_out.rails": rails, "scale_out.oversubscription": 2.0,
    }  # fmt: skip
    assert result.nodes == {"n0", "n1", "n2", "n3"}
    assert any("1 of 5 hosts have not 2 cards" in line for line in result.unread)


@pytest.mark.parametrize(("rate", "bandwidth"), [("4xNDR", 400), ("4xEDR", 100), ("2xHDR", 100), ("4xXDR", 800)])
def test_rates_of_generations(rate, bandwidth):
    """Lanes times their data rate; a rounded signal is known, too."""
    assert read_fabric(discover(fabric(True), rate), "x").facts["scale_out.nic_bandwidth"].value == f"{bandwidth} Gb/s"
    rounded = read_fabric(linkinfo(fabric(True), "25.78"), "x")
    assert rounded.facts["scale_out.nic_bandwidth"].value == "100 Gb/s"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (discover(fabric(True), "4xWDR"), r"x:7: not a port of ibnetdiscover"),
        (linkinfo(fabric(True), "77.0"), r"x:4: not a link of iblinkinfo"),
        (discover([("s", "t", True)]), "no switch with a host"),
    ],
)
def test_damaged_listings(text, words):
    """One line with the place."""
    with pytest.raises(UserError, match=words):
        read_fabric(text, "x")
