"""``simpar simulate``: one layout to a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simpar.cli.app import INFEASIBLE, JSON_HELP, app, console, working, write_out
from simpar.cli.flags import OPERATION_FLAGS, PERTURBATION_FLAGS, RUN_FLAGS, ScenarioFlag, values_by_key, with_flags

if TYPE_CHECKING:
    from simpar.operate.outcome import Outcome
    from simpar.plan.plan import Plan
    from simpar.report.result import Result
    from simpar.scenario import Scenario

SIMULATE_FLAGS = (
    ScenarioFlag("--set", "Any scenario key: dotted.key=value; may be repeated", kind=list[str]),
    ScenarioFlag(
        "--over",
        "Simulate every value of a key: key=value,value, with the keys of flags (tp, micro-batch, nodes, ...) and of "
        "--set; if repeated, every combination; help lists the keys",
        kind=list[str],
    ),
    ScenarioFlag(
        "--jobs",
        "Number of processes that share the combinations of --over; -1: one per core (default: one per core, at most "
        "8, on Linux; else 1). No result depends on it",
        kind=int,
    ),
    ScenarioFlag("--json", JSON_HELP),
    ScenarioFlag("--csv", "Write the table of --over as CSV, in SI units"),
    ScenarioFlag("--trace", "Write a trace for Perfetto or chrome://tracing"),
    ScenarioFlag("--timeline", "Write the timeline as .png, .svg, .pdf or .html"),
    ScenarioFlag("--memory-plot", "Write memory over time as .png, .svg, .pdf or .html"),
    ScenarioFlag("--html", "Write the report as one self-contained page; implies --advise"),
    ScenarioFlag("--ranks", "Also print where every rank is, and the process groups that it is in", kind=bool),
    ScenarioFlag("--advise", "Simulate neighbouring layouts and show what each would gain", kind=bool),
    ScenarioFlag("--engine", "Engine that executes the step: auto, reference, plain, sweep or event"),
    ScenarioFlag("--seed", "First seed of jitter", kind=int),
    ScenarioFlag(
        "--rl", "Simulate the whole step of reinforcement learning that the section post_training describes", kind=bool
    ),
    ScenarioFlag("--flops-convention", "How MFU counts causal attention: full or causal"),
    ScenarioFlag(
        "--require-fit",
        "Exit with 3 if the layout is predicted not to fit (simpar check takes a probability)",
        kind=bool,
    ),
)


@app.command(epilog="Example: simpar simulate --model llama-3-8b --hardware dgx-h100 --seq-len 8192 "
             "--global-batch 64 --zero 3 --json result.json")  # fmt: skip
@with_flags(
    (*RUN_FLAGS, *PERTURBATION_FLAGS, *OPERATION_FLAGS, *SIMULATE_FLAGS),
    "A shipped scenario, a scenario file or a plan file",
    plan=True,
)
def simulate(scenario: str | None, **values: Any) -> int:
    """Simulate one layout: step time, memory and limiting factors."""
    from simpar.errors import UserError
    from simpar.scenario import load_scenario

    flags = values_by_key(values, (*RUN_FLAGS, *PERTURBATION_FLAGS, *OPERATION_FLAGS))
    if values["over"] and values["rl"]:
        raise UserError("--over: is a table of single updates; allowed with --rl: --set post_training.KEY=VALUE")
    if values["over"]:
        from simpar.cli.sweep import run_sweep

        return run_sweep(scenario, flags, values)
    if values["csv"]:
        raise UserError("--csv: is the table of --over key=value,value; one result is written by --json")
    if values["jobs"] is not None:
        raise UserError("--jobs: is the number of processes that share --over key=value,value; one result needs one")
    loaded = load_scenario(scenario, flags, list(values["set_"] or []))
    _refuse_chunks_alone(loaded.plan, flags)
    if values["rl"] or loaded.post_training is not None:
        from simpar.cli.post_training import run_post_training

        return run_post_training(loaded, values)
    from simpar.simulation import simulate as run_step  # heavy: only once the input is known to be good

    options = {name: values[name] for name in ("engine", "flops_convention", "seed") if values[name] is not None}
    inputs = loaded.inputs()
    with working("simulating") as status:
        result = run_step(**inputs, **options).with_published(loaded.published)
        result = _under_other_stacks(result, {**inputs, **options})
        if values["advise"] or values["html"]:
            result = _advised(result, {**inputs, **options}, status)
    result, campaign = _operated(result, loaded, inputs, values["seed"] or 0)
    _write_outputs(result, values, campaign)
    return INFEASIBLE if values["require_fit"] and not result.fits else 0


def _refuse_chunks_alone(plan: Plan, flags: Mapping[str, Any]) -> None:
    """Refuse chunks without a pipeline, where every rank has all layers anyway."""
    from simpar.errors import UserError

    if (flags.get("plan.vpp") or 1) > 1 and (plan.mesh.pp or 1) == 1 and not plan.pipeline.stages:
        raise UserError(
            f"--vpp {flags['plan.vpp']}: chunks are those of pipeline ranks; allowed: with --pp of 2 or more"
        )


def _under_other_stacks(result: Result, inputs: Mapping[str, Any]) -> Result:
    from simpar.other_stacks import with_other_stacks

    return with_other_stacks(result, inputs)


def _advised(result: Result, inputs: Mapping[str, Any], status: Any) -> Result:
    from simpar.neighbours import advise
    from simpar.workers import Workers

    return advise(result, inputs, lambda change: status.update(f"trying {change} ..."), Workers.usual())


def _operated(result: Result, loaded: Scenario, inputs: Mapping[str, Any], seed: int) -> tuple[Result, Outcome | None]:
    """The result, with failures in its whole run if a reliability is known, and the campaign of --days."""
    if loaded.operation is None and result.whole_run is None:
        return result, None
    from simpar.operate.whole_run import add_operation

    with working("operating"):
        result = add_operation(result, inputs, loaded.operation, seed=seed)
        if loaded.operation is None or loaded.operation.days is None:
            return result, None
        from simpar.operate.outcome import OperatedJob, operate

        return result, operate(OperatedJob.from_inputs(result, inputs), loaded.operation, seed=seed)


def _write_outputs(result: Result, values: Mapping[str, Any], campaign: Outcome | None) -> None:
    import json

    from simpar.files import write_atomic
    from simpar.report.terminal import print_report

    if values["trace"] and result.timeline is not None:
        from simpar.report.trace import write_trace

        write_trace(result.timeline, values["trace"], metadata={"simpar_version": result.setup.simpar_version})
    for name, kind in (("timeline", "timeline"), ("memory_plot", "memory")):
        if values[name]:
            from simpar.report.plots import save_plot

            with working(f"drawing {kind}"):
                save_plot(result, kind, values[name])
    if values["html"]:
        from simpar.report.html import save_report

        save_report(result, values["html"])
    if values["json_"]:
        data = result.to_dict() | ({"operation": campaign.model_dump()} if campaign else {})
        text = json.dumps(data, allow_nan=False) + "\n"
        if values["json_"] == "-":
            write_out(text)
            return
        write_atomic(values["json_"], text)
    print_report(result, console())
    if values["ranks"]:
        _print_ranks(result)
    if campaign:
        from simpar.operate.terminal import print_outcome

        print_outcome(campaign, console())


def _print_ranks(result: Result) -> None:
    """Where ranks are, and their groups."""
    from simpar.report.ranks import MOST_RANKS, group_table, rank_table

    mesh, cluster, out = result.plan.mesh, result.setup.cluster, console()
    out.print("\nRanks" + (f", the first {MOST_RANKS} of {mesh.world_size:,}" if mesh.world_size > MOST_RANKS else ""))
    out.print(rank_table(mesh, -(-cluster["devices"] // cluster["nodes"])))
    out.print("Process groups")
    out.print(group_table(mesh))
