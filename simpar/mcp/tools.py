"""The tools: what each takes, as a JSON Schema, and what it answers, as plain data.

They are the functions of ``import simpar`` and take the names of ``simpar list``; a scenario may also be given as data.
Answers leave out what a reader of figures does not need (timelines); ``save`` writes the whole answer to a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.files import check_writable, parse
from simpar.mcp.wording import in_fields
from simpar.tracing.code import is_code

SOURCE = "arguments"
SCENARIO = "Scenario"
LEFT_OUT = ("description", "published", "operation")
"""Keys of a scenario that its schema for agents leaves out: they change nothing that a tool answers."""
Say = Callable[[str], None]
"""Called with what is being done."""
Overrides = Annotated[
    dict[str, Any],
    Field(
        description="dotted keys of a scenario laid over it, such as {'plan.mesh.tp': 2, 'cluster.nodes': 4}; keys of "
        "a plan have short forms: plan.tp, plan.zero, plan.micro_batch, plan.recompute"
    ),
]
Name = Annotated[str, Field(min_length=1)]
Run = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "string"}, {"title": SCENARIO, "type": "object"}]}),
    Field(description="a shipped scenario, a scenario, plan, result or search file, or a scenario as data"),
]
Brief = Annotated[
    Any,
    WithJsonSchema({"type": ["string", "object", "null"]}),
    Field(description="a shipped scenario, a file, or a scenario as data, as simulate takes it"),
]
Saved = Annotated[str | None, Field(description="file below the folder to write the whole answer to, as JSON")]
WHOLE = ("model", "hardware", "slow_ranks", "degraded_links")
"""Keys of a scenario whose mappings are values, not sections."""
WRITTEN = ("save", "save_profile", "suggest_to")
"""Fields that name a file to write."""


class SimulateInput(Strict):
    """One training step of one plan: time with its 90 % interval, memory, MFU, what limits it, what to try."""

    scenario: Run = None
    set: Overrides = Field(default_factory=dict)
    neighbours: bool = Field(False, description="also simulate layouts one or two changes away, best first")
    save: Saved = None


class SearchInput(Strict):
    """The best layouts for a model on a cluster, with a certificate and how sure each fits."""

    scenario: Run = None
    set: Overrides = Field(default_factory=dict)
    objective: str = Field("regret", description="regret, time, cost, energy or devices")
    fixed: dict[str, Any] = Field(
        default_factory=dict, description="axes that are decided, such as {'tp': 2, 'zero': [1, 3]}"
    )
    portable: str | None = Field(None, description="framework that must be able to express the plan")
    fit_probability: float | None = Field(None, ge=0.5, lt=1, description="least probability to fit in memory")
    suggest: int | None = Field(
        None, ge=1, description="also name at most this many layouts to measure: those that decide most"
    )
    suggest_to: Name | None = Field(
        None, description="CSV file below the folder to write the suggestions to, for measured times and learn"
    )
    save: Saved = None


class CheckInput(Strict):
    """What a launch command or a config of another framework would do, and better layouts near it."""

    launch: str = Field(description="the command as a text, or the path of a script or config", min_length=1)
    framework: str | None = None
    hardware: str | None = None
    nodes: int | None = Field(None, ge=1)
    gpus: int | None = Field(None, ge=1, description="devices in all")
    model: str | None = None
    seq_len: int | None = Field(None, ge=1)
    global_batch: int | None = Field(None, ge=1)
    stack: str | None = None


class CompareInput(Strict):
    """Two runs side by side: figures, and which parts of the step and of memory make the difference."""

    a: Brief
    b: Brief


class ExplainInput(Strict):
    """Where a measured step went, from profiler traces, a log or a memory snapshot; with the plan, what deviates."""

    measured: list[Name] = Field(min_length=1, description="files of one run")
    scenario: Brief = None
    set: Overrides = Field(default_factory=dict)
    steps: int | None = Field(None, ge=1, description="optimizer steps in a trace without step marks")


class LearnInput(Strict):
    """Adapt a stack and a cluster profile to measured runs; the written file takes the place of both names."""

    runs: list[Name] = Field(min_length=1, description="tables of measured runs (CSV), or folders of simpar run")
    stack: str | None = None
    hardware: str | None = None
    save_profile: Name = Field(description="YAML file below the folder to write")


class CatalogueInput(Strict):
    """Names that scenarios take, with a line about each."""

    kind: str = Field(
        description="models, hardware, scenarios, schedules, optimizers, precisions, stacks, targets or readers"
    )
    containing: str = Field("", description="only names and lines that contain this")


@dataclass(frozen=True)
class Tool:
    """A tool: what it takes, and the function that answers a checked input."""

    takes: type[Strict]
    answer: Callable[[Any, Say, float], dict[str, Any]]

    @property
    def description(self) -> str:
        """One sentence."""
        return (self.takes.__doc__ or "").strip()

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments; scenarios as ``simpar schema scenario`` has them."""
        schema = self.takes.model_json_schema()
        places = [
            each
            for field in schema["properties"].values()
            for each in field.get("anyOf", ())
            if each.get("title") == SCENARIO
        ]
        if places:
            whole = scenario_schema()
            schema["$defs"] = {**whole.pop("$defs"), SCENARIO: whole}
            for each in places:
                each.clear()
                each["$ref"] = f"#/$defs/{SCENARIO}"
        return schema


