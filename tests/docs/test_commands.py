"""Every command that README and the pages show has the options it is shown with, and those that can run here do."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from ruamel.yaml import YAML
from typer.exceptions import TyperException
from typer.main import get_command

from simpar.cli import run
from simpar.cli.app import INFEASIBLE, app
from simpar.cli.flags import complete_commands
from simpar.diagnosis.classes import load_classes
from simpar.hardware.catalogue import load_cluster

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ANSWERS = ("simulate", "search", "report", "plot", "export", "compare", "list", "collective", "schema", "doctor")
"""Commands that need nothing but shipped names and files that commands of the page have written."""
FILE = re.compile(r"[\w./*-]+\.(json|ya?ml|csv|gz|log|pickle|txt|sh|sbatch|toml)|tokens|runs?/\S*")
LIMIT = ["--time-limit", "2s"]


def in_blocks(text: str) -> Iterator[str]:
    """Commands of the blocks of a page, lines with a backslash at their end joined, without comments."""
    for block in re.findall(r"```(?:bash|console)\n(.*?)```", text, flags=re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if match := re.match(r"(?:\$ )?(?:.* && )?simpar (.+)", line):
                yield match[1]


def in_lines(text: str) -> Iterator[str]:
    """Commands in running text: `simpar plot RESULT`."""
    yield from re.findall(r"`simpar ([a-z][^`\n]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@cache
def commands() -> Any:
    """The command line with all its flags."""
    complete_commands()
    return get_command(app)


def refused(command: str) -> str:
    """Why the words of a command cannot be read, "" if they can; what is left out in running text is no reason."""
    name, *words = shlex.split(command, comments=True)
    group = commands()
    if name.startswith("-"):
        return ""
    while hasattr(group, "commands"):
        if name not in group.commands:
            return f"no command {name}"
        group = group.commands[name]
        if hasattr(group, "commands") and words:
            name, *words = words
        elif hasattr(group, "commands"):
            return ""
    if (words and words[0] in ("...", "--help")) or any(re.fullmatch(r"-*[A-Z|/]+(\.\.\.)?", word) for word in words):
        words = [word for word in words if word.startswith("--") and word != "--"]
        options = {option for param in group.params for option in (*param.opts, *param.secondary_opts)}
        return " ".join(word for word in words if word.partition("=")[0] not in {*options, "--help"})
    try:
        group.make_context(name, list(words))
    except typer.Exit:
        return ""
    except TyperException as error:
        said = error.format_message()
        return said if "No such" in said or "Invalid" in said else ""
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_have_the_options_they_are_shown_with(page: Path) -> None:
    """Their names, options and the types of values are those of the command line."""
    text = page.read_text()
    wrong = {command: said for command in (*in_blocks(text), *in_lines(text)) if (said := refused(command))}
    assert wrong == {}


def test_an_option_that_is_not_there_is_noticed() -> None:
    """The test above can fail."""
    assert "No such" in refused("simulate gpt2-laptop --fast")
    assert "no command" in refused("simulte gpt2-laptop")
    assert "Invalid" in refused("simulate --tp two")
    assert refused("plot RESULT --shape round") == "--shape"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_can_run_here_do(page: Path, tmp_path, monkeypatch, capsys) -> None:
    """In their order and one folder, as long as the files that they name are there; searches stop early."""
    monkeypatch.chdir(tmp_path)
    failed = {}
    for command in in_blocks(page.read_text()):
        name, *words = shlex.split(command, comments=True)
        made = {words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-o", "--json", "--html", "--trace")}
        needed = [word for word in words if FILE.fullmatch(word) and word not in made]
        if name not in ANSWERS or not all(Path(word).exists() for word in needed):
            continue
        code = run([name, *words, *(LIMIT if name == "search" and "--time-limit" not in words else [])])
        if code not in (0, INFEASIBLE):
            failed[command] = capsys.readouterr().err
    assert failed == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_that_python_examples_import_exist(page: Path) -> None:
    """Of simpar's own modules."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "simpar":
                module = import_module(str(node.module))
                assert all(hasattr(module, each.name) for each in node.names), ast.unparse(node)


def yaml_blocks(page: Path) -> list[str]:
    """The YAML that a page shows, also inside lists."""
    found = re.findall(r"(?m)^( *)```yaml\n(.*?)^\1```", page.read_text(), flags=re.DOTALL)
    return [textwrap.dedent(block) for _, block in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_yaml_that_pages_show_can_be_read(page: Path) -> None:
    """As its users paste it."""
    for block in yaml_blocks(page):
        assert YAML(typ="safe").load(block)


def test_files_that_pages_show_are_read_as_what_they_are(tmp_path: Path) -> None:
    """Classes of kernels, and profiles of clusters of which one names the other."""
    (classes,) = yaml_blocks(ROOT / "docs" / "explain.md")
    (tmp_path / "mine.yaml").write_text(classes)
    assert load_classes(tmp_path / "mine.yaml").of(["gemm_2to4_tn"])[0].name == "sparse products"
    ours, part = yaml_blocks(ROOT / "docs" / "own_cluster.md")
    (mixture,) = yaml_blocks(ROOT / "docs" / "own_mixture.md")
    (tmp_path / "ours.yaml").write_text(ours)
    (tmp_path / "mixture.yaml").write_text(mixture)
    (tmp_path / "part.yaml").write_text(f"name: part\nlike: ours.yaml\n{part}")
    assert load_cluster(tmp_path / "ours.yaml").profile.price_per_device_hour == pytest.approx(2.10)
    assert load_cluster(tmp_path / "part.yaml").device.memory_bytes == 94 * 2**30
    assert len(load_cluster(tmp_path / "mixture.yaml").parts) == 2
