"""From the blocks of a traced module to its ModelGraph."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, partial
from math import prod
from typing import Any

from simpar.architectures.encoders import leave_out
from simpar.architectures.graph import ModelGraph, evaluate
from simpar.architectures.hf_config import TOWERS
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.tracing.blocks import EMBEDDING, HEAD, LAYER, MEMORY, ROLELESS, BlockReader, Sharing, Traced, as_block
from simpar.tracing.capture import Capture, capture
from simpar.tracing.choice_roles import LOSS
from simpar.tracing.choices import unread_choices
from simpar.tracing.code import LIBRARY, call_user_function
from simpar.tracing.fused import SELECTIVE
from simpar.tracing.library import installed, make_module, parts_left_out
from simpar.tracing.reading import read_drafts
from simpar.tracing.segments import DraftSegment, segments
from simpar.tracing.written_out import SOFTMAX
from simpar.units import number_of

OF_LENGTH = ("seq", "context", MEMORY)
"""Dims that a block has of its own where its length is not the training's."""


@lru_cache(maxsize=8)
def trace_code(name: str, seq_len: int) -> ModelGraph:
    """The graph of the torch module that the user's ``module:function`` returns. Raises UserError."""
    return _traced(name, capture(name, seq_len, partial(call_user_function, name)), "")


def trace_library(config: Mapping[str, Any], class_name: str, name: str, seq_len: int, why: str) -> ModelGraph:
    """The graph of the module that a library makes of a config (:mod:`simpar.tracing.library`). Raises UserError.

    Of a class that reads tokens alone of what its config describes, towers are left out, which is said.
    """
    captured = capture(name, seq_len, partial(make_module, config, class_name, why))
    origin = f" of {LIBRARY} {installed()[1]}"
    towers, left_out = _towers(config), list[str]()
    if towers and (unread := _unread(captured)):
        kept = {each: sizes for each, sizes in captured.parameters.items() if each not in unread}
        words = f"{sum(unread.values()):,} parameters of {' and '.join(towers)}"
        origin += f" without {words}"
        left_out.append(f"text only: {words} are left out")
        captured = replace(captured, parameters=kept)
    if parts := parts_left_out(config, captured.module):
        origin += f" (text only: it has no {' and no '.join(parts)})"
        left_out.append(f"text only: {' and '.join(parts)} left out")
    return leave_out(_traced(name, captured, origin), left_out)


def _towers(config: Mapping[str, Any]) -> list[str]:
    """Fields of a config, or of a part of it (the encoder of a pair), that describe towers."""
    parts = {f"{key}.": part for key, part in config.items() if isinstance(part, Mapping) and key not in TOWERS}
    return [f"{where}{tower}" for where, part in {"": config, **parts}.items() for tower in TOWERS if part.get(tower)]


def _traced(name: str, captured: Capture, origin: str) -> ModelGraph:
    chain = segments(name, read_drafts(name, captured))
    _require_head(name, chain[-1])
    graph = _assembled(name, _read_all(name, chain))
    held = sum(prod(sizes) for sizes in captured.parameters.values())
    if graph.num_parameters() != held:
        raise UserError(
            f"{name}: {graph.num_parameters()} of its {held} parameters were read, so its trace is not understood; "
            "allowed: a model of a declared family, or a module:function of yours without what shares or copies weights"
        )
    return replace(graph, facts={**graph.facts, "notes": (*_notes(graph, captured, origin), *_ends(graph, chain))})


def _notes(graph: ModelGraph, captured: Capture, origin: str) -> Iterator[str]:
    """What a reader of results must know of a traced model: where it is from, what got no role, what was not read."""
    yield f"the model is traced from {captured.module}{origin}, not declared"
    yield from _roleless(graph)
    if refusal := graph.facts.get("no_tensor_parallel"):
        yield f"{refusal}: no tensor parallelism"
    if unread := sum(_unread(captured).values()):
        yield f"{unread:,} of its parameters are read by no operator"
    if any(node.op == SELECTIVE for node in captured.nodes.values()):
        yield "selective scans of Mamba-1 count as those of Mamba-2 with heads of one feature"
    if any(op.kind == LOSS for block in graph.blocks.values() for op in block.operators):
        yield "its indexers learn from a loss of their own, which is counted as published: its module computes none"
    if captured.drops_layers:
        yield "layers that it drops at random in training are all counted"
    if count := unread_choices(captured.nodes):
        yield f"how {number_of(count, 'attention')} chose among keys could not be read: all that masks leave count"
    if captured.masked:
        yield f"masks of {number_of(len(captured.masked), 'attention')} could not be read and hide nothing"


