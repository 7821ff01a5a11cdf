"""The section of a step of reinforcement learning as a form: its fields, and what goes with a change of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Literal

from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.post_training import PostTraining
from simpar.precisions import PRECISIONS
from simpar.units import with_unit

SECTION = "post_training"
MODELS = ("passes.reward", "passes.teacher", "passes.critic")
"""Fields that name a model."""
HARDWARE = "rollout.hardware"
TEXTS = ("prompt", "response")
FILES = tuple(f"lengths.{text}.file" for text in TEXTS)
"""Fields that name a file."""
HISTOGRAMS = tuple(f"lengths.{text}.histogram" for text in TEXTS)
"""Fields with many values, which are changed in the scenario's file alone."""
WORDS = {
    "algorithm": "Algorithm", "prompts": "Groups a step", "samples": "Responses a group",
    "lengths.response.mean": "Tokens of a response, mean", "lengths.response.p99": "99th percentile of them",
    "placement": "Placement", "rollout.nodes": "Nodes that only generate", "rollout.tp": "Tensor parallel (tp)",
    f"rollout.{PIPELINE}": f"Pipeline parallel ({PIPELINE})", "rollout.ep": "Expert parallel (ep)",
    "rollout.precision": "Precision",
    "rollout.engine.max_sequences": "Sequences at a time", "synchrony.steps_off": "Updates off policy",
    "synchrony.in_flight": "New weights interrupt sequences",
}  # fmt: skip
"""Fields that are always shown, in order; all others stand under their names below."""
SPREAD = 4.0
"""A log-normal that replaces a fixed length: its 99th percentile over its mean."""

Kind = Literal["number", "text", "menu", "yes"]


@dataclass(frozen=True)
class FormField:
    """A field of the form: its dotted key, its label ("" for those under their names), its value and allowed ones.

    One that ``is_open`` may have no value.
    """

    key: str
    words: str
    kind: Kind
    now: Any
    values: tuple[Any, ...] = ()
    is_open: bool = False


def _leaves(node: Mapping[str, Any], defs: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of the values in a JSON schema, each with its own schema."""
    for name, each in node["properties"].items():
        reference = each.get("$ref", "").rpartition("/")[2]
        if reference:
            yield from _leaves(defs[reference], defs, f"{before}{name}.")
        else:
            yield f"{before}{name}", each


SCHEMA = PostTraining.model_json_schema()
LEAVES = dict(_leaves(SCHEMA, SCHEMA["$defs"]))
KEYS = tuple(f"{SECTION}.{key}" for key in LEAVES)
"""Dotted keys of a scenario that the form changes."""


def fields(section: PostTraining, models: tuple[str, ...], hardware: tuple[str, ...]) -> list[dict[str, Any]]:
    """Every field of the form as plain data: those with labels first, in their order."""
    known = {**dict.fromkeys(MODELS, models), HARDWARE: hardware, "rollout.precision": tuple(PRECISIONS)}
    made = {key: _field(section, key, known.get(key, ())) for key in LEAVES if key not in HISTOGRAMS}
    shown = [made[key] for key in WORDS]
    return [asdict(each) for each in (*shown, *(each for key, each in made.items() if key not in WORDS))]


def _field(section: PostTraining, key: str, values: tuple[str, ...]) -> FormField:
    """A field whose kind is that of its schema; ``values`` are the names that one with names may have."""
    now = value_at(section, key)
    kinds = LEAVES[key].get("anyOf", [LEAVES[key]])
    is_open = any(each["type"] == "null" for each in kinds)
    one = kinds[0]
    words = WORDS.get(key, "")
    if values or "enum" in one:
        return FormField(key, words, "menu", now, values or tuple(one["enum"]), is_open)
    if one["type"] == "boolean":
        return FormField(key, words, "yes", now)
    if one["type"] != "string":
        return FormField(key, words, "number", now, (), is_open)
    return FormField(key, words, "text", with_unit(now, "seconds") if isinstance(now, float) else now, (), is_open)


def value_at(section: Any, key: str) -> Any:
    """The value of a section at a dotted key."""
    for name in key.split("."):
        section = getattr(section, name)
    return section


def with_section(state: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A state with values of its section replaced by dotted keys of the scenario, and with what goes with them."""
    result = dict(state)
    for key, value in changes.items():
        for each, said in {key: value, **_with(result, key.removeprefix(f"{SECTION}."), value)}.items():
            result = _said(result, each.split("."), said)
    return result


def _said(data: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """A copy of nested data with a value replaced, or left out where it is None; what is no section becomes one."""
    head, *rest = path
    inner = data.get(head)
    if rest:
        value = _said(inner if isinstance(inner, Mapping) else {}, rest, value)
    kept = {key: each for key, each in data.items() if key != head}
    return kept if value is None else {**kept, head: value}


def _with(state: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """What else a change of one value changes, by dotted keys of the scenario: what would contradict it."""

    def now(name: str, usual: Any = None) -> Any:
        part: Any = state.get(SECTION, {})
        for each in name.split("."):
            part = part.get(each) if isinstance(part, Mapping) else None
        return usual if part is None else part

    takes_turns = now("placement", "colocated") != "split"
    result: dict[str, Any] = {}
    if key == "placement":
        nodes = state.get("cluster", {}).get("nodes", 1)
        result = {"rollout.nodes": None if value == "colocated" else now("rollout.nodes", nodes)}
        result |= {} if value == "split" else {"rollout.hardware": None}
        if value != "split" and now("synchrony.steps_off", 0):
            result["synchrony.in_flight"] = True
    elif key == "synchrony.steps_off":
        result = {"synchrony.in_flight": bool(value) and (takes_turns or now("synchrony.in_flight", False))}
    elif key == "synchrony.in_flight" and value:
        result = {"synchrony.steps_off": now("synchrony.steps_off", 0) or 1}
    elif key == "synchrony.in_flight" and takes_turns:
        result = {"synchrony.steps_off": 0}
    elif key == "weights.changed" and value != 1:
        result = {"weights.method": "resharded"}
    elif key == "weights.method" and value == "gathered":
        result = {"weights.changed": None}
    elif key.startswith("lengths.") and value is not None:
        result = _other_lengths(key, value, now)
    return {f"{SECTION}.{name}": each for name, each in result.items()}


def _other_lengths(key: str, value: Any, now: Callable[[str], Any]) -> dict[str, Any]:
    """A text has one distribution: the others give way, and a mean has its tail."""
    home, _, name = key.rpartition(".")
    pair = ("mean", "p99")
    others = [each for each in ("fixed", "histogram", "file", *pair) if each != name]
    if name not in pair:
        return {f"{home}.{each}": None for each in others}
    other, tail = (pair[1], SPREAD) if name == "mean" else (pair[0], 1 / SPREAD)
    twin = now(f"{home}.{other}")
    made = twin if twin is not None or not isinstance(value, int | float) else max(1.0, value * tail)
    return {f"{home}.{each}": None for each in others if each != other} | {f"{home}.{other}": made}
