"""Weights between a model's shards and files of transformers: each rank reads its part, one rank per stage writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from simpar import files
from simpar.architectures.graph import ModelGraph
from simpar.architectures.weights import Packing
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime import peft
from simpar.runtime.adapters import adapter_of
from simpar.runtime.attention import Place
from simpar.runtime.decoder import OUTPUT, TABLE, Decoder, Part, Recompute
from simpar.runtime.four_bits import values_of
from simpar.runtime.hf_weights import WeightRule, rules, weights_of
from simpar.runtime.released import ADAPTERS, INDEX, Released, opener
from simpar.runtime.served import ServedFolder
from simpar.units import GIB

SHARD_BYTES = 4 * GIB
MAX_NAMED = 5
ROWS = 4096
"""Rows of a table that are compared at once."""
BUFFERS = ("rotary_emb.inv_freq", ".attn.bias", ".attention.bias", ".masked_bias")
"""Endings of the names of frequencies and masks in older files, which follow from the config."""
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass
class WeightSource:
    """Where the parameters of a stage come from; those stored as one tensor are read together once."""

    released: Released
    graph: ModelGraph
    by_name: Mapping[str, WeightRule]
    _last: dict[str, Tensor] = field(default_factory=dict)
    _open: dict[Path, Any] = field(default_factory=dict)

    @staticmethod
    def of(released: Released, graph: ModelGraph, names: Sequence[str]) -> WeightSource:
        """The source of the named parameters. Raises UserError for a family whose files are not known."""
        result = rules(released.family, names, graph.dims)
        return WeightSource(released, graph, {name: rule for rule in result for name in rule.ours})

    def part(self, name: str, shape: tuple[int, ...], here: tuple[slice, ...]) -> Tensor:
        """A rank's part of a parameter of a whole shape. Raises UserError if the file does not fit."""
        rule = self.by_name[name]
        if rule.packing is Packing.SAME:
            return self._read(rule.theirs[0], shape, here)
        if name not in self._last:
            tensors = [self._read(each) for each in rule.theirs]
            self._last = rule.read(tensors, self.graph.dims)
        whole = self._last[name]
        self._fits(name, tuple(whole.shape), shape)
        return whole[here]

    def _read(self, name: str, shape: tuple[int, ...] | None = None, here: tuple[slice, ...] | None = None) -> Tensor:
        path = self.released.file_of(name)
        if path not in self._open:
            self._open[path] = _opened(path)
        file = self._open[path]
        if name not in file.keys():  # noqa: SIM118 - the file is not a mapping
            raise UserError(f"{path}: has no {name}, which the index says")
        if shape is None or here is None:
            result = file.get_tensor(name)
        else:
            kept = file.get_slice(name)
            self._fits(name, tuple(kept.get_shape()), shape)
            result = kept[here]
        if result.dtype not in FLOATS:
            allowed = ", ".join(map(_said, FLOATS))
            raise UserError(f"{path}: {name} is {_said(result.dtype)}; allowed: {allowed}")
        return result

    def _fits(self, name: str, there: tuple[int, ...], here: tuple[int, ...]) -> None:
        if there != here:
            raise UserError(
                f"--init-from {self.released.folder}: {name} has shape {list(there)} there, {list(here)} here"
            )


def check_used(released: Released, graph: ModelGraph) -> None:
    """Raise UserError if a folder has tensors that are not parameters of the model: it is of another model.

    Exceptions are buffers, layers that predict further tokens, and a tied output that is stored again.
    """
    with torch.device("meta"):
        whole = Part(range(len(graph.layers)), embedding=True, head=True)
        model = Decoder(graph, whole, Place(), Recompute())
    names = [name for name, _ in model.named_parameters() if not (name == OUTPUT and graph.tied_embeddings)]
    by_name = {name: rule for rule in rules(released.family, names, graph.dims) for name in rule.ours}
    known = {each for rule in by_name.values() for each in rule.theirs}
    family = weights_of(released.family)
    main = len(graph.layers) - sum(name in graph.auxiliary for name in graph.layers)
    further = tuple(f"{family.layers}.{main + layer}." for layer in range(released.further))
    left = [
        name for name in sorted(set(released.places) - known)
        if not name.endswith(BUFFERS) and not (further and name.startswith(further))
    ]  # fmt: skip
    output = f"{family.ends['lm_head']}.weight"
    if graph.tied_embeddings and output in left:
        left.remove(output)
        _check_tied(released, output, by_name[TABLE].theirs[0])
    if left:
        named = ", ".join(left[:MAX_NAMED]) + (", ..." if len(left) > MAX_NAMED else "")
        raise UserError(
            f"--init-from {released.folder}: no parameters of the model: {named}; allowed: the model's tensors alone"
        )


def _check_tied(released: Released, output: str, table: str) -> None:
    """Raise UserError where an output that is tied to the table differs from it."""
    first, second = (_opened(released.file_of(name)).get_slice(name) for name in (output, table))
    shape = first.get_shape()
    same = shape == second.get_shape() and all(
        torch.equal(first[row : row + ROWS], second[row : row + ROWS]) for row in range(0, shape[0], ROWS)
    )
    if not same:
        raise UserError(
            f"--init-from {released.folder}: {output} differs from {table}, to which the config ties it; allowed: "
            "equal tensors, or tie_word_embeddings false"
        )


