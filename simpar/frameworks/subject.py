"""The subject of an export: a plan with its open fields settled, and the fields it decided itself.

A plan leaves many fields to its software stack ("None"). How a target then decides them is its own habit, and no loss;
only what the plan chose against its stack's habit must survive the export. So a plan is opened (fields that equal the
stack's habit are left open again) and settled with the habits of the target's own stack.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from simpar import files
from simpar.architectures.catalogue import config_of
from simpar.architectures.graph import ModelGraph
from simpar.architectures.recompute import is_full, of_layer
from simpar.architectures.training import Training
from simpar.dataclass import dataclass
from simpar.hardware.cluster import Cluster
from simpar.layout.deciders import resolve
from simpar.layout.layout import Layout
from simpar.plan.choices import BY_STACK, CHOICES
from simpar.plan.plan import Plan, Record
from simpar.profiles import once_if_shipped
from simpar.scenario import ClusterChoice
from simpar.stacks.stack import Stack, load_stack

DEVICES_PER_NODE = 8
"""Devices per node if no cluster is named."""
NO_EXPORT = "simpar knows no setting of this framework for it"
PASSIVE = (*Record.model_fields, "micro_batch")


@dataclass(frozen=True)
class Loss:
    """A field of the plan that a target cannot express, its value, and the reason.

    ``decided_by`` names the choices that alone decide it, sizes of the mesh by whether they exceed 1: all plans that
    agree in them have this loss. Empty if that is not known.
    """

    field: str
    value: Any
    reason: str
    decided_by: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.field} = {_short(self.value)}: {self.reason}"


@dataclass(frozen=True)
class Subject:
    """A settled plan with its model and shape; ``chosen`` names the fields that the plan decided itself.

    ``stated`` are fields that the plan gives and that make a difference, whether they equal its stack's habit or not.
    ``config`` is the model's Hugging Face config, if known. ``devices_per_node`` shapes the launchers. ``predicted`` is
    the text after "Predicted under" in the files, "" if nothing is known.
    """

    plan: Plan
    graph: ModelGraph
    training: Training
    chosen: frozenset[str] = frozenset()
    stated: frozenset[str] = frozenset()
    config: Mapping[str, Any] = field(default_factory=dict)
    devices_per_node: int = DEVICES_PER_NODE
    predicted: str = ""

    @cached_property
    def layout(self) -> Layout:
        """The layout that the settled plan states, with what follows from it."""
        return Layout.of(self.plan)

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.plan.mesh.replicas

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.plan.mesh.world_size

    @property
    def nodes(self) -> int:
        """The number of nodes that the launchers ask for."""
        return -(-self.world_size // self.devices_per_node)

    @cached_property
    def device_kind(self) -> str | None:
        """The kind of device of the plan: gpu, tpu or cpu; None if it names no cluster. Raises UserError."""
        cluster = cluster_of(self.plan.cluster)
        return cluster.device.kind if cluster else None

    @property
    def microbatches(self) -> int:
        """Microbatches a rank runs in one step."""
        return self.layout.num_microbatches(self.training.global_batch)

    @property
    def layers(self) -> tuple[int, ...]:
        """Transformer layers of every virtual stage."""
        return self.layout.stage_layers(len(self.graph.layers))

    @property
    def even(self) -> bool:
        """Whether all virtual stages have the same number of transformer layers."""
        return len(set(self.layers)) == 1

    @property
    def recomputed_per_stage(self) -> int | None:
        """Layers that ``every:C`` recomputes in each virtual stage; None if stages differ.

        Layers that predict further tokens do not count, nor do stages that have only such layers.
        """
        policy, names = self.plan.memory.recompute, self.graph.layers
        main = [layer for layer, name in enumerate(names) if name not in self.graph.auxiliary]
        whole = [layer for layer in main if is_full(of_layer(policy, layer))]
        stages = [range(*ends) for ends in pairwise((0, *accumulate(self.layers)))]
        counts = {sum(layer in stage for layer in whole) for stage in stages if {*stage} & {*main}}
        return counts.pop() if len(counts) == 1 else None

    def chose(self, name: str) -> bool:
        """Whether the plan decided a field itself."""
        return name in self.chosen


def settle(plan: Plan, stack: str, own: Stack | None = None) -> tuple[Plan, frozenset[str]]:
    """The plan with all open fields decided as ``stack`` would, and the fields it decided itself.

    ``own`` is the stack that the plan was made for, if that is not a shipped one (which its ``stack`` would name). A
    field whose value makes no difference in the plan is not a decision. Raises UserError for an unknown stack.
    """
    own = own or load_stack(plan.stack or stack)
    habit, idle = resolve(_opened(plan, BY_STACK), own), idle_choices(resolve(plan, own))
    chosen = _unlike(plan, habit) - idle
    kept = resolve(_opened(plan, _left(chosen)), own)
    chosen |= _unlike(plan, kept) - idle  # habits that follow from what the plan decided
    return resolve(_opened(plan, _left(chosen)), load_stack(stack)), frozenset(chosen)


def _unlike(plan: Plan, other: Plan) -> set[str]:
    """Fields that stacks decide, in which another plan has not what a plan states."""
    pairs = (
        (name, getattr(plan, section), getattr(other, section)) for section, names in BY_STACK.items() for name in names
    )
    return {name for name, ours, theirs in pairs if getattr(ours, name) not in (None, getattr(theirs, name))}


def _left(chosen: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Fields that stacks decide and a plan does not, by section."""
    return {section: tuple(name for name in names if name not in chosen) for section, names in BY_STACK.items()}


