"""Memory over time with what comes and goes inside passes that are single ops, which the Program does not have.

The Program's curve has the right peak, but holds what a pass saves from the pass's start on. Here every pass is opened
into the units that it runs over (:class:`simpar.program.structure.pass_memory.UnitPass`), at the times at which they
run, so that activations rise layer by layer in the forward and fall in the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from operator import attrgetter

import numpy as np

from simpar.dataclass import dataclass
from simpar.program.ir.memory import MemoryUse
from simpar.program.ir.program import MEMORY_CATEGORIES, Timing
from simpar.program.lower import Lowered
from simpar.program.structure.pass_memory import MemoryChange
from simpar.program.structure.templates import PassNode, Template, TemplateNode, UnitsBegin
from simpar.units import Floats, Ints, unique

MOST_ROWS = 1_000_000
"""With more changes of memory inside passes, only the highest and the lowest level of each pass are kept."""
MOST_ROUNDS = 10_000
"""Of more repetitions of the same passes as one op, only so many, evenly spread, are opened: they are all alike."""
_OPENED = [MEMORY_CATEGORIES.index(name) for name in ("activations", "transient")]


@dataclass(frozen=True)
class _Rows:
    """Changes of memory inside an op: when, as shares of its duration (float64[n], ascending), and bytes by category.

    ``delta_bytes`` int64[n, categories].
    """

    share: Floats
    delta_bytes: Ints

    @cached_property
    def total_bytes(self) -> Ints:
        """Bytes of all categories, int64[n]."""
        return np.asarray(self.delta_bytes.sum(axis=1))

    def at(self, timing: Timing, ops: Ints) -> Ints:
        """The instants in ns of the changes inside ``ops``, int64[ops, n]; at both ends exactly the op's own."""
        start, finish = timing.start_ns[ops][:, None], timing.finish_ns[ops][:, None]
        return np.asarray(start + np.rint((finish - start) * self.share).astype(np.int64), dtype=np.int64)


Opened = dict[tuple[int, bool], _Rows]
"""What stands for nodes, by node and whether that is condensed: classes share nodes."""


def memory_over_time(
    lowered: Lowered, timing: Timing, class_id: int, use: MemoryUse, known: Opened | None = None
) -> tuple[Ints, Ints]:
    """Memory of one class of ranks: instants int64[n] ns, ascending, and bytes int64[n, categories] from each on.

    Categories are MEMORY_CATEGORIES; the highest total is the peak of ``use``, the class's memory by the Program. Where
    something else still leaves while a pass runs (gradients on their way to the host), the Program's peak may be higher
    than any instant's level; then the pass that reaches it stays whole, so that the picture shows where it comes from.
    ``known`` is kept from one class of a step to the next.
    """
    return _curve((lowered, timing, class_id), use, {} if known is None else known)


def find_peak_ns(lowered: Lowered, timing: Timing, class_id: int, use: MemoryUse, known: Opened) -> int:
    """When the curve of :func:`memory_over_time` first reaches its highest total."""
    time, total = _curve((lowered, timing, class_id), use, known, in_all=True)
    return int(time[np.argmax(total)])


def _curve(
    of: tuple[Lowered, Timing, int], use: MemoryUse, known: Opened, *, in_all: bool = False
) -> tuple[Ints, Ints]:
    """As :func:`memory_over_time`, by category, or ``in_all`` of them together, int64[n]."""
    lowered, _, class_id = of
    passes = list(ops_of_nodes(lowered, class_id, attrgetter("opened")))
    time, curve = _over_time(of, passes, known, in_all=in_all)
    if (curve if in_all else curve.sum(axis=1)).max() == use.peak_bytes:
        return time, curve
    slots = lowered.slots.of_class(class_id)
    op, action = lowered.op_of_slot[slots], lowered.slots.action[slots]
    whole = op[action == action[np.flatnonzero(op == use.peak_op)[0]]]
    return _over_time(of, [(node, ops[~np.isin(ops, whole)]) for node, ops in passes], known, in_all=in_all)


def _over_time(
    of: tuple[Lowered, Timing, int], passes: Sequence[tuple[TemplateNode, Ints]], known: Opened, *, in_all: bool
) -> tuple[Ints, Ints]:
    """The curve of a class with some ops opened: by category, or in all categories together, int64[n]."""
    lowered, timing, class_id = of
    table, opened = lowered.program.memory, np.zeros(len(lowered.program), dtype=bool)
    many = sum(len(ops) * _num_rows(node) for node, ops in passes) > MOST_ROWS
    instants, changes = [np.zeros(1, dtype=np.int64)], list[Ints]()
    for node, ops in passes:
        if (id(node), many) not in known:
            known[id(node), many] = _rows(node, condense=many)
        rows = known[id(node), many]
        opened[ops] = True
        instants.append(rows.at(timing, ops).ravel())
        each = rows.total_bytes if in_all else rows.delta_bytes
        changes.append(np.broadcast_to(each, (len(ops), *each.shape)).reshape(-1, *each.shape[1:]))
    rest = np.flatnonzero((table.class_id == class_id) & ~opened[table.op])
    op, whole = table.op[rest], table.delta_bytes[rest]
    if not in_all:
        whole = np.zeros((len(rest), len(MEMORY_CATEGORIES)), dtype=np.int64)
        whole[np.arange(len(rest)), table.category[rest]] = table.delta_bytes[rest]
    changes.insert(0, np.zeros((1, *whole.shape[1:]), dtype=np.int64))
    time = np.concatenate([*instants, np.where(table.at_finish[rest], timing.finish_ns[op], timing.start_ns[op])])
    order = np.argsort(time, kind="stable")
    time, curve = time[order], np.cumsum(np.concatenate([*changes, whole])[order], axis=0)
    last = np.append(time[1:] != time[:-1], True)  # each instant's last change
    return time[last], curve[last]


