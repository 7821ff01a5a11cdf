"""Memory of passes over units: as one op, which is what Programs hold, and unit by unit, which is what is drawn.

Both come from the same levels. As one op a pass keeps what it saves from its start on, and a workspace that makes its
highest level that of its parts; unit by unit, saved tensors come and go with the units, as a profiler of memory shows.
"""

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property, lru_cache

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.structure.hooks import BlockBytes
from simpar.units import Ints

BACKWARDS = ("backward", "input_gradient", "weight_gradient")
"""Kinds of passes that go through units in reverse and work on what the forward saved."""
MOST_KEPT = 1024
"""Changes that are kept: of layers that are alike, and of layouts that are simulated one after the other."""


@dataclass(frozen=True)
class MemoryChange:
    """``delta_bytes`` (signed) when the node starts, or when it finishes; ``category`` as in the Program."""

    at_finish: bool
    delta_bytes: float
    category: str


@dataclass(frozen=True)
class UnitPass:
    """One pass of a kind over units, in the order in which it reaches them."""

    kind: str
    units: tuple[BlockBytes, ...] = field(hash=False)

    @property
    def memory(self) -> tuple[MemoryChange, ...]:
        """Its memory as one op."""
        return backward_memory(self.kind, self.units) if self.kind in BACKWARDS else forward_memory(self.units)

    @cached_property
    def levels(self) -> Ints:
        """Bytes above those before the pass, int64[units + 1, 2]: (activations, transient) during each unit, after it.

        The highest total is that of :attr:`memory`, to the byte, and what is left is the same.
        """
        if self.kind in BACKWARDS:
            kept = sum(unit.saved_bytes for unit in self.units)
            saved = [remaining - kept for remaining, _ in _backward_levels(self.units)]
            peak, left = _most(_backward_levels(self.units), kept) - kept, -kept
            if self.kind == "input_gradient":  # what the forward saved stays
                saved, left = [0.0] * len(saved), 0.0
            moving = [min(size, peak - one) for (_, size), one in zip(_backward_levels(self.units), saved, strict=True)]
            highest = round(peak)
        else:
            saved, moving = ([float(one) for one in each] for each in zip(*_forward_levels(self.units), strict=True))
            left, peak = saved[-1], _most(_forward_levels(self.units), 0.0)
            highest = round(left) + round(peak - left)
        total = np.array([round(one + size) for one, size in zip(saved, moving, strict=True)], dtype=np.int64)
        total[np.argmax(total)] = highest
        kept_each = np.array([*(round(one) for one in saved), round(left)], dtype=np.int64)
        return np.stack([kept_each, np.append(total, round(left)) - kept_each], axis=1)


def _forward_levels(units: Sequence[BlockBytes]) -> list[tuple[float, float]]:
    """(Saved so far, workspace) while each unit runs."""
    saved, result = 0.0, []
    for unit in units:
        saved += unit.saved_bytes
        result.append((saved, unit.forward_workspace_bytes))
    return result


def _backward_levels(units: Sequence[BlockBytes]) -> list[tuple[float, float]]:
    """(Saved tensors that are left, recomputed ones and workspace) while each unit runs, in backward order."""
    remaining, result = sum(unit.saved_bytes for unit in units), []
    for unit in units:
        result.append((remaining, unit.recomputed_bytes + unit.backward_workspace_bytes))
        remaining -= unit.saved_bytes
    return result


def _most(levels: Sequence[tuple[float, float]], least: float) -> float:
    """The highest total of some levels, at least as high as what is there without them."""
    return max([least, *(saved + moving for saved, moving in levels)])


def forward_memory(units: Sequence[BlockBytes]) -> tuple[MemoryChange, ...]:
    """Memory of a forward pass over ``units`` as one op: saved tensors stay, the workspace peak goes.

    The workspace of the joined op is max over units (bytes saved so far + the unit's workspace) minus the bytes
    saved in all, so its peak equals the peak of its parts.
    """
    return _forward_changes(tuple(_forward_levels(units)))


@lru_cache(maxsize=MOST_KEPT)
def _forward_changes(levels: tuple[tuple[float, float], ...]) -> tuple[MemoryChange, ...]:
    """:func:`forward_memory` by (saved so far, workspace) of each unit; layers that are alike share it."""
    saved = levels[-1][0] if levels else 0.0
    peak = _most(levels, 0.0)
    return (MemoryChange(False, saved, "activations"), *transient(peak - saved, saved - peak))


def backward_memory(kind: str, units: Sequence[BlockBytes]) -> tuple[MemoryChange, ...]:
    """Memory of a backward-type pass over ``units`` (in backward order) as one op, peak-exact as in forward.

    A full backward and a weight-gradient pass release what forward saved; an input-gradient pass keeps it.
    """
    return _backward_changes(kind, sum(unit.saved_bytes for unit in units), tuple(_backward_levels(units)))


@lru_cache(maxsize=MOST_KEPT)
def _backward_changes(kind: str, saved: float, levels: tuple[tuple[float, float], ...]) -> tuple[MemoryChange, ...]:
    """:func:`backward_memory` by what units saved and (saved tensors that are left, workspace) of each."""
    peak = _most(levels, saved)
    release = () if kind == "input_gradient" else (MemoryChange(True, -saved, "activations"),)
    return (*transient(peak - saved, saved - peak), *release)


@lru_cache(maxsize=MOST_KEPT)
def transient(start_bytes: float, finish_bytes: float) -> tuple[MemoryChange, ...]:
    """Changes of transient bytes when a node starts and when it finishes; changes of 0 are left out."""
    changes = (MemoryChange(False, start_bytes, "transient"), MemoryChange(True, finish_bytes, "transient"))
    return tuple(change for change in changes if change.delta_bytes)
