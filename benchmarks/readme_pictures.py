"""Draw the pictures that README.md shows, from shipped scenarios.

Run: ``python benchmarks/readme_pictures.py`` in the checkout.
"""

from __future__ import annotations

from pathlib import Path

from simpar.report.plots import save_plot
from simpar.scenario import load_scenario
from simpar.simulation import simulate

SCENARIO = "gpt3-175b-64-a100"
FEWER_MICROBATCHES = "training.global_batch=8"  # so that each pass is wide enough to see


def main() -> None:
    """Write one PNG per picture to docs/images."""
    folder = Path(__file__).parent.parent / "docs" / "images"
    folder.mkdir(exist_ok=True)
    result = simulate(**load_scenario(SCENARIO, settings=[FEWER_MICROBATCHES]).inputs())
    for kind in ("timeline", "memory", "breakdown"):
        save_plot(result, kind, folder / f"{kind}.png")
        print(f"docs/images/{kind}.png")


if __name__ == "__main__":
    main()
