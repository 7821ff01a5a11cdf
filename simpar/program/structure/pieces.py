"""Pieces of a pipeline: the blocks of every virtual stage, each with its place in the model."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from simpar.architectures import recompute
from simpar.architectures.graph import Block
from simpar.dataclass import dataclass
from simpar.program.job import TrainingJob
from simpar.program.structure.receiving import receiving

EMBEDDING_LAYER = -1


@dataclass(frozen=True)
class StageBlock:
    """One block of a stage: its position in the model and whether its activations are recomputed."""

    layer: int
    block: Block
    recompute: str

    @property
    def kind(self) -> tuple[str, str]:
        """Block and recomputation: pieces with the same kind do and hold the same."""
        return self.block.name, self.recompute


def has_no_backward(pieces: Sequence[StageBlock]) -> bool:
    """Whether a stage runs nothing backward and receives no gradients: all its blocks lie before everything trained."""
    return bool(pieces) and all(piece.block.has_no_backward for piece in pieces)


def virtual_stage_pieces(job: TrainingJob) -> tuple[tuple[StageBlock, ...], ...]:
    """Blocks of every virtual stage in model order: embedding first, head (norm, lm_head, loss) last.

    An encoder in the bubbles is a stage before that of the embedding: only what it makes comes from its rank.
    """
    graph, own = job.graph, job.layout.stages
    counts, encoder = job.layout.stage_layers(len(graph.layers)), job.layout.encoder_layers
    counts, first = ((encoder, *counts), 1) if encoder else (counts, 0)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    stages = []
    for stage, (begin, end) in enumerate(pairwise(bounds.tolist())):
        policy = own[stage].recompute if own else job.layout.recompute
        pieces = [
            StageBlock(layer, graph.blocks[graph.layers[layer]], recompute.of_layer(policy, layer))
            for layer in range(begin, end)
        ]
        if graph.facts.get("reads_passed") and 0 < begin < end:
            pieces[0] = replace(pieces[0], block=receiving(pieces[0].block, graph.blocks[graph.layers[begin - 1]]))
        if stage == first:
            pieces.insert(0, StageBlock(EMBEDDING_LAYER, graph.embedding, "none"))
        if stage == len(counts) - 1:
            pieces.append(StageBlock(len(graph.layers), graph.head, "none"))
        stages.append(tuple(pieces))
    return tuple(stages)
