"""The price of devices: that of their profile, or what the user pays."""

from dataclasses import replace

from simpar.hardware.cluster import Cluster
from simpar.hardware.mixed import MixedCluster


def price_of(cluster: Cluster) -> float | None:
    """Dollars per device and hour on nodes of one kind; None where neither cluster nor device has a price."""
    own = cluster.profile.price_per_device_hour
    return cluster.device.price_per_hour if own is None else own


def set_price(cluster: Cluster, usd_per_device_hour: float | None) -> Cluster:
    """The cluster with all of its devices at another price; None leaves it as it is."""
    if usd_per_device_hour is None:
        return cluster
    profile = cluster.profile.model_copy(update={"price_per_device_hour": usd_per_device_hour})
    if isinstance(cluster, MixedCluster):
        return replace(
            cluster, profile=profile, parts=tuple(set_price(part, usd_per_device_hour) for part in cluster.parts)
        )
    return replace(cluster, profile=profile)
