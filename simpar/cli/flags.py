"""The flags that commands share, as one table: each sets one key of the scenario."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from simpar.cli.completion import KIND_OF_FLAG, names_of
from simpar.models.recompute import WORDS


@dataclass(frozen=True)
class Flag:
    """One flag: its spelling, the scenario key it sets ("" for none), its type and help text, and a number's unit."""

    spelling: str
    key: str
    kind: Any
    help: str
    unit: str = ""

    @property
    def name(self) -> str:
        """The Python name of the flag: "--seq-len" is seq_len."""
        word = self.spelling.split("/")[0].split(",")[0].removeprefix("--").replace("-", "_")
        return f"{word}_" if word in ("set", "json", "from") else word


SCENARIO_FLAGS = (
    Flag(
        "--model",
        "model",
        str,
        "Model: a shipped name, a config.json, or package.module:function of yours (which is executed)",
    ),
    Flag("--hardware", "cluster.hardware", str, "Hardware profile: a shipped name or a file"),
    Flag("--nodes", "cluster.nodes", int, "Number of nodes"),
    Flag("--seq-len", "training.seq_len", int, "Tokens per sequence"),
    Flag("--global-batch", "training.global_batch", int, "Sequences per optimizer step"),
    Flag("--tp", "plan.tp", int, "Tensor-parallel degree"),
    Flag("--pp", "plan.pp", int, "Pipeline-parallel degree"),
    Flag("--vpp", "plan.vpp", int, "Model chunks per pipeline rank"),
    Flag("--dp", "plan.dp", int, "Data-parallel degree (default: follows from the world size)"),
    Flag("--cp", "plan.cp", int, "Context-parallel degree"),
    Flag("--ep", "plan.ep", int, "Expert-parallel degree"),
    Flag("--micro-batch", "plan.micro_batch", int, "Sequences per microbatch"),
    Flag("--zero", "plan.zero", int, "ZeRO stage: 0, 1, 2 or 3"),
    Flag("--hsdp", "plan.hsdp", int, "Number of replicas of the sharded states (HSDP)"),
    Flag("--sync", "plan.sync", str, "How replicas cooperate: bsp, ssp, asp, local-sgd or diloco"),
    Flag(
        "--sequence-parallel/--no-sequence-parallel",
        "plan.sequence_parallel",
        bool,
        "Shard activations along the sequence between tensor-parallel operators",
    ),
    Flag("--schedule", "plan.schedule", str, "Pipeline schedule (simpar list schedules)"),
    Flag("--recompute", "plan.recompute", str, f"Recomputed activations: {WORDS}"),
    Flag("--precision", "plan.precision", str, "Precision of matrix products (simpar list precisions)"),
    Flag("--optimizer", "plan.optimizer", str, "Optimizer (simpar list optimizers)"),
    Flag("--stack", "stack", str, "Software stack profile (simpar list stacks)"),
)

PERTURBATION_FLAGS = (
    Flag(
        "--jitter",
        "perturbation.jitter.sigma",
        float,
        "Standard deviation of log-normal noise on kernel times, independent for every rank, such as 0.03",
    ),
    Flag(
        "--seeds",
        "perturbation.jitter.seeds",
        int,
        "Number of steps to simulate under jitter, each with its own seed",
    ),
)

RUN_FLAGS = (
    Flag(
        "--tokens",
        "training.tokens",
        str,
        "Tokens of the whole run, such as 15T: also report its days, GPU-hours, dollars and energy",
    ),
    Flag(
        "--price-per-gpu-hour",
        "cluster.price_per_device_hour",
        float,
        "US dollars per GPU-hour (default: that of the hardware profile)",
        unit="USD/h",
    ),
)

OPERATION_FLAGS = (
    Flag(
        "--days",
        "operation.days",
        float,
        "Simulate this many days of operation: failures, checkpoints, restarts, goodput",
    ),
    Flag("--reliability", "operation.reliability", str, "Profile of failure rates (simpar list reliability)"),
    Flag("--checkpoint", "operation.checkpoint", str, "How checkpoints are written: sync, async or memory"),
    Flag("--spares", "operation.spares", int, "Spare nodes (default: always enough)"),
)
FAILURE_FLAGS = OPERATION_FLAGS[1:]
"""Flags of operation for a run of given tokens, which determines its own length."""


