"""The numbers by which roles divide the sizes of operators, and whether the slices come out whole."""

from collections.abc import Mapping, Sequence

import numpy as np

from simpar.architectures.graph import Dims, Operator, Size
from simpar.plan.placement import Role
from simpar.units import Flags, Ints

DIVIDED = ("batch", "seq", "columns", "contraction")
_WHOLE = ("head_dim", "batch")


def divisors(choices: Sequence[Sequence[Role]], mesh: Sequence[int]) -> dict[str, Ints]:
    """The divisor of each size under each choice of roles: name (in DIVIDED) -> int64[num_choices]."""
    table = {name: np.ones(len(choices), dtype=np.int64) for name in DIVIDED}
    for index, roles in enumerate(choices):
        for role, size in zip(roles, mesh, strict=True):
            if role.divides:
                table[role.divides][index] *= size
            elif role.name == "vocabulary":  # rows of a table
                table["contraction"][index] *= size
    return table


def names_divided_by_slices(size: Size) -> tuple[str, ...]:
    """For each term of a size, the name that slices divide: the first that is neither a head's width nor the batch."""
    return tuple(next((name for name in names if name not in _WHOLE), "") for _, names in size)


def divides(op: Operator, dims: Dims, by: Mapping[str, Ints]) -> Flags:
    """Whether the slices of an operator come out whole: bool[num_choices]."""
    rows = [dims[name] for name in names_divided_by_slices(op.rows) if name]
    good: Flags = dims["batch"] % by["batch"] == 0
    for size in rows:
        good &= size % by["seq"] == 0
    for sizes, what in ((op.columns, "columns"), (op.contraction or _table(op), "contraction")):
        for name in names_divided_by_slices(sizes):
            good &= _splits(name, int(dims[name]) if name else 1, by[what])
    return good


def _table(op: Operator) -> Size:
    """Rows of an embedding table, which sharding by vocabulary divides."""
    return ((1, ("vocab",)),) if op.kind == "embedding" else ()


def _splits(name: str, size: int, number: Ints) -> Flags:
    good: Flags = size % number == 0
    if name == "vocab":  # padded
        good = number >= 1
    elif name == "kv_heads":
        good |= number % size == 0
    return good
