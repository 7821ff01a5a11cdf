"""Exports: a plan as the files of another framework, and back.

``TARGETS`` lists the targets and ``READERS`` what reads launches and configs; their modules are imported when needed.
To add a target, add a module that builds a :class:`~simpar.frameworks.target.Target`, its line here, one with its
stacks there, and its table of option names under ``tests/frameworks/tables``. A reader is a module that builds a
:class:`~simpar.frameworks.reader.Reader`, and its line here.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from simpar import files
from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import OPTIMAL, chosen_layers, segment_layers
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.launch import describe_prediction, readme
from simpar.frameworks.lines import with_line
from simpar.frameworks.reader import Reader
from simpar.frameworks.rules import no_chunks_alone
from simpar.frameworks.subject import Loss, Subject, not_understood, subject
from simpar.frameworks.target import STACKS, Imported, Target
from simpar.plain import check_digits, dotted
from simpar.plan.choices import SECTIONS
from simpar.plan.optimizers import DEFAULT_OPTIMIZER
from simpar.plan.plan import Plan
from simpar.plan.uniform_stages import as_uniform
from simpar.precisions import in_place_of
from simpar.stacks.stack import Stack, load_stack

OPEN = (
    "alike", "bridge_launch", "deepspeed_states", "framework", "match", "megatron_log", "named", "nanogpt_read",
    "nearest", "open_axes", "overrides", "own_loops", "reader", "recipes", "rollout_side", "schedulers",
    "script_code", "script_commands", "script_environment", "shell", "shell_calls", "shell_devices", "shell_gaps",
    "shell_output", "shell_passed", "shell_shared", "shell_untold", "shell_words", "slurm", "source", "subject",
    "target", "trainer_shape", "unread", "words",
)  # fmt: skip
"""The modules that other rooms may import; all others are inner."""

TARGETS = {
    "torch": "torch:TORCH",
    "megatron": "megatron:MEGATRON",
    "megatron-bridge": "megatron_bridge:MEGATRON_BRIDGE",
    "nemo-run": "nemo_run:NEMO_RUN",
    "torchtitan": "torchtitan:TORCHTITAN",
    "torchtitan-main": "torchtitan_main:TORCHTITAN_MAIN",
    "torchtitan-0.2": "torchtitan_toml:TORCHTITAN_TOML",
    "deepspeed": "deepspeed:DEEPSPEED",
    "accelerate": "accelerate:ACCELERATE",
    "nanotron": "nanotron:NANOTRON",
    "sagemaker": "sagemaker:SAGEMAKER",
    "maxtext": "maxtext:MAXTEXT",
    "transformers": "trainers:TRANSFORMERS",
    "trl": "trainers:TRL",
    "axolotl": "trainers:AXOLOTL",
    "llama-factory": "trainers:LLAMA_FACTORY",
}


READERS = {
    "torchtitan": "titan_read:READER",
    "torchtitan-0.2": "titan_read:TOML_READER",
    "megatron-bridge": "bridge_read:READER",
    "nemo-run": "bridge_read:NEMO_READER",
    "nanotron": "nanotron_read:READER",
    "picotron": "picotron_read:READER",
    "verl": "verl_read:READER",
    "slime": "slime_read:READER",
    "openrlhf": "openrlhf_read:READER",
    "nemo-rl": "nemo_rl_read:READER",
    "areal": "areal_read:READER",
    "roll": "roll_read:READER",
    "trl-online": "trl_online_read:READER",
    "megatron-swift": "swift_read:READER",
    "swift": "swift_trainer:READER",
    "primus": "primus_read:READER",
    "flagscale": "flagscale_read:READER",
    "megatron-deepspeed": "megatron_kin:MEGATRON_DEEPSPEED",
    "mindspeed": "megatron_kin:MINDSPEED",
    "pai-megatron-patch": "pai_read:READER",
    "gpt-neox": "neox_read:READER",
    "llm-foundry": "foundry_read:READER",
    "nemo-1": "nemo_yaml:READER",
    "automodel": "automodel_read:READER",
    "torchtune": "torchtune_read:READER",
    "maxtext": "maxtext_read:READER",
    "nanogpt": "nanogpt_read:READER",
    "nanochat": "nanochat_read:READER",
    "lingua": "lingua_read:READER",
    "olmo": "olmo_read:READER",
    "litgpt": "litgpt_read:READER",
    "llama-cookbook": "cookbook_read:READER",
    "fsdp_qlora": "fsdp_qlora_read:READER",
    "mistral-finetune": "mistral_read:READER",
    "glm": "glm_read:READER",
    "autotrain": "autotrain_read:READER",
    "oumi": "oumi_read:READER",
    "veomni": "veomni_read:READER",
    "arctic-training": "arctic_read:READER",
    "llama-factory": "trainer_readers:LLAMA_FACTORY_READER",
    "axolotl": "trainer_readers:AXOLOTL_READER",
    "unsloth": "trainer_readers:UNSLOTH_READER",
    "trl": "trainer_readers:TRL_READER",
    "transformers": "trainer_readers:TRANSFORMERS_READER",
    "script": "script_read:READER",
    "accelerate": "accelerate_read:READER",
    "deepspeed": "deepspeed_read:READER",
    "megatron": "megatron_read:READER",
    "megatron-log": "megatron_log_read:READER",
}
"""What reads launches and configs, in the order in which they are asked whether a text is theirs."""
READ_AS = {"torchtitan-main": "torchtitan"}
"""Targets whose files the reader of another one reads."""


@dataclass(frozen=True)
class Exported:
    """The files of an export by name, the losses, and notes for the user.

    ``plan`` is the plan as the target runs it: everything it leaves open is decided as in the target's stack.
    """

    plan: Plan
    files: Mapping[str, str]
    lost: tuple[Loss, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ExportDraft:
    """A plan as its target runs it, before the files are written, which state what is predicted of that plan.

    ``whole`` is the plan that is written beside the files.
    """

    target: Target
    subject: Subject
    whole: Plan
    lost: tuple[Loss, ...]
    notes: tuple[str, ...]

    @property
    def plan(self) -> Plan:
        """The plan as the target runs it."""
        return self.subject.plan

    def written(self, figures: str = "", *notes: str) -> Exported:
        """The files, with the figures predicted under the target's stack, and further notes.

        Without figures, the files state what the plan itself records, and for which stack.
        """
        told = (*self.notes, *notes)
        s = replace(self.subject, predicted=f"{self.plan.stack}: {figures}" if figures else self._recorded())
        made = dict(self.target.files(s, self.target.options(s)))
        page = readme(s, self.target, made, self.lost, told)
        whole = json.dumps(self.whole.model_dump(mode="json"), indent=2) + "\n"
        return Exported(s.plan, {**made, "plan.json": whole, "README.md": page}, self.lost, told)

    def _recorded(self) -> str:
        recorded_words = describe_prediction(self.whole.predicted or {})
        return f"{self.whole.usual_stack}, for which the plan was made: {recorded_words}" if recorded_words else ""


@cache
def load_target(name: str) -> Target:
    """A target by name. Raises UserError for an unknown one."""
    module, attribute = TARGETS[files.choose(name, TARGETS, "target")].split(":")
    result: Target = getattr(import_module(f"{__name__}.{module}"), attribute)
    return result


@cache
def load_reader(name: str) -> Reader:
    """A reader by name. Raises UserError for an unknown one."""
    module, attribute = READERS[files.choose(name, READERS, "framework")].split(":")
    result: Reader = getattr(import_module(f"{__name__}.{module}"), attribute)
    return result


def owner_of(data: Mapping[str, Any]) -> str | None:
    """The reader whose config a mapping is; None if it is none's."""
    return next((name for name in READERS if load_reader(name).owns(data)), None)


