"""Operators of a block as torch modules, each with the parameters of its graph's weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional

from simpar.architectures.details import Details
from simpar.architectures.graph import Operator, evaluate
from simpar.runtime.attention import Place
from simpar.runtime.casts import cast
from simpar.runtime.four_bits import FourBitMatrix, FourBitProduct

SHARED_GATE = "shared_gate.weight"
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


class CastingLinear(nn.Linear):
    """A Linear whose product runs in the dtype of its input, whatever the dtype of its parameters.

    A frozen one may keep its matrix in 4 bits instead of as a parameter.
    """

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.four_bits: FourBitMatrix | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Shape [..., in] to [..., out]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.four_bits is not None:
            result: Tensor = FourBitProduct.apply(x, self.four_bits)
            return result if bias is None else result + bias
        return functional.linear(x, cast(self.weight, x.dtype), bias)

    def freeze_in_four_bits(self) -> None:
        """Keep the matrix in 4 bits from now on, without values yet."""
        self.four_bits = FourBitMatrix((self.out_features, self.in_features))
        self.register_parameter("weight", None)


class Projection(nn.Module):
    """A product with one or several outputs of the same input; one output is a tensor, several are a tuple.

    Its outputs may share the ``inner`` half of an adapter.
    """

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__()
        self.whole = op.region == "sequence"  # on every tensor-parallel rank
        width = int(evaluate(op.contraction, dims))
        columns = [int(evaluate(((1, names),), dims)) for times, names in op.columns for _ in range(times)]
        bias = any(weight.kind == "vector" and not weight.name.endswith(SHARED_GATE) for weight in op.weights)
        self.parts = nn.ModuleList(CastingLinear(width, size, bias=bias) for size in columns)
        self.inner: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Shape [batch, seq, in] to [batch, seq, out] for every output."""
        given = {} if self.inner is None else {"inner": self.inner(x)}
        outputs = tuple(part(x, **given) for part in self.parts)
        return outputs[0] if len(outputs) == 1 else outputs


class Joined(Projection):
    """The product of two inputs side by side: a hidden state and the embedding of a later token."""

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__(op, dims)
        self.whole = True

    def forward(self, state: Tensor, embedded: Tensor) -> Tensor:  # type: ignore[override]
        """Two of [batch, seq, hidden] to one."""
        return self.parts[0](torch.cat((state, embedded), dim=-1))


