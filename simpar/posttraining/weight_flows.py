"""New weights as flows over the links of both pools, which share them as everything in a Program does.

A flow carries bytes over several links in step, as buckets of tensors go through all of them:

- "gathered" to engines apart is one broadcast of one rank [NeMo-RL, nemo_rl/utils/packed_tensor.py; vLLM, examples of
  weight transfer: NCCL from rank 0]. NCCL sends it along a ring, where each place passes on what it receives while more
  arrives: the whole model leaves the first place and enters every other one once, however many there are.
- "gathered" on the devices that train is one collective: what a place lacks enters it from all others.
- "resharded" has a flow from every place to every other one with the parts that this one lacks, and one inside of each.
- Through the host everything also crosses PCIe and the host's memory on both ends.

Places that are alike (what they hold and lack, where they are) are one class, whose flows are one op that loads a link
as often as flows of the class cross it. Both pools of a hybrid receive at the same time, from the same NICs. Where one
rank of the first place is in a broadcast, alone, its NICs are those next to its device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from simpar.cost.collectives.parameters import parameters
from simpar.dataclass import dataclass
from simpar.engine import choose_engine
from simpar.hardware.cluster import Cluster
from simpar.posttraining.moves import Cells, Places, Resharding
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import Label
from simpar.units import NS_PER_S, US, Floats, Ints, to_ns, unique

FLOW = "flow"
"""The kind of these ops."""


@dataclass(frozen=True)
class WeightFlow:
    """Bytes that go over several links in step: ``size`` of them from one place, or device, to another.

    ``loads`` are the bytes that each link carries, by its name, of all flows of the class.
    """

    name: str
    size: float
    loads: Mapping[str, float]


@dataclass(frozen=True)
class WeightUpdate:
    """New weights of one pool: a fixed time of the network, flows, and copies in the devices' memory, in seconds.

    ``capacity`` is that of links in bytes/s, as far as transfers reach it.
    """

    latency_s: float
    copied_s: float
    flows: tuple[WeightFlow, ...]
    capacity: Mapping[str, float]


@dataclass(frozen=True)
class NewWeights:
    """New weights of all replicas: an update of each pool that has some, at the same time, then ``overhead_s``.

    ``on_trainers`` says which of the updates are those of the ``joined`` replicas on devices that train.
    """

    updates: tuple[WeightUpdate, ...]
    on_trainers: tuple[bool, ...]
    joined: int = 0
    overhead_s: float = 0.0

    @cached_property
    def time_ns(self) -> int:
        """Nanoseconds until all replicas have them, by the engine that runs Programs."""
        build = ProgramBuilder()
        links = WeightLinks(build, self)
        whole = build.add_class("weights")
        streams = [build.add_stream("update", whole) for _ in self.updates]
        begin = int(build.add_ops(1, class_id=whole)[0])
        build.place(streams, begin)
        links.add(begin, [[stream] for stream in streams], 0)
        program = build.build()
        timing = choose_engine("auto", program)(program)
        return timing.makespan_ns + self.overhead_ns

    @property
    def overhead_ns(self) -> int:
        """Nanoseconds that software adds."""
        return int(to_ns(self.overhead_s))

    @property
    def time_s(self) -> float:
        """Seconds until all replicas have them."""
        return self.time_ns / NS_PER_S

    @cached_property
    def slowest(self) -> tuple[str, float]:
        """The link that takes longest for what all flows put on it, and its seconds; "" without flows."""
        capacity = {name: rate for one in self.updates for name, rate in one.capacity.items()}
        taken: dict[str, float] = {}
        for flow in (flow for one in self.updates for flow in one.flows):
            for name, size in flow.loads.items():
                taken[name] = taken.get(name, 0.0) + size / capacity[name]
        return max(taken.items(), key=lambda each: each[1], default=("", 0.0))


@dataclass
class WeightLinks:
    """The links of new weights in a Program that is built, and a stream for every flow."""

    build: ProgramBuilder
    weights: NewWeights
    owner: int = field(init=False)
    routes: list[list[tuple[int, int]]] = field(init=False)
    streams: list[list[int]] = field(init=False)
    labels: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        build, known = self.build, dict[str, int]()
        self.owner = build.add_class("new weights")
        self.routes, self.streams, self.labels = [], [], []
        for update in self.weights.updates:
            routes = []
            for flow in update.flows:
                for name in flow.loads:
                    if name not in known:
                        known[name] = build.add_link(name, update.capacity[name])
                work = max(1, int(flow.size))
                shares = [size / work for size in flow.loads.values()]
                routes.append((build.add_route([known[name] for name in flow.loads], shares), work))
            self.routes.append(routes)
            self.streams.append([build.add_stream("flow", self.owner) for _ in update.flows])
            self.labels.append([build.label(Label(FLOW, flow.name)) for flow in update.flows])

    def add(self, begin: int, receivers: list[list[int]], step: int) -> list[int]:
        """Flows of all updates behind the op ``begin``, then the copies of each on its ``receivers``' streams."""
        build, last = self.build, list[int]()
        for at, update in enumerate(self.weights.updates):
            latency_ns, copied_ns = (int(to_ns(each)) for each in (update.latency_s, update.copied_s))
            routes, streams = self.routes[at], self.streams[at]
            flows = build.add_ops(
                len(routes), label=self.labels[at], microbatch=step, class_id=self.owner, fixed_ns=latency_ns,
                route=[route for route, _ in routes], work_bytes=[work for _, work in routes],
            )  # fmt: skip
            build.depend(flows, begin)
            build.place(streams, flows)
            fixed_ns = copied_ns if routes else latency_ns + copied_ns
            label = build.label(Label("weights", "copied into place"))
            copies = int(build.add_ops(1, fixed_ns=fixed_ns, label=label, microbatch=step, class_id=self.owner)[0])
            build.place(receivers[at], copies)
            build.depend(copies, flows)
            last.append(copies)
        return last


