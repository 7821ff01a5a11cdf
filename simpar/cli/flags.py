"""The flags that commands share, as one table: each sets one key of the scenario."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer


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
    Flag(
        "--model",
        "model",
        str,
        "Model: a shipped name, a config.json, or package.module:function of yours (runs it)",
    ),
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
    Flag("--sync", "plan.sync", str, "How replicas cooperate: bsp, ssp, asp, local-sgd or diloco"),
    Flag(
        "--sequence-parallel/--no-sequence-parallel",
        "plan.sequence_parallel",
        bool,
        "Shard norms by sequence",
    ),
    Flag("--schedule", "plan.schedule", str, "Pipeline schedule (simpar list schedules)"),
    Flag("--recompute", "plan.recompute", str, "none, selective, full, every:C or optimal"),
    Flag("--precision", "plan.precision", str, "bf16, fp16, fp32, fp8, fp8_blockwise, mxfp8, nvfp4 or mxfp4"),
    Flag(
        "--optimizer",
        "plan.optimizer",
        str,
        "adamw, adamw_8bit, adafactor, lion, muon, shampoo, sgd or sgd_momentum",
    ),
    Flag("--stack", "stack", str, "Software stack profile (simpar list stacks)"),
)

PERTURBATION_FLAGS = (
    Flag(
        "--jitter",
        "perturbation.jitter.sigma",
        float,
        "Independent jitter of every rank: deviation of the logarithm, such as 0.03",
    ),
    Flag("--seeds", "perturbation.jitter.seeds", int, "Samples of the step under jitter, one a seed"),
)

OPERATION_FLAGS = (
    Flag(
        "--days",
        "operation.days",
        float,
        "Operate for so many days: failures, checkpoints, restarts, goodput",
    ),
    Flag("--reliability", "operation.reliability", str, "How often things fail (simpar list reliability)"),
    Flag("--checkpoint", "operation.checkpoint", str, "sync, async or memory"),
    Flag("--spares", "operation.spares", int, "Nodes in reserve; default as many as it takes"),
)


def scenario_flags(values: Mapping[str, Any], flags: tuple[Flag, ...] = SCENARIO_FLAGS) -> dict[str, Any]:
    """The keys of the scenario that were set by flags."""
    return {flag.key: values[flag.name] for flag in flags if values[flag.name] is not None}


def with_flags(
    flags: tuple[Flag, ...], argument: str, *, metavar: str = "[SCENARIO]"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command taking ``(scenario, **values)`` one optional flag for each entry of the table.

    A ``metavar`` without brackets makes the argument required.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        position = inspect.Parameter.POSITIONAL_OR_KEYWORD
        kind: Any = str | None if metavar.startswith("[") else str
        first = inspect.Parameter(
            "scenario",
            position,
            default=None if metavar.startswith("[") else inspect.Parameter.empty,
            annotation=Annotated[kind, typer.Argument(help=argument, metavar=metavar)],
        )
        command.__signature__ = inspect.Signature([first, *map(parameter, flags)])  # type: ignore[attr-defined]
        return command

    return decorate


def parameter(flag: Flag) -> inspect.Parameter:
    """The flag as an optional keyword of a command."""
    switch = flag.kind is bool and not flag.key  # a choice of the scenario has a third state: left open
    kind, default = (bool, False) if switch else (flag.kind | None, None)
    option = typer.Option(*flag.spelling.split(","), help=flag.help)
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
