"""The flags that commands share, as one table: each sets one key of the scenario."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from simpar.cli.completion import KIND_OF_FLAG, names_of
from simpar.dataclass import dataclass


@dataclass(frozen=True)
class ScenarioFlag:
    """One flag: its spelling and help text, the scenario key it sets ("" for none), its type, and a number's unit."""

    spelling: str
    help: str
    key: str = ""
    kind: Any = str
    unit: str = ""

    @property
    def name(self) -> str:
        """The Python name of the flag: "--seq-len" is seq_len."""
        word = self.spelling.split("/")[0].split(",")[0].removeprefix("--").replace("-", "_")
        return f"{word}_" if word in ("set", "json", "from") else word


MODEL_CLASS, NETWORK = "model_class", "network"
"""What ``--model-class`` and ``--network`` give: no keys of a scenario, but the ends of a name."""
NETWORK_FLAG = ScenarioFlag(
    "--network",
    'Network between nodes, where it is not the profile\'s: "25 Gb/s ethernet" (TCP), "4x 100 Gb/s roce" (RDMA)',
    NETWORK,
)
JOB_FLAGS = (
    ScenarioFlag(
        "--model",
        "Model: a shipped name, its id on the hub, config.json or its folder, transformers:CLASS, or module:function "
        "of yours (which is executed)",
        "model",
    ),
    ScenarioFlag("--model-class", "Class of transformers that reads the --model's config", MODEL_CLASS),
    ScenarioFlag(
        "--hardware",
        "Cluster: a GPU (h100), an instance of a cloud (p5.48xlarge), a shipped profile or a file",
        "cluster.hardware",
    ),
    NETWORK_FLAG,
    ScenarioFlag("--nodes", "Number of nodes", "cluster.nodes", int),
    ScenarioFlag("--gpus", "Number of GPUs in all; fewer than a node has are a part of one", "cluster.devices", int),
    ScenarioFlag("--seq-len", "Tokens per sequence", "training.seq_len", int),
    ScenarioFlag("--global-batch", "Sequences per optimizer step", "training.global_batch", int),
)
QLORA, QLORA_RANK = "qlora", 16
"""What ``--qlora`` gives: no key of a scenario, but adapters of the rank that most recipes have, and 4-bit weights."""
QLORA_FLAG = ScenarioFlag(
    "--qlora", f"Short for --lora-rank {QLORA_RANK} --frozen-dtype nf4, where these do not say otherwise", QLORA, bool
)
STACK_FLAG = ScenarioFlag("--stack", "Software stack profile (simpar list stacks)", "stack")


@cache
def scenario_flags() -> tuple[ScenarioFlag, ...]:
    """The flags of a scenario: of the job, of every choice of a plan that has one, and of the stack."""
    from simpar.plan.choices import CHOICES

    of_plan = (
        ScenarioFlag(choice.flag.spelling, choice.flag.help, f"plan.{choice.key}", choice.flag.kind)
        for choice in CHOICES
        if choice.flag
    )
    return (*JOB_FLAGS, *of_plan, QLORA_FLAG, STACK_FLAG)


PERTURBATION_FLAGS = (
    ScenarioFlag(
        "--jitter",
        "Standard deviation of log-normal noise on kernel times, independent for every rank, such as 0.03",
        "perturbation.jitter.sigma",
        float,
    ),
    ScenarioFlag(
        "--seeds", "Number of steps to simulate under jitter, each with its own seed", "perturbation.jitter.seeds", int
    ),
)

RUN_FLAGS = (
    ScenarioFlag(
        "--tokens",
        "Tokens of the whole run, such as 15T: also report its days, GPU-hours, dollars and energy",
        "training.tokens",
    ),
    ScenarioFlag(
        "--price-per-gpu-hour",
        "US dollars per GPU-hour (default: that of the hardware profile)",
        "cluster.price_per_device_hour",
        float,
        unit="USD/h",
    ),
)

