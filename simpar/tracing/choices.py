"""Choices of keys in a trace: from the scores of all keys to the mask of attention that hides those not chosen.

An indexer is a module whose forward scores every key for every query, by products of small heads, and picks the best
[DeepSeek-AI 2025, arXiv 2512.02556, section 2.1]. Its calls, and those that turn the picked places into a mask, become
one operator: training kernels read the places themselves. What other modules make in it (products, norms) are operators
of their own.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from simpar.architectures.indexer import Indexer
from simpar.dataclass import dataclass
from simpar.tracing import vocabulary as known
from simpar.tracing.nodes import CONSTANT, DATA, INDEX, CallNode, refs_of, times
from simpar.tracing.raw_operators import ChoiceDraft

_STOPS = (*known.PRODUCTS, *known.NORMS, *known.GROUPED, known.ATTENTION, "embedding", "placeholder")


@dataclass(frozen=True)
class TracedChoice:
    """One choice: the call that picks, the ``calls`` that it stands for, those of other modules that it reads, sizes.

    ``tokens`` is a call [batch, heads, queries, width] of the attention that sees the chosen keys.
    """

    pick: CallNode
    calls: frozenset[str]
    reads: tuple[str, ...]
    indexer: Indexer
    tokens: CallNode


def choices(nodes: Mapping[str, CallNode]) -> dict[str, TracedChoice]:
    """By the name of every attention whose mask is made of a choice of keys, that choice."""
    result: dict[str, TracedChoice] = {}
    by_pick: dict[str, TracedChoice | None] = {}
    for node in nodes.values():
        if node.op != known.ATTENTION or (reached := _picked(nodes, node)) is None:
            continue
        pick, masking = reached
        if pick not in by_pick:
            by_pick[pick] = _choice(nodes, nodes[pick], node)
        if (choice := by_pick[pick]) is not None:
            result[node.name] = replace(choice, calls=choice.calls | masking)
    return result


def unread_choices(nodes: Mapping[str, CallNode]) -> int:
    """Attentions in whose masks some values were picked, of which it was not understood which keys they leave."""
    read = choices(nodes)
    cores = [node for node in nodes.values() if node.op == known.ATTENTION and node.name not in read]
    return sum(_sorts_in(nodes, node) for node in cores)


def _sorts_in(nodes: Mapping[str, CallNode], attention: CallNode) -> bool:
    """Whether an attention's mask is made of a choice of the largest, as far as products and norms before it."""
    waiting = [*refs_of(attention.args[3:4])]
    seen: set[str] = set()
    while waiting:
        node = nodes[waiting.pop()]
        if known.base(node.op) in known.SORTS:
            return True
        if node.name not in seen and node.kind not in (CONSTANT, INDEX) and known.base(node.op) not in _STOPS:
            seen.add(node.name)
            waiting += node.refs
    return False


def choice_draft(choice: TracedChoice, values: tuple[str, ...]) -> ChoiceDraft:
    """The operator of a choice that reads ``values``; it keeps them, as scores are computed again."""
    name, shape = choice.pick.name, choice.tokens.shape or ()
    return ChoiceDraft(
        name, "indexer", times(shape[0], shape[-2]), 2 * choice.indexer.dims["index_choices"], values, (name,),
        choice.pick.owners, saves=values, indexer=choice.indexer,
    )  # fmt: skip


def _picked(nodes: Mapping[str, CallNode], attention: CallNode) -> tuple[str, frozenset[str]] | None:
    """The call that picks what an attention's mask is made of, and the calls between; None where there is not just one.

    A mask that is made of anything else than picked places, positions and constants is not a choice's.
    """
    waiting = [*refs_of(attention.args[3:4])]
    picks: set[str] = set()
    between: set[str] = set()
    while waiting:
        node = nodes[waiting.pop()]
        if node.kind in (CONSTANT, INDEX) or node.name in between:
            continue
        if known.base(node.op) in known.SORTS:
            picks.add(node.name)
        elif known.base(node.op) in _STOPS:
            return None
        else:
            between.add(node.name)
            waiting += node.refs
    return (next(iter(picks)), frozenset(between)) if len(picks) == 1 else None


def _choice(nodes: Mapping[str, CallNode], pick: CallNode, attention: CallNode) -> TracedChoice | None:
    """What a call picks among the keys of an attention; None where its scores are no product of two activations."""
    own, reads = _scoring(nodes, pick)
    query, scored = nodes[attention.args[0].name], nodes[pick.refs[0]]
    inside = [node for node in nodes.values() if node.name in own]
    products = [node for node in inside if node.op == "matmul" and all(nodes[r].kind == DATA for r in node.refs)]
    places = next((node for node in nodes.values() if node.op == "getitem" and node.refs == (pick.name,)), None)
    if not products or places is None:
        return None
    rows = query.sizes[0] * query.sizes[-2]
    length, made = products[0].sizes[-1], scored.sizes[-1]
    if length != nodes[attention.args[1].name].sizes[-2]:  # of pools of keys, not of keys
        return None
    cut = (node.sizes[-1] for node in inside if node.sizes[-2:-1] == (made,))
    block = 1 if made == length else next((each for each in cut if -(-length // each) == made), 0)
    if not block:
        return None
    indexer = Indexer(
        prod(products[0].sizes) // (rows * length), nodes[products[0].refs[0]].sizes[-1], places.sizes[-1] * block,
        block=block, apart=prod(scored.sizes) > rows * made,
    )  # fmt: skip
    return TracedChoice(pick, frozenset([*own, pick.name]), tuple(reads), indexer, query)


def _scoring(nodes: Mapping[str, CallNode], pick: CallNode) -> tuple[set[str], list[str]]:
    """The calls of a picking module that lead to its pick, and what other modules make for them, in order."""
    own: set[str] = set()
    outer: set[str] = set()
    waiting = [*pick.refs]
    while waiting:
        node = nodes[waiting.pop()]
        if node.kind != DATA or node.name in own:
            continue
        if node.path == pick.path and known.base(node.op) != "placeholder":
            own.add(node.name)
            waiting += node.refs
        else:
            outer.add(node.name)
    return own, [name for name in nodes if name in outer]
