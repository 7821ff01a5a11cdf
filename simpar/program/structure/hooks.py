"""Units of a stage and what data parallelism does with their parameters and gradients in one action."""

from collections.abc import Iterable, Mapping
from dataclasses import field

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.structure.buckets import Bucket, buckets
from simpar.units import Numbers

LOOK_AHEAD = 2
"""Number of units whose gathered parameters exist at the same time, unless adapters are units of their own."""


@dataclass(frozen=True)
class BlockBytes:
    """One block of a virtual stage with the memory it moves and the parameters it holds.

    Bytes are those of one rank: ``saved`` live from forward to backward, ``recomputed`` only during the backward of
    this block, workspaces during the pass. ``parameters`` are numbers before sharding, by the kind of ranks that hold
    copies of them ("dp", and "edp" for experts); ``frozen`` are those that are not trained, in units of the compute
    dtype's bytes. A block that ``has_no_backward`` runs nothing backward. ``at_once`` is the share of its parameters
    that is whole at a time, gathered before use or as gradients before their reduction.
    """

    layer: int
    name: str
    saved_bytes: float
    recomputed_bytes: float
    forward_workspace_bytes: float
    backward_workspace_bytes: float
    parameters: Mapping[str, float] = field(default_factory=dict, hash=False)
    frozen: Mapping[str, float] = field(default_factory=dict, hash=False)
    has_no_backward: bool = False
    at_once: float = 1.0


@dataclass(frozen=True)
class Whole:
    """Bytes per parameter of a unit's whole gradients, which their reduction replaces by the rank's shard.

    ``made_bytes`` live while a pass makes them. ``kept_bytes`` are their buffer until the reduction: it appears with
    the pass, or with an earlier pass to whose gradients this one ``adds``.
    """

    made_bytes: float = 0.0
    kept_bytes: float = 0.0
    adds: bool = False


@dataclass(frozen=True)
class Copies:
    """What one action does with the parameters of which one kind of ranks holds copies; bytes are per parameter.

    ``gather_group`` all-gathers ``gathered_bytes`` before use ("": nothing is gathered) into a buffer of
    ``buffer_bytes`` (0: in place); units below ``gather_bucket_bytes`` are gathered together, each for its part of a
    full call. ``reduce_ops`` are the collectives that reduce ``gradient_bytes``, one after the other: (group,
    operation, share of the bytes); empty where the action reduces nothing. ``whole`` gradients wait for that in buffers
    of their own. ``fetched_bytes`` come from the host before the gather, ``sent_bytes`` of gradients go there behind
    the reduction. ``reshard`` frees gathered parameters after use; gradients are reduced ``per_unit`` or in flat
    buckets.
    """

    kind: str
    gather_group: str = ""
    gathered_bytes: float = 0.0
    buffer_bytes: float = 0.0
    gather_bucket_bytes: float = 0.0
    gradient_bytes: float = 0.0
    whole: Whole = Whole()
    reduce_ops: tuple[tuple[str, str, float], ...] = ()
    fetched_bytes: float = 0.0
    sent_bytes: float = 0.0
    reshard: bool = False
    per_unit: bool = False

    @property
    def arrives(self) -> bool:
        """Whether parameters come from elsewhere before use."""
        return bool(self.gather_group) or self.fetched_bytes > 0

    def arriving(self, unit: BlockBytes) -> float:
        """Number of parameters that must arrive before a pass: frozen ones too, where they are sharded like others."""
        frozen = unit.frozen.get(self.kind, 0.0) if self.buffer_bytes else 0.0
        return self.parameters(unit) + frozen

    def gather(self, parameters: Numbers) -> CollectiveUse:
        """The gather of a number (or array) of a unit's parameters: its own call, or its part of a full bucket's."""
        size = np.asarray(parameters * self.gathered_bytes, dtype=np.float64)
        call = np.maximum(size, self.gather_bucket_bytes)
        part = np.divide(size, call, out=np.ones_like(size), where=call > 0)
        if size.ndim:
            return CollectiveUse(self.gather_group, "all_gather", call, part)
        return CollectiveUse(self.gather_group, "all_gather", float(call), float(part))

    def parameters(self, unit: BlockBytes) -> float:
        """Parameters of a unit that this kind of ranks holds."""
        return unit.parameters.get(self.kind, 0.0)


@dataclass(frozen=True)
class SyncPolicy:
    """How data parallelism and offloading hook into an action.

    ``activations`` is the share of saved bytes that waits on the host; ``drives``: parameters come from drives.
    Gradients of ``held_bytes`` per parameter live on the device only until they are sent; adding them up on the host
    moves ``accumulates`` bytes per byte sent. Reductions run beside the kernels, or ``in_turn`` with them.
    Gathered parameters of ``buffers`` units exist at the same time: with one, gathers run in turn with the kernels.
    Between the kernels, gathered parameters are copied out of their buffer in ``copy_out_s``, and gradients into theirs
    in ``copy_in_s`` seconds per parameter.
    """

    copies: tuple[Copies, ...] = ()
    bucket_bytes: float = 0.0
    first_bucket_bytes: float = 0.0
    activations: float = 0.0
    drives: bool = False
    held_bytes: float = 0.0
    accumulates: float = 0.0
    in_turn: bool = False
    buffers: int = LOOK_AHEAD
    copy_out_s: float = 0.0
    copy_in_s: float = 0.0

    @property
    def held(self) -> int:
        """Buffers that a gathered unit takes: freed ones are there again when the kernels that read them are done.

        So where gathers run in turn with the kernels, that of the unit before is not there yet.
        """
        return LOOK_AHEAD // self.buffers

    @property
    def reshard(self) -> bool:
        """Whether any gathered parameters are freed after use."""
        return any(each.reshard for each in self.copies)

    @property
    def sends(self) -> bool:
        """Whether gradients go to the host in this action."""
        return any(each.sent_bytes for each in self.copies)

    @property
    def gathers(self) -> bool:
        """Whether any parameters are gathered in this action."""
        return any(each.gather_group for each in self.copies)

    @property
    def reduces(self) -> bool:
        """Whether any gradients are reduced in this action."""
        return any(each.reduce_ops for each in self.copies)

    @property
    def holds(self) -> bool:
        """Whether whole gradients wait for their reduction, in this action or a later one."""
        return any(each.whole.kept_bytes for each in self.copies)

    def buckets(self, copies: Copies, units: Iterable[BlockBytes]) -> list[Bucket]:
        """The buckets in which gradients of units, given in the order of their backward, are reduced."""
        sizes = [copies.parameters(unit) * copies.gradient_bytes for unit in units]
        return buckets(sizes, self.first_bucket_bytes, self.bucket_bytes, per_unit=copies.per_unit)

    def uses(self, unit: BlockBytes) -> list[CollectiveUse]:
        """Data-parallel collectives of the action for one unit taken by itself."""
        moved = []
        for each in self.copies:
            count = each.parameters(unit)
            moved += [
                CollectiveUse(group, op, count * each.gradient_bytes * share) for group, op, share in each.reduce_ops
            ]
            if each.gather_group:
                moved.append(each.gather(count))
        return [use for use in moved if use.count * use.size_bytes > 0]
