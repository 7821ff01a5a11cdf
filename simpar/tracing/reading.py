"""From calls to drafts: views vanish, pointwise neighbours become one pass, eager attention core attention."""

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from math import prod
from typing import Any

from simpar.architectures.graph import Selection, Size
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.tracing import vocabulary as known
from simpar.tracing.capture import Capture
from simpar.tracing.choices import TracedChoice, choice_draft, choices
from simpar.tracing.clusters import PointwiseGroup, classify
from simpar.tracing.eager import SOFT, EagerAttention, eager_attention
from simpar.tracing.experts import drafts_of, mixtures
from simpar.tracing.fused import convolution_draft, recurrence_draft
from simpar.tracing.nodes import (
    CONSTANT,
    DATA,
    INDEX,
    WEIGHTS,
    CallNode,
    Mask,
    Ref,
    constant_value,
    divide_size,
    narrowest,
    rows_and_columns,
    times,
    turned,
)
from simpar.tracing.pools import PooledAttention, pool_draft, pooled_attentions, pools
from simpar.tracing.raw_operators import INPUT_VALUE, Core, DraftWeight, OperatorDraft, with_unread

_WEIGHT_AT = {"linear": 1, "addmm": 2, "mm": 1, "matmul": 1, "conv1d": 1, "conv2d": 1, "conv3d": 1}
_NORM_WEIGHTS = {
    "layer_norm": (2, 3), "rms_norm": (2,), "group_norm": (2, 3), "batch_norm": (1, 2), "instance_norm": (1, 2),
    "native_layer_norm": (2, 3),
}  # fmt: skip


def read_drafts(name: str, captured: Capture) -> list[OperatorDraft]:
    """Drafts of everything that depends on the batch, in order. Raises UserError for an operator without a rule."""
    return _CallReader(name, captured).run()


