"""Submeshes of a cluster, their logical shapes, and the placement of pipeline stages."""

from collections.abc import Sequence

from simpar.hardware.cluster import Cluster

Mesh = tuple[int, ...]
MAX_INNER = 8


def submesh_sizes(cluster: Cluster) -> list[int]:
    """Device counts of the submeshes to consider: powers of two within a node, then powers of two of whole nodes.

    A whole node and all nodes together are always included [Zheng et al. 2022, section 5.2: any multiset of such
    submeshes that adds up to the cluster can be placed].
    """
    inside, nodes = cluster.profile.devices_per_node, cluster.nodes
    sizes = {size for size in _powers(inside) if inside % size == 0} | {inside}
    whole = {count * inside for count in (*_powers(nodes), nodes)}
    return sorted(sizes | whole)


def logical_meshes(size: int, cluster: Cluster) -> list[Mesh]:
    """Shapes of a submesh of that size: one axis, or two of which the inner one stays within a domain.

    Within a domain, where all devices are equally close, a shape and its transpose are the same.
    """
    near = cluster.domain_size
    result: list[Mesh] = [(size,)]
    for inner in _powers(min(size // 2, MAX_INNER * 2)):
        if inner == 1 or size % inner or inner > near:
            continue
        if size <= near and inner * inner > size:
            continue
        result.append((size // inner, inner))
    return result


def _powers(most: int) -> list[int]:
    return [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]


def place_stages(sizes: Sequence[int], cluster: Cluster) -> list[int]:
    """The first device of every stage: in order if every stage stays in nodes that way, otherwise the largest first."""
    inside = cluster.profile.devices_per_node
    for order in (range(len(sizes)), sorted(range(len(sizes)), key=lambda stage: -sizes[stage])):
        first, places = 0, dict[int, int]()
        for stage in order:
            places[stage] = first
            first += sizes[stage]
        if all(first % min(sizes[stage], inside) == 0 for stage, first in places.items()):
            break
    return [places[stage] for stage in range(len(sizes))]