def scenario_schema() -> dict[str, Any]:
    """The JSON Schema of scenarios as ``simpar schema scenario`` has it, for readers who pay by the word.

    Hardware is named (a profile inline is five sixths of the whole), titles repeat keys, defaults of sections are those
    of their keys, and what a plan records of where it came from changes nothing.
    """
    from simpar.plan.plan import Record
    from simpar.scenario import Scenario

    whole = Scenario.model_json_schema()
    for key in LEFT_OUT:
        del whole["properties"][key]
    definitions = whole["$defs"]
    for key in Record.model_fields.keys() & definitions["Plan"]["properties"].keys():
        del definitions["Plan"]["properties"][key]
    hardware = definitions["ClusterChoice"]["properties"]["hardware"]
    hardware |= {"anyOf": [{"type": "string"}], "description": "name of a shipped profile, or a profile file"}
    for each in (whole, *definitions.values()):
        _shorten(each)
    whole["$defs"] = {name: definitions[name] for name in sorted(_used(whole["properties"], definitions))}
    return whole


def _shorten(schema: dict[str, Any]) -> None:
    """Leave out titles and the defaults of sections; of a section's description keep the first line."""
    if "description" in schema:
        schema["description"] = schema["description"].partition("\n")[0]
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
        if isinstance(field.get("default"), Mapping):
            del field["default"]


def _used(part: Any, definitions: Mapping[str, Any]) -> set[str]:
    """The definitions that a part of a schema refers to, and what these refer to."""
    names, open_ = set(), [part]
    while open_:
        each = open_.pop()
        if isinstance(each, Mapping):
            name = str(each.get("$ref", "")).rpartition("/")[2]
            if name in definitions and name not in names:
                names.add(name)
                open_.append(definitions[name])
            open_ += each.values()
        elif isinstance(each, list):
            open_ += each
    return names


def call(name: str, arguments: Mapping[str, Any], say: Say, time_limit_s: float) -> dict[str, Any]:
    """The answer of a tool. A search ends with the best so far before the limit. Raises UserError."""
    from simpar.files import choose

    tool = TOOLS[choose(name, TOOLS, "tool")]
    try:
        asked = parse(tool.takes, dict(arguments), source=SOURCE)
        _check_writable(asked)
        return tool.answer(asked, say, time_limit_s)
    except UserError as error:
        raise type(error)(in_fields(str(error), tool.takes.model_fields)) from None


def _check_writable(asked: Strict) -> None:
    """Raises UserError for a file that cannot be written, before the work whose answer it is for."""
    for field in WRITTEN:
        if path := getattr(asked, field, None):
            sys.audit("open", path, "w", os.O_WRONLY)  # workers refuse what is not below their folder
            check_writable(path)


def _simulate(asked: SimulateInput, say: Say, _: float) -> dict[str, Any]:
    from simpar.neighbours import advise
    from simpar.simulation import simulate

    inputs = _scenario(asked.scenario, asked.set).inputs()
    say("simulating")
    result = simulate(**inputs, with_timeline=asked.save is not None)
    if asked.neighbours:
        result = advise(result, inputs, lambda change: say(f"trying {change}"))
    if asked.save:
        result.save(asked.save)
    return {key: value for key, value in result.to_dict().items() if key not in ("timeline", "asked")}


