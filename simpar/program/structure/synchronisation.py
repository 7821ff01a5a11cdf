"""Data parallelism as hooks: which parameters are gathered and which gradients are reduced, when and by what.

| scheme | before use | after the backward of | with |
|---|---|---|---|
| DDP (zero 0) | - | the last microbatch | all-reduce in buckets |
| ZeRO-1 | first forward (or step end) gathers parameters in buckets | the last microbatch | reduce-scatter in buckets |
| ZeRO-1 by owners | behind the update, array by array | the last microbatch | all-reduce in buckets |
| ZeRO-2 | as ZeRO-1 | every microbatch | reduce-scatter in buckets |
| FSDP zero 2 | first forward gathers and keeps | every microbatch | reduce-scatter per unit |
| FSDP zero 3 | every pass gathers and frees | every microbatch | reduce-scatter per unit |
| FSDP in torch's pipelines | first forward gathers and keeps | the last microbatch | reduce-scatter per unit |
| FSDP 2, 3 that reduce by runs | as above | the last of microbatches in turn | reduce-scatter per unit |
| ZeRO-2, 3 with defer_grad_reduce | as without | the last microbatch | as without |

Experts are held by fewer ranks than the rest of a stage and are gathered, reduced and sharded among those.
With HSDP the shards live in groups of dp/replicas ranks and an all-reduce across the replicas follows
[Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from simpar.cost.memory.widths import defers, once_a_step, reduced_bytes, reduces_late
from simpar.cost.optimizers import Matrix, arrays_host_s, optimizer_time_s, products_time_s
from simpar.dataclass import dataclass
from simpar.layout.layout import Layout
from simpar.plan.choices.data_parallel import ALL_AT_ONCE
from simpar.plan.optimizers import OPTIMIZERS
from simpar.program.blocks.phases import COMPUTE, CollectiveUse
from simpar.program.job import TrainingJob
from simpar.program.structure.buckets import mean_bucket
from simpar.program.structure.hooks import LOOK_AHEAD, Copies, SyncPolicy, Whole
from simpar.program.structure.host_update import HostUpdate
from simpar.program.structure.templates import DELAYED, GATHER, HOST_OPS, REDUCE, TemplateNode
from simpar.units import DTYPE_BYTES, Numbers, to_ns

DENSE, EXPERTS, ENCODER = "dp", "edp", "dp_encoder"
"""Kinds of ranks with copies: of everything else, of experts, and of an encoder that all pipeline ranks hold."""
GATHERED = ".gathered"
"""Suffix of the kind of replicas whose parameters are sharded between uses, beside others of the same group."""


@dataclass(frozen=True)
class ReplicaRanks:
    """Ranks that hold the same parameters: ``width`` ranks sum gradients, ``shards`` of them share states.

    ``kind`` prefixes the names of their groups; ``zero`` is the ZeRO stage in effect, 0 where there is one shard.
    Parameters that are ``gathered`` are sharded between uses whatever the plan does with others; their groups are those
    of the kind without that suffix.
    """

    kind: str
    width: int
    shards: int
    zero: int
    gathered: bool = False

    @staticmethod
    def of(kind: str, width: int, layout: Layout) -> ReplicaRanks:
        """Read the scheme from a checked plan."""
        copies = 1 if layout.replicas_are_independent else int(layout.hsdp)
        shards = width // copies if layout.zero else 1
        return ReplicaRanks(kind, width, shards, int(layout.zero) if shards > 1 else 0)

    @property
    def copies(self) -> int:
        """Copies of the sharded states."""
        return self.width // self.shards if self.zero else 1

    @property
    def shard_group(self) -> str:
        """The group kind that holds one copy of the sharded states."""
        return f"{self.kind}_shard" if self.copies > 1 else self.group

    @property
    def group(self) -> str:
        """The group kind that holds all copies."""
        return self.kind.removesuffix(GATHERED)


@dataclass(frozen=True)
class Synchronisation:
    """The data-parallel behaviour of a job inside a step, for each kind of ``replicas`` (the others; experts; encoder).

    Replicas that step on their own (:mod:`simpar.plan.sync`) share nothing inside a step. Other axes cut a tensor over
    ``cut`` ranks.
    """

    job: TrainingJob
    replicas: tuple[ReplicaRanks, ...]
    cut: int = 1

    @staticmethod
    def of(job: TrainingJob) -> Synchronisation:
        """Read the scheme from a checked plan."""
        layout = job.layout
        apart_in = int(layout.replicas) if layout.replicas_are_independent else 1
        replicas = [ReplicaRanks.of(DENSE, int(layout.width) // apart_in, layout)]
        if job.graph.is_mixture:
            replicas.append(ReplicaRanks.of(EXPERTS, int(layout.expert_copies) // apart_in, layout))
        if layout.encoder_layers:
            replicas.append(ReplicaRanks.of(ENCODER, int(layout.encoder_width), layout))
        return Synchronisation(job, tuple(replicas), int(layout.tp))

    @cached_property
    def alone(self) -> bool:
        """Whether replicas step on their own."""
        return self.job.layout.replicas_are_independent

    @cached_property
    def width(self) -> int:
        """Ranks that sum gradients of everything but experts."""
        return self.replicas[0].width

    @cached_property
    def zero(self) -> int:
        """The ZeRO stage in effect for any parameters."""
        return max(each.zero for each in self.replicas)

    def reduce_ops(self, replicas: ReplicaRanks) -> tuple[tuple[str, str, float], ...]:
        """Collectives, one after the other, that reduce gradients: (group kind, operation, share of the bytes)."""
        if replicas.width == 1:
            return ()
        if replicas.zero == 0 or (replicas.zero == 1 and self.job.stack.overlap.all_reduce_zero1):
            return ((replicas.group, "all_reduce", 1.0),)
        first = (replicas.shard_group, "reduce_scatter", 1.0)
        between = (f"{replicas.kind}_replicate", "all_reduce", 1.0 / replicas.shards)
        return (first,) if replicas.copies == 1 else (first, between)

    @cached_property
    def reduce_streams(self) -> tuple[str, ...]:
        """Streams of reductions other than REDUCE."""
        later = [group for each in self.replicas for group, _, _ in self.reduce_ops(each)[1:]]
        return tuple(f"{REDUCE}.{group}" for group in later)

    @cached_property
    def single_process(self) -> bool:
        """Whether one process drives all devices: parameters leave, and gradients arrive, through the first one."""
        return self.job.layout.kind == "single_process" and self.width > 1

    @cached_property
    def per_unit(self) -> bool:
        """Whether each block is a unit of gathering and reduction (FSDP) instead of flat buckets."""
        return self.job.layout.kind == "fsdp"

    @cached_property
    def adapter_units(self) -> bool:
        """Whether adapters are FSDP units, so that the units gathered ahead are adapters and not the next block."""
        layout = self.job.layout
        return self.per_unit and layout.lora_rank is not None and self.job.stack.overlap.adapter_units

    @cached_property
    def exchanges_matrices(self) -> bool:
        """Whether the update needs whole matrices that are cut by rows."""
        return self.per_unit and bool(OPTIMIZERS[self.job.layout.optimizer].by_matrix)

    @cached_property
    def parameter_bytes(self) -> float:
        """Bytes per parameter that a gather moves: as computed with, unless the plan says otherwise."""
        given = self.job.layout.gather_dtype
        return DTYPE_BYTES[given] if given else self.compute_bytes

    @cached_property
    def gradient_bytes(self) -> float:
        """Bytes per parameter that a reduction moves."""
        return reduced_bytes(self.job.layout, self.job.stack)

    @cached_property
    def compute_bytes(self) -> float:
        """Bytes per parameter as it is computed with."""
        return self.job.layout.products.handed_bytes

    @cached_property
    def quantise_s_per_byte(self) -> dict[str, float]:
        """Seconds per byte sent, by operation: quantising before, widening after, and the stack's own copies.

        Below 16 bits, these are passes over memory that touch the wide and the narrow value: two for reduced gradients,
        one for gathered parameters, hence passes x (wide + narrow) / narrow / bandwidth. From 16 bits on it is 0,
        because the kernels around a collective write what is sent.
        """
        grad = DTYPE_BYTES[self.job.layout.grad_dtype]
        gathered, reduced = (
            passes * (wide + narrow) / narrow / self.job.kernels.bandwidth if narrow < DTYPE_BYTES["bf16"] else 0.0
            for wide, narrow, passes in ((self.compute_bytes, self.parameter_bytes, 1), (grad, self.gradient_bytes, 2))
        )
        around_gather, around_reduce = self._copies_s_per_byte
        return {
            "all_gather": gathered + around_gather,
            "reduce_scatter": reduced + around_reduce,
            "all_reduce": reduced,
        }

    @cached_property
    def _copies_s_per_byte(self) -> tuple[float, float]:
        """Seconds per byte of the stack's copies around (a gather, a reduction); 0 if the plan's kind is not its own.

        They are passes over memory and, for gathers, a launch for each rank's part of each tensor of mean size.
        """
        launch, sizes = self.job.stack.launch, self.job.graph.tensor_sizes
        if self.job.layout.kind != self.job.stack.data_parallel:
            return 0.0, 0.0
        pass_s = 1.0 / self.job.kernels.bandwidth
        gather_s, reduce_s = launch.gather_passes * pass_s, launch.reduce_passes * pass_s
        if launch.shard_copy_s and sizes:
            tensor_bytes = sum(sizes) / len(sizes) / self.cut * self.parameter_bytes
            most_cut = min((each for each in self.replicas if each.kind != EXPERTS), key=lambda each: each.width)
            gather_s += launch.shard_copy_s * most_cut.shards / tensor_bytes
        return gather_s, reduce_s

    @cached_property
    def _bucket_bytes(self) -> float:
        """Mean bytes of a bucket, which closes with the tensor that fills it."""
        least = self.job.layout.bucket_bytes
        if not least or least == ALL_AT_ONCE:
            return least
        scale = self.gradient_bytes / self.cut
        return mean_bucket(self.job.graph.tensor_sizes, least / scale) * scale

    @cached_property
    def reduces_late(self) -> bool:
        """Whether gradients wait for their reduction until the last backward has ended."""
        return bool(reduces_late(self.job.layout, self.job.stack))

    @cached_property
    def replicas_late(self) -> bool:
        """Whether only sums over replicas of shards wait until the last backward has ended."""
        return self.job.stack.buckets.replicas_late and not self.reduces_late

    @cached_property
    def defers(self) -> bool:
        """Whether sharded gradients are reduced beside the backward of the last microbatch alone."""
        return self.zero >= 2 and bool(defers(self.job.layout, self.job.stack))

    @cached_property
    def by_runs(self) -> bool:
        """Whether gradients of a chunk are summed over the microbatches that run through it in turn, then reduced."""
        layout, habits = self.job.layout, self.job.stack.overlap
        sharded = all(each.zero >= 2 for each in self.replicas if each.width > 1) and self.zero >= 2
        once = self.defers or once_a_step(layout, self.job.stack)
        if not (habits.reduce_runs and self.per_unit and layout.overlap_grad_reduce) or once:
            return False
        return sharded and not layout.offloads

    def policy(self, kind: str, *, boundary: bool, opens: bool = True) -> SyncPolicy:
        """Hooks of one pass; ``boundary``: it is the stage's first forward, or the last backward of the stage or run.

        Where gradients are reduced by runs, a backward that does not open a run adds to the gradients of those before.
        """
        layout, host = self.job.layout, self.host
        if self.single_process:
            return SyncPolicy()
        copies = self.per_unit / self.job.kernels.bandwidth
        several = not boundary and self.job.accumulates
        return SyncPolicy(
            activations=layout.offload_activations,
            drives=layout.offload_parameters == "nvme",
            held_bytes=host.gradient_bytes * layout.host_share if layout.offload_gradients else 0.0,
            accumulates=host.accumulation if several else 0.0,
            copies=tuple(self._copies(each, kind, boundary=boundary, opens=opens) for each in self.replicas),
            in_turn=not (layout.overlap_grad_reduce or self.reduces_late),
            buffers=1 if self.adapter_units else LOOK_AHEAD,
            copy_out_s=copies * self.job.stack.launch.copy_out_passes * self.parameter_bytes,
            copy_in_s=copies * self.job.stack.launch.copy_in_passes * self.gradient_bytes,
            bucket_bytes=self._bucket_bytes,
            first_bucket_bytes=float(layout.first_bucket_bytes or 0),
        )

    def _copies(self, replicas: ReplicaRanks, kind: str, *, boundary: bool, opens: bool) -> Copies:
        """What a pass does with the parameters of one kind of ranks; arguments as for :meth:`policy`.

        Stages are those in effect for these ranks. "Every" is every pass that needs the parameters (not W) or completes
        gradients (B, W); "first" and "last" are boundaries. ZeRO-3 with parameters kept after the forward is stage 2.

        | stage | parameters gathered before | freed after use | gradients reduced behind |
        |---|---|---|---|
        | 0 | - | - | last |
        | 1 | first forward (FSDP, or overlap_param_gather; else behind the update) | - | last |
        | 2 | as 1 | - | every; last of a run if by runs; last if FSDP reduces once a step or gradients are deferred |
        | 3 | every | yes | as 2 |
        | ``gathered`` ranks, from stage 1 on | every | yes | every; last in stage 1 or once a step |

        Without overlap_grad_reduce no pass reduces: :meth:`late_reductions` does, but for ``gathered`` ranks and for
        stages 2 and 3 of stacks that reduce in turn with the kernels of the backward. Deferred gradients of several
        microbatches are whole all the time, which the static account counts.
        """
        layout, host, zero = self.job.layout, self.host, replicas.zero
        own_units, reshards = self.per_unit or replicas.gathered, bool(layout.reshard_after_forward)
        frees_after_use = replicas.gathered or (zero == 3 and reshards)
        by_runs = self.by_runs and zero >= 2 and not replicas.gathered
        deferred = self.defers and not replicas.gathered
        every_pass = zero >= 2 and not (by_runs or deferred or once_a_step(layout, self.job.stack))
        # else gradients wait for the end of the step (late_reductions)
        reduces_beside = replicas.gathered or not self.reduces_late
        completes_gradients = kind in ("backward", "weight_gradient") and reduces_beside
        reduces = completes_gradients and (boundary or every_pass)
        # FSDP has no flat buffer: whole gradients of a unit live from its backward to its reduction
        holds_whole = own_units and zero >= 2 and (reduces or (completes_gradients and by_runs))
        holds_whole = holds_whole and not (deferred and self.job.accumulates)
        # a sum over a run is kept in the wider of the two dtypes; fused accumulation adds into it, without a copy
        kept = max(self.gradient_bytes, self.compute_bytes) if by_runs else self.gradient_bytes
        in_place = by_runs and self.job.stack.numerics.gradient_accumulation_fusion
        made = kept * opens if in_place else self.compute_bytes
        gathers_first = kind == "forward" and boundary and (self.per_unit or layout.overlap_param_gather)
        gathers = kind != "weight_gradient" and zero > 0 and (frees_after_use or gathers_first)
        bucket = self._bucket_bytes / self.gradient_bytes  # parameters; all at once fill none
        in_buckets = not own_units and layout.bucket_bytes != ALL_AT_ONCE
        return Copies(
            kind=replicas.kind,
            gather_group=replicas.shard_group if gathers else "",
            gathered_bytes=self.parameter_bytes,
            gather_bucket_bytes=bucket * self.parameter_bytes if in_buckets else 0.0,
            buffer_bytes=self.compute_bytes if frees_after_use or host.fetches else 0.0,
            fetched_bytes=host.fetched_bytes(replicas.shards, kind),
            sent_bytes=host.sent_bytes(replicas.shards, kind, boundary=boundary),
            gradient_bytes=self.gradient_bytes,
            whole=Whole(made, kept, adds=by_runs and not opens) if holds_whole else Whole(),
            reduce_ops=self.reduce_ops(replicas)[: 1 if self.replicas_late else None] if reduces else (),
            reshard=host.fetches or replicas.gathered or (self.zero == 3 and reshards),
            per_unit=own_units,
        )

    @cached_property
    def host(self) -> HostUpdate:
        """The job's traffic with the host, and the host's part of the update."""
        late = self.width > 1 and self.reduces_late
        return HostUpdate(self.job, late, self.defers)

    @cached_property
    def host_streams(self) -> tuple[str, ...]:
        """Streams of transfers to and from the host."""
        layout = self.job.layout
        late = tuple(stream + DELAYED for stream in HOST_OPS) if layout.offload_delayed else ()
        return (*HOST_OPS, *late) if layout.offloads else ()

    def tail(
        self,
        held: Mapping[str, float],
        *,
        root: bool = True,
        sums: tuple[TemplateNode, ...] = (),
        matrices: tuple[Matrix, ...] = (),
    ) -> tuple[TemplateNode, ...]:
        """Nodes behind the last backward on a rank; ``held`` are its parameters by kind, before sharding.

        A single process sums gradients on the first device (``root``), which alone updates. ``sums`` are other
        reductions before the update, ``matrices`` those that a matrix optimizer updates.
        """
        if self.single_process:
            use = CollectiveUse(DENSE, "reduce", held[DENSE] * self.gradient_bytes)
            reduce = TemplateNode(kind="dp", name="reduce gradients", streams=(COMPUTE, REDUCE), collective=use)
            return (reduce, self._optimizer(held if root else {}, matrices if root else ()))
        before = (*_behind(self.late_reductions(held), "gradients", REDUCE), *sums)
        after = _behind(self.late_gathers(held), "parameters", GATHER)
        if not (self.host.fetches or self.job.layout.host_share > 0):
            update = self._optimizer(held, matrices)
            return (*before, *self._exchange(matrices), update, *after)
        update = self._optimizer(held, matrices)
        return (*self.host.behind(before, float(self.share(held)), update), *after)

    def late_reductions(self, held: Mapping[str, Numbers]) -> list[CollectiveUse]:
        """Reductions behind the last backward, one after the other; none where all of them overlap it.

        ``held`` are a rank's parameters by kind, numbers or arrays of many ranks. There is a call per bucket, or per
        unit.
        """
        layout = self.job.layout
        if not (self.reduces_late or self.replicas_late) or self.single_process:
            return []
        result, bucket = [], self._bucket_bytes
        units = float(len(self.job.graph.layers) // layout.mesh.pp)
        for each in (each for each in self.replicas if not each.gathered):
            size = held[each.kind] * self.gradient_bytes
            buckets = np.rint(np.asarray(size) / bucket) if bucket else 1.0
            count = np.maximum(np.ones_like(size), units if self.per_unit else buckets)
            for group, op, part in self.reduce_ops(each)[1 if self.replicas_late else 0 :]:
                result.append(CollectiveUse(group, op, size * part / count, count))
        return result

    def late_gathers(self, held: Mapping[str, Numbers]) -> list[CollectiveUse]:
        """Gathers of all parameters behind the update, one after the other; ``held`` as in :meth:`late_reductions`."""
        if self.per_unit or self.job.layout.overlap_param_gather or self.single_process:
            return []
        result = []
        for each in (each for each in self.replicas if each.zero and not each.gathered):
            calls = float(self._owners(each))
            size = held[each.kind] * self.parameter_bytes / calls
            result.append(CollectiveUse(each.shard_group, self.late_gather_op, size, np.full_like(size, calls)))
        return result

    @cached_property
    def late_gather_op(self) -> str:
        """The collective that brings parameters from the ranks that updated them to all others behind the update."""
        return "broadcast" if self.job.stack.overlap.owner_broadcasts else "all_gather"

    def _owners(self, replicas: ReplicaRanks) -> int:
        """Ranks that broadcast parameters one after the other: as many as own whole arrays; 1 if all gather at once."""
        if not self.job.stack.overlap.owner_broadcasts:
            return 1
        graph = self.job.graph
        arrays = graph.num_expert_tensors if replicas.kind == EXPERTS else len(graph.tensor_sizes)
        return max(1, min(replicas.shards, int(self.job.layout.per_pipeline_rank(arrays))))

    def _exchange(self, matrices: tuple[Matrix, ...]) -> tuple[TemplateNode, ...]:
        """Under FSDP, rows of matrices in bf16 to the ranks that update whole matrices, and of the updates back."""
        if not self.exchanges_matrices:
            return ()
        nodes = []
        for each in self.replicas:
            mine = (m for m in matrices if m.expert == (each.kind == EXPERTS))
            size = float(sum(m.rows * m.columns * m.count for m in mine))
            if each.zero and size:
                use = CollectiveUse(each.shard_group, "all_to_all", size / each.shards * DTYPE_BYTES["bf16"])
                node = TemplateNode("dp", "all_to_all matrices", (COMPUTE, GATHER), collective=use)
                nodes += [node, node]
        return tuple(nodes)

    def _optimizer(self, held: Mapping[str, float], matrices: tuple[Matrix, ...] = ()) -> TemplateNode:
        """The update on the device, which ends all streams; of no duration where servers update the parameters."""
        shards = (self.replicas[0].shards, self.replicas[-1].shards)
        seconds = float(self.update_s(self.share(held)))
        seconds += products_time_s(matrices, shards, self.job.layout, self.job.kernels)
        streams = (COMPUTE, GATHER, REDUCE, *self.reduce_streams)
        return TemplateNode(kind="optimizer", name="optimizer", streams=streams, duration_ns=int(to_ns(seconds)))

    def share(self, held: Mapping[str, Numbers]) -> Numbers:
        """Parameters whose states a rank has, from those that it holds by kind; a number or arrays."""
        return sum(held.get(each.kind, 0.0) / each.shards for each in self.replicas)

    def update_s(self, share: Numbers) -> Numbers:
        """Seconds of the device's update for a share of parameters, products of matrices left out; number or arrays.

        It takes at least as long as its host needs for the arrays of parameters.
        """
        layout, stack = self.job.layout, self.job.stack
        here = share * (0.0 if layout.servers else 1.0 - layout.host_share)
        device_s = optimizer_time_s(here, layout, self.job.kernels, stack)
        return device_s if layout.servers else np.maximum(device_s, self.arrays_host_s)

    @cached_property
    def arrays_host_s(self) -> float:
        """Seconds of the host for the arrays of parameters of a rank."""
        return arrays_host_s(self.job.graph, self.job.layout, self.job.stack)


def _behind(uses: Sequence[CollectiveUse], what: str, stream: str) -> tuple[TemplateNode, ...]:
    """Nodes of a rank's collectives behind its passes, one after the other; empty ones are left out."""
    of_rank = [replace(u, size_bytes=float(u.size_bytes), count=int(u.count)) for u in uses if u.size_bytes]
    return tuple(TemplateNode("dp", f"{use.op} {what}", (COMPUTE, stream), collective=use) for use in of_rank)
