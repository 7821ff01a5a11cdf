"""The documentation site. Build: ``sphinx-build -W -b html docs build/site``; it opens from the folder, offline.

Notebooks are run (some minutes), so that their pages show what they print and draw; those that need what is not
installed, such as torch, say so and hold text and code. ``-t quick`` runs none.

Pages that follow from what is there are made anew by every build, under docs/generated: the help of every
command, the API page, the notebooks, the changelog, the board of accuracy, and the page of an example result.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import simpar  # noqa: E402 - the checkout, not an installed one

project, author, copyright = "simpar", "the simpar authors", "the simpar authors"
version = release = simpar.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"  # drawn by browsers themselves: no script is fetched from elsewhere
exclude_patterns = ["images", "static"]
html_theme = "furo"
html_title = f"simpar {version}"
html_copy_source = False
html_extra_path = ["generated/extra"]
html_static_path = ["static"]
html_js_files = ["scrolls.js"]
html_theme_options = {"sidebar_hide_name": False}
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
suppress_warnings = ["myst.header"]

EXAMPLE = "gpt3-175b-64-a100"
CHOICES: dict[str, tuple[Any, ...]] = {
    "model": ("llama-3.1-8b", "qwen3-32b", "llama-3.1-70b"),
    "hardware": ("dgx-a100-80gb", "dgx-h100", "dgx-b200"),
    "nodes": (1, 4, 16),
    "tp": (1, 2, 4, 8),
    "pp": (1, 2, 4),
    "zero": (1, 3),
    "recompute": ("none", "full"),
}
"""The explorer's; those of a quick build are few."""
QUICK_CHOICES = {**CHOICES, **{key: CHOICES[key][:1] for key in ("model", "nodes", "pp")}, "hardware": ("dgx-h100",)}
EXPLAINED = (
    "Simulated when this site was built: sequences of 4,096 tokens, 256 a step, micro-batches of one, bf16, "
    "Megatron-Core. Anything else is one command away: simpar simulate."
)
STYLED = re.compile(r"\x1b\[[0-9;]*m")
"""How terminals are told of bold and colours, which kernels ask of what they start."""
GENERATED = Path(__file__).parent / "generated"


def setup(app: Any) -> None:
    """Make the generated pages before anything is read."""
    app.add_config_value("example", EXAMPLE, "html")
    app.connect("config-inited", lambda _, config: generate(config.example))
    app.connect("autodoc-skip-member", _skip)
    app.connect("build-finished", lambda app, _: _name_parts(Path(app.outdir)))
    app.add_html_math_renderer("mathml", inline_renderers=(_math, None), block_renderers=(_math, None))


NAMED = {
    'class="caption" role="heading">': 'class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
    '<th class="head"><p></p></th>': "<td></td>",
    '<noscript>\n<div class="admonition error">': '<h1>Search</h1>\n<noscript>\n<div class="admonition error">',
}
"""What the theme leaves without a name or a level, which readers that speak a page go by; the last is of its search."""


def _name_parts(folder: Path) -> None:
    """Complete the pages of the theme."""
    for path in folder.rglob("*.html"):
        text = whole = path.read_text(encoding="utf-8")
        for bare, named in NAMED.items():
            text = text.replace(bare, named)
        if text != whole:
            path.write_text(text, encoding="utf-8")


def _math(writer: Any, node: Any) -> None:
    """A formula as MathML."""
    from docutils.nodes import SkipNode
    from docutils.utils.math.latex2mathml import tex2mathml

    block = node.tagname == "math_block"
    writer.body.append(tex2mathml(node.astext(), as_block=block))
    raise SkipNode


def _skip(_app: Any, _what: str, name: str, _thing: object, skip: bool, _options: Any) -> bool:
    """What every pydantic model has is no part of ours."""
    return skip or name.startswith(("model_", "_"))


