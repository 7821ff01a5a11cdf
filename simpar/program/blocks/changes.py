"""Where a tensor is read in other states than it was written in: there the collectives of a block stand.

The states are those of :mod:`simpar.plan.placement`. Megatron's tensor parallelism is one assignment of them: what
operators of region "tensor" read they need whole, a contraction over a sharded dim leaves summands, and the stream
between them is sliced under sequence parallelism [Korthikanti et al. 2022, arXiv 2205.05198, section 4.2].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from simpar.models.graph import Block, Operator
from simpar.plan.placement import States, Transfer, transfers
from simpar.units import Numbers, floats


@dataclass(frozen=True)
class Change:
    """Tensors that one operator needs in other states than they were written in; bytes of the whole of one.

    Several are summands that their ``reader`` adds up before they are summed over ranks. ``reader`` is the first
    operator that needs them so, "" behind the last one. ``sums_gradient``: its backward sums gradients that the
    readers left as summands, beside the reader's weight gradient.
    """

    tensors: tuple[str, ...]
    reader: str
    size_bytes: Numbers
    forward: tuple[Transfer, ...]
    backward: tuple[Transfer, ...]
    sums_gradient: bool = False

    def moved_bytes(self, transfer: Transfer) -> Numbers:
        """Size of one of its collectives."""
        return self.size_bytes * transfer.share


@dataclass(frozen=True)
class Flow:
    """States of the tensors of a block on a mesh.

    ``outside`` are the states of what comes from other blocks (data that every rank loads as it needs it is not among
    it), ``ends`` those in which tensors of the block leave it. ``reads`` are the states in which an operator needs
    a tensor that was written in some, ``size_bytes`` the size of the whole of a tensor for its first reader.
    """

    mesh: tuple[Numbers, ...]
    outside: Mapping[str, States]
    ends: Mapping[str, States]
    reads: Callable[[Operator, States], States]
    writes: Callable[[Operator], States]
    size_bytes: Callable[[str, Operator | None], Numbers]


def changes(block: Block, flow: Flow) -> tuple[Change, ...]:
    """Changes of states inside a block and at its end, in the order of their first readers.

    A tensor is changed once for all that read it in the same states.
    """
    written, known = dict(flow.outside), set[tuple[str, States]]()
    found: list[Change] = []

    def note(reader: Operator | None, wanted: Sequence[tuple[str, States]]) -> None:
        new = [(n, s) for n, s in dict.fromkeys(wanted) if s != written[n] and (n, s) not in known]
        known.update(new)
        for names, states in _together(new, written):
            size = reduce(np.maximum, [flow.size_bytes(name, reader) for name in names])
            pair = transfers(written[names[0]], states, flow.mesh)
            assert pair is not None, f"{block.name}.{names[0]}: no way from {written[names[0]]} to {states}"
            found.append(Change(names, reader.name if reader else "", floats(size), *pair, "X" in states))

    for op in block.operators:
        note(op, [(name, flow.reads(op, written[name])) for name in op.inputs if name in written])
        written[op.name] = flow.writes(op)
    note(None, [(name, states) for name, states in flow.ends.items() if states])
    return tuple(found)


def _together(
    wanted: Sequence[tuple[str, States]], written: Mapping[str, States]
) -> Iterator[tuple[tuple[str, ...], States]]:
    """Tensors that change by themselves, and summands that change as one."""
    sums: dict[tuple[States, States], list[str]] = {}
    for name, states in wanted:
        if "P" in written[name]:
            sums.setdefault((written[name], states), []).append(name)
        else:
            yield (name,), states
    for (_, states), names in sums.items():
        yield tuple(names), states
