"""What editors complete, and what type checkers see, before anything runs."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest

import simpar
from simpar.calls import Strict
from simpar.plan.choices import SECTION_OF
from simpar.plan.plan import Plan, Record
from tests import typed_calls

ROOT = Path(simpar.__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import plan_keys  # noqa: E402

MODELS = [
    each for name in simpar.__all__ if inspect.isclass(each := getattr(simpar, name)) and issubclass(each, Strict)
]


def test_the_stub_of_a_plan_is_what_the_choices_declare() -> None:
    """Every key, with the type of its field: ``python benchmarks/plan_keys.py`` writes it."""
    assert plan_keys.PATH.read_text() == plan_keys.source()
    given, read = (each for each in ast.parse(plan_keys.source()).body if isinstance(each, ast.ClassDef))
    assert _annotated(given) == {*Plan.model_fields, *SECTION_OF, "rank_order"}
    assert _annotated(read) == {*SECTION_OF}


def _annotated(node: ast.ClassDef) -> set[str]:
    return {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("simpar.Plan(", ["tp=", "zero=", "schedule=", "recompute=", "lora_rank=", "micro_batch=", "mesh="]),
        ("simpar.Plan(tp=2, micro", ["micro_batch="]),
        ("simpar.Plan().with_values().", ["tp", "zero", "schedule", "world_size", "save"]),
        ("simpar.Training(", ["seq_len=", "global_batch=", "documents=", "tokens="]),
        ("simpar.Cluster(", ["profile=", "nodes=", "devices="]),
        ("simpar.simulate(", ["model=", "perturbation=", "with_timeline="]),
    ],
)
def test_an_editor_completes(code: str, wanted: list[str]) -> None:
    """What is asked for without running anything, by what notebooks and many editors use."""
    jedi = pytest.importorskip("jedi")
    script = jedi.Script(f"import simpar\n{code}", path=ROOT / "sketch.py", project=jedi.Project(ROOT))
    offered = {each.name for each in script.complete(2, len(code))}
    assert {*wanted} <= offered


def test_a_running_python_knows_the_keys_of_a_plan() -> None:
    """Which ``help`` and notebooks show: flat keys first, each with its default, then sections."""
    parameters = inspect.signature(simpar.Plan).parameters
    assert list(parameters)[:4] == ["tp", "cp", "dp", "pp"]
    assert {*parameters} == {*Plan.model_fields, *SECTION_OF}
    assert {name: parameters[name].default for name in SECTION_OF if name != "schedule"} == {
        name: getattr(simpar.Plan(), name) for name in SECTION_OF if name != "schedule"
    }


@pytest.mark.parametrize("model", [each for each in MODELS if each is not Plan], ids=lambda each: each.__name__)
def test_signatures_of_models_are_their_fields(model: type[Strict]) -> None:
    """Also before the first of them is made."""
    assert {*inspect.signature(model).parameters} == {*model.model_fields}


def test_a_model_that_is_not_defined_yet_has_its_own_signature() -> None:
    """Not that of the class that it derives from."""

    class Base(Strict):
        first: int = 1

    assert Base().first == 1

    class Derived(Base):
        second: int = 2

    assert list(inspect.signature(Derived).parameters) == ["first", "second"]


def test_type_checkers_see_the_defaults_of_public_models() -> None:
    """They read ``Field(default=...)`` only: another spelling makes the value required in their eyes."""
    sections = [field.annotation for field in Plan.model_fields.values() if isinstance(field.annotation, type)]
    files = {inspect.getfile(each) for each in (*MODELS, *sections, Record) if issubclass(each, Strict)}
    assert len(files) > 12
    calls = [
        node for file in files for node in ast.walk(ast.parse(Path(file).read_text())) if isinstance(node, ast.Call)
    ]
    assert [ast.unparse(call) for call in calls if ast.unparse(call.func) == "Field" and call.args] == []


def test_what_type_checkers_are_told_of_calls_is_so() -> None:
    """``Model`` and ``Cluster`` are functions in the guise of classes, and a training takes texts as well."""
    told = {
        node.name: next(each for each in node.body if isinstance(each, ast.FunctionDef))
        for node in ast.walk(ast.parse(Path(simpar.__file__).read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert {*told} == {"Model", "Cluster"}
    for name, call in told.items():
        spelt = [each.arg for each in (*call.args.args[1:], *call.args.kwonlyargs)]
        assert spelt == list(inspect.signature(getattr(simpar, name)).parameters)
    training = ast.parse(inspect.getsource(simpar.Training))
    made = next(each for each in ast.walk(training) if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    assert [each.arg for each in made.args.kwonlyargs] == list(simpar.Training.model_fields)


def test_calls_that_type_checkers_take_run() -> None:
    """What mypy reads in the gate is no fiction."""
    assert typed_calls.right().plan.tp == 2


@pytest.mark.parametrize("call", typed_calls.wrong())
def test_calls_that_type_checkers_refuse_fail(call) -> None:
    """Each of them, so that nothing right is refused before it runs."""
    with pytest.raises((simpar.UserError, AttributeError)):
        call()
