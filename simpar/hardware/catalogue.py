"""Clusters by the name or file of their profile: of one kind of nodes, or of several."""

from functools import cache
from pathlib import Path
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.hardware.instances import instance_named
from simpar.hardware.mixed import MixedCluster
from simpar.hardware.network import split_network, with_network
from simpar.hardware.part import part_of_node
from simpar.hardware.price import set_price
from simpar.hardware.profile import ClusterProfile, MixedProfile
from simpar.profiles import EXACT, LIKE, as_written, load_profile
from simpar.units import format_rate


def load_cluster(profile: str | Path | ClusterProfile, nodes: int | None = None, devices: int | None = None) -> Cluster:
    """``nodes`` nodes of a profile: a bundled name, the path of a YAML, or a profile itself. Raises UserError.

    Without ``nodes`` it has one node, or those of a mixed profile (one with groups of nodes). ``devices`` is the number
    of devices in all, equally many of every node: fewer than a node has are a part of one. Files that a profile file
    names are relative to it. A name may mean a part of a node (:mod:`simpar.hardware.instances`), and name the network
    between nodes behind "over" (:mod:`simpar.hardware.network`).

    >>> cluster = load_cluster("dgx-h100", nodes=2)
    >>> cluster.world_size, cluster.device.name
    (16, 'h100-sxm-80gb')
    >>> load_cluster("dgx-h100", devices=4)
    <Cluster 4 of dgx-h100: 4 h100-sxm-80gb>
    >>> load_cluster("g5.xlarge")
    <Cluster 1 of a10g-8: 1 a10g>
    """
    said, network, instance = profile, "", None
    if isinstance(profile, str):
        profile, network = split_network(profile)
        instance = instance_named(profile)
    if not isinstance(profile, ClusterProfile):
        document, path = load_profile(profile, "clusters", "hardware")
        if isinstance(document.data, dict) and "groups" in document.data:
            if network:
                raise UserError(f"hardware {said}: has several kinds of nodes; allowed: the network in its own file")
            return make_mixed(files.parse(MixedProfile, document, also=(LIKE,)), nodes, path.parent, devices)
        profile = files.parse(ClusterProfile, document, also=(LIKE,))
        if isinstance(profile.device, str) and Path(profile.device).suffix:
            profile = profile.model_copy(update={"device": str(path.parent / profile.device)})
        elif isinstance(profile.device, str):
            document.check_name(("device",), lambda name: files.find(name, "devices", "device"))
    if instance is not None:
        whole = profile.devices_per_node
        if instance.devices > whole:
            asked = devices or (nodes * whole if nodes else instance.devices)
            if asked != instance.devices:
                raise UserError(
                    f"hardware {said}: means {instance.devices} devices, not {asked}; allowed: the same number beside "
                    "it, or a name without a number"
                )
            devices = instance.devices
        profile = instance.of(profile)
    if network:
        profile = with_network(profile, network)
    if devices is not None:
        return _of_devices(profile, nodes, devices)
    return make_cluster(profile, 1 if nodes is None else nodes)


