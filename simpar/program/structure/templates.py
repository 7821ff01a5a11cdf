"""Templates: what one pipeline action is made of on one rank, as a short list of nodes.

A node is a run of segments (blocks executed one after the other) or one collective outside the blocks: sharded
parameters being gathered, gradients being reduced, activations being sent. Lowering repeats templates over the
schedule's actions; this module decides what stands in them. The data-parallel rules follow the trainers:

* gradient buckets close in reverse order and are reduced as soon as the block that fills them is done [PyTorch
  DDP, Li et al. 2020, arXiv 2006.15704];
* sharded parameters of a unit are gathered when the unit two before it is done, and a unit's backward waits for the
  reduce-scatter of the unit two before it [torch fully_shard]. Both count through the passes of a rank: there are two
  buffers for gathered parameters and two for gradients, however many passes run (:class:`Await`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from simpar.dataclass import but, dataclass
from simpar.program.blocks.phases import BLOCK_STREAMS, COMPUTE, TENSOR, CollectiveUse
from simpar.program.blocks.segments import Segment
from simpar.program.structure.buckets import Bucket
from simpar.program.structure.hooks import LOOK_AHEAD, BlockBytes, Copies, SyncPolicy
from simpar.program.structure.pass_memory import MemoryChange, UnitPass, backward_memory, forward_memory, transient
from simpar.units import Floats, to_ns

HOST_OUT, HOST_IN, HOST_UPDATE = "host_out", "host_in", "host_update"
DRIVE_IN, DRIVE_OUT = "drive_in", "drive_out"
DELAYED = ".delayed"
"""Suffix of the streams of a delayed update, on which other copies and updates do not hold it up."""
HOST_OPS = {
    HOST_OUT: "to_host", HOST_IN: "to_device", HOST_UPDATE: "host_update", DRIVE_IN: "from_nvme", DRIVE_OUT: "to_nvme",
}  # fmt: skip
"""Streams of transfers between device, host and drives, with their operations; each is also a kind of group with one
rank per group."""
GATHER = "param_gather"
REDUCE = "grad_reduce"
PARAMETERS, GRADIENTS, OUTGOING, RETURNED = "parameters", "gradients", "outgoing", "returned"
BUFFERS = (PARAMETERS, GRADIENTS, OUTGOING, RETURNED)
"""What has two buffers each: gathered parameters, gradients to be reduced, activations on their way to the host and
back."""


@dataclass(frozen=True)
class Await:
    """A wait for a buffer that earlier actions of the rank used: for the ``back``-th last use before this action."""

    buffer: str
    back: int


@dataclass(frozen=True)
class Buffers:
    """Buffers whose use by earlier actions must have ended before an op, and those that its end frees."""

    awaits: tuple[Await, ...] = ()
    frees: tuple[str, ...] = ()


NO_BUFFERS = Buffers()


@dataclass(frozen=True)
class TemplateNode:
    """One op of a template. ``after`` are positions in the template; ``arrival``: it waits for another stage's action.

    ``awaits`` are buffers whose use by earlier actions must have ended, ``frees`` those that its end frees.
    """

    kind: str
    name: str
    streams: tuple[str, ...]
    duration_ns: int = 0
    collective: CollectiveUse | None = None
    segments: tuple[tuple[int, Segment], ...] = ()
    after: tuple[int, ...] = ()
    arrival: bool = False
    memory: tuple[MemoryChange, ...] = ()
    layer: int = -1
    awaits: tuple[Await, ...] = ()
    frees: tuple[str, ...] = ()

    @cached_property
    def repeats(self) -> int:
        """How many times its segments run, one after the other."""
        once_ns = sum(segment.duration_ns for _, segment in self.segments)
        return self.duration_ns // once_ns if once_ns else 1

    @property
    def varying_ns(self) -> int:
        """The part of the duration that varies with the rank's speed."""
        return self.duration_ns

    def but(self, made: type[TemplateNode] | None = None, /, **facts: Any) -> TemplateNode:
        """The node with other facts, or as another kind of node."""
        result = but(self, made, **facts)
        result.__dict__.pop("repeats", None)  # which other facts change
        return result


