"""Stages of their own: every pipeline stage with its devices, its logical mesh and a role for every operator.

This part of a Plan goes beyond one layout for all stages: they may differ in devices and in sharding, and operators of
one block may be sharded differently. See :mod:`simpar.plan.placement` for states and roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod

from pydantic import Field, model_validator

from simpar.architectures.flops import shape_dims
from simpar.architectures.graph import INPUT, Block, Dims, ModelGraph
from simpar.architectures.recompute import PATTERN
from simpar.calls import Strict
from simpar.errors import UserError
from simpar.files import allowed, suggest
from simpar.plan.placement import CONVERSIONS, Role, States, role_named, roles_of
from simpar.plan.slices import divides, divisors

STATE_NAMES = {"replicate": "R", "batch": "B", "sequence": "S", "features": "F"}
WORDS = {letter: word for word, letter in STATE_NAMES.items()}
MEMORY = "memory"
"""Name of the operator whose output travels beside the stream to all later blocks."""


class BlockSharding(Strict):
    """One kind of block on a stage's mesh: a word per mesh axis for streams, and for every operator.

    ``gathered`` names operators whose weights are sharded between uses (ZeRO-3) and gathered for every pass.
    """

    input: tuple[str, ...]
    output: tuple[str, ...]
    operators: dict[str, tuple[str, ...]]
    memory: tuple[str, ...] | None = None
    gathered: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _known_states(self) -> BlockSharding:
        for words in (self.input, self.output, self.memory or ()):
            for word in words:
                if word not in STATE_NAMES:
                    raise ValueError(f"{word!r} is not a state{suggest(word, STATE_NAMES)}{allowed(STATE_NAMES)}")
        return self

    def stream(self, which: str) -> States:
        """States of "input", "output" or "memory" as letters."""
        return tuple(STATE_NAMES[word] for word in getattr(self, which) or ())


class StagePlan(Strict):
    """One pipeline stage: how many layers, which devices in which logical mesh, and how its blocks are sharded.

    ``mesh`` names axis sizes from slowest to fastest varying device; devices are first_device onwards. Without
    ``sharding`` the mesh is (dp, tp) or (dp,) and the stage runs whatever a uniform plan on its mesh does: Megatron's
    roles, experts among its ranks, any ZeRO stage.
    """

    layers: int = Field(ge=0)
    first_device: int = Field(ge=0)
    mesh: tuple[int, ...] = Field(min_length=1, max_length=2)
    sharding: dict[str, BlockSharding] = Field(default_factory=dict)
    recompute: str = Field(default="none", pattern=f"^{PATTERN}$")

    @property
    def num_devices(self) -> int:
        """Devices of the stage."""
        return prod(self.mesh)

    def holds(self, device: int) -> bool:
        """Whether a device belongs to the stage."""
        return 0 <= device - self.first_device < self.num_devices

    def roles(self, block: Block) -> dict[str, tuple[Role, ...]]:
        """Role of every operator of a block on every axis. Raises UserError for one that it cannot take."""
        words = self.sharding[block.name].operators
        return {op.name: tuple(_role(block, op.name, word) for word in words[op.name]) for op in block.operators}


def _role(block: Block, name: str, word: str) -> Role:
    op = block.operator(name)
    role = role_named(op, word)
    if role is None:
        known = [each.name for each in roles_of(op)]
        raise UserError(f"plan.stages: {block.name}.{name} as {word!r}{suggest(word, known)}{allowed(known)}")
    return role


def stage_blocks(stages: tuple[StagePlan, ...], graph: ModelGraph) -> tuple[tuple[Block, ...], ...]:
    """Blocks of every stage in order: embedding first, head last."""
    every = [graph.blocks[name] for name in graph.layers]
    result, begin = [], 0
    for index, stage in enumerate(stages):
        blocks = every[begin : begin + stage.layers]
        begin += stage.layers
        before = [graph.embedding] if index == 0 else []
        after = [graph.head] if index == len(stages) - 1 else []
        result.append((*before, *blocks, *after))
    return tuple(result)


def check_stages(
    stages: tuple[StagePlan, ...], graph: ModelGraph, world_size: int, microbatch: tuple[int, int]
) -> None:
    """Raises UserError with the first rule that stages break on a model and a number of devices.

    ``microbatch`` is (sequences, tokens of each).
    """
    shape = shape_dims(graph, microbatch[1], batch=microbatch[0])
    layers = sum(stage.layers for stage in stages)
    if layers != len(graph.layers):
        raise UserError(f"plan.stages: {layers} layers in all; allowed: the model's {len(graph.layers)}")
    used = sorted(stages, key=lambda stage: stage.first_device)
    ends = [0, *(stage.first_device + stage.num_devices for stage in used)]
    if [stage.first_device for stage in used] != ends[:-1] or ends[-1] != world_size:
        raise UserError(
            f"plan.stages: devices {[(s.first_device, s.num_devices) for s in stages]} (first, number); "
            f"allowed: every one of the {world_size} devices in exactly one stage"
        )
    for index, (stage, blocks) in enumerate(zip(stages, stage_blocks(stages, graph), strict=True)):
        if not stage.sharding:
            continue
        for block in {block.name: block for block in blocks}.values():
            _check_block(stage, block, f"plan.stages[{index}].sharding")
            _check_sizes(stage, block, block.view(shape), f"plan.stages[{index}].sharding.{block.name}")
            _check_ways(stage, block, graph, f"plan.stages[{index}].sharding.{block.name}")
        _check_joints(stage, blocks, f"plan.stages[{index}].sharding")


def _check_block(stage: StagePlan, block: Block, where: str) -> None:
    if block.name not in stage.sharding:
        raise UserError(f"{where}: {block.name} is missing; its blocks stand in this stage")
    own = stage.sharding[block.name]
    names = [op.name for op in block.operators]
    if sorted(own.operators) != sorted(names):
        raise UserError(f"{where}.{block.name}: operators {sorted(own.operators)}{allowed(names)}")
    words: Mapping[str, tuple[str, ...] | None] = {
        "input": own.input, "output": own.output, "memory": own.memory, **own.operators,
    }  # fmt: skip
    for name, given in words.items():
        if given is not None and len(given) != len(stage.mesh):
            raise UserError(
                f"{where}.{block.name}.{name}: {len(given)} words; allowed: one for each axis of mesh {stage.mesh}"
            )
    stage.roles(block)
    unknown = [name for name in own.gathered if name not in names]
    if unknown:
        raise UserError(f"{where}.{block.name}.gathered: {unknown[0]!r}{allowed(names)}")


def _check_sizes(stage: StagePlan, block: Block, dims: Dims, where: str) -> None:
    """Raises UserError unless the slices of all operators and streams come out whole."""
    for name, roles in stage.roles(block).items():
        if not divides(block.operator(name), dims, divisors([roles], stage.mesh)).all():
            words = ", ".join(role.name for role in roles)
            raise UserError(
                f"{where}.{name} as {words} on mesh {stage.mesh}: slices of {dims['batch']} sequences of {dims['seq']} "
                "tokens, or of its columns, are not whole; allowed: roles or meshes that divide them"
            )
    for which in ("input", "output"):
        states = stage.sharding[block.name].stream(which)
        for letter, size in (("B", "batch"), ("S", "seq")):
            parts = prod(n for state, n in zip(states, stage.mesh, strict=True) if state == letter)
            if dims[size] % parts:
                raise UserError(f"{where}.{which}: {parts} slices of {size} {dims[size]}; allowed: a divisor of it")


def _check_ways(stage: StagePlan, block: Block, graph: ModelGraph, where: str) -> None:
    """Raises UserError where a tensor is written in a state that cannot be changed into the one it is read in."""
    roles, own = stage.roles(block), stage.sharding[block.name]
    written = {MEMORY: own.stream("memory"), INPUT: own.stream("input")}
    if block is graph.embedding:
        del written[INPUT]  # every rank loads the data that it needs
    wanted = []
    for op in block.operators:
        reads = tuple(role.reads for role in roles[op.name])
        wanted += [(name, op.name, reads) for name in op.inputs]
        written[op.name] = tuple(role.writes for role in roles[op.name])
    if (last := block.operators[-1]).kind != "loss":
        wanted.append((last.name, "output", own.stream("output")))
    for name, reader, after in wanted:
        for before, state in zip(written.get(name) or after, after, strict=True):
            if (before, state) not in CONVERSIONS:
                raise UserError(
                    f"{where}.{reader}: {name} is written as {before} and read as {state}, and no exchange turns one "
                    "into the other; allowed: other roles of either"
                )


def _check_joints(stage: StagePlan, blocks: tuple[Block, ...], where: str) -> None:
    for one, two in pairwise(blocks):
        left, right = stage.sharding[one.name].output, stage.sharding[two.name].input
        if left != right:
            raise UserError(f"{where}: {one.name} ends {left}, {two.name} behind it begins {right}; allowed: the same")