def _all_nodes(template: Template) -> Iterable[tuple[int, TemplateNode]]:
    return enumerate(template.nodes)


def ops_of_nodes(
    lowered: Lowered, class_id: int, wanted: Callable[[Template], Iterable[tuple[int, TemplateNode]]] = _all_nodes
) -> Iterator[tuple[TemplateNode, Ints]]:
    """Nodes of a class's templates, all or those ``wanted`` (with their positions), and the ops that they became."""
    actions, slots = lowered.actions[class_id], lowered.slots.of_class(class_id)
    template, node = actions.template[lowered.slots.action[slots]], lowered.slots.node[slots]
    op = lowered.op_of_slot[slots]
    lengths = [len(each.nodes) for each in actions.templates]
    starts = np.cumsum([0, *lengths])
    each = starts[template] + node  # nodes numbered through all templates
    order = np.argsort(each.astype(np.min_scalar_type(starts[-1])), kind="stable")  # 16-bit integers: by radix
    ends = np.append(0, np.cumsum(np.bincount(each, minlength=starts[-1])))
    for first, one in zip(starts.tolist(), actions.templates, strict=False):
        for at, which in wanted(one):
            mine = order[ends[first + at] : ends[first + at + 1]]
            if len(mine):
                yield which, op[mine].astype(np.int64)


def _num_rows(node: TemplateNode) -> int:
    if isinstance(node, UnitsBegin):
        return 1
    return min(node.repeats, MOST_ROUNDS) * (len(node.segments) + 1)


def _rows(node: TemplateNode, *, condense: bool) -> _Rows:
    """What stands for the node's own changes of memory."""
    if isinstance(node, UnitsBegin):
        levels = node.whole.passes[0].levels
        delta = levels[node.last] - (levels[node.first - 1] if node.first else 0)
        opens, closes, beside = node.first == 0, node.last == len(levels) - 1, list[MemoryChange]()
        if opens or closes:
            beside = [change for change in _beside(node.whole) if (closes if change.at_finish else opens)]
        return _table(np.zeros(1), delta[None], beside)
    assert isinstance(node, PassNode), "other nodes are not opened"
    shares, deltas, end_ns = list[Floats](), list[Ints](), 0.0
    for one, instants in node.instants_ns():
        levels, end_ns = one.levels, float(instants[-1])
        kept = _extremes(levels) if condense or node.repeats > MOST_ROUNDS else np.arange(len(levels))
        shares.append(instants[kept])
        deltas.append(np.diff(levels[kept], axis=0, prepend=np.zeros((1, 2), dtype=np.int64)))
    once, changes = np.concatenate(shares) / end_ns, np.concatenate(deltas)
    rounds = unique(np.linspace(0, node.repeats - 1, min(node.repeats, MOST_ROUNDS)).round())
    share = ((rounds[:, None] + once) / node.repeats).ravel()
    return _table(share, np.tile(changes, (len(rounds), 1)), _beside(node))


def _extremes(levels: Ints) -> Ints:
    """Positions of the lowest and the highest level during a pass, and of what is left behind it."""
    total = levels[:-1].sum(axis=1)
    return unique([int(np.argmin(total)), int(np.argmax(total)), len(levels) - 1])


def _beside(node: PassNode) -> list[MemoryChange]:
    """Changes of memory at a node that are not its passes'; repeated passes have no others."""
    if len(node.passes) > 1:
        return []
    own = node.passes[0].memory
    assert node.memory[: len(own)] == own, f"{node.name}: a node's memory opens with that of its pass"
    return list(node.memory[len(own) :])


def _table(share: Floats, delta: Ints, beside: list[MemoryChange]) -> _Rows:
    """Rows in all categories, with changes beside the passes at either end."""
    wide = np.zeros((len(share) + len(beside), len(MEMORY_CATEGORIES)), dtype=np.int64)
    wide[: len(share), _OPENED] = delta
    if not beside:
        return _Rows(share, wide)
    for at, change in enumerate(beside, len(share)):
        wide[at, MEMORY_CATEGORIES.index(change.category)] = round(change.delta_bytes)
    share = np.append(share, [float(change.at_finish) for change in beside])
    order = np.argsort(share, kind="stable")
    return _Rows(share[order], wide[order])
