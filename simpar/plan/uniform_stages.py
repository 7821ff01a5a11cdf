"""Equal stages of their own, written as a uniform plan."""

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from simpar.architectures.graph import Block, ModelGraph
from simpar.architectures.recompute import by_layer
from simpar.errors import UserError
from simpar.plan.megatron_roles import in_roles, megatron_sharding
from simpar.plan.mesh import AXES
from simpar.plan.plan import Plan
from simpar.plan.stage_layers import spread_layers
from simpar.plan.stages import BlockSharding, StagePlan

DATA, ROWS, WHOLE = "data parallelism", "tensor and sequence parallelism", "tensor parallelism"


def as_uniform(plan: Plan, graph: ModelGraph) -> Plan:
    """The layout of a checked plan with stages of its own, as a uniform plan.

    Stages may differ in their number of layers only. Raises UserError with the first stage and operator that a uniform
    plan does not express.
    """
    stages = in_roles(plan, graph).pipeline.stages or ()
    axes = [_axes(index, stage, graph) for index, stage in enumerate(stages)]
    size = stages[0].num_devices
    for index, (stage, kinds) in enumerate(zip(stages, axes, strict=True)):
        if (stage.mesh, kinds) != (stages[0].mesh, axes[0]):
            raise UserError(
                f"plan.stages[{index}]: mesh {stage.mesh} of {' x '.join(kinds)}, stage 0 has {stages[0].mesh} of "
                f"{' x '.join(axes[0])}; allowed outside of stages of their own: the same in all, on as many devices"
            )
        if stage.first_device != index * size:
            raise UserError(
                f"plan.stages[{index}]: first_device = {stage.first_device}; allowed outside of stages of their own: "
                f"{index * size}, one stage behind the other"
            )
    tensor = [kind for kind in axes[0] if kind != DATA]
    dp = prod(n for kind, n in zip(axes[0], stages[0].mesh, strict=True) if kind == DATA)
    swapped = len(tensor) == 1 and axes[0][-1] == DATA and stages[0].mesh[-1] > 1
    mesh = {
        "tp": size // dp, "dp": dp, "pp": len(stages),
        "order": ("dp", *(axis for axis in AXES if axis != "dp")) if swapped else AXES,
    }  # fmt: skip
    layers = tuple(stage.layers for stage in stages)
    usual = layers == spread_layers(len(graph.layers), len(stages))
    changed = {
        "micro_batch": plan.micro_batch // dp,
        "mesh": plan.mesh.model_copy(update=mesh),
        "pipeline": plan.pipeline.model_copy(update={"stages": None, "layers": None if usual else layers}),
        "tensor_parallel": plan.tensor_parallel.model_copy(
            update={"sequence_parallel": tensor[0] == ROWS if tensor else None}
        ),
        "data_parallel": plan.data_parallel.model_copy(update={"zero": plan.data_parallel.zero * (dp > 1)}),
        "memory": plan.memory.model_copy(update={"recompute": _recompute(stages)}),
    }
    return plan.model_copy(update=changed)


def _recompute(stages: tuple[StagePlan, ...]) -> str:
    """The policy of all stages where it is the same, else one by layer."""
    policies = {stage.recompute for stage in stages}
    if len(policies) == 1:
        return policies.pop()
    return by_layer((stage.recompute, stage.layers) for stage in stages if stage.layers)


def _axes(index: int, stage: StagePlan, graph: ModelGraph) -> tuple[str, ...]:
    """The kind of each axis of a stage's mesh: data, or tensor parallelism with or without sequence parallelism."""
    blocks = (graph.embedding, *graph.blocks.values(), graph.head)
    shown = {ROWS: megatron_sharding(graph, True), WHOLE: megatron_sharding(graph, False)}
    result = []
    for axis, ranks in enumerate(stage.mesh):
        wrong = {
            kind: list(_differences(stage, axis, blocks, graph, shown[WHOLE if kind == DATA else kind], kind != DATA))
            for kind in (DATA, ROWS, WHOLE)
        }
        nearest = min(wrong, key=lambda kind: len(wrong[kind]))
        if ranks > 1 and wrong[nearest]:
            raise UserError(
                f"plan.stages[{index}].sharding.{wrong[nearest][0]} on axis {axis} of mesh {stage.mesh}, where one "
                f"layout for all stages has {nearest}; allowed outside of stages of their own: axes of data "
                "parallelism or of Megatron's roles throughout, no weights gathered"
            )
        result.append(nearest if ranks > 1 else DATA)
    if {ROWS, WHOLE} <= set(result):
        raise UserError(
            f"plan.stages[{index}]: rows are shared on one axis of tensor parallelism and whole on the other; allowed "
            "outside of stages of their own: the same on both"
        )
    return tuple(result)


def _differences(
    stage: StagePlan, axis: int, blocks: Iterable[Block], graph: ModelGraph,
    usual: Mapping[str, BlockSharding], column: bool,
) -> Iterator[str]:  # fmt: skip
    """Operators and ends of blocks whose role on an axis differs from that in a column of Megatron's sharding."""
    for block in (each for each in blocks if each.name in stage.sharding):
        own, other = stage.sharding[block.name], usual[block.name]
        for name, words in own.operators.items():
            if words[axis] != other.operators[name][column]:
                yield f"{block.name}.{name} as {words[axis]}"
            elif name in own.gathered:
                yield f"{block.name}.{name} with gathered weights"
        for end in ("input", "output"):  # of data, and of losses, there is no stream
            if block is (graph.embedding if end == "input" else graph.head):
                continue
            if (word := getattr(own, end)[axis]) != getattr(other, end)[column]:
                yield f"{block.name}.{end} as {word}"
