"""Stages with meshes of their own in torch: every operator in its role on every axis of its stage's mesh.

Values are plain local tensors whose states are given by the plan. If an operator reads another state than was written,
a DTensor makes the change and that of the gradient: the collectives of :mod:`simpar.plan.placement`. Parameters are
DTensors, whole if the operator's role slices rows, and sharded if it slices columns or the contracted dim. Their
gradients are left as summands on an axis, unless all its ranks computed the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.func import functional_call

from simpar.architectures.graph import INPUT, Block, ModelGraph, Operator
from simpar.dataclass import dataclass
from simpar.plan.placement import Role, States
from simpar.plan.stages import StagePlan
from simpar.runtime.attention import Place
from simpar.runtime.casts import cast
from simpar.runtime.context import ContextRank
from simpar.runtime.decoder import Decoder
from simpar.runtime.loss import mean_loss
from simpar.runtime.resharding import DIMS, StoredParts, slice_within, slices
from simpar.runtime.stage_mesh import Placements, StageMesh

ROWS = ("batch", "sequence")


@dataclass(frozen=True)
class PlacedWeight:
    """A parameter on a stage's mesh: how it is stored, how an operator uses it, and the placement of its gradient.

    ``added`` says that it is added on only one of the ranks that hold summands.
    """

    kept: Placements
    used: Placements
    gradient: Placements
    added: bool = True

    @staticmethod
    def of(
        op: Operator, roles: Sequence[Role], leaf: str, ndim: int, *, gathered: bool, here: StageMesh
    ) -> PlacedWeight:
        """The weight of an operator in some roles; a ``gathered`` matrix is sharded between uses.

        It is sharded over the axes that share rows.
        """
        cut = [_dim(op, role, ndim) for role in roles]
        gradient = tuple(
            Shard(dim) if dim is not None else Replicate() if role.name == "replicate" else Partial()
            for dim, role in zip(cut, roles, strict=True)
        )
        sums = here.axes(roles, "row", "sum") if leaf == "bias" or op.kind == "add" else ()
        return PlacedWeight(
            _cut(_kept(op, roles, ndim, gathered=gathered)), _cut(cut), gradient,
            added=all(here.place[axis] == 0 for axis in sums),
        )  # fmt: skip


def _cut(dims: Sequence[int | None]) -> Placements:
    return tuple(Replicate() if dim is None else Shard(dim) for dim in dims)


def _kept(op: Operator, roles: Sequence[Role], ndim: int, *, gathered: bool) -> list[int | None]:
    """The dim of a parameter that each axis shards between uses; gathered matrices also use axes that share rows."""
    cut = [_dim(op, role, ndim) for role in roles]
    free = next((dim for dim in range(ndim) if dim not in cut), None) if gathered and ndim > 1 else None
    return [free if role.name in ROWS else dim for role, dim in zip(roles, cut, strict=True)]


def _dim(op: Operator, role: Role, ndim: int) -> int | None:
    """The dim of a parameter that a role slices: [out, in] of products, [rows, features] of tables."""
    if op.kind == "matmul":
        return 0 if role.name == "column" else 1 if role.name == "row" and ndim > 1 else None
    if op.kind == "embedding" and role.name == "vocabulary":
        return 0
    return 1 if op.kind in ("embedding", "add") and role.name == "features" else None


class PlacedBlockModule:
    """A block of a stage in its roles: runs operators for :class:`~simpar.runtime.decoder.BlockModule`."""

    def __init__(self, block: Block, graph: ModelGraph, here: StageMesh, compute: Any) -> None:
        own = here.stage.sharding[block.name]
        self.here, self.gathered, self.vocab, self.compute = here, own.gathered, graph.dims["vocab"], compute
        self.roles = here.stage.roles(block)
        whole = ("R",) * len(here.stage.mesh)  # every rank has all tokens
        self.states = {INPUT: whole if block is graph.embedding else own.stream("input")}
        self.states |= {op.name: self._states(op, "writes") for op in block.operators}
        last = block.operators[-1]
        self.leaves = self._states(last, "reads") if last.kind == "loss" else own.stream("output")
        self.last = next(op for op in reversed(block.operators) if op.kind != "loss")
        self.weights: dict[str, dict[str, PlacedWeight]] = {}
        self.shared = ""

    def _states(self, op: Operator, side: str) -> States:
        return tuple(getattr(role, side) for role in self.roles[op.name])

    def distribute(self, op: Operator, module: nn.Module) -> None:
        """Shard an operator's parameters, and tell it its part of the sequence."""
        parameters = {}
        for name, whole in list(module.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            parameters[name] = PlacedWeight.of(
                op, self.roles[op.name], leaf, whole.ndim, gathered=op.name in self.gathered, here=self.here
            )
            cut = distribute_tensor(whole, self.here.mesh, parameters[name].kept, src_data_rank=None)
            module.get_submodule(owner).register_parameter(leaf, nn.Parameter(cut))
        self.weights[op.name] = parameters
        if hasattr(module, "place"):
            module.place = self._place(op)

    def _place(self, op: Operator) -> Any:
        """Ranks that share a sequence hold adjacent parts of it; attention gathers all keys."""
        axes, mesh = self.here.axes(self.roles[op.name], "sequence"), self.here.stage.mesh
        rank = 0
        for axis in axes:
            rank = rank * mesh[axis] + self.here.place[axis]
        ranks, group = prod(mesh[axis] for axis in axes), self.here.group(axes)
        return Place(ContextRank(cp=ranks, rank=rank, method="all_gather", ring_group=group))

    def run(self, op: Operator, module: nn.Module, given: Sequence[Tensor]) -> Tensor:
        """An operator's output here."""
        wanted = self._states(op, "reads")
        inputs = [self._changed(name, value, wanted) for name, value in zip(op.inputs, given, strict=True)]
        weights: dict[str, Tensor] = {}
        gathered: list[Gathered] = []
        for name, parameter in module.named_parameters():
            weights[name] = self._used(op, self.weights[op.name][name], parameter, gathered)
        call = partial(functional_call, module, weights)
        with self._random(op, module), regather_in_backward(gathered) if gathered else nullcontext():
            if self.here.axes(self.roles[op.name], "vocabulary"):
                return self._looked_up(op, call, inputs[0])
            return call(tuple(inputs))

    def leave(self, value: Tensor) -> Tensor:
        """The block's output in the states of the stream after it, logits in those that the loss reads."""
        return self._changed(self.last.name, value, self.leaves)

    def _changed(self, name: str, value: Any, wanted: States) -> Any:
        if isinstance(value, tuple):
            return tuple(self._changed(name, each, wanted) for each in value)
        features = self.vocab if name == "lm_head" else 0
        return self.here.change(value, self.states[name], wanted, features=features)

    def _used(self, op: Operator, weight: PlacedWeight, parameter: Any, gathered: list[Gathered]) -> Tensor:
        """A parameter as its operator needs it; it is gathered in the compute dtype."""
        result = parameter
        if op.name == self.shared:  # both uses of a table return the same kind of gradient
            result = parameter.redistribute(placements=weight.used)
        elif weight.kept != weight.used:
            result = parameter.to(self.compute).redistribute(placements=weight.used)
        elif op.kind == "matmul" and parameter.ndim > 1:
            result = cast(parameter, self.compute)
        local = result.to_local(grad_placements=weight.gradient)
        if weight.kept != weight.used:
            gathered.append(Gathered(local.untyped_storage().data_ptr(), parameter, local.dtype, weight.used))
        return local if weight.added else local * 0

    def _looked_up(self, op: Operator, call: Any, tokens: Tensor) -> Tensor:
        """Rows of the local part of the table, zero for tokens of other parts."""
        dims = tuple(_dim(op, role, 2) for role in self.roles[op.name])
        first, end = StoredParts(self.here.stage, dims, (self.vocab, 1)).box(self.here.rank)[0]
        inside = (tokens >= first) & (tokens < end)
        return call(((tokens - first).clamp(0, end - first - 1),)) * inside.unsqueeze(-1)

    def _random(self, op: Operator, module: nn.Module) -> AbstractContextManager[None]:
        """Ranks with different slices draw different random numbers, ranks with copies the same."""
        draws = op.kind == "dropout" or (op.kind == "attention" and getattr(module, "dropout", 0) > 0)
        sliced = [
            axis for axis, state in enumerate(self._states(op, "reads"))
            if state in DIMS and self.here.stage.mesh[axis] > 1
        ]  # fmt: skip
        return seed_by_place(tuple(self.here.place[axis] for axis in sliced)) if draws and sliced else nullcontext()


@contextmanager
def seed_by_place(place: tuple[int, ...]) -> Iterator[None]:
    """A context whose random numbers depend on a place and on the outer state, which advances equally on all ranks."""
    seed = int(torch.randint(2**31, ()))
    with torch.random.fork_rng():
        torch.manual_seed(hash((seed, *place)) % 2**63)
        yield


@dataclass(frozen=True)
class Gathered:
    """A weight that was gathered for one use, with its address, and how to gather it again."""

    address: int
    parameter: Any
    dtype: Any
    used: Placements

    @torch.no_grad()
    def again(self) -> Tensor:
        """The weight, gathered again."""
        return self.parameter.detach().to(self.dtype).redistribute(placements=self.used).to_local()


def regather_in_backward(gathered: Sequence[Gathered]) -> AbstractContextManager[None]:
    """A context that keeps no gathered weight for the backward, but gathers it again there."""
    known = {each.address: each for each in gathered}

    def pack(tensor: Tensor) -> Any:
        gathered_weight = known.get(tensor.untyped_storage().data_ptr()) if tensor.numel() else None
        return (
            tensor
            if gathered_weight is None
            else (gathered_weight, tensor.size(), tensor.stride(), tensor.storage_offset())
        )

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, tuple):
            gathered_weight, size, stride, offset = kept
            return gathered_weight.again().as_strided(size, stride, offset)
        return kept

    hooks: AbstractContextManager[None] = saved_tensors_hooks(pack, unpack)
    return hooks


