"""The collectives of a block: one stands wherever a tensor is read in a state other than it was written in.

The states are those of :mod:`simpar.plan.placement`. Megatron's tensor parallelism is one assignment of them: operators
of region "tensor" need their inputs whole, a contraction over a sharded dim leaves partial sums, and the stream between
them is sliced under sequence parallelism [Korthikanti et al. 2022, arXiv 2205.05198, section 4.2].
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce

import numpy as np

from simpar.architectures.graph import Block, Operator
from simpar.dataclass import dataclass
from simpar.plan.placement import States, Transfer, transfers
from simpar.units import Numbers, floats


@dataclass(frozen=True)
class Change:
    """Tensors that an operator needs in other states than they were written in; ``size_bytes`` is one whole tensor's.

    Several tensors are partial sums that their ``reader`` adds up before they are summed over ranks. ``reader`` is the
    first operator that needs the new states ("": the end of the block). ``sums_gradient``: in backward, partial sums of
    the gradient are summed over ranks, beside the reader's weight gradient.
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

    ``outside`` are the states of tensors from other blocks (without data that every rank loads itself), ``ends`` those
    in which tensors leave the block. ``reads(op, written)`` are the states in which an operator needs a tensor written
    in other ones, ``size_bytes(tensor, reader)`` is the size of a whole tensor as its first reader sees it.
    """

    mesh: tuple[Numbers, ...]
    outside: Mapping[str, States]
    ends: Mapping[str, States]
    reads: Callable[[Operator, States], States]
    writes: Callable[[Operator], States]
    size_bytes: Callable[[str, Operator | None], Numbers]


def changes(block: Block, flow: Flow) -> tuple[Change, ...]:
    """Changes of states inside a block and at its end, in the order of their first readers.

    A tensor changes once for all readers that need it in the same states.
    """
    written, known = dict(flow.outside), set[tuple[str, States]]()
    result: list[Change] = []

    def note(reader: Operator | None, wanted: Sequence[tuple[str, States]]) -> None:
        new = [(n, s) for n, s in dict.fromkeys(wanted) if s != written[n] and (n, s) not in known]
        known.update(new)
        for names, states in _together(new, written):
            size = reduce(np.maximum, [flow.size_bytes(name, reader) for name in names])
            pair = transfers(written[names[0]], states, flow.mesh)
            assert pair is not None, f"{block.name}.{names[0]}: no way from {written[names[0]]} to {states}"
            result.append(Change(names, reader.name if reader else "", floats(size), *pair, "X" in states))

    for op in block.operators:
        note(op, [(name, flow.reads(op, written[name])) for name in op.inputs if name in written])
        written[op.name] = flow.writes(op)
    note(None, [(name, states) for name, states in flow.ends.items() if states])
    return tuple(result)


def _together(
    wanted: Sequence[tuple[str, States]], written: Mapping[str, States]
) -> Iterator[tuple[tuple[str, ...], States]]:
    """Tensors that change one by one, and partial sums that change together."""
    sums: dict[tuple[States, States], list[str]] = {}
    for name, states in wanted:
        if "P" in written[name]:
            sums.setdefault((written[name], states), []).append(name)
        else:
            yield (name,), states
    for (_, states), names in sums.items():
        yield tuple(names), states
