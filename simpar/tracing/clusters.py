"""Pointwise calls that run as one pass over memory, and which kind of operator they are."""

from __future__ import annotations

from dataclasses import field

from simpar.architectures.graph import Size
from simpar.dataclass import dataclass
from simpar.tracing import vocabulary as known
from simpar.tracing.nodes import CallNode, rows_and_columns
from simpar.tracing.raw_operators import DraftWeight, OperatorDraft


@dataclass
class PointwiseGroup:
    """Neighbouring pointwise calls of one module; ``sources`` are the values it reads from elsewhere.

    A sum of two streams is ``closed``: no call joins it.
    """

    path: str
    closed: bool = False
    nodes: list[CallNode] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    pieces: list[DraftWeight] = field(default_factory=list)
    tables: bool = False

    def takes(self, node: CallNode) -> bool:
        """Whether a call belongs to the same module, or to the one around it while nothing is reduced here."""
        if node.path == self.path:
            return True
        around = self.path.rpartition(".")[0] == node.path
        return around and not any(known.base(each.op) in known.REDUCTIONS for each in self.nodes)

    @property
    def limits_alone(self) -> bool:
        """Whether it does nothing but limit values."""
        return all(known.base(each.op) in known.LIMITS for each in self.nodes)

    def add(self, node: CallNode, values: tuple[str, ...], pieces: tuple[DraftWeight, ...], table: bool) -> None:
        """Add a call."""
        inside = {each.name for each in self.nodes}
        self.sources += [value for value in values if value not in inside and value not in self.sources]
        self.nodes.append(node)
        self.pieces += pieces
        self.tables = self.tables or (table and known.base(node.op) in ("mul", "addcmul"))

    def absorb(self, other: PointwiseGroup) -> None:
        """Take in the calls of a cluster that turns out to be part of this one."""
        inside = {each.name for each in (*self.nodes, *other.nodes)}
        self.nodes = [*self.nodes, *other.nodes]
        self.sources = [s for s in dict.fromkeys([*self.sources, *other.sources]) if s not in inside]
        self.pieces += other.pieces
        self.tables = self.tables or other.tables


def classify(cluster: PointwiseGroup, rows: Size, columns: int) -> list[OperatorDraft]:
    """The cluster as an operator; one that only sums several streams is a residual sum.

    A limit in front of a rotation is an operator of its own, as other tensors of the same attention have it alone.
    Limits of both halves of a gated activation are one, as in mixtures.
    """
    first, rest = cluster.nodes[0], cluster.nodes[1:]
    plain = not {known.base(node.op) for node in rest} & known.NONLINEAR
    if cluster.tables and known.base(first.op) in known.LIMITS and plain:
        limit = OperatorDraft(
            first.name, "activation", *rows_and_columns(first), tuple(cluster.sources), (first.name,), first.owners,
            saves=tuple(cluster.sources),
        )  # fmt: skip
        turned = PointwiseGroup(cluster.path, nodes=rest, sources=[first.name], pieces=cluster.pieces, tables=True)
        return [limit, *classify(turned, rows, columns)]
    if limits := _limited(cluster):
        values, source = tuple(node.name for node in limits), tuple(cluster.sources)
        wide = columns * len(limits)
        limit = OperatorDraft(values[0], "clamp", rows, wide, source, values, first.owners, saves=source)
        kept = [node for node in cluster.nodes if node.name not in values]
        gate = PointwiseGroup(cluster.path, nodes=kept, sources=[values[0]], pieces=cluster.pieces)
        return [limit, *classify(gate, rows, columns)]
    ops = {known.base(node.op) for node in cluster.nodes}
    last = cluster.nodes[-1]
    sources = tuple(cluster.sources)
    kind: str = "add"
    saves: tuple[str, ...] = ()
    if ops & known.REDUCTIONS and ops & known.ROOTS:
        kind, saves = "norm", (*sources[:1], "stats")
    elif cluster.tables and not ops & known.NONLINEAR:
        kind = "rope"
    elif ops & known.NONLINEAR:
        kind, saves = ("gated_activation" if _is_gated(cluster, ops) else "activation"), sources
    elif ops & {"mul", "div"}:
        kind, saves = "activation", (sources if len(sources) > 1 or cluster.pieces else ())
    pieces = tuple(
        DraftWeight(p.node, p.parameter, p.numel, "vector" if kind == "norm" else p.kind) for p in cluster.pieces
    )
    outputs = tuple(node.name for node in cluster.nodes)
    return [OperatorDraft(last.name, kind, rows, columns, sources, outputs, last.owners, 0, pieces, saves)]


def _is_gated(cluster: PointwiseGroup, ops: set[str]) -> bool:
    """Whether it multiplies an activated tensor with another one, or with the other half of the same."""
    return "glu" in ops or (len(cluster.sources) > 1 and "mul" in ops) or _halves(cluster) or _gates(cluster)


def _gates(cluster: PointwiseGroup) -> bool:
    """Whether a product multiplies two values that are made here of different views."""
    outer: dict[str, set[str]] = {}
    for node in cluster.nodes:
        parts = [outer.get(ref, {ref}) for ref in node.refs]
        outer[node.name] = {ref for part in parts for ref in part}
        if known.base(node.op) == "mul" and len(parts) > 1 and not parts[0] & parts[1]:
            return all(ref in outer for ref in node.refs)
    return False


def _limited(cluster: PointwiseGroup) -> list[CallNode]:
    """The calls that limit what a gated activation reads of one source, or each of its own; none elsewhere."""
    inside = {node.name for node in cluster.nodes}
    limits = [node for node in cluster.nodes if known.base(node.op) in known.LIMITS and not inside & {*node.refs}]
    alone = len(cluster.sources) in (1, len(limits))
    return limits if len(limits) > 1 and alone and _gates(cluster) else []


def _halves(cluster: PointwiseGroup) -> bool:
    """Whether a product multiplies a value made here with a view that the first call does not read."""
    for node in cluster.nodes:
        if known.base(node.op) == "mul" and len(node.refs) > 1:
            inside = {each.name for each in cluster.nodes}
            outside = [ref for ref in node.refs if ref not in inside]
            if len(outside) == 1 and any(ref in inside for ref in node.refs) and len(cluster.nodes) > 1:
                first = cluster.nodes[0]
                return outside[0] not in first.refs
    return False
