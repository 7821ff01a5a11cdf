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
from simpar.tracing.eager import HEAVY, Attended, attended
from simpar.tracing.nodes import CONSTANT, DATA, INDEX, CallNode, times
from simpar.tracing.pools import PooledAttention, pooled_attentions, pools
from simpar.tracing.raw_operators import ChoiceDraft


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


def choices(
    nodes: Mapping[str, CallNode], pooled: Mapping[str, PooledAttention] | None = None
) -> dict[str, TracedChoice]:
    """By the name of every attention whose mask is made of a choice of keys, that choice.

    ``pooled`` are the attentions to pooled keys by name, which are chosen among these.
    """
    result: dict[str, TracedChoice] = {}
    by_pick: dict[str, TracedChoice | None] = {}
    for node in nodes.values():
        seen = attended(nodes, node)
        if seen is None or (reached := _picked(nodes, seen.masks)) is None:
            continue
        pick, masking = reached
        if pick not in by_pick:
            by_pick[pick] = _choice(nodes, nodes[pick], seen, (pooled or {}).get(node.name))
        if (choice := by_pick[pick]) is not None:
            result[node.name] = replace(choice, calls=choice.calls | masking)
    return result


def unread_choices(nodes: Mapping[str, CallNode]) -> int:
    """Attentions in whose masks some values were picked, of which it was not understood which keys they leave."""
    read = choices(nodes, pooled_attentions(nodes, pools(nodes)))
    others = (attended(nodes, node) for node in nodes.values() if node.name not in read)
    return sum(_sorts_in(nodes, each.masks) for each in others if each is not None)


def _sorts_in(nodes: Mapping[str, CallNode], masks: tuple[str, ...]) -> bool:
    """Whether a mask is made of a choice of the largest, as far as products and norms before it."""
    waiting = [*masks]
    seen: set[str] = set()
    while waiting:
        node = nodes[waiting.pop()]
        if known.base(node.op) in known.SORTS:
            return True
        if node.name not in seen and node.kind not in (CONSTANT, INDEX) and known.base(node.op) not in HEAVY:
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


def _picked(nodes: Mapping[str, CallNode], masks: tuple[str, ...]) -> tuple[str, frozenset[str]] | None:
    """The call that picks what masks are made of, and the calls between; None where there is not just one.

    A mask that is made of anything else than picked places, positions and constants is not a choice's.
    """
    waiting = [*masks]
    picks: set[str] = set()
    between: set[str] = set()
    while waiting:
        node = nodes[waiting.pop()]
        if node.kind in (CONSTANT, INDEX) or node.name in between:
            continue
        if known.base(node.op) in known.SORTS:
            picks.add(node.name)
        elif known.base(node.op) in HEAVY:
            return None
        else:
            between.add(node.name)
            waiting += () if known.base(node.op) in known.FILLED else node.refs
    return (next(iter(picks)), frozenset(between)) if len(picks) == 1 else None


def _choice(
    nodes: Mapping[str, CallNode], pick: CallNode, attention: Attended, pooled: PooledAttention | None
) -> TracedChoice | None:
    """What a call picks among the keys of an attention; None where its scores are no product of two activations."""
    own, reads = _scoring(nodes, pick)
    query, scored = attention.query, nodes[pick.refs[0]]
    inside = [node for node in nodes.values() if node.name in own]
    products = [node for node in inside if node.op == "matmul" and all(nodes[r].kind == DATA for r in node.refs)]
    places = next((node for node in nodes.values() if node.op == "getitem" and node.refs == (pick.name,)), None)
    if not products or places is None:
        return None
    rows = query.sizes[0] * query.sizes[-2]
    length, made = products[0].sizes[-1], scored.sizes[-1]
    if length != (pooled.pool.pieces if pooled else attention.count):  # of other keys than the attention's
        return None
    cut = (node.sizes[-1] for node in inside if node.sizes[-2:-1] == (made,))
    block = 1 if made == length else next((each for each in cut if -(-length // each) == made), 0)
    if not block:
        return None
    indexer = Indexer(
        prod(products[0].sizes) // (rows * length), nodes[products[0].refs[0]].sizes[-1], places.sizes[-1] * block,
        pooled.pool.ratio if pooled else 1, block, apart=prod(scored.sizes) > rows * made,
    )  # fmt: skip
    return TracedChoice(pick, frozenset([*own, pick.name]), tuple(reads), indexer, query)


def _scoring(nodes: Mapping[str, CallNode], pick: CallNode) -> tuple[set[str], list[str]]:
    """The calls of a picking module that lead to its pick, and what other modules make for them, in order.

    A module inside it that multiplies two activations scores the keys, and is part of it.
    """
    inside = [node for node in nodes.values() if node.path.startswith(f"{pick.path}.") and node.op == "matmul"]
    paths = {pick.path, *(node.path for node in inside if all(nodes[ref].kind == DATA for ref in node.refs))}
    own: set[str] = set()
    outer: set[str] = set()
    waiting = [*pick.refs]
    while waiting:
        node = nodes[waiting.pop()]
        if node.kind != DATA or node.name in own:
            continue
        if node.path in paths and known.base(node.op) != "placeholder":
            own.add(node.name)
            waiting += node.refs
        else:
            outer.add(node.name)
    return own, [name for name in nodes if name in outer]
