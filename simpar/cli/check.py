"""``simpar check``: a launch command or a config of another framework, before it is started."""

from typing import Any

from simpar.cli.app import INFEASIBLE, JSON_HELP, app, console, json_out
from simpar.cli.flags import NETWORK_FLAG, RUN_FLAGS, ScenarioFlag, over_network, with_flags

CHECK_FLAGS = (
    ScenarioFlag("--hardware", "Hardware profile: a shipped name or a file"),
    NETWORK_FLAG,
    ScenarioFlag("--nodes", "Number of nodes, if the command does not say", kind=int),
    ScenarioFlag("--gpus", "Number of GPUs in all, if the command does not say", kind=int),
    ScenarioFlag("--model", "Model, if the command names none: a shipped name or a config.json"),
    ScenarioFlag("--seq-len", "Tokens per sequence, if the command does not say", kind=int),
    ScenarioFlag("--global-batch", "Sequences per optimizer step, if the command does not say", kind=int),
    ScenarioFlag("--stack", "Software stack (default: the framework's)"),
    *RUN_FLAGS,
    ScenarioFlag("--reliability", "Profile of failure rates, for a run of --tokens (simpar list reliability)"),
    ScenarioFlag("--from", "Framework, if the text alone does not reveal it"),
    ScenarioFlag(
        "--fits-with", "Wanted probability of fitting; below it, the exit code is 3 (default: 0.95)", kind=float
    ),
    ScenarioFlag("--ask", "Start the framework itself to show the config that it resolves (nemo-1, verl)", kind=bool),
    ScenarioFlag("--rl", "Simulate the whole step of a launch of reinforcement learning, too", kind=bool),
    ScenarioFlag("--prompts", "Lengths of prompts, with --rl: TOKENS, MEAN,P99, or a file with one length a line"),
    ScenarioFlag("--responses", "Lengths of responses, with --rl: TOKENS, MEAN,P99, or a file with one length a line"),
    ScenarioFlag("--output,-o", "Write the text with the best neighbour's flags"),
    ScenarioFlag("--patch", "Print only the patch (unified diff) that gives the text those flags", kind=bool),
    ScenarioFlag("--json", JSON_HELP),
)


@app.command(
    epilog="Example: simpar check --hardware dgx-h100 -- torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py "
    "--tensor-model-parallel-size 8 ..."
)
@with_flags(
    CHECK_FLAGS,
    "A script, TOML, YAML, JSON or FILE.py:RECIPE; - for standard input; or a launch command after --",
    metavar="FILE|-- COMMAND",
    many=True,
)
def check(scenario: list[str], **values: Any) -> int:
    """Predict memory and speed of a launch; suggest better flags.

    Nothing is started. The exit code is 3 if it fits with less than the wanted probability.
    """
    from simpar import verbs
    from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY

    wanted = DEFAULT_FIT_PROBABILITY if values["fits_with"] is None else values["fits_with"]
    given = (
        "hardware", "nodes", "gpus", "model", "seq_len", "global_batch", "stack", "tokens", "price_per_gpu_hour",
        "reliability", "prompts", "responses",
    )  # fmt: skip
    facts = {name: values[name] for name in given}
    if values["network"] is not None:
        facts["hardware"] = over_network(values["hardware"], values["network"])
    ask, rl = bool(values["ask"]), bool(values["rl"])
    checked = verbs.check(scenario, framework=values["from_"], fits_with=wanted, ask=ask, rl=rl, **facts)
    if values["output"] is not None:
        _write(checked.best.change.text if checked.best else None, values["output"])
    if values["patch"]:
        import sys

        sys.stdout.write(checked.patch)
    elif not json_out(checked.to_dict(), values["json_"]):
        from simpar.preflight.terminal import print_checked

        print_checked(checked, console())
    return 0 if checked.is_sure else INFEASIBLE


def _write(text: str | None, output: str) -> None:
    """Write the patched text. Raises UserError if there is none."""
    from simpar.errors import UserError
    from simpar.files import write_atomic

    if text is None:
        raise UserError(
            f"--output {output}: nothing to write: no simulated neighbour is better, or its flags have no certain "
            "place in the text"
        )
    write_atomic(output, text if text.endswith("\n") else text + "\n")
