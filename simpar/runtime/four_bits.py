"""Frozen matrices in 4 bits with doubly quantised scales, as QLoRA keeps them [Dettmers et al. 2023, arXiv 2305.14314].

64 neighbours of a matrix, row by row, are multiples of the largest of them, by 16 quantiles of a normal distribution
(NF4, appendix E). The scales, less their mean, are kept 256 at a time in 8 bits, as multiples of the largest of them by
the numbers of a dynamic exponent [Dettmers 2016, arXiv 1511.04561]: 4.127 bits an element. bitsandbytes has the same
bytes (``tests/runtime/test_four_bits.py``), and widens them on CUDA; elsewhere plain torch does.

A product widens its matrix, and its backward widens it again: nothing wide is kept between them.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from simpar.errors import UserError

BLOCK, SCALES = 64, 256
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
EXPONENTS = 7
CHUNK_BLOCKS = 1 << 14
"""Blocks that are widened at once, which limits what comes and goes beside a matrix: 4 MiB of fp32."""


@cache
def dynamic_map() -> Tensor:
    """The 256 numbers of 8 bits with a sign, up to seven bits of exponent in unary, and a linear fraction, sorted."""
    result = [0.0, 1.0]
    for exponent in range(EXPONENTS):
        edges = torch.linspace(0.1, 1.0, 2**exponent + 1, dtype=torch.float32)
        middles = 10.0 ** (exponent + 1 - EXPONENTS) * (edges[:-1] + edges[1:]) / 2.0
        result += [*middles.tolist(), *(-middles).tolist()]
    return torch.tensor(sorted(result), dtype=torch.float32)


def nearest(values: Tensor, levels: Tensor) -> Tensor:
    """Indices, uint8, of the sorted ``levels`` that are nearest to values of any shape."""
    middles = (levels[1:] + levels[:-1]) / 2.0
    return torch.bucketize(values, middles.to(values.device)).to(torch.uint8)


class FourBitMatrix(nn.Module):
    """A matrix of a ``shape`` in 4 bits; its tensors are buffers, which nothing trains."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.shape = torch.Size(shape)
        blocks = -(-math.prod(shape) // BLOCK)
        self.register_buffer("codes", torch.empty(blocks * BLOCK // 2, dtype=torch.uint8))
        self.register_buffer("scales", torch.empty(blocks, dtype=torch.uint8))
        self.register_buffer("largest_scales", torch.empty(-(-blocks // SCALES), dtype=torch.float32))
        self.register_buffer("mean_scale", torch.empty((), dtype=torch.float32))

    @torch.no_grad()
    def fill(self, values: Tensor) -> None:
        """Round a matrix of the shape to 4 bits."""
        values = values.to(self.codes.device)
        padded = functional.pad(values.flatten().float(), (0, self.scales.numel() * BLOCK - values.numel()))
        blocks = padded.view(-1, BLOCK)
        scales = blocks.abs().amax(dim=1)
        parts = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        codes = nearest(parts, torch.tensor(NF4)).view(-1, 2)
        self.codes.copy_(codes[:, 0] * len(NF4) + codes[:, 1])
        self.mean_scale.copy_(scales.mean())
        left = scales - self.mean_scale.to(scales.device)
        rows = functional.pad(left, (0, self.largest_scales.numel() * SCALES - left.numel())).view(-1, SCALES)
        largest = rows.abs().amax(dim=1)
        self.largest_scales.copy_(largest)
        rows = rows / largest.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
        self.scales.copy_(nearest(rows, dynamic_map()).flatten()[: scales.numel()])

    def block_scales(self) -> Tensor:
        """The scale of every block: fp32[blocks]."""
        parts = dynamic_map().to(self.scales.device).index_select(0, self.scales.int())
        largest = self.largest_scales.repeat_interleave(SCALES)[: parts.numel()]
        return parts * largest + self.mean_scale

    @torch.no_grad()
    def widened(self, dtype: Any) -> Tensor:
        """The matrix in a dtype, as products read it."""
        scales = self.block_scales()
        if self.codes.is_cuda:
            return _widened_by_kernel(self, scales, dtype)
        levels = torch.tensor(NF4)
        pairs = torch.stack((levels.repeat_interleave(len(NF4)), levels.repeat(len(NF4))), dim=1)
        result = torch.empty(scales.numel(), BLOCK, dtype=dtype)
        codes = self.codes.view(-1, BLOCK // 2)
        for start in range(0, scales.numel(), CHUNK_BLOCKS):
            here = slice(start, start + CHUNK_BLOCKS)
            parts = pairs.index_select(0, codes[here].flatten().int()).view(-1, BLOCK)
            result[here] = parts * scales[here, None]
        return result.flatten()[: self.shape.numel()].view(self.shape)


def _widened_by_kernel(matrix: FourBitMatrix, scales: Tensor, dtype: Any) -> Tensor:
    """The matrix by bitsandbytes' kernel, from the same bytes."""
    importlib.import_module("bitsandbytes")  # registers the operator
    kernel: Any = torch.ops.bitsandbytes.dequantize_4bit.default
    result: Tensor = kernel(matrix.codes.unsqueeze(1), scales, BLOCK, "nf4", list(matrix.shape), dtype)
    return result


class FourBitProduct(torch.autograd.Function):
    """The product of inputs [..., in] with a matrix in 4 bits [out, in], which is widened in either direction."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: FourBitMatrix) -> Tensor:
        """Shape [..., in] to [..., out]."""
        ctx.matrix = matrix
        return functional.linear(x, matrix.widened(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Shape [..., out] to [..., in]; frozen matrices have no gradient."""
        (gradient,) = gradients
        return gradient @ ctx.matrix.widened(gradient.dtype), None


def values_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Parameters of a module by name, and its matrices in 4 bits by the names that their parameters would have."""
    named = dict(module.named_parameters())
    for prefix, each in module.named_modules():
        if isinstance(each, FourBitMatrix):
            yield f"{prefix.rpartition('.')[0]}.weight", each
        for leaf, _ in each.named_parameters(recurse=False):
            if (name := f"{prefix}.{leaf}".removeprefix(".")) in named:
                yield name, named[name]


def check_device(device: Any) -> None:
    """Raise UserError where the kernels of a device are missing."""
    if device.type == "cuda" and importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            "plan.frozen_dtype = nf4: bitsandbytes, which widens 4 bits on CUDA, is not installed: pip install "
            "bitsandbytes; allowed: bf16"
        )
