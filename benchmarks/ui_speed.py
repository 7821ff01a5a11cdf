"""How long the local page waits for a change: processor seconds of numbers and legal values, in a warm process.

Run: ``python benchmarks/ui_speed.py`` in the checkout, with the page's packages installed (``pip install ".[ui]"``).
Each change is made twice and the second is counted: the first makes tables of schedules that are kept.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

from simpar.engine import start_compiled
from simpar.scenario import load_scenario
from simpar.ui.answers import legal, numbers
from simpar.ui.state import Allowed, apply_change, as_state, ask, read_state

SCENARIO = "llama-3.1-405b-16384-h100"
CHANGES: tuple[dict[str, object], ...] = (
    {}, {"pp": 8}, {"pp": 32, "vpp": 4}, {"tp": 4, "schedule": "1f1b", "vpp": 1}, {"vpp": 4},
    {"schedule": "zb-h1", "vpp": 1},
    {"schedule": "zb-v", "vpp": 2}, {"zero": 0}, {"zero": 3}, {"recompute": "full"}, {"recompute": "selective"},
    {"precision": "fp8"}, {"recompute": "optimal"}, {"tp": 16}, {"cp": 2},
)  # fmt: skip


def main() -> None:
    """Print a line a change, and the median."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    start_compiled()
    state = as_state(load_scenario(SCENARIO))
    print(f"{'change':40s} numbers s  legal values s")
    found = []
    for change in CHANGES:
        for _ in range(2):
            begun = time.process_time()
            asked = ask(apply_change(read_state(state, Allowed()), change))
            numbers(asked)
            done = time.process_time()
            legal(asked)
            spent = done - begun, time.process_time() - done
        words = " ".join(f"{key} {value}" for key, value in change.items()) or "as it is"
        print(f"{words:40s} {spent[0]:9.3f}  {spent[1]:14.3f}")
        found.append(spent[0])
    print(f"median {median(found):.3f} s, longest {max(found):.3f} s")


if __name__ == "__main__":
    main()
