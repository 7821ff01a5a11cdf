"""The torch export: a script that stands alone, and the same losses in every layout."""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.frameworks import export, unsupported
from simpar.frameworks.torch import SCRIPT
from simpar.layout.decide import complete_plan
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan

from .conftest import TRAINING, checked, exported

TINY = Training(seq_len=32, global_batch=8)
LAYOUTS = {
    "ddp": {"dp": 2},
    "zero-1": {"dp": 2, "zero": 1},
    "fsdp": {"dp": 2, "zero": 3, "recompute": "full"},
    "tp": {"dp": 1, "tp": 2},
    "pp": {"dp": 1, "pp": 2},
    "tp-dp": {"tp": 2, "dp": 2, "zero": 1},
    "pp-fsdp": {"pp": 2, "dp": 2, "zero": 2},
    "zero-bubble": {"pp": 2, "dp": 2, "schedule": "zb-h1"},
    "interleaved": {"pp": 2, "vpp": 2, "dp": 2, "zero": 1},
    "tp-fsdp": {"tp": 2, "dp": 2, "zero": 3},
    "hsdp": {"dp": 4, "zero": 3, "hsdp": 2},
    "offloaded": {"dp": 2, "zero": 3, "offload_optimizer": "cpu", "offload_parameters": "cpu"},
    "tp-pp": {"tp": 2, "pp": 2, "dp": 1},
}


def test_the_script_imports_torch_and_the_standard_library_only():
    """It does not need simpar, nor anything else."""
    tree = ast.parse(SCRIPT.read_text())
    found = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    found |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert found - {"torch"} <= set(sys.stdlib_module_names)


def test_importing_the_target_does_not_import_torch():
    """The script is text for the exporter."""
    code = "import sys, simpar.frameworks.torch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_and_table():
    """Sizes, degrees, stages; the action table of the plan, a line a rank."""
    found = exported("torch", checked(pp=4, dp=2, schedule="zb-h1"))
    settings = json.loads(found["settings.json"])
    assert settings["stages"] == [8, 8, 8, 8]
    assert settings["rank_of_stage"] == [0, 1, 2, 3]
    assert settings["reduction"] == "explicit"
    rows = found["schedule.csv"].splitlines()
    assert len(rows) == 4
    assert "0I0" in rows[0].split(",")
    assert found["train.py"].startswith("# Written by simpar")
    assert SCRIPT.read_text() in found["train.py"]


@pytest.mark.parametrize(
    ("model", "values", "words"),
    [
        ("gemma-2-2b", {"dp": 8}, "before attention and MLP"),
        ("mistral-7b", {"dp": 8}, "full causal attention"),
        ("gpt2", {"tp": 2, "dp": 4}, "learned positions"),
        ("gpt2", {"pp": 2, "dp": 4}, "tied embeddings"),
        ("gpt2", {"dp": 8, "zero": 3}, "dropout = 0.1: the script drops nothing"),
        ("gpt3-6.7b", {"dp": 8, "zero": 3}, None),
        ("qwen3-8b", {"dp": 8, "zero": 3}, None),
        ("llama-3-8b", {"pp": 4, "dp": 2, "zero": 3, "schedule": "zb-h1"}, "fully_shard"),
        ("llama-3-8b", {"dp": 8, "recompute": "selective"}, "recompute = selective"),
    ],
)
def test_what_the_script_cannot_do_is_named(model, values, words):
    """A reason for every loss, none where it can be done."""
    reasons = unsupported(Plan.model_validate(values), load_model(model), TRAINING, "torch")
    assert (words is None) == (not reasons), reasons
    assert words is None or any(words in reason for reason in reasons)


ABORTING = "import atexit, os; atexit.register(os.abort) if 'LOCAL_RANK' in os.environ else None"
"""Makes certain what happens now and then to a rank whose interpreter is finalized beside gloo's threads."""


def losses(folder, steps=3, **values):
    """Losses of an exported script, started by its own launcher."""
    plan = Plan.model_validate({"model": "tiny-llama", "precision": "fp32", **values})
    plan = complete_plan(plan, Workload(load_model("tiny-llama"), TINY, plan.mesh.world_size, 8))
    files = export(plan, load_model("tiny-llama"), TINY, "torch", devices_per_node=plan.mesh.world_size).files
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "sitecustomize.py").write_text(ABORTING)
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    environment = os.environ | {
        "STEPS": str(steps),
        "OMP_NUM_THREADS": "1",
        "PATH": path,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(folder),
    }
    done = subprocess.run(
        ["bash", str(folder / "local.sh")], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(found) for found in re.findall(r"loss ([\d.]+),", done.stdout)]


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own modules, when they are imported
def test_no_two_matrices_start_alike():
    """Not in one layer, and not the same matrix of two."""
    import torch

    from simpar.frameworks.torch_script import Stage

    plan = Plan.model_validate({"model": "tiny-llama", "precision": "fp32", "dp": 1})
    graph = load_model("tiny-llama")
    made = export(complete_plan(plan, Workload(graph, TINY, 1, 8)), graph, TINY, "torch").files
    stage = Stage(json.loads(made["settings.json"]), 0)
    matrices = [p.detach().flatten()[:64] for p in stage.parameters() if p.dim() > 1]
    assert len(matrices) > 8
    alike = sum(torch.equal(a, b) for i, a in enumerate(matrices) for b in matrices[:i])
    assert alike == 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
def test_the_script_trains_on_one_process(tmp_path):
    """The loss starts at about log(vocabulary) and is a number for every step."""
    import math

    found = losses(tmp_path, steps=2, dp=1)
    assert len(found) == 2
    assert found[0] == pytest.approx(math.log(4096), rel=0.03)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("label", LAYOUTS)
def test_every_layout_has_the_losses_of_one_process(label, tmp_path):
    """Three optimizer steps on the same data."""
    one, here = tmp_path / "one", tmp_path / "here"
    one.mkdir()
    here.mkdir()
    assert losses(here, **LAYOUTS[label]) == pytest.approx(losses(one, dp=1), abs=5e-6)
