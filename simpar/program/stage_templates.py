"""Templates of stages whose weights are shared along different axes, block by block.

The rules are those of :mod:`simpar.program.templates`: buckets of gradients close in reverse order and are reduced
as soon as the block that fills them is done, sharded parameters are gathered at most two blocks ahead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simpar.program.phases import CollectiveUse
from simpar.program.segments import Segment
from simpar.program.templates import (
    GATHER,
    GRADIENTS,
    PARAMETERS,
    REDUCE,
    MemoryChange,
    Node,
    Template,
    Unit,
    backward_memory,
    compute_node,
    forward_memory,
    two_buffers,
)

LOOK_AHEAD = 2
Bytes = Mapping[str, float]


@dataclass(frozen=True)
class StageUnit:
    """One block of a stage: what it holds, and by group the bytes that its passes gather and reduce.

    ``gathered_bytes`` are the buffer of the parameters that it ``gathers`` before every pass, ``refreshes`` whole ones
    after the update, ``reduces`` their gradients once a step, ``scatters`` gradients of sharded ones after every
    backward.
    """

    unit: Unit
    gathered_bytes: float = 0.0
    gathers: Bytes = field(default_factory=dict)
    refreshes: Bytes = field(default_factory=dict)
    reduces: Bytes = field(default_factory=dict)
    scatters: Bytes = field(default_factory=dict)


@dataclass(frozen=True)
class Hooks:
    """What a pass does besides computing: gather whole parameters first (``refresh``), reduce gradients (``reduce``).

    ``reduce_op`` reduces gradients whose optimizer states are shared; buckets hold at least ``bucket_bytes``.
    """

    refresh: bool = False
    reduce: bool = False
    reduce_op: str = "reduce_scatter"
    bucket_bytes: float = 0.0
    first_bucket_bytes: float = 0.0


def stage_forward(units: Sequence[StageUnit], segments: Sequence[Segment], hooks: Hooks) -> Template:
    """Forward of one stage: blocks in order, each behind the gathers of its parameters."""
    if not any(unit.gathers or (hooks.refresh and unit.refreshes) for unit in units):
        plain = [unit.unit for unit in units]
        node = compute_node("forward", plain, segments, memory=forward_memory(plain))
        return Template((replace(node, arrival=True),), 0)
    nodes: list[Node] = []
    computes: list[int] = []
    for unit, segment in zip(units, segments, strict=True):
        waits = _gathers(nodes, unit, computes, refresh=hooks.refresh)
        memory = (*forward_memory([unit.unit]), *_release(unit))
        node = compute_node("forward", [unit.unit], [segment], after=waits, memory=memory)
        nodes.append(replace(node, frees=(PARAMETERS,)))
        computes.append(len(nodes) - 1)
    nodes[computes[0]] = replace(nodes[computes[0]], arrival=True)
    return Template(tuple(nodes), computes[-1])


def stage_backward(
    kind: str, units: Sequence[StageUnit], segments: Sequence[Segment], hooks: Hooks
) -> Template:
    """Backward, or one half of it, of one stage: blocks in reverse, gradients reduced behind them."""
    backwards, passes = list(reversed(units)), list(reversed(segments))
    scatters = kind != "input_gradient" and any(unit.scatters for unit in units)
    if not (hooks.reduce or scatters or any(unit.gathers for unit in units)):
        plain = [unit.unit for unit in backwards]
        node = compute_node(kind, plain, passes, memory=backward_memory(kind, plain))
        return Template((replace(node, arrival=True),), 0)
    nodes: list[Node] = []
    computes: list[int] = []
    scattered: list[int] = []
    buckets = _Buckets(hooks)
    for index, (unit, segment) in enumerate(zip(backwards, passes, strict=True)):
        waits = _gathers(nodes, unit, computes, refresh=False)
        if len(scattered) >= LOOK_AHEAD:
            waits = (*waits, scattered[-LOOK_AHEAD])
        memory = (*backward_memory(kind, [unit.unit]), *_release(unit))
        node = compute_node(kind, [unit.unit], [segment], after=waits, memory=memory)
        awaits = two_buffers(GRADIENTS, len(scattered), scatters)
        nodes.append(replace(node, awaits=awaits, frees=(PARAMETERS,)))
        computes.append(len(nodes) - 1)
        for group, size in unit.scatters.items() if scatters else ():
            node = reduce_node(CollectiveUse(group, "reduce_scatter", size), computes[-1:])
            nodes.append(replace(node, frees=(GRADIENTS,)))
            scattered.append(len(nodes) - 1)
        if hooks.reduce:
            nodes += buckets.close(unit, last=index == len(units) - 1, after=computes[-1])
    nodes[computes[0]] = replace(nodes[computes[0]], arrival=True)
    return Template(tuple(nodes), computes[-1])


def reduce_node(use: CollectiveUse, after: Sequence[int] = (), streams: tuple[str, ...] = (REDUCE,)) -> Node:
    """One reduction of gradients."""
    return Node(kind="dp", name=f"{use.op} gradients", streams=streams, collective=use, after=tuple(after))


def gather_node(use: CollectiveUse, after: Sequence[int] = (), streams: tuple[str, ...] = (GATHER,)) -> Node:
    """One gather of parameters."""
    return Node(kind="dp", name="all_gather parameters", streams=streams, collective=use, after=tuple(after))


def _gathers(
    nodes: list[Node], unit: StageUnit, computes: Sequence[int], *, refresh: bool
) -> tuple[int, ...]:
    """Append the gathers in front of a block; the buffer of sharded ones exists while they are used."""
    waits: list[int] = []
    behind = computes[-LOOK_AHEAD : len(computes) - LOOK_AHEAD + 1] if len(computes) >= LOOK_AHEAD else ()
    held = (MemoryChange(False, unit.gathered_bytes, "transient"),)
    awaits = two_buffers(PARAMETERS, len(computes))
    for group, size in unit.gathers.items():
        node = replace(gather_node(CollectiveUse(group, "all_gather", size), behind), awaits=awaits)
        nodes.append(replace(node, memory=held if unit.gathered_bytes and not waits else ()))
        waits.append(len(nodes) - 1)
    for group, size in unit.refreshes.items() if refresh else ():
        nodes.append(gather_node(CollectiveUse(group, "all_gather", size)))
        waits.append(len(nodes) - 1)
    return tuple(waits)


def _release(unit: StageUnit) -> tuple[MemoryChange, ...]:
    size = unit.gathered_bytes
    return (MemoryChange(True, -size, "transient"),) if size and unit.gathers else ()


class _Buckets:
    """Buckets of gradients, one series for each group; a block that fills one closes it."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._pending: dict[str, float] = {}
        self._opened: set[str] = set()

    def close(self, unit: StageUnit, *, last: bool, after: int) -> list[Node]:
        """Reductions that this block completes."""
        for group, size in unit.reduces.items():
            self._pending[group] = self._pending.get(group, 0.0) + size
        nodes = []
        for group, size in list(self._pending.items()):
            hooks = self._hooks
            limit = hooks.bucket_bytes
            if group not in self._opened and hooks.first_bucket_bytes:
                limit = hooks.first_bucket_bytes
            if size <= 0 or not (last or size >= limit):
                continue
            count = max(1, round(size / hooks.bucket_bytes)) if hooks.bucket_bytes > 0 else 1
            nodes.append(reduce_node(CollectiveUse(group, hooks.reduce_op, size / count, count), (after,)))
            self._opened.add(group)
            self._pending[group] = 0.0
        return nodes