CALLED_OTHERWISE = {
    "--gpus": "--nodes (devices of a node are those of --hardware)", "--num-gpus": "--nodes", "--devices": "--nodes",
    "--world-size": "--nodes", "--gpu": "--hardware", "--cluster": "--hardware", "--batch-size": "--global-batch",
    "--global-batch-size": "--global-batch", "--micro-batch-size": "--micro-batch", "--seq-length": "--seq-len",
    "--sequence-length": "--seq-len", "--tensor-parallel": "--tp", "--tensor-model-parallel-size": "--tp",
    "--tensor-parallel-size": "--tp", "--pipeline-parallel": "--pp", "--pipeline-model-parallel-size": "--pp",
    "--pipeline-parallel-size": "--pp", "--data-parallel": "--dp", "--expert-parallel": "--ep",
    "--zero-stage": "--zero",
    "--context-parallel": "--cp", "--virtual-pipeline": "--vpp", "--framework": "--stack", "--dtype": "--precision",
    "--fsdp": "--zero 3",
}  # fmt: skip
"""Other tools' names of flags."""


def better_said(message: str, arguments: Sequence[str]) -> str:
    """A message about arguments that cannot be parsed, with a correction if one is known."""
    from simpar.files import written_out

    unknown = re.match(r"No such option: (--[\w-]+)", message)
    if unknown and (name := CALLED_OTHERWISE.get(unknown[1])):
        return f"No such option: {unknown[1]}; did you mean {name}?"
    if "valid integer" in message:
        flag = re.search(r"'(?:-\w, )?(--[\w-]+)'", message)
        for word, value in zip(arguments, [*arguments[1:], ""], strict=True):
            name, _, joined = word.partition("=")
            if flag and name == flag[1] and (hint := written_out(joined or value)):
                return f"{message}{hint}"
    return message


def scenario_flags(values: Mapping[str, Any], flags: tuple[Flag, ...] = SCENARIO_FLAGS) -> dict[str, Any]:
    """The keys of the scenario that were set by flags."""
    given = ((flag, values[flag.name]) for flag in flags if values[flag.name] is not None)
    return {flag.key: f"{value!r} {flag.unit}" if flag.unit else value for flag, value in given}


def with_flags(
    flags: tuple[Flag, ...], argument: str, *, metavar: str = "[SCENARIO]", many: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command taking ``(scenario, **values)`` one optional flag for each entry of the table.

    A ``metavar`` without brackets makes the argument required; ``many`` makes it a list of words.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        position = inspect.Parameter.POSITIONAL_OR_KEYWORD
        kind: Any = list[str] if many else str | None if metavar.startswith("[") else str
        first = inspect.Parameter(
            "scenario",
            position,
            default=None if metavar.startswith("[") else inspect.Parameter.empty,
            annotation=Annotated[
                kind, typer.Argument(help=argument, metavar=metavar, autocompletion=names_of("scenarios"))
            ],
        )
        command.__signature__ = inspect.Signature([first, *map(parameter, flags)])  # type: ignore[attr-defined]
        return command

    return decorate


def _completion(spelling: str) -> Callable[[str], list[str]] | None:
    kinds = [KIND_OF_FLAG[each] for each in spelling.split(",") if each in KIND_OF_FLAG]
    return names_of(kinds[0]) if kinds else None


def parameter(flag: Flag) -> inspect.Parameter:
    """The flag as an optional keyword of a command."""
    switch = flag.kind is bool and not flag.key  # a scenario key has a third state: left open
    kind, default = (bool, False) if switch else (flag.kind | None, None)
    option = typer.Option(
        *flag.spelling.split(","), help=flag.help, autocompletion=_completion(flag.spelling)
    )
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