def updates_of(moved: Sequence[Resharding]) -> tuple[WeightUpdate, ...]:
    """The flows of the new weights of every pool, over links that they share by their names."""
    return tuple(_Lowering(each, tuple(moved)).update() for each in moved)


@dataclass(frozen=True)
class PlaceClass:
    """Places that are alike: one of them, by its number and by its index among sources and targets; how many.

    An index is -1 where a pool has no devices there; ``other`` is the index among sources of another one of them.
    """

    place: int
    source: int
    target: int
    count: int
    other: int = -1

    def sending(self, crossing: Floats, to: "PlaceClass") -> float:
        """Of the bytes that every source place sends to one of ``to``, those of one of these that is another one."""
        at = self.other if self is to else self.source
        return float(crossing[at]) if at >= 0 else 0.0


@dataclass(frozen=True)
class _Lowering:
    """From bytes between places to flows over links, beside those of ``every`` pool that receives."""

    moved: Resharding
    every: tuple[Resharding, ...]
    capacity: dict[str, float] = field(default_factory=dict)
    known_nics: dict[tuple[int, int], tuple[str, float]] = field(default_factory=dict)

    def update(self) -> WeightUpdate:
        """The flows, with latency and copies."""
        moved, target = self.moved, parameters(self.moved.targets)
        latency = (target["base_us"] + self._hops * target["nic_hop_us"]) * US
        flows = tuple(flow for flow in self._flows() if flow.size)
        return WeightUpdate(latency, moved.copied_s, flows, self.capacity)

    @property
    def _hops(self) -> int:
        """Places that a value goes through, one after the other."""
        return self.moved.targets.nodes if self.moved.is_broadcast and self.is_far else 1

    @cached_property
    def is_far(self) -> bool:
        """Whether anything comes from another place."""
        return bool(self.moved.into_place.max() > 0)

    @cached_property
    def classes(self) -> tuple[PlaceClass, ...]:
        """Places by what they hold and lack, and where links above NICs can bind by where they are."""
        sources, targets = self.moved.places
        alike: dict[tuple[object, ...], list[int]] = {}
        for place in unique(np.concatenate([sources.numbers, targets.numbers])).tolist():
            kind = (place == int(sources.numbers[0]), *(_kind(each, place) for each in self.every))
            alike.setdefault(kind, []).append(place)
        return tuple(
            PlaceClass(
                places[0], _index(sources, places[0]), _index(targets, places[0]), len(places),
                _index(sources, places[1]) if len(places) > 1 else -1,
            )
            for places in alike.values()
        )  # fmt: skip

    # flows

    def _flows(self) -> Iterator[WeightFlow]:
        moved = self.moved
        if moved.moves.through == "host":
            yield self._through_host()
        elif moved.is_broadcast:
            yield self._broadcast()
        elif moved.moves.method == "gathered":
            yield self._gather()
        else:
            yield from self._parts()

    @property
    def receiving(self) -> list[PlaceClass]:
        """Classes of places with devices that receive."""
        return [one for one in self.classes if one.target >= 0]

    def _network(self) -> dict[str, float]:
        """Loads of NICs and of what is above them where every place receives what it lacks from all others."""
        loads: dict[str, float] = {}
        for to in self.receiving:
            entering = float(self.moved.into_place[to.target])
            if not entering:
                continue
            self._put(loads, self._nics(1, to), entering)
            crossing = self.moved.crossing(to.target)
            for one in self.classes:
                size = one.sending(crossing, to) * (to.count - (one is to))
                if size:
                    self._put(loads, self._nics(0, one), size)
                    self._cross(loads, one, to, size * one.count)
        return loads

    def _gather(self) -> WeightFlow:
        loads = self._network()
        near, far = self.moved.by_device
        for to in self.receiving:
            mine = self.moved.places[1].index(to.place)
            self._put(loads, self._port("into", to), float((near + far)[mine].max()))
        return WeightFlow("gathered where they train", max(loads.values(), default=0.0), loads)

    def _broadcast(self) -> WeightFlow:
        """The ring: into every place, and out of the first one and of those that pass on."""
        loads: dict[str, float] = {}
        moved = self.moved
        near, far = moved.by_device
        first = next(one for one in self.classes if one.place == int(moved.places[0].numbers[0]))
        most = float(moved.into_place.max())
        if most:
            self._put(loads, self._nics(0, first), most)
            if moved.moves.senders == "rank":
                self._put(loads, self._alone(), most)
        for to in self.receiving:
            mine = moved.places[1].index(to.place)
            self._put(loads, self._port("into", to), float((near + far)[mine].max()))
            entering = float(moved.into_place[to.target])
            if entering:
                self._put(loads, self._nics(1, to), entering)
                self._round(loads, first, to, entering)
        return WeightFlow("broadcast to engines apart", max(loads.values()), loads)

    def _parts(self) -> Iterator[WeightFlow]:
        moved = self.moved
        sources, targets = moved.places
        near, far = moved.by_device
        for to in self.receiving:
            mine = targets.index(to.place)
            entering = float(moved.into_place[to.target])
            crossing = moved.crossing(to.target) if entering else np.zeros(len(sources.numbers))
            spread = float(far[mine].max()) / entering if entering else 0.0
            into = self._port("into", to)
            for one in self.classes:
                senders = one.count - (one is to)
                size = one.sending(crossing, to)
                if size:
                    loads: dict[str, float] = {}
                    receivers = to.count - (one is to)
                    self._put(loads, self._nics(0, one), size * receivers)
                    self._put(loads, self._nics(1, to), size * senders)
                    self._put(loads, into, size * senders * spread)
                    self._cross(loads, one, to, size * one.count * receivers)
                    yield WeightFlow(f"parts of {self._named(0, one)} to {self._named(1, to)}", size, loads)
            if near[mine].max() > 0:
                loads = {}
                self._put(loads, into, float(near[mine].max()))
                self._put(loads, self._port("out of", to), float(near[mine].sum()) / len(sources.index(to.place)))
                yield WeightFlow(f"parts inside {self._named(1, to)}", float(near[mine].max()), loads)

    def _through_host(self) -> WeightFlow:
        """Devices that train write one copy to their hosts, from whose memory it goes to that of the others."""
        moved, loads = self.moved, self._network()
        sizes = moved.received.whole / moved.copies_apart * moved.share_sent, moved.received.needed * moved.share_sent
        for one in self.classes:
            for side in (0, 1):
                if (one.source, one.target)[side] >= 0:
                    self._beside_host(loads, side, one, sizes[side])
        return WeightFlow("through the host", max(loads.values()), loads)

    def _beside_host(self, loads: dict[str, float], side: int, one: PlaceClass, size: float) -> None:
        """What a device's bytes load between it and its node's memory, and what NICs load there."""
        profile = (self.moved.sources, self.moved.targets)[side].profile
        host, each = profile.host, profile.devices_per_node
        way, where = ("to", "from")[side], self._named(side, one)
        switch = host.switch_bandwidth or host.pcie_bandwidth
        self._put(loads, (f"PCIe {way} the host, {where}", host.pcie_bandwidth), size)
        self._put(loads, (f"PCIe switches {way} the host, {where}", switch), size * host.devices_per_switch)
        devices = len(self.moved.places[side].index(one.place))
        over = loads.get(self._nics(side, one)[0], 0.0) * each / devices if self.is_far else 0.0
        self._put(loads, (f"host memory, {where}", host.memory_bandwidth), size * each + over)

    # links

    def _put(self, loads: dict[str, float], link: tuple[str, float], size: float) -> None:
        name, capacity = link
        self.capacity[name] = capacity
        loads[name] = loads.get(name, 0.0) + float(size)

    def _named(self, side: int, one: PlaceClass) -> str:
        """A place in words; a pool of its own has places of its own."""
        own = side == 1 and not self.moved.is_same_pool
        pool = self.moved.places[side]
        first = f"{'rollout' if own else 'training'} node {one.place - int(pool.numbers[0])}"
        return first if one.count == 1 else f"{first} and {one.count - 1} alike"

    def _nics(self, side: int, one: PlaceClass) -> tuple[str, float]:
        """The NICs of a place's devices of one side, together, out of or into it."""
        if (side, one.place) not in self.known_nics:
            self.known_nics[side, one.place] = self._all_nics(side, one)
        return self.known_nics[side, one.place]

    def _all_nics(self, side: int, one: PlaceClass) -> tuple[str, float]:
        pool = self.moved.places[side]
        ranks = pool.ranks[pool.index(one.place)]
        links = unique(pool.cluster.nic_rx(ranks) if side else pool.cluster.nic_tx(ranks))
        own = (self.moved.sources, self.moved.targets)[side]
        reached = float(pool.cluster.capacity_of(links).sum()) * parameters(own)["nic_efficiency"]
        return f"NICs {'into' if side else 'out of'} {self._named(side, one)}", reached

    def _alone(self) -> tuple[str, float]:
        """The NICs of the rank that sends alone: those of its node by the number of its devices, at least one."""
        mine = self.moved.sources
        out = mine.profile.scale_out
        assert out is not None, "pools apart have networks"
        nics = max(1, out.nics_per_node // mine.profile.devices_per_node)
        return "NICs of the rank that sends", nics * out.nic_bandwidth * parameters(mine)["nic_efficiency"]

    def _port(self, way: str, one: PlaceClass) -> tuple[str, float]:
        """The scale-up port of a receiving place's fullest device, or of a sending one."""
        side = 1 if way == "into" else 0
        cluster = (self.moved.sources, self.moved.targets)[side]
        reached = cluster.profile.scale_up.bandwidth * parameters(self.moved.targets)["send_efficiency"]
        return f"ports {way} devices of {self._named(side, one)}", reached

    def _cross(self, loads: dict[str, float], one: PlaceClass, to: PlaceClass, size: float) -> None:
        """Links above NICs, where they can bind and the two places are not under the same one."""
        ways = ((0, one), (1, to))
        above = [_above(self.moved.places[side], each.place) for side, each in ways]
        joint = self.moved.places[0].cluster is self.moved.places[1].cluster or self.moved.is_same_pool
        for level, at in enumerate(zip(*above, strict=True) if joint else []):
            if at[0] != at[1]:
                for side, each in ways:
                    self._put(loads, self._uplinks(side, each, level), size)

    def _round(self, loads: dict[str, float], first: PlaceClass, to: PlaceClass, size: float) -> None:
        """The same for a ring, which leaves and enters what is below a switch once."""
        once: dict[str, float] = {}
        self._cross(once, first, to, size)
        loads.update(once)

    def _uplinks(self, side: int, one: PlaceClass, level: int) -> tuple[str, float]:
        pool = self.moved.places[side]
        cluster: Cluster = pool.cluster
        every, rank = np.arange(cluster.world_size), pool.ranks[pool.index(one.place)][:1]
        here = cluster.levels[level]
        together = every[here.place(every) == here.place(rank)[0]]
        links = unique(cluster.link_of(here.down if side else here.up, together))
        reached = float(cluster.capacity_of(links).sum()) * parameters(cluster)["nic_efficiency"]
        return f"{here.down if side else here.up} {int(here.place(rank)[0])}", reached


def _index(pool: Places, place: int) -> int:
    """A place among those of a pool; -1 where it has no devices there."""
    at = int(np.searchsorted(pool.numbers, place))
    return at if at < len(pool.numbers) and pool.numbers[at] == place else -1


def _kind(moved: Resharding, place: int) -> tuple[object, ...]:
    """What places are alike in: what is held and lacked there by how many devices, below which switches."""
    kind: list[object] = []
    for side, pool in enumerate(moved.places):
        at = _index(pool, place)
        grids: tuple[Cells, ...] = moved.grids if at >= 0 else ()
        arrays = [each for one in grids for each in ((one.wants, one.beside) if side else (one.held,))]
        kind += [side, *(each[at].tobytes() for each in arrays)]
        kind += [len(pool.index(place)), _above(pool, place)] if at >= 0 else []
    return tuple(kind)


def _above(pool: Places, place: int) -> tuple[int, ...]:
    """The switch of a place at every level above NICs that can bind; nothing where none can."""
    cluster = pool.cluster
    if not cluster.leaves_bind:
        return ()
    rank: Ints = pool.ranks[pool.index(place)][:1]
    return tuple(int(level.place(rank)[0]) for level in cluster.levels)
