"""Jitter: every op of a rank a little slower or faster, the same under the same seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simpar.program.emit import Slots
from simpar.program.layout import Layout


def with_jitter(slots: Slots, layout: Layout, sigma: float, seed: int) -> Slots:
    """Independent lognormal factors on fixed durations, from a counter-based generator keyed by (seed, rank)."""
    if sigma <= 0:
        return slots
    fixed = slots.fixed_ns.copy()
    for class_id, rank in enumerate(layout.representative_rank):
        mine = np.flatnonzero(slots.class_id == class_id)
        draws = np.random.Generator(np.random.Philox(key=[seed, int(rank)])).standard_normal(len(mine))
        factor = np.exp(sigma * draws - sigma**2 / 2)
        fixed[mine] = np.rint(fixed[mine] * factor).astype(np.int64)
    return replace(slots, fixed_ns=fixed)
