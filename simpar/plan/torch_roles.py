"""Which operators run on torch in which roles; everything else is refused in one line."""

from math import prod

from simpar.architectures.graph import ModelGraph, Operator
from simpar.errors import UserError
from simpar.files import allowed
from simpar.plan.placement import Role
from simpar.plan.stages import StagePlan, stage_blocks

KINDS = ("matmul", "attention", "embedding", "norm", "add", "rope", "activation", "gated_activation", "dropout", "loss")


def refuse_roles(stages: tuple[StagePlan, ...], graph: ModelGraph) -> None:
    """Raises UserError with the first operator of checked stages that torch does not run in its role."""
    for index, (stage, blocks) in enumerate(zip(stages, stage_blocks(stages, graph), strict=True)):
        for block in {block.name: block for block in blocks}.values():
            roles = stage.roles(block)
            for op in block.operators:
                reason = _reason(op, roles[op.name], stage.mesh, graph)
                if reason is not None:
                    words = ", ".join(role.name for role in roles[op.name])
                    where = f"plan.stages[{index}].sharding.{block.name}.{op.name}"
                    raise UserError(f"{where} as {words} on mesh {stage.mesh}: {reason}")


def explain_no_copies(graph: ModelGraph, parts: int) -> str | None:
    """Why the heads of attention cannot be divided into ``parts``; None where they can."""
    kv_heads = graph.dims["kv_heads"]
    if kv_heads % parts == 0:
        return None
    return f"the runtime does not copy key-value heads; allowed: a divisor of {kv_heads}"


def _reason(op: Operator, roles: tuple[Role, ...], mesh: tuple[int, ...], graph: ModelGraph) -> str | None:
    """Why torch does not run an operator in its roles; None where it does."""
    if op.kind not in KINDS or "qk_dim" in graph.dims:
        return f"a real run places no operators of kind {op.kind}, nor latent attention, one by one{allowed(KINDS)}"
    parts = prod(size for role, size in zip(roles, mesh, strict=True) if role.divides == "columns")
    of_keys = op.attention is not None or any("kv_heads" in names for _, names in op.columns)
    if of_keys and (reason := explain_no_copies(graph, parts)):
        return reason
    whole = any("heads" in names for weight in op.weights for _, names in weight.size)
    if op.kind == "norm" and parts > 1 and whole:
        return "it normalises over all heads at once; allowed: batch, sequence, replicate"
    shared = prod(size for role, size in zip(roles, mesh, strict=True) if role.name == "sequence")
    if op.attention is not None and op.attention.dropout and shared > 1 and graph.details.dropout.attention:
        return "attention across parts of a sequence drops nothing out; allowed: batch, heads, replicate"
    return None
