"""Clusters by the name or file of their profile: of one kind of nodes, or of several."""

from __future__ import annotations

from pathlib import Path

from simpar import files
from simpar.errors import UserError
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.hardware.mixed import MixedCluster
from simpar.hardware.profile import ClusterProfile, MixedProfile
from simpar.profiles import LIKE, load_profile


def load_cluster(profile: str | Path | ClusterProfile, nodes: int | None = None) -> Cluster:
    """``nodes`` nodes of a profile: a bundled name, the path of a YAML, or a profile itself. Raises UserError.

    Left out, ``nodes`` is 1, or what a mixed profile (one with groups of nodes) has. Files named in a profile file
    lie relative to it.
    """
    if not isinstance(profile, ClusterProfile):
        document, path = load_profile(profile, "clusters", "hardware")
        if isinstance(document.data, dict) and "groups" in document.data:
            return make_mixed(files.parse(MixedProfile, document, also=(LIKE,)), nodes, path.parent)
        profile = files.parse(ClusterProfile, document, also=(LIKE,))
        if isinstance(profile.device, str) and Path(profile.device).suffix:
            profile = profile.model_copy(update={"device": str(path.parent / profile.device)})
    return make_cluster(profile, 1 if nodes is None else nodes)


def make_mixed(profile: MixedProfile, nodes: int | None = None, folder: Path | None = None) -> MixedCluster:
    """The cluster of a profile, with ``nodes`` a multiple of its own number. Raises UserError.

    Files that groups name lie in ``folder``.
    """
    copies, rest = divmod(profile.nodes if nodes is None else nodes, profile.nodes)
    if rest or copies < 1:
        raise UserError(
            f"nodes = {nodes}: hardware {profile.name} has {' + '.join(str(g.nodes) for g in profile.groups)} nodes; "
            f"allowed: multiples of {profile.nodes}"
        )
    parts = []
    for index, group in enumerate(profile.groups):
        inside = folder is not None and bool(Path(group.hardware).suffix)
        part = load_cluster(
            folder / group.hardware if inside and folder else group.hardware, group.nodes * copies
        )
        if part.is_mixed or part.profile.scale_up.kind == "torus" or part.profile.scale_out is None:
            raise UserError(
                f"hardware {profile.name}: groups[{index}].hardware = {group.hardware}: allowed: profiles of one kind "
                "of nodes with a network between them, no torus"
            )
        parts.append(part)
    return MixedCluster.of(profile.name, tuple(parts), profile.between)