def _roleless(graph: ModelGraph) -> Iterator[str]:
    """Blocks with products of no role and with attention that is written out; many of them in one line."""
    counts: dict[str, int] = {}
    shares: dict[str, float] = {}
    written: list[str] = []
    for name, block in graph.blocks.items():
        if whole := [op for op in block.operators if op.kind == "matmul" and op.name.startswith(ROLELESS)]:
            own = sum(evaluate(each.size, block.view(graph.dims)) for op in whole for each in op.weights)
            counts[name], shares[name] = len(whole), float(own / max(block.parameters(graph.dims), 1))
        if any(op.name.startswith(SOFTMAX) for op in block.operators):
            written.append(name)
    for names in _in_lines(list(counts)):
        least, most = min(counts[name] for name in names), max(counts[name] for name in names)
        products = number_of(most, "product") if least == most else f"{least} to {most} products"
        ends = (min(shares[name] for name in names), max(shares[name] for name in names))
        percent = dict.fromkeys(f"{share:.0%}" for share in ends)
        yield (
            f"{_several(names)}: {products} without a role ({' to '.join(percent)} of its parameters), computed whole "
            "by every tensor-parallel rank"
        )
    for names in _in_lines(written):
        yield f"{_several(names)}: an attention counts as its products and its softmax: its keys are no sequence's"


def _in_lines(names: Sequence[str]) -> list[Sequence[str]]:
    """Each name in a line of its own, or all in one where they are many."""
    return [names] if len(names) > MOST_LINES else [[name] for name in names]


