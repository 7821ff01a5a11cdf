"""A mixture of experts on one rank: routing, exchange of tokens between the ranks that share it, grouped products.

Every token goes to the ``topk`` experts with the highest scores. The scores weigh the experts' outputs in the way of
the model's family: divided by their sum in Mixtral [Jiang et al. 2024, arXiv 2401.04088, section 2.1]. Experts are
sharded by number over expert-parallel ranks, and their features over expert-tensor-parallel ones, as DTensors, so that
checkpoints know where the parts belong. Copies of tokens are ordered by expert, sent, gathered if ranks hold slices of
the same experts, processed, and sent back.

Without a capacity factor nothing is dropped and nothing is padded. With one, an expert takes from every rank and
microbatch at most the factor times the mean number of copies, those with the highest scores. The others are dropped and
their tokens keep their residual; empty places are padded [Fedus et al. 2021, arXiv 2101.03961, section 2.2; by score as
in Megatron-Core's ``--moe-token-drop-policy probs``].
"""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn import functional

from simpar.architectures.details import Gating
from simpar.architectures.graph import Operator
from simpar.dataclass import dataclass
from simpar.runtime.casts import cast
from simpar.runtime.exchange import AllToAllRows, Reordered, ScatteredRows, Shared, Spread, Summed, inverse_of

ALIGNED_BYTES = 16
GROUPED_MAJORS = (9, 10)  # data-centre Hopper and Blackwell


@dataclass(frozen=True)
class Peers:
    """Groups of ranks that share a mixture with this one; None for a single rank.

    ``exchange`` are ranks with different experts, ``slices`` ranks with parts of the same experts. The ranks of
    ``slices`` have different tokens, or all the same (``same_tokens``, without sequence parallelism).
    """

    exchange: Any = None
    slices: Any = None
    same_tokens: bool = False

    @property
    def num_exchange(self) -> int:
        """Ranks that hold different experts."""
        return 1 if self.exchange is None else dist.get_world_size(self.exchange)

    @property
    def num_slices(self) -> int:
        """Ranks whose tokens meet at the slices of an expert."""
        return 1 if self.slices is None or self.same_tokens else dist.get_world_size(self.slices)


