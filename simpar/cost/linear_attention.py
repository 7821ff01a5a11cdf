"""Kernel times of linear attention's own operators: chunks of C tokens, heads with keys of K and values of V features.

They run as the kernels of flash-linear-attention do (fla/ops: gated_delta_rule, kda, lightning_attn), one after the
other through memory. Per token and head:

| | multiply-adds | elements moved between kernels |
|---|---|---|
| delta rule, forward | 3 KV + C (3 K + 2 V) + C^2/3 | 11 K + 6 V + 6 C + 2 KV/C |
| delta rule, backward | 8 KV + C (8 K + 5 V) + 2 C^2 | 26 K + 15 V + 2 C + 4 KV/C |
| decay by feature, besides | | 10 K forward, 12 K backward: decays in fp32 |
| lightning, forward | 2 KV + C (K + V) | 2 K + 2 V |
| lightning, backward | 5 KV + 3 C (K + V) | 6 K + 6 V |

Forward of the delta rule: norms of queries and keys, K K^T of a chunk, the inverse of its triangle, keys and values
behind it, the pass of states (two products with KV elements), and the output (one more) [Yang et al. 2024, arXiv
2412.06464, section 3.3]. Backward computes the keys, values and states again. Pieces are computed whole, above the
diagonal too. No published time of these kernels stands behind the share of peak that their products reach: it is that
of a state-space scan's forward kernels, in both directions.
"""

import numpy as np

from simpar.architectures.graph import Dims
from simpar.cost.kernels import KernelModel
from simpar.dataclass import dataclass
from simpar.units import Numbers


@dataclass(frozen=True)
class Direction:
    """Counts of one direction, as in the table above.

    Products: ``states`` x KV + C (``keys`` x K + ``values`` x V) + ``square`` x C^2. Traffic: ``moved_keys`` x K,
    ``moved_values`` x V, ``moved_pieces`` x C, ``moved_states`` x KV/C.
    """

    states: float
    keys: float
    values: float
    square: float
    moved_keys: float
    moved_values: float
    moved_pieces: float
    moved_states: float
    kernels: int


GATED_DELTA = (Direction(3, 3, 2, 1 / 3, 11, 6, 6, 2, kernels=8), Direction(8, 8, 5, 2, 26, 15, 2, 4, kernels=9))
CHANNEL_DELTA = (Direction(3, 3, 2, 1 / 3, 21, 6, 6, 2, kernels=8), Direction(8, 8, 5, 2, 38, 15, 2, 4, kernels=9))
LIGHTNING = (Direction(2, 1, 1, 0, 2, 2, 0, 0, kernels=1), Direction(5, 3, 3, 0, 6, 6, 0, 0, kernels=2))
DIRECTIONS = {"gated_delta": GATED_DELTA, "channel_delta": CHANNEL_DELTA, "lightning": LIGHTNING}
"""Forward and backward by kind of operator."""


def linear_attention_time_s(dims: Dims, kernels: KernelModel, counts: Direction) -> Numbers:
    """Seconds of one direction for ``dims`` of one rank: products and traffic of kernels in a row."""
    key, value = dims["linear_key_dim"], dims["linear_value_dim"]
    chunk = np.minimum(dims["chunk"], dims["seq"])
    products = counts.states * key * value + chunk * (counts.keys * key + counts.values * value)
    moved = counts.moved_keys * key + counts.moved_values * value + counts.moved_pieces * chunk
    rows = np.asarray(dims["batch"] * dims["seq"] * dims["linear_heads"], dtype=np.float64)
    rate = kernels.rate(kernels.activation_dtype) * kernels.parameters["scan_forward_efficiency"]
    moved_bytes = rows * (moved + counts.moved_states * key * value / chunk) * kernels.activation_bytes
    products_s = rows * 2.0 * (products + counts.square * chunk**2) / rate
    return products_s + kernels.memory_time_s(moved_bytes, kernels=counts.kernels)
