"""What a class of ranks holds at its peak, shared out among the layers of the model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np

from simpar.cost.memory.static import held_memory
from simpar.cost.memory.terms import HeldBlocks, StaticMemory, Term
from simpar.program.emission.emit import model_layer
from simpar.program.ir.program import Timing
from simpar.program.lower import Lowered
from simpar.program.memory_inside import ops_of_nodes
from simpar.program.structure.pass_memory import BACKWARDS, UnitPass
from simpar.program.structure.pieces import StageBlock
from simpar.program.structure.stages import ActionBuilder, StageBuilder
from simpar.program.structure.templates import PassNode, UnitsBegin
from simpar.units import Ints

WEIGHTS = ("parameters", "gradients", "optimizer_states")
"""Categories whose terms belong to layers."""


def activations_by_layer(lowered: Lowered, timing: Timing, class_id: int, at_ns: int) -> dict[int, int]:
    """Bytes that passes of a class have saved by ``at_ns`` for their backward, by the layer of the model.

    The embedding is -1 and the head the layer behind the last. What of them waits on the host counts as well.
    """
    first_layer = _first_layers(lowered, class_id)
    held: Counter[int] = Counter()
    for node, ops in ops_of_nodes(lowered, class_id):
        if not isinstance(node, PassNode | UnitsBegin):
            continue
        begun, is_done = timing.start_ns[ops] <= at_ns, timing.finish_ns[ops] <= at_ns
        for first, count in Counter(first_layer[ops[is_done]].tolist()).items():
            for layer, size in _moved(node, 1.0):
                held[model_layer(layer, first)] += count * size
        for op in ops[begun & ~is_done].tolist():
            begin, end = int(timing.start_ns[op]), int(timing.finish_ns[op])
            for layer, size in _moved(node, (at_ns - begin) / (end - begin)):
                held[model_layer(layer, int(first_layer[op]))] += size
    return {layer: size for layer, size in sorted(held.items()) if size}


def _first_layers(lowered: Lowered, class_id: int) -> Ints:
    """The first layer of the stage of every op of a class, int64[num_ops]."""
    slots, actions = lowered.slots.of_class(class_id), lowered.actions[class_id]
    result = np.zeros(len(lowered.program), dtype=np.int64)
    result[lowered.op_of_slot[slots]] = actions.first_layer[lowered.slots.action[slots]]
    return result


def _moved(node: PassNode | UnitsBegin, share: float) -> Iterator[tuple[int, int]]:
    """(Layer of the template, bytes of saved tensors that came) up to a share of a node's duration."""
    if isinstance(node, UnitsBegin):
        (one,) = node.whole.passes
        yield from _changes(one, node.first, node.last)
        return
    if len(node.passes) > 1 and share == 1.0:  # repeated passes leave nothing behind
        return
    passes, within = list(node.instants_ns()), share * node.repeats
    at_ns = (within - min(int(within), node.repeats - 1)) * float(passes[-1][1][-1])
    for one, instants in passes:
        yield from _changes(one, 0, int(np.searchsorted(instants, at_ns, side="right")) - 1)


def _changes(one: UnitPass, first: int, last: int) -> Iterator[tuple[int, int]]:
    """(Layer, bytes) that come as a pass enters its units number ``first`` to ``last``; the last one is its end.

    A forward saves a unit's tensors as it enters it, a backward frees them as it leaves it.
    """
    if one.kind == "input_gradient":
        return
    if one.kind in BACKWARDS:
        yield from ((unit.layer, -round(unit.saved_bytes)) for unit in one.units[max(first - 1, 0) : max(last, 0)])
    else:
        yield from ((unit.layer, round(unit.saved_bytes)) for unit in one.units[first : last + 1])


def weights_by_layer(
    builder: ActionBuilder, pipeline_rank: int, static: StaticMemory
) -> dict[tuple[str, str, str], dict[int, float]]:
    """Bytes of the terms of a rank's weights by layer; a term is (category, name, when it is alive).

    Every term is shared out in the proportion in which blocks alone would have it: shards end anywhere in a layer, and
    a table that embedding and head share is half in each.
    """
    pieces = builder.held(pipeline_rank)
    result: dict[tuple[str, str, str], dict[int, float]] = {}
    of_block = {id(piece.block): piece for piece in pieces}  # layers share blocks
    terms = {block: _terms_alone(builder, piece) for block, piece in of_block.items()}
    alone = [terms[id(piece.block)] for piece in pieces]
    for term in static.terms:
        size = float(np.sum(term.size_bytes))
        if term.category not in WEIGHTS or not size:
            continue
        by_layer: defaultdict[int, float] = defaultdict(float)
        for piece, own in zip(pieces, alone, strict=True):
            by_layer[piece.layer] += own.get(_key(term), 0.0) if own else _parameters(builder, piece)
        if total := sum(by_layer.values()):
            result[_key(term)] = {layer: size * own / total for layer, own in by_layer.items() if own}
    return result


def _key(term: Term) -> tuple[str, str, str]:
    return term.category, term.name, term.alive


def _terms_alone(builder: ActionBuilder, piece: StageBlock) -> dict[tuple[str, str, str], float]:
    """Bytes of the terms of a rank that holds one block only; none where operators have roles of their own."""
    if not isinstance(builder, StageBuilder):
        return {}
    job = builder.job
    first, last = (int(piece.block is end) for end in (job.graph.embedding, job.graph.head))
    held = HeldBlocks(((piece.block, 1),), first, last, builder.shared_blocks, job.num_microbatches)
    terms = held_memory(job.graph, held, builder.view.tensor, job.layout, job.stack, job.kernels.device).terms
    return {_key(term): float(np.sum(term.size_bytes)) for term in terms}


def _parameters(builder: ActionBuilder, piece: StageBlock) -> float:
    return sum(builder.unit(piece).parameters.values())
