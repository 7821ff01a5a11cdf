"""The documentation site builds without a warning and stands on its own."""

import json
import math
import re
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

import simpar

MISSING = [name for name in ("sphinx", "myst_parser", "furo") if util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
ROOT = Path(__file__).parents[2]


SMALL = "gpt2-laptop"
"""An example in the place of the one that is shown, whose neighbours take as long as the rest of the site."""


def checkout(folder):
    """The checkout with docs of its own: builds write into them, and others may build at the same time."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name != "docs":
            (folder / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("generated"))
    return folder


def build(folder, builder):
    """Build the site with a small example; warnings are errors."""
    docs = checkout(folder / "checkout") / "docs"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(folder / "trees")]
    command += ["-D", f"example={SMALL}", "-t", "quick"]
    done = subprocess.run(
        [*command, "-b", builder, str(docs), str(folder / builder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.slow
def test_every_page_is_read_without_a_warning(tmp_path):
    """Links, references, docstrings and the tree of pages are whole; nothing that is written is outside of it."""
    build(tmp_path, "dummy")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    build(folder, "html")
    return folder / "html"


@pytest.mark.slow
def test_every_document_and_notebook_has_its_page(site):
    """Nothing that is written stays out of the site."""
    documents = {path.stem for path in (ROOT / "docs").glob("*.md")}
    notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert documents <= {path.stem for path in site.glob("*.html")}
    assert notebooks <= {path.stem for path in (site / "generated").glob("*.html")}
    index = (site / "index.html").read_text()
    assert all(f'href="generated/{name}.html"' in index for name in notebooks)


@pytest.mark.slow
def test_the_page_of_searches_is_not_that_of_sphinx(site):
    """What is written about searches is in the site, beside the page that searches it."""
    assert "Always searched" in (site / "search_axes.html").read_text()
    assert "What stands beside the winner" in (site / "searching.html").read_text()
    assert "What stands beside the winner" not in (site / "search.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1280])
def test_axe_finds_nothing_on_pages_of_the_site(site, browser, width):
    """One of each kind: text, wide tables, long lines of code, the search, and what the theme adds to all of them."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        for name in ("index", "check", "learning_accuracy", "search", "questions", "generated/cli"):
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_load_state("load")
            assert [(name, each["id"]) for each in axe.run(page).response["violations"]] == []
        page.close()


def assert_lists_exports(page, heading):
    """Every exported name is a heading, and nothing else is."""
    listed = set(re.findall(heading + r"simpar\.(\w+)", page))
    assert listed | {"__version__"} == set(simpar.__all__)


def assert_lists_commands(page, heading, end):
    """Every command is a heading."""
    from simpar.cli import app

    for command in app.registered_commands:
        assert f"{heading}simpar {command.name or command.callback.__name__}{end}" in page


def test_generated_pages_list_exports_and_commands():
    """Every exported name with its docstring, every command with its help as it prints."""
    conf = settings()
    assert_lists_exports("\n".join(conf._api()), "(?m)^## ")
    assert_lists_commands("\n".join(conf._commands()), "## ", "\n")


@pytest.mark.slow
def test_the_api_page_lists_what_the_package_exports(site):
    """Every exported name is a heading with its docstring, and nothing else is."""
    assert_lists_exports((site / "generated" / "api.html").read_text(), "<h2>")


@pytest.mark.slow
def test_every_command_is_on_its_page(site):
    """With its help as it prints."""
    assert_lists_commands((site / "generated" / "cli.html").read_text(), "<h2>", "<")


def settings():
    """The module that a build is set up by."""
    spec = util.spec_from_file_location("site_conf", ROOT / "docs" / "conf.py")
    conf = util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    return conf


def test_outputs_of_notebooks_become_text_pictures_and_tables(tmp_path, monkeypatch):
    """As a build with outputs writes them."""
    conf = settings()
    monkeypatch.setattr(conf, "GENERATED", tmp_path)
    said = {"output_type": "stream", "name": "stdout", "text": "hello\n"}
    assert list(conf._output(said, "n")) == ["```text\nhello\n```"]
    bold = {**said, "text": ["\x1b[1mnodes\x1b[0m\n", "1\n"]}  # kernels ask what they start to write so
    assert list(conf._output(bold, "n")) == ["```text\nnodes\n1\n```"]
    drawn = {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}}
    assert list(conf._output(drawn, "n")) == ["![output](n.png)"]
    assert (tmp_path / "n.png").read_bytes() == b"hi"
    table = {"output_type": "execute_result", "data": {"text/html": ["<b>", "x</b>"], "text/plain": "x"}}
    assert list(conf._output(table, "n")) == ["```{raw} html\n<b>x</b>\n```"]
    assert not list(conf._output({"output_type": "stream", "name": "stderr", "text": "w"}, "n"))


def test_notebooks_have_their_outputs_unless_the_build_is_quick(tmp_path, monkeypatch):
    """One that needs what is not there says so."""
    conf, path = settings(), tmp_path / "n.ipynb"
    cell = {"cell_type": "code", "source": ["print(1)"], "outputs": []}
    said = {**cell, "outputs": [{"output_type": "stream", "name": "stdout", "text": "1\n"}]}
    monkeypatch.setattr(conf, "_run", lambda _: [said])
    path.write_text(json.dumps({"cells": [cell], "metadata": {"needs": ["json"]}}))
    assert "```text\n1\n```" in conf._notebook(path, quick=False)
    assert "run it to see its output.*" in conf._notebook(path, quick=True)
    path.write_text(json.dumps({"cells": [cell], "metadata": {"needs": ["nothing_of_that_name"]}}))
    assert "built without nothing_of_that_name)" in conf._notebook(path, quick=False)


@pytest.mark.slow
def test_a_page_shows_what_its_notebook_draws(tmp_path, monkeypatch):
    """The notebook about schedules, run as a build runs it."""
    pytest.importorskip("nbclient")
    conf = settings()
    monkeypatch.setattr(conf, "GENERATED", tmp_path)
    page = conf._notebook(ROOT / "notebooks" / "03_schedules_compared.ipynb", quick=False)
    assert "![output](03_schedules_compared" in page
    assert len(list(tmp_path.glob("*.png"))) > 1


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    """Scripts, styles, fonts and images lie beside the pages."""
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert not re.findall(r'(?:src|<link[^>]* href)="https?:', text), path.name


@pytest.mark.slow
def test_the_example_result_is_there(site):
    """The first page links to a result that can be opened."""
    assert 'href="example.html"' in (site / "index.html").read_text()
    assert "What to try next" in (site / "example.html").read_text()


@pytest.mark.slow
def test_the_explorer_has_every_choice(site):
    """The first page links to it; a quick build has few, and the published one more of each kind."""
    conf = settings()
    assert 'href="explorer.html"' in (site / "index.html").read_text()
    assert (site / "explorer.html").read_text().count("<tr") == 1 + math.prod(map(len, conf.QUICK_CHOICES.values()))
    assert all(len(conf.CHOICES[key]) > len(few) for key, few in conf.QUICK_CHOICES.items() if len(few) == 1)


@pytest.mark.slow
def test_the_example_that_is_shown_has_advice(tmp_path):
    """The scenario of the published site, which the site of these tests replaces by a small one."""
    conf = settings()
    assert conf.EXAMPLE != SMALL
    conf._example(tmp_path / "example.html", conf.EXAMPLE)
    assert "What to try next" in (tmp_path / "example.html").read_text()
