"""Exact minimum over a graph of choices by variable elimination, for several prices of memory at once.

The graphs of transformer blocks are nearly chains: eliminating one variable after the other keeps tables small, and a
solution takes well under a millisecond. :mod:`simpar.search.stages.alpa.intra_op` solves the same problem, and the one
with a hard limit on memory, as an integer program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simpar.search.stages.alpa.choices import ChoiceGraph, Tensor, Weighting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_CELLS = 2**22
"""Tables larger than this are left to the integer program."""


class TooWide(Exception):
    """The graph has no elimination order with small tables."""


@dataclass(frozen=True)
class _Factor:
    """A table over some variables; the first axis is the price of memory."""

    scope: tuple[int, ...]
    table: Floats


def eliminate(graph: ChoiceGraph, weightings: Sequence[Weighting]) -> list[tuple[int, ...]]:
    """The best assignment for every weighting. Raises TooWide."""
    weights = np.stack([weighting.objective() for weighting in weightings])
    factors = _factors(graph, weights)
    steps: list[tuple[int, tuple[int, ...], Ints]] = []
    left = set(range(len(graph.variables)))
    while left:
        variable = min(left, key=lambda v: (_cells(graph, factors, v), v))
        if _cells(graph, factors, variable) > MAX_CELLS:
            raise TooWide
        touching = [factor for factor in factors if variable in factor.scope]
        scope = tuple(sorted({v for factor in touching for v in factor.scope} - {variable}))
        joined = _join(graph, touching, (*scope, variable), len(weightings))
        steps.append((variable, scope, joined.argmin(axis=-1)))
        factors = [factor for factor in factors if variable not in factor.scope]
        if scope:
            factors.append(_Factor(scope, joined.min(axis=-1)))
        left.discard(variable)
    return [_trace(steps, len(graph.variables), index) for index in range(len(weightings))]


def _trace(steps: Sequence[tuple[int, tuple[int, ...], Ints]], count: int, index: int) -> tuple[int, ...]:
    chosen = [0] * count
    for variable, scope, best in reversed(steps):
        chosen[variable] = int(best[(index, *(chosen[v] for v in scope))])
    return tuple(chosen)


def _factors(graph: ChoiceGraph, weights: Floats) -> list[_Factor]:
    factors = [
        _Factor((term.variable,), graph.weight(term.block) * _weigh(weights, term.metrics))
        for term in graph.unary
    ]
    factors += [_tensor_factor(graph, tensor, weights) for tensor in graph.tensors]
    known = {variable for factor in factors for variable in factor.scope}
    factors += [
        _Factor((index,), np.zeros((len(weights), len(variable))))
        for index, variable in enumerate(graph.variables)
        if index not in known
    ]
    return factors


def _weigh(weights: Floats, metrics: Floats) -> Floats:
    """Objective [weightings, ...] of metrics [METRICS, ...]; infinite seconds stay infinite."""
    return np.tensordot(weights, metrics, axes=1)


def _tensor_factor(graph: ChoiceGraph, tensor: Tensor, weights: Floats) -> _Factor:
    """Changes of one tensor as a table over writer and readers; equal needs of two readers cost once."""
    scope = tuple(sorted({tensor.writer, *(reading.variable for reading in tensor.readings)}))
    cost = graph.weight(tensor.block) * _weigh(weights, tensor.table)
    cost[:, np.isinf(tensor.table[0])] = np.inf
    needs: list[Ints] = []
    total: Floats = np.zeros((len(weights), *(1 for _ in scope)))
    written = _spread(tensor.writes, scope, tensor.writer)
    for reading in tensor.readings:
        needed = _spread(reading.needs, scope, reading.variable)
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
    scope = {v for factor in factors if variable in factor.scope for v in factor.scope} | {variable}
    return int(np.prod([len(graph.variables[v]) for v in scope]))


def _join(graph: ChoiceGraph, factors: Sequence[_Factor], scope: tuple[int, ...], count: int) -> Floats:
    """Sum of factors over a scope in the given order of axes."""
    total: Floats = np.zeros((count, *(len(graph.variables[v]) for v in scope)))
    for factor in factors:
        axes = [factor.scope.index(v) + 1 for v in scope if v in factor.scope]
        shape = [count, *(len(graph.variables[v]) if v in factor.scope else 1 for v in scope)]
        total += np.transpose(factor.table, [0, *axes]).reshape(shape)
    return total
