"""Mamba-2 in torch: a causal convolution, the scan in chunks, and a norm by groups.

The scan carries a state of head_dim x state elements a head along the sequence: h_t = exp(d_t a) h_(t-1) + d_t x_t b_t
and y_t = c_t h_t + skip x_t, with time steps d_t = softplus(step + bias) and a = -exp(decay); b and c are a group's.
Inside a chunk that is a masked product like attention's, between chunks one step a chunk [Dao and Gu 2024, arXiv
2405.21060, section 6]. Steps and sums of decays are computed in fp32 or wider. Tensor-parallel ranks have the heads of
some groups each (section 8.1 there); vectors and the convolution are whole on every rank, which uses its part. Context
ranks exchange tokens for heads (:mod:`simpar.runtime.state_heads`). Documents that are kept apart begin with a state of
zero, and with zeros before their first token in the convolution.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from simpar.architectures.graph import Operator
from simpar.runtime import state_heads
from simpar.runtime.boundaries import by_document
from simpar.runtime.context import ContextRank

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
    """A causal convolution of every feature of inputs, keys and queries over ``conv`` tokens, then SiLU.

    Under context parallelism, tokens are exchanged for heads before it.
    """

    def __init__(self, dims: Mapping[str, int], context: ContextRank) -> None:
        super().__init__()
        self.context, self.groups = context, dims["mamba_groups"]
        inner, shared = dims["mamba_heads"] * dims["mamba_head_dim"], dims["mamba_groups"] * dims["state"]
        self.sizes = (inner, shared, shared)
        self.weight = nn.Parameter(torch.empty(sum(self.sizes), dims["conv"]))
        self.bias = nn.Parameter(torch.empty(sum(self.sizes)))

    def forward(self, projected: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Gates, inputs, b, c and steps [batch, seq, features] to the last four and, if exchanged, the gates."""
        groups = self.groups // self.part[1]
        exchanged = self.context.cp > 1
        if exchanged:
            projected = state_heads.to_heads(projected, groups, self.context)
        gates, *mixed, steps = projected
        sizes = [each.shape[-1] for each in mixed]
        x = torch.cat(mixed, dim=-1).transpose(1, 2)
        weight, bias = (self._mine(parameter, groups) for parameter in (self.weight, self.bias))
        features, width = weight.shape
        kernel = weight.to(x.dtype).unsqueeze(1)
        shift = bias.to(x.dtype)

        def convolved(part: Tensor) -> Tensor:
            return functional.conv1d(functional.pad(part, (width - 1, 0)), kernel, shift, groups=features)

        y = by_document(convolved, x, dim=2)
        y = functional.silu(y.transpose(1, 2)).split(sizes, dim=-1)
        return (*y, steps, gates) if exchanged else (*y, steps)

    def _mine(self, parameter: Tensor, groups: int) -> Tensor:
        """What of a parameter belongs to the heads that this rank convolves, and to their groups."""
        inner, *shared = (self.own(each) for each in parameter.split(self.sizes))
        return torch.cat(
            [
                state_heads.of_rank(inner, self.context),
                *(state_heads.of_rank(each, self.context, groups) for each in shared),
            ]
        )


class Scan(OfHeads):
    """The state-space scan with its three vectors of parameters."""

    def __init__(self, dims: Mapping[str, int], limits: tuple[float, float | None], context: ContextRank) -> None:
        super().__init__()
        self.limits, self.context = limits, context
        self.heads, self.state, self.chunk = dims["mamba_heads"], dims["state"], dims["chunk"]
        self.decay, self.skip, self.step_bias = (nn.Parameter(torch.empty(self.heads)) for _ in range(3))

    def forward(self, mixed: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, Tensor]:
        """Inputs [batch, seq, heads x head_dim], b and c [batch, seq, groups x state], steps [batch, seq, heads].

        If they were exchanged, they come with gates, which are returned beside the result.
        """
        x, b, c, steps, *gates = mixed
        wide = torch.promote_types(x.dtype, torch.float32)
        decay, skip, step_bias = (
            state_heads.of_rank(self.own(each), self.context).to(wide)
            for each in (self.decay, self.skip, self.step_bias)
        )
        size = functional.softplus(steps.to(wide) + step_bias)
        size = size.clamp(*self.limits)
        heads = x.unflatten(-1, (len(skip), -1)).to(wide)
        by_group = [each.unflatten(-1, (-1, self.state)).to(wide) for each in (b, c)]
        falling = -torch.exp(decay)
        y = by_document(
            lambda x, size, b, c: scan(x, size, falling, b, c, chunk=self.chunk), heads, size, *by_group, dim=1
        )
        y = (y + heads * skip[:, None]).flatten(-2).to(x.dtype)
        return (y, *gates) if gates else y


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
    """The scan's result times SiLU of the gates.

    Results of some heads are exchanged for those of this rank's tokens: both factors where a norm reads whole groups of
    the product, else the product.
    """

    def __init__(self, context: ContextRank, *, normed: bool) -> None:
        super().__init__()
        self.context, self.normed = context, normed

    def forward(self, projected: tuple[Tensor, ...], scanned: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Shape [batch, seq, heads x head_dim]."""
        if isinstance(scanned, Tensor):
            return scanned * functional.silu(projected[0])
        result, gates = scanned
        if not self.normed:
            return state_heads.to_tokens(result * functional.silu(gates), self.context)
        result, gates = (state_heads.to_tokens(each, self.context) for each in (result, gates))
        return result * functional.silu(gates)


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


def makers(
    dims: Mapping[str, int], limits: tuple[float, float | None], context: ContextRank, *, normed: bool
) -> dict[str, Callable[[Operator], nn.Module]]:
    """The makers of the operators that only a mixer has; time steps stay within ``limits``.

    ``normed`` says whether a norm reads what the gate returns.
    """
    return {
        "convolution": lambda _: Convolution(dims, context),
        "scan": lambda _: Scan(dims, limits, context),
        "gate": lambda _: Gate(context, normed=normed),
    }


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