OPERATION_FLAGS = (
    ScenarioFlag(
        "--days",
        "Simulate this many days of operation: failures, checkpoints, restarts, goodput",
        "operation.days",
        float,
    ),
    ScenarioFlag("--reliability", "Profile of failure rates (simpar list reliability)", "operation.reliability"),
    ScenarioFlag("--checkpoint", "How checkpoints are written: sync, async or memory", "operation.checkpoint"),
    ScenarioFlag("--spares", "Spare nodes (default: always enough)", "operation.spares", int),
)
FAILURE_FLAGS = OPERATION_FLAGS[1:]
"""Flags of operation for a run of given tokens, which determines its own length."""


CALLED_OTHERWISE = {
    "--num-gpus": "--gpus", "--devices": "--gpus", "--world-size": "--gpus", "--gpu": "--hardware",
    "--cluster": "--hardware", "--batch-size": "--global-batch", "--global-batch-size": "--global-batch",
    "--seq-length": "--seq-len", "--sequence-length": "--seq-len", "--framework": "--stack", "--dtype": "--precision",
    "--fsdp": "--zero 3", "--lora": f"--lora-rank {QLORA_RANK}", "--load-in-4bit": "--qlora", "--peft": "--lora-rank",
}  # fmt: skip
"""Other tools' names of flags, beside the synonyms of choices."""


def known_as(flag: str) -> str | None:
    """The flag that another tool's flag stands for; None where nobody knows."""
    from simpar.plan.choices import BY_NAME, SYNONYMS

    word = flag.removeprefix("--").replace("-", "_")
    named = BY_NAME.get(SYNONYMS.get(word, ""))
    return CALLED_OTHERWISE.get(flag) or (named.flag.spelling if named and named.flag else None)


def better_said(message: str, arguments: Sequence[str]) -> str:
    """A message about arguments that cannot be parsed, with a correction if one is known."""
    from simpar.files import written_out

    unknown = re.match(r"No such option: (--[\w-]+)", message)
    if unknown and (name := known_as(unknown[1])):
        return f"No such option: {unknown[1]}; did you mean {name}?"
    if bare := re.match(r"Option '(--over|--fix)' requires", message):
        return f"{message[:-1]}; {bare[1]} help lists what it takes"
    if "valid integer" in message:
        flag = re.search(r"'(?:-\w, )?(--[\w-]+)'", message)
        for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
            name, _, joined = word.partition("=")
            if flag and name == flag[1]:
                values, told = _values_of(name), joined or value
                hint = f"; allowed: {', '.join(map(str, values))}" if values else written_out(told)
                return f"Invalid value for '{name}': {told!r} is no whole number{hint}"
    return message.replace("Input should be ", "allowed: ")


def _values_of(flag: str) -> tuple[Any, ...]:
    """The values of a choice of a plan by its flag, where they are written out."""
    from simpar.plan.choices import CHOICES, path_of
    from simpar.plan.plan import Plan

    named = next((choice.name for choice in CHOICES if choice.flag and choice.flag.spelling == flag), "")
    section, field = path_of(named)
    fields = getattr(Plan.model_fields[section].annotation, "model_fields", {}) if section else {}
    annotation = fields[field].annotation if field in fields else None
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def values_by_key(values: Mapping[str, Any], flags: tuple[ScenarioFlag, ...] = ()) -> dict[str, Any]:
    """The keys of the scenario that were set by flags: those of a scenario, and ``flags``."""
    every = (*scenario_flags(), *flags)
    given = ((flag, values[flag.name]) for flag in every if values[flag.name] is not None)
    result = {flag.key: f"{value!r} {flag.unit}" if flag.unit else value for flag, value in given}
    if class_name := result.pop(MODEL_CLASS, None):
        result["model"] = _with_class(result.get("model"), class_name)
    if network := result.pop(NETWORK, None):
        result["cluster.hardware"] = over_network(result.get("cluster.hardware"), network)
    if result.pop(QLORA, None):
        result = {"plan.lora_rank": QLORA_RANK, "plan.frozen_dtype": "nf4", **result}
    return result


