"""Parameter servers: replicas push gradients and pull parameters over shared links.

Parameters are spread evenly over S servers, each a host outside the replicas' nodes with one network card of the
cluster and its hosts' memory. A push sends every server its part at once and ends when the update is applied: it
drains through the replica's cards, the servers' cards and their memory, all shared max-min fairly. S servers with
equal loads are one link class with 1/S of every message on it. On a single machine servers are processes of the host,
behind its PCIe links. A replica computes, pushes and pulls in turn; no part of the exchange is hidden behind compute.

Sources: Li et al. 2014 (OSDI), the parameter server; the traffic of an update is that of the optimizer's states.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.engine import choose_engine
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import Label, Timing
from simpar.replicas.setting import ReplicaSetting
from simpar.replicas.staleness import MeanStep, staleness
from simpar.units import NS_PER_S, Ints, to_ns

Gate = Callable[["ServerOps"], None]

MOST_STEPS, FEWEST_STEPS, MOST_OPS = 64, 12, 200_000
FAST_NETWORK = 1000.0
"""How many times faster a network is that leaves nothing of an exchange but what the servers' memory takes."""
WARM_UP = 0.25  # share of the local steps that is simulated but not counted
COMPUTE, PUSH, PULL, CLOCK = (
    Label(kind, name) for kind, name in (("forward", "local step"), ("dp", "push"), ("dp", "pull"), ("join", "clock"))
)
LINKS = ("network of the replicas", "network into the servers", "network out of the servers", "server memory")


@dataclass(frozen=True)
class ServerOps:
    """Ops of all local steps: ``compute``, ``push`` and ``pull`` are int64[replicas, steps]."""

    build: ProgramBuilder
    compute: Ints
    push: Ints
    pull: Ints

    def wait_for_clock(self, bound: int) -> None:
        """Let the pull after local step c wait until every replica has pushed step c - bound."""
        replicas, steps = self.push.shape
        clocks = self.build.add_ops(steps, label=self.build.label(CLOCK))
        self.build.depend(np.broadcast_to(clocks, (replicas, steps)), self.push)
        late = np.arange(bound, steps)
        self.build.depend(self.pull[:, late], np.broadcast_to(clocks[late - bound], (replicas, len(late))))


@dataclass(frozen=True)
class ServerLinks:
    """Routes of pushes and pulls int64[replicas], and the bytes/s of every replica's own network cards."""

    push: Ints
    pull: Ints
    own_bytes_per_s: Ints


def meet(setting: ReplicaSetting, gate: Gate, *, engine: str = "auto") -> MeanStep:
    """Simulate many local steps of all replicas with servers between them; ``gate`` adds the scheme's waits.

    So that what limits can be named, the same steps are simulated once more with a network that costs nothing, and once
    with twice as many servers (of one machine these are processes, and more of them change nothing).
    """

    def simulated(servers: int, network: float = 1.0) -> MeanStep:
        exchange = exchange_of(setting, steps_of(len(setting.replicas)), servers=servers, network=network)
        gate(exchange)
        program = exchange.build.build()
        return _measured(setting, exchange, choose_engine(engine, program)(program))

    servers = setting.layout.servers or 1
    mean, alone = simulated(servers), simulated(servers, FAST_NETWORK)
    twice_s = simulated(2 * servers).step_s if setting.cluster.profile.scale_out else None
    return replace(mean, updates_s=min(mean.exchange_s, alone.exchange_s), twice_servers_s=twice_s)


