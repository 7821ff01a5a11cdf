"""What the command line does beside simulate, search and explain, as functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simpar.architectures.training import Training
from simpar.calls import coerce, refuses_unknown_keywords
from simpar.dataclass import but
from simpar.errors import BadCall, UserError
from simpar.files import COMMAND_LINE, parse, short
from simpar.formats import RESULT
from simpar.frameworks import load_reader
from simpar.frameworks.megatron_log import text_of
from simpar.frameworks.overrides import script_in
from simpar.frameworks.recipes import split_name
from simpar.plan.schedules import chunks_instead
from simpar.preflight.check import Checked, CheckFlags, TextFlags, WholeRunFlags, check_launch
from simpar.preflight.environment import account_of_words
from simpar.preflight.given import given_words
from simpar.preflight.slices import slice_of
from simpar.report.result import Result, read_object
from simpar.report.summarise import with_whole_run
from simpar.scenario import Scenario, SharedClusters, find_scenario, load_scenario
from simpar.simulation import simulate
from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY
from simpar.workers import Workers

if TYPE_CHECKING:
    from simpar.frameworks.target import Imported
    from simpar.frameworks.words import Account
    from simpar.report.compare import Comparison
    from simpar.report.sweep import Sweep, Swept

SECTIONS = {
    "training": ("seq_len", "global_batch"),
    "cluster": ("hardware", "nodes", "devices", "nvls", "sharp"),
    "": ("model", "stack"),
}
"""Short keys of a sweep by their section of a scenario; all others are those of a plan."""
SPOKEN = {"gpus": "devices"}
"""Short keys that are called as their flags are."""


@refuses_unknown_keywords
def compare(a: Result | str | Path, b: Result | str | Path, *, tokens: str | None = None) -> Comparison:
    """How the inputs and figures of two results differ, and which parts of the step cause it.

    Each is a result, or the file of a result, a search, a plan or a scenario, which is simulated. ``tokens`` are those
    of the whole run, for both, such as "15T". Raises UserError.

    >>> import simpar
    >>> training = {"seq_len": 1024, "global_batch": 64}
    >>> a, b = (simpar.simulate("gpt2", "dgx-h100", {"micro_batch": m}, training) for m in (4, 8))
    >>> found = compare(a, b)
    >>> list(found.asked), found.figures["step_time_s"].a == a.step_time_s
    (['plan.micro_batch'], True)
    """
    from simpar.report.compare import differences

    first, second = (load_result(each, tokens) for each in (a, b))
    return differences(first, second)


def load_result(result: Result | str | Path, tokens: str | None = None) -> Result:
    """A result, a saved one, or one simulated now from a plan, a scenario or a search's best plan.

    With ``tokens`` it is that of a run of so many. Raises UserError.
    """
    if isinstance(result, Result):
        return _of_tokens(result, tokens)
    from simpar.operate.whole_run import add_operation

    name = coerce(result, str, "result", {Path: str})
    path = find_scenario(name)
    if path.suffix == ".json" and RESULT.key in (data := read_object(path)):
        return _of_tokens(Result.from_dict(data, source=str(path)), tokens)
    loaded = load_scenario(name, {"training.tokens": tokens} if tokens else {})
    inputs = loaded.inputs()
    return add_operation(simulate(**inputs), inputs, loaded.operation)


def _of_tokens(result: Result, tokens: str | None) -> Result:
    """A result for a run of given tokens, without failures."""
    if tokens is None:
        return result
    training = parse(Training, {**result.setup.training, "tokens": tokens}, source=COMMAND_LINE)
    setup = result.setup.model_copy(update={"training": training.model_dump()})
    return with_whole_run(but(result, setup=setup))


@refuses_unknown_keywords
def sweep(
    scenario: str | Path | None,
    over: Mapping[str, Iterable[Any]],
    *,
    flags: Mapping[str, Any] | None = None,
    settings: Sequence[str] = (),
    engine: str = "auto",
    seed: int | None = None,
    flops_convention: Literal["full", "causal"] = "full",
    progress: Callable[[Mapping[str, Any]], object] | None = None,
    workers: Workers | None = None,
) -> Sweep:
    """One simulation for every combination of the values of some keys.

    ``scenario``, ``flags`` and ``settings`` are what :func:`simpar.load_scenario` takes. Keys of ``over`` are those of
    a plan ("tp", "zero"), "seq_len", "global_batch", "hardware", "nodes", "gpus", "model", "stack", or dotted keys of
    a scenario. A schedule that cannot run the chunks of the scenario's runs its own number of them, unless flags,
    settings or ``over`` state one. A combination that is refused keeps the reason; Ctrl-C keeps what is simulated.
    ``progress`` is called with every combination in its turn; ``workers`` are the processes that simulate (default:
    this one), on which no result depends. Raises UserError for keys and values that no scenario has.

    >>> result = sweep("gpt2-laptop", {"micro_batch": (1, 2), "zero": (0, 1)})
    >>> result.to_frame()[["micro_batch", "zero", "fits"]].values.tolist()
    [[1, 0, True], [1, 1, True], [2, 0, True], [2, 1, True]]
    """
    from simpar.report.sweep import Sweep, Swept

    values = {key: _values(key, each) for key, each in over.items()}
    choices = [dict(zip(values, each, strict=True)) for each in product(*values.values())]
    scenarios = [_with_own_chunks(choice, scenario, flags, settings) for choice in choices]
    for each, _ in scenarios:
        each.require_update()
    options = {"engine": engine, "seed": seed, "flops_convention": flops_convention, "with_timeline": False}
    answers = (workers or Workers()).stream(
        partial(_answered, [each for each, _ in scenarios], options, SharedClusters()), range(len(scenarios))
    )
    rows: list[Swept] = []
    with suppress(KeyboardInterrupt):
        for choice, (_, vpp) in zip(choices, scenarios, strict=True):
            if progress:
                progress(choice)
            rows.append(Swept(choice, **next(answers), vpp=vpp))
    return Sweep((*rows, *map(Swept, choices[len(rows) :])))


def _answered(
    scenarios: Sequence[Scenario], options: Mapping[str, Any], clusters: SharedClusters, which: int
) -> dict[str, Any]:
    """The result of one of some scenarios, or the reason why it is refused."""
    try:
        return {"result": simulate(**scenarios[which].inputs(clusters), **options)}
    except UserError as error:
        return {"refused": str(error)}


def _with_own_chunks(
    choice: Mapping[str, Any], scenario: str | Path | None, flags: Mapping[str, Any] | None, settings: Sequence[str]
) -> tuple[Scenario, int | None]:
    """The scenario of a combination, and the chunks of its schedule if it cannot run those that the scenario states."""
    words = [*settings, *_settings(choice)]
    result = load_scenario(scenario, flags, words)
    asked = {key for key, value in (flags or {}).items() if value is not None}
    asked |= {word.partition("=")[0].strip() for word in words}
    if "plan.schedule" not in asked or "plan.vpp" in asked:
        return result, None
    chunks = chunks_instead(result.plan.schedule, result.plan.pipeline.vpp)
    return (result if chunks is None else load_scenario(scenario, flags, [*words, f"plan.vpp={chunks}"])), chunks


def _values(key: str, given: Any) -> list[Any]:
    """The values of a key. Raises BadCall."""
    if isinstance(given, str) or not isinstance(given, Iterable) or not (values := list(given)):
        raise BadCall(f"over: {key} = {short(given)}: allowed: a list of values, at least one")
    return values


def _settings(choice: Mapping[str, Any]) -> list[str]:
    """A combination as texts "dotted.key=value"."""
    return [
        f"{scenario_key(key)}={value if isinstance(value, str) else json.dumps(value)}" for key, value in choice.items()
    ]


def scenario_key(key: str) -> str:
    """The dotted scenario key of a short key: keys of a plan may be given alone."""
    if "." in key:
        return key
    key = SPOKEN.get(key, key)
    for section, names in SECTIONS.items():
        if key in names:
            return f"{section}.{key}".lstrip(".")
    return f"plan.{key}"


@refuses_unknown_keywords
def check(
    launch: str | Path | Sequence[str],
    *,
    framework: str | None = None,
    hardware: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    model: str | None = None,
    seq_len: int | None = None,
    global_batch: int | None = None,
    stack: str | None = None,
    tokens: str | None = None,
    price_per_gpu_hour: float | None = None,
    reliability: str | None = None,
    fits_with: float = DEFAULT_FIT_PROBABILITY,
    ask: bool = False,
    rl: bool = False,
    prompts: str | None = None,
    responses: str | None = None,
) -> Checked:
    """What a launch command or a config of another framework would do, and the best layouts near it.

    ``launch`` is a command as a text or as words, or the path of a script, TOML, YAML, JSON or FILE.py:RECIPE, of which
    nothing is started. ``framework`` is needed where the text alone does not reveal it. ``fits_with`` is the wanted
    probability of fitting, ``gpus`` the number of devices in all, ``tokens`` the size of the whole run ("15T"),
    ``price_per_gpu_hour`` in USD. The other keywords are facts that the text does not say. ``ask`` starts the framework
    itself to show the config that it resolves (NeMo 1, verl). ``rl`` simulates the whole step of a launch of
    reinforcement learning; ``prompts`` and ``responses`` are the lengths of its texts: tokens, "MEAN,P99", or a file of
    lengths. Raises UserError.

    >>> command = "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --bf16 --num-layers 12"
    >>> command += " --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --micro-batch-size 4"
    >>> command += " --global-batch-size 64 --max-position-embeddings 1024"
    >>> checked = check(command, hardware="dgx-h100", model="gpt2")
    >>> checked.is_sure, checked.best is not None
    (True, True)
    """
    words = [str(launch)] if isinstance(launch, str | Path) else coerce(launch, list, "launch", {Sequence: list})
    run = WholeRunFlags(tokens, price_per_gpu_hour, reliability)
    texts = TextFlags(prompts, responses) if rl or prompts is not None or responses is not None else None
    facts = CheckFlags(hardware, nodes, gpus, model, seq_len, global_batch, stack, fits_with, run, texts)
    with slice_of(facts):
        given = given_words(words, framework)
        if ask:
            from simpar.preflight.ask import ask_framework

            given = ask_framework(given)
        return check_launch(given, facts)


def account_of_import(file: str | Path, framework: str, imported: Imported) -> Account:
    """Every word of a text that was imported: used, without effect, deciding but not in the plan, or unknown."""
    script = script_in(text_of(split_name(str(file))[0]), str(file))
    return account_of_words(imported.words, load_reader(framework).words, script.gaps if script else {})
