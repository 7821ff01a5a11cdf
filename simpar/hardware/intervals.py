"""How sure the constants of shipped profiles are: intervals from the fits, with nine in ten of plausible values."""

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("intervals.json")


@cache
def _known() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return result


def interval_of(kind: str, profile: str, name: str) -> tuple[float, float] | None:
    """(low, high) of a constant in the profile's unit, or None where it is stated and not fitted.

    ``kind`` is "clusters", "devices" or "stacks", ``profile`` a shipped name, ``name`` dotted: "collectives.base_us".
    """
    ends = _known().get(kind, {}).get(profile, {}).get(name)
    return (float(ends[0]), float(ends[1])) if ends else None
