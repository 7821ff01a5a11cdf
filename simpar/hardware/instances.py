"""Names that mean some of a node's devices: instances of clouds, and counts such as ``4xH100``."""

from __future__ import annotations

import re
from functools import cache

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.network import split_network
from simpar.hardware.part import part_of_node
from simpar.hardware.profile import ClusterProfile
from simpar.profiles import is_file
from simpar.units import parse_quantity

_COUNT = re.compile(r"(?:gpu)?(\d+)x(?=\D|\d{4})")


@dataclass(frozen=True)
class Instance:
    """``devices`` that a name means (of a node, unless they are more than it has), and the bandwidth of their network.

    ``network`` is in bytes/s, of all of them together and per direction; None: their share of the node's.
    """

    devices: int
    network: float | None = None

    def of(self, profile: ClusterProfile) -> ClusterProfile:
        """The part of a node that it is; the profile itself where it is all of one or several."""
        if self.devices >= profile.devices_per_node:
            return profile
        part = part_of_node(profile, self.devices)
        if self.network is None or part.scale_out is None:
            return part
        network = {"nics_per_node": 1, "nic_bandwidth": self.network}
        return part.model_copy(update={"scale_out": part.scale_out.model_copy(update=network)})


def instance_named(name: str) -> Instance | None:
    """What a name means beside its profile; None where it is all of a node of it."""
    name, _ = split_network(name)
    if name in files.bundled("clusters") or is_file(name):
        return None
    if known := _known().get(files.plain_name(name)):
        return known
    count = _COUNT.match(re.sub(r"[^a-z0-9]", "", name.lower()))
    if count is None:
        return None
    if not int(count.group(1)):
        raise UserError(f"hardware {name}: 0 devices; allowed: 1 or more")
    return Instance(int(count.group(1)))


@cache
def _known() -> dict[str, Instance]:
    """Instances by the letters and digits of their names."""
    table = files.other_names("clusters").get("parts", {}).get("clusters", ())
    return {
        name: Instance(part["devices"], parse_quantity(part["network"], "bytes_per_s") if "network" in part else None)
        for part in table for name in part["names"]
    }  # fmt: skip
