"""Colours of ranks: those that start equal run the same work at the same speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.hardware.cluster import Cluster
from simpar.plan.routing import has_sampled_loads
from simpar.program.blocks.rank_view import RankView

if TYPE_CHECKING:
    from simpar.program.perturbation import Perturbation

Ints = NDArray[np.int64]


def rank_colours(view: RankView, cluster: Cluster, perturbation: Perturbation) -> Ints:
    """Ranks start equal when they run the same work at the same speed."""
    job, mesh = view.job, view.job.plan.mesh
    world = np.arange(mesh.world_size)
    here = mesh.coordinates(world)
    colour = here["pp"].astype(np.int64)
    colours = mesh.pp
    if view.uneven_context:
        colour, colours = colour + colours * here["cp"], colours * mesh.cp
    if has_sampled_loads(job.plan):
        colour, colours = colour + colours * mesh.expert_coordinate(world), colours * mesh.ep
    if job.plan.data_parallel.kind == "single_process":
        colour[0] = world.size  # the device that everything passes through
    colour, colours = with_devices(colour, colours, cluster)
    return with_slow_ranks(colour, colours, perturbation)


def with_devices(colour: Ints, colours: int, cluster: Cluster) -> tuple[Ints, int]:
    """Colours of ranks, those of different devices apart, and how many there may be."""
    kinds = len(cluster.devices)
    if kinds == 1:
        return colour, colours
    return colour + colours * cluster.device_of(np.arange(len(colour))), colours * kinds


def with_slow_ranks(colour: Ints, colours: int, perturbation: Perturbation) -> Ints:
    """Colours of ranks, those at another speed apart; unfolded, every rank is its own."""
    if not perturbation.fold:
        return np.arange(len(colour))
    factors = sorted(set(perturbation.slow_ranks.values()))
    for rank, factor in perturbation.slow_ranks.items():
        colour[rank] += colours * (1 + factors.index(factor))
    return colour
