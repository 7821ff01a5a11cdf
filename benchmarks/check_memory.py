"""Memory formulas against published measurements: static state, reserved peak, fits or not.

    python benchmarks/check_memory.py TABLE.csv...

Every row is simulated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from simpar import files
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.program.footprint import footprints
from simpar.simulation import lower_job, make_job
from simpar.validate.cells import Row, Unmodelled, text
from simpar.validate.predict import changed_stack, cluster_of
from simpar.validate.rows import Case, case, measured
from simpar.validate.table import read_table


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
    found, actual = case(row), measured(row)
    static, allocated, reserved, fits = predicted(found)

    def ratio(value: float, known: float | None) -> float | None:
        return value / known if known else None

    return Check(
        source=text(row, "source"),
        static=ratio(static, actual.static_memory_bytes),
        allocated=ratio(allocated, actual.peak_memory_bytes),
        reserved=ratio(reserved, actual.peak_memory_bytes),
        fits=fits,
        measured_fits=actual.fits,
    )


def predicted(found: Case) -> tuple[float, float, float, bool]:
    """(static, allocated, reserved) bytes of the fullest ranks, and whether the layout fits."""
    cluster = cluster_of(found)
    stack = changed_stack(found.stack, found.stack_changes)
    plan = files.parse(Plan, dict(found.plan), source="row")
    job = make_job(found.graph, cluster, plan, found.training, stack)
    lowered = lower_job(job, cluster, {})
    timing = choose_engine("auto", lowered.program)[1](lowered.program)
    held = footprints(lowered, timing, cluster)
    return (
        max(float(one.static.total_bytes) for one in held),
        max(one.allocated_bytes for one in held),
        max(one.reserved_bytes for one in held),
        all(one.fits_in(1.0) for one in held),
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
    parser.add_argument("tables", nargs="+", metavar="TABLE.csv", help="columns as docs/measured.md has them")
    paths = parser.parse_args().tables
    found = [one for path in paths for one in checks(read_table(path))]
    print(f"{'source':36s} rows  static: median p90  reserved: med p90  allocated: med p90  fits right")
    for source in sorted({one.source for one in found}):
        mine = [one for one in found if one.source == source]
        right = sum(one.fits == one.measured_fits for one in mine) / len(mine)
        columns = (
            _errors(getattr(one, name) for one in mine) for name in ("static", "reserved", "allocated")
        )
        print(f"{source[:36]:36s} {len(mine):4d}  {'   '.join(columns)}  {right:6.1%}")


if __name__ == "__main__":
    main()
