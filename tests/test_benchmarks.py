"""Scripts in benchmarks/ as commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_is_all_that_it_does(script, tmp_path):
    """``--help`` prints the usage and writes nothing, neither where it runs nor to the documents."""
    before = {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*")}
    done = subprocess.run(
        [sys.executable, str(script), "--help"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script.name}")
    assert not any(tmp_path.iterdir())
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*")} == before
