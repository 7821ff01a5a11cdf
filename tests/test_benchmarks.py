"""Scripts in benchmarks/ as commands."""

import runpy
import sys
from pathlib import Path

import pytest

from simpar.hardware.device import load_device

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_help_is_all_that_it_does(script, tmp_path, monkeypatch, capsys):
    """``--help`` prints the usage and writes nothing, neither where it runs nor to the documents."""
    before = {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*")}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {script.name}")
    assert not any(tmp_path.iterdir())
    assert {path: path.stat().st_mtime_ns for path in (ROOT / "docs").rglob("*")} == before


def test_clocks_of_one_die_are_to_each_other_as_their_maker_measured(monkeypatch):
    """MI300X has MI325X's, which runs tell, times the ratio in long products; others have none."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    like_measured = runpy.run_path(str(ROOT / "benchmarks" / "pooled.py"))["like_measured"]
    keys = ("sustained_clock", "sustained_clock_fp8")
    own, other = (load_device(name).kernels for name in ("mi300x", "mi325x"))
    known = {("device", "mi325x", key): other[key] for key in keys}
    sibling, clocks = like_measured("mi300x", known)
    assert sibling == "mi325x"
    assert clocks["sustained_clock"] == pytest.approx(other["sustained_clock"] * 1207 / 1447)
    assert {key: float(f"{clocks[key]:.4g}") for key in keys} == {key: own[key] for key in keys}
    assert like_measured("h100-pcie", known) is None
    assert like_measured("mi300x", {}) is None
