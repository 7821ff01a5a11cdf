"""Documents of different lengths in sequences of one length: keys of attention, padding, and differences of ranks.

With lengths l (cut to the sequence of s tokens), packed sequences hold s / E[l] documents, and a token sits in one of
d = E[l^2] / E[l] tokens on average. Block-diagonal causal attention computes the sum of l^2 / 2 pairs, that is d / 2
keys per token instead of s / 2. The work of ranks differs by chance: over D documents it has a coefficient of variation
CV = sqrt(E[(l^2 - d l)^2] / D) / E[l^2] (documents fill a fixed number of tokens, so only the variation of l^2 beside
d l counts). The step waits for the fullest of N ranks, at 1 + CV times the expected maximum of N standard normals.
Padded sequences are computed in full: ranks are alike, and E[l] / s of the tokens are of use.
"""

from dataclasses import replace

import numpy as np

from simpar.architectures.graph import ModelGraph, Operator
from simpar.architectures.training import Documents, Training
from simpar.dataclass import dataclass
from simpar.units import Floats

QUANTILES = 4096


@dataclass(frozen=True)
class DocumentPacking:
    """Consequences of the distribution of lengths for a sequence.

    A token's document has ``document`` tokens on average, a sequence ``count`` documents; ``useful`` is the share of
    tokens that are no padding, ``variation`` the coefficient of variation of attention's work in one sequence.
    """

    document: float
    count: float
    useful: float
    variation: float


def lengths_of(documents: Documents, seq_len: int) -> Floats:
    """Equally likely lengths that represent the distribution: float64[n], cut to a sequence."""
    if documents.lengths:
        lengths = np.array(documents.lengths, dtype=np.float64)
    else:
        from statistics import NormalDist

        sigma = float(np.sqrt(np.log1p(documents.spread**2)))
        normal = NormalDist()
        draws = [normal.inv_cdf((k + 0.5) / QUANTILES) for k in range(QUANTILES)]
        lengths = float(documents.mean or 1) * np.exp(sigma * np.array(draws) - sigma**2 / 2)
    return np.minimum(np.maximum(lengths, 1.0), float(seq_len))


def packing_of(training: Training) -> DocumentPacking | None:
    """The packing of a training's documents; None where all sequences are single full documents."""
    if training.documents is None:
        return None
    lengths, seq = lengths_of(training.documents, training.seq_len), float(training.seq_len)
    first, second = float(lengths.mean()), float((lengths**2).mean())
    if training.documents.packing == "pad":
        return DocumentPacking(seq, 1.0, first / seq, 0.0)
    document, count = second / first, seq / first
    spread = float(((lengths**2 - document * lengths) ** 2).mean())
    return DocumentPacking(document, count, 1.0, float(np.sqrt(spread / count)) / second)


def with_documents(
    graph: ModelGraph, training: Training, sequences: float = np.inf, slowest: float = 0.0
) -> ModelGraph:
    """The model whose attention sees single documents, with the work of the fullest rank.

    A rank works on ``sequences`` per step; ``slowest`` is the expected maximum of as many standard normals as there
    are ranks. Attention to another tower's output, and chunked attention, stay as they are.
    """
    packed = packing_of(training)
    if packed is None or packed.count == 1.0:
        return graph
    seen = packed.document * (1.0 + slowest * packed.variation / float(np.sqrt(sequences)))
    blocks = {
        name: replace(block, operators=tuple(_masked(op, seen) for op in block.operators))
        for name, block in graph.blocks.items()
        if f"{block.scope}.seq" not in graph.dims
    }
    return replace(graph, blocks={**graph.blocks, **blocks})


def _masked(op: Operator, seen: float) -> Operator:
    mask = op.attention
    if mask is None or mask.context != "context":
        return op
    return replace(op, attention=replace(mask, document=seen))
