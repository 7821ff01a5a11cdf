"""How replicas of the model cooperate from step to step: the names of schemes, and what each of them needs.

``SCHEMES`` is the table: to add a scheme, add its line here and its file in :mod:`simpar.replicas`. Replicas are
the copies of the model's states: data-parallel ranks, or with ZeRO the shard groups that ``hsdp`` counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpar.dataclass import dataclass

if TYPE_CHECKING:
    from simpar.plan.choices.data_parallel import DataParallel
    from simpar.plan.plan import Plan


@dataclass(frozen=True)
class Scheme:
    """What a scheme takes: parameter servers ("may", "must" or "no"), a period in local steps, a bound on staleness.

    ``sync_every`` and ``staleness`` are the defaults; None where the scheme has no such field.
    """

    servers: str = "no"
    sync_every: int | None = None
    staleness: int | None = None


SCHEMES = {
    "bsp": Scheme(servers="may"),
    "ssp": Scheme(servers="must", staleness=3),
    "asp": Scheme(servers="must"),
    "local-sgd": Scheme(sync_every=8),
    "diloco": Scheme(sync_every=500),
}


def replicas_are_independent(plan: Plan) -> bool:
    """Whether replicas step on their own and meet between steps, instead of reducing gradients inside each."""
    return is_independent(plan.data_parallel.sync, plan.data_parallel.servers)


def is_independent(sync: str, servers: int | None) -> bool:
    """Whether replicas under a scheme step on their own; servers make them do so under any."""
    return sync != "bsp" or servers is not None


def problem(data: DataParallel) -> str | None:
    """The error message for the first field that does not go with the scheme; None if all do."""
    scheme = SCHEMES[data.sync]
    takers = {
        "sync_every": [name for name, other in SCHEMES.items() if other.sync_every],
        "staleness": [name for name, other in SCHEMES.items() if other.staleness is not None],
        "servers": [name for name, other in SCHEMES.items() if other.servers != "no"],
    }
    taken = {
        "sync_every": scheme.sync_every is not None,
        "staleness": scheme.staleness is not None,
        "servers": scheme.servers != "no",
    }
    for field, fits in taken.items():
        value = getattr(data, field)
        if value is not None and not fits:
            return f"{field} = {value} with sync = {data.sync!r}: allowed with {', '.join(takers[field])}"
    return None


def scheme_defaults(sync: str, num_nodes: int) -> dict[str, int | None]:
    """Period, bound and servers (one per node) of a scheme; None for what it does not have."""
    scheme = SCHEMES[sync]
    servers = num_nodes if scheme.servers == "must" else None
    return {"sync_every": scheme.sync_every, "staleness": scheme.staleness, "servers": servers}