class GatedProjection(Projection):
    """The product into a shared expert, whose output is scaled by a score per token [Qwen2, arXiv 2407.10671].

    The score multiplies the second output, which is not activated: everything after it is linear in it.
    """

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__(op, dims)
        self.score = nn.Parameter(torch.empty(1, dims["hidden"]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shape [batch, seq, hidden] to two of [batch, seq, ffn]."""
        gate, up = super().forward(x)
        here = x.to_local(grad_placements=(Partial(),)) if isinstance(x, DTensor) else x
        return gate, up * torch.sigmoid(functional.linear(here, self.score.to(here.dtype)))


class NormLayer(nn.Module):
    """RMSNorm, or LayerNorm with a weight and a bias, with a weight only, or with neither."""

    def __init__(self, op: Operator, width: int, kind: str, details: Details) -> None:
        super().__init__()
        self.width, self.kind, self.eps, self.offset = (width,), kind, details.norm_eps, details.norm_offset
        names = [weight.name.rsplit(".", 1)[-1] for weight in op.weights]
        self.weight = nn.Parameter(torch.empty(width)) if "weight" in names else None
        self.bias = nn.Parameter(torch.empty(width)) if "bias" in names else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dim, in the dtype of ``x``."""
        weight = None if self.weight is None else _shifted(self.weight, self.offset).to(x.dtype)
        if self.kind == "rms":
            return functional.rms_norm(x, self.width, weight, self.eps)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.layer_norm(x, self.width, weight, bias, self.eps)


def _shifted(weight: Tensor, offset: float) -> Tensor:
    """The factor of a norm, whose parameter may be stored as its difference from one."""
    return weight + offset if offset else weight


class LatentNorm(NormLayer):
    """The norm of a latent that comes from one product together with a shared key."""

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """([batch, rows, kv_rank], the key) to the first's shape."""
        return super().forward(x[0])


class HeadNorm(nn.Module):
    """RMSNorm of queries and keys before attention: per head, or over all heads' features; some have no weights."""

    def __init__(self, op: Operator, dims: Mapping[str, int], details: Details) -> None:
        super().__init__()
        self.eps, self.offset = details.norm_eps, details.norm_offset
        per_head = all(names == ("head_dim",) for weight in op.weights[:1] for _, names in weight.size)
        self.head_dim = dims["head_dim"] if per_head else None
        for name, heads in (("query", dims["heads"]), ("key", dims["kv_heads"])):
            size = self.head_dim or heads * dims["head_dim"]
            self.register_parameter(name, nn.Parameter(torch.empty(size)) if op.weights else None)

    def forward(self, qkv: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes [batch, seq, heads x head_dim] in and out."""
        query, key, value = qkv
        return self._norm(query, self.query), self._norm(key, self.key), value

    def _norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        split = x if self.head_dim is None else x.unflatten(-1, (-1, self.head_dim))
        factor = None if weight is None else _shifted(weight, self.offset).to(x.dtype)
        normed = functional.rms_norm(split, split.shape[-1:], factor, self.eps)
        return normed.reshape(x.shape)


class Activation(nn.Module):
    """An activation or, with a gate, act(gate) x up."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = ACTIVATIONS[name]

    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Shape [batch, seq, ffn] in and out."""
        if isinstance(x, tuple):
            gate, up = x
            return self.function(gate) * up
        return self.function(x)


class Clip(nn.Module):
    """Clamps every output of a product to -``limit``..``limit``."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Shapes [batch, seq, out] in and out."""
        return tuple(each.clamp(-self.limit, self.limit) for each in outputs)


class SharedDropout(nn.Dropout):
    """Dropout of one rank's part of what several ranks hold together: rank ``part[0]`` of ``part[1]`` along a ``dim``.

    Ranks that draw from the same state have the mask of the whole, as one rank would, and take their part of it.
    """

    def __init__(self, rate: float, dim: int, part: tuple[int, int] = (0, 1)) -> None:
        super().__init__(rate)
        self.dim, self.part = dim, part

    def forward(self, x: Tensor) -> Tensor:
        """Shape in and out."""
        if self.part[1] == 1 or not (self.training and self.p):
            return super().forward(x)
        return x * self.factors(x)

    def factors(self, x: Tensor) -> Tensor:
        """Zero, or what makes up for dropped elements, for every element of this rank's part."""
        here, parts = self.part
        shape = list(x.shape)
        shape[self.dim] *= parts
        return functional.dropout(x.new_ones(shape), self.p).chunk(parts, self.dim)[here]


class Add(nn.Module):
    """A sum of residual streams; outputs of branches are multiplied by ``scale``."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        """Equal shapes in and out."""
        for other in others:
            first = first + (other if self.scale == 1.0 else other * self.scale)
        return first


class TokenEmbedding(nn.Embedding):
    """Rows of the table for token indices, in the compute dtype, times ``scale``."""

    compute_dtype: Any = None
    scale = 1.0

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape int64[batch, seq] to [batch, seq, hidden]."""
        rows = functional.embedding(tokens, self.weight).to(self.compute_dtype or self.weight.dtype)
        return rows if self.scale == 1.0 else rows * self.scale


class PositionEmbedding(nn.Module):
    """Adds the learned embedding of every token's position."""

    def __init__(self, positions: int, hidden: int, place: Place, offset: int) -> None:
        super().__init__()
        self.place, self.offset = place, offset
        self.weight = nn.Parameter(torch.empty(positions, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Shape [batch, seq, hidden] in and out."""
        rows = self.place.residual_positions(x.shape[1], x.device) + self.offset
        return x + self.weight[rows].to(x.dtype)
