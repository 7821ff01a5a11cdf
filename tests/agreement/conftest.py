"""Programs to compare engines and reductions on: random ones, and small clusters written out rank by rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from simpar.program.fold.refinement import Incidence, Partition, refine
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import Csr, Label, Program, Timing
from simpar.units import GB, KB
from tests.rules import verify


@dataclass(frozen=True)
class Recipe:
    """What a random program may contain."""

    num_ops: int = 40
    num_streams: int = 4
    num_links: int = 5
    flow_fraction: float = 0.4
    own_links: bool = False  # every stream has links of its own


def make_random_program(seed: int, recipe: Recipe = Recipe()) -> Program:
    """A verified program whose few distinct durations make many events fall on one instant."""
    draw = np.random.default_rng(seed)
    build = ProgramBuilder()
    for number in range(3):
        build.add_class(f"class {number}")
    streams = [build.add_stream(f"stream {i}", int(draw.integers(3))) for i in range(recipe.num_streams)]
    links = [build.add_link(f"link {i}", int(draw.choice([1, 2, 3]) * GB)) for i in range(recipe.num_links)]
    label = build.label(Label("op", "op"))
    for _ in range(recipe.num_ops):
        many = 1 if recipe.own_links else int(draw.choice([0, 1, 1, 1, 2]))
        on = draw.choice(streams, size=many, replace=False)
        is_flow = draw.random() < recipe.flow_fraction
        reach = links if not recipe.own_links else links[int(on[0]) :: recipe.num_streams]
        route, cap = _random_route(draw, build, reach) if is_flow else (-1, 0)
        op = build.add_ops(
            1,
            class_id=int(draw.integers(3)),
            fixed_ns=int(draw.choice([0, 0, 10, 20, 30, 1000])),
            work_bytes=int(draw.choice([1, 10, 10, 20, 333])) * KB if is_flow else 0,
            route=route,
            rate_cap_bytes_per_s=cap,
            label=label,
        )
        build.place(on, op)
        for before in draw.integers(0, int(op[0]) + 1, size=int(draw.integers(0, 3))):
            if before < op[0]:
                build.depend(op, before)
    return verify(build.build())


def _random_route(draw, build, reach):
    """Up to three links with coefficients that need rounding; sometimes a cap, sometimes only a cap."""
    cap = int(draw.choice([0, 0, GB // 2, GB // 3]))
    hops = int(draw.integers(0 if cap else 1, min(3, len(reach)) + 1))
    if not hops:
        return -1, cap
    chosen = draw.choice(reach, size=hops, replace=False)
    return build.add_route(chosen, draw.choice([0.5, 1.0, 1.75, 1 / 3], size=hops)), cap


def make_renumbered(program: Program, seed: int) -> tuple[Program, np.ndarray]:
    """The same program with ops, links and dependencies in another order; op i becomes op new[i]."""
    draw = np.random.default_rng(seed)
    num_ops, num_links = len(program), len(program.routes.link_names)
    new, new_link = draw.permutation(num_ops), draw.permutation(num_links)
    old, old_link = np.argsort(new), np.argsort(new_link)
    columns = {name: getattr(program.ops, name)[old] for name in program.ops.__dataclass_fields__}
    waits, routes = program.dependencies, program.routes
    shuffled = draw.permutation(len(waits.item))
    return (
        replace(
            program,
            ops=type(program.ops)(**columns),
            dependencies=Csr.of(new[waits.owners()][shuffled], new[waits.item][shuffled], num_ops),
            streams=Csr(program.streams.pointer, new[program.streams.item]),
            routes=replace(
                routes,
                links=Csr(routes.links.pointer, new_link[routes.links.item]),
                capacity_bytes_per_s=routes.capacity_bytes_per_s[old_link],
                link_names=tuple(routes.link_names[i] for i in old_link),
            ),
        ),
        new,
    )


@dataclass(frozen=True)
class Group:
    """A process group: its kind, ranks in order, and the bytes it puts on links per byte."""

    kind: str
    ranks: tuple[int, ...]
    links: dict[int, float]


@dataclass(frozen=True)
class SmallCluster:
    """Ranks that all run `steps`, in groups over links: what a fold must reproduce.

    `steps` lists (what, amount): ("compute", ns) or (group kind, bytes).
    """

    speed: tuple[int, ...]  # every duration of a rank is multiplied by it
    stage: tuple[int, ...]
    groups: tuple[Group, ...]
    capacity: tuple[int, ...]
    steps: tuple[tuple[str, int], ...]

    def kinds(self) -> list[str]:
        """Kinds of groups, in a fixed order."""
        return sorted({group.kind for group in self.groups})


def make_cluster(seed: int) -> SmallCluster:
    """Tensor, data and pipeline groups on nodes behind leaves that may be narrow, cut unevenly or slow."""
    draw = np.random.default_rng(seed)
    tp, dp, pp = (int(draw.choice(sizes)) for sizes in ([1, 2, 4], [2, 3, 4], [1, 2, 3]))
    world = tp * dp * pp
    order = [("tp", "dp", "pp"), ("tp", "pp", "dp")][int(draw.integers(2))]
    sizes = {"tp": tp, "dp": dp, "pp": pp}
    shape = [sizes[axis] for axis in order]
    coordinate = dict(zip(order, np.unravel_index(np.arange(world), shape, order="F"), strict=True))
    node = np.arange(world) // max(tp, 2)
    leaf = node // int(draw.choice([1, 2, 3]))
    num_nodes, num_leaves = int(node[-1]) + 1, int(leaf[-1]) + 1
    nic, up = 2 * world, 2 * world + 2 * num_nodes  # first a port each way a rank, then NICs, then uplinks
    capacity = [4 * GB] * (2 * world) + [GB] * (2 * num_nodes) + [int(draw.choice([1, 2])) * GB] * (2 * num_leaves)
    if draw.random() < 0.3:
        capacity[up] //= 2
    speed = np.ones(world, dtype=int)
    if draw.random() < 0.5:
        speed[draw.integers(world)] = 2

    def path(source: int, target: int, coefficient: float) -> dict[int, float]:
        if node[source] == node[target]:
            hops = [2 * source, 2 * target + 1]
        else:
            hops = [nic + 2 * node[source], nic + 2 * node[target] + 1]
            hops += [up + 2 * leaf[source], up + 2 * leaf[target] + 1] if leaf[source] != leaf[target] else []
        return dict.fromkeys(map(int, hops), coefficient)

    groups = []
    for kind in ("tp", "dp"):
        others = [axis for axis in order if axis != kind]
        key = coordinate[others[0]] * world + coordinate[others[1]]
        for value in np.unique(key):
            ranks = np.flatnonzero(key == value)
            loads: dict[int, float] = {}
            for source, target in zip(ranks, np.roll(ranks, -1), strict=True):
                for link, load in path(source, target, 2 * (1 - 1 / len(ranks))).items() if source != target else ():
                    loads[link] = loads.get(link, 0.0) + load
            if loads:
                groups.append(Group(kind, tuple(map(int, ranks)), loads))
    for source in range(world):
        same = (coordinate["tp"] == coordinate["tp"][source]) & (coordinate["dp"] == coordinate["dp"][source])
        targets = np.flatnonzero(same & (coordinate["pp"] == coordinate["pp"][source] + 1)).tolist()
        groups += [Group("send", (source, target), path(source, target, 1.0)) for target in targets]
    names = ["compute", "compute", "dp", "tp", "send"]
    amounts = {"compute": [0, 500, 700], "dp": [KB, 7 * KB], "tp": [KB, 3 * KB], "send": [2 * KB]}
    steps = [(name, int(draw.choice(amounts[name]))) for name in draw.choice(names, size=12)]
    return SmallCluster(
        tuple(speed.tolist()), tuple(coordinate["pp"].tolist()), tuple(groups), tuple(capacity), tuple(steps)
    )


def refine_cluster(cluster: SmallCluster) -> Partition:
    """Classes of ranks, then groups, then links."""
    world, num_groups = len(cluster.speed), len(cluster.groups)
    kinds = cluster.kinds()
    weights = sorted({load for group in cluster.groups for load in group.links.values()})
    edges = []
    for index, group in enumerate(cluster.groups):
        for place, rank in enumerate(group.ranks):
            role = place if group.kind == "send" else 0
            edges.append((rank, world + index, 10 * kinds.index(group.kind) + role))
        for link, load in group.links.items():
            label = 100 * (1 + kinds.index(group.kind)) + 1000 * weights.index(load)
            edges.append((world + index, world + num_groups + link, label))
    u, v, label = np.array(edges).reshape(-1, 3).T
    colour = [10 * stage + speed for stage, speed in zip(cluster.stage, cluster.speed, strict=True)]
    colour += [1000 + kinds.index(group.kind) for group in cluster.groups]
    colour += [2000 + rate for rate in cluster.capacity]
    return refine(Incidence(np.array(colour), u, v, label))


def write_out(cluster: SmallCluster, partition: Partition | None = None) -> tuple[Program, dict]:
    """The program of all ranks, or of one rank a class; and the op of every (step, rank or group)."""
    world, num_groups = len(cluster.speed), len(cluster.groups)
    everything = world + num_groups + len(cluster.capacity)
    of = partition.class_of if partition else np.arange(everything)
    first = partition.representative if partition else np.arange(everything)
    build = ProgramBuilder()
    ranks = [int(c) for c in np.unique(of[:world])]
    groups = [int(c) for c in np.unique(of[world : world + num_groups])]
    for rank in ranks:
        build.add_class(f"rank {rank}", int((of[:world] == rank).sum()))
    streams = {(s, r): build.add_stream(s, ranks.index(r)) for s in ("compute", *cluster.kinds()) for r in ranks}
    link_classes = [int(c) for c in np.unique(of[world + num_groups :])]
    for link in link_classes:
        build.add_link(f"link {link}", cluster.capacity[int(first[link]) - world - num_groups])
    routes = {g: _folded_route(build, cluster, of, first, (g, link_classes)) for g in groups}
    latest: dict[tuple[int, str], int] = {}
    found: dict[tuple[int, int], int] = {}
    for step, (what, amount) in enumerate(cluster.steps):
        if what == "compute":
            for rank in ranks:
                rate = cluster.speed[int(first[rank])]
                op = found[step, rank] = int(build.add_ops(1, class_id=ranks.index(rank), fixed_ns=amount * rate)[0])
                build.place(streams["compute", rank], op)
                for kind in ("tp", "send"):
                    if (rank, kind) in latest:
                        build.depend(op, latest[rank, kind])
                latest[rank, "compute"] = op
            continue
        for group in (g for g in groups if cluster.groups[int(first[g]) - world].kind == what):
            members = [int(of[rank]) for rank in cluster.groups[int(first[group]) - world].ranks]
            op = found[step, group] = int(
                build.add_ops(1, class_id=ranks.index(members[0]), fixed_ns=50, work_bytes=amount, route=routes[group])[
                    0
                ]
            )
            build.place([streams[what, m] for m in dict.fromkeys(members[:1] if what == "send" else members)], op)
            for member in dict.fromkeys(members[:1] if what == "send" else members):
                if (member, "compute") in latest:
                    build.depend(op, latest[member, "compute"])
        for group in (g for g in groups if (step, g) in found):
            for rank in cluster.groups[int(first[group]) - world].ranks[1 if what == "send" else 0 :]:
                latest[int(of[rank]), what] = found[step, group]
    return verify(build.build()), found


def _folded_route(build, cluster, of, first, which):
    """Links of a class of groups; on each, the sum of what groups of the class put on that one link."""
    group_class, link_classes = which
    world, num_groups = len(cluster.speed), len(cluster.groups)
    members = [i for i in range(num_groups) if of[world + i] == group_class]
    touched = {int(of[world + num_groups + link]) for link in cluster.groups[members[0]].links}
    links, loads = [], []
    for link_class in sorted(touched):
        link = int(first[link_class]) - world - num_groups
        each = [cluster.groups[i].links[link] for i in members if link in cluster.groups[i].links]
        assert len(set(each)) == 1, "the test draws one load a link and kind"
        links.append(link_classes.index(link_class))
        loads.append((each[0], len(each)))
    return build.add_route(links, [load for load, _ in loads], [count for _, count in loads])


def expand(timing: Timing, found: dict, partition: Partition, full: dict) -> Timing:
    """Timing of every op of every rank, from the timing of the classes."""
    order = [found[step, int(partition.class_of[node])] for step, node in full]
    return Timing(timing.start_ns[order], timing.finish_ns[order])


@pytest.fixture(scope="session")
def random_program():
    """Function (seed, **recipe) -> Program."""
    return lambda seed, **recipe: make_random_program(seed, Recipe(**recipe))


@pytest.fixture(scope="session")
def renumbered():
    """Function (program, seed) -> (program, new number of every op)."""
    return make_renumbered


@pytest.fixture(scope="session")
def folded_and_not():
    """Function seed -> (all ranks, one a class, expand(timing of the classes), classes of ranks, ranks)."""

    def both(seed: int):
        cluster = make_cluster(seed)
        partition = refine_cluster(cluster)
        flat, full = write_out(cluster)
        small, found = write_out(cluster, partition)
        world = len(cluster.speed)
        num_classes = len(np.unique(partition.class_of[:world]))
        return (flat, list(full.values()), small, lambda t: expand(t, found, partition, full), (num_classes, world))

    return both
