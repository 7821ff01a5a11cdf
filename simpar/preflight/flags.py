"""A changed plan as changed options of the text it was read from: all edits that are needed, and no others.

The options of two plans are those that the export of the framework writes; where they differ, the text is edited. The
edited text is read like the original: it is shown only if it means the changed plan, and every edit without which it
still does is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks import expressible, load_reader, load_target
from simpar.frameworks.subject import idle_choices, subject
from simpar.frameworks.target import Imported
from simpar.layout.decide import complete_plan, decide
from simpar.plan.choices import BY_STACK
from simpar.plan.plan import Plan, Record
from simpar.preflight.patch import PATCHERS, SWITCH, Edit, is_switched
from simpar.preflight.spelling import in_own_words, spellings

if TYPE_CHECKING:
    from simpar.planner.problem import Problem

SYNONYMS = {
    "--recompute-granularity": ("--recompute-activations",),
    "--num-virtual-stages-per-pipeline-rank": ("--num-layers-per-virtual-pipeline-stage",),
    "fsdp_config.activation_checkpointing": ("gradient_checkpointing",),
}
"""Flags with the same meaning: if one is set or removed, the others are removed."""

ARGUMENTS = {
    **dict.fromkeys(
        [(target, "fsdp_config.activation_checkpointing") for target in ("transformers", "trl", "axolotl")],
        "gradient_checkpointing",
    ),
    ("llama-factory", "fsdp_config.activation_checkpointing"): "disable_gradient_checkpointing",
}
"""Arguments of trainers with the meaning of an option of FSDP's section."""


@dataclass(frozen=True)
class Text:
    """A text of options: its ``syntax`` (of PATCHERS; None if it cannot be edited), its reader, and a call of that.

    ``target`` is the reader's name.
    """

    text: str
    syntax: str | None
    target: str
    read: Callable[[str], Imported]

    @cached_property
    def written_as(self) -> str:
        """The export target whose options the text has; "" if there is none."""
        own = self.read(self.text).written_as
        return load_reader(self.target).written_as if own is None else own


@dataclass(frozen=True)
class Patched:
    """The changes of a text: edits in the order of the target's options, and the edited text.

    ``text`` is None if the text has no certain place for the edits; then only the edits are known. ``unsaid`` are
    choices that the edited text does not express, because they are the script's: what is called for them there
    (``model.gradient_checkpointing_enable()``). ``is_offered`` is false where the framework has no word for one of
    them.
    """

    edits: tuple[Edit, ...]
    text: str | None
    unsaid: tuple[str, ...] = ()
    is_offered: bool = True


def make_patch(given: Text, problem: Problem, before: Plan, after: Plan) -> Patched:
    """The edits that turn a text with the plan ``before`` into one with the plan ``after``; both plans have their dp.

    Raises UserError for a plan that is not allowed.
    """
    options = [_options(given.written_as, problem, plan) for plan in (before, after)]
    is_own = before.stack in load_target(given.written_as).stacks
    edits = [in_own_words(edit, given.text, given.syntax) for edit in _edits(given, *options, is_own=is_own)]
    wanted, world_size = _meaning(after, problem), problem.cluster.world_size
    said = given.read(given.text).global_batch(world_size)
    batch = said and problem.training.global_batch  # if the text gives none, flags give it again

    def applied(chosen: Sequence[Edit]) -> str | None:
        """The text with some edits, if it then says what it should, the batch included."""
        text = _applied(given, chosen) if all(_is_named(given, edit) for edit in chosen) else None
        if text is None:
            return None
        try:
            read = given.read(text)
            same = read.global_batch(world_size) == batch and _meaning(read.placed(world_size), problem) == wanted
            return text if same else None
        except UserError:
            return None

    whole = [*edits, *_batch_edits(given, problem, after, options[1])]
    further = [*edits, *_of_others(given, problem, after, edits, wanted)]
    for tried in (edits, whole, further):
        for spelt in spellings(tried, given.text, given.syntax, given.written_as):
            if (text := applied(spelt)) is not None:
                edits = spelt
                break
        if text is not None:
            break
    if text is None:
        possible = [edit for edit in edits if _is_possible(given, edit)]
        unsaid = tuple(_unsaid(given, possible, wanted, problem))
        for edit in list(possible):
            fewer = [each for each in possible if each is not edit]
            if unsaid and tuple(_unsaid(given, fewer, wanted, problem)) == unsaid:
                possible = fewer
        called = [_call(given.written_as, each) for each in unsaid]
        told = tuple(call or choice for call, choice in zip(called, unsaid, strict=True))
        return Patched(tuple(possible), None, told, is_offered=None not in called)
    for edit in list(edits):
        fewer = [each for each in edits if each is not edit]
        if (shorter := applied(fewer)) is not None:
            edits, text = fewer, shorter
    return Patched(tuple(edits), text)