def targets_of(stack: str) -> list[str]:
    """Targets whose framework belongs to a stack, or of which the stack is an earlier release that none names."""
    return [name for name in TARGETS if stack in STACKS[name]] or [
        name for name in TARGETS if any(stack in load_stack(own).earlier.values() for own in STACKS[name])
    ]


def unsupported(plan: Plan, model: ModelGraph, training: Training, target: str) -> list[str]:
    """Why a target cannot express a plan, one reason per field; empty if it can. Data are not considered.

    ``plan`` has its dp. Raises UserError for an unknown target or stack.
    """
    try:
        return [str(loss) for loss in losses(plan, model, training, target)]
    except NotOneLayout as error:
        return [str(error)]


class Inexpressible(UserError):
    """A target cannot express something that a plan asks for."""


class NotOneLayout(UserError):
    """Stages of a plan have different layouts, which no target supports."""


def losses(
    plan: Plan,
    model: ModelGraph,
    training: Training,
    target: str,
    *,
    own: Stack | None = None,
    devices_per_node: int | None = None,
) -> tuple[Loss, ...]:
    """What a target cannot express of a plan; data are not considered.

    ``plan`` has its dp; ``own`` is the stack it was made for, if that is not a shipped one. Raises UserError for an
    unknown target or stack, NotOneLayout for a plan whose stages have different layouts.
    """
    loaded = load_target(target)
    plan, unknown = expressible(_one_layout(plan, model), loaded)
    return (*unknown, *_losses(loaded, subject(plan, model, training, loaded.stack_for(plan), devices_per_node, own)))


