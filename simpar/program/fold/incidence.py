"""The graph that folding refines: ranks belong to process groups, groups load links; one node per orbit.

The node of an orbit is its lowest member, the representative. Edges then join representatives only. An edge from a to b
that stands for n neighbours of a stands for n |orbit of a| / |orbit of b| neighbours of b, by counting the pairs from
either side.
"""

from collections.abc import Sequence

import numpy as np

from simpar.cost.collectives.choice import shape_numbers
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.program.fold.group_routes import GroupKind, PlacedGroups, RankLinks, orbit_loads
from simpar.program.fold.refinement import Incidence
from simpar.program.fold.symmetry import Symmetry, find_symmetry, no_symmetry, patterns
from simpar.units import Floats, Ints, unique


@dataclass(frozen=True)
class KindNodes:
    """The G groups of a kind that stand for their orbits, in order, and their edges.

    ``place`` int64[G] is the place at which each is costed. Edges to ranks: ``member`` int64[M, 4] = (group, rank,
    position if directed else 0, members that the rank stands for). Edges to links: ``load`` int64[L, 5] = (group, link,
    row of the loads, links of the group that the link stands for, groups on the link that the group stands for).
    """

    place: Ints
    member: Ints
    load: Ints


@dataclass(frozen=True)
class IncidenceGraph:
    """The graph of a layout and its nodes: ``ranks``, then the groups of every kind, then ``links``.

    ``group_start`` int64[kinds + 1] is the first node of each kind, then that of the links.
    """

    symmetry: Symmetry
    placed: tuple[PlacedGroups, ...]
    kinds: tuple[KindNodes, ...]
    ranks: Ints
    group_start: Ints
    links: Ints
    incidence: Incidence


def build_graph(
    cluster: Cluster, kinds: Sequence[GroupKind], rank_colour: Ints, *, orbits: bool = True
) -> IncidenceGraph:
    """The graph whose refinement folds a layout; without ``orbits`` every rank, group and link is a node.

    On mixed clusters they always are, because the links there are no function of a rank's digits.
    """
    world = len(rank_colour)
    result = [patterns(kind.groups, directed=kind.directed) for kind in kinds]
    symmetry = no_symmetry(world)
    if orbits and not cluster.is_mixed:
        colours = [rank_colour, *_capacities(cluster)]
        symmetry, result = find_symmetry(world, result, cluster, colours)
    placed = tuple(PlacedGroups.of(kind, its, symmetry, cluster) for kind, its in zip(kinds, result, strict=True))
    fabric = RankLinks.of(cluster, symmetry)
    loads = [orbit_loads(each, symmetry, fabric) for each in placed]
    if any(each is None for each in loads):
        symmetry = _where_loads_agree(placed, symmetry, fabric)
        loads = [orbit_loads(each, symmetry, fabric) for each in placed]
    nodes = []
    for each, load in zip(placed, loads, strict=True):
        assert load is not None, f"loads of {each.kind.name} agree along each digit but not together"
        nodes.append(_kind_nodes(each, load, symmetry, fabric))
    return _assemble(placed, nodes, symmetry, cluster, rank_colour)


def _capacities(cluster: Cluster) -> list[Floats]:
    """Capacity of every rank's link in each block, where links are degraded."""
    if not cluster.scaling:
        return []
    ranks, capacity = np.arange(cluster.world_size), cluster.link_capacity_bytes_per_s
    blocks = [block for block in cluster.blocks if cluster.has_links(block)]
    return [capacity[cluster.link_of(block, ranks)] for block in blocks]


def _where_loads_agree(placed: Sequence[PlacedGroups], symmetry: Symmetry, fabric: RankLinks) -> Symmetry:
    """The symmetry without the digits along which some algorithm loads links differently."""
    every = np.arange(len(symmetry.digits))
    uneven = [any(orbit_loads(each, symmetry.fix(every != d), fabric) is None for each in placed) for d in every]
    return symmetry.fix(np.array(uneven))


def _kind_nodes(placed: PlacedGroups, loads: tuple[Ints, ...], symmetry: Symmetry, fabric: RankLinks) -> KindNodes:
    """The representatives among the groups of a kind, with their edges: those of their places, translated."""
    # G representative groups, K places of groups of N members with E edges in all. A group is its place's first group
    # translated by ``moved`` (a sum of digits), so everything below is read at the place and shifted.
    index, first, place = _representative_groups(placed, symmetry)
    by_index = np.argsort(index, kind="stable")
    first, place = first[by_index], place[by_index]
    moved = first - placed.first[place]
    # edges to ranks: of the members only those that are the lowest of their orbit; the group sees ``many`` like each,
    # one for every combination of values of the digits in which its members vary
    row, position = np.nonzero(symmetry.is_lowest[placed.ranks])
    rank, role = placed.ranks[row, position], position * placed.kind.directed
    many = symmetry.num_like(rank, placed.varying[:, row])
    group, edge = _repeat(row, place, len(placed.first))
    member = np.stack([group, rank[edge] + moved[group], role[edge], many[edge]], axis=1)
    group, edge = _repeat(loads[0], place, len(placed.first))
    block, owner, label, num_links = (column[edge] for column in loads[1:])
    # edges to links: digits in which neither the members vary nor the link's number depends [digits, edges] tell apart
    # groups that load the same link, so the link sees one group for every combination of their values
    others = ~placed.varying[:, place[group]] & ~fabric.depends[:, block]
    link, num_groups = fabric.link(block, owner + moved[group]), symmetry.num_like(first[group], others)
    load = np.stack([group, link, label, num_links, num_groups], axis=1)
    return KindNodes(place, member, load)