def _search(asked: SearchInput, say: Say, time_limit_s: float) -> dict[str, Any]:
    from simpar.learning.suggest import check, suggestions, table_to_fill, write
    from simpar.planner.api import find_space
    from simpar.planner.problem import Constraints, make_problem
    from simpar.planner.progress import SearchProgress, in_words
    from simpar.planner.space.jobs import without_axes
    from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY

    if asked.suggest_to and not asked.suggest:
        raise UserError(f"{SOURCE}: suggest_to = {asked.suggest_to}: needs suggest, such as 3")
    table = table_to_fill(asked.suggest_to, f"{SOURCE}: suggest_to =") if asked.suggest_to else None
    scenario = _scenario(asked.scenario, asked.set)
    cluster = scenario.build_cluster()
    problem = make_problem(
        scenario.graph(),
        cluster,
        scenario.training,
        stack=scenario.stack,
        base=without_axes(scenario.plan),
        perturbation=scenario.perturb(),
        objective=asked.objective,
        constraints=Constraints(
            fixed=asked.fixed,
            portable=asked.portable,
            fit_probability=DEFAULT_FIT_PROBABILITY if asked.fit_probability is None else asked.fit_probability,
        ),
    )
    if asked.suggest:
        check(problem)
    progress = SearchProgress(report=lambda *said: say(in_words(*said)), time_limit_s=time_limit_s)
    result = find_space(None, cluster)(problem, progress)
    if asked.suggest and not progress.interrupted:
        say("simulating what may be measured")
        chosen = suggestions(result, problem, asked.suggest)
        result = result.with_details({"suggestions": [one.to_dict() for one in chosen]})
        if table and chosen:
            write(chosen, table, scenario.model if isinstance(scenario.model, str) else None)
    if asked.save:
        result.save(asked.save)
    whole = result.to_dict()
    kept = {key: whole[key] for key in IN_ANSWERS if key in whole}
    return {**kept, "stopped_early": progress.interrupted}


IN_ANSWERS = (
    "candidates", "certified_optimal", "gap", "objective", "tie", "stack", "model", "cluster", "training",
    "constraints", "not_portable", "suggestions",
)  # fmt: skip
"""Keys of a search's JSON in answers: without seconds, which differ each time, and what is not among the best."""


def _check(asked: CheckInput, say: Say, _: float) -> dict[str, Any]:
    from simpar.verbs import check

    say("reading the launch")
    return check(asked.launch, **asked.model_dump(exclude={"launch"})).to_dict()


def _compare(asked: CompareInput, say: Say, _: float) -> dict[str, Any]:
    from simpar.simulation import simulate
    from simpar.verbs import compare

    say("comparing")
    both = [
        each if isinstance(each, str) else simulate(**_scenario(each, {}).inputs(), with_timeline=False)
        for each in (asked.a, asked.b)
    ]
    return compare(both[0], both[1]).model_dump(mode="json")


def _explain(asked: ExplainInput, say: Say, _: float) -> dict[str, Any]:
    from simpar.diagnosis.answer import explain

    plan = None if asked.scenario is None and not asked.set else _scenario(asked.scenario, asked.set)
    say("reading what was measured")
    return explain(*asked.measured, plan=plan, steps=asked.steps, progress=lambda *_: say("simulating")).to_dict()


def _learn(asked: LearnInput, say: Say, _: float) -> dict[str, Any]:
    from simpar.learning.answer import learn

    if not asked.save_profile.endswith((".yaml", ".yml")):
        raise UserError(f"{SOURCE}: save_profile = {asked.save_profile}: allowed: a name that ends in .yaml")
    say("learning")
    answer = learn(*asked.runs, stack=asked.stack, hardware=asked.hardware)
    answer.save(asked.save_profile)
    return {**answer.to_dict(), "profile": asked.save_profile}


def _catalogue(asked: CatalogueInput, _say: Say, _: float) -> dict[str, Any]:
    from simpar.shipped import names_of

    word = asked.containing.lower()
    names = names_of(asked.kind)
    return {"names": {name: line for name, line in names.items() if word in f"{name} {line}".lower()}}


TOOLS = {
    "simulate": Tool(SimulateInput, _simulate),
    "search": Tool(SearchInput, _search),
    "check": Tool(CheckInput, _check),
    "compare": Tool(CompareInput, _compare),
    "explain": Tool(ExplainInput, _explain),
    "learn": Tool(LearnInput, _learn),
    "catalogue": Tool(CatalogueInput, _catalogue),
}


def _scenario(given: Any, overrides: Mapping[str, Any]) -> Any:
    """The scenario of a name or of data, with overrides. Raises UserError, also for models that are code."""
    from simpar.scenario import load_scenario

    if given is not None and not isinstance(given, str | Mapping):
        raise UserError(f"{SOURCE}: scenario = {given!r:.60}: allowed: a name, a file, or a scenario as data")
    name = given if isinstance(given, str) else None
    flags = {**(dict(_leaves(given)) if isinstance(given, Mapping) else {}), **overrides}
    if name is None and not flags:
        raise UserError(f"{SOURCE}: scenario or set: one of them says what to simulate")
    if isinstance(model := flags.get("model"), str) and is_code(model):
        raise UserError(f"{SOURCE}: model = {model}: is code, which tools do not run")
    return load_scenario(name, flags)


def _leaves(data: Mapping[str, Any], prefix: str = "") -> Sequence[tuple[str, Any]]:
    """Dotted keys and values of nested sections."""
    leaves: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, Mapping) and key not in WHOLE:
            leaves += _leaves(value, f"{prefix}{key}.")
        else:
            leaves.append((f"{prefix}{key}", value))
    return leaves
