"""Actions whose collectives nothing disturbs although links are shared: what else uses these runs before or behind.

Tensor-parallel ranks of a node often share its links with data parallelism, which gathers parameters with the first
microbatches and reduces gradients with the last. In between a rank has these links to itself: its passes take what they
take alone, and are written as single ops.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from simpar.program.blocks.phases import COMPUTE
from simpar.program.structure.templates import Template
from simpar.units import Flags, Ints


def predecessors(template: Template) -> list[tuple[int, ...]]:
    """For every node of a template, the nodes of it that it waits for: its dependencies, and those on its streams."""
    before: list[tuple[int, ...]] = []
    last: dict[str, int] = {}
    for at, node in enumerate(template.nodes):
        before.append((*node.after, *(last[stream] for stream in node.streams if stream in last)))
        last |= dict.fromkeys(node.streams, at)
    return before


def reached(before: Sequence[Iterable[int]], ends: Iterable[int]) -> set[int]:
    """Some nodes and all that have ended when these start, of nodes that wait as ``before`` says."""
    result, waiting = set[int](), [*ends]
    while waiting:
        at = waiting.pop()
        if at not in result:
            result.add(at)
            waiting += before[at]
    return result


def select_undisturbed(templates: Sequence[Template], index: Ints, kinds: frozenset[str]) -> Flags:
    """Which actions of a rank no collective in groups of some ``kinds`` runs beside, bool[n].

    ``index`` int64[n] are the actions' templates, in order. Actions follow one another on the compute stream. So an
    action is undisturbed if it has no such collective, all of earlier actions end before their last kernels, and all of
    later ones start behind their first.
    """
    facts = np.array([_outside(each, kinds) for each in templates]).reshape(-1, 3)[index]
    has, late, joined = facts.T
    nobody = np.zeros(1, dtype=bool)
    runs_on = np.concatenate([nobody, np.logical_or.accumulate(~joined)[:-1]])
    is_early = np.concatenate([np.logical_or.accumulate(~late[::-1])[::-1][1:], nobody])
    return np.asarray(~(has | runs_on | is_early))


def _outside(template: Template, kinds: frozenset[str]) -> tuple[bool, bool, bool]:
    """Whether a template has collectives in groups of some kinds; whether all start late; whether all end in time."""
    nodes = template.nodes
    mine = {at for at, node in enumerate(nodes) if node.collective and node.collective.group in kinds}
    if not mine:
        return False, True, True
    before, late = predecessors(template), set[int]()
    for at, node in enumerate(nodes):
        if COMPUTE in node.streams or not late.isdisjoint(before[at]):
            late.add(at)
    ended = reached(before, (at for at, node in enumerate(nodes) if COMPUTE in node.streams))
    return True, mine <= late, mine <= ended
