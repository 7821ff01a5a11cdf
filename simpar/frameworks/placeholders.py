"""Placeholder values that files of frameworks need and plans do not have; users replace them by their own."""

from simpar.plan.optimizers import in_torch

LEARNING_RATE = 3e-4
BETAS = (0.9, 0.95)
EPS = 1e-8
WEIGHT_DECAY = 0.1
CLIPPED_NORM = 1.0
STEPS = 100
LORA_ALPHA = 2
"""Alpha of adapters, in ranks."""


def momentum(optimizer: str) -> float | None:
    """The momentum of SGD, 0 without; None for Adam, which has betas."""
    chosen = in_torch(optimizer)
    if chosen.name != "SGD":
        return None
    return 0.9 if "momentum" in chosen.options else 0.0
