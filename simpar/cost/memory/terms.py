"""What an account of memory is made of: terms, their sum, and the parameters and blocks that they are about."""

from functools import cached_property

import numpy as np

from simpar.architectures.graph import Block
from simpar.dataclass import dataclass
from simpar.units import Numbers

ALWAYS, PASSES, UPDATE, BETWEEN = "always", "passes", "update", "between"
"""When a term is alive: always, from a step's first forward to its last backward, in the update, or from there to the
next forward."""


@dataclass(frozen=True)
class Term:
    """``elements`` of ``width`` bytes each in a category; ``alive`` is ALWAYS, PASSES, UPDATE or BETWEEN."""

    category: str
    name: str
    elements: Numbers
    width: Numbers = 1.0
    alive: str = ALWAYS

    @property
    def size_bytes(self) -> Numbers:
        """Whole bytes of the term."""
        return np.floor(self.elements * self.width)


@dataclass(frozen=True)
class StaticMemory:
    """Terms of a rank that no single pass brings or takes. Sizes are ints for one plan, float64 for many."""

    terms: tuple[Term, ...]

    def bytes_of(self, category: str | None, *alive: str) -> Numbers:
        """Bytes of a category (None: of all) with one of these lifetimes (by default, ALWAYS)."""
        at = alive or (ALWAYS,)
        if (category, at) not in self._known:
            terms = (term for term in self.terms if term.alive in at and category in (None, term.category))
            total = sum((term.size_bytes for term in terms), start=np.float64(0.0))
            self._known[category, at] = int(total) if np.ndim(total) == 0 else total
        return self._known[category, at]

    @cached_property
    def _known(self) -> dict[tuple[str | None, tuple[str, ...]], Numbers]:
        return {}

    @property
    def resident_bytes(self) -> Numbers:
        """What stays through forward and backward."""
        return self.bytes_of(None, ALWAYS, PASSES)

    @property
    def total_bytes(self) -> Numbers:
        """All that is allocated between two steps."""
        return self.bytes_of(None, ALWAYS, BETWEEN)

    @property
    def end_bytes(self) -> Numbers:
        """The most behind the passes: in the update, or in the gather of parameters behind it."""
        most = np.maximum(self.bytes_of(None, ALWAYS, UPDATE), self.total_bytes)
        return int(most) if np.ndim(most) == 0 else most

    @property
    def ends_in_update(self) -> bool:
        """Whether that is in the update; of one plan."""
        return bool(self.end_bytes > self.total_bytes)


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with one sharding group.

    ``elements`` is how many of them a rank works with, ``shard`` how many are its share; ``moments_bytes`` are the
    moments of all ``elements``; the ``largest`` array has so many elements in that share, and the largest ``block``.
    """

    elements: Numbers
    shard: Numbers
    moments_bytes: Numbers
    largest: Numbers = 0.0
    block: Numbers = 0.0


@dataclass(frozen=True)
class HeldBlocks:
    """Blocks of one pipeline rank and how often it holds each, embedding and head included.

    Those of the names ``shared`` are on every pipeline rank. ``microbatches`` are those of a step.
    """

    blocks: tuple[tuple[Block, Numbers], ...]
    embedding: Numbers
    head: Numbers
    shared: frozenset[str] = frozenset()
    microbatches: Numbers = 1

    @property
    def ends_meet(self) -> Numbers:
        """Whether the rank holds embedding and head."""
        both: Numbers = np.asarray(self.embedding) * np.asarray(self.head)
        return both
