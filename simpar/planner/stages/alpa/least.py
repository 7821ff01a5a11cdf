"""A lower bound of every plan of the Alpa space, found by the same elimination that chooses roles.

A stage of M microbatches waits for the forwards F' of the stages before it, gathers its parameters before its first
forward is over, reduces its gradients after its last backward has begun, and updates after that. Let F + B be the
seconds of a microbatch on its compute stream, G and R the seconds of the links for parameters and gradients, and U
those of the update:

    step >= sum F' + max(F, G) + (M - 1) (F + B) + max(B, R) + U
         >= sum F' + (M - 1 + a) (F + B) + (1 - a) (G + R) + U,  0 <= a <= 1,

If states need S bytes of a device that has L, then for any price p >= 0 of a byte, p (S - L) may be added. All terms
are sums over blocks, so the least over all roles on a mesh is found by elimination for each kind of block. Kernels
count together with the changes of states that they wait for. Not counted are recomputation, activations, messages,
repeated moves of weights that are gathered for every pass, backwards of earlier stages, and contention. The best cut
under these times bounds all others.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from simpar.planner.stages.alpa.graph import ChoiceGraph, eliminate
from simpar.planner.stages.alpa.meshes import logical_meshes
from simpar.planner.stages.alpa.operators import Metric
from simpar.planner.stages.alpa.profile import Profile
from simpar.planner.stages.cuts import sum_between
from simpar.units import NS, Floats, Ints

TOLERANCE = 2.0**-10
MOST_UNITS = 64
"""The most units in which devices are counted."""
ROUNDED_S = 12 * NS
"""The most that rounding an operator's kernels and collectives to nanoseconds may take away."""
SHARES = (0.0, 0.5, 1.0)
"""The share a of the first forward and last backward that counts as kernels; the rest counts as synchronisation."""
PRICES = (0.0, 0.3, 3.0)
"""Prices of filling a device with states, relative to the step at no price."""


def bound_profile_step_s(profile: Profile, sizes: Sequence[int]) -> float:
    """A lower bound in seconds of all plans with a profile's microbatches; ``sizes`` are devices per stage.

    Infinite if no mesh has a legal sharding.
    """
    bounds: dict[int, Floats] = {}
    for size in sizes:
        graphs = [graph for mesh in logical_meshes(size, profile.cluster) if (graph := profile.graph(mesh))]
        if graphs:
            bounds[size] = np.min([_on_mesh(profile, graph) for graph in graphs], axis=0)
    if not bounds:
        return np.inf
    steps, forwards = np.stack([*bounds.values()], axis=1)
    steps = np.where(np.tril(np.ones(steps.shape[1:], dtype=bool)), np.inf, steps)
    devices = profile.cluster.world_size
    unit = -(-devices // MOST_UNITS)  # sizes are rounded down to units, which keeps the bound low
    return bound_step_s(steps, forwards, np.array(list(bounds)) // unit, devices // unit)


def bound_step_s(steps_s: Floats, forwards_s: Floats, sizes: Ints, devices: int) -> float:
    """The least, over all cuts, of the longest stage: its own step and the forwards of the stages before it.

    ``steps_s`` and ``forwards_s`` float64[sizes, K + 1, K + 1] are seconds of ranges of blocks on so many devices, of
    ``devices`` in all; steps are infinite for empty ranges. The result is within TOLERANCE from below, and infinite if
    no cut is possible.
    """
    low = float(steps_s.min(axis=(0, 2)).min())
    high = float(steps_s[np.isfinite(steps_s)].max(initial=0.0) + forwards_s[:, 0, -1].max())
    if not _is_possible(high, steps_s, forwards_s, sizes, devices):
        return np.inf
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        if _is_possible(middle, steps_s, forwards_s, sizes, devices):
            high = middle
        else:
            low = middle
    return low


def _is_possible(limit_s: float, steps_s: Floats, forwards_s: Floats, sizes: Ints, devices: int) -> bool:
    """Whether some cut keeps all stages within a limit: finds the least forwards before every block by devices."""
    blocks = steps_s.shape[1] - 1
    before = np.full((blocks + 1, devices + 1), np.inf)
    before[0, 0] = 0.0
    for end in range(1, blocks + 1):
        for number, size in enumerate(sizes.tolist()):
            begins = np.flatnonzero(steps_s[number, :end, end] <= limit_s)
            earlier = before[begins, : devices + 1 - size]
            fits = earlier + steps_s[number, begins, end][:, None] <= limit_s
            total = np.where(fits, earlier + forwards_s[number, begins, end][:, None], np.inf)
            np.minimum(before[end, size:], total.min(axis=0, initial=np.inf), out=before[end, size:])
    return bool(np.isfinite(before[blocks]).any())


def _on_mesh(profile: Profile, graph: ChoiceGraph) -> tuple[Floats, Floats]:
    """Least seconds of a step, and of one forward, of every range of blocks as one stage: float64[K + 1, K + 1] each.

    The maximum over all shares and prices, for one mesh.
    """
    job, chain, steps = profile.job, profile.chain, profile.num_microbatches
    if job.layout.tp_overlap:  # decomposed collectives run beside kernels
        free = [replace(each, pass_s=np.where(np.isinf(each.pass_s), np.inf, 0.0)) for each in graph.tensors]
        graph = replace(graph, tensors=free)
    weights = np.zeros((len(SHARES) * len(PRICES), len(Metric)))
    share, price = np.array(list(product(SHARES, PRICES))).T
    weights[:, Metric.PASS], weights[:, Metric.SYNC] = steps - 1 + share, 1 - share
    weights[:, Metric.UPDATE] = 1.0
    ((whole_s, _),) = eliminate(graph, weights[-1:])
    if not np.isfinite(whole_s):
        nowhere = np.full((len(chain.blocks) + 1, len(chain.blocks) + 1), np.inf)
        return nowhere, nowhere
    weights[:, Metric.STATIC] = price * whole_s / profile.limit_bytes
    forward = np.zeros((1, len(Metric)))
    forward[0, Metric.FORWARD] = 1.0
    each = np.zeros((len(weights) + 1, len(chain.kinds)))
    for number, (name, block) in enumerate(chain.kinds.items()):
        own = np.concatenate([weights, forward])
        if job.graph.tied_embeddings and name == job.graph.head.name:
            own[:, [Metric.SYNC, Metric.UPDATE, Metric.STATIC]] = 0.0  # may be tied to the embedding
        least = [value for value, _ in eliminate(graph, own, {name: 1})]
        each[:, number] = np.array(least) - steps * ROUNDED_S * len(block.operators)
    sums = sum_between(each[:, chain.kind_of_block])
    own_s = sums[:-1] - (price * whole_s)[:, None, None]
    return own_s.max(axis=0), np.maximum(sums[-1], 0.0)
