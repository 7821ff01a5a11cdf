"""``simpar simulate``: one layout to a report."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simpar.cli.app import INFEASIBLE, JSON_HELP, app, console, working
from simpar.cli.flags import (
    OPERATION_FLAGS,
    PERTURBATION_FLAGS,
    SCENARIO_FLAGS,
    Flag,
    scenario_flags,
    with_flags,
)

if TYPE_CHECKING:
    from simpar.operate.outcome import Outcome
    from simpar.report.result import Result
    from simpar.scenario import Scenario

SIMULATE_FLAGS = (
    Flag("--set", "", list[str], "Any scenario key: dotted.key=value; may be repeated"),
    Flag("--over", "", list[str], "Simulate each of several: key=value,value; repeated, every combination"),
    Flag("--json", "", str, JSON_HELP),
    Flag("--trace", "", str, "Write a trace for Perfetto or chrome://tracing"),
    Flag("--timeline", "", str, "Write the timeline as .png, .svg or .html"),
    Flag("--memory-plot", "", str, "Write memory over time as .png, .svg or .html"),
    Flag("--html", "", str, "Write the report as one self-contained page; implies --advise"),
    Flag("--advise", "", bool, "Simulate neighbouring layouts and say what each would gain"),
    Flag("--engine", "", str, "auto, reference, sweep or event"),
    Flag("--seed", "", int, "First seed of jitter"),
    Flag("--flops-convention", "", str, "How MFU counts causal attention: full or causal"),
    Flag("--require-fit", "", bool, "Exit with 3 where the layout does not fit in memory"),
)


@app.command(epilog="Example: simpar simulate --model llama-3-8b --hardware dgx-h100 --seq-len 8192 "
             "--global-batch 64 --zero 3 --json result.json")  # fmt: skip
@with_flags(
    (*SCENARIO_FLAGS, *PERTURBATION_FLAGS, *OPERATION_FLAGS, *SIMULATE_FLAGS),
    "A shipped scenario, a scenario file or a plan file",
)
def simulate(scenario: str | None, **values: Any) -> int:
    """Simulate one layout: step time, memory and limiting factors."""
    from simpar.scenario import load_scenario

    flags = scenario_flags(values, (*SCENARIO_FLAGS, *PERTURBATION_FLAGS, *OPERATION_FLAGS))
    if values["over"]:
        from simpar.cli.sweep import swept

        return swept(scenario, flags, values)
    loaded = load_scenario(scenario, flags, list(values["set_"] or []))
    from simpar.simulation import simulate as run_step  # after the input is known to be good: it loads much

    options = {
        name: values[name] for name in ("engine", "flops_convention", "seed") if values[name] is not None
    }
    inputs = loaded.inputs()
    with working("simulating") as status:
        result = run_step(**inputs, **options).with_published(loaded.published)
        if values["advise"] or values["html"]:
            result = _advised(result, {**inputs, **options}, status)
    campaign = _operated(result, loaded, inputs, values["seed"]) if loaded.operation else None
    _write_outputs(result, values, campaign)
    return INFEASIBLE if values["require_fit"] and not result.fits else 0


def _advised(result: Result, inputs: Mapping[str, Any], status: Any) -> Result:
    from simpar.neighbours import advise

    return advise(result, inputs, lambda change: status.update(f"trying {change} ..."))


def _operated(result: Result, loaded: Scenario, inputs: Mapping[str, Any], seed: int | None) -> Outcome:
    from simpar.operate.outcome import Job, operate
    from simpar.plan.plan import Plan

    assert loaded.operation is not None, "asked for by a flag or the scenario"
    plan = Plan.model_validate(result.setup.plan)
    job = Job.of(result, inputs["cluster"], inputs["model"].num_parameters(), plan)
    with working(f"operating for {loaded.operation.days:g} days"):
        return operate(job, loaded.operation, seed=seed or 0)


def _write_outputs(result: Result, values: Mapping[str, Any], campaign: Outcome | None) -> None:
    import json

    from simpar.files import write_atomic
    from simpar.report.plots import save_plot
    from simpar.report.terminal import print_report
    from simpar.report.trace import write_trace

    if values["trace"] and result.timeline is not None:
        write_trace(
            result.timeline, values["trace"], metadata={"simpar_version": result.setup.simpar_version}
        )
    for name, kind in (("timeline", "timeline"), ("memory_plot", "memory")):
        if values[name]:
            with working(f"drawing {kind}"):
                save_plot(result, kind, values[name])
    if values["html"]:
        from simpar.report.html import save_report

        save_report(result, values["html"])
    if values["json_"]:
        data = result.to_dict() | ({"operation": campaign.model_dump()} if campaign else {})
        text = json.dumps(data, allow_nan=False) + "\n"
        if values["json_"] == "-":
            sys.stdout.write(text)
            return
        write_atomic(values["json_"], text)
    print_report(result, console())
    if campaign:
        from simpar.operate.terminal import print_outcome

        print_outcome(campaign, console())
