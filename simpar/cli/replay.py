"""``simpar replay``: execution traces, simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out, working

if TYPE_CHECKING:
    from simpar.chakra.replay import Replay


@app.command(epilog="Example: simpar replay step-*.json --hardware dgx-h100")
def replay(
    traces: Annotated[
        list[str],
        typer.Argument(
            help="Execution traces, one per rank, or their folder: *.et of Chakra, *.json of torch's "
            "ExecutionTraceObserver; names end with the rank",
            metavar="TRACE",
        ),
    ],
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            help="Cluster whose profile times communication, and kernels of torch; without it, the durations of Chakra",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Number of nodes (default: as many as the ranks fill)")
    ] = None,
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Simulate execution traces, as traced or on another cluster."""
    from simpar.chakra.sources import replay_files

    with working("replaying"):
        replayed, recording = replay_files(traces, hardware, nodes)
    if not json_out({**replayed.to_dict(), "notes": list(recording.notes)}, json_):
        _tell(replayed, len(recording), recording.notes)


def _tell(replayed: Replay, events: int, notes: tuple[str, ...]) -> None:
    from simpar.units import format_bytes, format_seconds, number_of

    out, ranks = console(), len(replayed.compute_s)
    busy = replayed.compute_s[replayed.busiest_rank]
    out.print(f"{format_seconds(replayed.step_time_s)} a step on {number_of(ranks, 'rank')}, {events:,} events")
    out.print(f"computing     {format_seconds(busy)} on rank {replayed.busiest_rank}, the busiest")
    out.print(f"not computing {format_seconds(replayed.step_time_s - busy)} there")
    if replayed.communication:
        out.print("\ncommunication, each call once and alone")
    for name, (calls, size, seconds) in sorted(replayed.communication.items()):
        out.print(f"  {name:<15}{calls:>8,} x {format_bytes(size):>10} together {format_seconds(seconds):>10}")
    for note in notes:
        out.print(f"note: {note}", soft_wrap=True, markup=False)
