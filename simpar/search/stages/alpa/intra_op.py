"""Sharding of a stage as an integer program: one choice a variable, changes of states on tensors, a memory limit.

    min  sum s_v c_v + sum z_t[a, b] R_t[a, b]
    s.t. sum_i s_v[i] = 1;  a transport e of every tensor t to every reader v: its row sums are the states written,
         its column sums the states read;  z_t >= e of every reader;  sum of bytes <= limit

as in Zheng et al. 2022 (arXiv 2201.12023, section 4.2), with changes shared by readers that need the same states.
Only s is integer: for given s all transports are. Solved with HiGHS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simpar.cost.integer import least
from simpar.errors import Infeasible
from simpar.search.stages.alpa.choices import ChoiceGraph, Reading, Tensor, Weighting

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass
class _Columns:
    """Columns and rows of the program under construction."""

    time: list[Floats] = field(default_factory=list)
    memory: list[Floats] = field(default_factory=list)
    integer: list[Ints] = field(default_factory=list)
    count: int = 0
    entries: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    bounds: list[tuple[float, float]] = field(default_factory=list)

    def add(self, time: Floats, memory: Floats, *, integer: bool) -> Ints:
        """New columns, each between 0 and 1."""
        self.time.append(time)
        self.memory.append(memory)
        self.integer.append(np.full(len(time), int(integer)))
        self.count += len(time)
        return np.arange(self.count - len(time), self.count)

    def row(self, columns: Ints, values: Floats, low: float, high: float) -> None:
        """One constraint."""
        self.entries.append((np.full(len(columns), len(self.bounds)), columns, values))
        self.bounds.append((low, high))


def solve(
    graph: ChoiceGraph,
    weighting: Weighting,
    *,
    memory_limit_bytes: float = np.inf,
    time_limit_s: float = 60.0,
) -> tuple[int, ...]:
    """The best assignment under a limit on memory. Raises Infeasible where nothing fits.

    The limit holds for the sum over all blocks of static bytes and in-flight activations of the graph's metrics.
    """
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.sparse import coo_array

    columns = _Columns()
    chosen = _variables(columns, graph, weighting)
    for tensor in graph.tensors:
        _tensor(columns, graph, tensor, chosen, weighting)
    time, memory = np.concatenate(columns.time), np.concatenate(columns.memory)
    scale = float(np.abs(time).max(initial=0.0)) or 1.0
    if np.isfinite(memory_limit_bytes):
        used = np.flatnonzero(memory)
        columns.row(used, memory[used] / memory_limit_bytes, -np.inf, 1.0)
    rows, entries, values = (np.concatenate(part) for part in zip(*columns.entries, strict=True))
    matrix = coo_array((values, (rows, entries)), shape=(len(columns.bounds), columns.count)).tocsr()
    low, high = np.array(columns.bounds).T
    objective = (time + weighting.price * memory) / scale
    found = least(
        objective,
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.concatenate(columns.integer),
        bounds=Bounds(0.0, 1.0),
        options={"time_limit": time_limit_s, "mip_rel_gap": 5e-7},
    )
    if found.x is None:
        raise Infeasible(f"no sharding of the stage fits in {memory_limit_bytes:.3g} bytes")
    return tuple(int(np.argmax(found.x[own])) for own in chosen)


def _variables(columns: _Columns, graph: ChoiceGraph, weighting: Weighting) -> list[Ints]:
    time = [np.zeros(len(variable)) for variable in graph.variables]
    memory = [np.zeros(len(variable)) for variable in graph.variables]
    for term in graph.unary:
        weight = graph.weight(term.block)
        time[term.variable] += weight * (weighting.time() @ term.metrics)
        memory[term.variable] += weight * (weighting.memory() @ term.metrics)
    chosen = []
    for own_time, own_memory in zip(time, memory, strict=True):
        own = columns.add(own_time, own_memory, integer=True)
        columns.row(own, np.ones(len(own)), 1.0, 1.0)
        chosen.append(own)
    return chosen


def _tensor(
    columns: _Columns, graph: ChoiceGraph, tensor: Tensor, chosen: Sequence[Ints], weighting: Weighting
) -> None:
    """Transports of one tensor to all of its readers, and the changes that they share."""
    weight = graph.weight(tensor.block)
    shared: dict[tuple[int, int], int] = {}
    several = len(tensor.readings) > 1
    for reading in tensor.readings:
        pairs = _pairs(tensor, reading)
        time, memory = (
            weight * np.array([weights @ tensor.table[:, a, b] for a, b in pairs])
            for weights in (weighting.time(), weighting.memory())
        )
        nothing = np.zeros(len(pairs))
        if several:
            fresh = [index for index, pair in enumerate(pairs) if pair not in shared]
            new = columns.add(time[fresh], memory[fresh], integer=False)
            shared |= {pairs[index]: int(column) for index, column in zip(fresh, new, strict=True)}
            moved = columns.add(nothing, nothing, integer=False)
            for pair, column in zip(pairs, moved, strict=True):
                both = np.array([shared[pair], column])
                columns.row(both, np.array([1.0, -1.0]), 0.0, np.inf)
        else:
            moved = columns.add(time, memory, integer=False)
        _transport(columns, (pairs, moved), 0, (tensor.writes, chosen[tensor.writer]))
        _transport(columns, (pairs, moved), 1, (reading.needs, chosen[reading.variable]))


def _pairs(tensor: Tensor, reading: Reading) -> list[tuple[int, int]]:
    written, needed = sorted(set(tensor.writes.tolist())), sorted(set(reading.needs.tolist()))
    return [(a, b) for a in written for b in needed if np.isfinite(tensor.table[0, a, b])]


def _transport(
    columns: _Columns, moved: tuple[list[tuple[int, int]], Ints], side: int, end: tuple[Ints, Ints]
) -> None:
    """Sums over one side of a transport are the states that the choices of that end stand for."""
    pairs, own = moved
    states, chosen = end
    at = np.array([pair[side] for pair in pairs], dtype=np.int64)
    for state in sorted(set(states.tolist())):
        through, made = own[at == state], chosen[states == state]
        values = np.concatenate([np.ones(len(through)), -np.ones(len(made))])
        columns.row(np.concatenate([through, made]), values, 0.0, 0.0)
