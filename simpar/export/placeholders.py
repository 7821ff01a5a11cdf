"""Values of a training that no plan says and files of frameworks need: to be replaced by one's own."""

from __future__ import annotations

from simpar.plan.optimizers import in_torch

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1
CLIPPED_NORM = 1.0
STEPS = 100


def momentum(optimizer: str) -> float | None:
    """What SGD keeps of its last update, 0 without; None of Adam, which has betas."""
    chosen = in_torch(optimizer)
    if chosen.name != "SGD":
        return None
    return 0.9 if "momentum" in chosen.options else 0.0
