"""Old import paths work, name the new one, and leave the verbs as they are."""

import subprocess
import sys

import pytest

import simpar
from simpar.deprecated import renamed
from simpar.planner.result import Counts

PATHS = (
    "from simpar.search.problem import Constraints",
    "from simpar.search import Constraints",
    "from simpar.explain import save_page",
    "from simpar.export.target import Target",
    "from simpar.models.graph import ModelGraph",
    "from simpar.models.catalogue import load_model",
    "from simpar.learn.runs import runs_of",
    "from simpar.validate.table import read_table",
    "from simpar.cost.stack import load_stack",
    "import simpar.search.result",
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, in which nothing is imported yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_what_notebooks_imported_still_comes_with_the_new_path():
    """Every old path gives the object of the new one; a warning at the line that imports names it, once a module."""
    lines = ["import warnings", "from importlib import import_module"]
    lines += ["seen = warnings.catch_warnings(record=True).__enter__()", "warnings.simplefilter('always')"]
    for path in PATHS:
        new = renamed(path.split()[1])
        lines += [path, f"assert any(f'become {new};' in str(each.message) for each in seen), {path!r}"]
        if path.startswith("from"):
            name = path.split()[-1]
            lines += [f"assert {name} is import_module({new!r}).{name}, {path!r}"]
    lines += ["assert {each.filename for each in seen} == {'<string>'}"]
    result = run("\n".join(lines))
    assert result.returncode == 0, result.stderr


def test_a_verb_stays_a_verb():
    """``simpar.search`` is called as before, whether or not its old package was imported."""
    code = """
import warnings; warnings.simplefilter("ignore")
import inspect, simpar
from simpar.planner.api import search
import simpar.search.problem
from simpar.search import Constraints
assert inspect.signature(simpar.search) == inspect.signature(search)
assert simpar.search.problem is __import__("simpar.planner.problem").planner.problem
import simpar.planner.problem
assert simpar.planner.problem.__spec__.name == "simpar.planner.problem"
try:
    simpar.search("gpt2", "laptop-cpu-4", simpar.Training(seq_len=128, global_batch=4), objectiv="time")
except TypeError as error:
    assert "did you mean 'objective'" in str(error), error
else:
    raise AssertionError
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_what_never_was_is_not_found():
    """As without the old paths."""
    beside = ("simpar.searching", "simpar.modelsmith", "simpar.cost.stacks", "simpar", "search.problem")
    assert [renamed(path) for path in beside] == [None] * len(beside)
    result = run("import simpar.search.nothing_like_it")
    assert "ModuleNotFoundError: No module named 'simpar.search.nothing_like_it'" in result.stderr


def test_methods_have_their_old_names():
    """They do what the new ones do, and name them."""
    plan = simpar.Plan(tp=2, dp=4, micro_batch=2)
    with pytest.warns(FutureWarning, match=r"Plan\.said has become Plan\.get;"):
        assert plan.said("tp") == plan.get("tp") == 2
    with pytest.warns(FutureWarning, match=r"Result\.layout\.num_microbatches"):
        assert plan.num_microbatches(64) == 8
    result = simpar.SearchResult((), Counts(0, 0, 0, 0), "time", True, 0.0, 0.0)
    with pytest.warns(FutureWarning, match=r"SearchResult\.with_details"):
        assert result.saying({"a": 1}) == result.with_details({"a": 1})
