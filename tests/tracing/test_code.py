"""Names of functions, and what files may not do."""

import pytest

from simpar.errors import UserError
from simpar.tracing.code import call_user_function, is_code, load_user_module, require_consent


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("models:make", True), ("models.own:make", True), ("llama-3-8b", False), ("models:", False),
        (":make", False), ("models:make()", False), ("my-models:make", False), ("C:/config.json", False),
    ],
)  # fmt: skip
def test_code_is_module_and_function(name, expected):
    """Both sides of one colon are Python names."""
    assert is_code(name) is expected


def test_a_module_of_the_folder_is_found(tmp_path, monkeypatch):
    """The working folder is looked in, behind what is installed; example inputs are left aside on request."""
    (tmp_path / "mine_alone.py").write_text(
        "def make():\n    return 'module', (1, 2)\n\ndef bare():\n    return 'module'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["elsewhere"])
    assert call_user_function("mine_alone:make") == ("module", (1, 2))
    assert load_user_module("mine_alone:make") == load_user_module("mine_alone:bare") == "module"
    with pytest.raises(UserError, match="model = mine_alone:absent: cannot be imported"):
        call_user_function("mine_alone:absent")
    with pytest.raises(UserError, match="model = no_such:make: cannot be imported"):
        call_user_function("no_such:make")


def test_files_do_not_run_code():
    """A file may name a function only where the command line names the same one."""
    with pytest.raises(UserError, match=r"plan\.yaml: model = own:make: is code.*pass --model own:make"):
        require_consent("own:make", "plan.yaml", {})
    with pytest.raises(UserError, match="is code"):
        require_consent("own:make", "plan.yaml", {"model": "own:other"})
    require_consent("own:make", "plan.yaml", {"model": "own:make"})
    require_consent("llama-3-8b", "plan.yaml", {})
