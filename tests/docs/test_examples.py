"""Examples in docstrings do what they show, and what users call has some."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import simpar
from tests.gate import some

ROOT = Path(__file__).parents[2]
SHOWN = [path for path in sorted((ROOT / "simpar").rglob("*.py")) if ">>> " in path.read_text()]
WITHOUT = {"explain", "learn", "SearchResult"}
"""What reads traces of profilers and measured runs, and what the example of search gives."""
IN_GATE = [
    ROOT / "simpar" / name
    for name in (
        "errors.py", "inputs.py", "plain.py", "units.py", "simulation.py", "scenario.py", "translate.py",
        "plan/plan.py", "hardware/catalogue.py", "report/result.py", "planner/problem.py", "program/ir/builder.py",
    )
]  # fmt: skip
"""What users call first, and one module of most rooms."""


@pytest.mark.parametrize("path", some(SHOWN, IN_GATE), ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_run(path, tmp_path, monkeypatch):
    """Every ``>>>`` of a module, to the letter, without a file left where it was started."""
    monkeypatch.chdir(tmp_path)
    found = path.relative_to(ROOT).with_suffix("").parts
    module = import_module(".".join(found[:-1] if found[-1] == "__init__" else found))
    failed, tried = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0
    assert not list(tmp_path.iterdir())


def test_every_entry_point_shows_an_example():
    """In its own docstring."""
    bare = set()
    for name, home, _ in simpar._CONTENTS:
        module, _, attribute = home.partition(":")
        if ">>> " not in (getattr(import_module(f"simpar.{module}"), attribute).__doc__ or ""):
            bare.add(name)
    assert bare == WITHOUT
