"""The contract of every export target: known options only, shell that parses, losses told, plans that come back."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from simpar import files
from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.frameworks import READ_AS, READERS, TARGETS, export, expressible, load_target, read, unsupported
from simpar.frameworks.launch import STARTS
from simpar.frameworks.subject import subject
from simpar.frameworks.target import FEATURES
from simpar.layout.decide import complete_plan
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from tests.gate import some

from .conftest import PLANS, TRAINING

TABLES = Path(__file__).parent / "tables"


@cache
def table(target):
    """Allowed options of a target: name to kind."""
    return files.load(TABLES / f"{target}.yaml").data["options"]


def plan_of(label, model):
    """A checked plan of the matrix."""
    graph = load_model(model)
    plan = Plan.model_validate({**PLANS[label], "model": model, "training": TRAINING.model_dump()})
    return complete_plan(plan, Workload(graph, TRAINING, 8, 8)), graph


TRAINERS = ("transformers", "trl", "axolotl", "llama-factory")
"""Targets on Hugging Face's Trainer, which say the same of a plan: few plans show it."""
FEW = ("ddp", "zero-2", "zero-3", "hsdp", "tp-fsdp", "cp-gathered", "fp8", "offloaded", "fp32")
LIKE_OTHERS = (*TRAINERS, "maxtext", "nemo-run")
GATE = [(target, "llama-3-8b", "few" if target in LIKE_OTHERS else "all") for target in TARGETS]
GATE += [(target, "gpt3-6.7b", "few") for target in TARGETS if target not in TRAINERS]
CASES = [*GATE, *((target, "gpt3-6.7b", "all") for target in TARGETS if target not in LIKE_OTHERS)]


def plans_of(model, plans):
    """(label, plan, graph) of every plan that is tried on a target."""
    for label in FEW if plans == "few" else PLANS:
        yield (label, *plan_of(label, model))


@pytest.mark.parametrize(("target", "model", "plans"), some(CASES, GATE, tuples=True))
def test_every_option_exists(target, model, plans):
    """An exporter writes only options of its target's version, with allowed values; what it cannot say, it refuses."""
    found = load_target(target)
    for label, plan, graph in plans_of(model, plans):
        said, _ = expressible(plan, found)
        for name, value in found.options(subject(said, graph, TRAINING, found.stack)).items():
            kind = table(target).get(name)
            assert kind is not None, f"{label}: {name} is no option of {found.version}"
            if isinstance(kind, list) and value is not None:
                assert str(value) in [str(item) for item in kind], f"{label}: {name} = {value}"
            if kind == "flag":
                assert value is None, label


@pytest.mark.parametrize(("target", "model", "plans"), some(CASES, GATE, tuples=True))
def test_an_export_is_whole_or_refused(target, model, plans):
    """Without losses there are files, with losses one line that names them all; lossy writes them down."""
    for label, plan, graph in plans_of(model, plans):
        reasons = unsupported(plan, graph, TRAINING, target)
        if not reasons:
            made = export(plan, graph, TRAINING, target)
            assert {"README.md", "plan.json"} <= set(made.files), label
            assert not made.lost, label
            continue
        with pytest.raises(UserError) as error:
            export(plan, graph, TRAINING, target)
        assert all(reason in str(error.value) for reason in reasons), label
        assert "\n" not in str(error.value), label
        made = export(plan, graph, TRAINING, target, lossy=True)
        assert [str(loss) for loss in made.lost] == reasons, label
        assert all(reason in made.files["README.md"] for reason in reasons), label


@pytest.mark.parametrize("target", TARGETS)
def test_lengths_of_documents_are_never_dropped_in_silence(target):
    """Refused without --lossy, listed with it; the layout is as portable as before."""
    plan, graph = plan_of("tp-fsdp", "llama-3-8b")
    training = Training(seq_len=1024, global_batch=64, documents={"mean": 300})
    with pytest.raises(UserError, match=r"training.documents = pack of lognormal around 300 tokens: "):
        export(plan, graph, training, target)
    made = export(plan, graph, training, target, lossy=True)
    assert "training.documents" in {loss.field for loss in made.lost}
    assert "training.documents" in made.files["README.md"]
    assert not any("documents" in reason for reason in unsupported(plan, graph, training, target))


@pytest.mark.parametrize("target", TARGETS)
def test_shell_files_parse(target, tmp_path):
    """Every launcher is valid bash, and clean where shellcheck is installed."""
    plan, graph = plan_of("tp-fsdp", "llama-3-8b")
    made = export(plan, graph, TRAINING, target, lossy=True)
    for name, text in made.files.items():
        if name.endswith(".sh"):
            path = tmp_path / name
            path.write_text(text)
            subprocess.run(["bash", "-n", str(path)], check=True)
            if shutil.which("shellcheck"):
                subprocess.run(["shellcheck", "-e", "SC1091,SC2034", "-s", "bash", str(path)], check=True)


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_plan_gives_the_same_bytes(target):
    """An export is a function of the plan."""
    plan, graph = plan_of("tp-fsdp", "llama-3-8b")
    first, second = (export(plan, graph, TRAINING, target, lossy=True).files for _ in range(2))
    assert first == second