def _one_layout(plan: Plan, model: ModelGraph) -> Plan:
    """The plan with one layout for all stages, as targets need it. Raises NotOneLayout if its stages differ."""
    try:
        return as_uniform(plan, model) if plan.pipeline.stages else plan
    except UserError as error:
        raise NotOneLayout(str(error)) from None


def _said_gradients(s: Subject, plan: Plan) -> Subject:
    """The subject with the gradient dtype that a plan gives itself, even if it is its stack's habit.

    Plans that a search wrote (with predictions) have their stack's dtype.
    """
    said = plan.numerics.grad_dtype
    if said is None or plan.predicted is not None or said == s.plan.numerics.grad_dtype:
        return s
    numerics = s.plan.numerics.model_copy(update={"grad_dtype": said})
    return replace(s, plan=s.plan.model_copy(update={"numerics": numerics}), chosen=s.chosen | {"grad_dtype"})


def _losses(target: Target, s: Subject) -> tuple[Loss, ...]:
    unknown = not_understood(s.plan, target.stack_for(s.plan), target.features)
    return (*unknown, *no_chunks_alone(s), *target.losses(s))


def _of_data(training: Training) -> Iterator[Loss]:
    """Document lengths, which are a property of the data that a target is given, not one of its options."""
    if (documents := training.documents) is not None:
        told = f"{documents.packing} of {documents.lengths or f'lognormal around {documents.mean} tokens'}"
        yield Loss("training.documents", told, "targets train on whole sequences; lengths are those of the data")


def expressible(plan: Plan, target: Target) -> tuple[Plan, tuple[Loss, ...]]:
    """The plan without what its target cannot express, and the losses.

    No target takes a recomputation choice by layer, or 4-bit products; few recompute in segments, have 8-bit products
    or many optimizers.
    """
    policy, optimizer, precision = plan.memory.recompute, plan.numerics.optimizer, plan.numerics.precision
    has = target.numerics
    lost: list[Loss] = []
    if optimizer not in has.optimizers:
        known = ", ".join(has.optimizers)
        lost.append(Loss("optimizer", optimizer, f"the target has {known}: {DEFAULT_OPTIMIZER} in its place"))
        plan = plan.with_values(optimizer=DEFAULT_OPTIMIZER)
    in_segments = segment_layers(policy) is not None and "segments" not in target.features
    if policy == OPTIMAL or chosen_layers(policy) is not None or in_segments:
        lost.append(Loss("recompute", policy, "all layers are treated alike: full in its place"))
        plan = plan.with_values(recompute="full")
    instead = in_place_of(precision, has.precisions)
    if instead != precision:
        known = ", ".join(has.precisions)
        lost.append(Loss("precision", precision, f"the target has {known}: {instead} in its place"))
        plan = plan.with_values(precision=instead)
    return plan, tuple(lost)


