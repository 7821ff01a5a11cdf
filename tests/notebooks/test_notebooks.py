"""Notebooks run from top to bottom, in a fresh kernel and an empty folder, and are kept without their output."""

import ast
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

MISSING = [name for name in ("nbformat", "nbclient", "ipykernel") if find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PATIENCE_S = 900


def notebook(path):
    """A notebook as it is kept."""
    import nbformat

    return nbformat.read(path, as_version=4)


def test_the_first_notebook_runs_in_this_process(tmp_path, monkeypatch):
    """No cell fails, assertions about algebra and simulation included, and what cells end with can be shown."""
    from IPython.core.formatters import DisplayFormatter

    monkeypatch.chdir(tmp_path)
    first, names = NOTEBOOKS[0], {}
    shown = []
    for cell in notebook(first).cells:
        if cell.cell_type == "code":
            body = ast.parse(cell.source).body
            last = ast.Expression(body.pop().value) if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), first.stem, "exec"), names)
            if last is not None:
                value = eval(compile(last, first.stem, "eval"), names)
                shown += [DisplayFormatter().format(value)[0]] if value is not None else []
    assert shown
    assert all("text/plain" in forms for forms in shown)
    assert any("image/png" in forms for forms in shown)


@pytest.mark.slow  # a kernel takes five seconds and more
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    """No cell fails, assertions about algebra and simulation included."""
    for name in notebook(path).metadata.get("needs", ()):
        pytest.importorskip(name, reason=f"{name} is not installed")
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    start = "from nbclient.cli import main; main()"
    switches = [f"--timeout={PATIENCE_S}", "--KernelManager.transport=ipc", "--inplace"]
    command = [sys.executable, "-c", start, *switches]
    search = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search, "IPYTHONDIR": str(tmp_path / "ipython")}
    done = subprocess.run(
        [*command, str(copy)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    cells = notebook(copy).cells
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_output(path):
    """Counts and outputs would change with every run; what a notebook shows is what running it shows."""
    book = notebook(path)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_open_with_a_title(path):
    """The first cell says what the notebook answers."""
    first = notebook(path).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
