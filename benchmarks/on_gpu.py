"""Everything about CUDA that a machine with GPUs can tell, as one table with where it comes from.

Usage: python benchmarks/on_gpu.py [--folder DIR] [--only PART ...] [--measure] [--dry]

Parts: ``numbers`` (kernels against plain products, shared heads, experts in one kernel, initial weights), ``steps``
(layouts of as many ranks as there are devices, with simpar run), ``sizes`` (models of many sizes on one device, each
with a trace), ``behaviour`` (resuming, running out of memory, snapshots, 8 bits) and ``kernels`` (this machine
calibrated: errors of the fits). Time and memory peaks are set beside what the shipped profile of the device and the
calibrated one predict. The folder gets ``table.md``, ``table.json`` and all that was measured; what is there is not
measured again, and a folder that was filled elsewhere is predicted without a GPU. ``--measure`` leaves the predictions
for then. Exit code 1 where a number is wrong or a run fails, 2 without a GPU and without such a folder. ``--dry`` goes
the same way on processors with tiny sizes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent))
from gpu_checks import behaviour, kernels, numbers, shapes, sizes, steps
from gpu_checks.here import PROVENANCE, Here, table, write_json

PARTS: Mapping[str, ModuleType] = {
    "numbers": numbers, "steps": steps, "sizes": sizes, "behaviour": behaviour, "kernels": kernels, "shapes": shapes,
}  # fmt: skip


def main() -> int:
    """Measure the parts that are asked for and write the table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--folder", type=Path, default=Path("on-gpu"))
    arguments.add_argument("--only", choices=list(PARTS), nargs="+", default=list(PARTS), help="some parts")
    arguments.add_argument("--measure", action="store_true", help="predict nothing, write no table")
    arguments.add_argument("--dry", action="store_true", help="on processors, tiny: no numbers to rely on")
    given = arguments.parse_args()
    from simpar.runtime.request import accelerators

    devices = 1 if given.dry else accelerators()
    if not devices and not (given.folder / PROVENANCE).exists():
        print("no GPU: torch finds no device; --dry goes through it on processors", file=sys.stderr)
        return 2
    given.folder.mkdir(parents=True, exist_ok=True)
    here = Here(given.folder.resolve(), devices, dry=given.dry)
    print(", ".join(here.provenance.values()), flush=True)
    for name in given.only if devices else ():
        print(f"measuring {name}", file=sys.stderr, flush=True)
        PARTS[name].measure(here)
    if given.measure:
        return 0
    rows = [row for name in given.only for row in PARTS[name].rows(here)]
    text = table(rows, here.provenance)
    (here.folder / "table.md").write_text(text)
    write_json(here.folder / "table.json", {"provenance": here.provenance, "rows": [asdict(row) for row in rows]})
    print(text)
    return 0 if all(row.sound for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
