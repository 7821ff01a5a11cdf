"""Mixtures of experts in a trace: from the router's product to the weighted sum of the experts' outputs.

The calls between (scores, top-k, sorting tokens by expert and back) become three operators: router, dispatch and
combine. The experts are two grouped products, each of a stack of matrices, one per expert, with their tokens' rows.
Where a class runs every expert on every token, those that a token did not choose read zeros and add nothing: they count
as routed, as training runs them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from simpar.architectures.graph import Size
from simpar.dataclass import dataclass
from simpar.tracing import vocabulary as known
from simpar.tracing.nodes import CONSTANT, WEIGHTS, CallNode, divide_size, times
from simpar.tracing.raw_operators import DraftWeight, OperatorDraft

SUMS = frozenset(["sum", "index_add", "scatter_add"])
PICKS = frozenset(["index", "index_select", "gather"])
Pieces = Callable[[CallNode], tuple[DraftWeight, ...]]


@dataclass(frozen=True)
class TracedMixture:
    """One mixture: the router's product, its input, both grouped products, the final sum, the calls between.

    Tokens are ``hidden`` wide, and ``width`` those that the router reads, of which experts may read a latent; the input
    of the down product is ``narrow`` wide. ``count`` matrices are stacked.
    ``chosen`` experts are a token's where every expert reads every token, scaled by 0 unless it was chosen; else 0.
    """

    router: CallNode
    source: str
    up: CallNode
    down: CallNode
    end: CallNode
    between: tuple[CallNode, ...]
    hidden: int
    narrow: int
    count: int
    chosen: int = 0
    width: int = 0

    @property
    def routed_by(self) -> str:
        """The call that the router reads."""
        return self.source if self.width == self.hidden else self.router.refs[0]


def mixtures(nodes: Mapping[str, CallNode]) -> Iterator[TracedMixture]:
    """Every mixture of a trace, in order."""
    readers: dict[str, list[CallNode]] = {}
    done: set[str] = set()
    for node in nodes.values():
        for ref in node.refs:
            readers.setdefault(ref, []).append(node)
    for node in nodes.values():
        if _is_stacked(nodes, node) and node.name not in done:
            mixture = _mixture(nodes, readers, node)
            if mixture is not None:
                done |= {mixture.up.name, mixture.down.name}
                yield mixture


def _is_stacked(nodes: Mapping[str, CallNode], node: CallNode) -> bool:
    """Whether a call multiplies with a stack of matrices: a grouped product, or one of a batch of experts."""
    op = known.base(node.op)
    return op in known.GROUPED or (op == "bmm" and nodes[node.refs[1]].kind == WEIGHTS)


def _scored(nodes: Mapping[str, CallNode], node: CallNode) -> int:
    """Experts of a token where a call scales tokens, repeated for every expert, by the scores of these; else 0."""
    if known.base(node.op) != "mul" or len(node.refs) < 2:
        return 0
    waiting, seen = [node.refs[1]], set[str]()
    while waiting:
        each = nodes[waiting.pop()]
        if known.base(each.op) in known.SORTS:
            return _largest(nodes, each)
        if known.base(each.op) not in known.PRODUCTS:
            waiting += [ref for ref in each.refs if ref not in seen]
            seen.update(each.refs)
    return 0


def _largest(nodes: Mapping[str, CallNode], sort: CallNode) -> int:
    """How many values a choice of the largest keeps."""
    return next((node.sizes[-1] for node in nodes.values() if node.op == "getitem" and sort.name in node.refs), 0)


def _source(nodes: Mapping[str, CallNode], name: str) -> CallNode:
    """The call that a chain of views looks at."""
    node = nodes[name]
    while known.base(node.op) in known.VIEWS and node.refs:
        node = nodes[node.refs[0]]
    return node


def _mixture(
    nodes: Mapping[str, CallNode], readers: Mapping[str, list[CallNode]], up: CallNode
) -> TracedMixture | None:
    picked = _source(nodes, up.refs[0])
    chosen = _scored(nodes, picked)
    if known.base(picked.op) not in PICKS and not chosen:
        return None
    source = _source(nodes, picked.refs[0])
    if chosen and prod(picked.sizes) != prod(source.sizes) * nodes[up.refs[1]].sizes[0]:
        return None  # outputs of shared experts weighed by scores, no tokens repeated for every expert
    down = _next(readers, up, lambda node: _is_stacked(nodes, node))
    if down is None:
        return None
    size = prod(source.sizes)
    end = _next(readers, down, lambda node: known.base(node.op) in SUMS and prod(node.sizes) == size)
    if end is None:
        return None
    count = nodes[up.refs[1]].sizes[0]
    before = _before(nodes, end, source.name)
    plain = [node for node in before if known.base(node.op) in known.PRODUCTS]
    products = [node for node in plain if node.sizes[-1] == count] or [n for n in plain if _chooses(readers, n, count)]
    if not products:
        return None
    behind = {products[-1].name}
    for node in before:
        if behind & {*node.refs} or node.name == picked.name:
            behind.add(node.name)
    between = tuple(node for node in before if node.name in behind)
    narrow = nodes[down.refs[1]].sizes[-2]
    router, hidden = products[-1], source.sizes[-1]
    width = nodes[router.refs[0]].sizes[-1]
    return TracedMixture(router, source.name, up, down, end, between, hidden, narrow, count, chosen, width)


def _chooses(readers: Mapping[str, list[CallNode]], product: CallNode, count: int) -> bool:
    """Whether a product scores more than ``count`` experts: some of its choices are none of the stacked ones."""
    if product.sizes[-1] <= count:
        return False
    return _next(readers, product, lambda node: known.base(node.op) in known.SORTS) is not None


def _next(
    readers: Mapping[str, list[CallNode]], start: CallNode, wanted: Callable[[CallNode], bool]
) -> CallNode | None:
    """The nearest call after ``start``, along its readers, that is ``wanted``; None where there is none."""
    waiting, seen = [start], {start.name}
    while waiting:
        node = waiting.pop(0)
        for reader in readers.get(node.name, ()):
            if wanted(reader):
                return reader
            if reader.name not in seen:
                seen.add(reader.name)
                waiting.append(reader)
    return None


def _before(nodes: Mapping[str, CallNode], end: CallNode, source: str) -> list[CallNode]:
    """The calls on data that lead from the source (not included) to the final sum, in order."""
    names, waiting = {end.name}, [end]
    while waiting:
        for ref in waiting.pop().refs:
            node = nodes[ref]
            inside = node.kind not in (WEIGHTS, CONSTANT) and node.op != "placeholder"
            if inside and ref not in names and _source(nodes, ref).name != source:
                names.add(ref)
                waiting.append(node)
    return [node for name, node in nodes.items() if name in names]


def drafts_of(mixture: TracedMixture, source: str, routed: str, pieces: Pieces) -> list[OperatorDraft]:
    """The operators of a mixture that reads the value ``source``, the router first, which reads ``routed``."""
    router, up, end = mixture.router, mixture.up, mixture.end
    experts, hidden, wide, narrow = router.sizes[-1], mixture.hidden, up.sizes[-1], mixture.narrow
    tokens = divide_size(router.numel, experts)
    rows = times(tokens, ((mixture.chosen, ()),)) if mixture.chosen else divide_size(up.numel, wide)
    own = pieces(router)
    held = dict.fromkeys(piece for node in mixture.between for piece in pieces(node) if piece not in own)
    up_pieces, down_pieces, rest = _shared_out(list(held), mixture, pieces)
    sized = [replace(each, kind="matrix" if each.numel == experts * mixture.width else "vector") for each in own]
    others = [replace(piece, kind="vector") for piece in rest]

    def draft(name: str, kind: str, size: tuple[Size, int], *inputs: str) -> OperatorDraft:
        return OperatorDraft(name, kind, *size, inputs, (name,), end.owners, saves=inputs)

    dispatch, enter, clamp, act, leave = (f"{end.name}.{part}" for part in range(5))
    inner = mixture.between[mixture.between.index(up) : mixture.between.index(mixture.down)]
    clamps = any(known.base(n.op) in known.LIMITS and not known.is_unlimited(n.op, n.args) for n in inner)
    first = draft(router.name, "router", (tokens, experts), routed)
    entering = draft(enter, "grouped_matmul", (rows, wide), dispatch)
    leaving = draft(leave, "grouped_matmul", (rows, hidden), act)
    return [
        replace(
            first, contraction=mixture.width, pieces=(*sized, *others), saves=(routed, router.name),
            owners=router.owners,
        ),
        replace(draft(dispatch, "dispatch", (rows, hidden), source, router.name), saves=()),
        replace(entering, contraction=hidden, pieces=tuple(up_pieces)),
        *([draft(clamp, "clamp", (rows, wide), enter)] if clamps else []),
        draft(
            act, "gated_activation" if wide == 2 * narrow else "activation", (rows, narrow), clamp if clamps else enter
        ),
        replace(leaving, contraction=narrow, pieces=tuple(down_pieces)),
        replace(draft(end.name, "combine", (tokens, hidden), leave), saves=()),
    ]  # fmt: skip


def _shared_out(
    held: Sequence[DraftWeight], mixture: TracedMixture, pieces: Pieces
) -> tuple[list[DraftWeight], list[DraftWeight], list[DraftWeight]]:
    """Parameters of the up product, of the down product, and the others; biases are told by their sizes."""
    rest = list(held)
    parts: list[list[DraftWeight]] = []
    for product, columns in ((mixture.up, mixture.up.sizes[-1]), (mixture.down, mixture.hidden)):
        stacks = [replace(each, kind="expert") for each in pieces(product)]
        rest = [each for each in rest if each.node not in {stack.node for stack in stacks}]
        bias = next((each for each in rest if each.numel == mixture.count * columns), None)
        if bias is not None:
            rest.remove(bias)
            stacks.append(replace(bias, kind="vector"))
        parts.append(stacks)
    return parts[0], parts[1], rest
