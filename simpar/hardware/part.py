"""A part of a node: some of its devices, with the share of the node's links that they have."""

import math
from typing import Any

from simpar.errors import UserError
from simpar.hardware.profile import ClusterProfile, ScaleUp
from simpar.profiles import share_of_nics, shared_switch

OF = " of "
"""Between the devices of a part of a node and the node's profile, in its name."""


def nodes_words(nodes: int, name: str) -> str:
    """Nodes and their profile: "2 x dgx-h100"; one part of a node needs no number of its own: "4 of dgx-h100"."""
    is_part = nodes == 1 and name.partition(OF)[0].isdecimal()
    return name if is_part else f"{nodes} x {name}"


def part_of_node(profile: ClusterProfile, devices: int) -> ClusterProfile:
    """Nodes of a profile of which a job has ``devices`` each, fewer than a whole node has.

    Ports of a switch are a device's own. Of a mesh, a device keeps its links to the others of the job. NICs are in
    proportion, one at least; the memory, the drives and the power of the host stay those of the whole node, which
    nobody else is assumed to use. Raises UserError for a number that a node does not have.
    """
    whole = profile.devices_per_node
    if not 1 <= devices <= whole:
        raise UserError(f"devices of a node = {devices}: allowed: 1 to {whole}, as {profile.name} has")
    if devices == whole:
        return profile
    out, host = profile.scale_out, profile.host
    changed: dict[str, Any] = {
        "name": f"{devices}{OF}{profile.name}",
        "devices_per_node": devices,
        "scale_up": _scale_up(profile.scale_up, devices, whole),
        "host": host.model_copy(update={"devices_per_switch": shared_switch(devices, host.devices_per_switch)}),
    }
    if out is not None:
        nics = share_of_nics(devices, whole, out.nics_per_node)
        changed["scale_out"] = out.model_copy(update={"nics_per_node": nics})
    return profile.model_copy(update=changed)


def _scale_up(fabric: ScaleUp, devices: int, whole: int) -> ScaleUp:
    """The fabric inside a domain with ``devices`` of the ``whole`` number of devices of every node."""
    changed: dict[str, Any] = {}
    if fabric.domain is not None:
        changed["domain"] = fabric.domain // whole * devices
    if fabric.kind == "mesh" and devices > 1:  # a link to every other device, of which some are not in the job
        changed["bandwidth"] = fabric.bandwidth * (devices - 1) / (whole - 1)
    if fabric.dims:  # chips of a host are neighbours: a box, as square as it can be
        side = next(each for each in range(math.isqrt(devices), 0, -1) if devices % each == 0)
        changed["dims"] = (devices // side, side, *(1 for _ in fabric.dims[2:]))
        changed["domain"] = devices
    return fabric.model_copy(update=changed)
