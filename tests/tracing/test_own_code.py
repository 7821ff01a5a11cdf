"""Kept graphs of the user's functions: they stand as long as nothing changes on which the function hangs."""

import json
import os
import sys

import pytest

pytest.importorskip("torch")

import simpar
from simpar.kept import cache_folder
from simpar.tracing import own_code
from simpar.tracing.captures import function_model
from simpar.tracing.code import call_user_function

CODE = """
import json, os
from kept_sizes import WIDTH

def make():
    with open("sizes.json") as stream:
        return json.load(stream), WIDTH, os.environ.get("LAYERS")
"""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Counts runs of a function in a folder of the user's, which reads a module, a file and a variable."""
    for name, text in (("kept_code.py", CODE), ("kept_sizes.py", "WIDTH = 8\n"), ("sizes.json", "[2]")):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LAYERS", "4")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])
    made = []

    def trace_code(name, _seq_len):
        made.append(call_user_function(name))
        return simpar.Model("gpt2")

    monkeypatch.setattr("simpar.tracing.graph.trace_code", trace_code)
    forget()
    yield made
    forget()


def forget():
    """As in a new process."""
    for name in ("kept_code", "kept_sizes"):
        sys.modules.pop(name, None)


def model():
    """Asked for by a new process."""
    forget()
    return function_model("kept_code:make", 32)


def test_a_function_runs_once(runs):
    """The second answer is the same graph, and is read."""
    first, second = model(), model()
    assert len(runs) == 1
    assert (second.blocks, second.layers, second.num_parameters()) == (first.blocks, first.layers, 124_439_808)
    assert function_model("kept_code:make", 64).name == "gpt2"
    assert len(runs) == 2  # another length is another graph


@pytest.mark.parametrize("changed", ["kept_code.py", "kept_sizes.py", "sizes.json"])
def test_a_function_runs_again_where_a_file_changed(runs, tmp_path, changed):
    """Of the module, of one that it imports, or of what it reads; or where the file is gone."""
    model()
    path = tmp_path / changed
    path.write_text(path.read_text() + "\n")
    model()
    assert len(runs) == 2
    model()
    assert len(runs) == 2
    kept = next(cache_folder("captures").glob("*.json"))
    reads = json.loads(kept.read_text())["reads"]
    assert str(path) in reads
    kept.write_text(kept.read_text().replace(str(path), str(path) + ".gone"))
    model()
    assert len(runs) == 3


def test_a_function_runs_again_in_another_environment(runs, monkeypatch, tmp_path):
    """Variables may choose sizes; those of the shell itself do not."""
    model()
    monkeypatch.setenv("SHLVL", "7")
    model()
    assert len(runs) == 1
    monkeypatch.setenv("LAYERS", "8")
    model()
    assert len(runs) == 2
    assert runs[-1] == ([2], 8, "8")


def test_a_module_in_memory_is_asked_and_not_kept(runs):
    """Its file may hold other code by now, so neither is its graph read nor kept."""
    call_user_function("kept_code:make")
    function_model("kept_code:make", 32)
    assert len(runs) == 1
    assert not list(cache_folder("captures").glob("*"))
    model()
    assert len(runs) == 2


def test_a_torn_file_is_none(runs):
    """The function runs, and its graph is kept anew."""
    model()
    kept = next(cache_folder("captures").glob("*.json"))
    kept.write_text(kept.read_text()[:100])
    model()
    assert len(runs) == 2


def test_files_that_are_written_are_not_read(tmp_path):
    """Only what is opened to read counts, by its real path, and only inside."""
    mine = tmp_path / "mine"
    with own_code.watched_reads() as opened:
        mine.write_text("1")
        assert str(mine) not in opened
        mine.read_text()
    (tmp_path / "later").write_text("2")
    (tmp_path / "later").read_text()
    assert str(mine) in opened
    assert not any(name.endswith("later") for name in opened)


def test_stamps(tmp_path):
    """Installed files by size and time, others by content, "" for none."""
    mine = tmp_path / "mine"
    assert own_code.stamp(str(mine)) == ""
    mine.write_text("1")
    first = own_code.stamp(str(mine))
    os.utime(mine, (1, 1))
    assert own_code.stamp(str(mine)) == first
    mine.write_text("2")
    assert own_code.stamp(str(mine)) not in ("", first)
    known = os.stat(json.__file__)
    assert own_code.stamp(os.path.realpath(json.__file__)) == f"{known.st_size} {known.st_mtime_ns}"
