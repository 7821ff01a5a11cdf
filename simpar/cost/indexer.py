"""Kernel times of an indexer, which chooses the keys of every query, and of the loss that it learns from.

Forward, every query is scored against all earlier keys by the indexer's heads, and the scores, in fp32, are written,
read by a selection of the best, and read again; of a block of keys only the best score is. Its loss compares the scores
of the chosen keys with how all heads together attend to them, which takes their scores again; backward works on chosen
keys only [DeepSeek-AI 2025, arXiv 2512.02556, section 2.1.1, sparse training]. Products run at the share of peak of
attention's kernels: no published time of a training kernel stands behind that.
"""

from simpar.architectures.graph import Dims
from simpar.cost.kernels import KernelModel
from simpar.units import DTYPE_BYTES, Numbers

FORWARD_KERNELS, BACKWARD_KERNELS, LOSS_KERNELS = 4, 2, 2
SCORE_PASSES = 4
"""Times that a score is written or read: by the product, by a selection in two passes, by the loss."""


def score_time_s(dims: Dims, kernels: KernelModel) -> Numbers:
    """Seconds of scoring all earlier keys and choosing the best of them, for ``dims`` of one rank."""
    pairs = _rows(dims) * dims["context"] / dims["index_ratio"] / 2
    moved = SCORE_PASSES * DTYPE_BYTES["fp32"] * pairs * dims["index_rankings"] / dims["index_block"]
    products = pairs * dims["index_heads"] * dims["index_dim"]
    return _products_s(products, kernels) + kernels.memory_time_s(moved, kernels=FORWARD_KERNELS)


def gradient_time_s(dims: Dims, kernels: KernelModel, seen: Numbers) -> Numbers:
    """Seconds of the indexer's backward: scores of the ``seen`` keys again, gradients of queries and of keys."""
    products = 3 * _rows(dims) * seen * dims["index_heads"] * dims["index_dim"]
    return _products_s(products, kernels) + kernels.memory_time_s(0, kernels=BACKWARD_KERNELS)


def target_time_s(dims: Dims, kernels: KernelModel, seen: Numbers, key_dim: Numbers) -> Numbers:
    """Seconds of how a rank's heads, of ``key_dim`` features, attend to the ``seen`` keys, which it is to learn."""
    products = _rows(dims) * seen * dims["heads"] * key_dim
    return _products_s(products, kernels) + kernels.memory_time_s(0, kernels=LOSS_KERNELS)


def _rows(dims: Dims) -> Numbers:
    return dims["batch"] * dims["seq"] * 1.0


def _products_s(products: Numbers, kernels: KernelModel) -> Numbers:
    rate = kernels.rate(kernels.activation_dtype) * kernels.parameters["attention_forward_efficiency"]
    return 2.0 * products / rate
