"""Placements of tensors on the axes of a logical mesh, roles of operators, and the collectives between states.

A stage runs on a logical mesh of one or two axes. On every axis a tensor [batch, sequence, features] has a state:

| state | the ranks of the axis hold | the gradient is |
|---|---|---|
| R | all of it | whole on every rank |
| B, S, F | a slice of the batch, the sequence, the features | the same slice |
| P | a partial sum of it | whole on every rank |
| X | all of it | a partial sum |

An operator takes one role per axis, which fixes the states that it reads and writes. Where the writer's state differs
from the reader's, there is a collective in forward and one in backward (:data:`CONVERSIONS`). Tensor parallelism with
and without sequence parallelism, data, context and vocabulary parallelism are all paths through this table [Zheng et
al. 2022, Alpa, arXiv 2201.12023, section 4; partial sums as a state are DTensor's Partial].
"""

from collections.abc import Mapping, Sequence

from simpar.architectures.graph import Operator
from simpar.dataclass import dataclass
from simpar.units import Numbers, scalar_truth

SHARDED = "BSF"
States = tuple[str, ...]


@dataclass(frozen=True)
class Role:
    """What an operator does on one mesh axis: states that it reads and writes, and the size that is divided."""

    name: str
    reads: str
    writes: str
    divides: str = ""


BATCH = Role("batch", "B", "B", "batch")
SEQUENCE = Role("sequence", "S", "S", "seq")
REPLICATE = Role("replicate", "R", "R")
COLUMN = Role("column", "X", "F", "columns")
ROW = Role("row", "F", "P", "contraction")
FEATURES = Role("features", "F", "F", "columns")
HEADS = Role("heads", "F", "F", "columns")
PARTIAL = Role("partial_gradient", "X", "X")
SUM = Role("sum", "P", "P")
TABLE_ROWS = Role("vocabulary", "R", "P")
TABLE_COLUMNS = Role("features", "R", "F", "columns")
LOGITS = Role("vocabulary", "F", "R", "columns")

_STREAM = (BATCH, SEQUENCE, REPLICATE, PARTIAL)
_POINTWISE = (*_STREAM, FEATURES)
ROLES: Mapping[str, tuple[Role, ...]] = {
    "matmul": (BATCH, SEQUENCE, COLUMN, ROW, REPLICATE),
    "attention": (BATCH, SEQUENCE, HEADS, REPLICATE),
    "embedding": (BATCH, SEQUENCE, TABLE_ROWS, TABLE_COLUMNS, REPLICATE),
    "loss": (BATCH, SEQUENCE, LOGITS, REPLICATE),
    "norm": _STREAM,
    "add": (*_POINTWISE, SUM),
    "rope": _POINTWISE,
    "activation": _POINTWISE,
    "gated_activation": _POINTWISE,
    "dropout": _POINTWISE,
}
GENERIC = (BATCH, SEQUENCE, REPLICATE)
"""Roles of an operator whose kind is not listed: its rows can be divided, nothing else."""

_GATHER, _SCATTER, _REDUCE, _EXCHANGE = "all_gather", "reduce_scatter", "all_reduce", "all_to_all"
CONVERSIONS: Mapping[tuple[str, str], tuple[str, str]] = {
    **{(state, state): ("", "") for state in "RBSFPX"},
    **{("R", shard): ("", _GATHER) for shard in SHARDED},
    **{(shard, "R"): (_GATHER, "") for shard in SHARDED},
    **{(shard, "X"): (_GATHER, _SCATTER) for shard in SHARDED},
    **{("P", shard): (_SCATTER, _GATHER) for shard in SHARDED},
    **{(a, b): (_EXCHANGE, _EXCHANGE) for a in SHARDED for b in SHARDED if a != b},
    ("R", "X"): ("", _REDUCE),
    ("R", "P"): ("", ""),
    ("P", "R"): (_REDUCE, ""),
    ("P", "X"): (_REDUCE, _REDUCE),
}
"""Collectives (forward, backward; "" for none) between the state written and the state read."""


def roles_of(op: Operator) -> tuple[Role, ...]:
    """The roles that an operator can take on an axis; a norm over the stream needs all features."""
    if op.kind == "norm" and op.region == "tensor":
        return _POINTWISE
    return ROLES.get(op.kind, GENERIC)


def role_named(op: Operator, name: str) -> Role | None:
    """The operator's role of that name."""
    return next((role for role in roles_of(op) if role.name == name), None)


@dataclass(frozen=True)
class Transfer:
    """One collective along a mesh axis on a tensor of which each rank of the group sees ``share`` (0..1].

    The collective's size is ``share`` x the bytes of the whole tensor: what an all-gather makes, a reduce-scatter
    consumes, one rank of an all-to-all sends.
    """

    axis: int
    op: str
    share: Numbers


def count_slices(states: Sequence[str], mesh: Sequence[Numbers], *, but: int = -1) -> Numbers:
    """The number of slices into which all axes (except ``but``) cut a tensor."""
    factor: Numbers = 1
    for axis, (state, size) in enumerate(zip(states, mesh, strict=True)):
        if state in SHARDED and axis != but:
            factor = factor * size
    return factor


def transfers(
    before: States, after: States, mesh: Sequence[Numbers]
) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...]] | None:
    """(Forward, backward) collectives of a change of states, each in order; None where no change leads there.

    Axes that end up sliced change first, so that later gathers move as few bytes as possible.
    """
    order = sorted(range(len(mesh)), key=lambda axis: (after[axis] not in SHARDED, axis))
    now = list(before)
    forward: list[Transfer] = []
    backward: list[Transfer] = []
    for axis in order:
        pair = CONVERSIONS.get((before[axis], after[axis]))
        if pair is None:
            return None
        share = 1.0 / count_slices(now, mesh, but=axis)
        for op, transfer in zip(pair, (forward, backward), strict=True):
            if op and scalar_truth(mesh[axis] > 1):
                whole = share / mesh[axis] if op == _EXCHANGE else share
                transfer.append(Transfer(axis, op, whole))
        now[axis] = after[axis]
    return tuple(forward), tuple(reversed(backward))
