"""Groups that act at the same instants: what they put on the links that they share, and how long each of them takes.

Where several ranks share a NIC or an uplink, their groups load it together. Ranks that may change places without any
change to a plan act at the same instants, so their collectives and messages always meet, and a Program counts them as
one flow (:meth:`simpar.program.fold.quotient.Quotient.route`). The same quotient tells bounds how many they are.

Rows share bounds, so the quotient of a mesh is that of the groups of all its rows together: with more groups, fewer
ranks may change places, and what is found holds for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property

import numpy as np

from simpar.cost.collectives.choice import offers
from simpar.cost.collectives.lines import Line
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.plan.choices import names_that_decide
from simpar.plan.choices.choice import AMONG
from simpar.plan.choices.mesh import DEGREES, PIPELINE, split_order
from simpar.plan.mesh import Mesh
from simpar.plan.schedules import default_schedule, make_schedule
from simpar.planner.problem import Problem
from simpar.planner.space.jobs import RowJobs
from simpar.planner.space.table import Rows, factorize
from simpar.program.blocks.rank_view import RankView
from simpar.program.emission.collective_prices import Price, on_time
from simpar.program.emission.traffic import group_kinds
from simpar.program.fold.group_routes import GroupKind, in_first_domain
from simpar.program.fold.quotient import Quotient, build_quotient
from simpar.program.perturbation import Perturbation
from simpar.program.rank_class_builder import rank_colours
from simpar.program.structure.synchronisation import Synchronisation
from simpar.units import Floats, Ints

GROUP_AXES = names_that_decide(AMONG)
Place = tuple[object, ...]
PORT = "port"
"""The family of scale-up ports, which belong to one device each."""
MESSAGE = ("send", "")
"""The use of a message between stages."""
DIRECTIONS = ("_tx", "_rx", "_up", "_down")


@dataclass(frozen=True)
class MeshGroups:
    """All groups on a mesh: ``numbers`` has the kinds that a group may be of; the kinds of ``quotient`` are named so.

    A group of one pipeline's ranks is found by (its members, whether the kind is directed).
    """

    quotient: Quotient
    numbers: dict[tuple[bytes, bool], list[int]]
    ops: tuple[frozenset[str], ...]

    @cached_property
    def families(self) -> list[str]:
        """The block of every link class, without its direction: both directions of a link may be of one class."""
        return [family_of(name.partition("[")[0]) for name in self.quotient.link_names]

    def kinds_of(self, op: str, group: Ints, *, directed: bool) -> list[int]:
        """The kinds that a group may be of and that run an operation."""
        group = np.ascontiguousarray(group, dtype=np.int64)
        return [at for at in self.numbers.get((group.tobytes(), directed), ()) if op in self.ops[at]]

    def classes(self, kinds: Sequence[int]) -> list[int]:
        """The group classes of some kinds."""
        return [at for at, group in enumerate(self.quotient.groups) if group.kind_index in kinds]


@dataclass
class Lockstep:
    """Prices of groups beside those that act at the same instants, by mesh."""

    jobs: RowJobs
    cluster: Cluster
    _known: dict[Place, MeshGroups] = field(default_factory=dict)
    _priced: dict[tuple[Place, tuple[str, str], bytes], Price] = field(default_factory=dict)

    @cached_property
    def happens(self) -> bool:
        """Whether ranks share links, and all places of a mesh are alike."""
        return are_links_shared(self.jobs.problem, self.cluster)

    def marks(self, rows: Rows) -> list[Ints]:
        """What tells meshes apart among rows whose blocks communicate across domains, int64[rows] each."""
        if not self.happens:
            return []
        orders = [split_order(each) for each in rows.domain["order"]]
        inside = np.array([order.index(PIPELINE) < max(order.index("cp"), order.index("dp")) for order in orders])
        ranks = rows["tp"] * rows["cp"] * rows["ep"]
        across = (ranks > self.cluster.domain_size) | ((ranks > 1) & inside[rows.code["order"]])
        return [np.where(across, rows[PIPELINE], 0), np.where(across, rows.code["order"] + 1, 0)]

    def price(self, price: Price, use: tuple[str, str], ranks: Ints, mesh: Mesh) -> Price:
        """The price of a ``use`` (operation, kind) on a group and others of its kind that run at the same instants.

        It is that of the kind's least burdened group.
        """
        if not self.happens or price.private or not len(price.rate):
            return price
        known = place_of(mesh), use, ranks.tobytes()
        if known not in self._priced:
            groups = self.on(mesh)
            mine = groups.classes(groups.kinds_of(use[0], ranks, directed=False))
            self._priced[known] = self._beside(price, use, ranks, (groups, mine))
        return self._priced[known]

    def message(self, price: Price, pair: Ints, mesh: Mesh) -> Price:
        """The price of a message from one rank to another beside those that are sent at the same instants."""
        if not self.happens or price.private or not len(price.rate):
            return price
        known = place_of(mesh), MESSAGE, pair.tobytes()
        if known not in self._priced:
            groups = self.on(mesh)
            sender = groups.quotient.class_of_rank[pair[0]]
            kinds = groups.kinds_of("send", pair, directed=True)
            mine = [int(groups.quotient.group_class[str(number)][sender]) for number in kinds]
            self._priced[known] = self._beside(price, MESSAGE, pair, (groups, mine))
        return self._priced[known]

    def _beside(self, price: Price, use: tuple[str, str], ranks: Ints, held: tuple[MeshGroups, Sequence[int]]) -> Price:
        if not held[1]:
            return price
        lines = offers(use[0], in_first_domain(ranks, self.cluster), on_time(self.cluster, use[1]))
        each = [_loaded(held[0], one, use[0], lines) for one in held[1]]
        rate = np.minimum(price.rate, np.max([rates for rates, _ in each], axis=0))
        names = np.array([family_of(name) for name in self.cluster.blocks])[self.cluster.block_of(price.links)]
        least = [0.0 if name == PORT else min(slopes.get(name, 0.0) for _, slopes in each) for name in names.tolist()]
        return replace(price, rate=np.maximum(rate, 1), slope_s=np.maximum(price.slope_s, least))

    def on(self, mesh: Mesh) -> MeshGroups:
        """All groups of the rows on a mesh."""
        place = place_of(mesh)
        if place not in self._known:
            self._known[place] = self._make(self._rows[place])
        return self._known[place]

    @cached_property
    def _rows(self) -> dict[Place, list[int]]:
        """Rows by mesh, one of each combination of what decides its groups."""
        result: dict[Place, list[int]] = {}
        for row in factorize(self.jobs.rows.number(GROUP_AXES))[0].tolist():
            result.setdefault(place_of(self.mesh_of(row)), []).append(row)
        return result

    def mesh_of(self, row: int) -> Mesh:
        """The mesh of a row."""
        rows = self.jobs.rows
        degrees = {
            name: int(rows.at(derived, row))
            for name, derived in zip((*DEGREES, "etp"), (*DEGREES, "expert_tp"), strict=True)
        }
        return Mesh(**degrees, order=split_order(rows.domain["order"][rows.code["order"][row]]))

    def _make(self, rows: Sequence[int]) -> MeshGroups:
        """The groups of some rows of one mesh, each kind once."""
        known, colours = dict[tuple[object, ...], GroupKind](), list[Ints]()
        for row in rows:
            view = RankView.of(self.jobs.job(row))
            layout = view.job.layout
            every = make_schedule(default_schedule(), layout.mesh.pipelines.shape[1], 1)
            for kind in group_kinds(view, Synchronisation.of(view.job), every):
                same = kind.groups.shape, kind.directed, np.ascontiguousarray(kind.groups).tobytes()
                ops = known[same].ops if same in known else ()
                known[same] = replace(kind, ops=tuple(dict.fromkeys((*ops, *kind.ops))))
            colour = rank_colours(layout, self.cluster, Perturbation(), uneven_context=view.uneven_context)
            colours.append(colour)
        colour = np.unique(np.stack(colours), axis=1, return_inverse=True)[1].ravel()
        kinds = [replace(kind, name=str(number)) for number, kind in enumerate(known.values())]
        numbers: dict[tuple[bytes, bool], list[int]] = {}
        for at, kind in enumerate(kinds):
            mine = np.isin(kind.groups[:, 0], layout.mesh.pipelines[0]) if kind.directed else [0]
            for group in kind.groups[mine]:
                numbers.setdefault((group.astype(np.int64).tobytes(), kind.directed), []).append(at)
        every_op = tuple(frozenset(kind.ops) for kind in kinds)
        return MeshGroups(build_quotient(self.cluster, kinds, colour), numbers, every_op)


def are_links_shared(problem: Problem, cluster: Cluster) -> bool:
    """Whether ranks share links and all places of a mesh are alike: as many on every NIC, no link or rank slow.

    ``cluster`` is that of the problem inside a step, with its links whole.
    """
    if cluster.is_mixed or cluster.world_size <= cluster.domain_size or cluster.rigid_ranks > 1:
        return False
    own = dict(zip(cluster.blocks, cluster.is_of_device.tolist(), strict=True))
    shared = cluster.leaves_bind or not (own["nic_tx"] and own["nic_rx"])
    return shared and not (problem.cluster.scaling or problem.perturbation.slow_ranks)


def _loaded(groups: MeshGroups, one: int, op: str, lines: Sequence[Line]) -> tuple[Ints, dict[str, float]]:
    """What groups of a class reach together: the rate of each line, and the least seconds per byte by link family.

    The seconds are those of any link of the family that they load, whatever the line.
    """
    rates, slopes = [], list[dict[str, float]]()
    for line in lines:
        route = groups.quotient.route(one, op, line)
        rates.append(route.rate)
        capacity_bytes_per_s = groups.quotient.capacity_bytes_per_s[route.links]
        slopes.append(_least(groups, route.links, route.coefficients / capacity_bytes_per_s))
    families = set.intersection(*map(set, slopes))
    return np.array(rates, dtype=np.int64), {name: min(each[name] for each in slopes) for name in families}


def _least(groups: MeshGroups, links: Ints, seconds: Floats) -> dict[str, float]:
    result: dict[str, float] = {}
    for link, taken in zip(links.tolist(), seconds.tolist(), strict=True):
        name = groups.families[link]
        result[name] = min(result.get(name, taken), taken)
    return result


def family_of(block: str) -> str:
    """The name of a block of links without its direction."""
    for direction in DIRECTIONS:
        block = block.removesuffix(direction)
    return block


def place_of(mesh: Mesh) -> Place:
    """What tells one mesh from another."""
    return (*mesh.shape, mesh.ep, mesh.expert_tensor_parallel, mesh.order)
