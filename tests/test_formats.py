"""Files of simpar say their version, which is checked where they are read, and change only as is promised."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

import simpar
from simpar import formats
from simpar.budget.answer import HowMany
from simpar.cli import run
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.planner.result import SearchResult
from simpar.report.grid import load_grid
from simpar.report.result import Result
from simpar.scenario import load_scenario

ROOT = Path(__file__).parents[1]
READERS = {
    formats.RESULT: Result.load,
    formats.SEARCH: SearchResult.load,
    formats.GRID: load_grid,
    formats.HOW_MANY: HowMany.load,
}


@pytest.fixture(scope="module")
def schemas():
    """The script that writes down what files hold."""
    spec = importlib.util.spec_from_file_location("schemas", ROOT / "benchmarks" / "schemas.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def now(schemas):
    """What they hold now."""
    return schemas.read_files() | schemas.answers(*schemas.examples())


@pytest.mark.parametrize("kind", formats.ANSWERS, ids=lambda kind: kind.key)
def test_another_version_is_refused_in_one_line(kind, tmp_path):
    """By whoever reads it, and as a scenario: file, field, value, what is allowed and who writes it."""
    path = tmp_path / "old.json"
    path.write_text(json.dumps({kind.key: 99, "plan": {}, "candidates": []}))
    said = f"{path}: {kind.key} = 99: allowed: {kind.version}, as `{kind.written_by}`"
    for read in (READERS.get(kind, load_scenario), load_scenario):
        with pytest.raises(UserError, match="^" + re.escape(said)):
            read(path)


def test_a_plan_of_another_version_is_refused_in_one_line(tmp_path, capsys):
    """With exit code 2."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": "99", "mesh": {"tp": 2}}))
    with pytest.raises(UserError, match="version = '99': plans of another version cannot be read; allowed: '1'"):
        Plan.load(path)
    assert run(["simulate", str(path), "--model", "gpt2"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_what_holds_no_answer_is_said_by_the_key_that_is_missing(tmp_path):
    """And by the command that writes it."""
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(UserError, match="has no search_schema_version; wants what `simpar search --json` writes"):
        SearchResult.load(path)
    assert load_grid(path) is None


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        (formats.GRID, {"axes": [], "cells": []}, "is a grid of searches (`simpar search --over --json`), which `"),
        (formats.SWEEP, {"sweep": []}, "is a grid of simulations (`simpar simulate --over --json`), which `"),
        (formats.EXPLANATION, {"logged": []}, "is an explained run (`simpar explain --json`), which no command reads"),
    ],
)
def test_an_answer_of_another_kind_is_told_by_name(kind, more, said, tmp_path, capsys):
    """In one line by every command that takes files: what it is, which command shows it, and what is wanted."""
    path, output = tmp_path / "other.json", str(tmp_path / "out.html")
    path.write_text(json.dumps({kind.key: kind.version, **more}))
    commands = (
        ["simulate", path], ["search", path], ["compare", path, path], ["report", path, "--summary", "-o", output],
        ["export", path, "--to", "torch", "-o", output],
        *([["report", path, "-o", output]] if kind is formats.EXPLANATION else []),
    )  # fmt: skip
    for command in commands:
        assert run(list(map(str, command))) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"{path}: {said}")
        assert "; wants a " in line
        assert kind is formats.EXPLANATION or f"`simpar report {path}` shows" in line


def test_no_file_changes_without_its_version(schemas, now):
    """What has been written down still holds: no key is gone, of another type or newly required."""
    for name, what in now.items():
        before = schemas.recorded(name)
        assert before["version"] == what["version"], f"{name}: run benchmarks/schemas.py"
        assert schemas.breaks(before["keys"], what["keys"]) == [], name


def test_what_is_written_down_is_what_there_is(schemas, now):
    """A key that is added is written down in the same commit: run benchmarks/schemas.py."""
    assert {path.stem for path in schemas.FOLDER.glob("*.json")} == set(now)
    for name, what in now.items():
        assert schemas.recorded(name) == what, f"{name}: run benchmarks/schemas.py"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ({"a": "number"}, {}, "a: is gone"),
        ({"a": "number"}, {"a": "string"}, "a: number became string"),
        ({"a": "number"}, {"a": "number (required)"}, "a: number became number (required)"),
        ({"a": "object"}, {"a": "object", "a.b": "number (required)"}, "a.b: is new and required"),
        ({"a": "number"}, {"a": "number", "b": "number (required)"}, "b: is new and required"),
    ],
)
def test_what_breaks_files_is_told(schemas, old, new, fault):
    """Each kind of change that files of the user's would notice."""
    assert schemas.breaks(old, new) == [fault]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": "number"}, {"a": "number", "b": "string"}),
        ({"a": "number"}, {"a": "number|string"}),
        ({"a": "number (required)"}, {"a": "number"}),
        ({}, {"a": "object", "a.b": "number (required)"}),
    ],
)
def test_what_only_adds_is_none(schemas, old, new):
    """New optional keys, further types, keys that may be left out, parts of what is new itself."""
    assert schemas.breaks(old, new) == []


def test_the_page_of_files_names_every_version():
    """docs/files.md lists key and version of every format."""
    text = (ROOT / "docs" / "files.md").read_text()
    for kind in (*formats.ANSWERS, formats.PLAN):
        assert re.search(rf"`{kind.key}` +\| +{kind.version} ", text), kind.key
    assert simpar.__version__ in text
