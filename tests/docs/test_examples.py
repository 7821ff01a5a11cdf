"""Examples in docstrings do what they show."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = [path for path in sorted((ROOT / "simpar").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_run(path):
    """Every ``>>>`` of a module, to the letter."""
    found = path.relative_to(ROOT).with_suffix("").parts
    module = import_module(".".join(found[:-1] if found[-1] == "__init__" else found))
    failed, tried = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0
