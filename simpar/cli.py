"""The command line. Thin: it turns flags into a scenario, calls the library and prints.

Everything heavy is imported inside the commands, so that ``simpar --help`` answers at once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from simpar.errors import Infeasible, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from simpar.hardware.profile import ClusterProfile
    from simpar.report.result import Result

BAD_INPUT, INFEASIBLE, INTERRUPTED = 2, 3, 130
PIPED_WIDTH = 200
JSON_HELP = "Write the result as JSON; - is standard output"

app = typer.Typer(
    name="simpar",
    help="Simulate and plan distributed training of large models.",
    epilog="Example: simpar simulate llama-3.1-405b-16384-h100 --timeline timeline.png",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


@dataclass(frozen=True)
class Flag:
    """One flag: its spelling, the scenario key it sets ("" for none), its type and help text."""

    spelling: str
    key: str
    kind: Any
    help: str

    @property
    def name(self) -> str:
        """The Python name of the flag: "--seq-len" is seq_len."""
        word = self.spelling.split("/")[0].split(",")[0].removeprefix("--").replace("-", "_")
        return f"{word}_" if word in ("set", "json") else word


SCENARIO_FLAGS = (
    Flag("--model", "model", str, "Model: a shipped name or a config.json"),
    Flag("--hardware", "cluster.hardware", str, "Hardware profile: a shipped name or a file"),
    Flag("--nodes", "cluster.nodes", int, "Number of nodes"),
    Flag("--seq-len", "training.seq_len", int, "Tokens per sequence"),
    Flag("--global-batch", "training.global_batch", int, "Sequences per optimizer step"),
    Flag("--tp", "plan.tp", int, "Tensor-parallel degree"),
    Flag("--pp", "plan.pp", int, "Pipeline-parallel degree"),
    Flag("--vpp", "plan.vpp", int, "Model chunks per pipeline rank"),
    Flag("--dp", "plan.dp", int, "Data-parallel degree (follows from the world size)"),
    Flag("--cp", "plan.cp", int, "Context-parallel degree"),
    Flag("--ep", "plan.ep", int, "Expert-parallel degree"),
    Flag("--micro-batch", "plan.micro_batch", int, "Sequences per microbatch"),
    Flag("--zero", "plan.zero", int, "ZeRO stage: 0, 1, 2 or 3"),
    Flag("--hsdp", "plan.hsdp", int, "Replicas of the sharded states"),
    Flag(
        "--sequence-parallel/--no-sequence-parallel",
        "plan.sequence_parallel",
        bool,
        "Shard norms by sequence",
    ),
    Flag("--schedule", "plan.schedule", str, "Pipeline schedule (simpar list schedules)"),
    Flag("--recompute", "plan.recompute", str, "none, selective, full or every:C"),
    Flag("--precision", "plan.precision", str, "bf16, fp16, fp32 or fp8"),
    Flag("--optimizer", "plan.optimizer", str, "adamw or sgd"),
    Flag("--stack", "stack", str, "Software stack profile (simpar list stacks)"),
)
SIMULATE_FLAGS = (
    Flag("--set", "", list[str], "Any scenario key: dotted.key=value; may be repeated"),
    Flag("--json", "", str, JSON_HELP),
    Flag("--trace", "", str, "Write a trace for Perfetto or chrome://tracing"),
    Flag("--timeline", "", str, "Write the timeline as .png, .svg or .html"),
    Flag("--memory-plot", "", str, "Write memory over time as .png, .svg or .html"),
    Flag("--engine", "", str, "auto, reference or sweep"),
    Flag("--seed", "", int, "Seed of jitter"),
    Flag("--flops-convention", "", str, "How MFU counts causal attention: full or causal"),
    Flag("--require-fit", "", bool, "Exit with 3 where the layout does not fit in memory"),
)


def with_flags(flags: tuple[Flag, ...], argument: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command taking ``(scenario, **values)`` one optional flag for each entry of the table."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        position = inspect.Parameter.POSITIONAL_OR_KEYWORD
        first = inspect.Parameter(
            "scenario",
            position,
            default=None,
            annotation=Annotated[str | None, typer.Argument(help=argument, metavar="[SCENARIO]")],
        )
        command.__signature__ = inspect.Signature([first, *map(_parameter, flags)])  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(flag: Flag) -> inspect.Parameter:
    kind, default = (bool, False) if flag.spelling == "--require-fit" else (flag.kind | None, None)
    option = typer.Option(flag.spelling, help=flag.help)
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


@app.command(epilog="Example: simpar simulate --model llama-3-8b --hardware dgx-h100 --seq-len 8192 "
             "--global-batch 64 --zero 3 --json result.json")  # fmt: skip
@with_flags((*SCENARIO_FLAGS, *SIMULATE_FLAGS), "A shipped scenario, a scenario file or a plan file")
def simulate(scenario: str | None, **values: Any) -> int:
    """Simulate one layout and report step time, memory and what binds."""
    from simpar.scenario import load_scenario

    flags = {flag.key: values[flag.name] for flag in SCENARIO_FLAGS if values[flag.name] is not None}
    settings = list(values["set_"] or [])
    loaded = load_scenario(scenario, flags, settings)
    from simpar.simulation import simulate as run_step  # after the input is known to be good: it loads much

    options = {
        name: values[name] for name in ("engine", "flops_convention", "seed") if values[name] is not None
    }
    with _working("simulating"):
        result = run_step(**loaded.inputs(), **options).with_published(loaded.published)
    _write_outputs(result, values)
    return INFEASIBLE if values["require_fit"] and not result.fits else 0


def _write_outputs(result: Result, values: Mapping[str, Any]) -> None:
    from simpar.report.plots import save_plot
    from simpar.report.terminal import print_report
    from simpar.report.trace import write_trace

    if values["trace"] and result.timeline is not None:
        write_trace(
            result.timeline, values["trace"], metadata={"simpar_version": result.setup.simpar_version}
        )
    for name, kind in (("timeline", "timeline"), ("memory_plot", "memory")):
        if values[name]:
            with _working(f"drawing {kind}"):
                save_plot(result, kind, values[name])
    if values["json_"] == "-":
        sys.stdout.write(result.to_json() + "\n")
        return
    if values["json_"]:
        result.save(values["json_"])
    print_report(result, _console())


@app.command(epilog="Example: simpar plot result.json --kind memory -o memory.png")
def plot(
    result: Annotated[
        str, typer.Argument(help="A result written by simpar simulate --json", metavar="RESULT.json")
    ],
    kind: Annotated[str, typer.Option("--kind", help="timeline, memory, breakdown or heatmap")] = "timeline",
    output: Annotated[
        str, typer.Option("-o", "--output", help="File to write: .png, .svg or .html")
    ] = "plot.png",
) -> None:
    """Draw a result that was saved as JSON."""
    from simpar.report.plots import save_plot
    from simpar.report.result import Result

    save_plot(Result.load(result), kind, output)
    _console().print(f"wrote {output}", soft_wrap=True)


@app.command(epilog="Example: simpar validate measured.csv --json errors.json")
def validate(
    table: Annotated[str, typer.Argument(help="Measured runs, one a row", metavar="TABLE.csv")],
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Predict every row of a table of measured runs and report the errors."""
    from simpar.report.terminal import print_validation
    from simpar.validate.table import validate as validate_table

    with _working(f"predicting {table}"):
        found = validate_table(table)
    if not _json_out(found, json_):
        print_validation(found, _console())


