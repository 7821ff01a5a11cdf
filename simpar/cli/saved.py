"""The argument of commands that show a result: results, searches, plans and scenarios alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpar.cli.app import working

if TYPE_CHECKING:
    from simpar.report.result import Result


def result_of(name: str, tokens: str | None = None) -> Result:
    """A saved result, or one simulated now from a plan, a scenario or a search's best plan, for a run of ``tokens``.

    Raises UserError.
    """
    from simpar.formats import RESULT
    from simpar.report.result import Result, read_object
    from simpar.scenario import find_scenario, load_scenario

    path = find_scenario(name)
    if path.suffix == ".json" and RESULT.key in (data := read_object(path)):
        return _of_tokens(Result.from_dict(data, source=str(path)), tokens)
    loaded = load_scenario(name, {"training.tokens": tokens} if tokens else {})
    from simpar.operate.whole_run import operated_run
    from simpar.simulation import simulate

    inputs = loaded.inputs()
    with working(f"simulating {name}"):
        return operated_run(simulate(**inputs), inputs, loaded.operation)


def _of_tokens(result: Result, tokens: str | None) -> Result:
    """A saved result for a run of given tokens, without failures."""
    from dataclasses import replace

    from simpar.files import COMMAND_LINE, parse
    from simpar.models.training import Training
    from simpar.report.summarise import with_whole_run

    if tokens is None:
        return result
    training = parse(Training, {**result.setup.training, "tokens": tokens}, source=COMMAND_LINE)
    setup = result.setup.model_copy(update={"training": training.model_dump()})
    return with_whole_run(replace(result, setup=setup))
