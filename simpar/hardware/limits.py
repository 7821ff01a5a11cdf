"""Upper limits of link capacities, so that engines can count in integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from simpar.errors import UserError
from simpar.units import MOST_LINK_BYTES_PER_S, format_rate

if TYPE_CHECKING:
    from simpar.hardware.cluster import Cluster


def check_links(cluster: Cluster) -> None:
    """Raises UserError for links whose capacity, a sum over NICs, is more than engines can count.

    Links that never bind are not checked. All links of a block are alike, except for degradations, which only lower
    them.
    """
    links = np.concatenate([cluster.link_of(block, np.zeros(1, dtype=np.int64)) for block in cluster.blocks])
    capacity = cluster.nominal_capacity(links)
    large = np.flatnonzero((capacity > MOST_LINK_BYTES_PER_S) & cluster.can_bind(links))
    if len(large):
        raise UserError(
            f"hardware {cluster.profile.name}: link {cluster.link_name(int(links[large[0]]))} of "
            f"{format_rate(capacity[large[0]])} (nic_bandwidth of nics_per_node NICs of nodes_per_leaf or "
            f"groups.nodes nodes): allowed: up to {format_rate(MOST_LINK_BYTES_PER_S)}"
        )