@dataclass(frozen=True)
class PassNode(TemplateNode):
    """Passes over units as one op, a segment for every unit; ``memory`` opens with theirs as one op.

    Several passes follow each other, and so do their repetitions.
    """

    passes: tuple[UnitPass, ...] = ()

    def instants_ns(self) -> Iterator[tuple[UnitPass, Floats]]:
        """Each pass of one round, and when it enters its units and ends, float64[units + 1] ns after the round begins.

        A pass that takes no time at all, of frozen units, has no segments.
        """
        begin, durations = 0, [segment.duration_ns for _, segment in self.segments]
        starts = np.cumsum([0.0, *(durations or [0] * sum(len(one.units) for one in self.passes))])
        for one in self.passes:
            yield one, starts[begin : begin + len(one.units) + 1]
            begin += len(one.units)


@dataclass(frozen=True)
class UnitsBegin(TemplateNode):
    """A step of a pass written step by step, at whose start the pass enters units.

    These are the units number ``first`` to ``last`` of ``whole``: more than one where units before have no steps, and
    the number behind the last one where the pass ends.
    """

    whole: PassNode = PassNode("", "", ())
    first: int = 0
    last: int = 0


class TemplateNodes(list[TemplateNode]):
    """Nodes of a template under construction."""

    def add(self, node: TemplateNode) -> int:
        """Append a node; return its position."""
        self.append(node)
        return len(self) - 1


@dataclass(frozen=True)
class Template:
    """Nodes of one action in issue order; ``exit`` is the position whose finish hands over to the next stage."""

    nodes: tuple[TemplateNode, ...]
    exit: int

    @cached_property
    def opened(self) -> tuple[tuple[int, TemplateNode], ...]:
        """Nodes, with their positions, inside which memory moves, or where it enters units of a pass written out."""
        special = [(at, node) for at, node in enumerate(self.nodes) if type(node) is not TemplateNode]
        return tuple((at, node) for at, node in special if _is_opened(node))


def _is_opened(node: TemplateNode) -> bool:
    if isinstance(node, UnitsBegin):
        return len(node.whole.segments) > 1
    return isinstance(node, PassNode) and len(node.segments) > 1 and node.duration_ns > 0


def forward_template(units: Sequence[BlockBytes], segments: Sequence[Segment], sync: SyncPolicy) -> Template:
    """Forward of one virtual stage: units in order, each behind the gather of its parameters if sharded."""
    if not any(each.arrives for each in sync.copies) and not sync.activations:
        node = compute_node("forward", units, segments, memory=forward_memory(units))
        return Template((node.but(arrival=True),), 0)
    nodes, computes, leaving = TemplateNodes(), list[int](), list[tuple[int, ...]]()
    frees = (PARAMETERS,) if any(each.reshard for each in sync.copies) else ()
    for index, (unit, segment) in enumerate(zip(units, segments, strict=True)):
        ready = _arrivals(nodes, unit, sync, computes, index=index)
        ready += leaving[index - LOOK_AHEAD] if index >= LOOK_AHEAD else ()
        memory = (*forward_memory([unit]), *_freed(unit, sync))
        used = Buffers(two_buffers(OUTGOING, index, sync.activations), frees)
        computes.append(nodes.add(compute_node("forward", [unit], [segment], after=ready, memory=memory, used=used)))
        leaving.append(())
        if waits := unit.saved_bytes * sync.activations * (index < len(units) - 1):
            gone = (MemoryChange(True, -waits, "activations"),)
            copy = host_copy("activations to host", waits, after=(computes[-1],), memory=gone)
            leaving[-1] = (nodes.add(copy.but(frees=(OUTGOING,))),)
    nodes[computes[0]] = nodes[computes[0]].but(arrival=True)
    return Template(tuple(nodes), computes[-1])