def _representative_groups(placed: PlacedGroups, symmetry: Symmetry) -> tuple[Ints, Ints, Ints]:
    """Index, first member and place of the groups that stand for their orbit."""
    parts = []
    for number, pattern in enumerate(placed.patterns):
        mine = symmetry.representative_groups(pattern)
        first = pattern.first[mine]
        parts.append((pattern.index[mine], first, placed.place_of(number, first, symmetry)))
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))  # type: ignore[return-value]


def _repeat(row: Ints, place: Ints, num_places: int) -> tuple[Ints, Ints]:
    """(Group, edge) of the edges of every group's place; edges of a place are adjacent in ``row``."""
    # edges of place k are start[k] .. start[k] + count[k] - 1, those of the g-th group begin[g] .. in the result; the
    # j-th edge of a group is edge start[place] + (j - begin)
    count = np.bincount(row, minlength=num_places)
    start = np.cumsum(count) - count
    group = np.repeat(np.arange(len(place)), count[place])
    begin = np.cumsum(count[place]) - count[place]
    return group, start[place][group] + np.arange(len(group)) - begin[group]


def _assemble(
    placed: tuple[PlacedGroups, ...],
    kinds: Sequence[KindNodes],
    symmetry: Symmetry,
    cluster: Cluster,
    rank_colour: Ints,
) -> IncidenceGraph:
    """Number the nodes and put all edges in one list."""
    ranks = np.flatnonzero(symmetry.is_lowest)
    loaded: list[Ints] = [np.zeros(0, dtype=np.int64), *(nodes.load[:, 1] for nodes in kinds)]
    links = unique(np.concatenate(loaded))
    # node numbers: ranks 0 .., then the groups of kind k from group_start[k], then links from group_start[-1]
    sizes = [len(ranks), *(len(nodes.place) for nodes in kinds)]
    group_start = np.cumsum(sizes, dtype=np.int64)
    edges, label = [np.zeros((0, 5), dtype=np.int64)], 0
    for nodes, each, start in zip(kinds, placed, group_start[:-1], strict=True):
        # columns of an edge as in Incidence: u, v, label, neighbours like v that u sees, neighbours like u that v sees;
        # labels of kinds do not overlap, so that groups of two kinds are never taken for each other
        group, rank, role, many = nodes.member.T
        ones = np.ones_like(group)  # the rank is in one of the groups that v stands for
        edges.append(np.stack([np.searchsorted(ranks, rank), start + group, label + role, ones, many], axis=1))
        label += int(role.max(initial=0)) + 1
        group, link, row, num_links, num_groups = nodes.load.T
        node = group_start[-1] + np.searchsorted(links, link)
        edges.append(np.stack([start + group, node, label + row, num_links, num_groups], axis=1))
        label += len(each.loads.loads)
    columns = np.concatenate(edges).T
    colour = _colours(placed, kinds, (ranks, links), cluster, rank_colour)
    return IncidenceGraph(symmetry, placed, tuple(kinds), ranks, group_start, links, Incidence(colour, *columns))


def _colours(
    placed: Sequence[PlacedGroups],
    kinds: Sequence[KindNodes],
    nodes: tuple[Ints, Ints],
    cluster: Cluster,
    rank_colour: Ints,
) -> Ints:
    """Initial colours: of ranks as given, of groups by kind and shape, of links by block and capacity.

    The two directions of a block of links have one colour; ranks, groups and links never share one.
    """
    ranks, links = nodes
    pieces = [np.unique(rank_colour[ranks], return_inverse=True)[1].astype(np.int64)]
    for each, kind_nodes in zip(placed, kinds, strict=True):
        shape = shape_numbers(each.ranks, cluster)[kind_nodes.place]
        pieces.append(shape + _beyond(pieces))
    family = np.array([block.removesuffix("_rx").removesuffix("_tx") for block in cluster.blocks])
    family = np.array([block.removesuffix("_up").removesuffix("_down") for block in family])
    block = np.unique(family, return_inverse=True)[1][cluster.block_of(links)]
    capacity = np.unique(cluster.capacity_of(links), return_inverse=True)[1]
    # (block, capacity) as one number: block x (number of capacities) + capacity
    pieces.append(_beyond(pieces) + block * (int(capacity.max(initial=0)) + 1) + capacity)
    return np.concatenate(pieces)


def _beyond(pieces: Sequence[Ints]) -> int:
    return max(int(piece.max(initial=-1)) for piece in pieces) + 1