def over_network(hardware: Any, network: str) -> str:
    """The name of hardware whose nodes another network joins. Raises UserError."""
    from simpar.errors import UserError
    from simpar.hardware.network import OVER

    if hardware is None:
        raise UserError(f"--network {network}: allowed with --hardware, whose nodes it joins")
    return f"{hardware}{OVER}{network}"


def _with_class(model: Any, class_name: str) -> str:
    """The name of a model whose config a class reads. Raises UserError."""
    from simpar.errors import UserError
    from simpar.tracing.code import class_of

    name = f"{model}:{class_name}"
    if model is None or not class_of(name)[1]:
        said = f"--model {model}" if model else "no --model"
        raise UserError(f"--model-class {class_name}: with {said}; allowed: with a config.json or a folder of the hub")
    return name


_WAITING: dict[str, Callable[[], None]] = {}
"""Commands whose flags are not read yet, by name."""


def complete_commands(*names: str) -> None:
    """Give commands their flags; without names, all of them.

    Flags of a plan are declared by its choices, whose import takes longer than a page of help. So a command gets them
    when it is used, and all do when their help is wanted together.
    """
    for name in names or tuple(_WAITING):
        if name in _WAITING:
            _WAITING.pop(name)()


def with_parameters(
    make: Callable[[], Iterable[inspect.Parameter]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the parameters that ``make`` returns, when :func:`complete_commands` asks for them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def complete() -> None:
            command.__signature__ = inspect.Signature([*make()])  # type: ignore[attr-defined]

        command.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        _WAITING[command.__name__] = complete
        return command

    return decorate


def with_flags(
    flags: tuple[ScenarioFlag, ...],
    argument: str,
    *,
    metavar: str = "[SCENARIO]",
    many: bool = False,
    plan: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command taking ``(scenario, **values)`` one optional flag for each entry of the table.

    A ``metavar`` without brackets makes the argument required; ``many`` makes it a list of words; ``plan`` adds the
    flags of a scenario, which come first.
    """

    def make() -> list[inspect.Parameter]:
        position = inspect.Parameter.POSITIONAL_OR_KEYWORD
        kind: Any = list[str] if many else str | None if metavar.startswith("[") else str
        first = inspect.Parameter(
            "scenario",
            position,
            default=None if metavar.startswith("[") else inspect.Parameter.empty,
            annotation=Annotated[
                kind, typer.Argument(help=argument, metavar=metavar.strip("[]"), autocompletion=names_of("scenarios"))
            ],
        )
        return [first, *map(parameter, (*(scenario_flags() if plan else ()), *flags))]

    return with_parameters(make)


HELP_GROUPS = {
    "Whole run": ("training.tokens", "cluster.price", "operation."),
    "Job": ("model", "cluster.", "training.", NETWORK, "stack"),
    "Layout": ("plan.", QLORA),
    "Noise": ("perturbation.",),
}
"""Titles under which help lists the flags that begin with some keys; all others are a command's own."""


def _completion(spelling: str) -> Callable[[str], list[str]] | None:
    kinds = [KIND_OF_FLAG[each] for each in spelling.split(",") if each in KIND_OF_FLAG]
    return names_of(kinds[0]) if kinds else None


def parameter(flag: ScenarioFlag) -> inspect.Parameter:
    """The flag as an optional keyword of a command."""
    switch = flag.kind is bool and not flag.key  # a scenario key has a third state: left open
    kind, default = (bool, False) if switch else (flag.kind | None, None)
    option = typer.Option(
        *flag.spelling.split(","),
        help=flag.help,
        autocompletion=_completion(flag.spelling),
        rich_help_panel=next((title for title, keys in HELP_GROUPS.items() if flag.key.startswith(keys)), None),
    )
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