def _call(target: str, choice: str) -> str | None:
    """What a script of a framework calls for a choice, NAME = VALUE; None if nothing is known."""
    calls, (name, _, value) = load_target(target).in_code, choice.partition(" = ")
    call = calls.get(f"{name}={json.loads(value)}") or calls.get(name)
    return call and call.format(value=value)


def _of_others(
    given: Text, problem: Problem, after: Plan, edits: Sequence[Edit], wanted: Mapping[str, Any]
) -> Iterator[Edit]:
    """Options for what the edited text says otherwise than the plan, though the two plans' options agree on it.

    Such are flags that the text has and that had no effect before (``--sequence-parallel`` without tensor parallelism).
    """
    said = dict(_otherwise(given, edits, wanted, problem))
    try:
        other = after.with_values(**{name.rpartition(".")[2]: now for name, (now, _) in said.items()})
        edited = _edits(given, _options(given.written_as, problem, other), _options(given.written_as, problem, after))
        yield from (edit for edit in edited if edit.name not in {each.name for each in edits})
    except (UserError, ValueError):
        return


def _is_named(given: Text, edit: Edit) -> bool:
    """Whether the text may have a name: options of sections are no flags of some frameworks."""
    return given.syntax != "shell" or "." not in edit.name or load_reader(given.target).has_dotted_flags


def _is_possible(given: Text, edit: Edit) -> bool:
    """Whether an edit has a name that the text may have, and removes nothing that is not there."""
    return _is_named(given, edit) and (not edit.is_gone or _applied(given, [edit]) != given.text)


def _unsaid(given: Text, edits: Sequence[Edit], wanted: Mapping[str, Any], problem: Problem) -> Iterator[str]:
    """Choices that an edited text does not express as wanted."""
    told = _otherwise(given, edits, wanted, problem)
    yield from (f"{name} = {json.dumps(should)}" for name, (_, should) in told)


