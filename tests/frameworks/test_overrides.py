"""Options of a command over a config."""

import pytest

from simpar.errors import UserError
from simpar.frameworks.overrides import assigned, command_of, flagged, laid_over, load_beside


def test_words_become_values() -> None:
    """Hydra's prefixes are taken off, flags with a value are no assignments, YAML gives types."""
    words = ["train.py", "--config=x", "a.b=2", "++c=true", "+d=[1,2]", "e=", "-k=3"]
    assert assigned(words) == {"a.b": 2, "c": True, "d": [1, 2], "e": None}
    assert flagged(["x", "--a.b", "2", "--c.d=no words", "--e.f", "--plain", "3"]) == {
        "a.b": 2, "c.d": "no words", "e.f": True,
    }  # fmt: skip


def test_values_replace_sections_and_leaves() -> None:
    """A mapping in place of a section, a leaf beside others, a section of its own."""
    data = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert laid_over(data, {"a.c": {"x": 5}, "e": 4, "f.g": 6}) == {"a": {"b": 1, "c": {"x": 5}}, "e": 4, "f": {"g": 6}}
    compiled = laid_over({"compile": None, "b": 1}, {"compile": "default", "compile.fullgraph": False})
    assert compiled == {"compile": {"fullgraph": False}, "b": 1}  # a section in place of a value


def test_what_is_missing_is_named() -> None:
    """A file, and a command of the framework."""
    with pytest.raises(UserError, match=r"job\.sh: conf/x\.yaml: no such file"):
        load_beside("conf/x.yaml", "job.sh")
    with pytest.raises(UserError, match=r"job\.sh: no command of the framework"):
        command_of("python train.py", "job.sh", lambda words: "tune" in words)