def _several(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"each of {len(names)} kinds of blocks ({names[0]} to {names[-1]})"


MOST_LINES = 3
"""Blocks that have a line each in what is said of a model."""


def _unread(captured: Capture) -> dict[str, int]:
    """Sizes of the parameters that no call reads."""
    read = {ref for node in captured.nodes.values() for ref in node.refs}
    return {each: prod(sizes) for each, sizes in captured.parameters.items() if each not in read}


def _ends(graph: ModelGraph, chain: Sequence[DraftSegment]) -> Iterator[str]:
    """What stands for the loss of a model that does not end in logits of its vocabulary."""
    has_loss = any(draft.kind == "loss" for draft in chain[-1].drafts)
    outputs = evaluate(graph.head.operator("loss").columns, graph.head.view(graph.dims))
    if not has_loss and (not _table(chain).vocab or outputs != graph.dims["vocab"]):
        yield f"its loss is not in it: a cross entropy over its {outputs:,} outputs stands for it"


def _require_head(name: str, last: DraftSegment) -> None:
    """Raise UserError for a model whose last layer nothing follows: costs of a head know no attention."""
    if last.group and any(draft.core for draft in last.drafts):
        raise UserError(
            f"model = {name}: no product stands behind its last layer; allowed: a module that ends in a projection "
            "(to logits, to noise, to features)"
        )


def _read_all(name: str, chain: Sequence[DraftSegment]) -> list[Traced]:
    """Every segment as a block of its own."""
    values = {value: draft for segment in chain for draft in segment.drafts for value in draft.outputs}
    sharing = _table(chain)
    result: list[Traced] = []
    for at, segment in enumerate(chain):
        place = EMBEDDING if at == 0 else HEAD if at == len(chain) - 1 else LAYER
        arriving = values[segment.arrives].columns if segment.arrives else 0
        result.append(BlockReader(name, segment, place, sharing, arriving, values).read())
        sharing.owned.update(piece.node for draft in segment.drafts for piece in draft.pieces)
    if not sharing.vocab:
        sharing.vocab = _columns(chain[-1])
    result[0] = replace(result[0], dims={**result[0].dims, "vocab": sharing.vocab, "tied": sharing.tied})
    return result


def _columns(segment: DraftSegment) -> int:
    return [draft.columns for draft in segment.drafts if draft.kind == "matmul"][-1]


def _table(chain: Sequence[DraftSegment]) -> Sharing:
    """The largest embedding table, as the one of the tokens."""
    tables = [draft for segment in chain for draft in segment.drafts if draft.kind == "embedding"]
    if not tables:
        return Sharing()
    largest = max(tables, key=lambda draft: draft.table)
    parameter = next((piece.parameter for piece in largest.pieces), "")
    return Sharing(table=parameter, vocab=largest.table)


@dataclass
class _Scopes:
    """Dims of the model, and by scope those of blocks with other sizes."""

    dims: dict[str, int]
    own: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def of(self, traced: Traced, *, is_layer: bool) -> str:
        """The scope whose dims are a block's ("" is the model's); a new one where none fits."""
        if _fits(traced.dims, self.dims):
            return ""
        for name, dims in self.own.items():
            if _fits(traced.dims, dims):
                return name
        name = traced.group.replace(".", "_") if is_layer and traced.group else f"part{len(self.own) + 1}"
        while name in self.own:
            name += "_"
        base = {key: size for key, size in self.dims.items() if key not in ("seq", "context", "vocab")}
        self.own[name] = {**base, **traced.dims}
        return name


def _fits(wanted: Mapping[str, int], dims: Mapping[str, int]) -> bool:
    """Whether a scope has the dims that a block needs, and a sequence length of its own just if the block has."""
    return all(dims.get(key) == size for key, size in wanted.items()) and ("seq" in wanted) == ("seq" in dims)


def _assembled(name: str, traced: list[Traced]) -> ModelGraph:
    """The graph of all blocks: equal layers are one block, and the commonest layers' dims are the model's."""
    vocab, tied = traced[0].dims["vocab"], bool(traced[0].dims["tied"])
    traced[0] = replace(traced[0], dims={k: v for k, v in traced[0].dims.items() if k not in ("vocab", "tied")})
    layers = _like(traced[1:-1])
    scopes = _Scopes(_model_dims(traced))
    names: dict[str, str] = {}
    blocks = {}
    chain = []
    for layer in layers:
        key = repr((layer.operators, sorted(layer.dims.items()), layer.passes))
        if key not in names:
            base = _block_name(layer)
            names[key] = base if base not in names.values() else f"{base}_{len(names)}"
            blocks[names[key]] = as_block(names[key], layer, scopes.of(layer, is_layer=True))
        chain.append(names[key])
    embedding = as_block("embedding", traced[0], scopes.of(traced[0], is_layer=False))
    head = as_block("head", traced[-1], scopes.of(traced[-1], is_layer=False))
    own = {f"{scope}.{key}": size for scope, dims in scopes.own.items() for key, size in dims.items()}
    refusal = next((f"{layer.group or 'a block'}: {layer.refusal}" for layer in layers if layer.refusal), "")
    facts = {"no_tensor_parallel": refusal}
    dims = {**scopes.dims, "vocab": vocab, **own}
    return ModelGraph(name, dims, blocks, tuple(chain), embedding, head, tied, {k: v for k, v in facts.items() if v})


def _block_name(layer: Traced) -> str:
    return layer.group.replace(".", "_") if layer.group else "between"


def _like(layers: list[Traced]) -> list[Traced]:
    """The layers, those that differ only in the values passed on with the most of them (the last passes on none)."""
    most: dict[str, Traced] = {}
    for layer in layers:
        key = repr((layer.operators, sorted(layer.dims.items())))
        if key not in most or len(layer.passes) > len(most[key].passes):
            most[key] = layer
    return [replace(layer, passes=most[repr((layer.operators, sorted(layer.dims.items())))].passes) for layer in layers]


def _model_dims(traced: list[Traced]) -> dict[str, int]:
    """The dims of the layers that do most of the products; of the training's length, and with experts, come first."""
    counts: dict[tuple[tuple[str, int], ...], int] = {}
    for layer in traced[1:-1]:
        key = tuple(sorted(layer.dims.items()))
        counts[key] = counts.get(key, 0) + _weight(layer)
    long = {key: n for key, n in counts.items() if "seq" not in dict(key)} or counts
    mixed = {key: n for key, n in long.items() if "experts" in dict(key)} or long  # experts are divided in no scope
    dims = dict(max(mixed.items(), key=lambda item: item[1])[0])
    for name in OF_LENGTH:
        dims.pop(name, None)
    for key in counts:  # layers with and without experts, or attention, share the dims that they have in common
        if dict(key)["hidden"] == dims["hidden"]:
            dims = {**{name: size for name, size in key if name not in OF_LENGTH}, **dims}
    hidden = dims["hidden"]
    heads = dims.get("mamba_heads") or dims.get("linear_heads") or 1
    return {"heads": heads, "kv_heads": heads, "head_dim": hidden // heads, "ffn": hidden, "positions": 0, **dims}


def _weight(layer: Traced) -> int:
    return sum(op.kind in ("matmul", "attention") for op in layer.operators)
