"""The sharding choices of a stage as a graph: a variable per heavy operator and per stream between blocks.

Light operators follow: a norm or a sum takes the states of the stream that it reads, a pointwise operator those in
which its reader wants its output. What remains are few variables, unary terms (kernels, weights, saved tensors) and
tensors (changes of states between writer and readers). Repeated blocks enter once, weighted by their number. This is
the integer program of Zheng et al. 2022 (arXiv 2201.12023, section 4.2), with changes shared by readers that need the
same states. Such graphs are nearly chains, so that eliminating one variable after the other keeps tables small: the
program is solved exactly in well under a millisecond, for several prices of memory at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from math import prod

import numpy as np
from numpy.typing import NDArray

from simpar.dataclass import dataclass
from simpar.errors import Infeasible
from simpar.planner.stages.alpa.operators import Metric, OperatorChoices
from simpar.planner.stages.alpa.roles import Pricer, RoleTable
from simpar.units import Floats, Ints

Factor = tuple[tuple[int, ...], Floats]
"""Variables, sorted, and a table over their choices; the table's first axis is the weighting."""
MAX_CELLS = 2**24
"""The most cells of an elimination table: 128 MB."""


@dataclass(frozen=True)
class Variable:
    """A heavy operator of a kind of block, or a stream between blocks.

    A heavy operator chooses among combinations of a role table (``index``); ``gathered`` marks choices whose weights
    are sharded between uses. A stream has no table and chooses among codes of states (``index``).
    """

    name: str
    index: Ints
    table: RoleTable | None = None
    gathered: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def reads(self) -> Ints:
        """The code of the states read under every choice; for a stream, its own states."""
        return self.index if self.table is None else self.table.reads[self.index]


@dataclass(frozen=True)
class Unary:
    """Costs of the choices of one variable in a kind of block: ``metrics`` float64[metrics, choices]."""

    block: str
    variable: int
    metrics: Floats


@dataclass(frozen=True)
class BlockTensor:
    """A tensor of a kind of block: its writer with the states written, its readers, and the costs of changes.

    ``readings`` are the readers' variables with the code of states that each choice needs. ``pass_s`` float64[states,
    states] is infinite where there is no change.
    """

    block: str
    writer: int
    writes: Ints
    readings: tuple[tuple[int, Ints], ...]
    pass_s: Floats


@dataclass
class ChoiceGraph:
    """Variables, terms, and the number of blocks of each kind.

    ``operators[block, operator]`` is the variable that an operator follows, and the operator under its choices.
    ``streams[block]`` are the variables of (input, output, memory or -1).
    """

    pricer: Pricer
    counts: Mapping[str, int]
    variables: list[Variable] = field(default_factory=list)
    unary: list[Unary] = field(default_factory=list)
    tensors: list[BlockTensor] = field(default_factory=list)
    operators: dict[tuple[str, str], tuple[int, OperatorChoices]] = field(default_factory=dict)
    streams: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, variable: Variable) -> int:
        """Add a variable and return its number. Raises Infeasible if it has no choices."""
        if not len(variable):
            raise Infeasible(f"{variable.name} cannot be sharded on mesh {self.pricer.mesh}")
        self.variables.append(variable)
        return len(self.variables) - 1

    def static_bytes(self, assignment: Sequence[int]) -> dict[str, float]:
        """Bytes of parameters, gradients and states of one block of every kind under an assignment."""
        result = dict.fromkeys(self.counts, 0.0)
        for term in self.unary:
            result[term.block] += float(term.metrics[Metric.STATIC, assignment[term.variable]])
        return result


