"""``simpar compare``: two results side by side, and why they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out, working

if TYPE_CHECKING:
    from rich.console import Console

    from simpar.report.compare import Comparison

FILE_HELP = "A result of simpar simulate --json, a search, a plan or a scenario"


@app.command(epilog="Example: simpar compare before.json after.json")
def compare(
    a: Annotated[str, typer.Argument(help=FILE_HELP, metavar="A")],
    b: Annotated[str, typer.Argument(help=FILE_HELP, metavar="B")],
    *,
    tokens: Annotated[
        str | None, typer.Option("--tokens", help="Tokens of the whole run, for both, such as 15T")
    ] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
    csv: Annotated[str | None, typer.Option("--csv", help="Write the figures of both as CSV, in SI units")] = None,
    html: Annotated[
        str | None, typer.Option("--html", help="Write a page with both timelines on one scale of time")
    ] = None,
    timeline: Annotated[
        str | None, typer.Option("--timeline", help="Draw both timelines as .png, .svg, .pdf or .html")
    ] = None,
) -> None:
    """Show two results side by side and explain the difference."""
    from simpar.report.compare import differences
    from simpar.verbs import load_result

    with working(f"comparing {a} and {b}"):
        first, second = load_result(a, tokens), load_result(b, tokens)
        comparison = differences(first, second)
    if html:
        from simpar.report.html.pair import save_pair

        save_pair((first, second), html, (a, b))
    if timeline:
        from simpar.report.plots import save_timelines

        save_timelines(dict(zip(comparison.names, (first, second), strict=True)), timeline)
    if csv:
        from simpar.report.table import ReportTable

        pairs = [[name, pair.a, pair.b] for name, pair in comparison.figures.items()]
        ReportTable(["figure", *comparison.names], pairs).save_csv(csv)
    if not json_out(comparison.model_dump(mode="json"), json_):
        _print(comparison, (a, b), console())


def _print(comparison: Comparison, names: tuple[str, str], out: Console) -> None:
    from simpar.report.compare import format_input, rows
    from simpar.report.table import ReportTable, text

    for letter, name in zip(comparison.names, names, strict=True):
        out.print(f"{letter}: {name}", style="bold", soft_wrap=True, markup=False)
    if comparison.asked:
        asked = [(key, format_input(key, pair.a), format_input(key, pair.b)) for key, pair in comparison.asked.items()]
        out.print(ReportTable([text("asked"), *(text(name, least=12) for name in comparison.names)], asked))
    else:
        out.print("asked: the same", soft_wrap=True)
    out.print(
        ReportTable(
            [text("came out"), *comparison.names, f"{comparison.names[1]} / {comparison.names[0]}"], rows(comparison)
        )
    )
    for sentence in comparison.sentences:
        out.print(f"- {sentence}", soft_wrap=True, markup=False)
