"""Data parallelism as hooks: which parameters are gathered and which gradients are reduced, when and by what.

| scheme | before use | after the backward of | with |
|---|---|---|---|
| DDP (zero 0) | - | the last microbatch | all-reduce in buckets |
| ZeRO-1 | first forward (or step end) gathers parameters | the last microbatch | reduce-scatter in buckets |
| ZeRO-2 | as ZeRO-1 | every microbatch | reduce-scatter in buckets |
| FSDP zero 2 | first forward gathers and keeps | every microbatch | reduce-scatter per unit |
| FSDP zero 3 | every pass gathers and frees | every microbatch | reduce-scatter per unit |

With HSDP the shards live in groups of dp/replicas ranks and an all-reduce across the replicas follows
[Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277].
"""

from __future__ import annotations

from dataclasses import dataclass

from simpar.cost.operators import optimizer_time_s
from simpar.plan.sync import apart, num_replicas
from simpar.program.phases import COMPUTE, CollectiveUse
from simpar.program.rank_view import Job
from simpar.program.templates import GATHER, REDUCE, Node, SyncPolicy
from simpar.units import DTYPE_BYTES, to_ns


@dataclass(frozen=True)
class Synchronisation:
    """The data-parallel behaviour of a job inside a step.

    ``width`` ranks share gradients, ``shards`` of them share states, in ``replicas`` copies. Replicas that step
    on their own (:mod:`simpar.plan.sync`) share nothing inside a step.
    """

    job: Job
    width: int
    shards: int
    replicas: int

    @staticmethod
    def of(job: Job) -> Synchronisation:
        """Read the scheme from a checked plan."""
        mesh, data = job.plan.mesh, job.plan.data_parallel
        alone = apart(job.plan)
        width = int(mesh.dp or 1) * mesh.cp // (num_replicas(job.plan) if alone else 1)
        replicas = data.hsdp if data.zero and not alone else 1
        return Synchronisation(job, width, width // replicas if data.zero else 1, replicas)

    @property
    def alone(self) -> bool:
        """Whether replicas step on their own."""
        return apart(self.job.plan)

    @property
    def zero(self) -> int:
        """The ZeRO stage in effect: 0 where the shard group has a single rank."""
        return self.job.plan.data_parallel.zero if self.shards > 1 else 0

    @property
    def fully_sharded(self) -> bool:
        """Whether parameters themselves are sharded between uses."""
        return self.zero == 3

    @property
    def single_process(self) -> bool:
        """Whether one process drives all devices: parameters go out and gradients come in through the first."""
        return self.job.plan.data_parallel.kind == "single_process" and self.width > 1

    @property
    def interpreters(self) -> float:
        """How many devices one interpreter issues kernels for: its lock serialises the launches of all of them."""
        return float(self.width) if self.single_process else 1.0

    def replicate(self, parameters: float) -> tuple[Node, ...]:
        """What precedes every forward of a single process: parameters copied from the first device to all."""
        if not self.single_process:
            return ()
        use = CollectiveUse("dp", "broadcast", parameters * self.parameter_bytes)
        return (Node(kind="dp", name="broadcast parameters", streams=(COMPUTE, GATHER), collective=use),)

    @property
    def per_unit(self) -> bool:
        """Whether each block is a unit of gathering and reduction (FSDP) instead of flat buckets."""
        return self.job.plan.data_parallel.kind == "fsdp"

    @property
    def parameter_bytes(self) -> float:
        """Bytes per parameter that a gather moves: the compute precision."""
        return DTYPE_BYTES["fp32" if self.job.plan.numerics.precision == "fp32" else "bf16"]

    @property
    def gradient_bytes(self) -> float:
        """Bytes per parameter that a reduction moves."""
        numerics = self.job.plan.numerics
        reduced = self.job.stack.numerics.reduce_dtype if numerics.precision != "fp32" else "fp32"
        return DTYPE_BYTES[reduced]

    @property
    def gathered_bytes_per_parameter(self) -> float:
        """Bytes per parameter of the unsharded buffer a fully sharded unit holds while it is used."""
        return self.parameter_bytes if self.fully_sharded else 0.0

    @property
    def shard_group(self) -> str:
        """The group kind that holds one copy of the sharded states."""
        return "dp_shard" if self.replicas > 1 else "dp"

    @property
    def reduce_ops(self) -> tuple[tuple[str, str, float], ...]:
        """Collectives of one gradient reduction in turn: (group kind, operation, share of the bytes)."""
        if self.zero == 0 or (self.zero == 1 and self.job.stack.overlap.all_reduce_zero1):
            return (("dp", "all_reduce", 1.0),)
        first = (self.shard_group, "reduce_scatter", 1.0)
        if self.replicas == 1:
            return (first,)
        return (first, ("dp_replicate", "all_reduce", 1.0 / self.shards))

    def policy(self, kind: str, *, boundary: bool) -> SyncPolicy:
        """Hooks of one pass; ``boundary`` is the first microbatch of a forward, the last of a backward."""
        data = self.job.plan.data_parallel
        if self.width == 1 or self.single_process:
            return SyncPolicy()
        gathers = self._gathers(kind, boundary=boundary)
        reduces = (
            kind in ("backward", "weight_gradient")
            and (boundary or self.zero >= 2)
            and data.overlap_grad_reduce
        )
        return SyncPolicy(
            gather=gathers,
            reshard=self.fully_sharded and bool(data.reshard_after_forward),
            reduce=bool(reduces),
            bucket_bytes=float(data.bucket_bytes or 0),
            first_bucket_bytes=float(data.first_bucket_bytes or 0),
            per_unit=self.per_unit,
            reduce_ops=self.reduce_ops if reduces else (),
            gather_group=self.shard_group,
        )

    def _gathers(self, kind: str, *, boundary: bool) -> bool:
        data = self.job.plan.data_parallel
        if kind == "weight_gradient" or self.zero == 0:
            return False
        if self.fully_sharded and data.reshard_after_forward:
            return True
        if kind != "forward" or not boundary:
            return False
        return self.per_unit or bool(data.overlap_param_gather)

    def tail(self, parameters: float, *, root: bool = True) -> tuple[Node, ...]:
        """What follows the last backward on a rank that holds ``parameters`` (unsharded count).

        A single process sums gradients on the first device (``root``), which alone updates.
        """
        if self.single_process:
            use = CollectiveUse("dp", "reduce", parameters * self.gradient_bytes)
            reduce = Node(kind="dp", name="reduce gradients", streams=(COMPUTE, REDUCE), collective=use)
            return (reduce, self._optimizer(parameters if root else 0.0))
        return (
            *self._late_reduction(parameters),
            self._optimizer(parameters),
            *self._late_gather(parameters),
        )

    def _late_reduction(self, parameters: float) -> tuple[Node, ...]:
        if self.width == 1 or self.job.plan.data_parallel.overlap_grad_reduce:
            return ()
        size = parameters * self.gradient_bytes
        count = max(1, round(size / float(self.job.plan.data_parallel.bucket_bytes or size)))
        return tuple(
            Node(
                kind="dp",
                name=f"{op} gradients",
                streams=(COMPUTE, REDUCE),
                collective=CollectiveUse(group, op, size * share / count, count),
            )
            for group, op, share in self.reduce_ops
        )

    def _optimizer(self, parameters: float) -> Node:
        """The update; none where parameters live on servers, but still the end of all streams."""
        parameters = 0.0 if self.job.plan.data_parallel.servers else parameters
        seconds = optimizer_time_s(
            parameters / self.shards, self.job.plan.numerics.optimizer, self.job.kernels, self.job.stack
        )
        streams = (COMPUTE, GATHER, REDUCE, *(f"{REDUCE}.{group}" for group, _, _ in self.reduce_ops[1:]))
        return Node(kind="optimizer", name="optimizer", streams=streams, duration_ns=int(to_ns(seconds)))

    def _late_gather(self, parameters: float) -> tuple[Node, ...]:
        data = self.job.plan.data_parallel
        if self.zero == 0 or self.per_unit or data.overlap_param_gather:
            return ()
        use = CollectiveUse(self.shard_group, "all_gather", parameters * self.parameter_bytes)
        return (Node(kind="dp", name="all_gather parameters", streams=(COMPUTE, GATHER), collective=use),)