def _opened(path: Path) -> Any:
    """A file of weights. Raises UserError if it is truncated or something else."""
    opened = opener()
    try:
        return opened(path, framework="pt")
    except Exception as error:  # noqa: BLE001 - the library raises one class of its own, which it does not export
        raise UserError(
            f"{path}: is not a whole safetensors file ({str(error).splitlines()[0]}); allowed: the shard as released"
        ) from None


def _said(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def save(stages: Mapping[int, Any], graph: ModelGraph, served: ServedFolder) -> None:
    """Write the parameters of a model, whose virtual stages (by number) are on several ranks, and what serves them.

    Every rank calls it, also those without a stage. The lowest rank that has a stage writes its files, each of up to
    SHARD_BYTES; the folder gets its name when all are written. Raises UserError if nothing can be written.
    """
    with _half_written(served.folder) as half:
        written: dict[str, str] = {}
        size = 0
        for stage, first in _held(stages):
            for number, tensors in enumerate(_shards(stages[stage], graph, served)):
                if first:
                    name = f"model-{stage:03d}-{number:05d}.safetensors"
                    _write(half / name, tensors)
                    written |= dict.fromkeys(tensors, name)
                    size += sum(each.numel() * each.element_size() for each in tensors.values())
        parts = _gathered((written, size))
        if dist.get_rank() == 0:
            places = {name: file for part, _ in parts for name, file in part.items()}
            total = {"total_size": sum(each for _, each in parts)}
            index = {"metadata": total, "weight_map": dict(sorted(places.items()))}
            files.write_atomic(half / INDEX, json.dumps(index, indent=2) + "\n")
            served.write_config(half)


def save_adapters(stages: Mapping[int, Any], graph: ModelGraph, served: ServedFolder) -> None:
    """Write the adapters of a model in PEFT's format, with the tokenizer; as :func:`save` otherwise."""
    layers = weights_of(served.family).layers
    with _half_written(served.folder) as half:
        own = [(first, peft.adapters_of(stages[stage], graph, served.family)) for stage, first in _held(stages)]
        parts = _gathered([pair for first, pairs in own if first for pair in pairs])
        if dist.get_rank() == 0:
            pairs = sorted((pair for part in parts for pair in part), key=lambda pair: (pair.layer, pair.module))
            _write(half / peft.TENSORS, dict(peft.tensors_of(pairs, layers)))
            config = peft.config_of_adapters(pairs, graph, served.family, str(served.base))
            files.write_atomic(half / ADAPTERS, json.dumps(config, indent=2) + "\n")
            served.write_tokenizer(half)


def _held(stages: Mapping[int, Any]) -> list[tuple[int, bool]]:
    """The stages of this rank, and whether it is the lowest rank that has it; all ranks must call this."""
    every = _gathered(sorted(stages))
    here = dist.get_rank()
    return [
        (stage, next(other for other, held in enumerate(every) if stage in held) == here) for stage in sorted(stages)
    ]


def _gathered(value: Any) -> list[Any]:
    """The value of every rank, over the hosts' network: ranks without a device may be among them."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


@contextmanager
def _half_written(folder: Path) -> Iterator[Path]:
    """A folder to write to, which is renamed when all ranks are done."""
    half = folder.with_name(f"{folder.name}.partial")
    if dist.get_rank() == 0:
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
    _gathered(None)
    yield half
    _gathered(None)
    if dist.get_rank() == 0:
        if folder.exists():
            folder.rmdir()
        half.rename(folder)
    _gathered(None)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save_file

    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except Exception as error:  # noqa: BLE001 - a full disk raises the library's own class
        raise UserError(f"--save-to {path.parent}: cannot be written ({str(error).splitlines()[0]})") from None


def _shards(stage: Any, graph: ModelGraph, served: ServedFolder) -> Iterator[dict[str, Tensor]]:
    """Tensors of a stage under their names in files, some at a time, with its adapters in them."""
    dtype, adapter = getattr(torch, served.dtype), adapter_of(stage)
    own = {
        name: value for name, value in values_of(stage)
        if not (name == OUTPUT and graph.tied_embeddings)
    }  # fmt: skip
    if getattr(stage, "copies_table", False):
        own = {name: parameter for name, parameter in own.items() if not name.startswith("embedding.")}
    tensors: dict[str, Tensor] = {}
    size = 0
    for rule in rules(served.family, [name for name in own if not peft.is_adapter(name)], graph.dims):
        result = rule.write([peft.merged(own, name, adapter) for name in rule.ours], graph.dims)
        tensors |= {name: each.to(dtype).contiguous().clone() for name, each in result.items()}
        size += sum(each.numel() * each.element_size() for each in result.values())
        if size > SHARD_BYTES:
            yield tensors
            tensors, size = {}, 0
    if tensors:
        yield tensors
