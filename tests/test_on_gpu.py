"""The checklist of CUDA, as far as it goes without a GPU."""

import gzip
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from statistics import median

import pytest

from simpar.hardware.catalogue import load_cluster
from simpar.hardware.device import load_device
from simpar.runtime import request
from simpar.runtime.request import load_request, make_ready
from simpar.stacks.stack import load_stack

SCRIPT = Path(__file__).parent.parent / "benchmarks/on_gpu.py"


def loaded(path):
    """A benchmark as a module, until it is no longer needed."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    before = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] in (path.stem, "gpu_checks")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def script():
    """The checklist, its parts beside it."""
    yield from loaded(SCRIPT)


@pytest.fixture(scope="module")
def fit_runtime():
    """What fits the runtime's stack to what a GPU measured."""
    yield from loaded(SCRIPT.with_name("fit_runtime.py"))


def known(provenance, folder, **found):
    """A folder filled on a machine with GPUs."""
    said = {"devices": "1 x NVIDIA H200", "device": "NVIDIA H200", "count": "1", "torch": "2.11", **provenance}
    (folder / "provenance.json").write_text(json.dumps(said))
    for name, value in found.items():
        (folder / f"{name}.json").write_text(json.dumps(value))


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
    assert script.numbers._close("x", [(torch.ones(3), torch.ones(3))], here).sound
    row = script.numbers._close("x", [(torch.ones(3), torch.tensor([1.0, 1.0, 1.1]))], here)
    assert not row.sound
    assert "| **no** |" in script.table([row], {})


@pytest.mark.parametrize("devices", [1, 8])
def test_every_layout_is_one_that_runs(script, tmp_path, devices):
    """Plans of the checklist pass every check that comes before torch starts."""
    here = script.Here(tmp_path, devices, dry=False)
    for layout in script.steps.layouts(devices):
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(script.steps.scenario(layout, here.size)))
        machine = {"compile": "--compile" in layout.flags}
        options = {"steps": 2, "folder": str(tmp_path), "machine": machine}
        ready = make_ready(load_request(str(path), {}, []), layout.ranks, 1, options)
        assert ready.world_size == layout.ranks, layout.name


def test_shipped_profiles_are_taken_with_the_devices_there(script, tmp_path):
    """Every profile that a device's name leads to is one that ships, and loads with fewer devices."""
    from gpu_checks.here import PROFILES, resized

    for name in sorted(set(PROFILES.values())):
        found = load_cluster(str(resized(name, 1, tmp_path)))
        assert found.world_size == 1
        assert found.profile.device == load_cluster(name).profile.device


def test_every_size_is_one_that_runs(script, tmp_path):
    """Models of the sizes pass every check that comes before torch starts."""
    for name, scenario in script.sizes.scenarios(script.Here(tmp_path, 1, dry=False)).items():
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(scenario))
        ready = make_ready(load_request(str(path), {}, []), 1, 1, {"steps": 2, "folder": str(tmp_path)})
        assert ready.world_size == 1, name


def test_what_was_measured_elsewhere_is_predicted_here(script, tmp_path, monkeypatch, capsys):
    """A folder from a machine with a GPU needs none: time and peak stand beside what the device's profile says."""
    scenario = next(iter(script.sizes.scenarios(script.Here(tmp_path, 1, dry=True)).values()))
    found = {"scenario": scenario, "step_time_s": 1.0, "peak_memory_bytes": 2.0**30}
    failed = {"scenario": scenario, "failed": "CUDA out of memory"}
    known({}, tmp_path, sizes={"tiny": found, "too large": failed})
    monkeypatch.setattr(request, "accelerators", lambda: 0)
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", "--folder", str(tmp_path), "--only", "sizes"])
    assert script.main() == 1, "a size that failed is not sound"
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    by_name = {row["what"]: row for row in rows}
    assert by_name["tiny, shipped: step time"]["measured"] == 1.0
    assert 0 < by_name["tiny, shipped: step time"]["against"] < 0.1
    assert by_name["tiny, shipped: peak"]["unit"] == "bytes"
    assert not by_name["too large"]["sound"]
    assert "CUDA out of memory" in capsys.readouterr().out


MEASURED = SCRIPT.parent / "measured" / "h200"
HOST_BOUND = ("small, short", "middle, eight microbatches")  # kernels wait for a host, each machine's is another


def test_steps_on_an_h200_were_predicted(script, tmp_path):
    """By the shipped profile: times that no fit saw within 7 %, half of them 3.5 %; peaks within 5 %, half 0.2 %."""
    folder = tmp_path / "h200"
    shutil.copytree(MEASURED, folder)
    rows = {row.what: row for row in script.sizes.rows(script.Here(folder, 0, dry=False))}
    names = list(json.loads((folder / "sizes.json").read_text()))
    assert len(names) == 16
    times = {name: abs(rows[f"{name}, shipped: step time"].error) for name in names}
    peaks = [abs(rows[f"{name}, shipped: peak"].error) for name in names]
    assert median(times.values()) < 0.035
    assert max(error for name, error in times.items() if name not in HOST_BOUND) < 0.07
    assert median(peaks) < 0.002
    assert max(peaks) < 0.05


@pytest.mark.slow
def test_the_runtimes_profile_is_what_the_fit_says(fit_runtime):
    """Numbers of the shipped stack are those that the committed script finds in the committed samples."""
    device = load_device("h200-sxm")
    samples = fit_runtime.read_samples(MEASURED / "calibration.json")
    earlier = fit_runtime.read_samples(MEASURED / "calibration-earlier.json")
    casts = fit_runtime.read_casts(MEASURED.with_name("h200-again"))
    found = fit_runtime.as_profile(fit_runtime.fitted(samples, [earlier], device, casts))
    shipped = fit_runtime.as_profile(load_stack("simpar"))
    for part in ("launch", "experts", "numerics"):
        assert {name: str(value) for name, value in found[part].items()} == {
            name: str(value) for name, value in shipped[part].items()
        }, part
    for kind, both in found["passes"].items():
        assert shipped["passes"][kind] == pytest.approx(both, rel=0.01), kind


@pytest.mark.parametrize("folder", ["h100", "h200-again"])
def test_kernels_of_many_shapes_are_held_against_the_profile(script, folder, tmp_path):
    """Every kind of kernel is a row; the errors say what published kernels, timed one at a time, leave out."""
    shutil.copytree(MEASURED.with_name(folder), tmp_path / folder)
    here = script.Here(tmp_path / folder, 0, dry=False)
    rows = {row.what: row for row in script.shapes.rows(here)}
    kinds = {f"matmul bf16 {layout}" for layout in ("TN", "NN", "NT")} | {"matmul fp8 TN"}
    kinds |= {f"{op} bf16 {way}" for op in ("flash_attention_2", "cudnn_attention") for way in ("fwd", "bwd")}
    assert rows.keys() == kinds
    assert all(0 < row.error < 0.25 for row in rows.values())


def test_a_trace_tells_launches_and_products(script, tmp_path):
    """Launches of the host; device time of products apart from that of all else."""
    events = [
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5.0},
        {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "dur": 5.0},
        {"cat": "kernel", "name": "nvjet_sm90_tst_256x128", "dur": 100.0},
        {"cat": "kernel", "name": "elementwise_kernel", "dur": 30.0},
        {"cat": "kernel", "name": "elementwise_kernel", "dur": 20.0},
        {"name": "no duration"},
    ]
    path = tmp_path / "step.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    found = script.sizes.traced(path)
    assert found == pytest.approx({"launches": 1, "products_s": 100e-6, "others_s": 50e-6})
