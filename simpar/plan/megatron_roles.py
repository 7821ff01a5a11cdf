"""Megatron's roles for every operator on a mesh (dp, tp), in the words of a stage with a sharding of its own."""

from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, is_column_parallel, is_row_parallel
from simpar.plan.plan import Plan
from simpar.plan.stages import BlockSharding, StagePlan


def megatron_sharding(graph: ModelGraph, sequence_parallel: bool) -> dict[str, BlockSharding]:
    """The sharding of every block of a model on a mesh (dp, tp) [Shoeybi et al. 2019, arXiv 1909.08053]."""
    stream = "sequence" if sequence_parallel else "replicate"
    blocks = (graph.embedding, *graph.blocks.values(), graph.head)
    return {block.name: _sharding(block, stream, graph) for block in blocks}


def in_roles(plan: Plan, graph: ModelGraph) -> Plan:
    """The checked plan with roles for stages that have none; sequence parallelism is then part of the roles."""
    rows = bool(plan.tensor_parallel.sequence_parallel)
    stages = tuple(with_roles(stage, graph, rows) for stage in plan.pipeline.stages or ())
    changed = {
        "pipeline": plan.pipeline.model_copy(update={"stages": stages}),
        "tensor_parallel": plan.tensor_parallel.model_copy(update={"sequence_parallel": False}),
    }
    return plan.model_copy(update=changed)


def with_roles(stage: StagePlan, graph: ModelGraph, sequence_parallel: bool) -> StagePlan:
    """The stage with Megatron's roles if it has none; a mesh of one axis is data-parallel."""
    if stage.sharding:
        return stage
    whole = len(stage.mesh) == 2
    sequence_parallel = sequence_parallel and whole and stage.mesh[1] > 1
    sharding = megatron_sharding(graph, sequence_parallel)
    if not whole:
        sharding = {name: _first_axis(block) for name, block in sharding.items()}
    return stage.model_copy(update={"sharding": sharding})


def _first_axis(block: BlockSharding) -> BlockSharding:
    operators = {name: words[:1] for name, words in block.operators.items()}
    changed = {"input": block.input[:1], "output": block.output[:1], "memory": (block.memory or ())[:1]}
    return block.model_copy(update={**changed, "operators": operators})


def _sharding(block: Block, stream: str, graph: ModelGraph) -> BlockSharding:
    if block.scope in graph.whole_scopes:
        return _whole(block, stream, graph)
    ends = "replicate" if block is graph.head else stream
    return BlockSharding(
        input=("batch", stream),
        output=("batch", ends),
        operators={op.name: ("batch", _role(op, stream)) for op in block.operators},
        memory=("batch", stream),
    )


def _whole(block: Block, stream: str, graph: ModelGraph) -> BlockSharding:
    """Of a tower that is not divided: all of it on every rank, but for the operator that joins its rows to the text."""
    ends = "replicate" if f"{block.scope}.seq" in graph.dims else stream
    roles = {op.name: ("batch", "replicate") for op in block.operators}
    roles[block.operators[-1].name] = ("batch", ends)
    begins = "replicate" if any(INPUT in op.inputs for op in block.operators) else stream
    return BlockSharding(input=("batch", begins), output=("batch", ends), operators=roles, memory=("batch", stream))


def _role(op: Operator, stream: str) -> str:
    """The role on the tp axis: heads, ffn and vocabulary are divided, the stream keeps the state ``stream``."""
    if op.kind == "matmul":
        return "column" if is_column_parallel(op) else "row" if is_row_parallel(op) else "replicate"
    inside = {"attention": "heads", "embedding": "vocabulary", "loss": "vocabulary"}
    if op.kind in inside and (op.kind != "embedding" or op.looks_up_vocabulary):
        return inside[op.kind]
    return stream if op.region == "sequence" else "features"
