"""Bytes of the tokens routed to a rank's experts, and how far they may be from the prediction.

Without a capacity factor the router decides how many routed tokens a rank holds: their copies, and what grouped
products save and compute. Loads of layers are independent of each other, those of microbatches are alike (popular
experts stay popular), so over many layers a rank's load is less uneven than in one. All bytes are linear in the load;
they are evaluated like the sizes of tensors, for arrays of layouts at once.
"""

from dataclasses import astuple

import numpy as np

from simpar.architectures.graph import ModelGraph
from simpar.cost.activations import block_activations
from simpar.cost.memory.bound import Flight
from simpar.layout.layout import Layout
from simpar.layout.sharding import RankDims
from simpar.plan.routing import Routing, excess_of_fullest, expert_load_spread
from simpar.stacks.stack import Stack
from simpar.units import Floats, Ints, Numbers


def experts_risk_bytes(
    graph: ModelGraph,
    flight: Flight,
    dims: RankDims,
    habits: tuple[Layout, Stack],
    expand: Ints,
    imbalance: tuple[float, float],
) -> tuple[Numbers, Numbers]:
    """(Mean, standard deviation) in bytes of the routed tokens on the fullest rank beyond those that are predicted.

    Arguments are those of :func:`simpar.cost.memory.bound.least_moving_bytes`; ``imbalance`` (mean, standard deviation)
    is what is known of experts in general. A plan with an imbalance of its own is predicted for a rank that is fullest
    in every layer, so the mean is zero. Both are zero in dense models, where a capacity factor pads, and on a rank that
    holds all experts.
    """
    layout = habits[0]
    if dims.expert is None or layout.capacity_factor is not None:
        return 0.0, 0.0
    routing = Routing.of_dims(graph.dims)
    stated = expert_load_spread(routing, layout)
    experts, local = routing.experts, dims.expert
    copies = np.asarray(local["batch"]) * local["seq"] * local["topk"]
    mean, deviation = excess_of_fullest(
        experts, experts // np.asarray(dims.tensor["experts"]), copies, (stated, 0.0) if stated else imbalance
    )
    routed = _routed_bytes(graph, flight, dims, habits, expand)
    mean, deviation = (each[expand] if np.ndim(each) else each for each in (mean, deviation))
    return (0.0 if stated else routed * mean), routed * deviation


def _routed_bytes(
    graph: ModelGraph, flight: Flight, dims: RankDims, habits: tuple[Layout, Stack], expand: Ints
) -> Floats:
    """Bytes per unit of load: layers add up as independent deviations do (root of the sum of squares).

    sqrt(sum over kinds of held x (kept / held)^2 + workspace^2), where ``kept`` are the bytes of all layers of a kind.
    """
    layout, stack = habits
    squares, beside = np.zeros(np.shape(flight.deepest)), np.zeros(np.shape(flight.deepest))
    for number, (name, recompute) in enumerate(flight.kinds):
        held = flight.counts[number]
        if not np.any(held):  # of one stage's layers few are of any kind
            continue
        one, two = (
            astuple(block_activations(graph.blocks[name], each, stack, layout, recompute))
            for each in (dims, dims.with_more_load)
        )
        grown = (np.asarray(high - low, dtype=np.float64) for low, high in zip(one, two, strict=True))
        saved, again, forward, backward = (each[expand] if each.ndim else each for each in grown)
        # variance of the sum over a kind's ``held`` layers of kept / held bytes each: kept^2 / held
        kept = (1.0 - layout.offload_activations) * saved * flight.flying[number]
        squares = squares + kept**2 / np.maximum(held, 1)
        beside = np.where(held > 0, np.maximum(beside, np.maximum(forward, again + backward)), beside)
    return np.asarray(np.sqrt(squares + beside**2))
