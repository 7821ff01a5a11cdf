"""The choices of a stage as a graph: a variable for every heavy operator and for every stream between blocks.

Light operators follow: a norm or a sum takes the states of the stream that it reads, a pointwise operator those in
which its reader wants it. What remains are few variables, unary terms (kernels, weights, what is saved) and tensors
(changes of states between the operator that writes and those that read). Repeated blocks enter once, weighted
with their number: the integer program of Zheng et al. 2022 (arXiv 2201.12023, section 4.2), with changes shared by
readers that need the same states. Such graphs are nearly chains: eliminating one variable after the other keeps tables
small and solves the program exactly in well under a millisecond, for several prices of memory at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from simpar.errors import Infeasible
from simpar.search.stages.alpa.roles import RoleTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Metric(IntEnum):
    """What a choice costs one block: seconds, and bytes on one rank."""

    PASS = 0
    """Both passes of a microbatch."""
    FORWARD = 1
    """Kernels of its forward alone."""
    EXPOSED = 2
    """Gathers of weights, and reductions behind them, that the kernels of a pass do not hide."""
    SYNC = 3
    """What gradients and parameters of a step take of the links."""
    UPDATE = 4
    """The update, without launches."""
    STATIC = 5
    """Parameters, gradients and states."""
    SAVED = 6
    """What a microbatch keeps for its backward."""


MAX_CELLS = 2**24
"""Cells of a table of the elimination: 128 MB."""


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
    """What the choice of one variable costs a kind of block: ``metrics`` float64[metrics, choices]."""

    block: str
    variable: int
    metrics: Floats


@dataclass(frozen=True)
class Tensor:
    """A tensor of a kind of block: who writes it in which states, who reads it, and what changes cost.

    ``readings`` are variables of readers with the code of states that each choice needs; ``pass_s`` float64[states,
    states] is infinite where no change leads.
    """

    block: str
    name: str
    writer: int
    writes: Ints
    readings: tuple[tuple[int, Ints], ...]
    pass_s: Floats


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

    def bytes_of(self, assignment: Sequence[int], metric: Metric) -> dict[str, float]:
        """Static or saved bytes of one block of every kind under an assignment."""
        found = dict.fromkeys(self.counts, 0.0)
        for term in self.unary:
            found[term.block] += float(term.metrics[metric, assignment[term.variable]])
        return found


@dataclass(frozen=True)
class _Factor:
    """A table over some variables; the first axis is the weighting."""

    scope: tuple[int, ...]
    table: Floats


def eliminate(
    graph: ChoiceGraph, weights: Floats, counts: Mapping[str, int] | None = None
) -> list[tuple[float, tuple[int, ...]]]:
    """The least sum of weighted metrics and an assignment that has it, for every row of float64[rows, metrics].

    ``counts`` of kinds of blocks stand in place of the graph's. The sum is infinite where every assignment needs an
    impossible change. Raises Infeasible where tables would become too large.
    """
    factors = _factors(graph, weights, graph.counts if counts is None else counts)
    steps: list[tuple[int, tuple[int, ...], Ints]] = []
    values, left = np.zeros(len(weights)), set(range(len(graph.variables)))
    while left:
        cells, variable = min((_cells(graph, factors, each), each) for each in left)
        if cells > MAX_CELLS:
            raise Infeasible(f"{graph.variables[variable].name}: too many choices depend on one another")
        touching = [factor for factor in factors if variable in factor.scope]
        scope = tuple(sorted({v for factor in touching for v in factor.scope} - {variable}))
        joined = _join(graph, touching, (*scope, variable), len(weights))
        steps.append((variable, scope, joined.argmin(axis=-1)))
        factors = [factor for factor in factors if variable not in factor.scope]
        if scope:
            factors.append(_Factor(scope, joined.min(axis=-1)))
        else:
            values += joined.min(axis=-1)
        left.discard(variable)
    return [(float(value), _trace(steps, index)) for index, value in enumerate(values)]


def _trace(steps: Sequence[tuple[int, tuple[int, ...], Ints]], index: int) -> tuple[int, ...]:
    chosen = [0] * len(steps)
    for variable, scope, best in reversed(steps):
        chosen[variable] = int(best[(index, *(chosen[v] for v in scope))])
    return tuple(chosen)


def _factors(graph: ChoiceGraph, weights: Floats, counts: Mapping[str, int]) -> list[_Factor]:
    alone = [np.zeros((len(weights), len(variable))) for variable in graph.variables]
    for term in graph.unary:
        alone[term.variable] += counts.get(term.block, 0) * (weights @ term.metrics)
    return [
        *(_Factor((index,), table) for index, table in enumerate(alone)),
        *(
            _tensor_factor(graph, each, counts.get(each.block, 0) * weights[:, Metric.PASS])
            for each in graph.tensors
        ),
    ]


def _tensor_factor(graph: ChoiceGraph, tensor: Tensor, weights: Floats) -> _Factor:
    """Changes of one tensor as a table over writer and readers; equal needs of two readers cost once."""
    scope = tuple(sorted({tensor.writer, *(variable for variable, _ in tensor.readings)}))
    finite = np.where(np.isinf(tensor.pass_s), 0.0, tensor.pass_s)
    cost = np.where(np.isinf(tensor.pass_s), np.inf, weights[:, None, None] * finite)
    needs: list[Ints] = []
    total: Floats = np.zeros((len(weights), *(1 for _ in scope)))
    written = _spread(tensor.writes, scope, tensor.writer)
    for variable, codes in tensor.readings:
        needed = _spread(codes, scope, variable)
        each = cost[:, written, needed]
        for other in needs:
            each = np.where((needed == other)[None], 0.0, each)
        total = total + each
        needs.append(needed)
    shape = (len(weights), *(len(graph.variables[v]) for v in scope))
    return _Factor(scope, np.broadcast_to(total, shape))


def _spread(values: Ints, scope: tuple[int, ...], variable: int) -> Ints:
    shape = [1] * len(scope)
    shape[scope.index(variable)] = len(values)
    return values.reshape(shape)


def _cells(graph: ChoiceGraph, factors: Sequence[_Factor], variable: int) -> int:
    scope = {v for factor in factors if variable in factor.scope for v in factor.scope}
    return int(np.prod([len(graph.variables[v]) for v in scope]))


def _join(graph: ChoiceGraph, factors: Sequence[_Factor], scope: tuple[int, ...], count: int) -> Floats:
    """Sum of factors over a scope in the given order of axes."""
    total: Floats = np.zeros((count, *(len(graph.variables[v]) for v in scope)))
    for factor in factors:
        axes = [factor.scope.index(v) + 1 for v in scope if v in factor.scope]
        shape = [count, *(len(graph.variables[v]) if v in factor.scope else 1 for v in scope)]
        total += np.transpose(factor.table, [0, *axes]).reshape(shape)
    return total