def backward_template(
    kind: str, units: Sequence[BlockBytes], segments: Sequence[Segment], sync: SyncPolicy
) -> Template:
    """Backward (B), input-gradient (I) or weight-gradient (W) pass of one virtual stage, units in reverse.

    ``kind`` is "backward", "input_gradient" or "weight_gradient"; memory saved for backward is released by
    the pass that completes the gradients.
    """
    backwards, passes = list(reversed(units)), list(reversed(segments))
    # What happens beside the kernels of a unit u, units counted in the order of the backward:
    #   gather(u)   parameters that were dropped after the forward     behind the kernels of u - 2 (two buffers),
    #               or of u - 1 where there is one
    #   return(u)   activations that wait on the host                  behind the kernels of u - 2 (two buffers)
    #   kernels(u)  behind gather(u), return(u), reduce(v) of the unit reduced before the last one, send(u - 2)
    #   reduce(b)   a bucket b, behind the kernels of the unit that completes it [Li et al. 2020, arXiv 2006.15704]
    #   send(u)     gradients to the host, behind their reduction
    arriving = any(each.arrives and each.reshard for each in sync.copies)
    returning = kind != "weight_gradient" and sync.activations > 0
    makes = any(each.whole.made_bytes for each in sync.copies)
    if not (arriving or returning or makes or sync.gathers or sync.reduces or sync.sends):
        node = compute_node(kind, backwards, passes, memory=backward_memory(kind, backwards))
        return Template((node.but(arrival=True),), 0)
    nodes, computes, reduces, sent = TemplateNodes(), list[int](), list[int](), list[int]()
    reducing = [each for each in sync.copies if each.reduce_ops]
    closing = [{bucket.at: bucket for bucket in sync.buckets(each, backwards)} for each in reducing]
    per_unit, outbox = any(each.per_unit for each in sync.copies), _Outbox(sync, waits=bool(reducing))
    if sync.sends and sync.held_bytes > 0:
        # gradients that are not kept on the device must have left before more are made
        sent = [nodes.add(TemplateNode("offload", "gradients gone", (HOST_OUT,)))] * 2
    for index, (unit, segment) in enumerate(zip(backwards, passes, strict=True)):
        changes = backward_memory(kind, [unit])
        after: tuple[int, ...] = ()
        before = (computes[index - 2],) if index >= 2 else ()
        comes = arriving and not unit.has_no_backward
        if comes:
            after = _arrivals(nodes, unit, sync, computes, index=index)
            changes = (*changes, *_freed(unit, sync))
        if returning and index:
            after += _returns(nodes, unit, sync, after=before, awaits=two_buffers(RETURNED, index))
        # at most two units' unsharded gradients exist: FSDP lets the host run no further ahead of reductions
        if per_unit and len(reduces) >= 2:
            after = (*after, reduces[-2])
        if sent:
            after = (*after, sent[-2])
        changes = (*changes, *outbox.held(unit), *_made(unit, sync))
        used = Buffers(
            two_buffers(GRADIENTS, len(reduces), per_unit and bool(reducing)),
            (*((PARAMETERS,) if comes else ()), *((RETURNED,) if returning else ())),
        )
        computes.append(nodes.add(compute_node(kind, [unit], [segment], after=after, memory=changes, used=used)))
        unit_reduced = -1
        for copies, closes in zip(reducing, closing, strict=True):
            if index in closes:
                last = _reduce(nodes, closes[index], copies, sync, after=computes[-1], share=unit.at_once)
                unit_reduced = last if copies.per_unit else unit_reduced
        closed = len(nodes) - 1 > computes[-1]  # whether a bucket was reduced behind this unit
        if unit_reduced >= 0:
            reduces.append(unit_reduced)
            nodes[unit_reduced] = nodes[unit_reduced].but(frees=(GRADIENTS,))
        gone = outbox.send(nodes, unit, closed=closed)
        if sent and gone is not None:
            sent.append(gone)
    nodes[computes[0]] = nodes[computes[0]].but(arrival=True)
    return Template(tuple(nodes), computes[-1])


