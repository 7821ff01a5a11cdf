"""A model as a graph of operators with named dims.

Sizes are polynomials in named dims ("heads", "ffn", ...), so that the same operator answers for a whole model, for
one tensor-parallel shard (evaluate with local dims) and for a thousand layouts at once (evaluate with arrays).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from simpar.architectures.details import Details
from simpar.dataclass import dataclass
from simpar.units import Numbers

Dims = Mapping[str, Numbers]
Number = TypeVar("Number", bound=Numbers)
Size = tuple[tuple[int, tuple[str, ...]], ...]

WHOLE = "whole_scopes"
"""The fact of a graph that names the scopes of towers which tensor parallelism does not divide."""
SHARDED_DIMS = (
    "heads", "kv_heads", "ffn", "shared_ffn", "vocab", "mamba_heads", "mamba_groups", "linear_heads",
    "linear_key_heads", "o_groups",
)  # fmt: skip
PRODUCTS = ("matmul", "grouped_matmul", "router")
INPUT = "input"


def evaluate(size: Size, dims: Dims) -> Numbers:
    """Value of a polynomial: the sum over its terms of coefficient x product of named dims.

    ``dims`` maps names to ints or numpy arrays; arrays broadcast.
    """
    total: Numbers = 0
    for coefficient, names in size:
        term: Numbers = coefficient
        for name in names:
            term = term * dims[name]
        total = total + term
    return total


def term(*names: str, times: int = 1) -> Size:
    """A polynomial of one term."""
    return ((times, names),)


HEAD_DIM, KV_HEADS, ONE, HIDDEN = term("head_dim"), term("kv_heads"), term(), term("hidden")


@dataclass(frozen=True)
class Weight:
    """A parameter tensor: its number of elements and its kind.

    A frozen one is not ``trainable``: it has neither gradient nor states, and takes ``stored_bytes`` per element (None:
    those of the compute dtype). Kinds: "matrix", "vector", "embedding" (a table), "shared" (another block's table,
    counted there) or "expert" (of the experts that this rank holds; other ranks hold others, so fewer ranks reduce its
    gradient).
    """

    name: str
    size: Size
    kind: str = "matrix"
    trainable: bool = True
    stored_bytes: float | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether it has rows and columns; biases of experts have not."""
        return self.kind == "matrix" or (self.kind == "expert" and not self.name.endswith(".bias"))


@dataclass(frozen=True)
class Selection:
    """Keys of a causal mask that each stand for ``ratio`` tokens, of which ``keys`` are chosen for a query (None: all).

    They are chosen in blocks of ``block`` keys, that of the query among them.
    """

    keys: int | None = None
    ratio: int = 1
    block: int = 1

    def most_keys(self, context: Numbers) -> Numbers:
        """The most keys that a query sees among those of ``context`` tokens."""
        made = context / self.ratio
        return made if self.keys is None else np.minimum(self.keys, made)

    def mean_keys(self, context: Numbers) -> Numbers:
        """Keys that a query sees on average: k - k^2/(2 n) of n keys where k are chosen, n/2 of all.

        Of blocks of b keys, that of the query is half behind it: (b - 1)/2 fewer where not all are seen.
        """
        made, keys = context / self.ratio, self.most_keys(context)
        return keys - keys * keys / (2 * made) - (self.block - 1) / 2 * (1 - keys / made)


