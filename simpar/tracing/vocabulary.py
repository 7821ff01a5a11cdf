"""ATen operators by their cost: none, a pass over memory, a product. Operators in no list are refused."""

from math import isinf
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEWS = _words(
    """
    view reshape reshape_as _unsafe_view transpose permute t unsqueeze squeeze expand expand_as flatten unflatten slice
    select split split_with_sizes chunk unbind getitem detach detach_ alias contiguous to _to_copy type_as
    clone lift_fresh_copy narrow view_as movedim swapaxes swapdims numpy_T mT tensor_split
    _assert_tensor_metadata sym_size view_as_complex view_as_real _conj resolve_conj resolve_neg lift_fresh
    repeat_interleave repeat broadcast_to float half bfloat16 empty_like zeros_like ones_like full_like
    new_zeros new_ones new_empty new_full numel dim size diagonal adjoint _reshape_alias unsafe_split
    unsafe_chunk identity topk sort unfold as_strided
    """
)
"""Views of the same elements, and casts and copies that compilers fold into their neighbours."""

FILLED = _words("empty_like zeros_like ones_like full_like new_zeros new_ones new_empty new_full")
"""Those of them that make a tensor of one value, of whose argument they read the size."""

POINTWISE = _words(
    """
    add sub rsub mul multiply subtract divide div neg pow rsqrt sqrt square reciprocal exp log log1p log2
    tanh sigmoid silu gelu relu relu6 leaky_relu elu celu selu softplus hardswish hardsigmoid hardtanh
    mish erf abs sign clamp clamp_min clamp_max where masked_fill maximum minimum max min sin cos addcmul
    addcdiv lerp softmax _softmax log_softmax mean sum var std var_mean std_mean amax amin prod cumsum
    glu logsigmoid prelu threshold uniform
    floor round remainder fmod atan2 bernoulli eq ne lt le gt ge logical_and logical_or logical_not
    bitwise_and bitwise_or bitwise_not __and__ __or__ nan_to_num rand_like randn_like logit expm1 softsign
    linalg_vector_norm norm div_ complex polar real imag logsumexp log_sigmoid cumprod logcumsumexp heaviside
    """
)
"""Elementwise passes over memory; neighbours in one module run as one pass."""

COPIES = _words(
    """
    cat stack concat concatenate index index_select gather roll pad constant_pad_nd flip tril triu scatter index_put
    pixel_shuffle pixel_unshuffle avg_pool1d avg_pool2d max_pool1d max_pool2d adaptive_avg_pool1d
    adaptive_avg_pool2d upsample_nearest2d upsample_bilinear2d upsample_bicubic2d im2col one_hot argmax
    argmin copy
    """
)
"""Elements read and written once."""

PRODUCTS = _words("linear addmm mm matmul conv1d conv2d conv3d bmm baddbmm linalg_solve_triangular")
SORTS = frozenset(["topk", "sort"])
"""Calls with several results that look at one tensor: each result that is read is a copy."""
GROUPED = frozenset(["grouped_mm_fallback", "_grouped_mm", "grouped_mm"])
"""Grouped products of torch, and the one that transformers falls back on where torch has none."""
SUMS_OF_PRODUCTS = frozenset(["einsum", "tensordot", "inner", "outer", "kron", "bilinear"])
"""Operators that are recorded as the products that they are made of."""
RECURRENCES = frozenset(["gated_delta", "channel_delta", "lightning", "scan", "selective_scan"])
CONVOLUTION = "convolution"
"""Fused kernels that are recorded whole: passes over the sequence, and a short causal convolution of every channel."""
NORMS = frozenset(["layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm", "native_layer_norm"])
LOSSES = frozenset(["cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d"])
DROPOUTS = frozenset(["dropout", "feature_dropout", "alpha_dropout"])
ATTENTION = "scaled_dot_product_attention"
REDUCTIONS = frozenset(["mean", "sum", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm"])
ROOTS = frozenset(["rsqrt", "sqrt", "pow", "std", "std_mean", "linalg_vector_norm", "norm"])
NONLINEAR = _words(
    """
    pow rsqrt sqrt square exp log tanh sigmoid silu gelu relu relu6 leaky_relu elu celu selu softplus
    hardswish hardsigmoid hardtanh mish erf abs clamp clamp_min clamp_max softmax _softmax log_softmax glu
    logsigmoid log_sigmoid logsumexp prelu threshold sin cos
    """
)


SCAN = "elementwise_scan"
"""A pass over a sequence whose state has as many channels as the values."""
LIMITS = frozenset(["clamp", "clamp_min", "clamp_max"])


def is_unlimited(op: str, args: tuple[Any, ...]) -> bool:
    """Whether a call limits its tensor to numbers that are infinite, which costs nothing."""
    numbers = [each for each in args[1:] if each is not None]
    infinite = [isinstance(each, float) and isinf(each) for each in numbers]
    return base(op) in LIMITS and bool(numbers) and all(infinite)


def base(op: str) -> str:
    """The name of an operator without the underscore of its in-place variant."""
    return op[:-1] if op.endswith("_") and not op.endswith("__") else op


def is_known(op: str) -> bool:
    """Whether an operator is in one of the lists."""
    name = base(op)
    listed = (VIEWS, POINTWISE, COPIES, PRODUCTS, GROUPED, NORMS, LOSSES, DROPOUTS)
    whole = (ATTENTION, CONVOLUTION, SCAN, *RECURRENCES, "embedding", "placeholder")
    return name in whole or any(name in each for each in listed)