def _reduce(nodes: TemplateNodes, bucket: Bucket, copies: Copies, sync: SyncPolicy, *, after: int, share: float) -> int:
    """Append the collectives that reduce a bucket behind a node, one after the other; the position of the last.

    Whole gradients that wait for it are a ``share`` of the bucket at a time.
    """
    count = bucket.size_bytes / copies.gradient_bytes
    if sync.copy_in_s:
        after = nodes.add(_copy("copy gradients in", count * sync.copy_in_s, after=after))
    gone = transient(0.0, -count * copies.whole.kept_bytes * share)
    for number, (group, op, part) in enumerate(copies.reduce_ops):
        use = CollectiveUse(group, op, bucket.size_bytes * part / bucket.count, bucket.count)
        streams = (*((COMPUTE,) if sync.in_turn else ()), f"{REDUCE}.{group}" if number else REDUCE)
        node = TemplateNode("dp", f"{op} gradients", streams, collective=use, after=(after,), memory=gone)
        after, gone = nodes.add(node), ()
    return after


def _copy(name: str, seconds: float, *, after: int) -> TemplateNode:
    """Kernels that copy into or out of the buffer of a collective, between those of the blocks."""
    return TemplateNode("dp", name, (COMPUTE,), duration_ns=int(to_ns(seconds)), after=(after,))


def host_copy(
    name: str,
    size_bytes: float,
    *,
    op: str = "to_host",
    after: tuple[int, ...] = (),
    memory: tuple[MemoryChange, ...] = (),
) -> TemplateNode:
    """One transfer between device, host and drives, or an update on the host; ``op`` is one of :data:`HOST_OPS`."""
    stream = next(stream for stream, its in HOST_OPS.items() if its == op)
    use = CollectiveUse(stream, op, size_bytes)
    return TemplateNode("offload", name, (stream,), collective=use, after=after, memory=memory)


def two_buffers(buffer: str, index: int, used: object = True, *, number: int = 2) -> tuple[Await, ...]:
    """The wait of an action's ``index``-th use of two buffers: its first two wait for earlier actions' last two.

    The same holds for another ``number`` of buffers.
    """
    return (Await(buffer, number - index),) if used and index < number else ()


def _arrivals(
    nodes: TemplateNodes, unit: BlockBytes, sync: SyncPolicy, computes: Sequence[int], *, index: int
) -> tuple[int, ...]:
    """Append the arrival of unit ``index``'s parameters from drives, host or other ranks; positions to wait for.

    ``computes`` are the positions of the kernels of the units before it.
    """
    after = (computes[index - sync.buffers],) if index >= sync.buffers else ()
    ready = []
    for each in sync.copies:
        count = each.arriving(unit)
        if not each.arrives or not count:
            continue
        held = transient(sync.held * count * each.buffer_bytes * unit.at_once, 0.0)
        waits, begin = after if each.reshard else (), len(nodes)
        if each.fetched_bytes:
            size = count * each.fetched_bytes
            if sync.drives:
                waits = (nodes.add(host_copy("parameters from drives", size, op="from_nvme", after=waits)),)
            copy = host_copy("parameters from host", size, op="to_device", after=waits, memory=held)
            held, waits = (), (nodes.add(copy),)
        if each.gather_group:
            use = each.gather(count)
            nodes.append(
                TemplateNode("dp", "all_gather parameters", (GATHER,), collective=use, after=waits, memory=held)
            )
        awaits = two_buffers(PARAMETERS, index, each.reshard, number=sync.buffers)
        if awaits:
            nodes[begin] = nodes[begin].but(awaits=awaits)
        if sync.copy_out_s:
            nodes.add(_copy("copy parameters out", count * sync.copy_out_s, after=len(nodes) - 1))
        ready.append(len(nodes) - 1)
    return tuple(ready)


def _returns(
    nodes: TemplateNodes, unit: BlockBytes, sync: SyncPolicy, *, after: tuple[int, ...], awaits: tuple[Await, ...]
) -> tuple[int, ...]:
    """Append the copy of a unit's activations back from the host; positions to wait for.

    The first such copy of an action waits for all copies out issued before it: its own may be among them.
    """
    size = unit.saved_bytes * sync.activations
    if not size:
        return ()
    held = (MemoryChange(False, size, "activations"),)
    node = host_copy("activations from host", size, op="to_device", after=after, memory=held)
    first = not any({HOST_IN, HOST_OUT} <= set(other.streams) for other in nodes)
    streams = (HOST_IN, HOST_OUT) if first else node.streams
    return (nodes.add(node.but(awaits=awaits, streams=streams)),)


