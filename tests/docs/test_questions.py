"""Every question of the page is answered by its one command, which prints what the page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.test_tutorial import follow, shown
from tests.gate import some

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
QUESTIONS = shown(PAGE)
README_ROW = re.compile(r"^\| [^|`]+ \| `simpar ([^`]+)` \| (.+) \|$", re.MULTILINE)


def test_there_are_ten_questions_of_one_command() -> None:
    """A command and an answer under every heading."""
    parts = PAGE.read_text().split("\n## ")[1:]
    assert [part.split(".")[0] for part in parts] == [str(number) for number in range(1, 11)]
    assert all(part.count("$ simpar ") == 1 for part in parts)
    assert len(QUESTIONS) == 10
    assert all(len(lines) >= 3 for _, lines in QUESTIONS)


def test_the_readme_shows_the_same_answers() -> None:
    """Every command of the page; its answers are quoted from lines that the page shows."""
    rows = README_ROW.findall((PAGE.parents[1] / "README.md").read_text())
    assert [shlex.split(command) for command, _ in rows] == [command for command, _ in QUESTIONS]
    for (_, answer), (_, lines) in zip(rows, QUESTIONS, strict=True):
        told, quoted = [" ".join(line.split()) for line in lines], re.findall("`([^`]+)`", answer)
        assert quoted
        assert [each for each in quoted if not any(each in line for line in told)] == []


@pytest.mark.parametrize(
    "question",
    some(QUESTIONS, [each for each in QUESTIONS if {"gpt3-175b-64-a100", "--qlora", "ep=1,2,4,8"} & {*each[0]}]),
    ids=lambda question: " ".join(question[0]),
)
def test_the_command_prints_the_answer(question: tuple[list[str], list[str]], tmp_path, monkeypatch, capsys) -> None:
    """To the letter; in the gate a scenario, a model of the reader's choice, and several values side by side."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    follow([question], capsys)
