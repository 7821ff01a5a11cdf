"""``simpar explain``: where a measured step went, how it differs from the prediction, and what would help."""

import inspect
from typing import Annotated, Any

import typer

from simpar.cli.app import JSON_HELP, app, console, json_out, working
from simpar.cli.flags import ScenarioFlag, parameter, scenario_flags, values_by_key, with_parameters

EXPLAIN_FLAGS = (
    ScenarioFlag("--plan", "Plan, scenario file or shipped scenario of the run, for the prediction"),
    ScenarioFlag("--set", "Any scenario key: dotted.key=value; may be repeated", kind=list[str]),
    ScenarioFlag("--json", JSON_HELP),
    ScenarioFlag("--html", "Write a page with measured and predicted timeline, parts of the step, changes and ranks"),
    ScenarioFlag("--steps", "Optimizer steps in a trace without step marks (default: 1)", kind=int),
    ScenarioFlag("--kernel-classes", "File with patterns for the names of your kernels (docs/explain.md)"),
    ScenarioFlag("--no-changes", "Do not simulate what single changes would gain", kind=bool),
)


def _parameters() -> list[inspect.Parameter]:
    """The traces as arguments, then every flag as an option."""
    traces = Annotated[
        list[str],
        typer.Argument(
            help="Of a run: profiler traces or NCCL flight recorders, one per rank; its log; or a memory snapshot",
            metavar="MEASURED",
        ),
    ]
    first = inspect.Parameter("measured", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=traces)
    return [first, *map(parameter, (*EXPLAIN_FLAGS, *scenario_flags()))]


@app.command(epilog="Example: simpar explain trace-rank*.json.gz --plan plan.json --hardware dgx-h100")
@with_parameters(_parameters)
def explain(measured: list[str], **values: Any) -> None:
    """Explain where the time of a real run went.

    It shows compute by kind of kernel, exposed communication by axis, waiting for other ranks, bubbles and launches.
    With the run's plan (--plan, or flags), it also shows where the run deviates from the prediction, and what single
    changes would gain.
    """
    from simpar.diagnosis.answer import explain as explained
    from simpar.diagnosis.page import require_traces, save_page
    from simpar.diagnosis.terminal import print_explanation
    from simpar.scenario import load_scenario
    from simpar.units import number_of

    if values["html"]:
        require_traces(measured)
    flags, settings = values_by_key(values), list(values["set_"] or [])
    plan = load_scenario(values["plan"], flags, settings) if values["plan"] or flags or settings else None
    with working(f"reading {number_of(len(measured), 'file')}") as status:
        explanation = explained(
            *measured, plan=plan, changes=not values["no_changes"], kernel_classes=values["kernel_classes"],
            steps=values["steps"], progress=status.update,
        )  # fmt: skip
    if values["html"]:
        save_page(explanation, values["html"])
    if not json_out(explanation.to_dict(), values["json_"]):
        print_explanation(explanation, console())
