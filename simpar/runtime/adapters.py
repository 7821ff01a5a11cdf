"""Training of a part of a model: low-rank adapters beside frozen products, or without the embedding and first layers.

An adapter adds alpha / r x up(down(x)) to its product, with ``down`` normal and ``up`` zero at first [LoRA, Hu et al.
2021, arXiv 2106.09685, section 4.1]; of its input it may drop some elements, each adapter its own. Each output of a
packed product has an adapter, as files and PEFT have it, but those from and to a latent, whose two outputs are one
matrix there: they have one adapter. Frozen weights are kept in the dtype of the computation, or, matrices of layers, in
4 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional

from simpar.architectures.graph import ModelGraph
from simpar.architectures.tuning import LATENT, MIXTURES, PARTS, adapted_layers
from simpar.dataclass import dataclass
from simpar.plan.choices.tuning import Tuning
from simpar.runtime.casts import cast
from simpar.runtime.decoder import BlockModule, Decoder, Part
from simpar.runtime.experts import GroupedExperts
from simpar.runtime.operators import CastingLinear, Projection, SharedDropout


@dataclass(frozen=True)
class Adapter:
    """How adapters are made: their inner size, the factor of what they add (alpha / r), the share that they drop."""

    rank: int
    scale: float = 1.0
    dropout: float = 0.0

    @staticmethod
    def of(tuning: Tuning, alpha: float | None) -> Adapter | None:
        """That of a plan, with ``alpha`` (None: the rank); None for a plan without adapters."""
        if tuning.lora_rank is None:
            return None
        scale = 1.0 if alpha is None else alpha / tuning.lora_rank
        return Adapter(tuning.lora_rank, scale, tuning.lora_dropout or 0.0)


class InnerHalf(nn.Module):
    """The first product of an adapter, to its rank."""

    def __init__(self, inputs: int, adapter: Adapter) -> None:
        super().__init__()
        self.lora_down = nn.Parameter(torch.empty(adapter.rank, inputs))
        self.dropout = SharedDropout(adapter.dropout, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Shape [..., in] to [..., rank]."""
        return narrowed(x, self.lora_down, self.dropout)


class OuterLinear(CastingLinear):
    """A Linear with the outer half of an adapter, whose inner half may be that of several Linears."""

    def __init__(self, plain: CastingLinear, adapter: Adapter) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None)
        self.lora_up = nn.Parameter(torch.empty(plain.out_features, adapter.rank))
        self.adapter = adapter

    def forward(self, x: Tensor, inner: Tensor | None = None) -> Tensor:
        """Shape [..., in] to [..., out], with what the ``inner`` half made of the input."""
        assert inner is not None, "the product that has this has the inner half"
        up = cast(self.lora_up, x.dtype)
        if isinstance(inner, DTensor) and inner.placements[0].is_partial():
            return super().forward(x) + self._scaled(_partial_product(inner, up))
        return super().forward(x) + self._scaled(functional.linear(inner, up))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.adapter.scale == 1.0 else x * self.adapter.scale


class AdaptedLinear(OuterLinear):
    """A Linear with a low-rank adapter; the name of its matrix is the same as without the adapter."""

    def __init__(self, plain: CastingLinear, adapter: Adapter) -> None:
        super().__init__(plain, adapter)
        self.lora_down = nn.Parameter(torch.empty(adapter.rank, plain.in_features))
        self.dropout = SharedDropout(adapter.dropout, dim=-1)

    def forward(self, x: Tensor, inner: Tensor | None = None) -> Tensor:
        """Shape [..., in] to [..., out]."""
        return super().forward(x, narrowed(x, self.lora_down, self.dropout) if inner is None else inner)


def narrowed(x: Tensor, down: Tensor, dropout: SharedDropout) -> Tensor:
    """The input without dropped elements, times the inner half of an adapter."""
    return functional.linear(_dropped(x, dropout), cast(down, x.dtype))


def _dropped(x: Tensor, dropout: SharedDropout) -> Tensor:
    """The input without dropped elements; ranks that hold parts of its features have parts of one mask."""
    if not (isinstance(x, DTensor) and dropout.training and dropout.p):
        result: Tensor = dropout(x)
        return result
    mesh, placements = x.device_mesh, x.placements
    cut = placements[0].is_shard()
    dropout.part = (mesh.get_local_rank(), mesh.size()) if cut else (0, 1)
    return x * DTensor.from_local(dropout.factors(x.to_local()), mesh, placements, run_check=False)