def eliminate(
    graph: ChoiceGraph, weights: Floats, counts: Mapping[str, int] | None = None
) -> list[tuple[float, tuple[int, ...]]]:
    """The least sum of weighted metrics and an assignment that attains it, for every row of float64[rows, metrics].

    ``counts`` replaces the graph's numbers of blocks by kind. The sum is infinite if every assignment needs an
    impossible change. Raises Infeasible if tables would become too large.
    """
    factors = _factors(graph, weights, graph.counts if counts is None else counts)
    sizes = [len(variable) for variable in graph.variables]
    steps: list[tuple[int, tuple[int, ...], Ints]] = []
    values, left = np.zeros(len(weights)), set(range(len(sizes)))
    # Bucket elimination [Dechter 1999]: min over x_v of a sum of factors is a factor over the neighbours of v,
    #   f'(scope) = min_{x_v} sum of f over factors that name v,   scope = their variables without v,
    # so variables leave one by one, the one whose table [rows, *scope, v] is smallest first; argmin is kept for the way
    # back, where each variable is chosen by those that left after it.
    while left:
        scopes = {each: sorted({v for scope, _ in factors if each in scope for v in scope}) for each in left}
        cells, variable = min((prod(sizes[v] for v in scopes[each]), each) for each in left)
        if cells > MAX_CELLS:
            raise Infeasible(f"{graph.variables[variable].name}: too many choices depend on one another")
        scope = tuple(v for v in scopes[variable] if v != variable)
        joined = _join([each for each in factors if variable in each[0]], (*scope, variable), sizes)
        steps.append((variable, scope, joined.argmin(axis=-1)))
        factors = [each for each in factors if variable not in each[0]]
        if scope:
            factors.append((scope, joined.min(axis=-1)))
        else:
            values += joined.min(axis=-1)
        left.discard(variable)
    chosen: dict[int, Ints] = {}
    for variable, scope, best in reversed(steps):
        chosen[variable] = best[(np.arange(len(weights)), *(chosen[v] for v in scope))]
    each = zip(*(chosen[variable].tolist() for variable in range(len(sizes))), strict=True)
    return list(zip(values.tolist(), each, strict=True))


def _factors(graph: ChoiceGraph, weights: Floats, counts: Mapping[str, int]) -> list[Factor]:
    alone = [np.zeros((len(weights), len(variable))) for variable in graph.variables]
    for term in graph.unary:
        alone[term.variable] += counts.get(term.block, 0) * (weights @ term.metrics)
    return [
        *(((index,), table) for index, table in enumerate(alone)),
        *(_changes(each, counts.get(each.block, 0) * weights[:, Metric.PASS]) for each in graph.tensors),
    ]


def _changes(tensor: BlockTensor, weights: Floats) -> Factor:
    """Changes of one tensor as a table over writer and readers; two readers that need the same states cost once."""
    scope = tuple(sorted({tensor.writer, *(variable for variable, _ in tensor.readings)}))

    def spread(values: Ints, variable: int) -> Ints:
        return values.reshape([-1 if v == variable else 1 for v in scope])

    finite = np.where(np.isinf(tensor.pass_s), 0.0, tensor.pass_s)
    cost = np.where(np.isinf(tensor.pass_s), np.inf, weights[:, None, None] * finite)
    written, needs = spread(tensor.writes, tensor.writer), list[Ints]()
    total: Floats = np.zeros((len(weights), *(1 for _ in scope)))
    for variable, codes in tensor.readings:
        needed = spread(codes, variable)
        each = cost[:, written, needed]
        for other in needs:
            each = np.where((needed == other)[None], 0.0, each)
        total = total + each
        needs.append(needed)
    return scope, total


def _join(factors: Sequence[Factor], scope: tuple[int, ...], sizes: Sequence[int]) -> Floats:
    """The sum of factors over a scope of variables, with axes in the given order."""
    total: Floats = np.zeros((len(factors[0][1]), *(sizes[v] for v in scope)))
    for own, table in factors:
        shape = [len(table), *(sizes[v] if v in own else 1 for v in scope)]
        total += np.transpose(table, [0, *(own.index(v) + 1 for v in scope if v in own)]).reshape(shape)
    return total
