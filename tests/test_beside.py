"""The other project that is called simpar: refused where both share a folder."""

import subprocess
import sys
from pathlib import Path

import pytest

import simpar
from simpar import beside
from simpar.__main__ import main

ROOT = Path(simpar.__file__).parents[1]


@pytest.fixture
def mixed(tmp_path):
    """A folder of packages with the metadata of both."""
    for name in ("simpar-0.1.0.dist-info", "simpar_planner-0.2.0.dist-info", "simparser-1.0.dist-info"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_both_in_one_folder_are_noticed(mixed):
    """By the metadata of the other alone; its version and what to do are said in one line."""
    said = beside.mixture(str(mixed))
    assert said.startswith(f"{mixed}: simpar 0.1.0, another project, ")
    assert "\n" not in said
    (mixed / "simpar-0.1.0.dist-info").rmdir()
    assert beside.mixture.__wrapped__(str(mixed)) == ""
    assert beside.mixture(str(mixed / "nowhere")) == ""


def test_commands_and_python_refuse(mixed, monkeypatch, capsys):
    """With exit code 2, and an ImportError."""
    said = beside.mixture(str(mixed))
    monkeypatch.setattr("simpar.__main__.mixture", lambda: said)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err == f"{said}\n"
    monkeypatch.setattr("simpar.beside.mixture", lambda: said)
    with pytest.raises(ImportError, match="another project"):
        _ = simpar.Plan


@pytest.mark.slow
def test_an_installation_with_both_refuses(mixed):
    """As it is started."""
    (mixed / "simpar").symlink_to(ROOT / "simpar")
    command = [sys.executable, "-m", "simpar", "--version"]
    done = subprocess.run(
        command, cwd=mixed, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(mixed)}
    )
    assert done.returncode == 2
    assert "another project" in done.stderr
