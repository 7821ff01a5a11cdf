"""The wheel carries everything: code, profiles and scenarios, found by name from any folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An unpacked wheel of this checkout, and nothing else of it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, folder: Path, *arguments: str) -> str:
    """Standard output of simpar, started in an empty folder with only the wheel on the path."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "simpar", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_simulates_from_an_empty_folder(installed, tmp_path):
    """Scenarios, profiles and the model catalogue are inside."""
    assert "gpt2-laptop" in run(installed, tmp_path, "list", "scenarios")
    assert "dgx-h100" in run(installed, tmp_path, "list", "hardware")
    assert "Limiting factors" in run(installed, tmp_path, "simulate", "gpt2-laptop")


def test_the_wheel_is_typed_and_holds_no_tests(installed):
    """py.typed and the local page are there; tests and notes are not."""
    assert (installed / "simpar" / "py.typed").exists()
    assert (installed / "simpar" / "ui" / "static" / "index.html").exists()
    tops = {path.name for path in installed.iterdir()}
    assert {name for name in tops if not name.endswith(".dist-info")} == {"simpar"}
