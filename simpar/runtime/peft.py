"""Adapters in PEFT's format: adapter_config.json and adapter_model.safetensors, by the names of the family's weights.

An adapter beside one of several products that checkpoints store as one tensor is an adapter of that tensor: the inner
halves are stacked, the outer halves stand in the rows of their products and the columns of their inner half, zero
elsewhere. Its rank is the sum of theirs, and alpha grows with the rank, since their quotient scales what is added. One
that all products of a tensor share (of latents) stays one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from simpar.architectures.graph import ModelGraph
from simpar.architectures.weights import Packing
from simpar.dataclass import dataclass
from simpar.runtime.adapters import Adapter, adapter_of
from simpar.runtime.four_bits import FourBitMatrix, values_of
from simpar.runtime.hf_weights import WeightRule, rules, weights_of
from simpar.runtime.sharded import plain

TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
MATRIX, DOWN, UP = "weight", "lora_down", "lora_up"
DIMS = 3
"""Of half an adapter of experts with one output; those with two have one more, behind that of experts."""
TURNED = (Packing.TRANSPOSED, Packing.QKV_COLUMNS)
"""Packings of matrices that are stored as [inputs, outputs], as GPT-2's Conv1D has them."""


@dataclass(frozen=True)
class AdapterPair:
    """Both halves of an adapter of a ``module`` of a layer: [rank, inputs] and [outputs, rank]."""

    layer: int
    module: str
    down: Tensor
    up: Tensor
    adapter: Adapter

    @property
    def rank(self) -> int:
        """Its inner size."""
        return int(self.down.shape[0])


def is_adapter(name: str) -> bool:
    """Whether a parameter is one half of an adapter."""
    return name.rpartition(".")[2] in (DOWN, UP)


def merged(parameters: Mapping[str, Any], name: str, adapter: Adapter | None) -> Tensor:
    """A whole parameter on the host, with what its adapter adds if it has one; all are made alike.

    All ranks that share it must call this. A matrix in 4 bits is as wide as products read it.
    """
    kept = parameters[name]
    whole: Tensor = kept.widened(torch.float32) if isinstance(kept, FourBitMatrix) else plain(kept).detach()
    whole = whole.cpu()
    halves = _halves(parameters, name)
    if adapter is None or halves is None:
        return whole
    wide = torch.promote_types(whole.dtype, torch.float32)
    down, up = (each.to(wide) for each in halves)
    return torch.add(whole.to(wide), up @ down, alpha=adapter.scale)


def adapters_of(stage: Any, graph: ModelGraph, family: str) -> list[AdapterPair]:
    """The adapters of a stage, whole and on the host; all ranks that share it must call this."""
    parameters, adapter = dict(values_of(stage)), adapter_of(stage)
    matrices = [name for name in parameters if not is_adapter(name) and not name.startswith("head.")]
    result = []
    for rule in rules(family, matrices, graph.dims):
        halves = [_halves(parameters, name) for name in rule.ours]
        if adapter is None or not any(halves):
            continue
        if rule.packing is Packing.EXPERT_TENSORS:
            result += _of_experts(rule, halves, weights_of(family).layers, adapter)
        else:
            shapes = [tuple(parameters[name].shape) for name in rule.ours]
            own = _as_one(halves) if _shared(rule.ours[0]) in parameters else _beside_each_other(halves, shapes)
            result.append(_pair(rule, own, graph, weights_of(family).layers, adapter))
    return result


def _halves(parameters: Mapping[str, Any], name: str) -> tuple[Tensor, Tensor] | None:
    """Both halves of the adapter of a matrix, whole and on the host; None without one."""
    stem, _, leaf = name.rpartition(".")
    if leaf != MATRIX or f"{stem}.{UP}" not in parameters:
        return None
    inner = _shared(name) if _shared(name) in parameters else f"{stem}.{DOWN}"
    down, up = (plain(parameters[half]).detach().cpu() for half in (inner, f"{stem}.{UP}"))
    return down, up


def _shared(name: str) -> str:
    """The name of the inner half that all outputs of a matrix's product share."""
    return f"{name.partition('.parts.')[0]}.inner.{DOWN}"


def _as_one(halves: Sequence[tuple[Tensor, Tensor] | None]) -> list[tuple[Tensor, list[Tensor]]]:
    """The one adapter of all parameters of a tensor: its inner half, and the outer half's rows of each."""
    kept = [half for half in halves if half is not None]
    return [(kept[0][0], [up for _, up in kept])]


def _beside_each_other(
    halves: Sequence[tuple[Tensor, Tensor] | None], shapes: Sequence[tuple[int, ...]]
) -> list[tuple[Tensor, list[Tensor]]]:
    """The adapters of a tensor's parameters (None: it has none), whose outer halves are zero in the others' rows."""
    return [
        (half[0], [half[1] if at == other else half[1].new_zeros(shape[0], half[1].shape[1])
                   for other, shape in enumerate(shapes)])
        for at, half in enumerate(halves) if half is not None
    ]  # fmt: skip


