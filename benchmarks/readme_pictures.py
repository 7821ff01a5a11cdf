"""Draw the pictures that README.md shows, from shipped scenarios.

Run: ``python benchmarks/readme_pictures.py`` in the checkout.
"""

from __future__ import annotations

from pathlib import Path

from simpar.report.plots import save_plot
from simpar.scenario import load_scenario
from simpar.simulate import simulate

PICTURES = (
    ("gpt3-175b-64-a100", "timeline"),
    ("gpt3-175b-64-a100", "memory"),
    ("gpt3-175b-64-a100", "breakdown"),
)


def main() -> None:
    """Write one PNG per picture to docs/images."""
    folder = Path(__file__).parent.parent / "docs" / "images"
    folder.mkdir(exist_ok=True)
    for scenario, kind in PICTURES:
        target = folder / f"{kind}.png"
        save_plot(simulate(**load_scenario(scenario).inputs()), kind, target)
        print(f"{target.name}: {kind} of {scenario}")


if __name__ == "__main__":
    main()
