"""``simpar simulate --rl`` and ``search --rl``: the whole step of reinforcement learning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from simpar.cli.app import INFEASIBLE, console, working, write_out

if TYPE_CHECKING:
    from simpar.plan.post_training import PostTraining
    from simpar.scenario import Scenario

OF_ONE_UPDATE = ("memory_plot", "ranks", "advise", "seed", "flops_convention")
"""Options of ``simulate`` that belong to one update of training."""


OF_ONE_SEARCH = (
    "space", "deadline", "budget", "over", "jobs", "backend", "output", "suggest", "suggest_to", "csv",
)  # fmt: skip
"""Options of ``search`` that belong to that of one update of training."""


def _section(loaded: Scenario) -> PostTraining:
    """The section of a scenario. Raises UserError where it has none."""
    from simpar.errors import UserError

    if loaded.post_training is None:
        raise UserError(
            "--rl: the scenario has no section post_training; allowed: with prompts, samples and lengths there, or "
            "--set post_training.prompts=64 ..."
        )
    return loaded.post_training


def _words(given: str | None) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(word.strip() for word in (given or "").split(",") if word.strip())


def run_post_training_search(
    scenario: str | None,
    values: Mapping[str, Any],
    flags: Mapping[str, Any],
    constraints: Any,
    time_limit_s: float | None,
) -> int:
    """Search the space of a scenario's section, and print or write the answer. Raises UserError."""
    from simpar.cli.app import json_out
    from simpar.errors import UserError
    from simpar.scenario import load_scenario

    for name in OF_ONE_SEARCH:
        if values[name] is not None and values[name] is not False:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: is of one update of training; allowed with --rl: --objective time or cost, "
                            "--staleness, --rollout-precision, --cache-dtype, --fix, --top, --time-limit, "
                            "--json")  # fmt: skip
    loaded = load_scenario(scenario, dict(flags), list(values["set_"] or []))
    section, inputs = _section(loaded), loaded.training_inputs()
    from simpar.posttraining.search import search_post_training
    from simpar.posttraining.search_terminal import print_post_training_search

    setup = (inputs["model"], inputs["cluster"], inputs["plan"], inputs["training"], section)
    with working("searching") as status:
        result = search_post_training(
            *setup,
            stack=inputs["stack"],
            staleness=1 if values["staleness"] is None else values["staleness"],
            objective=values["objective"] or "time",
            constraints=constraints,
            precisions=_words(values["rollout_precision"]),
            cache_dtypes=_words(values["cache_dtype"]),
            time_limit_s=time_limit_s,
            report=lambda words: status.update(f"{words} ..."),
        )
    if not json_out(result.to_dict(), values["json_"]):
        print_post_training_search(result, console(), values["top"] or 5)
    return 0


def run_post_training(loaded: Scenario, values: Mapping[str, Any]) -> int:
    """Simulate the section ``post_training`` of a scenario, and print or write the answer. Raises UserError."""
    from simpar.errors import UserError
    from simpar.files import write_atomic

    section = _section(loaded)
    for name in OF_ONE_UPDATE:
        if values[name]:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: is of one update of training; allowed with --rl: --json, --html, --timeline, "
                            "--trace, --engine")  # fmt: skip
    if loaded.perturbation != type(loaded.perturbation)() or loaded.operation is not None:
        raise UserError("--rl: with perturbation or operation; allowed: neither, they are of training alone")
    from simpar.posttraining.simulate import post_train

    inputs = loaded.training_inputs()
    with working("simulating"):
        setup = (inputs["model"], inputs["cluster"], inputs["plan"], inputs["training"], section)
        result = post_train(*setup, stack=inputs["stack"], engine=values["engine"] or "auto")
    if values["trace"]:
        from simpar import __version__
        from simpar.report.trace import write_trace

        write_trace(result.timeline, values["trace"], metadata={"simpar_version": __version__}, counted="step")
    if values["timeline"]:
        from simpar.posttraining.picture import save_pools

        save_pools(result, values["timeline"])
    if values["html"]:
        from simpar.posttraining.page import save_page

        save_page(result, values["html"])
    code = INFEASIBLE if values["require_fit"] and not result.fits else 0
    if values["json_"]:
        text = json.dumps(result.to_dict(), allow_nan=False) + "\n"
        if values["json_"] == "-":
            write_out(text)
            return code
        write_atomic(values["json_"], text)
    from simpar.posttraining.terminal import print_post_training

    print_post_training(result, console())
    return code