def _pair(
    rule: WeightRule, own: Sequence[tuple[Tensor, list[Tensor]]], graph: ModelGraph, layers: str, adapter: Adapter
) -> AdapterPair:
    """The adapter of the one tensor of a rule, from those of its parameters."""
    columns = []
    for _, rows in own:
        (stored,) = rule.write(rows, graph.dims).values()
        columns.append(stored.transpose(0, 1) if rule.packing in TURNED else stored)
    down = torch.cat([inner for inner, _ in own])
    return _named(rule.theirs[0], layers, (down, torch.cat(columns, dim=1)), adapter)


def _of_experts(
    rule: WeightRule, halves: Sequence[tuple[Tensor, Tensor] | None], layers: str, adapter: Adapter
) -> list[AdapterPair]:
    """The adapters of the tensors of single experts: gates of all experts, then ups, or one product of each."""
    (pair,) = halves
    assert pair is not None, "experts have one parameter"
    down, up = (half if half.ndim == DIMS else half.transpose(0, 1).flatten(0, 1) for half in pair)
    return [_named(name, layers, each, adapter) for name, *each in zip(rule.theirs, down, up, strict=True)]


def _named(name: str, layers: str, halves: Sequence[Tensor], adapter: Adapter) -> AdapterPair:
    """The adapter of a tensor by its name in files."""
    number, _, module = name.removeprefix(f"{layers}.").removesuffix(f".{MATRIX}").partition(".")
    down, up = halves
    return AdapterPair(int(number), module, down.contiguous(), up.contiguous(), adapter)


def tensors_of(pairs: Iterable[AdapterPair], layers: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of adapters by PEFT's names; ``layers`` is the prefix of layers in the family's."""
    for pair in pairs:
        stem = f"{PREFIX}{layers}.{pair.layer}.{pair.module}"
        yield f"{stem}.lora_A.weight", pair.down
        yield f"{stem}.lora_B.weight", pair.up


def config_of_adapters(pairs: Sequence[AdapterPair], graph: ModelGraph, family: str, base: str) -> dict[str, Any]:
    """The fields of adapter_config.json [peft.LoraConfig]; ``base`` is the folder of the frozen weights."""
    weights = weights_of(family)
    modules = sorted({pair.module for pair in pairs})
    ranks = {module: max(pair.rank for pair in pairs if pair.module == module) for module in modules}
    usual = min(ranks.values())
    unlike = {module: rank for module, rank in ranks.items() if rank != usual}
    numbers = sorted({pair.layer for pair in pairs})
    some = numbers != list(range(len(graph.layers)))
    made = pairs[0].adapter
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base, "revision": None,
        "auto_mapping": None, "inference_mode": True, "r": usual, "lora_alpha": usual * made.scale,
        "lora_dropout": made.dropout, "bias": "none", "use_rslora": False, "use_dora": False,
        "init_lora_weights": True, "modules_to_save": None, "target_modules": _short(modules, graph, family),
        "fan_in_fan_out": _are_turned(graph, family, modules), "rank_pattern": unlike,
        "alpha_pattern": {module: rank * made.scale for module, rank in unlike.items()},
        "layers_to_transform": numbers if some else None,
        "layers_pattern": weights.layers.rpartition(".")[2] if some else None,
    }  # fmt: skip


def _short(modules: Sequence[str], graph: ModelGraph, family: str) -> list[str]:
    """The last words of the modules' names, which servers look up; whole names where others end like them."""
    every = {theirs.removesuffix(f".{MATRIX}") for theirs in _matrices(graph, family)}
    last = {module: module.rpartition(".")[2] for module in modules}
    clash = {word for other in every - set(modules) for word in (other.rpartition(".")[2],)}
    return sorted({module if word in clash else word for module, word in last.items()})


def _are_turned(graph: ModelGraph, family: str, modules: Sequence[str]) -> bool:
    kinds = _matrices(graph, family)
    return any(kinds.get(f"{module}.{MATRIX}") in TURNED for module in modules)


def _matrices(graph: ModelGraph, family: str) -> dict[str, Packing]:
    """Names and packings of the tensors of a layer, by the declarations."""
    from simpar.runtime.attention import Place
    from simpar.runtime.decoder import Decoder, Part, Recompute

    with torch.device("meta"):
        model = Decoder(graph, Part(range(len(graph.layers)), embedding=False, head=False), Place(), Recompute())
    prefix = weights_of(family).layers
    return {
        theirs.removeprefix(f"{prefix}.").partition(".")[2]: rule.packing
        for rule in rules(family, [name for name, _ in model.named_parameters()], graph.dims)
        for theirs in rule.theirs
    }