def apply(model: Decoder, graph: ModelGraph, here: StageMesh, compute: Any) -> None:
    """Put a stage's operators in their roles, in place; ``compute`` is the compute dtype."""
    ends = [(model.embedding, graph.embedding), (model.head, graph.head)]
    layers = [(module, graph.blocks[graph.layers[int(name)]]) for name, module in model.layers.items()]
    for module, block in (*ends, *layers):
        if module is not None:
            module.placed = placed = PlacedBlockModule(block, graph, here, compute)
            for op in module.operators:
                placed.distribute(op, getattr(module, op.name))
    model.tie()
    if model.tied and model.embedding is not None and model.head is not None:
        for module, name in ((model.embedding, "token_embedding"), (model.head, "lm_head")):
            assert isinstance(module.placed, PlacedBlockModule), "its roles were applied above"
            module.placed.shared = name


def find_stored(stage: StagePlan, block: Block, op: Operator, shape: tuple[int, int]) -> StoredParts:
    """Where the parts of a table, or of the projection tied to it, are stored on a stage."""
    gathered = op.name in stage.sharding[block.name].gathered
    return StoredParts(stage, tuple(_kept(op, stage.roles(block)[op.name], 2, gathered=gathered)), shape)


@dataclass(frozen=True)
class StageLoss:
    """Mean cross entropy of the slices of a microbatch, on the ranks of the last stage."""

    graph: ModelGraph
    here: StageMesh

    @property
    def _roles(self) -> Sequence[Role]:
        head = self.graph.head
        return self.here.stage.roles(head)[head.operators[-1].name]

    @property
    def slices(self) -> int:
        """The number of equal parts into which the tokens of a microbatch are split."""
        return slices(tuple(role.reads for role in self._roles), self.here.stage.mesh)

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over local tokens, from their logits and the microbatch's next tokens int64[batch, seq]."""
        reads = tuple(role.reads for role in self._roles)
        rows = tuple("R" if state == "F" else state for state in reads)
        held = StoredParts.of(self.here.stage, rows, tuple(targets.shape))
        here = held.box(self.here.rank)
        wanted = targets[slice_within(here, tuple((0, size) for size in targets.shape))]
        axes = self.here.axes(self._roles, "vocabulary")
        return self._shared(logits, wanted, axes) if axes else mean_loss(logits, wanted)

    def _shared(self, logits: Tensor, wanted: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Cross entropy over ranks that share the vocabulary [Shoeybi et al. 2019, arXiv 1909.08053, section 3]."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        mesh = self.here.stage.mesh
        dims = tuple(0 if axis in axes else None for axis in range(len(mesh)))
        first, end = StoredParts(self.here.stage, dims, (self.graph.dims["vocab"],)).box(self.here.rank)[0]
        most = logits.detach().amax(-1, keepdim=True)
        for axis in axes:
            dist.all_reduce(most, dist.ReduceOp.MAX, group=self.here.group((axis,)))
        inside = (wanted >= first) & (wanted < end)
        own = logits.gather(-1, (wanted - first).clamp(0, end - first - 1).unsqueeze(-1))
        mine = torch.stack(((logits - most).exp().sum(-1), ((own - most).squeeze(-1)) * inside), -1)
        summands = tuple("P" if axis in axes else "R" for axis in range(len(mesh)))
        total, target = self.here.change(mine, summands, ("R",) * len(mesh)).unbind(-1)
        return (total.log() - target).mean()