def _of_devices(profile: ClusterProfile, nodes: int | None, devices: int) -> Cluster:
    """Nodes of a profile that have ``devices`` devices in all. Raises UserError."""
    whole = profile.devices_per_node
    count = nodes or -(-devices // whole)
    each, rest = divmod(devices, count)
    if rest or not 1 <= each <= whole:
        raise UserError(
            f"devices = {devices}: allowed on {count} nodes of {whole} of {profile.name}: "
            + (f"1 to {whole}" if count == 1 else f"multiples of {count} up to {count * whole}")
        )
    return make_cluster(part_of_node(profile, each), count)


def list_clusters() -> dict[str, str]:
    """The hardware profiles that are shipped: name, and the devices of a node with the rates of its links.

    >>> list_clusters()["dgx-h100"]
    '8 x h100-sxm-80gb, nvswitch 450 GB/s, 8 x ib 50.0 GB/s'
    """
    return {name: fabric_words(load_cluster(name).profile) for name in files.bundled("clusters")}


def fabric_words(profile: ClusterProfile) -> str:
    """The devices of a node and the rates of its links, in words."""
    inside, out = profile.scale_up, profile.scale_out
    device = profile.device if isinstance(profile.device, str) else profile.device.name
    words = f"{profile.devices_per_node} x {device}, {inside.kind} {format_rate(inside.bandwidth)}"
    return words + (f", {out.nics_per_node} x {out.kind} {format_rate(out.nic_bandwidth)}" if out else "")


def written(cluster: Cluster) -> str | dict[str, Any]:
    """The name of the shipped profile that equals a cluster's, or the profile written out if there is none.

    Reducing switches and prices are not compared: they are stated beside a profile's name.
    """
    profile = cluster.profile
    if profile.name in files.bundled("clusters"):
        shipped = _shipped(profile.name).reducing(
            nvls=profile.scale_up.nvls, sharp=bool(profile.scale_out and profile.scale_out.sharp)
        )
        if set_price(shipped, profile.price_per_device_hour).profile == profile:
            return profile.name
    if isinstance(profile.device, str) and profile.device not in files.bundled("devices"):
        profile = profile.model_copy(update={"device": cluster.device})
    return as_written(profile, EXACT)


@cache
def _shipped(name: str) -> Cluster:
    """One node of a shipped profile; its file does not change while simpar runs."""
    return load_cluster(name)


def recorded(cluster: Cluster) -> dict[str, Any]:
    """A cluster as saved answers record it: by name and size, with its profile if no shipped one equals it."""
    profile, price = cluster.profile, cluster.profile.price_per_device_hour
    return {
        "hardware": profile.name,
        **_written_profile(cluster),
        "nodes": cluster.nodes,
        "devices": cluster.world_size,
        "device": " + ".join(device.name for device in cluster.devices),
        **_written_groups(cluster),
        "degraded": dict(cluster.scaling),
        "nvls": profile.scale_up.nvls,
        "sharp": bool(profile.scale_out and profile.scale_out.sharp),
        **({"price_per_device_hour": f"{price!r} USD/h"} if price is not None else {}),
    }


def _written_profile(cluster: Cluster) -> dict[str, Any]:
    """The profile itself if it is not a shipped one, so that saved answers need no other file."""
    name = None if isinstance(cluster, MixedCluster) else written(cluster)
    return {"profile": name} if isinstance(name, dict) else {}


def _written_groups(cluster: Cluster) -> dict[str, Any]:
    """Groups of nodes of a mixed cluster, as profiles state them."""
    if not isinstance(cluster, MixedCluster):
        return {}
    groups = [{"hardware": written(part), "nodes": part.nodes} for part in cluster.parts]
    return {"groups": groups, "between": cluster.between.model_dump(mode="json")}


def make_mixed(
    profile: MixedProfile, nodes: int | None = None, folder: Path | None = None, devices: int | None = None
) -> MixedCluster:
    """The cluster of a mixed profile; ``nodes`` is a multiple of the profile's own number. Raises UserError.

    Files that groups name are relative to ``folder``. A number of ``devices`` is refused: of which kind is not said.
    """
    if devices is not None:
        raise UserError(
            f"devices = {devices}: hardware {profile.name} has several kinds of nodes; allowed: a number of nodes"
        )
    copies, rest = divmod(profile.nodes if nodes is None else nodes, profile.nodes)
    if rest or copies < 1:
        raise UserError(
            f"nodes = {nodes}: hardware {profile.name} has {' + '.join(str(g.nodes) for g in profile.groups)} nodes; "
            f"allowed: multiples of {profile.nodes}"
        )
    parts = []
    for index, group in enumerate(profile.groups):
        named = group.hardware
        if folder is not None and isinstance(named, str) and Path(named).suffix:
            named = str(folder / named)
        part = load_cluster(named, group.nodes * copies)
        out = part.profile.scale_out
        if part.is_mixed or part.profile.scale_up.kind == "torus" or out is None or out.groups or out.rail_only:
            raise UserError(
                f"hardware {profile.name}: groups[{index}].hardware = {part.profile.name}: allowed: profiles of one "
                "kind of nodes with a network between them, no torus, no groups of leaves, rails that are joined"
            )
        parts.append(part)
    return MixedCluster.of(profile.name, tuple(parts), profile.between)