@dataclass(frozen=True)
class TokenCopies:
    """Copies in sending order: ``order`` int64[kept] are indices of int64[tokens x topk], sorted by expert.

    ``counts`` is the number of rows per expert. With a capacity, ``slots`` int64[kept] are the rows that copies take;
    the other rows are padding. Without one, all copies are kept, and ``inverse`` int64[tokens x topk] is the row of
    every copy.
    """

    order: Tensor
    counts: Tensor
    slots: Tensor | None = None
    inverse: Tensor | None = None

    def rows(self, tokens: Tensor, topk: int) -> Tensor:
        """The rows to send, from [tokens, hidden]."""
        if self.slots is None:
            return Reordered.apply(tokens, self.order, self.inverse, topk)
        return ScatteredRows.apply(tokens[self.order // topk], self.slots, int(self.counts.sum()))

    def copies(self, rows: Tensor, count: int) -> Tensor:
        """The returned rows at their places among all copies, [count, hidden]; zero for dropped copies."""
        if self.slots is None:
            return Reordered.apply(rows, self.inverse, self.order, 1)
        return ScatteredRows.apply(rows[self.slots], self.order, count)


@dataclass(frozen=True)
class RoutedCopies:
    """Where the copies of this rank's tokens went, and which rows arrived.

    ``scores`` [tokens, topk] weigh the ``chosen`` copies of a tensor of ``shape``. ``sent`` and ``received`` are rows
    by rank of the exchange, ``gathered`` rows by slice. ``arrived`` is the order that sorts the rows by expert, with
    its inverse (None: they arrived sorted). ``counts`` int64[experts] are the rows of each local expert.
    """

    chosen: TokenCopies
    scores: Tensor
    shape: tuple[int, ...]
    sent: list[int]
    received: list[int]
    gathered: list[int]
    arrived: tuple[Tensor, Tensor] | None
    counts: Tensor


class Router(nn.Module):
    """Scores of experts, in at least fp32: the weights and indices of the best ``topk``.

    A bias that only affects the choice has no gradient. If experts form groups, only those of the best groups are
    candidates.
    """

    def __init__(self, op: Operator, dims: Mapping[str, int], gating: Gating) -> None:
        super().__init__()
        self.topk, self.gating = dims["topk"], gating
        self.groups = dims.get("expert_groups", 1), dims.get("chosen_groups", 1)
        self.weight = nn.Parameter(torch.empty(dims["num_experts"], dims["hidden"]))
        has_bias = any(weight.kind == "vector" for weight in op.weights)
        self.bias = nn.Parameter(torch.empty(dims["num_experts"])) if has_bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shape [batch, seq, hidden] to scores [tokens, topk] in the dtype of ``x`` and experts int64[tokens, topk]."""
        wide, how = torch.promote_types(x.dtype, torch.float32), self.gating
        bias = None if self.bias is None else self.bias.to(wide)
        added = bias if how.bias == "added" else None
        logits = functional.linear(x.flatten(0, -2).to(wide), self.weight.to(wide), added)
        scores = torch.sigmoid(logits) if how.score == "sigmoid" else torch.softmax(logits, dim=-1)
        chosen_by = scores.detach() if bias is None or added is not None else (scores + bias).detach()
        experts = torch.topk(self._in_groups(chosen_by), self.topk, dim=-1).indices
        best = scores.gather(-1, experts)
        if how.normalised:
            best = best / best.sum(dim=-1, keepdim=True)
        if bias is not None and added is None:
            best = best + (0.0 * bias).sum()  # gives the bias a gradient of zeros, as data parallelism expects
        return (best * how.factor).to(x.dtype), experts

    def _in_groups(self, scores: Tensor) -> Tensor:
        """The scores [tokens, experts], with those outside the best groups set below all others."""
        groups, chosen = self.groups
        if groups == 1:
            return scores
        split = scores.unflatten(-1, (groups, -1))
        of_group = split.topk(2, dim=-1).values.sum(-1) if self.gating.pairs else split.amax(-1)
        kept = torch.zeros_like(of_group, dtype=torch.bool).scatter(-1, of_group.topk(chosen).indices, True)
        return split.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)


def choose(scores: Tensor, experts: Tensor, num_experts: int, factor: float | None) -> TokenCopies:
    """Which copies of [tokens, topk] are sent, and in which rows.

    ``factor`` caps the copies of an expert at that multiple of the mean; None: no cap.
    """
    flat = experts.flatten()
    if factor is None:
        counts = torch.bincount(flat, minlength=num_experts)
        by_expert = torch.argsort(flat, stable=True)
        return TokenCopies(by_expert, counts, inverse=inverse_of(by_expert))
    capacity = math.ceil(factor * flat.numel() / num_experts)
    best_first = torch.argsort(scores.detach().flatten(), descending=True, stable=True)
    order = best_first[torch.argsort(flat[best_first], stable=True)]
    mine, counts = flat[order], torch.bincount(flat, minlength=num_experts)
    place = torch.arange(len(order), device=flat.device) - (counts.cumsum(0) - counts)[mine]
    kept = place < capacity
    return TokenCopies(order[kept], torch.full_like(counts, capacity), (mine * capacity + place)[kept])


class TokenDispatch(nn.Module):
    """Copies every token once for each of its experts and brings the copies to the ranks that hold these."""

    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.peers = Peers()
        self.capacity_factor: float | None = None

    def forward(self, x: Tensor, routed: tuple[Tensor, Tensor]) -> tuple[Tensor, RoutedCopies]:
        """Shape [batch, seq, hidden] to [rows of local experts, hidden], ordered by expert."""
        scores, experts = routed
        peers = self.peers
        if peers.same_tokens:
            x = Spread.apply(x, peers.slices)
        chosen = choose(scores, experts, self.num_experts, self.capacity_factor)
        rows = chosen.rows(x.flatten(0, -2), scores.shape[1])
        counts = chosen.counts.reshape(peers.num_exchange, -1)
        coming = counts
        if peers.exchange is not None:
            coming = torch.empty_like(counts)
            dist.all_to_all_single(coming, counts, group=peers.exchange)
        sent = received = [len(rows)]
        if peers.exchange is not None:
            sent, received = counts.sum(1).tolist(), coming.sum(1).tolist()
            rows = AllToAllRows.apply(rows, sent, received, peers.exchange)
        gathered = [len(rows)]
        if peers.num_slices > 1:
            every = [torch.empty_like(coming) for _ in range(peers.num_slices)]
            dist.all_gather(every, coming, group=peers.slices)
            gathered, coming = [int(each.sum()) for each in every], torch.cat(every)
            alike = [len(rows)] * peers.num_slices
            rows = AllToAllRows.apply(rows.repeat(peers.num_slices, 1), alike, gathered, peers.slices)
        arrived = None
        if len(coming) > 1:
            local = torch.arange(counts.shape[1], device=x.device).repeat(len(coming))
            of_rows = torch.repeat_interleave(local, coming.flatten(), output_size=len(rows))
            by_expert = torch.argsort(of_rows, stable=True)
            arrived = by_expert, inverse_of(by_expert)
            rows = Reordered.apply(rows, *arrived, 1)
        return rows, RoutedCopies(chosen, scores, tuple(x.shape), sent, received, gathered, arrived, coming.sum(0))


class Combine(nn.Module):
    """Brings the experts' outputs back to the ranks of their tokens and sums them, weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.peers = Peers()

    def forward(self, outputs: tuple[Tensor, RoutedCopies]) -> Tensor:
        """Shape [rows of local experts, hidden] to [batch, seq, hidden]."""
        y, routing = outputs
        peers = self.peers
        if routing.arrived is not None:
            by_expert, inverse = routing.arrived
            y = Reordered.apply(y, inverse, by_expert, 1)
        if peers.num_slices > 1:
            own = [sum(routing.received)] * peers.num_slices
            y = AllToAllRows.apply(y, routing.gathered, own, peers.slices)
            y = y.unflatten(0, (peers.num_slices, -1)).sum(dim=0)
        if peers.exchange is not None:
            y = AllToAllRows.apply(y, routing.received, routing.sent, peers.exchange)
        if peers.same_tokens:
            y = Summed.apply(y, peers.slices)
        own_copies = routing.chosen.copies(y, routing.scores.numel()).unflatten(0, routing.scores.shape)
        return (own_copies * routing.scores.unsqueeze(-1)).sum(dim=1).reshape(routing.shape)


class GroupedExperts(nn.Module):
    """A grouped product: the copies of every local expert times its own matrix, with one or two outputs.

    Experts without a gate have one output of the first product. Every expert may have low-rank adapters of its own
    beside them, one for each output.
    """

    def __init__(self, op: Operator, dims: Mapping[str, int]) -> None:
        super().__init__()
        experts, hidden, ffn = dims["num_experts"], dims.get("expert_hidden", dims["hidden"]), dims["expert_ffn"]
        self.widens = op.name.endswith("up")
        self.splits = op.columns[0][0] if self.widens else 1
        outer = (hidden,) if not self.widens else (2, ffn) if self.splits > 1 else (ffn,)
        self.weight = nn.Parameter(torch.empty(experts, *outer, hidden if self.widens else ffn))
        self.bias = nn.Parameter(torch.empty(experts, *outer)) if len(op.weights) > 1 else None
        self.slices, self.rank, self.scale = 1, 0, 1.0

    def adapt(self, rank: int, scale: float) -> None:
        """Add adapters of a ``rank``, whose products are added ``scale`` times."""
        *outer, width = self.weight.shape[1:]
        experts, like = len(self.weight), {"dtype": self.weight.dtype, "device": self.weight.device}
        self.lora_down = nn.Parameter(torch.empty(experts, *outer[:-1], rank, width, **like))
        self.lora_up = nn.Parameter(torch.empty(experts, *outer, rank, **like))
        self.rank, self.scale = rank, scale

    def spread(self, mesh: DeviceMesh) -> None:
        """Keep this rank's part of every weight: experts are sharded along axis ep, their features along etp."""
        names = mesh.mesh_dim_names or ()
        self.slices = mesh["etp"].size() if "etp" in names else 1
        for name, whole in list(self.named_parameters(recurse=False)):
            last = whole.ndim - (2 if self.widens and name == "weight" else 1)
            summed = name == "bias" and not self.widens  # a bias after a sum over slices stays whole
            features = Replicate() if summed else Shard(last)
            placements = [Shard(0) if axis == "ep" else features for axis in names]
            shape = list(whole.shape)
            for axis, placement in zip(names, placements, strict=True):
                if isinstance(placement, Shard):
                    shape[placement.dim] //= mesh[axis].size()
            local = torch.empty(shape, dtype=whole.dtype, device=whole.device)
            part = DTensor.from_local(
                local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
            )
            setattr(self, name, nn.Parameter(part, requires_grad=whole.requires_grad))

    def forward(self, copies: tuple[Any, ...]) -> tuple[Any, ...]:
        """([rows, in], routing) to ([rows, out], routing), or with the two outputs of a gate apart."""
        x, routing = copies
        weight = _local(cast(self.weight, x.dtype)).flatten(1, -2)
        y = grouped_product(x, weight, self._bias(x), routing.counts)
        y = y + self._added(x, routing.counts) if self.rank else y
        return (*y.chunk(self.splits, dim=-1), routing)

    def _added(self, x: Tensor, counts: Tensor) -> Tensor:
        """What the adapters add: [rows, in] to [rows, out]."""
        down = _local(cast(self.lora_down, x.dtype)).flatten(1, -2)
        ups = _local(cast(self.lora_up, x.dtype)).unflatten(1, (self.splits, -1)).flatten(2, -2)
        inner = grouped_product(x, down, None, counts).chunk(self.splits, dim=-1)
        outer = [grouped_product(part, ups[:, at], None, counts) for at, part in enumerate(inner)]
        return self.scale * torch.cat(outer, dim=-1)

    def _bias(self, x: Tensor) -> Tensor | None:
        if self.bias is None:
            return None
        bias = _local(self.bias).to(x.dtype).flatten(1)
        return bias if self.widens else Shared.apply(bias, self.slices)


def grouped_product(x: Tensor, weight: Tensor, bias: Tensor | None, counts: Tensor) -> Tensor:
    """Rows [rows, in], ``counts`` int64[experts] of them in turn per expert, each times the matrix of its expert.

    ``weight`` is [experts, out, in], ``bias`` [experts, out]; the result [rows, out]. It is one kernel if torch has one
    for these inputs, otherwise a product for each expert, for whose counts the host then waits.
    """
    if is_grouped(x, weight):
        y = torch._grouped_mm(x, weight.transpose(-1, -2), offs=counts.cumsum(0, dtype=torch.int32))
        return y if bias is None else y + torch.repeat_interleave(bias, counts, dim=0, output_size=len(x))
    biases = [None] * len(weight) if bias is None else bias
    pieces = zip(x.split(counts.tolist()), weight, biases, strict=True)
    return torch.cat([functional.linear(*each) for each in pieces])


def is_grouped(x: Tensor, weight: Tensor) -> bool:
    """Whether torch's grouped product accepts these tensors: a device with the kernel, bf16, rows of whole 16 bytes."""
    aligned = all(size * weight.element_size() % ALIGNED_BYTES == 0 for size in weight.shape[1:])
    return bool(x.dtype == torch.bfloat16 and aligned and has_grouped(x.device))


@cache
def has_grouped(device: Any) -> bool:
    """Whether a device has a kernel for grouped products; elsewhere torch loops."""
    if device.type != "cuda" or torch.version.hip is not None or not hasattr(torch, "_grouped_mm"):
        return False
    return torch.cuda.get_device_capability(device)[0] in GROUPED_MAJORS


class ExpertClamp(nn.Module):
    """Clamps gates from above and ups on both sides, and adds one to the ups [gpt-oss, arXiv 2508.10925, 2.2]."""

    LIMIT = 7.0

    def forward(self, copies: tuple[Any, ...]) -> tuple[Any, ...]:
        """([copies, ffn], [copies, ffn], routing), as it came in shape."""
        gate, up, routing = copies
        return gate.clamp(max=self.LIMIT), up.clamp(-self.LIMIT, self.LIMIT) + 1.0, routing


class ExpertActivation(nn.Module):
    """act(gate) x up of the experts' copies, or act(up) of experts without a gate."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, copies: tuple[Any, ...]) -> tuple[Any, ...]:
        """([copies, ffn], [copies, ffn], routing), or one of them, to ([copies, ffn], routing)."""
        *parts, routing = copies
        return self.activation(tuple(parts) if len(parts) > 1 else parts[0]), routing


def _local(parameter: Any) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def spread(model: nn.Module, mesh: DeviceMesh, *, same_tokens: bool) -> None:
    """Shard the experts of a model, and distribute copies of tokens, over a mesh with axes ep, etp or both, in place.

    Slices of an expert may have the ``same_tokens``.
    """
    names = mesh.mesh_dim_names or ()
    groups = {axis: mesh[axis].get_group() for axis in names}
    peers = Peers(groups.get("ep"), groups.get("etp"), same_tokens=same_tokens and "etp" in groups)
    for module in model.modules():
        if isinstance(module, GroupedExperts):
            module.spread(mesh)
        elif isinstance(module, TokenDispatch | Combine):
            module.peers = peers


def limit(model: nn.Module, capacity_factor: float | None) -> None:
    """Let every expert take at most that multiple of the mean from a rank, in place; None: all that are sent."""
    for module in model.modules():
        if isinstance(module, TokenDispatch):
            module.capacity_factor = capacity_factor
