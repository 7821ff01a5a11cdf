"""The choices of a stage as a graph: a variable for every heavy operator and for every stream between blocks.

Light operators follow: a norm or a sum takes the states of the stream that it reads, a pointwise operator those in
which its reader wants it. What remains are few variables, unary terms (kernels, weights, what is saved) and tensors
(changes of states between the operator that writes and those that read). Repeated blocks enter once, weighted
with their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simpar.search.stages.alpa.pricing import RoleTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
METRICS = ("forward_s", "backward_s", "sync_s", "update_s", "static_bytes", "saved_bytes")
ILLEGAL = np.inf


@dataclass(frozen=True)
class Variable:
    """A heavy operator of a kind of block, or a stream between blocks.

    A heavy operator chooses among combinations of a role table (``index``), ``gathered`` where its weights are
    sharded between uses; a stream (no table) among codes of states (``index``).
    """

    name: str
    index: Ints
    table: RoleTable | None = None
    gathered: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def reads(self) -> Ints:
        """Code of the states read under every choice; those of a stream."""
        return self.index if self.table is None else self.table.reads[self.index]

    @property
    def writes(self) -> Ints:
        """Code of the states written under every choice; those of a stream."""
        return self.index if self.table is None else self.table.writes[self.index]


@dataclass(frozen=True)
class Unary:
    """What the choice of one variable costs a kind of block: ``metrics`` float64[METRICS, choices]."""

    block: str
    variable: int
    metrics: Floats


@dataclass(frozen=True)
class Reading:
    """A reader of a tensor: its variable, and the code of states it needs for every choice."""

    variable: int
    needs: Ints


@dataclass(frozen=True)
class Tensor:
    """A tensor of a kind of block: who writes it in which states, who reads it, and what changes cost.

    ``table`` float64[METRICS, states, states]: infinite seconds where no change leads.
    """

    block: str
    name: str
    writer: int
    writes: Ints
    readings: tuple[Reading, ...]
    table: Floats


@dataclass(frozen=True)
class Weighting:
    """What is minimised: seconds of one microbatch and ``price`` seconds per byte of memory.

    ``sync_share`` of synchronisation and update belongs to a microbatch (one over their number); ``in_flight``
    microbatches keep their activations.
    """

    sync_share: float
    in_flight: float
    price: float = 0.0

    def time(self) -> Floats:
        """Weights of the metrics in seconds."""
        return np.array([1.0, 1.0, self.sync_share, self.sync_share, 0.0, 0.0])

    def memory(self) -> Floats:
        """Weights of the metrics in bytes."""
        return np.array([0.0, 0.0, 0.0, 0.0, 1.0, self.in_flight])

    def objective(self) -> Floats:
        """Weights of the metrics in the objective."""
        return self.time() + self.price * self.memory()


@dataclass(frozen=True)
class ChoiceGraph:
    """Variables, terms and how often each kind of block counts.

    ``follows[block, operator]`` is (variable, mode): "own" roles, "state" of a stream, or what it "reads".
    ``streams[block]`` are variables of (input, output, memory or -1).
    """

    variables: tuple[Variable, ...]
    unary: tuple[Unary, ...]
    tensors: tuple[Tensor, ...]
    counts: Mapping[str, int]
    mesh: tuple[int, ...]
    follows: Mapping[tuple[str, str], tuple[int, str]] = field(default_factory=dict)
    streams: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    def weight(self, block: str) -> float:
        """How often a kind of block counts."""
        return float(self.counts.get(block, 0))

    def metrics(self, assignment: Sequence[int]) -> dict[str, Floats]:
        """Metrics of one block of every kind under an assignment: name -> float64[METRICS]."""
        found = {block: np.zeros(len(METRICS)) for block in self.counts}
        for term in self.unary:
            found[term.block] += term.metrics[:, assignment[term.variable]]
        for tensor in self.tensors:
            written = tensor.writes[assignment[tensor.writer]]
            needed = {int(reading.needs[assignment[reading.variable]]) for reading in tensor.readings}
            for state in sorted(needed):
                found[tensor.block] += tensor.table[:, written, state]
        return found

    def value(self, assignment: Sequence[int], weighting: Weighting) -> float:
        """The objective of an assignment; infinite where a change is impossible."""
        weights = weighting.objective()
        each = self.metrics(assignment)
        return float(sum(self.weight(block) * (weights @ metrics) for block, metrics in each.items()))

    def memory(self, assignment: Sequence[int], weighting: Weighting) -> float:
        """Bytes of an assignment."""
        weights = weighting.memory()
        each = self.metrics(assignment)
        return float(sum(self.weight(block) * (weights @ metrics) for block, metrics in each.items()))
