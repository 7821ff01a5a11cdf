"""One segment of a trace as a block: operators whose sizes are polynomials in named dims."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from simpar.architectures.graph import HIDDEN, INPUT, AttentionPattern, Block, Operator, Size, Weight, evaluate, term
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.tracing.choice_roles import chosen_mask
from simpar.tracing.compressed_roles import shared_key_mask
from simpar.tracing.expert_roles import expert_weights
from simpar.tracing.latent_roles import LATENT_KEY, latent_mask
from simpar.tracing.nodes import times
from simpar.tracing.raw_operators import INPUT_VALUE, DraftWeight, OperatorDraft, makers
from simpar.tracing.roles import find_roles
from simpar.tracing.segments import DraftSegment
from simpar.tracing.vocabulary import CONVOLUTION
from simpar.tracing.written_out import SOFTMAX, is_softmax, written_out

EMBEDDING, LAYER, HEAD = "embedding", "layer", "head"
MEMORY = "memory"
ROLELESS = ("product", "mixing")
"""How names of products without a role begin: those with a weight, and those of two activations."""
_REGIONS = {"matmul": "tensor", "attention": "tensor", "embedding": "tensor", "loss": "tensor"}


@dataclass
class Sharing:
    """Parameters that earlier blocks own (by their calls), and the token table: parameter, rows, whether tied."""

    owned: set[str] = field(default_factory=set)
    table: str = ""
    vocab: int = 0
    tied: bool = False


@dataclass(frozen=True)
class Traced:
    """A block, the dims that it names, and why it cannot be tensor-parallel ("" where it can).

    ``stream`` are the elements of a token in what it hands on.
    """

    operators: tuple[Operator, ...]
    dims: Mapping[str, int]
    passes: Size
    group: str
    refusal: str
    stream: Size = HIDDEN


@dataclass
class BlockReader:
    """Turns one segment into a block.

    ``place`` is "embedding", "layer" or "head"; ``arriving`` is the width of the stream that enters the segment (0 for
    the first one).
    """

    name: str
    segment: DraftSegment
    place: str
    sharing: Sharing
    arriving: int
    values: Mapping[str, OperatorDraft]
    read_here: set[str] = field(default_factory=set)

    def read(self) -> Traced:
        """The operators in order, the block's output last."""
        output = self._last_product if self.place == HEAD else ""
        self._find(self.segment.drafts, output)
        if strange := {draft.name for draft in self.roles.drafts if draft.core and self._keys(draft) is None}:
            self._find(written_out(self.segment.drafts, strange), output)
        self._name_all()
        if self.place == HEAD:
            self.roles.drafts = _without_passes_on(self.roles.drafts, output)
        self.roles.drafts = _with_vectors(self.segment.drafts, self.roles.drafts)
        operators = [self._operator(draft) for draft in self.roles.drafts]
        if self.place == HEAD and all(op.kind != "loss" for op in operators):
            operators.append(self._loss(operators))
        elif self.place != HEAD:
            operators += self._end(operators)
        refusal = self.roles.refusal
        return Traced(tuple(operators), self.dims, self._passes(), self.segment.group, refusal, self._stream)

    def _find(self, drafts: Sequence[OperatorDraft], output: str) -> None:
        """The roles of drafts, who makes which value, and the block's dims."""
        live = {self.segment.output, *self.segment.carried}
        self.roles = find_roles(drafts, self.segment.memory, output, live, self.segment.arrives)
        self.made = dict(makers(self.roles.drafts))
        self.dims = self._dims()

    # names and dims

    @property
    def _last_product(self) -> str:
        products = [draft.name for draft in self.segment.drafts if draft.kind == "matmul"]
        if not products:
            raise UserError(f"model = {self.name}: ends without a product; allowed: logits at the end")
        return products[-1]

    @property
    def _main(self) -> OperatorDraft:
        if self.place == HEAD:
            return next(draft for draft in self.roles.drafts if draft.name == self._last_product)
        return self.made.get(self.segment.output) or self.values[self.segment.output]

    @property
    def _stream(self) -> Size:
        """Elements of a token in what the block hands on: several rows for each where residual streams are several."""
        rows = () if self.place == HEAD else self._rows(self._main.rows, self._main)
        wide = len(rows) == 1 and rows[0][1] == ("batch", "seq")
        return term("hidden", times=rows[0][0]) if wide else HIDDEN

    def _dims(self) -> dict[str, int]:
        """The block's own dims: the width of its stream, and its length where that is not the training's."""
        main = self._main
        hidden = self.arriving if self.place == HEAD else main.columns
        result = {"hidden": hidden, **self.roles.dims}
        rows = main.rows if self.place != HEAD else self._first_rows()
        if rows and len(rows) == 1 and rows[0][1] == ("batch",):
            result |= {"seq": rows[0][0], "context": rows[0][0]}
        keys = [d.core.keys for d in self.roles.drafts if d.core and self._crosses(d)]
        if keys and not keys[0][0][1]:
            result[MEMORY] = keys[0][0][0]
        made = [d.rows for d in self.roles.drafts if self.segment.memory in d.outputs]
        if made and len(made[0]) == 1 and made[0][0][1] == ("batch",):
            result[MEMORY] = made[0][0][0]
        return result

    def _first_rows(self) -> Size:
        before = self.values.get(self.segment.arrives)
        return before.rows if before is not None else ()

    def _crosses(self, draft: OperatorDraft) -> bool:
        return self.roles.names.get(draft.name, "").startswith("cross_")

    def _name_all(self) -> None:
        """Name operators by their roles, and the others by their kinds."""
        roles = self.roles
        for draft in roles.drafts:
            if self.segment.memory in draft.outputs:
                roles.names[draft.name] = MEMORY
        if self.place == HEAD:
            roles.names[self._main.name] = "lm_head"
        for draft in roles.drafts:
            wanted = draft.kind
            if draft.kind == "embedding":
                wanted = "token_embedding" if self.place == EMBEDDING else "decoder_embedding"
            elif draft.kind == "matmul" and self.place == EMBEDDING:
                wanted = "patch_embedding"
            elif draft.kind == "matmul":
                wanted = ROLELESS[0]
            elif draft.kind == "norm" and self.place == HEAD:
                wanted = "final_norm"
            elif is_softmax(draft):
                wanted = SOFTMAX
            elif draft.kind == "add" and any(p.kind == "embedding" for p in draft.pieces):
                wanted = "position_embedding"
            roles.name(draft, wanted)

    # operators

    def _operator(self, draft: OperatorDraft) -> Operator:
        roles = self.roles
        rows = self._rows(roles.rows.get(draft.name, draft.rows), draft)
        columns = roles.columns.get(draft.name) or self._size(draft.columns, draft)
        contraction: Size = ()
        if draft.contraction:
            contraction = roles.contractions.get(draft.name) or self._size(draft.contraction)
        name = roles.names[draft.name]
        usual = _REGIONS.get(draft.kind, "tensor" if draft.name in roles.inner else "sequence")
        region = roles.regions.get(draft.name, usual)
        saves = tuple(dict.fromkeys(self._saved(each, draft) for each in draft.saves))
        if draft.kind == "matmul" and self.place == EMBEDDING and draft.inputs == (INPUT_VALUE,):
            saves = ()
        return Operator(
            name,
            "matmul" if draft.kind == "mixing" else draft.kind,
            rows,
            columns,
            region,
            contraction=contraction,
            weights=self._weights(draft, columns, contraction),
            inputs=tuple(dict.fromkeys(self._input(value, draft) for value in self._read(draft))),
            saves=tuple(each for each in saves if each),
            attention=self._attention(draft),
        )

    def _read(self, draft: OperatorDraft) -> tuple[str, ...]:
        """The values that a draft reads; an attention finds an earlier layer's keys and values as its heads need them.

        They were sharded by heads when that layer made them.
        """
        if draft.core is None or self._crosses(draft):
            return draft.inputs
        return tuple(value for value in draft.inputs if not self._is_earlier(value)) or draft.inputs

    def _is_earlier(self, value: str) -> bool:
        """Whether a block before the last one has made a value."""
        return value not in self.made and value not in (self.segment.arrives, INPUT_VALUE)

    def _input(self, value: str, reader: OperatorDraft | None = None) -> str:
        if value in self.made:
            name = self.made[value].name
            covered = self.roles.covers.get(name, name) if reader is not None and reader.core else name
            return self.roles.names[covered]
        # Sums and norms of a memory read it as any value of an earlier block; products alone have a length of its own.
        crosses = bool(value) and value == self.segment.memory != self.segment.arrives
        return MEMORY if crosses and reader is not None and reader.kind == "matmul" else INPUT

    def _saved(self, what: str, reader: OperatorDraft) -> str:
        """A saved tensor's name; "" for another tower's output and an earlier layer's keys, which these keep."""
        if what in ("stats", "mask", "lse"):
            return what
        name = self._input(what, reader)
        kept = self._is_earlier(what) if reader.core is not None else name == MEMORY and what not in self.made
        return "" if kept else name

    def _rows(self, rows: Size, draft: OperatorDraft) -> Size:
        """Rows in terms of the block's own sequence, or of the memory's."""
        length = self.dims.get("seq")
        memory = self.roles.names.get(draft.name) == MEMORY or (
            bool(self.segment.memory) and self.segment.memory in draft.inputs and self._is_memory_wide(rows)
        )
        if memory:
            return term("batch", MEMORY)
        if length and len(rows) == 1 and rows[0][1] == ("batch",) and rows[0][0] % length == 0:
            return ((rows[0][0] // length, ("batch", "seq")),)
        return rows

    def _is_memory_wide(self, rows: Size) -> bool:
        return rows == self.values[self.segment.memory].rows

    def _size(self, number: int, draft: OperatorDraft | None = None) -> Size:
        if draft is not None and draft.name in self.roles.names:
            name = self.roles.names[draft.name]
            if name == "lm_head" and number == self.sharing.vocab:
                return term("vocab")
            if draft.kind == "loss" and number == self.sharing.vocab:
                return term("vocab")
        return term("hidden") if number == self.dims["hidden"] else ((number, ()),)

    def _attention(self, draft: OperatorDraft) -> AttentionPattern | None:
        core = draft.core
        if core is None:
            return None
        same = core.key_dim == core.value_dim
        keys = self._keys(draft)
        assert keys is not None, "others are written out"
        context, window, chunked = keys
        pattern = AttentionPattern(
            causal=core.causal,
            window=window or core.window,
            chunked=chunked,
            dropout=core.dropout,
            key_dim=term("head_dim"),
            value_dim=term("head_dim") if same else ((core.value_dim, ()),),
            context=context,
        )
        if "o_groups" in self.dims:
            return shared_key_mask(pattern, draft, self.made)
        latent, chosen = "qk_dim" in self.dims, bool(core.chosen)
        if latent:
            pattern = latent_mask(pattern, sparse=chosen)
        pairs = LATENT_KEY if latent else term("kv_heads", "head_dim", times=2)
        return chosen_mask(pattern, core, pairs, indexed=core.chosen in self.made) if chosen else pattern

    def _keys(self, draft: OperatorDraft) -> tuple[str, int | None, bool] | None:
        """The dim that counts a query's keys; where sequences are cut into separate pieces, their length and True.

        None where keys are neither those of the block, or of pieces of it, nor of another tower.
        """
        core = draft.core
        assert core is not None, "called for core attention"
        if self._crosses(draft):
            return MEMORY, None, False
        rows, own = self._rows(draft.rows, draft), self.dims.get("seq")
        stream: Size = ((own, ()),) if own else term("seq")
        if rows == term("batch", "seq") and core.queries == core.keys == stream:
            return "context", None, False
        if rows == term("batch", "seq") and core.queries == core.keys and not core.queries[0][1]:
            return "context", core.queries[0][0], True
        return None

    def _weights(self, draft: OperatorDraft, columns: Size, contraction: Size) -> tuple[Weight, ...]:
        """Parameters by kind, their sizes in the product's named dims where these multiply to them."""
        name = self.roles.names[draft.name]
        if draft.kind == "grouped_matmul":
            held = expert_weights(name, draft, contraction, columns)
            again = self.sharing.owned.issuperset(piece.node for piece in draft.pieces)  # layers that run once more
            return tuple(replace(each, kind="shared") for each in held) if again else held
        result: list[Weight] = []
        for kind in ("matrix", "embedding", "vector"):
            for shared, pieces in self._split(draft, kind):
                numel = sum(piece.numel for piece in pieces)
                size = self._weight_size(draft, numel, columns, contraction)
                has_bias = kind == "vector" and draft.kind in ("matmul", "norm", "router")
                suffix = "weight" if not result else "bias" if has_bias else f"other_{kind}"
                result.append(Weight(f"{name}.{suffix}", size, "shared" if shared else kind))
        return tuple(result)

    def _split(self, draft: OperatorDraft, kind: str) -> list[tuple[bool, list[DraftWeight]]]:
        """Pieces of a kind: (False, the block's own), (True, an earlier block's). A tied head's table is its own."""
        own: list[DraftWeight] = []
        shared: list[DraftWeight] = []
        for piece in draft.pieces:
            if piece.kind != kind or piece.node in self.read_here:
                continue
            self.read_here.add(piece.node)
            tied = self.roles.names[draft.name] == "lm_head" and piece.parameter == self.sharing.table
            self.sharing.tied = self.sharing.tied or tied
            first = piece.node in self.sharing.owned and not tied
            (shared if first else own).append(piece)
        return [(flag, pieces) for flag, pieces in ((False, own), (True, shared)) if pieces]

    def _weight_size(self, draft: OperatorDraft, numel: int, columns: Size, contraction: Size) -> Size:
        dims = {**self.dims, "vocab": self.sharing.vocab}
        candidates = [columns, term("hidden"), term("hidden", times=2)]
        if contraction:
            candidates.insert(0, times(contraction, columns))
        if draft.core is not None:
            candidates.insert(0, term("heads"))
        if draft.kind == CONVOLUTION and "conv" in self.dims:
            candidates.insert(0, times(columns, term("conv")))
        if draft.kind == "embedding" and draft.table == self.sharing.vocab:
            candidates.insert(0, term("vocab", "hidden"))
        return next((size for size in candidates if evaluate(size, dims) == numel), ((numel, ()),))

    def _loss(self, operators: list[Operator]) -> Operator:
        head = next(op for op in operators if op.name == "lm_head")
        return Operator("loss", "loss", head.rows, head.columns, "tensor", inputs=("lm_head",), saves=("lm_head",))

    def _end(self, operators: list[Operator]) -> list[Operator]:
        """A sum that makes the block's output its last operator; none where it is already."""
        draft = self.made.get(self.segment.output)
        if draft is not None and self.roles.names[draft.name] == operators[-1].name:
            return []
        source = self._input(self.segment.output)
        rows = self._rows(self._main.rows, self._main) if draft is not None else term("batch", "seq")
        return [Operator("pass", "add", rows, self._size(self._main.columns), "sequence", inputs=(source,))]

    def _passes(self) -> Size:
        """Number of elements that travel to the next block beside the output."""
        total: Size = ()
        for value in self.segment.carried:
            draft = self.values[value]
            rows = term("batch", MEMORY) if value == self.segment.memory else draft.rows
            total = (*total, *times(rows, self._size(draft.columns)))
        return total


def _with_vectors(read: Sequence[OperatorDraft], kept: list[OperatorDraft]) -> list[OperatorDraft]:
    """The drafts that were kept, the last one with the vectors that calls read for which another operator stands.

    These cost next to nothing (scales of logits, of rotary tables), but are held and updated.
    """
    held = {piece.node for draft in kept for piece in draft.pieces}
    left = {p.node: p for draft in read for p in draft.pieces if p.kind == "vector" and p.node not in held}
    return [*kept[:-1], replace(kept[-1], pieces=(*kept[-1].pieces, *left.values()))] if left else kept


def _without_passes_on(drafts: list[OperatorDraft], output: str) -> list[OperatorDraft]:
    """The drafts of a head without softcaps of its logits, which the loss reads and writes in any case."""
    logits = {value for draft in drafts if draft.name == output for value in draft.outputs}
    result = []
    for draft in drafts:
        if draft.kind in ("activation", "add") and draft.inputs and logits.issuperset(draft.inputs):
            logits.update(draft.outputs)
        else:
            result.append(draft)
    return result


def as_block(name: str, traced: Traced, scope: str) -> Block:
    """The block under a name, in a scope of dims."""
    return Block(name, traced.operators, scope, traced.passes, stream=traced.stream)


__all__ = ["EMBEDDING", "HEAD", "LAYER", "MEMORY", "BlockReader", "Sharing", "Traced", "as_block"]
