"""The checklist of CUDA, as far as it goes without a GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest

from simpar.hardware.catalogue import load_cluster
from simpar.runtime import request
from simpar.runtime.request import load_request, make_ready

SCRIPT = Path(__file__).parent.parent / "benchmarks/on_gpu.py"


@pytest.fixture(scope="module")
def script():
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("on_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_gpu"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["on_gpu"]


def test_without_a_gpu_it_says_so(script, tmp_path, monkeypatch, capsys):
    """One line, exit code 2, nothing written."""
    monkeypatch.setattr(request, "accelerators", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", "--folder", str(tmp_path / "out")])
    assert script.main() == 2
    said = capsys.readouterr()
    assert said.err.startswith("no GPU: ")
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_checks_every_kernel(script, tmp_path, monkeypatch, capsys):
    """On processors, tiny: all numbers sound, a table with where they come from."""
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", "--folder", str(tmp_path), "--dry", "--only", "numbers"])
    assert script.main() == 0
    text = (tmp_path / "table.md").read_text()
    assert text in capsys.readouterr().out
    assert "rehearsal on processors" in text
    assert text.count("| yes |") == 8
    assert "**no**" not in text


def test_a_wrong_number_is_an_error(script):
    """What rounding does not explain is marked."""
    torch = pytest.importorskip("torch")
    here = script.Here(Path(), 1, dry=True)
    assert script._close("x", [(torch.ones(3), torch.ones(3))], here).sound
    row = script._close("x", [(torch.ones(3), torch.tensor([1.0, 1.0, 1.1]))], here)
    assert not row.sound
    assert "| **no** |" in script.table([row], {})


@pytest.mark.parametrize("devices", [1, 8])
def test_every_layout_is_one_that_runs(script, tmp_path, devices):
    """Plans of the checklist pass every check that comes before torch starts."""
    here = script.Here(tmp_path, devices, dry=False)
    for layout in script.layouts(devices):
        path = tmp_path / "scenario.json"
        path.write_text(script.json.dumps(script._scenario(layout, here)))
        machine = {"compile": "--compile" in layout.flags}
        options = {"steps": 2, "folder": str(tmp_path), "machine": machine}
        ready = make_ready(load_request(str(path), {}, []), layout.ranks, 1, options)
        assert ready.world_size == layout.ranks, layout.name


def test_shipped_profiles_are_taken_with_the_devices_there(script, tmp_path):
    """Every profile that a device's name leads to is one that ships, and loads with fewer devices."""
    for name in sorted(set(script.PROFILES.values())):
        found = load_cluster(str(script.resized(name, 1, tmp_path)))
        assert found.world_size == 1
        assert found.profile.device == load_cluster(name).profile.device
