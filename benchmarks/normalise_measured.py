"""Write the published tables with explicit columns, as simpar validate and simpar learn read them.

Usage: python benchmarks/normalise_measured.py [TABLE.csv ...] [--to FOLDER]

Published tables say much in words: sources, notes, names of software. What these mean is written into columns here
(benchmarks/normalise/), so that no label changes what simpar predicts. Labels are kept. A table is written under its
own name.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from normalise.tables import read_published
from tables import DATA

TABLES = (
    "measured_runs_dev.csv", "measured_playbook_dev.csv", "measured_mlperf_dev.csv", "measured_ordinary_dev.csv",
    "kernels.csv", "collectives.csv",
)  # fmt: skip


def main() -> None:
    """Write every table that is asked for, or all of them."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("tables", nargs="*", type=Path, default=[DATA / name for name in TABLES])
    parser.add_argument("--to", type=Path, default=Path("normalised"), help="folder of the written tables")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    for path in arguments.tables:
        rows = read_published(path)
        with (arguments.to / path.name).open("w", newline="", encoding="utf-8") as stream:
            names = dict.fromkeys(name for row in rows for name, value in row.items() if name and value)
            writer = csv.DictWriter(stream, list(names), extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        left_out = sum(bool(row.get("not_modelled")) for row in rows)
        print(f"{arguments.to / path.name}: {len(rows)} rows, {left_out} that cannot be modelled")


if __name__ == "__main__":
    main()