def export(
    plan: Plan,
    model: ModelGraph,
    training: Training,
    target: str,
    *,
    devices_per_node: int | None = None,
    lossy: bool = False,
) -> Exported:
    """The files of a plan for a target; see :func:`draft` for the arguments and errors."""
    return draft(plan, model, training, target, devices_per_node=devices_per_node, lossy=lossy).written()


def draft(
    plan: Plan,
    model: ModelGraph,
    training: Training,
    target: str,
    *,
    devices_per_node: int | None = None,
    lossy: bool = False,
) -> ExportDraft:
    """A plan as a target runs it. ``plan`` was checked and has its dp.

    Stages with equal layouts are exported as one layout. Raises UserError that names everything the target cannot
    express, unless ``lossy``; for stages with different layouts always.
    """
    result, whole = load_target(target), plan
    try:
        plan = _one_layout(plan, model)
    except NotOneLayout as error:
        raise UserError(f"{target} cannot express {error}") from None
    plan, unknown = expressible(plan, result)
    s = _said_gradients(subject(plan, model, training, result.stack_for(plan), devices_per_node), plan)
    lost = (*unknown, *_losses(result, s), *_of_data(training))
    if lost and not lossy:
        reasons = "; ".join(map(str, lost))
        raise Inexpressible(f"{target} cannot express {reasons} (--lossy exports without)")
    s = _without_lost_execution(s, lost)
    unread = (model.said,) if model.said else ()
    notes = (*_stack_note(plan, result), *unread, *result.notes(s))
    return ExportDraft(result, s, whole, lost, notes)


def _without_lost_execution(s: Subject, lost: Iterable[Loss]) -> Subject:
    """The subject without what is lost of how steps are executed: the target does as its stack there."""
    fields = {loss.field.rpartition(".")[2] for loss in lost}
    execution = s.plan.execution.model_copy(update=dict.fromkeys(fields.intersection(SECTIONS["execution"])))
    return replace(s, plan=s.plan.model_copy(update={"execution": execution}))


def _stack_note(plan: Plan, target: Target) -> tuple[str, ...]:
    if plan.stack in (None, *target.stacks):
        return ()
    return (
        (
            f"The plan was made for the habits of stack {plan.stack}; {target.name} has those of stack {target.stack}: "
            f"what the plan leaves open is as {target.stack} does it."
        ),
    )


def read(text: str, name: str, target: str) -> Imported:
    """A plan from a file of another tool; ``name`` is the file's name. Raises UserError if the file cannot be read."""
    from simpar.frameworks.overrides import script_in, with_texts  # late: exports read no shell

    target = READ_AS.get(target, target)
    if target in TARGETS and target not in READERS:
        raise UserError(f"{name}: nothing reads files of {target}{files.allowed(READERS)}")
    check_digits(text, name)
    try:
        script = script_in(text, name)
        with with_texts(script.written if script else {}):
            return load_reader(target).read(text, name)
    except UserError as error:
        raise with_line(error, text, name) from None
    except ValidationError as error:  # the file has a value that no plan can have
        told = error.errors()[0]
        raise UserError(f"{name}: {dotted(told['loc'])} = {told['input']!r}: {files.wording(told)}") from None
    except RecursionError:
        raise UserError(f"{name}: nested too deeply to be read") from None
