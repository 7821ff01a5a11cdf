"""Initial values of parameters: a pure function of seed, name and place in the whole tensor.

Numbers are drawn by counter, not from a stream: element i of a tensor is a hash of i under the tensor's key. So a rank
computes its part of a tensor alone, wherever its parameters are, with the same result in every layout.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from simpar.architectures.details import Details
from simpar.dataclass import dataclass
from simpar.runtime import mamba
from simpar.runtime.data import SPLITMIX

Part = tuple[slice, ...]
USUAL = Details()
GOLDEN = 0x9E3779B97F4A7C15
CHUNK = 1 << 15  # elements per thread and call, which fit its cache
DEVICE_CHUNK = 1 << 24
HALF_BITS = 32


@dataclass(frozen=True)
class Draws:
    """Random numbers for a ``part`` of a tensor of a whole ``shape``, by a 64-bit ``key``, on a device."""

    key: int
    shape: tuple[int, ...]
    part: Part
    device: Any

    @property
    def size(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(each.stop - each.start for each in self.part)

    def uniform(self, low: float, high: float) -> Tensor:
        """Uniform between two numbers: fp32 in the part's shape."""
        return self._made(lambda first, _: low + (high - low) * first)

    def normal(self, deviation: float) -> Tensor:
        """Normal around zero [Box and Muller 1958]: fp32 in the part's shape."""
        return self._made(
            lambda first, second: deviation * torch.sqrt(-2.0 * first.log()) * torch.cos(2.0 * math.pi * second)
        )

    def _made(self, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """A function of two uniform numbers in (0, 1] per element; fp64, so that rounding hides the split in chunks."""
        result = torch.empty(self.size, dtype=torch.float32, device=self.device)
        flat, start = result.view(-1), 0
        for bits in self.bits():
            pair = (_shifted(bits, HALF_BITS), bits & ((1 << HALF_BITS) - 1))
            first, second = (each.double().add_(1.0).mul_(2.0**-HALF_BITS) for each in pair)
            flat[start : start + len(bits)] = function(first, second)
            start += len(bits)
        return result

    def bits(self, count: int = 64) -> Iterator[Tensor]:
        """So many random bits for each element in order: int64[elements] per chunk."""
        for index in self._indices():
            mixed = mix_bits(index.mul_(_signed(GOLDEN)).add_(_signed(self.key)))
            yield mixed if count == 64 else _shifted(mixed, 64 - count)

    def _indices(self) -> Iterator[Tensor]:
        """Indices of the part's elements in the whole tensor, in order, from 1: int64[elements] per chunk."""
        inner, dim = 1, len(self.shape)
        while (
            dim > 1 and self.size[dim - 1] == self.shape[dim - 1]
        ):  # dims that are whole in this part form one contiguous piece
            dim -= 1
            inner *= self.shape[dim]
        total, on_host = math.prod(self.size), torch.device(self.device).type == "cpu"
        chunk = CHUNK * torch.get_num_threads() if on_host else DEVICE_CHUNK
        for begin in range(0, total, chunk):
            left = torch.arange(begin, min(begin + chunk, total), device=self.device)
            if dim <= 1:
                first = self.part[0].start * inner if dim else 0
                yield left.add_(first + 1)
                continue
            index, left, stride = left % inner + 1, left // inner, inner
            for size, part, whole in reversed(list(zip(self.size, self.part, self.shape, strict=True))[:dim]):
                index += (left % size + part.start) * stride
                left, stride = left // size, stride * whole
            yield index


def mix_bits(x: Tensor) -> Tensor:
    """A hash of 64 bits, int64 to int64 [splitmix64, Steele et al. 2014]."""
    x = _shifted(x, 30).bitwise_xor_(x).mul_(_signed(SPLITMIX[0]))
    x = _shifted(x, 27).bitwise_xor_(x).mul_(_signed(SPLITMIX[1]))
    return _shifted(x, 31).bitwise_xor_(x)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """A logical right shift of int64."""
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    """A 64-bit number reinterpreted as signed."""
    return number - (1 << 64) if number >> 63 else number


@torch.no_grad()
def initial_value(
    name: str,
    shape: tuple[int, ...],
    seed: int,
    details: Details = USUAL,
    *,
    part: Part | None = None,
    device: Any = "cpu",
) -> Tensor:
    """The initial value of a ``part`` (None: all) of a parameter, fp32.

    Norms start as factors of one, biases and the outer halves of adapters as zero, other matrices as normal.
    """
    here = part or tuple(slice(0, size) for size in shape)
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    draws = Draws(int.from_bytes(digest, "little"), shape, here, device)
    if name.endswith("lora_up"):
        return torch.zeros(draws.size, device=device)
    of_mixer = mamba.initial(name, shape, draws.uniform)
    if of_mixer is not None:
        return of_mixer
    if len(shape) == 1:
        value = 0.0 if name.endswith("bias") else 1.0 - details.norm_offset
        return torch.full(draws.size, value, device=device)
    return draws.normal(details.init_std)
