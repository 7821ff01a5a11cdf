"""Builds the sdist and, from it, the wheel; installs the wheel into empty environments; checks that it works there.

    python benchmarks/check_release.py                   # the oldest and the newest dependencies that are allowed
    python benchmarks/check_release.py --only oldest --keep out

Needs the packages ``build`` and ``uv``. *oldest* has the lower bound of every dependency in pyproject.toml, *newest*
what the index gives today, on the Python that runs this script. In each, from an empty folder: version, lists, a
simulation, a picture, a page, a search, an export, the examples of the documented functions. The figures of all
environments are compared: they must be equal to the last digit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
COMMANDS = (
    ("--version",),
    ("list", "models"),
    ("list", "hardware"),
    ("schema", "plan"),
    ("doctor",),
    ("simulate", "gpt2-laptop", "--json", "result.json", "--trace", "trace.json"),
    ("simulate", "llama-3-8b-8-h100", "--json", "larger.json"),
    ("plot", "result.json", "--kind", "memory", "-o", "memory.png"),
    ("report", "result.json", "-o", "report.html"),
    ("search", "llama-3-8b-8-h100", "--top", "3", "--json", "search.json", "-o", "plan.json"),
    ("export", "plan.json", "--to", "torchtitan", "-o", "exported"),
    ("compare", "result.json", "larger.json"),
)
IN_PYTHON = """
import doctest, importlib, simpar
failed = tried = 0
for name, home, _ in simpar._CONTENTS:
    module = importlib.import_module("simpar." + home.partition(":")[0])
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    failed, tried = failed + found.failed, tried + found.attempted
print(tried, "examples")
assert not failed
"""


def main() -> int:
    """Build, install, run, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RESOLUTIONS, help="one environment")
    parser.add_argument("--keep", metavar="FOLDER", help="where sdist and wheel are left")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        wheel = built(Path(asked.keep).resolve() if asked.keep else work / "dist")
        names = [asked.only] if asked.only else list(RESOLUTIONS)
        figures = {name: checked(wheel, name, work / name) for name in names}
    first = next(iter(figures.values()))
    unequal = [name for name, found in figures.items() if found != first]
    print("the same figures everywhere" if not unequal else f"other figures: {figures}")
    return 1 if unequal else 0


def built(folder: Path) -> Path:
    """The wheel that is made of the sdist that is made of the checkout."""
    run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], ROOT)
    (wheel,) = folder.glob("*.whl")
    print(f"built {wheel.name} and {next(folder.glob('*.tar.gz')).name}")
    return wheel


def checked(wheel: Path, name: str, folder: Path) -> dict[str, Any]:
    """Figures of a wheel in an environment of its own, whose folder holds nothing else."""
    venv, empty = folder / "venv", folder / "empty"
    empty.mkdir(parents=True)
    uv = [sys.executable, "-m", "uv"]
    run([*uv, "venv", "-q", "--python", sys.executable, str(venv)], empty)
    python = venv / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    install = [*uv, "pip", "install", "-q", "--python", str(python)]
    run([*install, "--resolution", RESOLUTIONS[name], "-r", str(ROOT / "pyproject.toml")], empty)
    run([*install, "--no-deps", str(wheel)], empty)
    run([*uv, "pip", "check", "-q", "--python", str(python)], empty)
    print(f"\n{name}:\n{run([*uv, 'pip', 'freeze', '--python', str(python)], empty)}")
    for arguments in COMMANDS:
        run([str(python), "-W", "error::DeprecationWarning:simpar", "-m", "simpar", *arguments], empty)
        print("ok: simpar", *arguments)
    print(run([str(python), "-c", IN_PYTHON], empty).strip())
    result, larger, search = (
        json.loads((empty / f"{each}.json").read_text()) for each in ("result", "larger", "search")
    )
    return {
        "step_time_s": [result["step_time_s"], larger["step_time_s"]],
        "peak_reserved_bytes": [result["peak_reserved_bytes"], larger["peak_reserved_bytes"]],
        "best": search["candidates"][0]["plan"],
        "simulated": search["simulated"],
    }


def run(command: Sequence[str], folder: Path) -> str:
    """Standard output of a command. Raises SystemExit with what it said where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
