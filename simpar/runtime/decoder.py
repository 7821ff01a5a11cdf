"""A ModelGraph as a torch module: the same operators that the simulator costs, in the same order.

Nothing here knows a model family. A block's operators become modules under their own names, a block's forward
walks the data flow, and the parameters are the graph's weights one by one. A product with several outputs (query,
key and value; gate and up) is several Linears, so that tensor parallelism can shard each by heads or features.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simpar.errors import UserError
from simpar.models.graph import INPUT, Block, ModelGraph, Operator, evaluate
from simpar.models.recompute import of_layer
from simpar.runtime import latent, mamba, prediction
from simpar.runtime.attention import Attention, Place, Rotary
from simpar.runtime.experts import Combine, Dispatch, ExpertActivation, ExpertClamp, Experts, Router

Tensor = Any
INIT_STD = 0.02  # of matrices and embeddings [Radford et al. 2019]
NORM_EPS = 1e-5
SHARED_GATE = "shared_gate.weight"
DROPOUT = 0.1
TABLE = "embedding.token_embedding.weight"
OUTPUT = "head.lm_head.parts.0.weight"
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_fast": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True)
class Part:
    """What one pipeline stage holds: layers by index, the embedding, the head."""

    layers: range
    embedding: bool
    head: bool


@dataclass(frozen=True)
class Recompute:
    """What is computed again in backward, and what "selective" means (``attention`` or ``operators``)."""

    kind: str = "none"
    selective: str = "attention"

    def of_layer(self, layer: int) -> str:
        """``none``, ``selective`` or ``full`` for one layer; ``every:C`` recomputes the first of every C."""
        return of_layer(self.kind, layer)


class Linear(nn.Linear):
    """A Linear whose product runs in the dtype of its input, whatever its parameters are kept in."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape [..., in] to [..., out]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class Projection(nn.Module):
    """A product with one or several outputs of the same input; one output is a tensor, several are a tuple."""

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__()
        self.whole = op.region == "sequence"  # on every tensor-parallel rank
        width = int(evaluate(op.contraction, dims))
        columns = [int(evaluate(((1, names),), dims)) for times, names in op.columns for _ in range(times)]
        bias = any(weight.kind == "vector" and not weight.name.endswith(SHARED_GATE) for weight in op.weights)
        self.parts = nn.ModuleList(Linear(width, size, bias=bias) for size in columns)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Shape [batch, seq, in] to [batch, seq, out] for every output."""
        outputs = tuple(part(x) for part in self.parts)
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
    """The product into a shared expert, whose output a score of every token scales [Qwen2, arXiv 2407.10671].

    The score multiplies the second output, the one that is not activated: what comes after is linear in it.
    """

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__(op, dims)
        self.score = nn.Parameter(torch.empty(1, dims["hidden"]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shape [batch, seq, hidden] to two of [batch, seq, ffn]."""
        gate, up = super().forward(x)
        here = x.to_local(grad_placements=(Partial(),)) if isinstance(x, DTensor) else x
        return gate, up * torch.sigmoid(functional.linear(here, self.score.to(here.dtype)))


class Norm(nn.Module):
    """RMSNorm, or LayerNorm with a weight and a bias, a weight alone or neither."""

    def __init__(self, op: Operator, width: int, kind: str) -> None:
        super().__init__()
        self.width, self.kind = (width,), kind
        names = [weight.name.rsplit(".", 1)[-1] for weight in op.weights]
        self.weight = nn.Parameter(torch.empty(width)) if "weight" in names else None
        self.bias = nn.Parameter(torch.empty(width)) if "bias" in names else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dim, in the dtype of ``x``."""
        weight = None if self.weight is None else self.weight.to(x.dtype)
        if self.kind == "rms":
            return functional.rms_norm(x, self.width, weight, NORM_EPS)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.layer_norm(x, self.width, weight, bias, NORM_EPS)


class LatentNorm(Norm):
    """The norm of a latent that comes out of one product with a shared key."""

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """([batch, rows, kv_rank], the key) to the first's shape."""
        return super().forward(x[0])


