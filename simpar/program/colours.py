"""Colours of ranks: those that start equal run the same work at the same speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.hardware.cluster import Cluster
from simpar.plan.plan import Plan
from simpar.plan.routing import has_sampled_loads

if TYPE_CHECKING:
    from simpar.program.perturbation import Perturbation

Ints = NDArray[np.int64]


def pipeline_ranks(plan: Plan, ranks: Ints) -> Ints:
    """The pipeline rank that each rank belongs to, int64 like ``ranks``."""
    if not plan.pipeline.stages:
        return plan.mesh.coordinates(ranks)["pp"].astype(np.int64)
    starts = np.array([stage.first_device for stage in plan.pipeline.stages])
    order = np.argsort(starts)
    return order[np.searchsorted(starts[order], ranks, side="right") - 1].astype(np.int64)


def rank_colours(plan: Plan, cluster: Cluster, perturbation: Perturbation, *, uneven_context: bool) -> Ints:
    """Ranks start equal when they run the same work at the same speed."""
    mesh, world = plan.mesh, np.arange(cluster.world_size)
    colour, colours = pipeline_ranks(plan, world), mesh.pp
    if uneven_context:
        colour, colours = colour + colours * mesh.coordinates(world)["cp"], colours * mesh.cp
    if has_sampled_loads(plan):
        colour, colours = colour + colours * mesh.expert_coordinate(world), colours * mesh.ep
    if plan.data_parallel.kind == "single_process":
        colour[0] = world.size  # the device that everything passes through
    colour, colours = _with_devices(colour, colours, cluster)
    return _with_slow_ranks(colour, colours, perturbation)


def _with_devices(colour: Ints, colours: int, cluster: Cluster) -> tuple[Ints, int]:
    """Colours of ranks, those of different devices apart, and how many there may be."""
    kinds = len(cluster.devices)
    if kinds == 1:
        return colour, colours
    return colour + colours * cluster.device_of(np.arange(len(colour))), colours * kinds


def _with_slow_ranks(colour: Ints, colours: int, perturbation: Perturbation) -> Ints:
    """Colours of ranks, those at another speed apart; unfolded, every rank is its own."""
    if not perturbation.fold:
        return np.arange(len(colour))
    factors = sorted(set(perturbation.slow_ranks.values()))
    for rank, factor in perturbation.slow_ranks.items():
        colour[rank] += colours * (1 + factors.index(factor))
    return colour