@pytest.mark.parametrize("target", TARGETS)
def test_exported_plans_are_plans(target):
    """The plan travels with its export."""
    plan, graph = plan_of("3d", "llama-3-8b")
    text = export(plan, graph, TRAINING, target, lossy=True).files["plan.json"]
    assert Plan.model_validate_json(text) == plan


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_in_the_table_and_described(target):
    """Names agree, and a table of options with its version is committed."""
    found = load_target(target)
    assert found.name == target
    assert found.description
    assert set(found.features) <= set(FEATURES)
    assert files.load(TABLES / f"{target}.yaml").data["version"]


def test_unknown_targets_are_refused_with_a_suggestion():
    """The nearest target is named."""
    plan, graph = plan_of("ddp", "llama-3-8b")
    with pytest.raises(UserError, match="did you mean 'megatron'"):
        export(plan, graph, TRAINING, "megatrom")


def test_nothing_is_read_from_a_target_that_cannot():
    """Reading names the targets that can be read."""
    unreadable = [name for name in TARGETS if READ_AS.get(name, name) not in READERS]
    for name in unreadable:
        with pytest.raises(UserError, match="megatron"):
            read("", "file", name)


def written(target, world_size=8, **values):
    """The files of a plan for a target that can say it, on nodes of eight devices."""
    model = "llama-3.1-8b"
    plan = Plan.model_validate({**values, "model": model, "training": TRAINING.model_dump()})
    graph = load_model(model)
    checked = complete_plan(plan, Workload(graph, TRAINING, world_size, 8))
    return export(checked, graph, TRAINING, target, lossy=True).files


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("target", TARGETS)
def test_pages_name_only_files_that_are_there(target, nodes):
    """Every file that README.md speaks of is one of the export, and every way to start it is spoken of."""
    made = written(target, 8 * nodes, dp=8 * nodes, zero=3)
    page = "\n".join(line for line in made["README.md"].splitlines() if not line.startswith("- Checked against"))
    named = {name.removeprefix("./") for name in re.findall(r"[\w./]+\.(?:sh|py|json|yaml|toml|csv|txt)\b", page)}
    assert named <= set(made)
    assert {name for name in made if name in STARTS} <= named
    assert ("local.sh" in made) == ("local.sh" in named) == (nodes == 1 and "slurm.sh" in made)


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in ("sagemaker", "maxtext")])
def test_jobs_of_kubernetes_have_a_pod_a_node(target):
    """A PyTorchJob that parses: replicas, devices, and a start that is shell."""
    job = YAML(typ="safe", pure=True).load(written(target, 32, dp=32, zero=3)["pytorchjob.yaml"])
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 3)
    for node in replicas.values():
        (container,) = node["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
        assert container["volumeMounts"][0]["mountPath"] == container["workingDir"]
        subprocess.run(["bash", "-n"], input=container["args"][0], text=True, check=True)
    alone = YAML(typ="safe", pure=True).load(written(target, 8, dp=8, zero=3)["pytorchjob.yaml"])
    assert set(alone["spec"]["pytorchReplicaSpecs"]) == {"Master"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_dtype_of_gradients_that_a_plan_says_is_kept_or_lost_aloud(target, dtype):
    """Be it a habit of the stack that the plan was made for; a search's plan has its stack's habits."""
    graph = load_model("llama-3.1-8b")
    values = {"dp": 8, "zero": 3, "model": "llama-3.1-8b", "training": TRAINING.model_dump(), "grad_dtype": dtype}
    stack = {"fp32": "megatron", "bf16": "deepspeed"}[dtype]  # of which it is the habit
    plan = complete_plan(Plan.model_validate({**values, "stack": stack}), Workload(graph, TRAINING, 8, 8))
    made = export(plan, graph, TRAINING, target, lossy=True)
    lost = "grad_dtype" in {loss.field for loss in made.lost}
    assert lost or made.plan.numerics.grad_dtype == dtype
    assert not lost or load_target(target).name in (
        "torch",
        "torchtitan",
        "torchtitan-main",
        "torchtitan-0.2",
        "accelerate",
        "sagemaker",
        "maxtext",
        *TRAINERS,
    )
    found = plan.model_copy(update={"predicted": {"step_time_s": 1.0}})
    assert not any(loss.field == "grad_dtype" for loss in export(found, graph, TRAINING, target, lossy=True).lost)
