"""What decides the memory of a rank among the fields of a plan: of one plan, or of many as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simpar.models.flops import shape_dims
from simpar.models.graph import ModelGraph
from simpar.models.training import Training
from simpar.plan.plan import Plan
from simpar.plan.routing import fullest_load
from simpar.plan.sharding import SHARDED_DIMS, VOCAB_MULTIPLE, RankDims, context_dims, expert_dims, is_rows

Ints = NDArray[np.int64]
Column = Any
"""An int or a truth value, or an array of them; columns of one layout broadcast against each other."""


@dataclass(frozen=True)
class Layouts:
    """Columns of layouts, one value each or arrays that broadcast; ``etp`` 0 is the usual one.

    ``late``: whether gradients are reduced behind the last backward, so that whole ones are kept until then.
    """

    tp: Column
    dp: Column
    pp: Column = 1
    cp: Column = 1
    vpp: Column = 1
    micro_batch: Column = 1
    zero: Column = 0
    hsdp: Column = 1
    sequence_parallel: Column = False
    ep: Column = 1
    etp: Column = 0
    late: Column = False

    @staticmethod
    def of(plan: Plan) -> Layouts:
        """The columns of one resolved plan."""
        mesh, data = plan.mesh, plan.data_parallel
        return Layouts(
            tp=mesh.tp,
            dp=int(mesh.dp or 1),
            pp=mesh.pp,
            cp=mesh.cp,
            vpp=plan.pipeline.vpp,
            micro_batch=plan.micro_batch,
            zero=data.zero,
            hsdp=data.hsdp,
            sequence_parallel=bool(plan.tensor_parallel.sequence_parallel),
            ep=mesh.ep,
            etp=mesh.etp or 0,
            late=data.overlap_grad_reduce is False,
        )

    @property
    def width(self) -> Column:
        """Ranks that share gradients of what is no expert; context-parallel ones count."""
        return np.asarray(self.dp) * np.asarray(self.cp)

    @property
    def expert_tensor_parallel(self) -> Ints:
        """Ranks that share an expert: as given, else 1 where experts are spread, else those of everything."""
        usual = np.where(np.asarray(self.ep) > 1, 1, self.tp)
        return np.where(np.asarray(self.etp) > 0, self.etp, usual)

    @property
    def expert_copies(self) -> Ints:
        """Ranks that hold the same experts."""
        return np.asarray(self.tp * self.width // (self.ep * self.expert_tensor_parallel))

    @property
    def shards(self) -> Ints:
        """Ranks that share one copy of the sharded states."""
        return np.where(np.asarray(self.zero) > 0, self.width // self.hsdp, 1)

    @property
    def expert_shards(self) -> Ints:
        """Ranks that share one copy of the sharded states of an expert: fewer, because others hold other experts."""
        return np.where(np.asarray(self.zero) > 0, np.maximum(self.expert_copies // self.hsdp, 1), 1)

    @property
    def communicators(self) -> Ints:
        """Kinds of groups that a rank communicates in."""
        sizes = (self.tp, self.dp, self.pp, self.cp, self.ep)
        several = sum((np.asarray(size) > 1).astype(np.int64) for size in sizes)
        return np.asarray(several + ((np.asarray(self.ep) > 1) & (self.expert_copies > 1)))


def dims_of(graph: ModelGraph, layouts: Layouts, plan: Plan, training: Training) -> RankDims:
    """Dims of all regions as columns, as :mod:`simpar.plan.sharding` has them for one plan."""
    copies = plan.tensor_parallel.copies
    tp, cp = np.asarray(layouts.tp) // copies, np.asarray(layouts.cp)
    whole = {**shape_dims(graph, training.seq_len // copies), "batch": layouts.micro_batch}
    tensor = {name: _local_size(name, size, tp, cp) for name, size in whole.items()}
    tensor |= context_dims(plan.context_parallel, cp)
    sharded = np.asarray(layouts.sequence_parallel)
    rows = {name: np.where(sharded, size // tp, size) for name, size in tensor.items() if is_rows(name)}
    sequence = {**tensor, **rows}
    if not graph.is_mixture:
        return RankDims(tensor, sequence)
    own = {
        "experts": graph.dims["experts"] // np.asarray(layouts.ep),
        "expert_ffn": graph.dims["expert_ffn"] // layouts.expert_tensor_parallel,
    }
    tensor, sequence = {**tensor, **own}, {**sequence, **own}
    load = fullest_load(graph.dims["experts"], plan.experts, layouts.ep)
    return RankDims(tensor, sequence, expert_dims(tensor, sequence, layouts.expert_tensor_parallel, load))


def _local_size(name: str, size: Column, tp: Ints, cp: Ints) -> Column:
    """A dim on one rank: heads, ffn and vocabulary divided by ``tp``, rows by ``cp``."""
    kind = name.rpartition(".")[2]
    if kind == "vocab":
        padded = -(-size // (VOCAB_MULTIPLE * tp)) * VOCAB_MULTIPLE
        return np.where(tp > 1, padded, size)
    if kind == "kv_heads":
        return np.maximum(size // tp, 1)
    if kind in SHARDED_DIMS:
        return size // tp
    return size // cp if kind == "seq" else size
