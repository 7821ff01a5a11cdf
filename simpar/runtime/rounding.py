"""Updates of parameters that are kept in 16 bits: computed in fp32, tensor by tensor, and rounded once.

To the nearest, an update below 2^-9 of a bf16 parameter is lost. At random, up with the probability of the part that is
cut off, it is there on average [Gupta et al. 2015, arXiv 1502.02551, section 2.1]. The random bits are hashes of seed,
step, name and place in the whole tensor, so that replicas round alike, and shards as the whole would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import torch
from torch import Tensor, nn

from simpar.dataclass import dataclass
from simpar.runtime.initial import Draws, Part

CUT_BITS = 16
"""Bits of an fp32 that a bf16 lacks."""


@dataclass(frozen=True)
class PlacedName:
    """A parameter's name, whole shape, and the part of it that a rank has."""

    name: str
    shape: tuple[int, ...]
    part: Part


@dataclass
class Rounding:
    """How a rank rounds in its present ``step``: with bits by ``seed``, or to the nearest if that is None.

    ``places`` are those of local parameters.
    """

    seed: int | None
    places: Mapping[Any, PlacedName] = field(default_factory=dict)
    step: int = 0

    def write(self, values: Tensor, target: Tensor, parameter: Any, what: str = "") -> None:
        """Write fp32 values into a tensor of a local parameter: itself, or ``what`` the optimizer keeps beside it."""
        if self.seed is None or target.dtype != torch.bfloat16:
            target.copy_(values)
            return
        place = self.places[parameter]
        digest = hashlib.blake2b(f"{self.seed} {self.step} {place.name} {what}".encode(), digest_size=8).digest()
        draws = Draws(int.from_bytes(digest, "little"), place.shape, place.part, values.device)
        target.copy_(rounded_at_random(values, draws))


def rounded_at_random(values: Tensor, draws: Draws) -> Tensor:
    """Values in fp32, each one of its two neighbours in bf16; what is not finite, and what bf16 has, stays."""
    whole = values.contiguous().clone()
    bits, start = whole.view(torch.int32).view(-1), 0
    for drawn in draws.bits(CUT_BITS):
        bits[start : start + len(drawn)] += drawn.int()  # carries into the bits that are kept, or not
        start += len(drawn)
    bits &= -(1 << CUT_BITS)
    return torch.where(values.isfinite(), whole, values)


class InSixteenBits(torch.optim.Optimizer):
    """An optimizer of class ``kind`` for parameters in 16 bits, whose steps are in fp32.

    One tensor at a time is widened, with its gradient and with what of its ``states`` is kept in ``kept_dtype``.
    """

    def __init__(
        self, params: Any, *, kind: Any, rounding: Rounding, states: Sequence[str], kept_dtype: Any, **options: Any
    ) -> None:
        super().__init__(params, options)
        self.rounding, self.names, self.kept_dtype = rounding, tuple(states), kept_dtype
        self.inner: dict[Any, tuple[nn.Parameter, Any]] = {}
        for group in self.param_groups:
            for each in group["params"]:
                wide = nn.Parameter(torch.empty(0, device=each.device))
                self.inner[each] = wide, kind([wide], **options)
                self.state[each] = self.inner[each][1].state[wide]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Update every parameter that has a gradient."""
        assert closure is None, "gradients are there already"
        for group in self.param_groups:
            options = {name: value for name, value in group.items() if name != "params"}
            for each in group["params"]:
                if each.grad is not None:
                    self._update(each, options)

    def _update(self, parameter: Any, options: Mapping[str, Any]) -> None:
        wide, inner = self.inner[parameter]
        state = self.state[parameter]
        inner.param_groups[0].update(options)
        wide.data, wide.grad = parameter.detach().float(), parameter.grad.float()
        for name in self.names:
            if state.get(name) is not None:
                state[name] = state[name].float()
        inner.step()
        self.rounding.write(wide.data, parameter, parameter)
        for name in self.names:
            if state.get(name) is not None and self.kept_dtype != torch.float32:
                narrow = torch.empty_like(state[name], dtype=self.kept_dtype)
                self.rounding.write(state[name], narrow, parameter, name)
                state[name] = narrow
        wide.data, wide.grad = torch.empty(0, device=parameter.device), None
