"""``simpar run``: train a plan for real and compare the measurement with the prediction."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from simpar.cli.app import INTERRUPTED, JSON_HELP, OUR_FAULT, app, console, json_out
from simpar.cli.flags import ScenarioFlag, parameter, scenario_flags, values_by_key, with_parameters
from simpar.errors import UserError
from simpar.regular_files import resolved

RUN_FLAGS = (
    ScenarioFlag("--nproc", "Ranks on this node (default: as the plan needs)", kind=int),
    ScenarioFlag("--output,-o", "Folder for log, report and traces (default: PLAN-run)"),
    ScenarioFlag("--json", JSON_HELP),
    ScenarioFlag("--set", "Any scenario key: dotted.key=value; may be repeated", kind=list[str]),
    ScenarioFlag("--learning-rate", "Learning rate (default: 1e-4)", "learning.learning_rate", float),
    ScenarioFlag(
        "--lr-schedule", "Learning rate after the warm-up: constant, cosine, linear or wsd", "learning.schedule"
    ),
    ScenarioFlag("--lr-warmup", "Steps over which the learning rate rises (default: 0)", "learning.warmup_steps", int),
    ScenarioFlag(
        "--lr-decay", "Last steps, in which wsd lowers the rate (default: a tenth)", "learning.decay_steps", int
    ),
    ScenarioFlag(
        "--lr-steps",
        "Steps of the whole schedule, resumed runs included (default: --steps)",
        "learning.schedule_steps",
        int,
    ),
    ScenarioFlag(
        "--min-learning-rate", "Learning rate at the end of the schedule (default: 0)", "learning.least_rate", float
    ),
    ScenarioFlag("--weight-decay", "Weight decay of the optimizer (default: 0)", "learning.weight_decay", float),
    ScenarioFlag(
        "--lora-alpha", "Adapters add alpha / rank of their products (default: the rank)", "learning.lora_alpha", float
    ),
    ScenarioFlag(
        "--loss-scale", "First factor of the loss in fp16 (default: 65536)", "learning.sixteen_bits.loss_scale", float
    ),
    ScenarioFlag(
        "--rounding",
        "Of parameters in bf16: stochastic or nearest (default: stochastic)",
        "learning.sixteen_bits.rounding",
    ),
    ScenarioFlag("--clip-norm", "Clip the gradient to this norm", "learning.clip_norm", float),
    ScenarioFlag("--seed", "Seed of initial weights, data order and dropout", "learning.seed", int),
    ScenarioFlag("--warmup", "First steps, which are not measured (default: 2)", "measuring.warmup", int),
    ScenarioFlag("--trace", "Write the simulated and the measured step as one trace for Perfetto"),
    ScenarioFlag(
        "--trace-steps",
        "Steps to trace with Kineto, one file per rank (default: 1 with --trace)",
        "measuring.trace_steps",
        int,
    ),
    ScenarioFlag(
        "--eval-every", "Steps between evaluations on held-out data (default: none)", "measuring.evaluate_every", int
    ),
    ScenarioFlag("--eval-batches", "Global batches of an evaluation (default: 1)", "measuring.evaluate_batches", int),
    ScenarioFlag("--held-out", "File to evaluate on, in the format of --tokens or --text", "measuring.held_out"),
    ScenarioFlag("--tensorboard/--no-tensorboard", "Also log for TensorBoard", "measuring.tensorboard", bool),
    ScenarioFlag("--wandb", "Also log to this project of Weights & Biases", "measuring.wandb"),
    ScenarioFlag(
        "--memory-snapshot/--no-memory-snapshot",
        "Record allocations on CUDA, one file per rank (default: no)",
        "measuring.memory_snapshot",
        bool,
    ),
    ScenarioFlag(
        "--tokens",
        "Train on a folder of simpar tokenize, Megatron's PREFIX of .bin and .idx, or a flat binary file of token ids; "
        "several, as --tokens a=0.7 --tokens b=0.3, are blended by weights, or as one without them",
        kind=list[str],
    ),
    ScenarioFlag("--token-dtype", "Data type of a flat file: uint16, uint32, int32 or int64", "data.dtype"),
    ScenarioFlag("--text", "Train on a file or folder of text, JSON lines or parquet, or a saved dataset"),
    ScenarioFlag(
        "--validation", "Share of the documents of --text, or of an index, to hold out", "data.validation", float
    ),
    ScenarioFlag("--pack/--no-pack", "Sequences of several documents, or of one (default: several)", "data.pack", bool),
    ScenarioFlag(
        "--apart/--across",
        "Attention within the documents of a sequence, or across them (default: across)",
        "data.apart",
        bool,
    ),
    ScenarioFlag("--loss-on", "completions alone, or all tokens, where texts have prompts", "data.loss_on"),
    ScenarioFlag(
        "--skip-empty/--no-skip-empty",
        "Leave out documents of --text that are empty or have no token in the loss (default: refused)",
        "data.skip_empty",
        bool,
    ),
    ScenarioFlag("--tokenizer", "Folder of a tokenizer, a tokenizer.json, or bytes", "data.tokenizer"),
    ScenarioFlag("--device", "cpu or cuda (default: cuda if there are enough devices)", "machine.device"),
    ScenarioFlag(
        "--compile/--no-compile", "Compile every layer with torch.compile (default: no)", "machine.compile", bool
    ),
    ScenarioFlag("--threads", "Threads of each rank (default: cores / ranks)", "machine.threads", int),
    ScenarioFlag(
        "--timeout", "Seconds after which a rank that does not respond counts as dead", "machine.timeout_s", float
    ),
    ScenarioFlag("--port", "Port on which rank 0 listens (default: a free one, on localhost)", "machine.port", int),
    ScenarioFlag("--init-from", "Folder of Hugging Face weights to start from", "weights.init_from"),
    ScenarioFlag(
        "--save-to", "New folder for the trained model in Hugging Face format, with tokenizer", "weights.save_to"
    ),
    ScenarioFlag("--merge/--no-merge", "Save adapters in the model (default: alone, for PEFT)", "weights.merge", bool),
    ScenarioFlag(
        "--checkpoint", "Folder to which checkpoints are saved, and from which the run continues", "checkpoints.folder"
    ),
    ScenarioFlag(
        "--checkpoint-every", "Steps between checkpoints (one is always written at the end)", "checkpoints.every", int
    ),
    ScenarioFlag("--keep", "Number of newest checkpoints to keep (default: 2)", "checkpoints.keep", int),
    ScenarioFlag(
        "--resume/--no-resume", "Continue from the newest checkpoint (default: yes)", "checkpoints.resume", bool
    ),
    ScenarioFlag(
        "--background/--no-background",
        "Write checkpoints while training continues (default: yes)",
        "checkpoints.background",
        bool,
    ),
    ScenarioFlag(
        "--max-restarts",
        "How often all ranks may restart after a failure (default: 3 with --checkpoint, else 0)",
        kind=int,
    ),
    ScenarioFlag(
        "--on-loss",
        "Where a rank is ended from outside: restart all of them, or replan for those that are left (default: restart)",
    ),
    ScenarioFlag("--nnodes", "Number of nodes of the run; every node runs this command", kind=int),
    ScenarioFlag("--node-rank", "Number of this node, from 0", kind=int),
    ScenarioFlag("--rendezvous", "HOST:PORT of one node, which all others can reach"),
)


def _parameters() -> list[inspect.Parameter]:
    """The plan and steps as arguments, then every flag as an option."""
    by_name = inspect.Parameter.KEYWORD_ONLY
    plan = Annotated[str, typer.Argument(help="A plan, scenario file or shipped scenario", metavar="PLAN.json")]
    steps = Annotated[int, typer.Option("--steps", help="Optimizer steps", min=1)]
    first = inspect.Parameter("plan", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=plan)
    count = inspect.Parameter("steps", by_name, annotation=steps)
    return [first, count, *map(parameter, (*scenario_flags(), *RUN_FLAGS))]


@app.command(epilog="Example: simpar run plan.json --steps 20 --nproc 4 --hardware profile.yaml")
@with_parameters(_parameters)
def run(plan: str, steps: int, **values: Any) -> int:
    """Train a plan with torch, measured beside predicted."""
    from simpar.runtime.experiment import Interrupted, conduct
    from simpar.runtime.failures import WorkerFailure
    from simpar.runtime.launch import NodeRendezvous, require_torch
    from simpar.runtime.replan import replanner_of
    from simpar.runtime.request import HARDWARE, default_folder, load_request, make_ready

    require_torch()
    count = values["nnodes"]
    nodes = NodeRendezvous(1 if count is None else count, values["node_rank"] or 0, values["rendezvous"])
    nodes.check()
    if (restarts := values["max_restarts"]) is not None and restarts < 0:
        raise UserError(f"--max-restarts {restarts}: allowed: 0 or more")
    request = load_request(plan, values_by_key(values), list(values["set_"] or []))
    folder = resolved(values["output"] or default_folder(plan))
    options = {"steps": steps, "folder": str(folder), **_job_fields(values)}
    named_by = plan if values["hardware"] is None else HARDWARE
    replanner = replanner_of(values["on_loss"], request, options, named_by)
    ready = None
    if replanner is not None:
        replanner.check(nodes.count, restarts)
        ready = replanner.begin(values["nproc"], nodes.count, say=_say)
    if ready is None:
        ready = make_ready(request, values["nproc"], nodes.count, options, named_by=named_by)
    if ready.job.own_code:
        sys.stderr.write(f"model: running the code of {ready.job.model}\n")
    graph = ready.job.graph()
    if parts := ready.job.library_parts:
        how = "data parallel only" if ready.job.cut_graph() is None else "cut into stages"
        how += ", without the layers that predict further tokens" if graph is not None and graph.auxiliary else ""
        sys.stderr.write(f"model: {', '.join(parts)}: trained with transformers' own class, {how}\n")
    if graph is not None and graph.said:
        sys.stderr.write(f"{graph.said}\n")
    _say_documents(request, ready)
    _say_left_out(values["text"], ready.job.data)
    try:
        with _progress(steps) as advance:
            again = partial(replanner.after, say=_say) if replanner and nodes.count == 1 else None
            options = {"max_restarts": restarts, "trace": values["trace"], "again": again}
            report = conduct(ready, nodes, advance=advance, **options)
    except WorkerFailure as failure:
        sys.stderr.write(f"{failure}\n")
        return OUR_FAULT
    except Interrupted as ended:
        if not json_out(ended.report, values["json_"]):
            _print_interrupted(ended.report, folder)
        return INTERRUPTED
    for each in (report or {}).get("restarts", ()):
        _say(f"rank {each['rank']} {each['reason']}: all ranks went on from the last checkpoint")
    if report is not None and not json_out(report, values["json_"]):
        _print(report, folder)
        _print_saved(ready.job)
        _warn(ready, report)
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _say_left_out(text: str | None, data: Any) -> None:
    """Say on standard error what of a text is not trained on."""
    from simpar.runtime.documents import count_unread
    from simpar.runtime.rows import tell_counts
    from simpar.runtime.tokenize import TokenManifest

    if text is None:
        return
    left_out = TokenManifest.load(Path(data.path)).left_out if data.kind == "tokens" else count_unread([text])
    if left_out:
        _say(f"--text {text}: left out: {tell_counts(left_out)}")


def _say_documents(request: Any, ready: Any) -> None:
    """Say on standard error where the documents of a scenario are not as long as the data's, if these are known."""
    stated, measured = request.training.documents, ready.training.documents
    if stated is None or measured is None:
        return
    assumed, here = (each.mean or sum(each.lengths) / len(each.lengths) for each in (stated, measured))
    if round(assumed) != round(here):
        lengths = f"{assumed:,.0f} tokens in the mean, the data's have {here:,.0f}"
        sys.stderr.write(f"training.documents: {lengths}: predicted with these\n")


