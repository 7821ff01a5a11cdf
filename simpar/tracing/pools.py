"""Keys in a trace that each stand for several tokens: sums over pieces of a sequence, weighted by a gate's softmax.

A product of every token makes what is added up, another one the gate of every feature [DeepSeek-AI 2026, arXiv
2606.19348, section 2.3]. The calls between products and sum (pieces, the piece before, places, softmax) become one pass
over memory. Attention sees such keys beside those of its window.
"""

from __future__ import annotations

from collections.abc import Mapping

from simpar.dataclass import dataclass
from simpar.tracing import vocabulary as known
from simpar.tracing.eager import HEAVY, Attended, attended, behind
from simpar.tracing.nodes import DATA, WEIGHTS, CallNode, Mask, narrowest, rows_and_columns
from simpar.tracing.raw_operators import DraftWeight, PoolDraft


@dataclass(frozen=True)
class TracedPool:
    """One sum [batch, pieces, width] over pieces of ``ratio`` tokens, the ``calls`` before it, products it reads."""

    total: CallNode
    calls: frozenset[str]
    reads: tuple[CallNode, ...]
    ratio: int

    @property
    def pieces(self) -> int:
        """Pieces of a sequence."""
        return self.total.sizes[1]


@dataclass(frozen=True)
class PooledAttention:
    """An attention to tokens and to pooled keys: the calls that make both, those for which it stands, and its mask."""

    own: CallNode
    keys: str
    pool: TracedPool
    calls: frozenset[str]
    mask: Mask


def pools(nodes: Mapping[str, CallNode]) -> dict[str, TracedPool]:
    """All pools by the name of their sum."""
    sums = [node for node in nodes.values() if node.op == "sum" and node.kind == DATA]
    return {node.name: pool for node in sums if (pool := _pool(nodes, node)) is not None}


def pooled_attentions(nodes: Mapping[str, CallNode], every: Mapping[str, TracedPool]) -> dict[str, PooledAttention]:
    """By the name of an attention's last call, attention to pooled keys."""
    result = {}
    for node in nodes.values() if every else ():
        seen = attended(nodes, node)
        if seen is not None and (attention := _pooled(nodes, seen, every)) is not None:
            result[node.name] = attention
    return result


def pool_draft(pool: TracedPool, values: tuple[str, ...], pieces: tuple[DraftWeight, ...]) -> PoolDraft:
    """The operator of a pool: of every token, its share of the key is written."""
    rows, width = rows_and_columns(pool.reads[0])
    name = pool.total.name
    return PoolDraft(
        name, "mix", rows, -(-pool.total.sizes[-1] // pool.ratio), values, (name,), pool.total.owners,
        width * len(pool.reads), pieces, values, pieces_of_sequence=pool.pieces,
    )  # fmt: skip


def _pool(nodes: Mapping[str, CallNode], total: CallNode) -> TracedPool | None:
    """The pool that ends in a sum; None for other sums."""
    product = nodes[total.refs[0]]
    if product.op != "mul" or len(product.sizes) != 4 or len(total.sizes) != 3 or not _is_gated(nodes, product):
        return None
    calls: dict[str, CallNode] = {}
    reads: dict[str, CallNode] = {}
    waiting = [product.name]
    while waiting:
        node = nodes[waiting.pop()]
        if node.kind != DATA or node.name in calls:
            continue
        if known.base(node.op) in HEAVY:
            reads[node.name] = node
            continue
        calls[node.name] = node
        if known.base(node.op) not in known.FILLED:
            waiting += node.refs
    made = [reads[name] for name in nodes if name in reads]
    if len(made) != 2 or any(each.op != "linear" or len(each.sizes) != 3 for each in made):
        return None
    length, pieces = made[0].sizes[1], total.sizes[1]
    ratio = length // pieces if pieces else 1
    fits = ratio > 1 and length // ratio == pieces and made[0].sizes == made[1].sizes
    return TracedPool(total, frozenset([*calls, total.name]), tuple(made), ratio) if fits else None


def _is_gated(nodes: Mapping[str, CallNode], product: CallNode) -> bool:
    """Whether one factor is a softmax, behind casts."""
    for name in product.refs:
        node = nodes[name]
        while known.base(node.op) in known.VIEWS and node.refs:
            node = nodes[node.refs[0]]
        if known.base(node.op) in ("softmax", "_softmax"):
            return True
    return False


def _pooled(nodes: Mapping[str, CallNode], seen: Attended, every: Mapping[str, TracedPool]) -> PooledAttention | None:
    """Attention whose keys are those of the queries' tokens and then pooled ones; None for others."""
    joined, calls = seen.key, set()
    while known.base(joined.op) in known.VIEWS and joined.refs:
        calls.add(joined.name)
        joined = nodes[joined.refs[0]]
    if known.base(joined.op) != "cat" or len(joined.refs) != 2:
        return None
    own, further = (nodes[each] for each in joined.refs)
    pool = _source(nodes, further, every)
    if pool is None or (own.sizes[-2], further.sizes[-2]) != (seen.query.sizes[-2], pool.pieces):
        return None
    masking = behind(nodes, seen.masks)
    mask = narrowest(each.mask for each in masking.values()) or Mask()
    return PooledAttention(own, further.name, pool, frozenset([*calls, joined.name, *masking]), mask)


def _source(nodes: Mapping[str, CallNode], node: CallNode, every: Mapping[str, TracedPool]) -> TracedPool | None:
    """The pool that keys are made of, normed and rotated or not."""
    waiting, seen = [node.name], {node.name}
    while waiting:
        name = waiting.pop()
        if name in every:
            return every[name]
        reads = nodes[name]
        if reads.kind not in (DATA, WEIGHTS) or known.base(reads.op) in HEAVY - known.NORMS:
            continue
        more = [ref for ref in reads.refs if ref not in seen]
        waiting += more
        seen.update(more)
    return None