def generate(example: str) -> None:
    """Write every generated page, and the result of the example, a scenario, beside them."""
    quick = "quick" in globals().get("tags", ())
    (GENERATED / "extra").mkdir(parents=True, exist_ok=True)
    (GENERATED / "cli.md").write_text("# Command line\n\n" + "\n".join(_commands()))
    (GENERATED / "api.md").write_text("\n".join(_api()))
    (GENERATED / "board.md").write_text(_board())
    (GENERATED / "changelog.md").write_text((ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](../"))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        (GENERATED / f"{path.stem}.md").write_text(_notebook(path, quick=quick))
    _example(GENERATED / "extra" / "example.html", example)
    _explorer(GENERATED / "extra" / "explorer.html", QUICK_CHOICES if quick else CHOICES)


def _explorer(path: Path, choices: dict[str, tuple[Any, ...]]) -> None:
    """The page on which layouts are tried without installing anything: every combination of ``choices``, simulated."""
    from simpar.report.sweep import save_sweep
    from simpar.verbs import sweep

    swept = sweep(None, choices, flags={"training.seq_len": 4096, "training.global_batch": 256})
    save_sweep(swept.rows, path, "Layouts to try", EXPLAINED)


def _board() -> str:
    """Errors over releases, from the page of validation and those that were kept."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from accuracy_board import VALIDATION, board, kept

    return board(VALIDATION.read_text(encoding="utf-8"), kept())


def _commands() -> Iterator[str]:
    """The help of every command, as it prints."""
    from typer.main import get_command

    from simpar.cli import app
    from simpar.cli.flags import complete_commands

    complete_commands()
    group: Any = get_command(app)
    context = group.make_context("simpar", [], resilient_parsing=True)
    yield f"```text\n{group.get_help(context)}\n```\n"
    yield from _helps(group, context)


def _helps(group: Any, context: Any) -> Iterator[str]:
    """The help of every command of a group, and of those that are groups themselves."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        inner = type(context)(command, info_name=name, parent=context)
        yield f"## {inner.command_path}\n\n```text\n{command.get_help(inner)}\n```\n"
        if hasattr(command, "list_commands"):
            yield from _helps(command, inner)


def _api() -> Iterator[str]:
    """Everything that the package exports, under the name that users import."""
    yield "# Python\n\nEverything that `import simpar` gives. Names are imported when first used.\n"
    for name, home, what in simpar._CONTENTS:
        module, _, attribute = home.partition(":")
        kind = "autoclass" if isinstance(getattr(simpar, name), type) else "autofunction"
        yield f"## simpar.{name}\n\n{what[0].upper()}{what[1:]}.\n"
        yield f"```{{eval-rst}}\n.. {kind}:: simpar.{module}.{attribute}\n```\n"


def _notebook(path: Path, *, quick: bool) -> str:
    """Text and code of a notebook, in order, with what its cells give unless the build is ``quick``."""
    kept = json.loads(path.read_text())
    needs = [name for name in kept["metadata"].get("needs", ()) if find_spec(name) is None]
    run = not quick and not needs
    cells = _run(path) if run else kept["cells"]
    parts: list[str] = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for index, output in enumerate(cell["outputs"]):
            parts += _output(output, f"{path.stem}-{number}-{index}")
    why = "" if quick else f" (this site was built without {' and '.join(needs)})"
    ending = "" if run else f"; run it to see its output{why}"
    return "\n\n".join(parts) + f"\n\n*This page is `notebooks/{path.name}`{ending}.*\n"


def _run(path: Path) -> list[Any]:
    """The cells of a notebook, run in a folder that is gone afterwards."""
    from tempfile import TemporaryDirectory

    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with TemporaryDirectory() as folder:
        quiet = ["--IPKernelApp.log_level=ERROR"]  # kernels warn of plain TCP, which stays on this machine
        NotebookClient(
            notebook,
            timeout=900,
            resources={"metadata": {"path": folder}},
            extra_arguments=quiet,
            coalesce_streams=True,
        ).execute()
    cells: list[Any] = notebook.cells
    return cells


def _output(output: Any, name: str) -> Iterator[str]:
    """What a cell gave, as a page shows it: pictures beside the page, tables as they are, else text."""
    from base64 import b64decode

    data = output.get("data", {})
    if output["output_type"] == "stream" and output["name"] == "stdout":
        yield f"```text\n{STYLED.sub('', ''.join(output['text'])).rstrip()}\n```"
    elif "image/png" in data:
        (GENERATED / f"{name}.png").write_bytes(b64decode(data["image/png"]))
        yield f"![output]({name}.png)"
    elif "text/html" in data:
        yield f"```{{raw}} html\n{''.join(data['text/html'])}\n```"
    elif "text/plain" in data:
        yield f"```text\n{''.join(data['text/plain'])}\n```"


def _example(path: Path, name: str) -> None:
    """The page of a shipped scenario."""
    from simpar.neighbours import advise
    from simpar.report.html import save_report
    from simpar.scenario import load_scenario
    from simpar.simulation import simulate

    inputs = load_scenario(name, settings=["training.global_batch=32"]).inputs()
    save_report(advise(simulate(**inputs), inputs), path)
