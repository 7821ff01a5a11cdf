"""Mamba-2 in torch: a causal convolution, the scan in chunks, and a norm by groups.

The scan carries a state of head_dim x state elements a head along the sequence: h_t = exp(d_t a) h_(t-1) + d_t x_t b_t
and y_t = c_t h_t + skip x_t, with time steps d_t = softplus(step + bias) and a = -exp(decay); b and c are a group's.
Inside a chunk that is a masked product like attention's, between chunks one step a chunk [Dao and Gu 2024, arXiv
2405.21060, section 6]. Steps and sums of decays are computed in fp32 or wider. Tensor-parallel ranks have the heads of
some groups each (section 8.1 there); vectors and the convolution are whole on every rank, which uses its part.
Documents that are kept apart begin with a state of zero, and with zeros before their first token in the convolution.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from simpar.architectures.graph import Operator
from simpar.runtime.boundaries import by_document

MIXER_NORM = "mixer_norm"
DECAYS, STEP_DECADES = (1.0, 16.0), (-3.0, -1.0)
"""Ranges of initial values, drawn uniformly, of -a and of the decimal logarithm of softplus(bias) [released code]."""


class OfHeads(nn.Module):
    """A module with parameters of all heads, of which a rank uses those of its own: ``part`` is (rank, ranks)."""

    part = (0, 1)

    def own(self, whole: Tensor) -> Tensor:
        """The rank's part of a tensor, along its first dim."""
        rank, ranks = self.part
        return whole.chunk(ranks)[rank] if ranks > 1 else whole


