"""Calls of an exported module, with sizes that follow batch and sequence."""

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from simpar.errors import UserError
from simpar.tracing.capture import capture
from simpar.tracing.code import call_user_function
from simpar.tracing.nodes import DATA, INDEX, WEIGHTS


def test_what_a_call_depends_on(llama):
    """Parameters are weights, tokens are an index, what is looked up with them is data of both lengths."""
    kinds = {node.op: node.kind for node in llama.nodes.values()}
    assert kinds["embedding"] == kinds["linear"] == kinds["scaled_dot_product_attention"] == DATA
    inputs = [node for node in llama.nodes.values() if node.op == "placeholder"]
    assert [node.kind for node in inputs if node.name not in llama.parameters] == [INDEX]
    assert all(llama.nodes[name].kind == WEIGHTS for name in llama.parameters)
    looked_up = next(node for node in llama.nodes.values() if node.op == "embedding")
    assert looked_up.shape == (((1, ("batch",)),), ((1, ("seq",)),), ((64, ()),))


def test_modules_around_a_call(llama):
    """Outermost first, by path and class."""
    product = next(node for node in llama.nodes.values() if node.op == "linear")
    paths = [path for path, _ in product.owners]
    assert paths[0] == ""
    assert paths == sorted(paths, key=len)
    assert any(path.endswith(".0") for path in paths)


@pytest.mark.parametrize(
    ("name", "message"),
    [("number", "returns int"), ("failing", r"cannot be built without weights \(ValueError: no such width\)")],
)
def test_what_is_no_module_is_refused(name, message, monkeypatch):
    """In one line that names the function."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(UserError, match=f"model = traced_models:{name}: {message}"):
        capture(f"traced_models:{name}", 32, partial(call_user_function, f"traced_models:{name}"))


def test_an_error_is_told_with_what_stands_below_its_heading():
    """A class that checks its config names the field in the second line."""

    def make():
        raise ValueError(
            "Class validation error for validator 'sizes':\n    hidden_size = 30 is no multiple of 4\nmore"
        )

    with pytest.raises(UserError, match=r"'sizes': hidden_size = 30 is no multiple of 4\)$"):
        capture("own", 8, make)
