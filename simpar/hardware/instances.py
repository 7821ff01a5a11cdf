"""Names that mean some of a node's devices: instances of clouds, and counts such as ``4xH100`` and ``h100-4``."""

from __future__ import annotations

import re
from functools import cache

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.network import split_network, with_network
from simpar.hardware.part import part_of_node
from simpar.hardware.profile import ClusterProfile
from simpar.plain import plain_name, split_count
from simpar.profiles import is_file

_COUNT = re.compile(r"(?:gpu)?(\d+)x(?=\D|\d{4})")

_MACHINE = re.compile(r"dgx|hgx|gcp|a\d(?!\d)|[pg]\d|g2standard|trn\d|n[cd]|bm|ct\d|vmgpu")
"""Beginnings of the names of machines, behind which a number would be of machines or of devices: which is not said."""
CORES_OF_CHIP = {"tpu-v4-pod": 2, "tpu-v5p-pod": 2, "tpu-v7x-pod": 2}
"""TPUs whose slices are named after their cores (docs of Cloud TPU, accelerator types; xpk's
``core/system_characteristics.py``): ``v5p-128`` has 64 chips."""


@dataclass(frozen=True)
class Instance:
    """``devices`` that a name means (of a node, unless they are more than it has), and the network between instances.

    ``network`` is in words, of all devices together ("": their share of the node's).
    """

    devices: int
    network: str = ""

    def of(self, profile: ClusterProfile) -> ClusterProfile:
        """The part of a node that it is; the profile itself where it is all of one or several, on its own network."""
        part = part_of_node(profile, self.devices) if self.devices < profile.devices_per_node else profile
        if not self.network:
            return part
        joined = with_network(part, self.network)
        return joined if part is profile else joined.model_copy(update={"name": part.name})


def instance_named(name: str) -> Instance | None:
    """What a name means beside its profile; None where it is all of a node of it."""
    name, _ = split_network(name)
    if name in files.bundled("clusters") or is_file(name):
        return None
    if known := _known().get(plain_name(name)):
        return known
    if (count := _count(name)) is None:
        return None
    if not count:
        raise UserError(f"hardware {name}: 0 devices; allowed: 1 or more")
    return Instance(count)


def _count(name: str) -> int | None:
    """The number of devices before or behind a name; None where it has none."""
    if before := _COUNT.match(re.sub(r"[^a-z0-9]", "", name.lower())):
        return int(before.group(1))
    known = files.aliases("clusters")
    kind, count = split_count(name)
    if count is None or plain_name(name) in known or (meant := files.meant_by(kind, "clusters")) is None:
        return None
    if _MACHINE.match(plain_name(kind)):
        raise UserError(
            f"hardware {name}: {kind} is a whole machine; allowed: {kind} with a number of nodes or devices"
        )
    chips, rest = divmod(count, CORES_OF_CHIP.get(meant, 1))
    if rest:
        raise UserError(f"hardware {name}: {meant} counts cores, two of a chip; allowed: even numbers")
    return chips


@cache
def _known() -> dict[str, Instance]:
    """Instances by the letters and digits of their names."""
    table = files.other_names("clusters").get("parts", {}).get("clusters", ())
    return {
        name: Instance(part["devices"], part.get("network", ""))
        for part in table for name in part["names"]
    }  # fmt: skip