def _partial_product(inner: Tensor, up: Tensor) -> Tensor:
    """A partial sum over tensor-parallel ranks times a whole matrix, left unreduced: the frozen product reduces it."""
    here = inner.to_local(grad_placements=(Replicate(),))
    local = functional.linear(here, up.to_local(grad_placements=(Partial(),)))
    return DTensor.from_local(local, inner.device_mesh, (Partial(),), run_check=False)


def tune(model: Decoder, tuning: Tuning, frozen_dtype: Any, alpha: float | None = None) -> None:
    """Freeze the parameters that a plan freezes, and add its adapters, in place: some layers may have no targets."""
    adapter = Adapter.of(tuning, alpha)
    for name, block in model.layers.items():
        if adapter is not None and int(name) >= tuning.frozen_layers:
            _adapt(block, tuning, adapter)
    for name, parameter in model.named_parameters():
        if not _trained(name, tuning, tied=model.tied):
            parameter.requires_grad_(requires_grad=False)
            parameter.data = parameter.data.to(frozen_dtype)
    model.tie()
    if tuning.frozen_dtype == "nf4":
        for module in model.layers.modules():
            if isinstance(module, CastingLinear) and not module.weight.requires_grad:
                module.freeze_in_four_bits()


def adapter_of(module: nn.Module) -> Adapter | None:
    """How the adapters of a module are made, all of them alike; None without any."""
    for each in module.modules():
        if isinstance(each, OuterLinear):
            return each.adapter
        if isinstance(each, GroupedExperts) and each.rank:
            return Adapter(each.rank, each.scale)
    return None


def num_still(parts: Sequence[Part], tuning: Tuning, graph: ModelGraph) -> int:
    """The number of stages before the first trained parameter: they have no backward."""
    whole = tuning.lora_rank is None
    trained = [whole] * len(graph.layers) if whole else adapted_layers(graph, tuning.lora_targets)

    def trains(part: Part) -> bool:
        if any(layer >= tuning.frozen_layers and trained[layer] for layer in part.layers):
            return True
        return part.head and whole and not graph.tied_embeddings

    return next((stage for stage, part in enumerate(parts) if not tuning.is_used or trains(part)), 0)


def _trained(name: str, tuning: Tuning, *, tied: bool) -> bool:
    if tuning.lora_rank is not None:
        return ".lora_" in name
    place, _, rest = name.partition(".")
    if place == "layers":
        return int(rest.split(".")[0]) >= tuning.frozen_layers
    return place == "head" and not tied  # a tied head is frozen with its table, as in the simulation


def _adapt(block: BlockModule, tuning: Tuning, adapter: Adapter) -> None:
    for product, number in list(_targets(block, tuning.lora_targets)):
        if isinstance(product, GroupedExperts):
            product.adapt(adapter.rank, adapter.scale)
            continue
        plain = product.parts[number]
        assert isinstance(plain, CastingLinear), "a product has one adapter"
        product.parts[number] = AdaptedLinear(plain, adapter).to(plain.weight.dtype)
    for name in dict.fromkeys(each for target in tuning.lora_targets for each in LATENT.get(target, ())):
        if isinstance(latent := getattr(block, name, None), Projection):
            _adapt_as_one(latent, adapter)


def _adapt_as_one(product: Projection, adapter: Adapter) -> None:
    """One adapter beside a product, whatever the number of its outputs."""
    plain = [part for part in product.parts if isinstance(part, CastingLinear)]
    if len(plain) > 1:
        product.inner = InnerHalf(plain[0].in_features, adapter).to(plain[0].weight.dtype)
    kind = OuterLinear if len(plain) > 1 else AdaptedLinear
    for at, part in enumerate(plain):
        product.parts[at] = kind(part, adapter).to(part.weight.dtype)


def _targets(block: BlockModule, names: tuple[str, ...]) -> Iterator[tuple[Projection | GroupedExperts, int]]:
    """Every target's packed product and the index of its output in it: query, key, value; gate, up.

    Those of experts are all outputs of a grouped product, with index 0.
    """
    order: dict[str, list[str]] = {}
    for name, (packed, _) in PARTS.items():
        order.setdefault(packed, []).append(name)
    for packed, parts in order.items():
        for product in (getattr(block, name, None) for name in (packed, *MIXTURES.get(packed, ()))):
            if isinstance(product, Projection):
                outputs = parts[-len(product.parts) :]  # without a gate, up is the only output
                yield from ((product, at) for at, name in enumerate(outputs) if name in names)
            elif isinstance(product, GroupedExperts) and {*parts} & {*names}:
                yield product, 0