@dataclass
class _CallReader:
    """One pass over the calls."""

    name: str
    captured: Capture
    drafts: list[OperatorDraft] = field(default_factory=list)
    clusters: list[PointwiseGroup] = field(default_factory=list)
    member: dict[str, PointwiseGroup] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    eager: dict[str, EagerAttention] = field(default_factory=dict)
    inside: dict[str, str] = field(default_factory=dict)
    choices: dict[str, TracedChoice] = field(default_factory=dict)
    pooled: dict[str, PooledAttention] = field(default_factory=dict)

    @property
    def nodes(self) -> Any:
        return self.captured.nodes

    def run(self) -> list[OperatorDraft]:
        """All drafts in order, each cluster in place of its last member."""
        for node in self.nodes.values():
            self._note_eager(node)
        order: list[tuple[str, OperatorDraft | PointwiseGroup]] = []
        mixed = {**self._mixtures(), **self._pools(), **self._choices()}
        for node in self.nodes.values():
            order += [(draft.name, draft) for draft in mixed.get(node.name, ())]
            if node.name in self.taken:
                continue
            self._check(node)
            if node.kind != DATA or node.op == "placeholder" or not node.floating:
                continue
            result = self._one(node)
            if result is not None:
                order.append((node.name, result))
        last = {id(cluster): cluster.nodes[-1].name for cluster in self.clusters}
        drafts = []
        for name, result in order:
            if isinstance(result, OperatorDraft):
                drafts.append(result)
            elif last.get(id(self.member[name])) == name:
                drafts += self._closed(self.member[name])
        if not drafts:
            raise UserError(f"model = {self.name}: computes nothing from its inputs; allowed: {ALLOWED_OPS}")
        return with_unread(drafts, self.captured.parameters)

    def _mixtures(self) -> dict[str, list[OperatorDraft]]:
        """Operators of every mixture, by the call in whose place they stand."""
        result: dict[str, list[OperatorDraft]] = {}
        for mixture in mixtures(self.nodes):
            read, routed = self.value(mixture.source), self.value(mixture.routed_by)
            router, *rest = drafts_of(mixture, read, routed, self._pieces)
            result |= {mixture.router.name: [router], mixture.end.name: rest}
            calls = {_call(node.name) for node in mixture.between}
            self._take((name for name in self.nodes if _call(name) in calls), mixture.end.name)
        return result

    def _choices(self) -> dict[str, list[OperatorDraft]]:
        """Operators of every choice of keys, by the call that picks."""
        self.choices = choices(self.nodes, self.pooled)
        result: dict[str, list[OperatorDraft]] = {}
        for choice in self.choices.values():
            values = tuple(dict.fromkeys(self.value(name) for name in choice.reads))
            result[choice.pick.name] = [choice_draft(choice, values)]
            self._take((name for name in self.nodes if _call(name) in choice.calls), choice.pick.name)
        return result

    def _pools(self) -> dict[str, list[OperatorDraft]]:
        """Operators of keys that stand for several tokens, by the call that adds up; attentions that see them."""
        every = pools(self.nodes)
        self.pooled = pooled_attentions(self.nodes, every)
        result: dict[str, list[OperatorDraft]] = {}
        for name, pool in every.items():
            values = tuple(self.value(each.name) for each in pool.reads)
            places = {piece.node: piece for each in pool.calls for piece in self._pieces(self.nodes[each])}
            vectors = tuple(replace(piece, kind="vector") for piece in places.values())
            result[name] = [pool_draft(pool, values, vectors)]
            self._take(pool.calls, name)
        for name, attention in self.pooled.items():
            self._take(attention.calls, name)
        return result

    def _take(self, names: Iterable[str], end: str) -> None:
        """Note calls for which one operator stands, whose last call is ``end``: who reads them reads its output."""
        self.inside |= dict.fromkeys(names, end)
        self.taken.update(self.inside)

    def _check(self, node: CallNode) -> None:
        """Refuse operators without a rule."""
        if node.op == "placeholder":
            return
        if node.kind in (DATA, WEIGHTS) and node.floating and not known.is_known(node.op) and node.sizes:
            where = f"model = {self.name}: {node.op} in {node.path or 'the model'}"
            raise UserError(f"{where}: has no rule; allowed: {ALLOWED_OPS}")

    def _one(self, node: CallNode) -> OperatorDraft | PointwiseGroup | None:
        op = known.base(node.op)
        if node.name in self.eager:
            return self._eager_attention(node)
        if op == known.ATTENTION:
            return self._attention(node)
        if self._is_view(node):
            return None
        if op in known.PRODUCTS:
            return self._product(node, op)
        if op in known.GROUPED:
            return self._mixing(node, op)
        if op == "embedding" or (op in ("index", "index_select", "gather") and self._pieces(node, (0,))):
            return self._embedding(node)
        if op in known.NORMS:
            return self._norm(node, op)
        if op in known.RECURRENCES:
            return recurrence_draft(node, self.nodes, self._closing(node), self._pieces(node))
        if op == known.CONVOLUTION:
            return convolution_draft(node, self._closing(node), self._pieces(node, (1,)), self._pieces(node, (2,)))
        if op == known.SCAN:
            return self._plain(node, "gated_activation", saves=self._closing(node), pieces=self._pieces(node))
        if op in known.LOSSES:
            return self._plain(node, "loss", saves=(self._value(node.args[0]),), like=node.args[0])
        if op in known.DROPOUTS:
            return self._plain(node, "dropout", saves=("mask",)) if self._drops(node) else None
        if op in ("cat", "stack", "flip", "roll") and self._inside(node):
            return self._pointwise(node)
        if op in known.COPIES or self._sorts(node):
            return self._plain(node, "copy", pieces=self._pieces(node))
        if op in known.POINTWISE:
            return self._pointwise(node)
        return None

    def _drops(self, node: CallNode) -> bool:
        return bool(node.args[1]) and bool(node.args[2] if len(node.args) > 2 else True)

    # values

    def _is_data(self, arg: Any) -> bool:
        return isinstance(arg, Ref) and self.nodes[arg.name].kind == DATA

    def value(self, name: str) -> str:
        """The value behind views and dropouts that drop nothing: a call's name, or the batch itself."""
        while True:
            node = self.nodes[name]
            op = known.base(node.op)
            if node.op == "placeholder" or not node.floating or node.kind != DATA:
                return INPUT_VALUE
            if self._is_view(node) or (op in known.DROPOUTS and not self._drops(node)):
                name = next(ref for ref in node.refs if self.nodes[ref].kind == node.kind)
            else:
                return self.inside.get(name, name)

    def _is_view(self, node: CallNode) -> bool:
        """Whether a call only views a tensor: a view, a constant slice, or a product with one number."""
        op = known.base(node.op)
        if op in known.VIEWS or 0 in node.sizes:  # nothing is moved into an empty tensor
            return not self._sorts(node)
        if known.is_unlimited(node.op, node.args):
            return True
        data = [ref for ref in node.refs if self.nodes[ref].kind == node.kind]
        if node.kind != DATA or len(data) != 1:
            return False
        others = [self.nodes[ref] for ref in node.refs if ref != data[0]]
        if op in ("mul", "div"):
            return all(other.kind == CONSTANT and prod(other.sizes) == 1 for other in others)
        picks = op in ("index", "index_select") and all(other.kind == CONSTANT for other in others)
        return picks and prod(node.sizes) < prod(self.nodes[data[0]].sizes)

    def _sorts(self, node: CallNode) -> bool:
        """Whether a call picks the values of a sort or of a choice of the largest."""
        return node.op == "getitem" and known.base(self.nodes[node.refs[0]].op) in known.SORTS

    def _value(self, arg: Any) -> str:
        return self.value(arg.name) if isinstance(arg, Ref) else INPUT_VALUE

    def _values(self, node: CallNode) -> tuple[str, ...]:
        # Numbers and conditions cost nothing to read; the floating tensors that they are made of are read elsewhere.
        refs = (ref for ref in node.refs if self.nodes[ref].kind == DATA and self.nodes[ref].floating)
        return tuple(dict.fromkeys(self.value(ref) for ref in refs)) or (INPUT_VALUE,)

    def _pieces(self, node: CallNode, at: tuple[int, ...] | None = None) -> tuple[DraftWeight, ...]:
        """Parameters (or slices) among a call's arguments, or among those at positions ``at``."""
        args = node.args if at is None else tuple(node.args[i] for i in at if i < len(node.args))
        refs = CallNode("", "", args, None, (), "").refs
        pieces = {leaf.node: leaf for ref in refs for leaf in self._leaves(ref)}
        return tuple(pieces.values())

    def _leaves(self, ref: str) -> Iterator[DraftWeight]:
        """Parameters that a value is made of which depends on parameters alone."""
        node = self.nodes[ref]
        if node.kind != WEIGHTS:
            return
        if node.op == "placeholder":
            yield DraftWeight(ref, ref, prod(node.sizes), _kind_of(node))
            return
        sources = [each for each in node.refs if self.nodes[each].kind == WEIGHTS]
        whole_source = len(sources) == 1 and self.nodes[sources[0]].op == "placeholder"
        cut = known.base(node.op) in ("slice", "select", "getitem", "narrow") and prod(node.sizes)
        if cut and (parameter := self._parameter(ref)):
            yield DraftWeight(ref, parameter, prod(node.sizes), _kind_of(node))
            return
        for source in sources:
            for leaf in self._leaves(source):
                table = whole_source and known.base(node.op) in ("embedding", "index", "index_select")
                yield replace(leaf, kind="embedding") if table else leaf

    def _parameter(self, ref: str) -> str:
        """The parameter that a chain of views looks at; "" where anything but views stands between."""
        node = self.nodes[ref]
        while node.op != "placeholder":
            sources = [each for each in node.refs if self.nodes[each].kind == WEIGHTS]
            if len(sources) != 1 or known.base(node.op) not in known.VIEWS:
                return ""
            node = self.nodes[sources[0]]
        return str(node.name)

    # operators

    def _plain(
        self,
        node: CallNode,
        kind: str,
        *,
        saves: tuple[str, ...] = (),
        pieces: tuple[DraftWeight, ...] = (),
        like: Any = None,
    ) -> OperatorDraft:
        shaped = self.nodes[like.name] if isinstance(like, Ref) else node
        rows, columns = rows_and_columns(shaped)
        return OperatorDraft(
            node.name, kind, rows, columns, self._values(node), (node.name,), node.owners, pieces=pieces, saves=saves
        )

    def _product(self, node: CallNode, op: str) -> OperatorDraft:
        at = _WEIGHT_AT.get(op)
        weight = self.nodes[node.args[at].name] if at is not None and isinstance(node.args[at], Ref) else None
        if weight is None or weight.kind != WEIGHTS or (op == "matmul" and len(weight.sizes) != 2):
            return self._mixing(node, op)
        source = self._value(node.args[1 if op == "addmm" else 0])
        pieces = tuple(replace(each, kind="matrix") for each in self._pieces(node, (at or 0,)))
        others = tuple(i for i in range(len(node.args)) if i != at)
        pieces += tuple(replace(each, kind="vector") for each in self._pieces(node, others))
        if op.startswith("conv"):
            columns, contraction = weight.sizes[0], prod(weight.sizes[1:])
        else:
            contraction, columns = weight.sizes if op != "linear" else (weight.sizes[1], weight.sizes[0])
        rows = divide_size(node.numel, columns)
        saves = (source,) if source != INPUT_VALUE else ()
        return OperatorDraft(
            node.name, "matmul", rows, columns, (source,), (node.name,), node.owners, contraction, pieces, saves
        )

    def _mixing(self, node: CallNode, op: str) -> OperatorDraft:
        """A product of two activations (or of one with stacked parameters): as many FLOP and bytes as it has.

        Columns and contraction are numbers: those of this trace where they grow with the sequence. Of the dims that do,
        a contraction becomes the rows, as in the product's own weight gradient.
        """
        left, right = (self.nodes[each.name] for each in node.args[1 if op == "baddbmm" else 0 :][:2])
        read: tuple[Size, ...] = left.shape or ()
        rows, contraction = times(*(node.shape or ())[:-1]), left.sizes[-1]
        if constant_value(read[-1]) is None and len(read) > 1:
            rows, contraction = times(*read[:-2], read[-1]), node.sizes[-2]
        sources = tuple(dict.fromkeys(self.value(each.name) for each in (left, right) if each.kind == DATA))
        pieces = tuple(piece for each in (left, right) for piece in self._leaves(each.name))
        return OperatorDraft(
            node.name, "mixing", rows, node.sizes[-1], sources, (node.name,), node.owners, contraction, pieces, sources
        )  # fmt: skip

    def _embedding(self, node: CallNode) -> OperatorDraft:
        table = self.nodes[node.args[0].name]
        pieces = tuple(replace(each, kind="embedding") for each in self._pieces(node, (0,)))
        rows, columns = rows_and_columns(node)
        return OperatorDraft(
            node.name, "embedding", rows, columns, (INPUT_VALUE,), (node.name,), node.owners, 0, pieces,
            table=table.sizes[0],
        )  # fmt: skip

    def _norm(self, node: CallNode, op: str) -> OperatorDraft:
        pieces = tuple(replace(each, kind="vector") for each in self._pieces(node, _NORM_WEIGHTS[op]))
        return self._plain(node, "norm", saves=(self._value(node.args[0]), "stats"), pieces=pieces)

    def _closing(self, node: CallNode) -> tuple[str, ...]:
        """The values that a call reads; no later call joins their clusters, as it may depend on this one."""
        values = self._values(node)
        for value in values:
            if value in self.member:
                self.member[value].closed = True
        return values

    def _attention(self, node: CallNode) -> OperatorDraft:
        query, key, value = (self.nodes[arg.name] for arg in node.args[:3])
        rate = node.args[4] if len(node.args) > 4 else 0.0
        causal = bool(node.args[5]) if len(node.args) > 5 else False
        mask = Mask(causal=True) if causal else node.mask or Mask()
        draft = self._core(node, (query, key, value), mask, dropout=isinstance(rate, float) and rate > 0)
        return replace(draft, pieces=self._pieces(node, (3,)))

    def _core(
        self, node: CallNode, qkv: tuple[CallNode, CallNode, CallNode], mask: Mask, *, dropout: bool
    ) -> OperatorDraft:
        pooled, choice = self.pooled.get(node.name), self.choices.get(node.name)
        if pooled is not None:
            qkv, mask = (qkv[0], pooled.own, pooled.own), pooled.mask
        query, key, value = qkv
        width, value_width = query.sizes[-1], value.sizes[-1]
        queries, keys = query.shape[-2] if query.shape else (), key.shape[-2] if key.shape else ()
        heads = self._heads(query, query)
        core = Core(
            heads, min(self._heads(key, query), heads), width, value_width, queries, keys, mask.causal,
            mask.window, dropout, key.sizes[-2],
        )  # fmt: skip
        rows = divide_size(times(node.numel), heads * value_width)
        sources = tuple(dict.fromkeys(self.value(each.name) for each in qkv))
        if pooled is not None:
            sources = (*sources, self.value(pooled.keys))
            core = replace(core, selection=Selection(ratio=pooled.pool.ratio))
        if choice is not None:
            sources = (*sources, choice.pick.name)
            core = replace(core, selection=choice.indexer.selection, chosen=choice.pick.name)
        return OperatorDraft(
            node.name, "attention", rows, heads * value_width, sources, (node.name,), node.owners,
            saves=(*sources, node.name, "lse"), core=core,
        )  # fmt: skip

    def _heads(self, node: CallNode, query: CallNode) -> int:
        """Heads of a tensor [..., heads, rows, width], before key-value heads are expanded to the query's number."""
        heads, name = prod(node.sizes[1:-2]), node.name
        if len(node.sizes) == 3:  # batch and heads are one dim
            heads = max(1, node.sizes[0] // max(1, self._batch(node)))
        least = prod(node.sizes)
        while self._is_view(self.nodes[name]) and self.nodes[name].refs:
            name = self.nodes[name].refs[0]
            if self.nodes[name].sizes:
                least = min(least, prod(self.nodes[name].sizes))
        shrunk = prod(node.sizes) // max(least, 1)
        return max(1, heads // max(shrunk, 1)) if node is not query else heads

    def _batch(self, node: CallNode) -> int:
        names = node.shape[0] if node.shape else ()
        return 2 if any("batch" in each for _, each in names) else 1

    # eager attention

    def _note_eager(self, node: CallNode) -> None:
        """Note softmax(q k^T) v written out: the calls from one product to the other are core attention."""
        if (eager := eager_attention(self.nodes, node)) is not None:
            self.eager[node.name] = eager
            self._take(self._beside(eager, node.name), node.name)

    def _beside(self, eager: EagerAttention, end: str) -> set[str]:
        """The product of the scores, the calls to the values' product, and others on the scores (their maximum)."""
        names = list(self.nodes)
        result = {eager.scores.name, *eager.between}
        for name in names[names.index(eager.scores.name) : names.index(end)]:
            node = self.nodes[name]
            if node.floating and known.base(node.op) in SOFT and result & {*node.refs}:
                result.add(name)
        return result

    def _eager_attention(self, node: CallNode) -> OperatorDraft:
        eager = self.eager[node.name]
        query, key = (self.nodes[each] for each in eager.operands)
        between = [self.nodes[name] for name in eager.between]
        dropout = any(known.base(each.op) in known.DROPOUTS and self._drops(each) for each in between)
        flipped = replace(key, sizes=turned(key.sizes), shape=turned(key.shape or ()))
        read = (query, flipped, self.nodes[node.args[1].name])
        mask = narrowest(each.mask for each in between) or Mask()
        core = self._core(node, read, mask, dropout=dropout)
        sinks = [each for each in between if known.base(each.op) == "cat"]  # a logit per head without a key
        return replace(core, pieces=tuple(piece for each in sinks for piece in self._pieces(each)))

    # pointwise

    def _pointwise(self, node: CallNode) -> PointwiseGroup:
        """Join the cluster in the same module that feeds this call, else begin one."""
        values = self._values(node)
        feeding = [self.member[value] for value in values if value in self.member]
        open_ones = [c for c in feeding if c.takes(node) and not c.closed]
        joins = len(values) > 1 and known.base(node.op) in ("add", "sub") and not self._related(values)
        if open_ones and not joins:
            cluster = open_ones[0]
            for other in open_ones[1:]:
                if other is not cluster:
                    self._join(cluster, other)
            for other in self._limits_before(cluster, node) if len(open_ones) > 1 else ():
                self._join(cluster, other)
        else:
            cluster = PointwiseGroup(node.path, closed=joins)
            self.clusters.append(cluster)
        cluster.add(node, values, self._pieces(node), self._has_table(node))
        self.member[node.name] = cluster
        return cluster

    def _join(self, cluster: PointwiseGroup, other: PointwiseGroup) -> None:
        """Put the calls of another cluster into one."""
        cluster.absorb(other)
        self.clusters.remove(other)
        for each in other.nodes:
            self.member[each.name] = cluster

    def _limits_before(self, cluster: PointwiseGroup, node: CallNode) -> list[PointwiseGroup]:
        """Limits of what a cluster reads, where it has some of its own: those of the other half of a gate."""
        before = {id(c): c for value in cluster.sources if (c := self.member.get(value)) and c is not cluster}
        both = [each for each in before.values() if each.limits_alone and each.path == node.path and not each.closed]
        return both if any(known.base(call.op) in known.LIMITS for call in cluster.nodes) else []

    def _inside(self, node: CallNode) -> bool:
        """Whether a call reads only parts of one open cluster of its module and of that cluster's sources."""
        values = self._values(node)
        here = {v: c for v in values if (c := self.member.get(v)) and c.path == node.path and not c.closed}
        if len({id(cluster) for cluster in here.values()}) != 1:
            return False
        sources = next(iter(here.values())).sources
        return all(value in here or value in sources for value in values)

    def _related(self, values: tuple[str, ...]) -> bool:
        """Whether two summands belong together: parts of one cluster, a cluster and its source, or of equal sources."""
        clusters = [self.member.get(value) for value in values]
        first, second = clusters[0], clusters[1]
        if first is not None and first is second and not first.closed:
            return True
        for cluster, other in ((first, values[1]), (second, values[0])):
            if cluster is not None and not cluster.closed and other in cluster.sources:
                return True
        both = first is not None and second is not None and not first.closed and not second.closed
        return both and first is not None and second is not None and first.sources == second.sources

    def _has_table(self, node: CallNode) -> bool:
        """Whether a constant tensor of more than one value is among the operands (rotary tables)."""
        others = [self.nodes[ref] for ref in node.refs if self.nodes[ref].kind != DATA]
        return any(n.kind not in (DATA, WEIGHTS, INDEX) and prod(n.sizes) > 1 and n.floating for n in others)

    def _closed(self, cluster: PointwiseGroup) -> list[OperatorDraft]:
        rows, columns = rows_and_columns(cluster.nodes[-1])
        return classify(cluster, rows, columns)


ALLOWED_OPS = "linear layers, convolutions, attention, norms, embeddings, dropout, pointwise operators, copies, losses"


def _kind_of(node: CallNode) -> str:
    return "vector" if len([size for size in node.sizes if size > 1]) < 2 else "embedding"


def _call(output: str) -> str:
    """The call that has an output, of whose several outputs some may be read by nobody."""
    name, _, number = output.rpartition(".")
    return name if number.isdecimal() else output
