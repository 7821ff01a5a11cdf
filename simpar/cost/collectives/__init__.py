"""Collective algorithms: latency and bytes per link.

A collective is a few straight lines ``latency + size * seconds_per_byte``, one per algorithm and protocol;
the automatic choice is the lowest line at the size asked for, as NCCL's tuner does. Each algorithm is one
file that says which hops it takes in sequence (latency) and how many bytes it puts on which links.
"""

from simpar.cost.collectives.choice import (
    collective,
    collective_time_s,
    fastest,
    link_loads,
    occupied_s_per_byte,
    offers,
    shape_numbers,
)
from simpar.cost.collectives.lines import Line
from simpar.cost.collectives.measured import calibrated
from simpar.cost.collectives.placement import regular
from simpar.cost.collectives.traffic import is_port

__all__ = [
    "Line",
    "calibrated",
    "collective",
    "collective_time_s",
    "fastest",
    "is_port",
    "link_loads",
    "occupied_s_per_byte",
    "offers",
    "regular",
    "shape_numbers",
]