def _otherwise(
    given: Text, edits: Sequence[Edit], wanted: Mapping[str, Any], problem: Problem
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """What an edited text does not express as wanted: by name what it says, and what it should."""
    try:
        text = _applied(given, edits)
        said = {} if text is None else _meaning(given.read(text).plan, problem)
    except UserError:
        return
    for section, value in said.items():
        parts = [(section, value, wanted[section])]
        if isinstance(value, dict):
            parts = [(f"{section}.{key}", now, wanted[section][key]) for key, now in value.items()]
        yield from ((name, (now, should)) for name, now, should in parts if now != should)


def _applied(given: Text, edits: Sequence[Edit]) -> str | None:
    text: str | None = given.text
    for edit in edits if given.syntax else ():
        for each in (*(Edit(name, is_gone=True) for name in SYNONYMS.get(edit.name, ())), edit):
            text = None if text is None else PATCHERS[str(given.syntax)](text, each)
    return text if given.syntax else None


def _edits(given: Text, old: Mapping[str, Any], new: Mapping[str, Any], *, is_own: bool = True) -> Iterator[Edit]:
    """The differences between the options of two plans; what is set wins over what is gone."""
    edits = list(_differences(given, old, new, is_own=is_own))
    is_set = {edit.name for edit, is_gone in edits if not is_gone}
    yield from (edit for edit, is_gone in edits if not (is_gone and edit.name in is_set))


def _differences(
    given: Text, old: Mapping[str, Any], new: Mapping[str, Any], *, is_own: bool
) -> Iterator[tuple[Edit, bool]]:
    """Edits for options that differ, and whether the option is gone."""
    for name in (*new, *(name for name in old if name not in new)):
        typed = f"--{name.removeprefix('--')}" if given.syntax == "shell" else name
        if name not in new:
            yield from ((edit, True) for edit in _as_arguments(given, Edit(typed, is_gone=True), is_own=is_own))
        elif name not in old or old[name] != new[name]:
            edited = Edit(typed, _written(new[name], given.syntax))
            yield from ((edit, False) for edit in _as_arguments(given, edited, is_own=is_own))


def _batch_edits(given: Text, problem: Problem, after: Plan, options: Mapping[str, Any]) -> Iterator[Edit]:
    """Options of a plan for the batch of a step that the text leaves open, if another option changes the batch."""
    training = problem.training
    twice = replace(problem, training=training.model_copy(update={"global_batch": 2 * training.global_batch}))
    return _edits(given, _options(given.written_as, twice, after), options)


def _options(target: str, problem: Problem, plan: Plan) -> Mapping[str, Any]:
    loaded = load_target(target)
    plan, _ = expressible(plan, loaded)  # what the target has no words for, such as an optimizer, stays as it is
    stack = loaded.stack_for(plan)
    settled = complete_plan(plan.model_copy(update={"stack": stack}), problem.workload)
    per_node = problem.cluster.profile.devices_per_node
    return loaded.options(subject(settled, problem.graph, problem.training, stack, per_node))


def _as_arguments(given: Text, edit: Edit, *, is_own: bool) -> Iterator[Edit]:
    """An edit of FSDP's section as one of the argument with the same meaning, where the text has no such section.

    Flags of ``accelerate launch`` that say it are changed as well.
    """
    key = edit.name.removeprefix("--")
    flag = f"--{key.replace('fsdp_config.', 'fsdp_', 1)}"
    is_launched = given.syntax == "shell" and "." in key and is_switched(given.text, flag)
    if is_launched:
        yield Edit(flag, "false" if edit.is_gone else edit.value)
    argument = ARGUMENTS.get((given.written_as, key))
    if argument is None or (is_own and _is_named(given, edit)):
        yield from () if is_launched else (edit,)
        return
    is_on = not edit.is_gone and str(edit.value).lower() != "false"
    if argument.startswith("disable"):
        is_on = not is_on
    yield Edit(f"--{argument}" if given.syntax == "shell" else argument, str(is_on).lower())


def _written(value: Any, syntax: str | None) -> str | None:
    """A value in the syntax of the text."""
    if value is None:
        return SWITCH
    if syntax == "shell" and not isinstance(value, bool):  # booleans belong to job configs, in TOML syntax
        return " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return value if syntax == "yaml" and isinstance(value, str) else json.dumps(value)


def _meaning(plan: Plan, problem: Problem) -> dict[str, Any]:
    """A plan as its stack runs it, without keys that are not part of its layout or have no effect."""
    settled = decide(plan, problem.workload, problem.stack).to_plan()
    said = settled.model_dump(exclude=set(Record.model_fields))
    idle = idle_choices(settled, problem.training)
    for section, names in BY_STACK.items():
        said[section] |= dict.fromkeys(idle & set(names))
    etp = settled.mesh.expert_tensor_parallel  # its default may be written out or not
    return said | {"mesh": said["mesh"] | {"etp": etp}}
