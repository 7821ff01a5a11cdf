"""``--over`` and ``--fix`` say what they take to those who ask, and in every refusal."""

from __future__ import annotations

import pytest

from simpar import cli
from simpar.cli.axes import ASKS, asks, flags_by_key, keys_of_sweeps
from simpar.cli.search import OVER
from simpar.cli.sweep import parse
from simpar.planner.space.axes import ALL_NAMES
from simpar.verbs import scenario_key


@pytest.mark.parametrize("word", ASKS)
def test_a_sweep_lists_its_keys(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every key that is taken, those of flags with what they are; no model is needed to ask."""
    assert cli.run(["simulate", "--over", word]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in keys_of_sweeps())
    assert "Tensor-parallel degree" in said


def test_every_key_that_is_listed_is_taken() -> None:
    """As the key of the scenario that its flag sets, spelled either way."""
    for name, flag in flags_by_key().items():
        assert parse(f"--{name.replace('_', '-')}=1,2") == (name, ["1", "2"])
        assert scenario_key(name) == flag.key
    assert all(parse(f"{name}=1")[0] == name for name in keys_of_sweeps())


def test_searches_list_their_axes(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a grid, and those of the space."""
    assert cli.run(["search", "--over", "help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {axis} " in said for axis in OVER)
    assert cli.run(["search", "--fix", "help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ALL_NAMES)


def test_axes_are_not_values() -> None:
    """Only the word alone asks."""
    assert not asks(["model=help"])
    assert not asks(None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate", "--over"], "requires an argument; --over help lists"),
        (["simulate", "--over", "colour=1"], "colour is no key; --over help lists the keys"),
        (["simulate", "--over", "tpp=1,2"], "did you mean 'tp'?"),
        (["simulate", "--over", "network=25 Gb/s"], '--over "hardware=NAME over 25 Gb/s,..."'),
        (["search", "--over", "micro-batch=1,2"], "allowed: --fix micro-batch=1,2"),
        (["search", "--over", "nodes"], "--over help lists the axes"),
        (["search", "--fix", "colour=1"], "colour is no axis; --fix help lists all"),
        (["search", "--fix", "tp"], "--fix help lists all"),
    ],
)
def test_refusals_say_how_to_ask(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    job = ["--model", "gpt2", "--hardware", "dgx-h100", "--seq-len", "1024", "--global-batch", "8"]
    assert cli.run([words[0], *job, *words[1:]]) == 2
    assert said in capsys.readouterr().err
