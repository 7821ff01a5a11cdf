"""``simpar calibrate``: measure this machine with torch and write the profiles that predict it."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from simpar.cli.app import JSON_HELP, OUR_FAULT, app, console, json_out, working


@app.command(epilog="Example: simpar calibrate -o here.yaml --ranks 2")
def calibrate(
    output: Annotated[str, typer.Option("--output", "-o", help="Profile to write; the stack is written beside it")],
    ranks: Annotated[
        int | None,
        typer.Option(help="Ranks that share this machine (default: one per CUDA device, else per core)", min=1),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda if there is a device)")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure only a few sizes, in seconds; the numbers are not reliable")
    ] = False,
    date: Annotated[str | None, typer.Option(help="Date of the measurement, noted in the profile")] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> int:
    """Measure this machine and write profiles that predict it.

    It measures kernels, attention, collectives and whole steps, with torch.
    """
    from simpar.calibrate.measure import calibrate as measure
    from simpar.calibrate.measure import known_facts, make_request, summary
    from simpar.calibrate.profile import write
    from simpar.errors import UserError
    from simpar.runtime.failures import WorkerFailure

    path = Path(output)
    if path.suffix not in (".yaml", ".yml"):
        raise UserError(f"--output {output}: allowed: a name that ends in .yaml")
    request = make_request(ranks, device, is_quick=quick)
    try:
        with working(f"measuring {request.ranks} rank(s)"):
            profiles = measure(request, known_facts(request, path.stem, date))
    except WorkerFailure as failure:
        sys.stderr.write(f"{failure}\n")
        return OUR_FAULT
    shutil.rmtree(request.folder, ignore_errors=True)
    cluster, stack = write(profiles, path)
    if not json_out(summary(profiles), json_):
        screen = console()
        screen.print(f"{'absolute error of the fits':<32}{'samples':>8}{'median':>9}{'p90':>9}", style="bold")
        for each in profiles.quality:
            screen.print(f"{each.part:<32}{each.count:>8}{each.median:>9.1%}{each.p90:>9.1%}")
        if profiles.quiet is not None:
            screen.print(profiles.quiet.words, soft_wrap=True)
        screen.print(f"wrote {cluster} and {stack}: --hardware {cluster} --stack {stack}", soft_wrap=True)
    if profiles.quiet is not None and profiles.quiet.is_busy:
        sys.stderr.write(f"the machine was busy while it was measured ({profiles.quiet.words}): calibrate again\n")
    return 0
