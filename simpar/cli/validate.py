"""``simpar validate``: predicted against measured."""

from typing import Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out, working


@app.command(epilog="Example: simpar validate measured.csv --json errors.json")
def validate(
    table: Annotated[
        str, typer.Argument(help="Measured runs, kernels or collectives, one per row", metavar="TABLE.csv")
    ],
    using: Annotated[
        str | None, typer.Option(help="Predict with the profiles in a file of simpar learn", metavar="OURS.yaml")
    ] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Predict every row of a measured table and report the errors.

    Rows are runs, single kernels or collectives; docs/measured.md lists the columns.
    """
    from simpar.report.validation_table import print_validation
    from simpar.validation.table import validate

    with working(f"predicting {table}"):
        answer = validate(table, using=using)
    if not json_out(answer, json_):
        print_validation(answer, console())
