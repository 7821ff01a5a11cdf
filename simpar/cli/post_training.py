"""``simpar simulate --rl``: the whole step of reinforcement learning."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simpar.cli.app import INFEASIBLE, console, working

if TYPE_CHECKING:
    from simpar.scenario import Scenario

OF_ONE_UPDATE = ("timeline", "memory_plot", "html", "ranks", "advise", "seed", "flops_convention")
"""Options of ``simulate`` that belong to one update of training."""


def run_post_training(loaded: Scenario, values: Mapping[str, Any]) -> int:
    """Simulate the section ``post_training`` of a scenario, and print or write the answer. Raises UserError."""
    from simpar.errors import UserError
    from simpar.files import write_atomic

    if loaded.post_training is None:
        raise UserError(
            "--rl: the scenario has no section post_training; allowed: with prompts, samples and lengths there, or "
            "--set post_training.prompts=64 ..."
        )
    for name in OF_ONE_UPDATE:
        if values[name]:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: is of one update of training; allowed with --rl: --json, --trace, --engine")
    if loaded.perturbation != type(loaded.perturbation)() or loaded.operation is not None:
        raise UserError("--rl: with perturbation or operation; allowed: neither, they are of training alone")
    from simpar.posttraining.simulate import post_train

    inputs = loaded.inputs()
    with working("simulating"):
        setup = (inputs["model"], inputs["cluster"], inputs["plan"], inputs["training"], loaded.post_training)
        result = post_train(*setup, stack=inputs["stack"], engine=values["engine"] or "auto")
    if values["trace"]:
        from simpar import __version__
        from simpar.report.trace import write_trace

        write_trace(result.timeline, values["trace"], metadata={"simpar_version": __version__})
    code = INFEASIBLE if values["require_fit"] and not result.fits else 0
    if values["json_"]:
        text = json.dumps(result.to_dict(), allow_nan=False) + "\n"
        if values["json_"] == "-":
            sys.stdout.write(text)
            return code
        write_atomic(values["json_"], text)
    from simpar.posttraining.terminal import print_post_training

    print_post_training(result, console())
    return code
