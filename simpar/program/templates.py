"""Templates: what one pipeline action is made of on one rank, as a short list of nodes.

A node is a run of segments (blocks executed one after the other) or one collective outside the blocks: sharded
parameters being gathered, gradients being reduced, activations being sent. Lowering repeats templates over the
schedule's actions; this module decides what stands in them. The data-parallel rules follow the trainers:

* gradient buckets close in reverse order and are reduced as soon as the block that fills them is done [PyTorch
  DDP, Li et al. 2020, arXiv 2006.15704];
* sharded parameters are gathered at most two units ahead in forward and one in backward, and a unit's backward
  waits for the reduce-scatter of the unit two before it [torch fully_shard].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from simpar.program.phases import BLOCK_STREAMS, CollectiveUse
from simpar.program.segments import Segment, terminals

GATHER = "param_gather"
REDUCE = "grad_reduce"


@dataclass(frozen=True)
class MemoryChange:
    """``delta_bytes`` (signed) when the node starts, or when it finishes; ``category`` as in the Program."""

    at_finish: bool
    delta_bytes: float
    category: str


@dataclass(frozen=True)
class Node:
    """One op of a template. ``after`` are positions in the template; ``arrival`` waits for the stage before."""

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


@dataclass(frozen=True)
class Template:
    """Nodes of one action in issue order; ``exit`` is the position whose finish hands over to the next stage."""

    nodes: tuple[Node, ...]
    exit: int


@dataclass(frozen=True)
class Unit:
    """One block of a virtual stage with the memory it moves and the parameters it holds.

    Bytes are those of one rank: ``saved`` live from forward to backward, ``recomputed`` only during the
    backward of this block, workspaces during the pass. ``parameters`` counts them by the ranks that hold copies of
    them ("dp", and "edp" for experts), whole, before sharding.
    """

    layer: int
    name: str
    saved_bytes: float
    recomputed_bytes: float
    forward_workspace_bytes: float
    backward_workspace_bytes: float
    parameters: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Copies:
    """What is done with the parameters that one kind of ranks holds copies of.

    ``gather_group`` all-gathers ``gathered_bytes`` a parameter before use ("": nothing is gathered), of which
    ``buffer_bytes`` are a buffer of its own. ``reduce_ops`` are the collectives that reduce ``gradient_bytes`` a
    parameter in turn: (group, operation, share of the bytes); empty where this pass reduces nothing.
    """

    kind: str
    gather_group: str = ""
    gathered_bytes: float = 0.0
    buffer_bytes: float = 0.0
    gradient_bytes: float = 0.0
    reduce_ops: tuple[tuple[str, str, float], ...] = ()

    def parameters(self, unit: Unit) -> float:
        """Parameters of a unit that this kind of ranks holds."""
        return unit.parameters.get(self.kind, 0.0)


@dataclass(frozen=True)
class SyncPolicy:
    """How data parallelism hooks into an action.

    ``reshard`` frees gathered parameters after use; gradients are reduced in flat buckets or ``per_unit``.
    """

    copies: tuple[Copies, ...] = ()
    reshard: bool = False
    bucket_bytes: float = 0.0
    first_bucket_bytes: float = 0.0
    per_unit: bool = False

    @property
    def gathers(self) -> bool:
        """Whether any parameters are gathered in this action."""
        return any(each.gather_group for each in self.copies)

    @property
    def reduces(self) -> bool:
        """Whether any gradients are reduced in this action."""
        return any(each.reduce_ops for each in self.copies)

    def uses(self, unit: Unit) -> list[CollectiveUse]:
        """What the action moves for one unit by itself."""
        moved = []
        for each in self.copies:
            count = each.parameters(unit)
            moved += [
                CollectiveUse(group, op, count * each.gradient_bytes * share)
                for group, op, share in each.reduce_ops
            ]
            if each.gather_group:
                moved.append(CollectiveUse(each.gather_group, "all_gather", count * each.gathered_bytes))
        return [use for use in moved if use.size_bytes > 0]


def forward_template(units: Sequence[Unit], segments: Sequence[Segment], sync: SyncPolicy) -> Template:
    """Forward of one virtual stage: units in order, each behind the gather of its parameters if sharded."""
    if not sync.gathers:
        node = compute_node("forward", units, segments, memory=forward_memory(units))
        return Template((replace(node, arrival=True),), 0)
    nodes: list[Node] = []
    computes: list[int] = []
    for index, (unit, segment) in enumerate(zip(units, segments, strict=True)):
        behind = (computes[index - 2],) if sync.reshard and index >= 2 else ()
        gathers = _gathers(unit, sync, after=behind)
        ready = tuple(range(len(nodes), len(nodes) + len(gathers)))
        nodes += gathers
        memory = (*forward_memory([unit]), *_freed(unit, sync))
        nodes.append(compute_node("forward", [unit], [segment], after=ready, memory=memory))
        computes.append(len(nodes) - 1)
    nodes[computes[0]] = replace(nodes[computes[0]], arrival=True)
    return Template(tuple(nodes), computes[-1])


def backward_template(
    kind: str, units: Sequence[Unit], segments: Sequence[Segment], sync: SyncPolicy
) -> Template:
    """Backward (B), input-gradient (I) or weight-gradient (W) pass of one virtual stage, units in reverse.

    ``kind`` is "backward", "input_gradient" or "weight_gradient"; memory saved for backward is released by
    the pass that completes the gradients.
    """
    backwards, passes = list(reversed(units)), list(reversed(segments))
    gathering = sync.gathers and sync.reshard
    if not sync.gathers and not sync.reduces:
        node = compute_node(kind, backwards, passes, memory=backward_memory(kind, backwards))
        return Template((replace(node, arrival=True),), 0)
    nodes: list[Node] = []
    computes: list[int] = []
    reduces: list[int] = []
    buckets = [_Buckets(sync, each) for each in sync.copies if each.reduce_ops]
    for index, (unit, segment) in enumerate(zip(backwards, passes, strict=True)):
        changes = backward_memory(kind, [unit])
        after: tuple[int, ...] = ()
        if gathering:
            gathers = _gathers(unit, sync, after=(computes[index - 2],) if index >= 2 else ())
            after = tuple(range(len(nodes), len(nodes) + len(gathers)))
            nodes += gathers
            changes = (*changes, *_freed(unit, sync))
        if sync.per_unit and len(reduces) >= 2:
            after = (*after, reduces[-2])
        nodes.append(compute_node(kind, [unit], [segment], after=after, memory=changes))
        computes.append(len(nodes) - 1)
        last = index == len(units) - 1
        for bucket in buckets:
            nodes += bucket.close(unit, last=last, after=computes[-1], position=len(nodes))
        if len(nodes) - 1 > computes[-1]:
            reduces.append(len(nodes) - 1)
    nodes[computes[0]] = replace(nodes[computes[0]], arrival=True)
    return Template(tuple(nodes), computes[-1])


class _Buckets:
    """Fills gradient buckets unit by unit and emits the reductions that a unit completes.

    DDP's first bucket is small, so that reduction starts early.
    """

    def __init__(self, sync: SyncPolicy, copies: Copies) -> None:
        self._sync, self._copies = sync, copies
        self._pending = 0.0
        self._limit = sync.first_bucket_bytes or sync.bucket_bytes

    def close(self, unit: Unit, *, last: bool, after: int, position: int) -> list[Node]:
        """Reductions of the buckets that are full once ``unit`` is done; the ``last`` unit empties them."""
        sync = self._sync
        self._pending += self._copies.parameters(unit) * self._copies.gradient_bytes
        full = sync.per_unit or self._pending >= self._limit
        if not (full or last) or self._pending <= 0:
            return []
        size, count = self._pending, 1
        if not sync.per_unit and sync.bucket_bytes > 0:
            count = max(1, round(size / sync.bucket_bytes))
        self._pending, self._limit = 0.0, sync.bucket_bytes
        nodes = []
        for offset, (group, op, share) in enumerate(self._copies.reduce_ops):
            use = CollectiveUse(group, op, size * share / count, count)
            streams = (REDUCE,) if offset == 0 else (f"{REDUCE}.{group}",)
            waits = (after,) if offset == 0 else (position + offset - 1,)
            nodes.append(
                Node(kind="dp", name=f"{op} gradients", streams=streams, collective=use, after=waits)
            )
        return nodes


def forward_memory(units: Sequence[Unit]) -> tuple[MemoryChange, ...]:
    """Memory of a forward pass over ``units`` as one op: saved tensors stay, the workspace peak goes.

    The workspace is what the running sum of saved bytes plus each unit's own workspace exceeds the final
    sum by, so the peak of the joined op equals the peak of its parts.
    """
    saved, peak = 0.0, 0.0
    for unit in units:
        saved += unit.saved_bytes
        peak = max(peak, saved + unit.forward_workspace_bytes)
    return (MemoryChange(False, saved, "activations"), *_workspace(peak - saved))


def backward_memory(kind: str, units: Sequence[Unit]) -> tuple[MemoryChange, ...]:
    """Memory of a backward-type pass over ``units`` (in backward order) as one op, peak-exact as in forward.

    A full backward and a weight-gradient pass release what forward saved; an input-gradient pass keeps it.
    """
    saved = sum(unit.saved_bytes for unit in units)
    remaining, peak = saved, saved
    for unit in units:
        peak = max(peak, remaining + unit.recomputed_bytes + unit.backward_workspace_bytes)
        remaining -= unit.saved_bytes
    release = () if kind == "input_gradient" else (MemoryChange(True, -saved, "activations"),)
    return (*_workspace(peak - saved), *release)


def _workspace(size_bytes: float) -> tuple[MemoryChange, ...]:
    if size_bytes <= 0:
        return ()
    return (MemoryChange(False, size_bytes, "transient"), MemoryChange(True, -size_bytes, "transient"))


def _gathers(unit: Unit, sync: SyncPolicy, *, after: tuple[int, ...]) -> list[Node]:
    found = []
    for each in sync.copies:
        count = each.parameters(unit)
        if not each.gather_group or not count:
            continue
        held = MemoryChange(False, count * each.buffer_bytes, "transient")
        use = CollectiveUse(each.gather_group, "all_gather", count * each.gathered_bytes)
        memory = (held,) if each.buffer_bytes else ()
        node = Node("dp", "all_gather parameters", (GATHER,), collective=use, after=after, memory=memory)
        found.append(node)
    return found


def _freed(unit: Unit, sync: SyncPolicy) -> tuple[MemoryChange, ...]:
    """Gathered parameters that go again after their use."""
    size = sum(each.parameters(unit) * each.buffer_bytes for each in sync.copies if each.gather_group)
    return (MemoryChange(True, -size, "transient"),) if sync.reshard and size else ()


def compute_node(
    kind: str,
    units: Sequence[Unit],
    segments: Sequence[Segment],
    *,
    memory: tuple[MemoryChange, ...],
    after: tuple[int, ...] = (),
) -> Node:
    """One op for the passes of consecutive blocks."""
    return Node(
        kind=kind,
        name=units[0].name if len(units) == 1 else kind,
        streams=BLOCK_STREAMS,
        duration_ns=sum(segment.duration_ns for segment in segments),
        segments=tuple((unit.layer, segment) for unit, segment in zip(units, segments, strict=True)),
        after=after,
        memory=memory,
    )


def flatten(template: Template) -> Template:
    """The same template with every step of every segment as a node of its own (steps keep their streams).

    The opening steps of a segment wait for all closing steps of the one before, which is what "starts with
    idle streams and ends joined" means; memory moves with the node's first and last step.
    """
    nodes: list[Node] = []
    ends: list[tuple[int, ...]] = []
    for node in template.nodes:
        waits = tuple(last for position in node.after for last in ends[position])
        if not node.segments:
            nodes.append(replace(node, after=waits))
            ends.append((len(nodes) - 1,))
            continue
        first = len(nodes)
        last: tuple[int, ...] = waits
        for index, (layer, segment) in enumerate(node.segments):
            last = _append_steps(
                nodes, replace(node, arrival=node.arrival and index == 0, layer=layer), segment, last
            )
        _move_ends(nodes, node, first, last)
        ends.append((len(nodes) - 1,))
    return Template(tuple(nodes), ends[template.exit][0])


def _append_steps(nodes: list[Node], node: Node, segment: Segment, last: tuple[int, ...]) -> tuple[int, ...]:
    offset = len(nodes)
    for step, start, finish in zip(segment.steps, segment.start_ns, segment.finish_ns, strict=True):
        nodes.append(
            Node(
                kind=node.kind
                if step.kind in ("forward", "input_gradient", "weight_gradient")
                else step.kind,
                name=step.name,
                streams=(step.stream,),
                duration_ns=int(finish - start),
                collective=step.collective,
                after=tuple(a + offset for a in step.after) or last,
                arrival=node.arrival and not step.after,
                layer=node.layer if step.layer is None else step.layer,
            )
        )
    return tuple(position + offset for position in terminals(segment))


def _move_ends(nodes: list[Node], node: Node, first: int, last: tuple[int, ...]) -> None:
    """Close a flattened node with a join of no duration that carries its end; its opening carries the start."""
    starts = tuple(change for change in node.memory if not change.at_finish)
    finishes = tuple(change for change in node.memory if change.at_finish)
    nodes[first] = replace(nodes[first], memory=starts)
    nodes.append(Node(kind="join", name=node.name, streams=node.streams, after=last, memory=finishes))
