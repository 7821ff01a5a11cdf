"""The tutorial can be followed: its commands run, one after the other, and print what it shows."""

import re
import shlex
from pathlib import Path

import pytest

from simpar.cli import run

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
LONG = ("search", "export")  # takes a minute, or needs what a search has written


def shown(page: Path = PAGE) -> list[tuple[list[str], list[str]]]:
    """Commands of a page, each with the lines that it shows."""
    found: list[tuple[list[str], list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ simpar "):
                found.append((shlex.split(line.removeprefix("$ simpar ")), []))
            elif line != "...":
                found[-1][1].append(line.rstrip())
    return found


def follow(commands: list[tuple[list[str], list[str]]], capsys) -> str:
    """Run them in order, and find every shown line in what each prints, in order; all that they print."""
    text = ""
    for arguments, lines in commands:
        assert run(arguments) == 0
        said = capsys.readouterr()
        text += said.out
        printed = [line.rstrip() for line in (said.out + said.err).splitlines()]
        for line in lines:
            assert line in printed, arguments
            printed = printed[printed.index(line) + 1 :]
    return text


def test_the_first_half_can_be_followed(tmp_path, monkeypatch, capsys):
    """Up to the search."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    commands = shown()
    assert [arguments[0] for arguments, _ in commands] == ["simulate", "simulate", "plot", "report", *LONG]
    follow([each for each in commands if each[0][0] not in LONG], capsys)


@pytest.mark.slow
def test_all_of_it_can_be_followed(tmp_path, monkeypatch, capsys):
    """To the exported files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    text = follow(shown(), capsys)
    assert (tmp_path / "exported" / "README.md").exists()
    assert f"{re.search(r'the best of ([0-9,]+[0-9])', PAGE.read_text())[1]} plans, " in text
