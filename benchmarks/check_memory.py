"""Memory formulas against published measurements: static state, reserved peak, fits or not.

    python benchmarks/check_memory.py TABLE.csv...

Every row is simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from normalise.tables import read_published

from simpar.errors import UserError
from simpar.validation.cells import Row, Unmodelled, text
from simpar.validation.predict import predict
from simpar.validation.rows import case, read_measurements


@dataclass(frozen=True)
class Check:
    """One row: predicted over measured (None where not published), and both answers to "does it fit?"."""

    source: str
    static: float | None
    allocated: float | None
    reserved: float | None
    fits: bool
    measured_fits: bool


def check(row: Row) -> Check:
    """Predict one row. Raises Unmodelled or UserError."""
    found, actual = predict(case(row)), read_measurements(row)

    def ratio(value: float, known: float | None) -> float | None:
        return value / known if known else None

    return Check(
        source=text(row, "source"),
        static=ratio(found.static_memory_bytes, actual.static_memory_bytes),
        allocated=ratio(found.peak_allocated_bytes, actual.peak_memory_bytes),
        reserved=ratio(found.peak_reserved_bytes, actual.peak_memory_bytes),
        fits=found.fits,
        measured_fits=actual.fits,
    )


def checks(rows: Iterable[Row]) -> list[Check]:
    """All rows that say something about memory and can be modelled."""
    found = []
    for row in rows:
        if not text(row, "peak_mem_gib") and text(row, "status").lower() != "oom":
            continue
        try:
            found.append(check(row))
        except (Unmodelled, UserError):
            continue
    return found


def _errors(ratios: Iterable[float | None]) -> str:
    known = sorted(abs(ratio - 1) for ratio in ratios if ratio is not None)
    if not known:
        return "        -        "
    return f"{median(known):6.1%} {known[int(0.9 * len(known))]:6.1%}   "


def main() -> None:
    """Print a line a source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "tables", nargs="+", metavar="TABLE.csv", help="published tables, or columns as docs/measured.md has them"
    )
    paths = parser.parse_args().tables
    found = [one for path in paths for one in checks(read_published(path))]
    print(f"{'source':36s} rows  static: median p90  reserved: med p90  allocated: med p90  fits right")
    for source in sorted({one.source for one in found}):
        mine = [one for one in found if one.source == source]
        right = sum(one.fits == one.measured_fits for one in mine) / len(mine)
        columns = (_errors(getattr(one, name) for one in mine) for name in ("static", "reserved", "allocated"))
        print(f"{source[:36]:36s} {len(mine):4d}  {'   '.join(columns)}  {right:6.1%}")


if __name__ == "__main__":
    main()
