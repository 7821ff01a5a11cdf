"""Kernel times of a Mamba-2 mixer's own operators: the short convolution, the chunked scan and its gate.

The scan runs as the kernels of its authors do (mamba-ssm, ``mamba_split_conv1d_scan_combined``), one after the other
through memory: cumulative decays, C B^T of every chunk, the state that a chunk adds, the pass of states from chunk to
chunk, and the output. Per token, with H heads of width P, N state elements, G groups and chunks of Q tokens [Dao and Gu
2024, arXiv 2405.21060, section 6]:

| | products, multiply-adds | moved between kernels |
|---|---|---|
| forward | 2 HPN + HPQ/2 + GQN | 3 HP, 4 GN; of states HPN/Q two in fp32, two in activations; GQ twice in fp32 |
| backward | 5 HPN + 3 HPQ/2 + 3 GQN | 11 HP, 12 GN; of states two in fp32, eight in activations; GQ six times |

Backward computes states, C B^T and the convolution again. A causal Q x Q piece is half empty.
"""

import numpy as np

from simpar.architectures.graph import Dims
from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.units import DTYPE_BYTES, Numbers

_FLOAT = DTYPE_BYTES["fp32"]
_STEPS = 6
"""How often a head's steps and decays, in fp32, are written or read."""


@dataclass(frozen=True)
class _Pass:
    """Counts of one direction, as in the table above; ``efficiency`` is the parameter with the products' share of peak.

    Products: ``states`` x HPN + ``pieces`` x (HPQ/2 + GQN). Traffic: ``inner`` x HP, ``shared`` x GN, ``wide_states``
    and ``narrow_states`` x HPN/Q in fp32 and in activations, ``scores`` x GQ.
    """

    efficiency: str
    states: float
    pieces: float
    inner: float
    shared: float
    wide_states: float
    narrow_states: float
    scores: float
    kernels: int


FORWARD = _Pass("scan_forward_efficiency", 2, 1, 3, 4, wide_states=2, narrow_states=2, scores=2, kernels=5)
BACKWARD = _Pass("scan_backward_efficiency", 5, 3, 11, 12, wide_states=2, narrow_states=8, scores=6, kernels=13)


def scan_time_s(dims: Dims, kernels: KernelModel, counts: _Pass) -> Numbers:
    """Seconds of the scan in one direction for ``dims`` of one rank: products and traffic of kernels in a row."""
    inner = dims["mamba_heads"] * dims["mamba_head_dim"]
    shared, chunk = dims["mamba_groups"] * dims["state"], np.minimum(dims["chunk"], dims["seq"])
    states, scores = inner * dims["state"], dims["mamba_groups"] * chunk
    flop = 2.0 * (counts.states * states + counts.pieces * (inner * chunk / 2 + shared * chunk))
    moved = (
        kernels.activation_bytes * (counts.inner * inner + counts.shared * shared)
        + (_FLOAT * counts.wide_states + kernels.activation_bytes * counts.narrow_states) * states / chunk
        + _FLOAT * (counts.scores * scores + _STEPS * dims["mamba_heads"])
    )
    tokens = np.asarray(dims["batch"] * dims["seq"], dtype=np.float64)
    rate = kernels.rate(kernels.activation_dtype) * kernels.parameters[counts.efficiency]
    return tokens * flop / rate + kernels.memory_time_s(tokens * moved, kernels=counts.kernels)