class _Outbox:
    """Gradients on their way to the host: unit by unit or, if ``waits``, behind the reduction of their bucket."""

    def __init__(self, sync: SyncPolicy, *, waits: bool) -> None:
        self._sync, self._waits = sync, waits
        self._size, self._held = 0.0, 0.0

    def held(self, unit: BlockBytes) -> tuple[MemoryChange, ...]:
        """Memory of the gradients that a unit's pass makes and that are not kept on the device."""
        size = self._sync.held_bytes * sum(each.parameters(unit) for each in self._sync.copies)
        self._held += size if self._sync.sends else 0.0
        return transient(size * self._sync.sends, 0.0)

    def send(self, nodes: TemplateNodes, unit: BlockBytes, *, closed: bool) -> int | None:
        """Append the copy of the gradients that are ready when a unit is done; its position, or None."""
        self._size += sum(each.parameters(unit) * each.sent_bytes for each in self._sync.copies)
        if not self._size or (self._waits and not closed):
            return None
        gone = transient(0.0, -self._held)
        sent = nodes.add(host_copy("gradients to host", self._size, after=(len(nodes) - 1,), memory=gone))
        if self._sync.accumulates:
            moved = self._size * self._sync.accumulates
            nodes.add(host_copy("add gradients up", moved, op="host_update", after=(sent,)))
        self._size, self._held = 0.0, 0.0
        return sent


def _made(unit: BlockBytes, sync: SyncPolicy) -> tuple[MemoryChange, ...]:
    """Memory of whole gradients that a unit's pass makes, and leaves in a buffer or adds to earlier ones."""
    each = [(copies.parameters(unit) * unit.at_once, copies.whole) for copies in sync.copies]
    made = sum(count * whole.made_bytes for count, whole in each)
    return transient(made, sum(count * whole.kept_bytes for count, whole in each if not whole.adds) - made)


def _freed(unit: BlockBytes, sync: SyncPolicy) -> tuple[MemoryChange, ...]:
    """Memory of parameters that arrived for a pass and are freed after it."""
    freed = (each for each in sync.copies if each.arrives and each.reshard)
    size = sum(each.arriving(unit) * each.buffer_bytes * unit.at_once for each in freed)
    return transient(0.0, -sync.held * size)


def compute_node(
    kind: str,
    units: Sequence[BlockBytes],
    segments: Sequence[Segment],
    *,
    memory: tuple[MemoryChange, ...],
    after: tuple[int, ...] = (),
    used: Buffers = NO_BUFFERS,
) -> TemplateNode:
    """One op for the passes of consecutive blocks."""
    return PassNode(
        kind=kind,
        name=units[0].name if len(units) == 1 else kind,
        streams=BLOCK_STREAMS,
        duration_ns=sum(segment.duration_ns for segment in segments),
        segments=tuple((unit.layer, segment) for unit, segment in zip(units, segments, strict=True)),
        after=after,
        memory=memory,
        awaits=used.awaits,
        frees=used.frees,
        passes=(UnitPass(kind, tuple(units)),),
    )


def append_messages(template: Template, messages: tuple[TemplateNode, ...]) -> Template:
    """A template with messages behind its exit."""
    if not messages:
        return template
    sends = (message.but(after=(template.exit,)) for message in messages)
    return Template((*template.nodes, *sends), len(template.nodes) + len(messages) - 1)


def prepend_gathers(template: Template, gathers: tuple[CollectiveUse, ...]) -> Template:
    """A template with gathers in front that put arrived pieces together; its arrival nodes wait for them."""
    if not gathers:
        return template
    by = len(gathers)
    both, name = (COMPUTE, TENSOR), "all_gather boundary"
    nodes = [TemplateNode("tp", name, both, collective=gathers[0], arrival=True)]
    nodes += [TemplateNode("tp", name, both, collective=use, after=(at,)) for at, use in enumerate(gathers[1:])]
    for node in template.nodes:
        after = tuple(position + by for position in node.after)
        if node.arrival:
            after = after or (by - 1,)
        nodes.append(node.but(after=after, arrival=False))
    return Template(tuple(nodes), template.exit + by)
