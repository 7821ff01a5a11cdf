"""Parameters of a model and tensors of a Hugging Face checkpoint, by the names that a family declares.

torch is imported only when tensors are read or written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, product
from typing import TYPE_CHECKING

from simpar.architectures.families import DECLARED
from simpar.architectures.weights import PARTS, Packing, Weights
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime.hf_layouts import STORAGE, Tensors

if TYPE_CHECKING:
    from torch import Tensor

_LAYER = re.compile(r"layers\.\d+\.")
_PART = re.compile(r"(\w+)\.parts\.(\d)\.(\w+)")
_MODULES = {word: f"{op}.parts.{at}" for op, words in PARTS.items() for at, word in enumerate(words)}
"""Modules of the parts of packed products, by their names in declarations."""


@dataclass(frozen=True)
class WeightRule:
    """Parameters ``ours`` that correspond to tensors ``theirs`` in another ``packing``."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    packing: Packing

    def read(self, tensors: Tensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """The parameters, from the tensors in their order."""
        return dict(zip(self.ours, STORAGE[self.packing].read(tensors, dims), strict=True))

    def write(self, parameters: Tensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """The tensors, from the parameters in their order."""
        return dict(zip(self.theirs, STORAGE[self.packing].write(parameters, dims), strict=True))


def weights_of(model_type: str) -> Weights:
    """The names of a family's weights. Raises UserError for a family whose files are not known."""
    family = DECLARED.get(model_type)
    if family is None or family.weights is None:
        known = sorted(kind for kind, each in DECLARED.items() if each.weights is not None)
        raise UserError(
            f"model_type = {model_type or 'none'}: its weight files are not known; allowed: {', '.join(known)}"
        )
    return family.weights


def rules(model_type: str, parameters: Sequence[str], dims: Mapping[str, int]) -> list[WeightRule]:
    """The rules for the named parameters of a model, layer by layer. Raises UserError as :func:`weights_of`."""
    weights = weights_of(model_type)
    return [
        rule
        for layer, names in groupby(parameters, key=lambda name: (_LAYER.match(name) or ("",))[0])
        for rule in (_in_layer(model_type, layer, [*names], dims) if layer else _ends(weights, names))
    ]


def _ends(weights: Weights, names: Iterable[str]) -> Iterator[WeightRule]:
    """The rules of parameters outside of layers."""
    for name in names:
        module, leaf = _module(name.partition(".")[2], ())
        yield WeightRule((name,), (f"{weights.ends[module]}.{leaf}",), Packing.SAME)


def _module(name: str, beside: Sequence[str]) -> tuple[str, str]:
    """A parameter's module as declarations name it, and its ending; ``beside`` are the parameters of its layer."""
    if name.startswith("qk_norm."):
        return f"{name.removeprefix('qk_norm.')}_norm", "weight"
    if (match := _PART.fullmatch(name)) is None:
        module, _, leaf = name.rpartition(".")
        return module, leaf
    operator, at, leaf = match[1], int(match[2]), match[3]
    words = PARTS.get(operator, (operator,))
    if at == 0 and len(words) == 2 and f"{operator}.parts.1.{leaf}" not in beside:
        return words[1], leaf  # a product without a gate
    return words[at], leaf


def _in_layer(model_type: str, layer: str, names: Sequence[str], dims: Mapping[str, int]) -> Iterator[WeightRule]:
    """The rules of the parameters of one layer, whose names begin with ``layer``. Raises UserError."""
    weights = weights_of(model_type)
    own = [name.removeprefix(layer) for name in names]
    modules = {name: _module(name, own) for name in own}
    named = dict(weights.layer)
    for lacking, changes in weights.without.items():
        if lacking not in dict(modules.values()):
            named |= changes
    packed = {part: (parts, *theirs) for parts, theirs in weights.packed.items() for part in parts}
    prefix = f"{weights.layers}.{layer.removeprefix('layers.')}"

    def rule(ours: Iterable[str], theirs: Iterable[str], packing: Packing) -> WeightRule:
        return WeightRule(tuple(layer + each for each in ours), tuple(prefix + each for each in theirs), packing)

    for name, (module, leaf) in modules.items():
        if name in weights.tensors:
            theirs, packing = weights.tensors[name]
            yield rule((name,), (theirs,) if isinstance(theirs, str) else theirs, packing)
        elif module in ("expert_up", "expert_down"):
            kinds = weights.experts[:2] if module == "expert_up" else weights.experts[2:]
            numbered = product(filter(None, kinds), range(dims["num_experts"]))
            tensors = [f"{weights.experts_in}.{number}.{kind}.{leaf}" for kind, number in numbered]
            yield rule((name,), tensors, Packing.EXPERT_TENSORS)
        elif module in packed:
            parts, stored, packing = packed[module]
            if module == parts[0]:
                ours = [f"{_MODULES.get(part, f'{part}.parts.0')}.{leaf}" for part in parts]
                yield rule(ours, (f"{stored}.{leaf}",), packing)
        elif module in named:
            packing = Packing.TRANSPOSED if module in weights.transposed else Packing.SAME
            yield rule((name,), (f"{named[module]}.{leaf}",), packing)
        else:
            raise UserError(f"{layer}{name}: files of {model_type} have no such tensor that the reader knows")