def idle_choices(plan: Plan, training: Training | None = None) -> set[str]:
    """Fields of a resolved plan on what overlaps and waits that have nothing to, so that their value means nothing.

    If no ranks share gradients, nothing is reduced; whole parameters are gathered once a step only under ZeRO-1 and 2
    with flat buckets. Sharded gradients alone may wait for the last of several microbatches, which ``training`` tells.
    """
    data, mesh = plan.data_parallel, plan.mesh
    ranks = mesh.gradient_ranks
    gathers = data.kind == "ddp" and data.zero > 0 and ranks > data.hsdp
    idle = set() if ranks > 1 else {"overlap_grad_reduce"}
    one = training is not None and training.global_batch <= (mesh.dp or 1) * plan.micro_batch
    if one or ranks == 1 or data.zero < 2:
        idle.add("defer_grad_reduce")
    return (idle | {"overlap"} if mesh.tp == 1 else idle) | (set() if gathers else {"overlap_param_gather"})


def without_idle(plan: Plan, training: Training | None = None) -> Plan:
    """A resolved plan with its idle choices open: plans that differ in these alone are one."""
    idle = idle_choices(plan, training)
    return _opened(plan, {section: tuple(idle.intersection(names)) for section, names in BY_STACK.items()})


def _opened(plan: Plan, fields: Mapping[str, tuple[str, ...]]) -> Plan:
    update = {
        section: getattr(plan, section).model_copy(update=dict.fromkeys(names)) for section, names in fields.items()
    }
    return plan.model_copy(update=update)


def cluster_of(named: Mapping[str, Any] | None) -> Cluster | None:
    """The cluster that a plan names; None if it names none. Raises UserError."""
    if not named or "hardware" not in named:
        return None
    choice = files.parse(ClusterChoice, dict(named), source="the plan's cluster")
    return choice.load().reducing(nvls=choice.nvls, sharp=choice.sharp)


def node_of(cluster: Cluster | None) -> int:
    """Devices per node of a cluster; the default number without one."""
    return cluster.profile.devices_per_node if cluster else DEVICES_PER_NODE


def subject(
    plan: Plan,
    graph: ModelGraph,
    training: Training,
    stack: str,
    devices_per_node: int | None = None,
    own: Stack | None = None,
) -> Subject:
    """What a target with the habits of ``stack`` is asked to express (``own``: see :func:`settle`).

    The default of ``devices_per_node`` is that of the plan's cluster. Raises UserError for an unknown stack or cluster.
    """
    inside = devices_per_node or node_of(cluster_of(plan.cluster))
    settled, chosen = settle(plan, stack, own)
    if (idle := idle_choices(settled, training)) & {"defer_grad_reduce"}:
        chosen -= {"defer_grad_reduce"}
        settled = _opened(settled, {"data_parallel": ("defer_grad_reduce",)})
    said = {
        name
        for section, names in BY_STACK.items()
        for name in names
        if getattr(getattr(plan, section), name) is not None
    }
    config = config_of(graph.name)
    shared = gcd(inside, settled.mesh.world_size)
    per_node = min(inside, settled.mesh.world_size)
    return Subject(
        plan=settled,
        graph=graph,
        training=training,
        chosen=chosen,
        stated=frozenset(said - idle),
        config=config,
        devices_per_node=per_node if settled.mesh.world_size % per_node == 0 else shared,
    )


KNOWN_TO_EXPORTERS = frozenset(choice.path for choice in CHOICES if choice.is_exported)
"""Section and field of the choices that exporters know."""


@once_if_shipped("stacks")
def _usual(stack: str | Path) -> tuple[Plan, Plan]:
    """The default plan, and what a shipped stack makes of it."""
    return Plan(), resolve(Plan(), load_stack(stack))


def not_understood(plan: Plan, stack: str, known: Collection[str] = ()) -> Iterator[Loss]:
    """Fields of a settled plan that no exporter knows yet, and that equal neither the default nor the stack's habit.

    ``known`` are sections and fields that one target knows.
    """
    blank, habit = _usual(stack)
    for section in type(plan).model_fields:
        if section in PASSIVE or section in known:
            continue
        part = getattr(plan, section)
        names = type(part).model_fields if isinstance(part, BaseModel) else ()
        if not names and part not in (getattr(blank, section), getattr(habit, section)):
            yield Loss(section, part, NO_EXPORT)
        for name in names:
            usual = (getattr(getattr(blank, section), name), getattr(getattr(habit, section), name))
            if (section, name) not in KNOWN_TO_EXPORTERS and name not in known and getattr(part, name) not in usual:
                yield Loss(f"{section}.{name}", getattr(part, name), NO_EXPORT)


def _short(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "true" if value is True else "false" if value is False else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