class Convolution(OfHeads):
    """A causal convolution of every feature of inputs, keys and queries over ``conv`` tokens, then SiLU."""

    def __init__(self, dims: Mapping[str, int]) -> None:
        super().__init__()
        inner, shared = dims["mamba_heads"] * dims["mamba_head_dim"], dims["mamba_groups"] * dims["state"]
        self.sizes = (inner, shared, shared)
        self.weight = nn.Parameter(torch.empty(sum(self.sizes), dims["conv"]))
        self.bias = nn.Parameter(torch.empty(sum(self.sizes)))

    def forward(self, projected: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Gates, inputs, b, c and steps [batch, seq, features] to the last four."""
        _, *mixed, steps = projected
        x = torch.cat(mixed, dim=-1).transpose(1, 2)
        weight, bias = (torch.cat([self.own(each) for each in p.split(self.sizes)]) for p in (self.weight, self.bias))
        features, width = weight.shape
        kernel = weight.to(x.dtype).unsqueeze(1)
        shift = bias.to(x.dtype)

        def convolved(part: Tensor) -> Tensor:
            return functional.conv1d(functional.pad(part, (width - 1, 0)), kernel, shift, groups=features)

        y = by_document(convolved, x, dim=2)
        sizes = [size // self.part[1] for size in self.sizes]
        return *functional.silu(y.transpose(1, 2)).split(sizes, dim=-1), steps


class Scan(OfHeads):
    """The state-space scan with its three vectors of parameters."""

    def __init__(self, dims: Mapping[str, int], limits: tuple[float, float | None]) -> None:
        super().__init__()
        self.limits = limits
        self.heads, self.groups, self.chunk = dims["mamba_heads"], dims["mamba_groups"], dims["chunk"]
        self.decay, self.skip, self.step_bias = (nn.Parameter(torch.empty(self.heads)) for _ in range(3))

    def forward(self, mixed: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """Inputs [batch, seq, heads x head_dim], b and c [batch, seq, groups x state], steps [batch, seq, heads]."""
        x, b, c, steps = mixed
        wide = torch.promote_types(x.dtype, torch.float32)
        decay, skip, step_bias = (self.own(each).to(wide) for each in (self.decay, self.skip, self.step_bias))
        size = functional.softplus(steps.to(wide) + step_bias)
        size = size.clamp(*self.limits)
        ranks = self.part[1]
        heads = x.unflatten(-1, (self.heads // ranks, -1)).to(wide)
        by_group = [each.unflatten(-1, (self.groups // ranks, -1)).to(wide) for each in (b, c)]
        falling = -torch.exp(decay)
        y = by_document(
            lambda x, size, b, c: scan(x, size, falling, b, c, chunk=self.chunk), heads, size, *by_group, dim=1
        )
        return (y + heads * skip[:, None]).flatten(-2).to(x.dtype)


def scan(x: Tensor, size: Tensor, decay: Tensor, b: Tensor, c: Tensor, *, chunk: int) -> Tensor:
    """Outputs [batch, seq, heads, head_dim] of inputs of that shape, in chunks of ``chunk`` tokens.

    ``size`` are the time steps d [batch, seq, heads], ``decay`` is a [heads], ``b`` and ``c`` are [batch, seq, groups,
    state].
    """
    length, copies = x.shape[1], x.shape[2] // b.shape[2]
    x = x * size.unsqueeze(-1)
    x, rates, b, c = (_chunks(each, min(chunk, length)) for each in (x, size * decay, b, c))
    total = rates.cumsum(dim=2)  # [batch, chunks, tokens, heads]
    here = total.transpose(2, 3)
    # y_t = sum of s <= t: (c_t . b_s) exp(L_t - L_s) d_s x_s + exp(L_t) c_t h, h: the state before the chunk
    # next h = exp(L_end) h + sum of s: exp(L_end - L_s) d_s x_s b_s, with L the cumulated d_t a
    fading = here.unsqueeze(-1) - here.unsqueeze(-2)  # [batch, chunks, heads, to, from]
    later = torch.ones(fading.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    fading = torch.exp(fading.masked_fill(later, float("-inf")))
    scores = torch.einsum("bktgn,bksgn->bkgts", c, b).repeat_interleave(copies, dim=2)
    y = torch.einsum("bkhts,bkshp->bkthp", scores * fading, x)

    b, c = (each.repeat_interleave(copies, dim=3) for each in (b, c))
    left = torch.exp(total[:, :, -1:] - total)
    made = torch.einsum("bkshn,bkshp->bkhpn", b * left.unsqueeze(-1), x)
    kept = torch.exp(total[:, :, -1])
    state, before = torch.zeros_like(made[:, 0]), []
    for index in range(made.shape[1]):
        before.append(state)
        state = state * kept[:, index, :, None, None] + made[:, index]
    carried = torch.einsum("bkthn,bkhpn->bkthp", c * torch.exp(total).unsqueeze(-1), torch.stack(before, dim=1))
    return (y + carried).flatten(1, 2)[:, :length]


def _chunks(tensor: Tensor, chunk: int) -> Tensor:
    """Shape [batch, seq, ...] to [batch, chunks, chunk, ...], padded with zeros, which add nothing and do not decay."""
    missing = -tensor.shape[1] % chunk
    padded = functional.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, missing))
    return padded.unflatten(1, (-1, chunk))


class Gate(nn.Module):
    """The scan's result times SiLU of the gates."""

    def forward(self, projected: tuple[Tensor, ...], scanned: Tensor) -> Tensor:
        """Shape [batch, seq, heads x head_dim]."""
        return scanned * functional.silu(projected[0])


class GroupNorm(OfHeads):
    """RMSNorm of the features of every group."""

    def __init__(self, dims: Mapping[str, int], eps: float) -> None:
        super().__init__()
        self.groups, self.eps = dims["mamba_groups"], eps
        self.weight = nn.Parameter(torch.empty(dims["mamba_heads"] * dims["mamba_head_dim"]))

    def forward(self, x: Tensor) -> Tensor:
        """Shape [batch, seq, heads x head_dim] in and out."""
        split = x.unflatten(-1, (self.groups // self.part[1], -1))
        weight = self.own(self.weight).to(x.dtype)
        return functional.rms_norm(split, split.shape[-1:], None, self.eps).flatten(-2) * weight


def makers(dims: Mapping[str, int], limits: tuple[float, float | None]) -> dict[str, Callable[[Operator], nn.Module]]:
    """The makers of the operators that only a mixer has; time steps stay within ``limits``."""
    return {"convolution": lambda _: Convolution(dims), "scan": lambda _: Scan(dims, limits), "gate": lambda _: Gate()}


def initial(name: str, shape: tuple[int, ...], uniform: Callable[[float, float], Tensor]) -> Tensor | None:
    """The initial value of a mixer's parameter of a whole ``shape``; None for other parameters, and for the skip (one).

    ``uniform`` draws the wanted part uniformly between two numbers, fp32.
    """
    if name.endswith("scan.decay"):
        return uniform(*DECAYS).log()
    if name.endswith("scan.step_bias"):
        size = 10.0 ** uniform(*STEP_DECADES)
        return size + torch.log(-torch.expm1(-size))  # the inverse of softplus
    if name.endswith("conv.weight"):
        bound = shape[-1] ** -0.5
        return uniform(-bound, bound)
    return None
