"""A ModelGraph as a torch module: the same operators that the simulator costs, in the same order.

Nothing here knows model families. A block's operators become modules under their own names, its forward walks the data
flow, and its parameters are the graph's weights one by one. A product with several outputs (query, key and value; gate
and up) is several Linears, so that tensor parallelism can shard each by heads or features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from simpar.architectures.details import Details
from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator, evaluate
from simpar.architectures.recompute import of_layer
from simpar.architectures.transformer import CLIP
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime import latent, mamba, prediction
from simpar.runtime.attention import CoreAttention, Place, Rotary
from simpar.runtime.experts import Combine, ExpertActivation, ExpertClamp, GroupedExperts, Router, TokenDispatch
from simpar.runtime.operators import (
    ACTIVATIONS,
    SHARED_GATE,
    Activation,
    Add,
    Clip,
    GatedProjection,
    HeadNorm,
    Joined,
    LatentNorm,
    NormLayer,
    PositionEmbedding,
    Projection,
    SharedDropout,
    TokenEmbedding,
)

Makers = Mapping[str, Callable[[Operator], nn.Module]]
"""Makes the module of an operator, by kind of operator."""
TABLE = "embedding.token_embedding.weight"
SEQUENCE_DIM = 1
OUTPUT = "head.lm_head.parts.0.weight"


@dataclass(frozen=True)
class Part:
    """The content of one pipeline stage: layers by index, the embedding, the head."""

    layers: range
    embedding: bool
    head: bool


@dataclass(frozen=True)
class Recompute:
    """What the backward recomputes, and what "selective" means (``attention`` or ``operators``)."""

    kind: str = "none"
    selective: str = "attention"

    def of_layer(self, layer: int) -> str:
        """``none``, ``selective`` or ``full`` for one layer; ``every:C`` recomputes the first of every C layers."""
        return of_layer(self.kind, layer)


class PlacedBlock(Protocol):
    """A block whose operators are placed on a stage's devices one by one."""

    def run(self, op: Operator, module: nn.Module, given: Sequence[Tensor]) -> Tensor:
        """An operator's local output, from its local inputs."""

    def leave(self, value: Tensor) -> Tensor:
        """The block's local output, from that of its last operator."""