class HeadNorm(nn.Module):
    """RMSNorm of queries and keys before attention: of every head, or of all heads' features together."""

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__()
        per_head = all(names == ("head_dim",) for _, names in op.weights[0].size)
        self.head_dim = dims["head_dim"] if per_head else None
        keys, queries = dims["kv_heads"] * dims["head_dim"], dims["heads"] * dims["head_dim"]
        self.query = nn.Parameter(torch.empty(self.head_dim or queries))
        self.key = nn.Parameter(torch.empty(self.head_dim or keys))

    def forward(self, qkv: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes [batch, seq, heads x head_dim] in and out."""
        query, key, value = qkv
        return self._norm(query, self.query), self._norm(key, self.key), value

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        split = x if self.head_dim is None else x.unflatten(-1, (-1, self.head_dim))
        normed = functional.rms_norm(split, tuple(weight.shape), weight.to(x.dtype), NORM_EPS)
        return normed.reshape(x.shape)


class Activation(nn.Module):
    """An activation, or with a gate: act(gate) x up."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = ACTIVATIONS[name]

    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Shape [batch, seq, ffn] in and out."""
        if isinstance(x, tuple):
            gate, up = x
            return self.function(gate) * up
        return self.function(x)


class Add(nn.Module):
    """A sum of residual streams."""

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        """Equal shapes in and out."""
        for other in others:
            first = first + other
        return first


class TokenEmbedding(nn.Embedding):
    """Token indices to rows of the table in the dtype of the computation."""

    compute_dtype: Any = None

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape int64[batch, seq] to [batch, seq, hidden]."""
        return functional.embedding(tokens, self.weight).to(self.compute_dtype or self.weight.dtype)


class PositionEmbedding(nn.Module):
    """Adds the learned embedding of every token's position."""

    def __init__(self, positions: int, hidden: int, place: Place) -> None:
        super().__init__()
        self.place = place
        self.weight = nn.Parameter(torch.empty(positions, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Shape [batch, seq, hidden] in and out."""
        return x + self.weight[self.place.residual_positions(x.shape[1], x.device)].to(x.dtype)


class PlacedBlock(Protocol):
    """How a block runs whose operators are placed on a stage's devices one by one."""

    def run(self, op: Operator, module: nn.Module, given: Sequence[Tensor]) -> Tensor:
        """An operator's output here, from what is here of its inputs."""

    def leave(self, value: Tensor) -> Tensor:
        """What the block hands on, from the last operator's output."""


class BlockModule(nn.Module):
    """A block of the graph: modules under the operators' names, executed in the graph's order.

    It ``reads`` the block's input, or several under these names, and ``returns`` the last operator's output, or those
    of several.
    """

    def __init__(
        self,
        block: Block,
        makers: Mapping[str, Callable[[Operator], nn.Module]],
        *,
        reads: tuple[str, ...] = (INPUT,),
        returns: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        self.operators = [op for op in block.operators if op.kind != "loss"]
        for op in self.operators:
            if op.kind not in makers:
                raise UserError(f"operator {op.name} of kind {op.kind}: the runtime cannot execute it yet")
            self.add_module(op.name, makers[op.kind](op))
        self.reads, self.returns = reads, returns or (self.operators[-1].name,)
        last = {name: position for position, op in enumerate(self.operators) for name in op.inputs}
        last = {name: position for name, position in last.items() if name not in self.returns}
        self.forget = [[n for n, at in last.items() if at == i] for i in range(len(self.operators))]
        self.recompute = "none"
        self.placed: PlacedBlock | None = None

    def forward(self, *inputs: Tensor) -> Tensor:
        """Shape [batch, seq, hidden] (tokens for the embedding, logits from the head); a tuple where several return."""
        if self.recompute == "full":
            return checkpoint(self._run, *inputs, use_reentrant=False)
        if self.recompute == "operators":
            return checkpoint(self._run, *inputs, use_reentrant=False, context_fn=_every_other_product)
        return self._run(*inputs)

    def _run(self, *inputs: Tensor) -> Tensor:
        values = dict(zip(self.reads, inputs, strict=True))
        for op, done in zip(self.operators, self.forget, strict=True):
            module, given = getattr(self, op.name), [values[name] for name in op.inputs]
            values[op.name] = module(*given) if self.placed is None else self.placed.run(op, module, given)
            for name in done:
                del values[name]
        found = tuple(values[name] for name in self.returns)
        if self.placed is not None:
            return self.placed.leave(found[0])
        return found[0] if len(found) == 1 else found


def _every_other_product() -> Any:
    """Selective recompute per operator: keep attention and every second product, compute the rest again."""
    aten = torch.ops.aten
    attention = {
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
    products = {"forward": 0, "recompute": 0}

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> Any:
        if op in attention:
            return CheckpointPolicy.MUST_SAVE
        if op in (aten.mm.default, aten.addmm.default):
            phase = "recompute" if context.is_recompute else "forward"
            products[phase] += 1
            return CheckpointPolicy.MUST_SAVE if products[phase] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Decoder(nn.Module):
    """A decoder or a pipeline stage of it: embedding, layers and head under the same names in every split.

    A stage whose layers predict further tokens has a copy of the embedding (``copies_table``), where it is not the
    first.
    """

    def __init__(self, graph: ModelGraph, part: Part, place: Place, recompute: Recompute) -> None:
        super().__init__()
        makers = _makers(graph, place)
        self.further = [str(i) for i in part.layers if graph.layers[i] in graph.auxiliary]
        self.copies_table = bool(self.further) and not part.embedding
        embeds = part.embedding or self.copies_table
        self.embedding = BlockModule(graph.embedding, makers) if embeds else None
        self.layers = nn.ModuleDict()
        for layer in part.layers:
            block = _layer(graph.blocks[graph.layers[layer]], makers, predicts=str(layer) in self.further)
            _set_recompute(block, recompute.of_layer(layer), recompute.selective)
            self.layers[str(layer)] = block
        self.head = BlockModule(graph.head, makers) if part.head else None
        self.tied = graph.tied_embeddings
        self.tie()

    def tie(self) -> None:
        """Let embedding and output projection share their table where both are here and tied."""
        if self.tied and self.embedding is not None and self.head is not None:
            self.head.lm_head.parts[0].weight = self.embedding.token_embedding.weight

    def forward(self, x: Tensor, further: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        """Tokens int64[batch, seq] or hidden states in; hidden states [batch, seq, hidden] or logits out.

        With ``further`` tokens, int64[batch, depths, seq], the logits of what comes after each of them as well.
        """
        if self.embedding is not None and not self.copies_table:
            x = self.embedding(x)
        for name, layer in self.layers.items():
            x = x if name in self.further else layer(x)
        if self.head is None:
            return x
        if further is None or not self.further:
            return self.head(x)
        return self.head(x), *self._predicted(x, further)

    def _predicted(self, state: Tensor, tokens: Tensor) -> Iterator[Tensor]:
        """Logits of every further token, whose layers work one on the other's state."""
        assert self.embedding is not None, "a stage that predicts further tokens has an embedding"
        assert self.head is not None, "it has the head"
        for depth, name in enumerate(self.further):
            embedded = self.embedding(tokens[:, depth].clamp(min=0))
            state, normed = self.layers[name](state, embedded)
            yield self.head.lm_head(normed)


def _layer(
    block: Block, makers: Mapping[str, Callable[[Operator], nn.Module]], *, predicts: bool
) -> BlockModule:
    if not predicts:
        return BlockModule(block, makers)
    own = prediction.executed(block)
    return BlockModule(own, makers, reads=prediction.READS, returns=prediction.RETURNS)


def _set_recompute(block: BlockModule, kind: str, selective: str) -> None:
    if kind == "selective" and selective == "attention":
        for module in block.modules():
            if isinstance(module, Attention):
                module.recompute = True
    elif kind == "selective":
        block.recompute = "operators"
    else:
        block.recompute = kind


def _makers(graph: ModelGraph, place: Place) -> dict[str, Callable[[Operator], nn.Module]]:
    """How to make a module of every kind of operator."""
    dims, facts = graph.dims, graph.facts
    rate, theta = float(facts.get("dropout", DROPOUT)), float(facts.get("rope_theta", 10_000.0))
    of_latents = latent.makers(dims, theta, place, rate) if "qk_dim" in dims else {}

    of_mixers = mamba.makers(dims) if "mamba_heads" in dims else {}

    def norm(op: Operator) -> nn.Module:
        if op.name == mamba.MIXER_NORM:
            return mamba.GroupNorm(dims, NORM_EPS)
        if op.region == "tensor":
            return HeadNorm(op, dims)
        kind = LatentNorm if op.name == "kv_norm" else Norm
        return kind(op, int(evaluate(op.columns, dims)), str(facts.get("norm", "rms")))

    def add(op: Operator) -> nn.Module:
        if not op.weights:
            return Add()
        return PositionEmbedding(dims["positions"], dims["hidden"], place)

    def gated(op: Operator) -> nn.Module:
        activation = Activation(_activation(facts, "silu"))
        return ExpertActivation(activation) if op.region == "expert" else activation

    return {
        "router": lambda op: Router(op, dims),
        "dispatch": lambda _: Dispatch(dims["num_experts"]),
        "grouped_matmul": lambda op: Experts(op, dims),
        "combine": lambda _: Combine(),
        "clamp": lambda _: ExpertClamp(),
        "matmul": lambda op: _product(op)(op, dims),
        "norm": norm,
        "add": add,
        "embedding": lambda _: TokenEmbedding(dims["vocab"], dims["hidden"]),
        "rope": lambda _: Rotary(dims["head_dim"], theta, place),
        "attention": lambda op: Attention(
            op.attention, dims["head_dim"], place, rate, sinks=dims["heads"] if op.weights else 0
        ),
        "activation": lambda _: Activation(_activation(facts, "gelu")),
        "gated_activation": gated,
        "dropout": lambda _: nn.Dropout(rate),
        **of_latents,
        **of_mixers,
    }


def _product(op: Operator) -> type[Projection]:
    if op.name == prediction.JOIN:
        return Joined
    gated = any(weight.name.endswith(SHARED_GATE) for weight in op.weights)
    return GatedProjection if gated else Projection


def _activation(facts: Mapping[str, Any], default: str) -> str:
    name = str(facts.get("activation") or default)
    if name not in ACTIVATIONS:
        raise UserError(f"hidden_act = {name}: the runtime knows {', '.join(ACTIVATIONS)}")
    return name


@torch.no_grad()
def initial_value(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """The whole fp32 tensor that a parameter starts from: the same in every layout, because only its name counts.

    Vectors named weight (of norms) are one, biases and the outer halves of adapters zero, other matrices normal.
    """
    if name.endswith("lora_up"):
        return torch.zeros(shape)
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    of_mixer = mamba.initial(name, shape, generator)
    if of_mixer is not None:
        return of_mixer
    if len(shape) == 1:
        return torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
    return torch.normal(0.0, INIT_STD, shape, generator=generator)
