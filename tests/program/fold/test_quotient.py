"""Folding by orbits gives the classes of plain refinement, whatever the cluster, the mesh and the damage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from simpar.cost.collectives.choice import choose_fastest, collective, offers
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.hardware.profile import ClusterProfile
from simpar.plan.mesh import Mesh
from simpar.program.fold.group_routes import GroupKind
from simpar.program.fold.incidence import build_graph
from simpar.program.fold.quotient import Quotient, build_quotient
from simpar.program.ir.flow import quantise
from simpar.units import GB, GIB, US
from tests.gate import assert_law, some

SEEDS = st.integers(0, 2**32 - 1)


def fabric(nodes: int, *, per_node: int = 4, up: dict[str, Any] | None = None, **out: Any) -> Cluster:
    """Nodes of ports at 100 GB/s and NICs at 10 GB/s, on rails unless said otherwise."""
    network = {"kind": "ib", "nics_per_node": per_node, "nic_bandwidth": 10 * GB, "latency": US, **out}
    return make_cluster(
        ClusterProfile.model_validate(
            {
                "name": "toy",
                "device": "h100-sxm-80gb",
                "devices_per_node": per_node,
                "scale_up": {"kind": "nvswitch", "bandwidth": 100 * GB, "latency": US, **(up or {})},
                "scale_out": network,
                "host": {"memory_bytes": GIB, "memory_bandwidth": 200 * GB, "pcie_bandwidth": 25 * GB},
            }
        ),
        nodes,
    )


@dataclass(frozen=True)
class Case:
    """A cluster, the process groups on it, and what tells ranks apart."""

    cluster: Cluster
    kinds: tuple[GroupKind, ...]
    colour: np.ndarray

    def quotient(self, *, orbits: bool) -> Quotient:
        """The quotient, folded by orbits or rank by rank."""
        return build_quotient(self.cluster, self.kinds, self.colour, orbits=orbits)


def kinds_of(mesh: Mesh, replicas: int, *, exchange: bool) -> tuple[GroupKind, ...]:
    """Groups as a plan has them: tensor, data (in shards and replicas), pipeline pairs, experts, ends."""
    kinds = []
    if mesh.tp > 1:
        kinds.append(GroupKind("tp", mesh.groups("tp"), ("all_gather", "reduce_scatter", "all_reduce")))
    wide = mesh.groups(("dp", "cp"))
    width = wide.shape[1]
    if width > 1 and (replicas == 1 or width % replicas or width == replicas):
        kinds.append(GroupKind("dp", wide, ("all_gather", "reduce_scatter")))
    elif width > 1:
        across = wide.reshape(len(wide), replicas, -1).transpose(0, 2, 1).reshape(-1, replicas)
        kinds.append(GroupKind("dp_shard", wide.reshape(len(wide) * replicas, -1), ("all_gather", "reduce_scatter")))
        kinds.append(GroupKind("dp_replicate", across, ("all_reduce",)))
    if exchange and width > 1 and width % 2 == 0:
        kinds.append(GroupKind("ep", wide.reshape(-1, 2), ("all_to_all",)))
    if mesh.pp > 1:
        lines = mesh.groups("pp")
        for delta in {1, mesh.pp - 1}:
            pairs = np.stack([lines.ravel(), np.roll(lines, -delta, axis=1).ravel()], axis=1)
            kinds.append(GroupKind(f"pp+{delta}", pairs, ("send",), directed=True))
        if mesh.pp > 2:
            kinds.append(GroupKind("embedding", lines[:, [0, -1]], ("all_reduce",)))
    return tuple(kinds)


def draw_case(seed: int) -> Case:
    """A random product mesh on a random fabric, damaged in a few places or not at all."""
    draw = np.random.default_rng(seed)
    sizes = {
        "tp": int(draw.choice([1, 2, 4, 8])),
        "cp": int(draw.choice([1, 1, 2])),
        "dp": int(draw.choice([1, 2, 3, 4, 6, 8, 16])),
        "pp": int(draw.choice([1, 2, 3, 4])),
    }
    order = tuple(draw.permutation(list(sizes)).tolist())
    mesh = Mesh(**sizes, order=order)
    per_node = int(draw.choice([n for n in (1, 2, 4, 6, 8) if mesh.world_size % n == 0]))
    nodes = mesh.world_size // per_node
    up: dict[str, Any] = {"nvls": bool(draw.random() < 0.5)}
    if draw.random() < 0.15 and nodes % 2 == 0:
        up["domain"] = 2 * per_node
    elif draw.random() < 0.1 and per_node in (4, 8):
        up |= {"kind": "torus", "dims": (2, per_node // 2), "nvls": False}
    cluster = fabric(
        nodes,
        per_node=per_node,
        up=up,
        nics_per_node=int(draw.choice([n for n in (1, 2, 3, per_node) if n <= per_node])),
        nodes_per_leaf=[None, 1, 2, 3, 4, 8][draw.integers(6)],
        rails=bool(draw.random() < 0.7),
        oversubscription=float(draw.choice([1.0, 4.0])),
        sharp=bool(draw.random() < 0.3),
    )
    colour = mesh.coordinates(np.arange(mesh.world_size))["pp"].astype(np.int64)
    for _ in range(int(draw.choice([0, 0, 1, 2]))):
        colour[draw.integers(mesh.world_size)] += mesh.pp * int(draw.integers(1, 3))
    blocks = ["port_tx", "nic_tx", "nic_rx"] + ["leaf_up"] * (cluster.num_leaves > 0)
    for _ in range(int(draw.choice([0, 0, 1, 2]))):
        block = blocks[draw.integers(len(blocks))]
        size = cluster.num_leaves if block == "leaf_up" else nodes * cluster.rails
        size = mesh.world_size if block == "port_tx" else size
        cluster = cluster.with_degraded({f"{block}[{draw.integers(size)}]": 0.5})
    return Case(cluster, kinds_of(mesh, int(draw.choice([1, 2, 3])), exchange=draw.random() < 0.3), colour)


def traffic(quotient: Quotient) -> dict[tuple[int, int, int], list[float]]:
    """Bytes that a class of groups puts on one link of a class, by (kind, group class, link class)."""
    found: dict[tuple[int, int, int], np.ndarray] = {}
    for kind, each in enumerate(quotient.traffic):
        for group, link, label, count in zip(each.group, each.link, each.label, each.count, strict=True):
            key = (kind, int(group), int(link))
            found[key] = found.get(key, 0) + each.loads[label] * count
    return {key: loads.tolist() for key, loads in found.items()}


def assert_same(quick: Quotient, plain: Quotient) -> None:
    """Both layouts have the same classes, numbered alike, with the same prices and loads."""
    for name in ("class_of_rank", "representative_rank", "multiplicity", "link_capacity_bytes_per_s"):
        np.testing.assert_array_equal(getattr(quick, name), getattr(plain, name), err_msg=name)
    assert quick.link_names == plain.link_names
    assert quick.link_is_port.tolist() == plain.link_is_port.tolist()
    assert {k: v.tolist() for k, v in quick.group_class.items()} == {
        k: v.tolist() for k, v in plain.group_class.items()
    }
    shapes = [[(g.kind, g.members, g.directed) for g in quotient.groups] for quotient in (quick, plain)]
    assert shapes[0] == shapes[1]
    loads = [traffic(quotient) for quotient in (quick, plain)]
    assert loads[0].keys() == loads[1].keys()
    for key, load in loads[0].items():
        np.testing.assert_allclose(load, loads[1][key], rtol=1e-12)


@pytest.mark.parametrize("examples", some([5, 250], 1))
def test_orbits_give_the_classes_of_plain_refinement(examples: int) -> None:
    """Classes, representatives, links and loads equal those of refining every rank, group and link."""
    assert_law(assert_orbits_are_classes, examples, seed=SEEDS)


def assert_orbits_are_classes(seed: int) -> None:
    """Both layouts of a case are the same, and so is what is offered to their groups."""
    case = draw_case(seed)
    quick, plain = case.quotient(orbits=True), case.quotient(orbits=False)
    assert_same(quick, plain)
    for ours, theirs in zip(quick.groups, plain.groups, strict=True):
        for op in next(kind.ops for kind in case.kinds if kind.name == ours.kind):
            assert offers(op, ours.ranks, case.cluster) == offers(op, theirs.ranks, case.cluster)


@pytest.mark.parametrize("examples", some([3, 60], 1))
def test_routes_are_the_loads_on_every_link(examples: int) -> None:
    """What a class of groups puts on a link of a class is the same on each of them, at any message size."""
    assert_law(assert_routes_are_loads, examples, seed=SEEDS)


def assert_routes_are_loads(seed: int) -> None:
    """Routes of classes against every group priced alone."""
    case = draw_case(seed)
    quotient = case.quotient(orbits=True)
    names = {case.cluster.link_name(link): link for link in range(case.cluster.num_links)}
    size = float(np.random.default_rng(seed).choice([1.0, 1e5, 1e9]))
    for kind in case.kinds:
        of_group = quotient.group_class[kind.name][quotient.class_of_rank[kind.groups[:, 0]]]
        for op, group_class in product(kind.ops, np.unique(of_group).tolist()):
            loads, chosen = loads_of(case, kind.groups[of_group == group_class], op, size)
            offer = choose_fastest(offers(op, quotient.groups[group_class].ranks, case.cluster), size)
            assert chosen == {offer.algorithm}
            route = quotient.route(group_class, op, offer)
            used = {(round(load, 6), case.cluster.link_capacity_bytes_per_s[k]) for k, load in loads.items()}
            routed = {
                (round(load, 6), quotient.link_capacity_bytes_per_s[k])
                for k, load in zip(route.links.tolist(), route.coefficients.tolist(), strict=True)
            }
            assert used == routed
            for link, load in zip(route.links.tolist(), route.coefficients.tolist(), strict=True):
                assert loads[names[quotient.link_names[link]]] == pytest.approx(load)


def loads_of(case: Case, groups: np.ndarray, op: str, size: float) -> tuple[dict[int, float], set[str]]:
    """Bytes on every link per byte of an op of all groups, each priced alone; and the algorithms chosen."""
    costs = [collective(op, group[None, :], case.cluster, size_bytes=size) for group in groups]
    loads: dict[int, float] = {}
    for cost in costs:
        load = quantise(cost.edges.coefficient)
        edges = zip(cost.edges.link_id.tolist(), load.tolist(), strict=True)
        for link, more in (each for each in edges if case.cluster.can_bind(np.array(each[:1]))[0]):
            loads[link] = loads.get(link, 0.0) + more
    return loads, {cost.algorithm for cost in costs}


def test_groups_that_load_a_link_differently_add_up() -> None:
    """Of three alike groups two have one member under a leaf, one has two that talk to each other first."""
    cluster = fabric(12, per_node=1, nodes_per_leaf=4, oversubscription=2.0)
    groups = np.array([[0, 4, 8, 9], [5, 10, 1, 2], [11, 3, 6, 7]])
    quotient = build_quotient(cluster, [GroupKind("tp", groups, ("all_gather",))], np.zeros(12, np.int64))
    assert len(quotient.groups) == 1
    considered = offers("all_gather", groups[0], cluster)
    offer = next(each for each in considered if each.algorithm == "halving_doubling")
    route = quotient.route(0, "all_gather", offer)
    columns = zip(route.links.tolist(), route.coefficients.tolist(), strict=True)
    loads = {quotient.link_names[k]: c * offer.nic_share for k, c in columns}
    assert loads["leaf_up[0]"] == pytest.approx(0.75 + 0.75 + 0.5)


def llama(devices: int, damage: dict[str, float] | None = None, slow: int | None = None) -> Case:
    """TP 8 and PP 16 on DGX H100, the rest data-parallel."""
    cluster = load_cluster("dgx-h100", devices // 8)
    mesh = Mesh(tp=8, dp=devices // 128, pp=16)
    colour = mesh.coordinates(np.arange(devices))["pp"].astype(np.int64)
    if slow is not None:
        colour[slow] += 16
    return Case(cluster.with_degraded(damage or {}), kinds_of(mesh, 1, exchange=False), colour)


WHOLE: dict[str, float] = {}
WORST = {"node:9": 0.8}


@pytest.mark.parametrize(
    ("damage", "slow"),
    some(
        [(WHOLE, None), (WHOLE, 77), ({"nic_tx[77]": 0.5}, None), ({"leaf_up[5]": 0.5}, None), (WORST, 4000)],
        [(WHOLE, None), (WORST, 4000)],
        tuples=True,
    ),
)
def test_what_is_refined_does_not_grow_with_the_width(damage: dict[str, float], slow: int | None) -> None:
    """Eight times the replicas give a graph of the same size and the same classes, also where some are slow."""
    sizes = []
    for devices in (16384, 131072):
        case = llama(devices, damage, slow)
        graph = build_graph(case.cluster, case.kinds, case.colour)
        sizes.append((len(graph.ranks), len(graph.incidence.colour), len(graph.incidence.edge_u)))
        quotient = case.quotient(orbits=True)
        assert int(quotient.multiplicity.sum()) == devices
        sizes[-1] += (quotient.num_classes, len(quotient.groups), len(quotient.link_names))
    assert sizes[0] == sizes[1]
    assert sizes[0][0] <= (16 if slow is None and not damage else 16 * 2**5)


@pytest.mark.parametrize(
    ("damage", "slow"),
    some(
        [(WHOLE, None), (WHOLE, 77), ({"leaf_up[5]": 0.5}, None)],
        [(WHOLE, 77), ({"leaf_up[5]": 0.5}, None)],
        tuples=True,
    ),
)
def test_large_clusters_fold_the_same_by_orbits(damage: dict[str, float], slow: int | None) -> None:
    """8,192 devices, of which one may be slow or one uplink degraded: the classes of plain refinement."""
    case = llama(8192, damage, slow)
    assert_same(case.quotient(orbits=True), case.quotient(orbits=False))


def test_a_digit_whose_values_are_loaded_differently_is_not_folded() -> None:
    """Only the loads tell the root of a tree from the rest; nobody said that it differs."""
    cluster = fabric(1, per_node=8)
    kinds = [GroupKind("dp", np.arange(8)[None, :], ("scatter",))]
    quotient = build_quotient(cluster, kinds, np.zeros(8, np.int64))
    assert "port_tx[0]" in quotient.link_names
    assert_same(quotient, build_quotient(cluster, kinds, np.zeros(8, np.int64), orbits=False))
