"""Networks between nodes in words, laid over a profile's."""

import pytest

from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.network import LATENCY_US, OF_NETWORK, with_fields, with_network
from simpar.units import GB, US

GBIT = GB / 8


@pytest.mark.parametrize(
    ("words", "kind", "cards", "rate"),
    [
        ("25 Gb/s ethernet", "ethernet", 1, 25), ("25GbE", "ethernet", 1, 25), ("2x 10 Gb/s tcp", "ethernet", 2, 10),
        ("4x 100 Gbps RoCE", "roce", 4, 100), ("200 Gb/s", "ib", 1, 200), ("12.5 GB/s InfiniBand", "ib", 1, 100),
        ("ethernet", "ethernet", 8, 200),
    ],
)  # fmt: skip
def test_words_are_cards_a_rate_and_a_kind(words: str, kind: str, cards: int, rate: float) -> None:
    """What is not said stays the profile's: 8 InfiniBand cards of 200 Gb/s."""
    named = load_cluster(f"dgx-a100-80gb over {words}", 2)
    out = named.profile.scale_out
    assert out is not None
    assert (out.kind, out.nics_per_node) == (kind, cards)
    assert out.nic_bandwidth == pytest.approx(rate * GBIT)
    assert out.latency == (
        load_cluster("dgx-a100-80gb").profile.scale_out.latency if kind == "ib" else LATENCY_US[kind] * US
    )
    assert named.profile.name == f"dgx-a100-80gb over {words}"


def test_parameters_of_the_old_network_go_with_it() -> None:
    """Fitted latencies of EFA say nothing about TCP; those of InfiniBand hold for RoCE; ports of the node stay."""
    efa, tcp = (load_cluster(name, 2).profile for name in ("aws-p5", "p5 over 100 Gb/s ethernet"))
    assert "nic_hop_us" in efa.collectives
    assert not set(OF_NETWORK) & set(tcp.collectives)
    assert not tcp.jobs.in_training
    assert tcp.collectives == {key: each for key, each in efa.collectives.items() if key not in OF_NETWORK}
    roce = load_cluster("dgx-h100 over roce").profile
    assert roce.collectives == load_cluster("dgx-h100").profile.collectives
    faster = load_cluster("gcp-a2-high over 50 Gb/s").profile
    assert faster.collectives == load_cluster("gcp-a2-high").profile.collectives
    assert (roce.scale_out.sharp, roce.scale_out.nodes_per_leaf) == (False, None)


def test_a_part_of_a_node_and_an_instance_have_it_too() -> None:
    """A count before the name, and an instance whose own network is replaced."""
    assert load_cluster("4xH100 over 25GbE").profile.scale_out.nic_bandwidth == 25 * GBIT
    assert load_cluster("g5.xlarge over 50 Gb/s ethernet", 2).profile.scale_out.nic_bandwidth == 50 * GBIT


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dgx-h100 over fast", r"network = 'fast': fast is no kind"),
        ("dgx-h100 over 2x roce", r"network = '2x roce': allowed: such as"),
        ("dgx-h100 over 25 furlongs", r"network = '25 furlongs': allowed"),
        ("laptop-cpu over ethernet", r"laptop-cpu has none between nodes; allowed with a rate"),
    ],
)
def test_words_that_are_none_are_refused_in_one_line(name: str, message: str) -> None:
    """With what is allowed."""
    with pytest.raises(UserError, match=message) as told:
        load_cluster(name)
    assert "\n" not in str(told.value)


def test_fields_of_a_network_are_laid_over_those_of_the_profile() -> None:
    """What is not given stays, in groups too; another kind of network is the one that words give."""
    profile = load_cluster("dgx-h100").profile
    out = profile.scale_out
    assert out is not None
    rails = with_fields(profile, {"rail_only": True})
    assert rails.scale_out == out.model_copy(update={"rail_only": True})
    assert rails.name == "dgx-h100, rail_only True"
    tree = with_fields(profile, {"groups": {"nodes": 4 * out.nodes_per_leaf, "oversubscription": 3}})
    flies = with_fields(tree, {"groups": {"kind": "dragonfly"}})
    assert flies.scale_out.groups == tree.scale_out.groups.model_copy(update={"kind": "dragonfly"})
    roce, said = with_fields(profile, {"kind": "roce", "nics_per_node": 4}), with_network(profile, "roce")
    assert roce.scale_out == said.scale_out.model_copy(update={"nics_per_node": 4})
    assert roce.collectives == said.collectives


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rail_onyl": True}, "rail_only"), ({"kind": "carrier pigeon"}, "kind"), ({"nic_bandwidth": 100}, "unit"),
        ({"groups": {"nodes": 7}}, "multiples"), ({"rails": False, "rail_only": True}, "rail_only"),
    ],
)  # fmt: skip
def test_fields_that_no_network_has_are_refused(given: dict[str, object], words: str) -> None:
    """By key, with what is allowed."""
    with pytest.raises(UserError, match=f"cluster.scale_out.*{words}"):
        with_fields(load_cluster("dgx-h100").profile, given)
