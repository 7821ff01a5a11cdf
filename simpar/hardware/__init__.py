"""What do we run on? Devices, links and clusters."""

OPEN = (
    "catalogue", "cluster", "device", "instances", "intervals", "levels", "machine.profile_of", "network", "operation",
    "part", "price", "profile", "reliability", "shown",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""
