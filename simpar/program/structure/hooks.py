"""Units of a stage and what data parallelism does with their parameters and gradients in one action."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from simpar.program.blocks.phases import CollectiveUse
from simpar.program.structure.buckets import Bucket, buckets
from simpar.units import Numbers


@dataclass(frozen=True)
class StageBlock:
    """One block of a virtual stage with the memory it moves and the parameters it holds.

    Bytes are those of one rank: ``saved`` live from forward to backward, ``recomputed`` only during the
    backward of this block, workspaces during the pass. ``parameters`` counts them by the ranks that hold copies of
    them ("dp", and "edp" for experts), whole, before sharding; ``frozen`` those that are not trained, by their bytes.
    A ``still`` one runs nothing backward.
    """

    layer: int
    name: str
    saved_bytes: float
    recomputed_bytes: float
    forward_workspace_bytes: float
    backward_workspace_bytes: float
    parameters: Mapping[str, float] = field(default_factory=dict, hash=False)
    frozen: Mapping[str, float] = field(default_factory=dict, hash=False)
    still: bool = False


@dataclass(frozen=True)
class Whole:
    """Bytes a parameter of whole gradients of a unit, which its share takes the place of when they are reduced.

    ``made_bytes`` live while a pass makes them; ``kept_bytes`` are their buffer, from the pass on until the reduction,
    or from an earlier one on to which this one ``adds``.
    """

    made_bytes: float = 0.0
    kept_bytes: float = 0.0
    adds: bool = False


@dataclass(frozen=True)
class Copies:
    """What is done with the parameters that one kind of ranks holds copies of.

    ``gather_group`` all-gathers ``gathered_bytes`` a parameter before use ("": nothing is gathered), of which
    ``buffer_bytes`` are a buffer of its own; units of less than ``gather_bucket_bytes`` are gathered together, each
    for its part of a full call. ``reduce_ops`` are the collectives that reduce ``gradient_bytes`` a
    parameter in turn: (group, operation, share of the bytes); empty where this pass reduces nothing. ``whole``
    gradients wait for that in buffers of their own. ``fetched_bytes`` a parameter come from the host before the gather,
    ``sent_bytes`` of gradient go there behind the reduction. ``reshard`` frees gathered parameters after use; gradients
    are reduced in flat buckets or ``per_unit``.
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

    def arriving(self, unit: StageBlock) -> float:
        """Parameters that must come before a pass: frozen ones too, where they are sharded like the others."""
        frozen = unit.frozen.get(self.kind, 0.0) if self.buffer_bytes else 0.0
        return self.parameters(unit) + frozen

    def gather(self, parameters: Numbers) -> CollectiveUse:
        """The gather of so many parameters of a unit: a call of its own, or its part of that of a full bucket."""
        size = np.asarray(parameters * self.gathered_bytes, dtype=np.float64)
        call = np.maximum(size, self.gather_bucket_bytes)
        part = np.divide(size, call, out=np.ones_like(size), where=call > 0)
        if size.ndim:
            return CollectiveUse(self.gather_group, "all_gather", call, part)
        return CollectiveUse(self.gather_group, "all_gather", float(call), float(part))

    def parameters(self, unit: StageBlock) -> float:
        """Parameters of a unit that this kind of ranks holds."""
        return unit.parameters.get(self.kind, 0.0)


@dataclass(frozen=True)
class SyncPolicy:
    """How data parallelism hooks into an action.

    ``activations`` is the share of saved bytes that waits on the host, ``drives`` whether parameters come from
    drives; gradients of ``held_bytes`` a parameter live only until they are sent; ``accumulates`` are the bytes that
    adding them up on the host moves, for each that is sent.
    """

    copies: tuple[Copies, ...] = ()
    bucket_bytes: float = 0.0
    first_bucket_bytes: float = 0.0
    activations: float = 0.0
    drives: bool = False
    held_bytes: float = 0.0
    accumulates: float = 0.0

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

    def buckets(self, copies: Copies, units: Iterable[StageBlock]) -> list[Bucket]:
        """How the gradients of units, in the order of their backward, are reduced."""
        sizes = [copies.parameters(unit) * copies.gradient_bytes for unit in units]
        return buckets(sizes, self.first_bucket_bytes, self.bucket_bytes, per_unit=copies.per_unit)

    def uses(self, unit: StageBlock) -> list[CollectiveUse]:
        """What the action moves for one unit by itself."""
        moved = []
        for each in self.copies:
            count = each.parameters(unit)
            moved += [
                CollectiveUse(group, op, count * each.gradient_bytes * share)
                for group, op, share in each.reduce_ops
            ]
            if each.gather_group:
                moved.append(each.gather(count))
        return [use for use in moved if use.count * use.size_bytes > 0]
