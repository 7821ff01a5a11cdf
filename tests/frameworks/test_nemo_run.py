"""NeMo-Run: a script with executors of the plan's size, beside the recipe of Megatron-Bridge."""

import ast
import subprocess
import sys
import types

import pytest

from simpar.architectures.catalogue import load_model
from simpar.frameworks import export
from simpar.frameworks.nemo_run import EXECUTORS
from simpar.layout.decide import complete_plan
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan

from .conftest import TRAINING, checked, comes_back, exported


class Recorded(types.SimpleNamespace):
    """What a call of NeMo-Run was given."""


def library(log):
    """A stand-in for the package that records what it is asked for."""

    class Experiment:
        def __init__(self, title):
            log.append(("experiment", title))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

        def add(self, task, executor, name):
            log.append(("add", task, executor, name))

        def dryrun(self):
            log.append(("dryrun",))

        def run(self, **given):
            log.append(("run", given))

    def named(name):
        return lambda **given: Recorded(kind=name, **given)

    names = (*EXECUTORS.values(), "Script", "Packager", "PatternPackager", "LocalTunnel", "SSHTunnel")
    return types.SimpleNamespace(Experiment=Experiment, **{name: named(name) for name in names})


def launched(monkeypatch, plan, *arguments, devices_per_node=8):
    """What launch.py does with NeMo-Run when it is started with arguments."""
    log = []
    monkeypatch.setitem(sys.modules, "nemo_run", library(log))
    monkeypatch.setattr(sys, "argv", ["launch.py", *arguments])
    made = export(plan, load_model(plan.model), TRAINING, "nemo-run", devices_per_node=devices_per_node)
    code = compile(made.files["launch.py"], "launch.py", "exec")
    exec(code, {"__name__": "__main__", "__file__": "/exported/launch.py"})
    return log


def on_four_nodes():
    """A plan of 32 devices."""
    plan = Plan.model_validate({"tp": 2, "dp": 16, "zero": 1, "model": "llama-3-8b"})
    return complete_plan(plan, Workload(load_model("llama-3-8b"), TRAINING, 32, 8))


def test_one_node_runs_here(monkeypatch):
    """As many processes of torchrun as the plan has ranks, with its environment, and the script beside."""
    log = launched(monkeypatch, checked(tp=2, dp=4, zero=1))
    (_, task, executor, _), ran = log[1], log[2]
    assert (executor.kind, executor.ntasks_per_node, executor.launcher) == ("LocalExecutor", 8, "torchrun")
    assert executor.env_vars == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert (task.path, task.entrypoint) == ("/exported/train.py", "python")
    assert ran == ("run", {"detach": False, "tail_logs": True})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--account", "ours", "--partition", "gpu"),
            {"kind": "SlurmExecutor", "nodes": 4, "ntasks_per_node": 8, "gpus_per_node": 8, "account": "ours"},
        ),
        (
            ("--executor", "kubeflow", "--image", "bridge"),
            {"kind": "KubeflowExecutor", "num_nodes": 4, "nprocs_per_node": 8, "image": "bridge"},
        ),
    ],
)
def test_four_nodes_are_asked_for(monkeypatch, arguments, expected):
    """SLURM without being told, Kubernetes when asked; a dry run starts nothing."""
    log = launched(monkeypatch, on_four_nodes(), *arguments, "--dry-run")
    assert expected.items() <= vars(log[1][2]).items()
    assert log[-1] == ("dryrun",)


def test_slurm_through_ssh(monkeypatch):
    """The login node, who one is there, and where the job lies."""
    log = launched(monkeypatch, on_four_nodes(), "--account", "a", "--host", "h", "--user", "u", "--folder", "/f")
    assert vars(log[1][2].tunnel) == {"kind": "SSHTunnel", "host": "h", "user": "u", "job_dir": "/f"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--executor slurm needs --account"),
        (("--executor", "kubeflow"), "--executor kubeflow needs --image"),
        (("--account", "a", "--host", "h"), "--host needs --user and --folder"),
        (("--executor", "local"), "invalid choice: 'local'"),
    ],
)
def test_what_is_missing_is_said(monkeypatch, capsys, arguments, message):
    """One line and exit code 2, before anything is started."""
    with pytest.raises(SystemExit) as stopped:
        launched(monkeypatch, on_four_nodes(), *arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_the_recipe_is_bridges():
    """The same module and script as the target megatron-bridge writes, which comes back as the plan."""
    plan = checked(tp=2, pp=2, dp=2, zero=1, recompute="full")
    ours, bridges = exported("nemo-run", plan), exported("megatron-bridge", plan)
    assert {name: ours[name] for name in ("simpar_recipe.py", "train.py")} == {
        name: bridges[name] for name in ("simpar_recipe.py", "train.py")
    }
    assert comes_back("nemo-run", plan, "simpar_recipe.py")


def test_the_script_is_clean(tmp_path):
    """It parses, and has no name that it does not use or know."""
    text = exported("nemo-run", checked(dp=8, zero=3))["launch.py"]
    ast.parse(text)
    path = tmp_path / "launch.py"
    path.write_text(text)
    subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", str(path)], check=True)
