"""The network between nodes in a user's words, laid over that of a profile: ``dgx-a100-80gb over 25 Gb/s ethernet``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.hardware.profile import ClusterProfile, Jobs, ScaleOut
from simpar.profiles import EXACT, as_written, lay_over
from simpar.units import US, parse_quantity

OVER = " over "
KINDS = {
    "ib": "ib", "infiniband": "ib", "roce": "roce", "rocev2": "roce", "ethernet": "ethernet", "tcp": "ethernet",
    "sockets": "ethernet",
}  # fmt: skip
"""Kinds of networks by the words for them; what clouds have of their own comes with their profiles."""
LATENCY_US = {"ib": 2.0, "roce": 4.0, "ethernet": 20.0}
"""Latencies that shipped profiles have for these kinds."""
OF_NETWORK = (
    "far_hop_us", "nic_hop_us", "tree_hop_us", "peer_us", "far_port_share", "nic_efficiency",
    "exchange_nic_efficiency", "nic_scale_loss", "gather_scale_loss", "far_member_us", "socket_threads",
)  # fmt: skip
"""Fitted parameters of collectives that belong to the network of a profile."""
_WORDS = re.compile(
    r"(?:(?:(?P<cards>\d+)\s*x\s+)?(?P<rate>\d+(?:\.\d+)?)\s*(?P<prefix>[MGT])(?:b(?P<unit>/s|ps|it/s|E\b)|B/s)\s*)?"
    r"(?P<kind>\w*)"
)
"""Rates are case-sensitive, as everywhere: Gb are bits, GB bytes."""
_ALLOWED = 'such as "25 Gb/s ethernet", "4x 100 Gb/s roce", "200 Gb/s" or one of ib, roce, ethernet (TCP sockets)'


def split_network(name: str) -> tuple[str, str]:
    """A hardware's name without its network, and the words for that ("" if it has none)."""
    named, _, words = name.partition(OVER)
    return named.strip(), words.strip()


def with_network(profile: ClusterProfile, words: str) -> ClusterProfile:
    """The profile with another network: cards of a node, the rate of each, and their kind, where said.

    A rate without a number is that of one card. Between kinds with RDMA fitted parameters stay; others are dropped for
    those of NCCL's own tables, and so is what is known of leaves and of jobs. Raises UserError.
    """
    count, rate, kind = _parsed(words)
    out = profile.scale_out
    kind = kind or (out.kind if out else "ethernet")
    changed: dict[str, Any] = {"kind": kind}
    if rate:
        changed |= {"nics_per_node": count, "nic_bandwidth": rate}
    elif out is None:
        raise UserError(f"network {words}: {profile.name} has none between nodes; allowed with a rate: {_ALLOWED}")
    update: dict[str, Any] = {"name": f"{profile.name}{OVER}{words}"}
    if out is None or kind != out.kind:
        changed |= {"latency": LATENCY_US[kind] * US}
        update["jobs"] = Jobs()
    if out is None or (kind != out.kind and {kind, out.kind} != {"ib", "roce"}):
        update["collectives"] = {key: each for key, each in profile.collectives.items() if key not in OF_NETWORK}
    kept = {} if out is None else out.model_dump()
    if out is not None and kind != out.kind:
        for key in ("nodes_per_leaf", "oversubscription", "groups", "rail_only", "sharp"):
            kept.pop(key)
    return profile.model_copy(update={**update, "scale_out": ScaleOut.model_validate({**kept, **changed})})


def with_fields(profile: ClusterProfile, given: Mapping[str, Any]) -> ClusterProfile:
    """The profile with some fields of its network between nodes, and of its groups of leaves, as given.

    Another kind of network is that of :func:`with_network`, where it knows the kind. Raises UserError.
    """
    kind = KINDS.get(str(given.get("kind")))
    if kind and profile.scale_out is not None and kind != profile.scale_out.kind:
        profile = with_network(profile, kind)
    kept = {} if profile.scale_out is None else as_written(profile.scale_out, EXACT)
    out = files.parse(ScaleOut, lay_over(kept, given), source="cluster.scale_out")
    said = ", ".join(f"{key} {value}" for key, value in _flat(given))
    return profile.model_copy(update={"name": f"{profile.name}, {said}", "scale_out": out})


def _flat(given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values by dotted key."""
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", each) for inner, each in _flat(value))
        else:
            yield key, value


def _parsed(words: str) -> tuple[int, float | None, str | None]:
    """(Cards, bytes/s of each or None, kind or None) of words. Raises UserError."""
    told = _WORDS.fullmatch(words.strip())
    if told is None or not words.strip():
        raise UserError(f"network = {words!r}: allowed: {_ALLOWED}")
    kind = told["kind"].lower() or ("ethernet" if told["unit"] == "E" else "")
    if kind and kind not in KINDS:
        raise UserError(f"network = {words!r}: {kind} is no kind of network that is known; allowed: {_ALLOWED}")
    unit = f"{told['prefix']}{'b' if told['unit'] else 'B'}/s"
    rate = parse_quantity(f"{told['rate']} {unit}", "bytes_per_s") if told["rate"] else None
    return int(told["cards"] or 1), rate, KINDS.get(kind)
