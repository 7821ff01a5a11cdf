"""What sustained clocks of devices have in common (clocks.json): fit_runs.py finds it, fit_devices.py starts there."""

import json
from collections.abc import Mapping
from math import exp, log
from pathlib import Path

EFFECTS = ("sustained_clock", "sustained_clock power", "unthrottled")
EXPONENTS = ("sustained_clock power",)
KEPT = Path(__file__).parent / "clocks.json"


def general_clock() -> dict[str, float]:
    """Effects as a fit adds them up: logarithms of the clock at ``pooled.POWER`` and of a factor, and an exponent."""
    known = json.loads(KEPT.read_text())
    return {effect: known[effect] if effect in EXPONENTS else log(known[effect]) for effect in EFFECTS}


def write_general_clock(effects: Mapping[str, float]) -> None:
    """Keep what a fit found; ``effects`` are as general_clock gives them, among others."""
    found = {effect: effects[effect] if effect in EXPONENTS else exp(effects[effect]) for effect in EFFECTS}
    KEPT.write_text(json.dumps({effect: float(f"{value:.4g}") for effect, value in found.items()}, indent=1) + "\n")