def steps_of(replicas: int) -> int:
    """The number of local steps of every replica to simulate."""
    return int(np.clip(MOST_OPS // (3 * replicas), FEWEST_STEPS, MOST_STEPS))


def exchange_of(setting: ReplicaSetting, steps: int, *, servers: int, network: float = 1.0) -> ServerOps:
    """The Program of ``steps`` local steps of every replica, without the waits of a scheme.

    ``network`` is how many times faster cards and messages are than those of the cluster.
    """
    build = ProgramBuilder()
    replicas = len(setting.replicas)
    roads = _roads(build, setting, servers, network)
    latency_ns = int(to_ns(_latency_s(setting) / network))
    streams = np.array([build.add_stream("replica", build.add_class(f"replica {index}")) for index in range(replicas)])
    shape = (replicas, steps)
    owner = np.broadcast_to(np.arange(replicas)[:, None], shape)
    common = {"class_id": owner.ravel(), "microbatch": np.broadcast_to(np.arange(steps), shape).ravel()}

    def ops(label: Label, **columns: object) -> Ints:
        added = build.add_ops(replicas * steps, label=build.label(label), **common, **columns)  # type: ignore[arg-type]
        return added.reshape(shape)

    def messages(label: Label, route: Ints, size_bytes: float) -> Ints:
        routes, caps = (np.broadcast_to(column[:, None], shape).ravel() for column in (route, roads.own_bytes_per_s))
        columns = {"fixed_ns": latency_ns, "work_bytes": round(size_bytes), "route": routes}
        return ops(label, **columns, rate_cap_bytes_per_s=caps)

    compute = ops(COMPUTE, fixed_ns=setting.replicas.steps_ns(steps).ravel())
    push = messages(PUSH, roads.push, setting.gradient_bytes)
    pull = messages(PULL, roads.pull, setting.parameter_bytes)
    turns = np.stack([compute, push, pull], axis=2).reshape(replicas, -1)
    build.place(np.broadcast_to(streams[:, None], turns.shape), turns)
    return ServerOps(build, compute, push, pull)


def _latency_s(setting: ReplicaSetting) -> float:
    profile = setting.cluster.profile
    return profile.scale_out.latency if profile.scale_out else profile.scale_up.latency


def update_bytes(setting: ReplicaSetting) -> float:
    """Bytes that a server's memory moves for every byte of gradient: the gradient in and out, states both ways."""
    sync, states = setting.sync, 2 * setting.served_bytes
    return (2 * sync.gradient_bytes + states + sync.parameter_bytes) / sync.gradient_bytes


def _roads(build: ProgramBuilder, setting: ReplicaSetting, servers: float, network: float) -> ServerLinks:
    """Add the links of all nodes with ranks and of the servers, and the routes of each replica over them."""
    cluster, replicas = setting.cluster, setting.replicas
    out, host = cluster.profile.scale_out, cluster.profile.host
    per_node = cluster.profile.devices_per_node
    card = out.nic_bandwidth if out else host.pcie_bandwidth
    node = out.nic_bandwidth * out.nics_per_node if out else host.pcie_bandwidth * per_node
    card, node = card * network, node * network
    if out is None:  # servers are processes of the one host and share its memory, whatever their number
        card, servers = host.memory_bandwidth, 1.0
    up = np.array([build.add_link(f"node {n} out", node) for n in range(cluster.nodes)])
    down = np.array([build.add_link(f"node {n} in", node) for n in range(cluster.nodes)])
    into, leave = build.add_link("servers in", card), build.add_link("servers out", card)
    memory = build.add_link("servers' memory", host.memory_bandwidth)
    share = 1 / servers
    pushes, pulls, own = [], [], []
    for replica in range(len(replicas)):
        nodes, counts = np.unique(np.flatnonzero(replicas.of_rank == replica) // per_node, return_counts=True)
        parts = counts / counts.sum()
        own.append(int(node * counts.sum() / per_node))
        pushes.append(build.add_route([*up[nodes], into, memory], [*parts, share, share * update_bytes(setting)]))
        pulls.append(build.add_route([*down[nodes], leave, memory], [*parts, share, share]))
    return ServerLinks(np.array(pushes), np.array(pulls), np.array(own))


def _measured(setting: ReplicaSetting, exchange: ServerOps, timing: Timing) -> MeanStep:
    """Rates and parts of a local step, averaged over all steps while every replica is still running.

    Steps of a replica count after its warm-up and until the first of all replicas has finished.
    """
    finish, start = timing.finish_ns, timing.start_ns
    took, ended = finish - start, finish[exchange.pull]
    last = (ended <= ended[:, -1].min()).sum(axis=1) - 1  # int64[replicas]
    last = np.maximum(last, 1)  # a replica so slow that it finished nothing more still has its first steps
    first = np.maximum(1, np.rint(WARM_UP * (last + 1)).astype(np.int64))
    steps = np.arange(ended.shape[1])
    counted = (steps >= first[:, None]) & (steps <= last[:, None])
    rows = np.arange(len(ended))
    rate = (last - first + 1) / (ended[rows, last] - ended[rows, first - 1])  # local steps a nanosecond
    weight = rate / rate.sum()
    local = _mean(took[exchange.compute], counted)
    moved = _mean(took[exchange.push] + took[exchange.pull], counted)
    served = setting.layout
    return MeanStep(
        step_s=len(rate) / float(rate.sum()) / NS_PER_S,
        local_s=float(weight @ local) / NS_PER_S,
        exchange_s=float(weight @ moved) / NS_PER_S,
        exchanged_bytes=setting.gradient_bytes + setting.parameter_bytes,
        own_step_s=1 / rate / NS_PER_S,
        busy=_busy(setting, float(rate.sum()) * NS_PER_S),
        staleness=staleness(finish[exchange.push], start[exchange.pull], start[exchange.compute], int(first.max())),
        server_memory_bytes=setting.num_parameters * setting.served_bytes / float(served.servers or 1),
    )


def _mean(columns: Ints, counted: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean of every row over its counted entries."""
    return np.asarray((columns * counted).sum(axis=1) / counted.sum(axis=1), dtype=np.float64)


def _busy(setting: ReplicaSetting, steps_per_s: float) -> dict[str, float]:
    """Share of the capacity in use, by kind of link; for the replicas' network that of the busiest node."""
    cluster, profile = setting.cluster, setting.cluster.profile
    out, host = profile.scale_out, profile.host
    servers = float(setting.layout.servers or 1) if out else 1.0
    card = out.nic_bandwidth if out else host.memory_bandwidth
    node = out.nic_bandwidth * out.nics_per_node if out else host.pcie_bandwidth * profile.devices_per_node
    push, pull = setting.gradient_bytes * steps_per_s, setting.parameter_bytes * steps_per_s
    moved = (push * update_bytes(setting) + pull) / servers
    shares = (
        max(push, pull) / cluster.nodes / node,
        push / servers / card,
        pull / servers / card,
        moved / host.memory_bandwidth,
    )
    return {name: min(1.0, share) for name, share in zip(LINKS, shares, strict=True)}