@dataclass(frozen=True)
class AttentionPattern:
    """Core attention: causal or not, over a sliding ``window`` of tokens or all of them (None).

    ``chunked`` windows do not slide: a query sees the keys of its own window only. Widths of one head: ``key_dim``
    of queries and keys, ``value_dim`` of values; ``kv_heads`` counts the key-value heads. ``context`` names the dim
    that counts the keys of a sequence: "context", or "memory" where queries attend to another tower's output.
    ``document`` is the mean number of tokens in a token's document, where a sequence holds several documents
    (:mod:`simpar.architectures.documents`). A ``selection`` of keys takes the place of all of them, and
    adds to those of a window. ``exchanged`` are the elements of a token that the other ranks of a sequence need (None:
    its keys and values).
    """

    causal: bool = True
    window: int | None = None
    chunked: bool = False
    dropout: bool = False
    key_dim: Size = HEAD_DIM
    value_dim: Size = HEAD_DIM
    kv_heads: Size = KV_HEADS
    context: str = "context"
    document: float | None = None
    selection: Selection | None = None
    exchanged: Size | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether a window, a selection or a document bounds the keys that queries see."""
        return self.window is not None or self.selection is not None or self.document is not None

    def most_keys(self, context: Numbers) -> Numbers:
        """The most keys that a query sees among ``context`` tokens; in packed sequences, of its document only."""
        if self.document is not None:
            context = np.minimum(context, self.document)
        near = context if self.window is None else np.minimum(self.window, context)
        if self.selection is None:
            return near
        return self.selection.most_keys(context) + (0 if self.window is None else near)

    def mean_keys(self, context: Numbers) -> Numbers:
        """Keys that a query sees on average among ``context`` keys; in packed sequences, those of its document only.

        c/2 of c keys under a causal mask; w - w^2/(2 c) in a sliding window of w tokens; w/2 in chunks of w tokens;
        those of a selection beside.
        """
        if self.document is not None:
            context = np.minimum(context, self.document)
        if self.selection is not None:
            return self.selection.mean_keys(context) + (0 if self.window is None else self._near(context))
        if self.window is None:
            return context / 2 if self.causal else context
        return self._near(context)

    def _near(self, context: Numbers) -> Numbers:
        """Keys in the window."""
        assert self.window is not None, "asked for only with a window"
        keys = np.minimum(self.window, context)
        if not self.causal:
            return keys
        return keys / 2 if self.chunked else keys - keys * keys / (2 * context)


@dataclass(frozen=True)
class Operator:
    """One operator of a block.

    Output elements are rows x columns; a product (of kind matmul, grouped_matmul, router) contracts
    ``contraction``. ``inputs`` name the operators of the block that it reads ("input" is the block's input).
    ``saves`` names the tensors kept for backward: an operator (its output), "input", or the operator's own "mask"
    (1 byte an element), "stats" (4 bytes a row) or "lse" (4 bytes a row and head). ``region`` is "tensor" where rows
    are whole and heads, ffn or vocab may be sharded, "sequence" where sequence parallelism shards the rows, "expert"
    where they are tokens routed to experts. ``kept_in`` maps the precision of a run to that of this product, where a
    recipe keeps it in more bits.
    """

    name: str
    kind: str
    rows: Size
    columns: Size
    region: str
    contraction: Size = ()
    weights: tuple[Weight, ...] = ()
    inputs: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    attention: AttentionPattern | None = None
    kept_in: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_trained(self) -> bool:
        """Whether any of its weights is trained."""
        return any(weight.trainable for weight in self.weights)

    @property
    def looks_up_vocabulary(self) -> bool:
        """Whether it looks up a token table, whose rows tensor parallelism shards; position tables are not sharded."""
        return self.kind == "embedding" and any("vocab" in dims for w in self.weights for _, dims in w.size)

    @property
    def projections(self) -> list[Size]:
        """Columns of each projection of one input that a packed product stands for."""
        result: list[Size] = []
        for times, names in self.columns:
            result += [term(*names)] * times if names else [term(times=times)]
        return result

    def computes_in(self, precision: str) -> str:
        """Precision of this product in a run of ``precision``: recipes keep some in more bits."""
        return self.kept_in.get(precision, precision)


@dataclass(frozen=True)
class Block:
    """Operators in execution order; the output of the last one is the block's output.

    A block of another tower (vision encoder, decoder of a pair) has a ``scope``: dims named "scope.hidden",
    "scope.seq", ... replace those of the model. ``stream`` are the elements of a token in the residual stream at the
    block's ends; ``passes`` are elements that travel on beside the output, such as an encoder's output past the layers
    of a decoder. A block that ``has_no_backward`` has nothing trained in it or below
    it: no gradient passes through it, and nothing is kept for one.
    """

    name: str
    operators: tuple[Operator, ...]
    scope: str = ""
    passes: Size = ()
    has_no_backward: bool = False
    stream: Size = HIDDEN

    def view(self, dims: Mapping[str, Number]) -> Mapping[str, Number]:
        """The dims as this block names them: those of its scope ("vision.hidden") in place of the model's."""
        if not self.scope:
            return dims
        prefix = f"{self.scope}."
        own = {name.removeprefix(prefix): size for name, size in dims.items() if name.startswith(prefix)}
        return {**dims, **own}

    def parameters(self, dims: Dims) -> Numbers:
        """Number of parameters under the given dims (global dims: all of them, local dims: one shard's)."""
        own = self.view(dims)
        return sum(evaluate(weight.size, own) for op in self.operators for weight in op.weights)

    def trained_parameters(self, dims: Dims) -> Numbers:
        """Number of parameters that have gradients, under the given dims."""
        own = self.view(dims)
        weights = (weight for op in self.operators for weight in op.weights if weight.trainable)
        return sum(evaluate(weight.size, own) for weight in weights)

    def largest_share(self, dims: Dims) -> Numbers:
        """Share of the block's parameters in its largest weight; those of a packed product count one by one."""
        own = self.view(dims)
        total: Numbers = 0.0
        largest: Numbers = 0.0
        for op in (op for op in self.operators if op.weights):
            alone: Numbers = 0.0
            for columns in op.projections:
                alone = np.maximum(alone, evaluate(columns, own))
            for weight in op.weights:
                size = evaluate(weight.size, own)
                one = size * alone / evaluate(op.columns, own) if weight.kind in ("matrix", "expert") else size
                total, largest = total + size, np.maximum(largest, one)
        return largest / np.maximum(total, 1)

    def frozen_bytes(self, dims: Dims, width: float, *, narrowed: bool = False) -> tuple[Numbers, Numbers]:
        """Bytes of frozen parameters, ``width`` an element or as stored (``narrowed``: not wider): (dense, experts)."""
        own = self.view(dims)
        totals: list[Numbers] = [0.0, 0.0]
        for weight in (weight for op in self.operators for weight in op.weights if not weight.trainable):
            stored = weight.stored_bytes or width
            totals[weight.kind == "expert"] += evaluate(weight.size, own) * (min(stored, width) if narrowed else stored)
        return totals[0], totals[1]

    def matmul_parameters(self, dims: Dims) -> Numbers:
        """Parameters of the matrices that multiply a row; of experts, only those to which a token is sent."""
        own = self.view(dims)
        products = [op for op in self.operators if op.kind in PRODUCTS]
        times = [own["topk"] if op.kind == "grouped_matmul" else 1 for op in products]
        each = (evaluate(op.contraction, own) * evaluate(op.columns, own) for op in products)
        return sum(size * count for size, count in zip(each, times, strict=True))

    def output_elements(self, dims: Dims) -> Numbers:
        """Elements that the next block receives: the last operator's output and what travels beside it."""
        own, last = self.view(dims), self.operators[-1]
        return evaluate(last.rows, own) * evaluate(last.columns, own) + evaluate(self.passes, own)

    def trained_experts(self, dims: Dims) -> Numbers:
        """Parameters of routed experts that have gradients."""
        own = self.view(dims)
        weights = (w for op in self.operators for w in op.weights if w.kind == "expert" and w.trainable)
        return sum(evaluate(weight.size, own) for weight in weights)

    def operator(self, name: str) -> Operator:
        """The operator of that name."""
        return next(op for op in self.operators if op.name == name)


@dataclass(frozen=True, repr=False)
class ModelGraph:
    """A model: global dims, the kinds of blocks, and the block of every layer in order.

    ``embedding`` comes before the layers; ``head`` (final norm, output projection, loss) after them. No cost depends on
    ``details``. ``auxiliary`` names blocks that only training has (multi-token prediction): published parameter counts,
    and those here, leave them out.

    >>> import simpar
    >>> model = simpar.Model("mixtral-8x7b")
    >>> model.is_mixture, model.num_parameters(), model.num_active_parameters()
    (True, 46702792704, 12879925248)
    """

    name: str
    dims: Mapping[str, int]
    blocks: Mapping[str, Block]
    layers: tuple[str, ...]
    embedding: Block
    head: Block
    tied_embeddings: bool
    facts: Mapping[str, Any] = field(default_factory=dict)
    details: Details = field(default_factory=Details)
    auxiliary: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<Model {self.name}: {len(self.layers)} layers, {self.num_parameters():,} parameters>"

    def num_parameters(self) -> int:
        """Exact number of parameters; tied embeddings and tables that several blocks look up count once."""
        return self._num_parameters

    @cached_property
    def _num_parameters(self) -> int:
        return self._count(self.dims)

    def num_trained_parameters(self) -> int:
        """Those of them that have gradients."""
        return self._count(self.dims, trained=True)

    def num_active_parameters(self) -> int:
        """Parameters that one token uses: of routed experts, only those of the ``topk`` to which it is sent.

        Where visual tokens have experts of their own, it is a token of text.
        """
        if not self.is_mixture:
            return self._count(self.dims)
        chosen = {"experts": self.dims["topk"]}
        for name in self.dims:
            scope, _, own = name.rpartition(".")
            if own == "experts":
                chosen[name] = 0 if scope == "vision" else self.dims.get(f"{scope}.topk", self.dims["topk"])
        return self._count({**self.dims, **chosen})

    def num_matmul_parameters(self) -> int:
        """Parameters of the matrices that multiply a token: those of layers, and the output projection."""
        return int(sum(block.matmul_parameters(self.dims) for block in self._in_order))

    @cached_property
    def tensor_sizes(self) -> tuple[int, ...]:
        """Parameters of every trained tensor outside experts, in the order of the model; shared ones count once."""
        return tuple(
            int(evaluate(weight.size, block.view(self.dims)))
            for block, weight in self._weights(self._in_order)
            if weight.trainable and weight.kind != "expert"
        )

    @cached_property
    def num_expert_tensors(self) -> int:
        """Trained tensors of experts, those of all experts of a layer counted as one."""
        weights = (weight for _, weight in self._weights(self._in_order))
        return sum(weight.trainable and weight.kind == "expert" for weight in weights)

    @property
    def longest(self) -> int | None:
        """The most tokens a sequence can have: as a reader says, or those of a learned table. None: as many as wanted.

        A table's first rows may stand for no position.
        """
        rows = self.dims.get("positions", 0)
        of_table = rows - self.details.positions.offset if rows else None
        said: int | None = self.facts.get("longest", of_table)
        return said

    @property
    def has_vocabulary(self) -> bool:
        """Whether tokens of a vocabulary are looked up and predicted; models of images alone have none."""
        return self.dims["vocab"] > 1

    @property
    def is_mixture(self) -> bool:
        """Whether tokens are routed to experts."""
        return "experts" in self.dims

    @property
    def expert_hidden(self) -> int:
        """Width of the tokens that travel to experts: that of the model, or of the experts' latent."""
        return self.dims.get("expert_hidden") or self.dims["hidden"]

    @property
    def has_state(self) -> bool:
        """Whether some layers carry a state along the sequence."""
        return self.has_mixers or "linear_heads" in self.dims

    @property
    def exchanges_heads(self) -> bool:
        """Whether all states are of Mamba mixers, whose heads the ranks of a sequence can share."""
        return self.has_mixers and "linear_heads" not in self.dims and "no_tensor_parallel" not in self.facts

    @property
    def chooses_keys(self) -> bool:
        """Whether an indexer chooses the keys of every query, or keys are of several tokens."""
        return "index_topk" in self.dims or "compressed" in self.dims

    @property
    def has_mixers(self) -> bool:
        """Whether some layers have a Mamba mixer."""
        return "mamba_heads" in self.dims

    def _count(self, dims: Dims, *, trained: bool = False) -> int:
        layers = [self.blocks[name] for name in self.layers if name not in self.auxiliary]
        return int(
            sum(
                evaluate(weight.size, block.view(dims))
                for block, weight in self._weights((self.embedding, *layers, self.head))
                if weight.trainable or not trained
            )
        )

    def _weights(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, Weight]]:
        """The weights of blocks; a weight that several share belongs to the first."""
        tied = self._tied
        for block in blocks:
            for op in block.operators:
                for weight in op.weights:
                    if weight.kind != "shared" and weight not in tied:
                        yield block, weight

    @property
    def _tied(self) -> tuple[Weight, ...]:
        """The weight of the output projection if it is the embedding's table."""
        return self.head.operator("lm_head").weights[:1] if self.tied_embeddings else ()

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was assumed of the model because its config does not say it, in words."""
        return tuple(self.facts.get("assumed", ()))

    def assuming(self, *said: str) -> "ModelGraph":
        """The graph with more that was assumed."""
        return replace(self, facts={**self.facts, "assumed": (*self.assumed, *said)})

    @property
    def said(self) -> str:
        """One line about what is assumed, and fields of the config that are not understood; empty without either."""
        assumed = [f"Assumed of the model: {each}." for each in self.assumed]
        return " ".join(filter(None, [*assumed, self.details.said]))

    @property
    def scopes(self) -> tuple[Mapping[str, int], ...]:
        """The dims of every tower: those of the model's own blocks first."""
        return tuple({block.scope: block.view(self.dims) for block in self._in_order}.values())

    @property
    def divided_scopes(self) -> tuple[Mapping[str, int], ...]:
        """The dims of every tower that tensor parallelism divides."""
        blocks = (block for block in self._in_order if block.scope not in self.whole_scopes)
        return tuple({block.scope: block.view(self.dims) for block in blocks}.values())

    @property
    def whole_scopes(self) -> tuple[str, ...]:
        """Scopes of the towers that every tensor-parallel rank holds and computes whole."""
        return tuple(self.facts.get(WHOLE, ()))

    @property
    def _in_order(self) -> tuple[Block, ...]:
        """The blocks that a token passes, from the embedding to the head."""
        return (self.embedding, *(self.blocks[name] for name in self.layers), self.head)


def is_row_parallel(op: Operator) -> bool:
    """Whether tensor parallelism shards the contraction, so that the output is a partial sum."""
    return any(name in SHARDED_DIMS for _, names in op.contraction for name in names)


def is_column_parallel(op: Operator) -> bool:
    """Whether tensor parallelism shards the output columns of a matmul."""
    return op.kind == "matmul" and any(name in SHARDED_DIMS for _, names in op.columns for name in names)


def saved_tensors(block: Block) -> tuple[tuple[str, Operator | None, str], ...]:
    """Every distinct tensor a block keeps for backward: (key, operator that makes or owns it, what).

    ``what`` is "output", "input", "mask", "stats" or "lse"; the operator is None for the block's input.
    """
    tensors: dict[str, tuple[str, Operator | None, str]] = {}
    for op in block.operators:
        for name in op.saves:
            if name in ("mask", "stats", "lse"):
                tensors.setdefault(f"{op.name}.{name}", (f"{op.name}.{name}", op, name))
            elif name == INPUT:
                tensors.setdefault(INPUT, (INPUT, None, "input"))
            else:
                tensors.setdefault(name, (name, block.operator(name), "output"))
    return tuple(tensors.values())
