"""Rounds of local steps with an average of all replicas at the end of each."""

import numpy as np

from simpar.cost.collectives.choice import collective
from simpar.engine import choose_engine
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import Label
from simpar.replicas.setting import ReplicaSetting
from simpar.replicas.staleness import MeanStep
from simpar.units import NS_PER_S, to_ns

ROUNDS, MOST_DRAWS = 32, 4_000_000
LOCAL, AVERAGE, OUTER = (
    Label(kind, name)
    for kind, name in (("forward", "local steps"), ("dp", "all_reduce parameters"), ("optimizer", "outer update"))
)


def meet(setting: ReplicaSetting, *, size_bytes: float, outer_s: float = 0.0) -> MeanStep:
    """Simulate rounds of ``sync_every`` local steps, an all-reduce of ``size_bytes`` and an update of ``outer_s``.

    The all-reduce begins when the last replica arrives, and all replicas wait until it ends.
    """
    period = int(setting.layout.sync_every or 1)
    replicas = len(setting.replicas)
    count = int(np.clip(MOST_DRAWS // (replicas * period), 1, ROUNDS))
    local_ns = setting.replicas.steps_ns(count * period).reshape(replicas, count, period).sum(axis=2)
    average_ns = int(to_ns(average_s(setting, size_bytes)))
    build = ProgramBuilder()
    streams = np.array([build.add_stream("replica", build.add_class(f"replica {index}")) for index in range(replicas)])
    for at in range(count):
        local = build.add_ops(
            replicas, class_id=np.arange(replicas), label=build.label(LOCAL), fixed_ns=local_ns[:, at], microbatch=at
        )
        average = build.add_ops(1, label=build.label(AVERAGE), fixed_ns=average_ns, microbatch=at)
        outer = build.add_ops(
            replicas,
            class_id=np.arange(replicas),
            label=build.label(OUTER),
            fixed_ns=int(to_ns(outer_s)),
            microbatch=at,
        )
        for ops in (local, np.broadcast_to(average, replicas), outer):
            build.place(streams, ops)
    program = build.build()
    run = choose_engine("auto", program)
    steps = count * period
    step_s = run(program).makespan_ns / steps / NS_PER_S
    return MeanStep(
        step_s=step_s,
        local_s=float(local_ns.sum() / replicas / steps + to_ns(outer_s) / period) / NS_PER_S,
        exchange_s=average_ns / period / NS_PER_S,
        exchanged_bytes=size_bytes / period,
        own_step_s=np.full(replicas, step_s),
        outer_s=float(to_ns(outer_s)) / period / NS_PER_S,
    )


def average_s(setting: ReplicaSetting, size_bytes: float) -> float:
    """Seconds of the all-reduce across replicas, with all shards of the model at once on the links that they share."""
    of_rank = setting.replicas.of_rank
    groups = np.argsort(of_rank, kind="stable").reshape(len(setting.replicas), -1).T
    shard_bytes = size_bytes / len(groups)
    cluster = setting.cluster.in_training
    cost = collective("all_reduce", np.ascontiguousarray(groups), cluster, size_bytes=shard_bytes)
    load = np.zeros(cluster.num_links)
    np.add.at(load, cost.edges.link_id, cost.edges.coefficient * shard_bytes)
    fastest = shard_bytes / cost.rate_cap_bytes_per_s if cost.rate_cap_bytes_per_s else 0.0
    return cost.latency_s + max(fastest, float((load / cluster.link_capacity_bytes_per_s).max()))