class BlockModule(nn.Module):
    """A block of the graph: modules under the operators' names, executed in the graph's order.

    It ``reads`` the block's input, or several inputs under these names, and ``returns`` the output of the last
    operator, or the outputs of several.
    """

    def __init__(
        self, block: Block, makers: Makers, *, reads: tuple[str, ...] = (INPUT,), returns: tuple[str, ...] = ()
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
        """Shape [batch, seq, hidden] (tokens for the embedding, logits from the head); a tuple for several outputs."""
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
        outputs = tuple(values[name] for name in self.returns)
        if self.placed is not None:
            return self.placed.leave(outputs[0])
        return outputs[0] if len(outputs) == 1 else outputs


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
    """A decoder or a pipeline stage of it: embedding, layers and head, with the same names for every split.

    A stage with layers that predict further tokens has a copy of the embedding (``copies_table``) unless it is the
    first.
    """

    def __init__(self, graph: ModelGraph, part: Part, place: Place, recompute: Recompute) -> None:
        super().__init__()
        makers = _makers(graph, place)
        in_layers: dict[int | None, Makers] = {None: makers}  # by attention window
        self.details = graph.details
        self.further = [str(i) for i in part.layers if graph.layers[i] in graph.auxiliary]
        self.copies_table = bool(self.further) and not part.embedding
        embeds = part.embedding or self.copies_table
        self.embedding = BlockModule(graph.embedding, makers) if embeds else None
        self.layers = nn.ModuleDict()
        for layer in part.layers:
            own = graph.blocks[graph.layers[layer]]
            window = _window(own)
            if window not in in_layers:
                in_layers[window] = _makers(graph, place, window)
            block = _layer(own, in_layers[window], predicts=str(layer) in self.further)
            _set_recompute(block, recompute.of_layer(layer), recompute.selective)
            self.layers[str(layer)] = block
        self.head = BlockModule(graph.head, makers) if part.head else None
        self.tied = graph.tied_embeddings
        self.tie()

    def tie(self) -> None:
        """Let embedding and output projection share their table, if both are here and tied."""
        if self.tied and self.embedding is not None and self.head is not None:
            self.head.lm_head.parts[0].weight = self.embedding.token_embedding.weight

    def forward(self, x: Tensor, further: Tensor | None = None) -> Tensor | tuple[Tensor, ...]:
        """Tokens int64[batch, seq] or hidden states in; hidden states [batch, seq, hidden] or logits out.

        With ``further`` tokens, int64[batch, depths, seq], also the logits of the token after each of them.
        """
        if self.embedding is not None and not self.copies_table:
            x = self.embedding(x)
        for name, layer in self.layers.items():
            x = x if name in self.further else layer(x)
        if self.head is None:
            return x
        if further is None or not self.further:
            return self._logits(self.head(x))
        return self._logits(self.head(x)), *self._predicted(x, further)

    def _logits(self, x: Tensor) -> Tensor:
        """The head's product, scaled and capped."""
        scale, cap = self.details.scales.logits, self.details.caps.logits
        x = x if scale == 1.0 else x * scale
        return x if cap is None else torch.tanh(x / cap) * cap

    def _predicted(self, state: Tensor, tokens: Tensor) -> Iterator[Tensor]:
        """Logits of every further token; its layers build on each other's states."""
        assert self.embedding is not None, "a stage that predicts further tokens has an embedding"
        assert self.head is not None, "it has the head"
        for depth, name in enumerate(self.further):
            embedded = self.embedding(tokens[:, depth].clamp(min=0))
            state, normed = self.layers[name](state, embedded)
            yield self._logits(self.head.lm_head(normed))


def _layer(block: Block, makers: Makers, *, predicts: bool) -> BlockModule:
    if not predicts:
        return BlockModule(block, makers)
    own = prediction.to_executable(block)
    return BlockModule(own, makers, reads=prediction.READS, returns=prediction.RETURNS)


def _set_recompute(block: BlockModule, kind: str, selective: str) -> None:
    if kind == "selective" and selective == "attention":
        for module in block.modules():
            if isinstance(module, CoreAttention):
                module.recompute = True
    elif kind == "selective":
        block.recompute = "operators"
    else:
        block.recompute = kind


def _window(block: Block) -> int | None:
    """The window of a layer's attention; None without one."""
    return next((op.attention.window for op in block.operators if op.attention), None)


def _makers(graph: ModelGraph, place: Place, window: int | None = None) -> Makers:
    """The makers of the modules of a layer, with or without a window."""
    dims, details = graph.dims, graph.details
    of_latents = latent.makers(dims, details, place) if "qk_dim" in dims else {}
    of_mixers = _mixers(graph, place) if "mamba_heads" in dims else {}

    def norm(op: Operator) -> nn.Module:
        if op.name == mamba.MIXER_NORM:
            return mamba.GroupNorm(dims, details.norm_eps)
        if op.region == "tensor":
            return HeadNorm(op, dims, details)
        kind = LatentNorm if op.name == "kv_norm" else NormLayer
        own = replace(details, norm_eps=latent.NORM_EPS) if op.name in latent.NORMS else details
        return kind(op, int(evaluate(op.columns, dims)), str(graph.facts.get("norm", "rms")), own)

    def add(op: Operator) -> nn.Module:
        if not op.weights:
            return Add(details.scales.residual)
        return PositionEmbedding(dims["positions"], dims["hidden"], place, details.positions.offset)

    def gated(op: Operator) -> nn.Module:
        activation = Activation(_activation(details))
        return ExpertActivation(activation) if op.region == "expert" else activation

    def table(_: Operator) -> nn.Module:
        result = TokenEmbedding(dims["vocab"], dims["hidden"])
        result.scale = details.scales.embedding
        return result

    def activation(op: Operator) -> nn.Module:
        limit = details.caps.projections if op.name == CLIP else None
        return gated(op) if limit is None else Clip(limit)

    def dropout(op: Operator) -> nn.Module:
        rates = details.dropout
        rate = rates.embedding if op.name == "embedding_dropout" else rates.residual
        return SharedDropout(rate, SEQUENCE_DIM, (place.sequence_rank, place.sequence_ranks))

    return {
        "router": lambda op: Router(op, dims, details.gating),
        "dispatch": lambda _: TokenDispatch(dims["num_experts"]),
        "grouped_matmul": lambda op: GroupedExperts(op, dims),
        "combine": lambda _: Combine(),
        "clamp": lambda _: ExpertClamp(),
        "matmul": lambda op: _product(op)(op, dims),
        "norm": norm,
        "add": add,
        "embedding": table,
        "rope": lambda _: Rotary(dims["head_dim"], details.positions.rope_of(window), place),
        "attention": lambda op: CoreAttention(
            op.attention, dims["head_dim"], place, details, sinks=dims["heads"] if op.weights else 0
        ),
        "activation": activation,
        "gated_activation": gated,
        "dropout": dropout,
        **of_latents,
        **of_mixers,
    }


def _mixers(graph: ModelGraph, place: Place) -> Makers:
    names = {op.name for block in graph.blocks.values() for op in block.operators}
    return mamba.makers(graph.dims, graph.details.steps, place.context, normed=mamba.MIXER_NORM in names)


def _product(op: Operator) -> type[Projection]:
    if op.name == prediction.JOIN:
        return Joined
    gated = any(weight.name.endswith(SHARED_GATE) for weight in op.weights)
    return GatedProjection if gated else Projection


def _activation(details: Details) -> str:
    if details.activation not in ACTIVATIONS:
        raise UserError(f"hidden_act = {details.activation}: the runtime knows {', '.join(ACTIVATIONS)}")
    return details.activation
