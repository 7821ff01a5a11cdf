"""``simpar import``: a plan from the file of another framework."""

from typing import Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out


@app.command("import", epilog="Example: simpar import train.sh --from megatron -o plan.json")
def import_plan(
    file: Annotated[
        str,
        typer.Argument(
            help="Arguments or config of the other framework; FILE.py:RECIPE if the file has several recipes",
            metavar="FILE",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="What a shell script is started with: variables (NAME=VALUE), then its arguments",
            metavar="-- NAME=VALUE ... ARGUMENT ...",
            show_default=False,
        ),
    ] = None,
    *,
    source: Annotated[str, typer.Option("--from", help="Framework of the file, such as megatron")],
    output: Annotated[str, typer.Option("-o", "--output", help="Plan to write")] = "plan.json",
    model: Annotated[str | None, typer.Option("--model", help="Model, if the file names none")] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Read a plan from another framework's arguments or config.

    Nothing in the file is executed. A model that the file states in full is written beside the plan, as its config.
    """
    from simpar import translate, verbs

    imported = translate.import_plan(file, source, model=model, arguments=arguments or ())
    written = translate.save_imported(imported, output)
    account = verbs.account_of_import(file, source, imported)
    report = {
        "plan": output,
        "written": list(written),
        "ignored": list(imported.ignored),
        "notes": list(imported.notes),
        "words": account.to_dict(),
        "assumed": [{"key": each.key, "value": each.value, "why": each.why} for each in imported.assumed],
    }
    if json_out(report, json_):
        return
    out = console()
    out.print(f"wrote {' and '.join(written)}", soft_wrap=True)
    for note in imported.notes:
        out.print(f"note: {note}", soft_wrap=True, markup=False)
    for each in imported.assumed:
        out.print(f"assumed: {each.key} = {each.value} ({each.why})", soft_wrap=True, markup=False)
    for word, what in account.deciding.items():
        out.print(f"decides, but is not in the plan: {word}: {what}", soft_wrap=True, markup=False)
    if account.unknown:
        out.print(f"unknown to simpar, may decide: {', '.join(account.unknown)}", soft_wrap=True, markup=False)
    if account.idle:
        out.print(f"without effect on time and memory: {', '.join(account.idle)}", soft_wrap=True, markup=False)
