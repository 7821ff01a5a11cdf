"""Collective algorithms: latency and bytes per link.

A collective is a few straight lines ``latency + size * seconds_per_byte``, one per algorithm and protocol;
the automatic choice is the lowest line at the size asked for, as NCCL's tuner does. Each algorithm is one
file that says which hops it takes in sequence (latency) and how many bytes it puts on which links.
"""

from simpar.cost.collectives.choice import (
    CollectiveCost,
    Offer,
    algorithms,
    collective,
    collective_time_s,
    fastest,
    link_loads,
    offers,
    shape_numbers,
    sm_count,
)
from simpar.cost.collectives.measured import MEASURES, calibrated
from simpar.cost.collectives.occupancy import occupied_s_per_byte
from simpar.cost.collectives.placement import Shape, regular, shape_of
from simpar.cost.collectives.traffic import Edges

__all__ = [
    "MEASURES",
    "CollectiveCost",
    "Edges",
    "Offer",
    "Shape",
    "algorithms",
    "calibrated",
    "collective",
    "collective_time_s",
    "fastest",
    "link_loads",
    "occupied_s_per_byte",
    "offers",
    "regular",
    "shape_numbers",
    "shape_of",
    "sm_count",
]
