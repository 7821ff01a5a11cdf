"""Attention in a trace: one call, or softmax(q k^T) v written out as the calls from one product to the other."""

from collections.abc import Iterable, Mapping

from simpar.dataclass import dataclass
from simpar.tracing import vocabulary as known
from simpar.tracing.nodes import CONSTANT, DATA, INDEX, CallNode, Ref

SOFT = known.POINTWISE | known.VIEWS | known.DROPOUTS | known.COPIES
HEAVY = frozenset([*known.PRODUCTS, *known.NORMS, *known.GROUPED, known.ATTENTION, "embedding", "placeholder"])
"""Calls that are operators of their own; masks are made without them."""
_HIDING = ("add", "masked_fill", "where")
_PLAIN_PRODUCTS = ("matmul", "bmm", "baddbmm")


@dataclass(frozen=True)
class EagerAttention:
    """The product ``scores`` of queries and keys, and the calls to the product with the values, nearest to it first."""

    scores: CallNode
    between: tuple[str, ...]

    @property
    def operands(self) -> tuple[str, str]:
        """The calls that make queries [..., queries, width] and keys [..., width, keys]."""
        first = 1 if known.base(self.scores.op) == "baddbmm" else 0
        query, key = self.scores.args[first : first + 2]
        return query.name, key.name


@dataclass(frozen=True)
class Attended:
    """What an attention reads: queries, keys (``count`` for each head), and the calls of its masks."""

    query: CallNode
    key: CallNode
    count: int
    masks: tuple[str, ...]


def eager_attention(nodes: Mapping[str, CallNode], node: CallNode) -> EagerAttention | None:
    """The attention that ends in a product; None where it is another one."""
    reads = node.args[:2]
    if known.base(node.op) not in ("matmul", "bmm") or not all(isinstance(each, Ref) for each in reads):
        return None
    if any(nodes[each.name].kind != DATA for each in reads):
        return None
    between: list[str] = []
    softmax, name = False, reads[0].name
    while True:
        each = nodes[name]
        op = known.base(each.op)
        if op in _PLAIN_PRODUCTS:
            return EagerAttention(each, tuple(between)) if softmax else None
        data = [ref for ref in each.refs if nodes[ref].kind == DATA]
        if op not in SOFT or each.op == "placeholder" or not data:
            return None
        softmax = softmax or op in ("softmax", "_softmax")
        between.append(name)
        name = data[0]


def attended(nodes: Mapping[str, CallNode], node: CallNode) -> Attended | None:
    """What a call reads if it is an attention, or the last of one; None for others."""
    if node.op == known.ATTENTION:
        query, key = (nodes[each.name] for each in node.args[:2])
        masks = tuple(each.name for each in node.args[3:4] if isinstance(each, Ref))
        return Attended(query, key, key.sizes[-2], masks)
    if (eager := eager_attention(nodes, node)) is None:
        return None
    query, key = (nodes[each] for each in eager.operands)
    chain = {eager.scores.name, *eager.between}
    hiding = (nodes[each] for each in eager.between if known.base(nodes[each].op) in _HIDING)
    masks = tuple(ref for each in hiding for ref in each.refs if ref not in chain)
    return Attended(query, key, key.sizes[-1], masks)


def behind(nodes: Mapping[str, CallNode], names: Iterable[str]) -> dict[str, CallNode]:
    """The calls that masks are made of, as far as operators of their own and choices of the largest.

    Of new tensors of one value nothing but the size is read.
    """
    result: dict[str, CallNode] = {}
    waiting = [*names]
    while waiting:
        node = nodes[waiting.pop()]
        op = known.base(node.op)
        if node.name in result or op in HEAVY or op in known.SORTS:
            continue
        result[node.name] = node
        if op not in known.FILLED and (node.kind not in (CONSTANT, INDEX) or node.mask is None):
            waiting += node.refs
    return result
