"""The contract of every export target: known options only, shell that parses, losses told, plans that come back."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from simpar import files
from simpar.errors import UserError
from simpar.export import TARGETS, export, load_target, read, unsupported
from simpar.export.subject import subject
from simpar.export.target import FEATURES
from simpar.models.catalogue import load_model
from simpar.models.training import Training
from simpar.plan.check import Target, check
from simpar.plan.plan import Plan
from simpar.units import BLOCK_SCALED

from .conftest import PLANS, TRAINING

TABLES = Path(__file__).parent / "tables"
MODELS = ("llama-3-8b", "gpt3-6.7b")


@cache
def table(target):
    """Allowed options of a target: name to kind."""
    return files.load(TABLES / f"{target}.yaml").data["options"]


def plan_of(label, model):
    """A checked plan of the matrix, or a skip where it cannot be on the model."""
    graph = load_model(model)
    plan = Plan.model_validate({**PLANS[label], "model": model, "training": TRAINING.model_dump()})
    try:
        return check(plan, Target(graph, TRAINING, 8, 8)), graph
    except UserError as error:
        pytest.skip(str(error))


CASES = [(target, label, model) for target in TARGETS for label in PLANS for model in MODELS]


@pytest.mark.parametrize(("target", "label", "model"), CASES)
def test_every_option_exists(target, label, model):
    """An exporter writes only options of its target's version, with allowed values; what it cannot say, it refuses."""
    plan, graph = plan_of(label, model)
    found = load_target(target)
    if plan.numerics.precision in BLOCK_SCALED and "block scales" not in found.features:
        plan = plan.with_values(precision="fp8")  # as an export puts it
    for name, value in found.options(subject(plan, graph, TRAINING, found.stack)).items():
        kind = table(target).get(name)
        assert kind is not None, f"{name} is no option of {found.version}"
        if isinstance(kind, list) and value is not None:
            assert str(value) in [str(item) for item in kind], f"{name} = {value}"
        if kind == "flag":
            assert value is None


@pytest.mark.parametrize(("target", "label", "model"), CASES)
def test_an_export_is_whole_or_refused(target, label, model):
    """Without losses there are files, with losses one line that names them all; lossy writes them down."""
    plan, graph = plan_of(label, model)
    reasons = unsupported(plan, graph, TRAINING, target)
    if not reasons:
        made = export(plan, graph, TRAINING, target)
        assert {"README.md", "plan.json"} <= set(made.files)
        assert not made.lost
        return
    with pytest.raises(UserError) as error:
        export(plan, graph, TRAINING, target)
    assert all(reason in str(error.value) for reason in reasons)
    assert "\n" not in str(error.value)
    made = export(plan, graph, TRAINING, target, lossy=True)
    assert [str(loss) for loss in made.lost] == reasons
    assert all(reason in made.files["README.md"] for reason in reasons)


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
    unreadable = [name for name in TARGETS if load_target(name).read is None]
    for name in unreadable:
        with pytest.raises(UserError, match="megatron"):
            read("", "file", name)
