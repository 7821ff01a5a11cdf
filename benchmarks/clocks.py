"""What sustained clocks of devices have in common (clocks.json): fit_runs.py finds it, fit_devices.py starts there."""

import json
from collections.abc import Mapping
from math import exp
from pathlib import Path

EFFECTS = ("sustained_clock", "sustained_clock power", "unthrottled")
KEPT = Path(__file__).parent / "clocks.json"


def general_clock() -> tuple[float, float, float]:
    """(Clock at ``pooled.POWER``, its exponent of W a TFLOP/s over that, how much higher it is where none throttle)."""
    known = json.loads(KEPT.read_text())
    usual, exponent, unthrottled = (float(known[effect]) for effect in EFFECTS)
    return usual, exponent, unthrottled


def write_general_clock(effects: Mapping[str, float]) -> None:
    """Keep what a fit found; ``effects`` are logarithms by name, of an exponent the factor of a logarithm."""
    usual, exponent, unthrottled = (effects[effect] for effect in EFFECTS)
    found = dict(zip(EFFECTS, (exp(usual), exponent, exp(unthrottled)), strict=True))
    KEPT.write_text(json.dumps({effect: float(f"{value:.4g}") for effect, value in found.items()}, indent=1) + "\n")