def _job_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the job that flags set, nested as in the job."""
    from simpar.runtime.blend import sources_of
    from simpar.runtime.tokenizer import BYTES
    from simpar.settings import with_value

    fields: dict[str, Any] = {}
    for flag in RUN_FLAGS:
        if flag.key and values[flag.name] is not None:
            fields = with_value(fields, flag.key, values[flag.name])
    if values["trace"] and not fields.get("measuring", {}).get("trace_steps"):
        fields = with_value(fields, "measuring.trace_steps", 1)
    if values["tokens"] and values["text"] is not None:
        raise UserError(f"--tokens {values['tokens'][0]} and --text {values['text']}: allowed: one of them")
    if values["text"] is not None:
        fields = with_value(fields, "data.kind", "text")
        fields = with_value(fields, "data.path", str(Path(values["text"]).resolve()))
    for key, value in sources_of(values["tokens"] or ()).items():
        fields = with_value(fields, f"data.{key}", value)
    if values["held_out"] is not None:
        fields = with_value(fields, "measuring.held_out", str(Path(values["held_out"]).resolve()))
    if (given := values["tokenizer"]) not in (None, BYTES):
        fields = with_value(fields, "data.tokenizer", str(Path(given).resolve()))
    if "checkpoints" in fields:
        folder = fields["checkpoints"].get("folder")
        if folder is None:
            raise UserError("--checkpoint-every, --keep, --resume: need a folder, --checkpoint DIR")
        fields = with_value(fields, "checkpoints.folder", str(Path(folder).resolve()))
    return fields


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A progress bar on standard error that moves with every step; nothing if that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    screen = Console(stderr=True, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as bar:
        task = bar.add_task("starting", total=steps)

        def advance(row: Mapping[str, Any]) -> None:
            words = f"loss {row['loss']:.4f}, {row['step_time_s']:.3f} s a step"
            bar.update(task, completed=row["step"] + 1, description=words)

        yield advance


def _warn(ready: Any, report: Mapping[str, Any]) -> None:
    """Warn if the prediction was for another machine than this one, or for a quiet one: how it differs."""
    from simpar.runtime.this_machine import BUSY, unlike_this_machine

    if ready.cluster is None or report["machine"]["device"] != "cpu":
        return
    if (others := report["cores_used_by_others"] or 0.0) > BUSY:
        sys.stderr.write(
            f"other processes used {others:.0%} of the cores meanwhile: steps take longer than on a quiet machine, "
            "which is what was predicted\n"
        )
    if said := unlike_this_machine(ready.cluster, report["ranks"]):
        name = ready.cluster.profile.name
        sys.stderr.write(
            f"hardware {name} is not this machine ({said}): simpar calibrate -o here.yaml --ranks {report['ranks']}\n"
        )


def _print_interrupted(report: Mapping[str, Any], folder: Path) -> None:
    """The progress of a run that the user stopped, and how to resume it."""
    screen, losses = console(), report["losses"]
    screen.print(f"interrupted after {report['steps_done']} of {report['steps_asked']} steps", soft_wrap=True)
    if losses:
        screen.print(f"loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last", soft_wrap=True)
    kept = report["checkpoint"]
    screen.print(f"the same command goes on from {kept}" if kept else "no checkpoint was written", soft_wrap=True)
    _print_drawn(report)
    screen.print(f"wrote {folder}", soft_wrap=True)


def _print_drawn(report: Mapping[str, Any]) -> None:
    """What was drawn of each of several sources."""
    for each in report.get("drawn", ()):
        counts = (
            f"{each['drawn']:,} sequences ({each['share']:.1%}), {each['epochs']:.2f} times its {each['sequences']:,}"
        )
        console().print(f"drawn in all    {each['path']}: {counts}", soft_wrap=True)


def _print_saved(job: Any) -> None:
    """Where the model is, and what servers would miss in its folder."""
    from simpar.runtime.served import ServedFolder

    if job.weights.save_to is None:
        return
    screen, served = console(), ServedFolder.of(job, "")
    alone = job.plan.tuning.lora_rank is not None and not job.weights.merge
    screen.print(f"wrote {served.folder}" + (f" (adapters of {served.base})" if alone else ""), soft_wrap=True)
    for lacking in served.lacking():
        sys.stderr.write(f"{served.folder}: {lacking}\n")


def _print(report: Mapping[str, Any], folder: Path) -> None:
    from simpar.report.words import layout
    from simpar.runtime.summary import table
    from simpar.units import number_of

    screen, result = console(), report["measured"]
    losses = result["losses"]
    ranks = number_of(report["ranks"], "rank")
    screen.print(f"{report['model']}: {layout(report['plan'])}; {ranks}", style="bold", soft_wrap=True)
    for name, predicted, measured, error in table(report):
        screen.print(f"{name:<16}{predicted:>14}{measured:>14}{error:>10}", soft_wrap=True)
    if losses:
        screen.print(f"loss            {losses[0]:.4f} at first, {losses[-1]:.4f} after {len(losses)} steps")
    if held := result.get("evaluations"):
        screen.print(
            f"held-out loss   {held[min(held)]:.4f} after {min(held)}, {held[max(held)]:.4f} after {max(held)} steps"
        )
    _print_drawn(report)
    screen.print(f"wrote {folder}", soft_wrap=True)