LISTS = ("models", "hardware", "scenarios", "schedules", "stacks")


@app.command("list", epilog="Example: simpar list models")
def list_names(
    what: Annotated[str, typer.Argument(help=", ".join(LISTS))],
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """List what is shipped, by the names that other commands take."""
    from simpar.files import choose
    from simpar.report.terminal import print_names

    names = _names(choose(what, LISTS, "list"))
    if not _json_out(names, json_):
        print_names(names, _console())


def _names(what: str) -> dict[str, str]:
    """Name and one line of description of everything of a kind."""
    return {
        "models": _models,
        "hardware": _hardware,
        "scenarios": lambda: _described("scenarios"),
        "stacks": lambda: _described("stacks"),
        "schedules": _schedules,
    }[what]()


def _models() -> dict[str, str]:
    from simpar.models.catalogue import catalogue, load_model
    from simpar.units import format_count

    return {
        name: f"{format_count(load_model(name).num_parameters())} parameters; {config['source']}"
        for name, config in catalogue().items()
    }


def _hardware() -> dict[str, str]:
    from simpar.files import bundled, load, parse
    from simpar.hardware.profile import ClusterProfile

    profiles = {name: parse(ClusterProfile, load(path)) for name, path in bundled("clusters").items()}
    return {name: _fabric(profile) for name, profile in profiles.items()}


def _fabric(profile: ClusterProfile) -> str:
    from simpar.units import format_rate

    inside, out = profile.scale_up, profile.scale_out
    words = f"{profile.devices_per_node} x {profile.device}, {inside.kind} {format_rate(inside.bandwidth)}"
    return words + (f", {out.nics_per_node} x {out.kind} {format_rate(out.nic_bandwidth)}" if out else "")


def _described(kind: str) -> dict[str, str]:
    from simpar.files import bundled, load

    return {name: str(load(path).data.get("description", "")) for name, path in bundled(kind).items()}


def _schedules() -> dict[str, str]:
    from simpar.plan.schedules import SCHEDULES

    return dict(SCHEDULES)


SCHEMAS = ("plan", "scenario", "profile", "device", "stack")


@app.command(epilog="Example: simpar schema scenario > scenario.schema.json")
def schema(what: Annotated[str, typer.Argument(help=", ".join(SCHEMAS))]) -> None:
    """Print the JSON Schema of a file that simpar reads."""
    import json

    from simpar.files import choose

    sys.stdout.write(json.dumps(_schema(choose(what, SCHEMAS, "schema")), indent=2) + "\n")


def _schema(what: str) -> dict[str, Any]:
    from pydantic import BaseModel

    from simpar.cost.stack import Stack
    from simpar.hardware.device import Device
    from simpar.hardware.profile import ClusterProfile
    from simpar.plan.plan import Plan
    from simpar.scenario import Scenario

    models: dict[str, type[BaseModel]] = {
        "plan": Plan, "scenario": Scenario, "profile": ClusterProfile, "device": Device, "stack": Stack,
    }  # fmt: skip
    return models[what].model_json_schema()


@app.command(epilog="Example: simpar doctor")
def doctor(
    json_: Annotated[str | None, typer.Option("--json", help=JSON_HELP)] = None,
) -> None:
    """Show versions of simpar and what it builds on."""
    from simpar.report.terminal import print_names

    found = _versions()
    if not _json_out(found, json_):
        print_names(found, _console())


def _versions() -> dict[str, str]:
    import platform
    from importlib import metadata

    packages = ("numpy", "scipy", "simpy", "networkx", "pandas", "matplotlib", "pydantic", "typer", "rich")
    extras = {"numba": "extra fast: compiled event engine", "torch": "extra torch: real runs"}
    found = {"simpar": _version(), "python": platform.python_version()}
    for name in (*packages, *extras):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = f"not installed ({extras.get(name, 'required')})"
    return found


def _version() -> str:
    import simpar

    return simpar.__version__


def _json_out(data: Any, path: str | None) -> bool:
    """Write data as JSON where asked to; True where standard output is taken."""
    import json

    from simpar.files import write_atomic

    text = json.dumps(data, indent=2) + "\n"
    if path == "-":
        sys.stdout.write(text)
    elif path:
        write_atomic(Path(path), text)
    return path == "-"


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def _working(what: str) -> Any:
    """A spinner on standard error; nothing where that is no terminal."""
    from rich.console import Console

    return Console(stderr=True).status(f"{what} ...")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"simpar {_version()}")
        raise typer.Exit


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; what the user can mend is one line on standard error."""
    try:
        return int(app(arguments, prog_name="simpar", standalone_mode=False) or 0)
    except Infeasible as error:
        return _fail(str(error), INFEASIBLE)
    except UserError as error:
        return _fail(str(error), BAD_INPUT)
    except TyperException as error:
        return _fail(error.format_message(), BAD_INPUT)
    except OSError as error:
        if error.filename is None:
            raise
        return _fail(f"{error.filename}: {error.strerror}", BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"{message}\n")
    return code


def main() -> None:
    """Entry point of the ``simpar`` executable and of ``python -m simpar``."""
    sys.exit(run(sys.argv[1:]))
