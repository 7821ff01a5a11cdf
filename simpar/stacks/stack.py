"""Software stacks: what a training framework fuses, overlaps, buckets and keeps in memory. Chosen by name."""

import re
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat

from simpar import files
from simpar.calls import Strict
from simpar.errors import UserError
from simpar.profiles import LIKE, load_profile, once_if_shipped
from simpar.uncertainty.own_runs import MeasuredLayout, OwnRuns
from simpar.units import GIGA, MS, NS, NS_PER_S, US, Bytes, Count, Flags, Floats, Fraction, Numbers, Seconds

GAPS_OF_EXPANDABLE = 0.02  # torchtitan's runs, which expand segments, show 2 % and less
Dtype = Literal["fp32", "bf16"]
QuantizedWeights = Literal["none", "cached", "stored"]


class FusedProducts(Strict):
    """Which products run as one kernel, and what runs in the kernels of products.

    ``projections`` packs query, key and value, and gate and up, into one product each; ``adapters`` drops out and
    scales in the kernels of low-rank products; ``adapter_dropout``: they drop some of their inputs, each projection its
    own, and keep these copies. Of a mixture of experts: ``grouped_products`` runs the products of all
    local experts in one kernel, ``expert_epilogues`` add biases, clamp, activate and cast in the kernels of the
    products. With ``expert_tiles``, (rows, columns) that thread blocks compute, they are kernels that read tokens where
    they lie, and what comes back is one sum over copies [vLLM and SGLang, fused_moe].
    """

    projections: bool = True
    adapters: bool = True
    adapter_dropout: bool = False
    grouped_products: bool = True
    expert_epilogues: bool = False
    expert_tiles: tuple[tuple[Count, Count], ...] = ()


class Fusion(FusedProducts):
    """Which operators are fused into one pass over memory, and which attention kernel runs.

    ``attention`` "latent": the backward kernel supports heads whose keys are wider than their values.
    ``attention_rate`` is the speed of the stack's attention kernel over that of its family, by device and for all
    "others" (1 where neither is given). ``packed_attention``: it reads queries, keys and values where one product
    left them; else they are copied before it, and their gradients joined behind it. Where ``cross_entropy`` is
    not fused, ``sharded_loss`` takes each operation over the logits that a sharded vocabulary needs. Of a mixture of
    experts: ``permutation`` sorts tokens within the exchange, ``router`` scores and counts in one kernel.
    """

    norm: bool = True
    activation: bool = True
    rope: bool = True
    residual: bool = False
    dropout: bool = True
    cross_entropy: bool = True
    sharded_loss: bool = False
    permutation: bool = True
    router: bool = True
    packed_attention: bool = True
    attention: Literal["flash", "flash2", "latent", "unfused"] = "flash"
    attention_rate: dict[str, PositiveFloat] = Field(default_factory=dict)

    def rate_on(self, device: str) -> float:
        """Speed of the attention kernel on a device over that of its family there."""
        return self.attention_rate.get(device, self.attention_rate.get("others", 1.0))


Captured = Literal["attention", "mamba", "mlp", "router", "step"]
DTENSOR_BACKWARD, DTENSOR_BACKWARD_FROZEN = 1.6, 1.3
"""Host seconds of a tensor-parallel module as DTensors in its backward, over those of its forward: with gradients of
input and weights, and of the input alone [measured: benchmarks/fit_dtensors.py]."""


class HostTimes(Strict):
    """Seconds of the host that grow with what is launched, whatever the tokens.

    ``host_time_per_kernel_s`` to launch a kernel or one of the graphs captured of a layer,
    ``host_time_per_collective_s`` to launch a tensor-parallel collective. Where data parallelism works block by block,
    ``host_time_per_module_s`` for the hooks of every module with parameters and ``host_time_per_unit_s`` for those of a
    wrapped block, in every pass; without ``hooks_alone`` only where several ranks share what is wrapped, as a framework
    has it that wraps nothing else. ``host_time_per_array_s`` to clip, update and
    zero one array of parameters. ``host_time_per_dtensor_s`` for the inputs, product and outputs of a tensor-parallel
    module as DTensors in a forward, which nothing compiles; its backward takes :data:`DTENSOR_BACKWARD` times as
    long, with frozen weights :data:`DTENSOR_BACKWARD_FROZEN` times. ``document_loops``: Python loops over the documents
    of packed sequences (:mod:`simpar.program.blocks.documents`).
    """

    host_time_per_kernel_s: Seconds = 0.0
    host_time_per_collective_s: Seconds = 0.0
    host_time_per_module_s: Seconds = 0.0
    host_time_per_unit_s: Seconds = 0.0
    hooks_alone: bool = True
    host_time_per_array_s: Seconds = 0.0
    host_time_per_dtensor_s: Seconds = 0.0
    document_loops: bool = False


class Launch(HostTimes):
    """How work is issued and what it costs beyond the listed kernels.

    ``graphs`` are captured of a layer (see :mod:`simpar.program.blocks.graphs`; "step" captures all); ``message_s`` for
    a pipeline message to be agreed on before its data goes (a stack that sends shapes ahead waits for them);
    ``dispatch_s`` for a tensor-parallel collective to be prepared where nothing else runs meanwhile, because the host
    is the device; ``kernel_overhead`` multiplies kernel times for the copies, casts and layout changes that an operator
    list does not contain; ``optimizer_passes`` over the optimizer's states; ``gather_passes`` and ``reduce_passes``
    over memory around a gather of sharded parameters and a reduction of their gradients, per byte of them;
    ``shard_copy_s`` to copy the part of one rank in one tensor out of what was gathered, where that is done tensor by
    tensor; ``copy_out_passes`` over memory of what is gathered of a unit under FSDP or ZeRO-3, per byte of it, and
    ``copy_in_passes`` of what is reduced, in kernels between those of the blocks; ``pipeline_balance`` "cost" counts
    the output projection when layers are spread over stages; ``step_overhead_s`` once a step (data, logging, clipping,
    synchronisation).
    """

    graphs: tuple[Captured, ...] = ()
    message_s: Seconds = 0.0
    dispatch_s: Seconds = 0.0
    kernel_overhead: float = Field(1.0, gt=0, allow_inf_nan=False)
    optimizer_passes: float = Field(1.0, gt=0, allow_inf_nan=False)
    gather_passes: float = Field(0.0, ge=0, allow_inf_nan=False)
    reduce_passes: float = Field(0.0, ge=0, allow_inf_nan=False)
    shard_copy_s: Seconds = 0.0
    copy_out_passes: float = Field(0.0, ge=0, allow_inf_nan=False)
    copy_in_passes: float = Field(0.0, ge=0, allow_inf_nan=False)
    step_overhead_s: Seconds = 0.0
    pipeline_balance: Literal["layers", "cost"] = "layers"


class ExpertHabits(Strict):
    """What experts cost besides the listed kernels.

    The defaults are the general values of the pooled fit (benchmarks/fit_runs.py prints them; the present fit is within
    15 % of each): one prior for every stack without measured mixtures.
    ``overhead`` multiplies their kernels and those of their exchange; every routed row takes ``row_s`` in each of the
    four copies of a layer, whatever its length. Where no cap says how many tokens go where, the host waits ``sync_s``
    before each dispatch of a forward to learn it, and needs ``exchange_host_s`` for each exchange of copies between
    ranks: splits, padding and permutation, which a library that sends a token once to a rank does on the device.
    ``exchange_sms`` multiprocessors run an exchange, and are missing to the kernels beside it. Where exchanges run
    beside another microbatch, the host calls a layer part by part, each with a graph of gradients and events of its
    own, and launches take ``overlap_launches`` times as long.
    With ``sorts_on_host`` Python sorts what an exchange brought, as one piece for each sender and expert: a forward
    takes the host's time and the device's, one after the other, and the host needs ``piece_s`` for every piece, in
    every pass (torch.split and torch.cat of 128 pieces and their gradients on one core; they take no longer for more).
    With ``sends_scores`` the weights of what experts return travel with its copies, in exchanges of their own.
    With ``sends_cast`` tokens, and gradients of what comes back, leave for the experts as 8-bit products read them.
    With ``keeps_outputs`` what experts return is kept to be weighted where it comes back together, and what routers
    read in fp32. With ``loop`` Python runs one expert of a layer after the other, each with kernels and modules of its
    own.
    """

    overhead: float = Field(1.23, gt=0, allow_inf_nan=False)
    row_s: Seconds = 2.4 * NS
    sync_s: Seconds = 0.14 * MS
    exchange_host_s: Seconds = 0.95 * MS
    exchange_sms: int = Field(20, ge=0)
    overlap_launches: float = Field(2.1, ge=1, allow_inf_nan=False)
    sorts_on_host: bool = False
    piece_s: Seconds = 7.6 * US
    sends_scores: bool = False
    sends_cast: bool = False
    keeps_outputs: bool = False
    loop: bool = False


class ShardHabits(Strict):
    """What sharded data parallelism takes as one piece.

    With ``owner_broadcasts`` ranks of sharded optimizers own whole arrays, and where parameters are not gathered beside
    the forward every owner broadcasts its own behind the update, one after the other. With ``adapter_units`` FSDP wraps
    each adapter as a unit, because a flat parameter is trained whole or not at all [PEFT, utils/other.py,
    fsdp_auto_wrap_policy]. The host gathers no unit before the kernels of the second to last one are done [torch,
    distributed/fsdp/_runtime_utils.py, _unshard: limit_all_gathers]: of an adapter at the end of the block before, so
    that no gather of a block runs beside the kernels of another. With ``waits_for_last`` trainers keep whole gradients
    under FSDP until the last of several microbatches, unless a plan says otherwise by ``defer_grad_reduce``.
    """

    owner_broadcasts: bool = False
    adapter_units: bool = False
    waits_for_last: bool = False


class Overlap(ShardHabits):
    """What runs beside what, and what that costs the kernels.

    Without ``grad_reduce_zero1`` sharded optimizers reduce all gradients at once after the last backward. With
    ``once_in_pipelines`` FSDP gathers a stage once a step, keeps it, and reduces its whole gradients once behind the
    last backward, as torch's pipeline runtime has it do. With ``reduce_runs`` it sums the gradients of a chunk over the
    microbatches whose backwards follow one another there, whole, and reduces them behind the last of each such run.
    """

    grad_reduce: bool = True
    grad_reduce_zero1: bool = True
    param_gather: bool = True
    tensor_backward: bool = True
    tensor_forward: bool = False
    regather_input: bool = True
    p2p_blocks_compute: bool = False
    scatter_gather_p2p: bool = True
    all_reduce_zero1: bool = False
    once_in_pipelines: bool = False
    reduce_runs: bool = False
    compute_slowdown_while_comm: float = Field(1.0, ge=1)


class Context(Strict):
    """How the stack does context parallelism unless the plan says so (see ContextParallel in the plan)."""

    method: Literal["ring", "ulysses", "all_gather"] = "ring"
    balance: Literal["zigzag", "striped", "contiguous"] = "zigzag"


class TensorCast(Strict):
    """One cast of a tensor to 8 bits with one scale, operation by operation: how many kernels, bytes an element."""

    kernels: float = Field(gt=0, allow_inf_nan=False)
    element_bytes: float = Field(gt=0, allow_inf_nan=False)


UpdateKernels = Literal["fused", "foreach", "single"]


class UpdateHabits(Strict):
    """How the optimizer's update is run, and the memory that it takes for itself.

    ``kernels``: one pass over all arrays ("fused"), one kernel an operation over all arrays ("foreach"), or array by
    array ("single"), with temporaries (:mod:`simpar.cost.memory.update`). ``flat``: the states of a rank are one array;
    gradients are copied into another in fp32 for the update. Under ZeRO-3 both are done for ``group`` elements at a
    time. ``keeps_gradients``: where states are on the host, gradients stay on the device until the update sends them.
    ``in_backward``: every block is updated as soon as its gradients are there, so that those of others are not kept.
    """

    kernels: UpdateKernels = "fused"
    flat: bool = False
    group: float = Field(1.0 * GIGA, gt=0, allow_inf_nan=False)
    keeps_gradients: bool = False
    in_backward: bool = False


class StackNumerics(Strict):
    """Dtypes of gradients and states, and whether weight gradients accumulate in the GEMM.

    Where separate kernels widen a weight's gradient and add it to that of other microbatches, they move ``sum_bytes``
    per element, half of them each.
    ``reduce_dtype`` is what gradients are sent in (None: as they are kept).
    ``moment_dtype`` is that of optimizer states (None: fp32) where parameters are stored in the compute dtype.
    Where 8-bit products have block scales, ``casts_apart`` casts rows when a product reads them and columns when the
    weight-gradient product does, in separate kernels; else both are written at once. Where they have one scale per
    tensor, ``tensor_cast`` is what a product does to both of its operands each time it reads them; without it the
    kernel that writes an operand casts it, except for gradients, which have passes of their own. ``update`` says how
    the optimizer runs. With ``gathers_narrow`` weights that are stored wider than products read them arrive narrow, as
    FSDP gathers them.
    """

    grad_dtype: Dtype = "fp32"
    reduce_dtype: Dtype | None = "fp32"
    parameter_dtype: Dtype = "bf16"
    master_weights: bool = True
    moment_dtype: Dtype | None = None
    gradient_accumulation_fusion: bool = True
    sum_bytes: float = Field(0.0, ge=0, allow_inf_nan=False)
    casts_apart: bool = False
    gathers_narrow: bool = False
    tensor_cast: TensorCast | None = None
    update: UpdateHabits = UpdateHabits()


class Buckets(Strict):
    """Sizes of gradient buckets in bytes of the reduced dtype, and when they are reduced if not beside the backward.

    ``in_turn``: ZeRO-2 and 3 then reduce each bucket when it is full, with no kernels beside it, instead of all of them
    behind the last backward. ``by_weight``: what is gathered before its use, and reduced behind it, is whole weight by
    weight, as XLA schedules it, and not block by block. ``replicas_late``: replicas of shards (slices of TPUs) sum
    theirs at once behind the last backward.
    """

    bucket: Bytes = 25e6
    first: Bytes = 0.0
    in_turn: bool = False
    by_weight: bool = False
    replicas_late: bool = False


class AllocatorHabits(Strict):
    """What the process holds beyond what it allocated for tensors.

    ``fragmentation``: blocks that cannot be reused, per byte that moves during a step; ``churn``: more of it where
    passes of different microbatches alternate; ``settling``: more of it in the first steps, which a layout has to get
    through and logs of later ones do not show; ``expandable``: its recipes turn on segments that expand where
    memory is tight, which leaves next to no gaps, and ``always_expandable`` everywhere; ``planned``: a compiler
    plans all buffers of a step, and computes again what would not fit (XLA); ``held_outputs``: how many partial sums of
    row-parallel products a communication stream still holds after they are freed, because the host runs ahead by a
    queue of launches. ``context_bytes`` of the device context and its kernels, ``communicator_bytes`` per communicator,
    ``workspace_bytes`` of the GEMM libraries (allocated through the same allocator); ``empty_cache_steps``: steps after
    which it gives its free blocks back, 0 for never.
    """

    fragmentation: Fraction = 0.05
    churn: Fraction = 0.05
    settling: Fraction = 0.0
    expandable: bool = False
    always_expandable: bool = False
    planned: bool = False
    held_outputs: float = Field(0.0, ge=0, allow_inf_nan=False)
    context_bytes: Bytes = 0.0
    communicator_bytes: Bytes = 0.0
    workspace_bytes: Bytes = 0.0
    empty_cache_steps: int = Field(0, ge=0)

    def gaps(self, alternates: bool | Flags) -> Floats:
        """Bytes that cannot be reused, per byte that moves; ``alternates``: passes of different microbatches do so."""
        gaps = self.fragmentation + self.churn * np.asarray(alternates, dtype=np.float64)
        return np.minimum(gaps, GAPS_OF_EXPANDABLE if self.always_expandable else np.inf)

    def tight_gaps(self, alternates: bool | Flags) -> Floats:
        """The same where memory is tight, the first steps included."""
        most = GAPS_OF_EXPANDABLE if self.expandable else np.inf
        return np.minimum(self.gaps(alternates) + self.settling, most)


class LossHabits(Strict):
    """What the stack keeps of the loss.

    ``logit_bytes`` per logit at its peak, ``logit_saved_bytes`` from forward to backward. With more than one of
    ``loss_chunks`` the tokens take output projection, loss and its backward in turn, piece by piece: the logits of one
    exist at a time, and none are saved; ``loss_again``: the pieces take all losses first, and the projection once more
    in backward. In a pipeline ``kept_outputs`` microbatches' outputs of the last stage stay until its schedule has
    ended, which joins them then (:mod:`simpar.cost.memory.outputs`). With ``whole_logits``
    every tensor-parallel rank gathers all logits for its loss, with ``whole_vocabulary`` it has the whole token table,
    too.
    """

    logit_bytes: float = Field(6.0, ge=0, allow_inf_nan=False)
    logit_saved_bytes: float = Field(2.0, ge=0, allow_inf_nan=False)
    loss_chunks: int = Field(1, ge=1)
    loss_again: bool = False
    kept_outputs: int = Field(0, ge=0)
    whole_logits: bool = False
    whole_vocabulary: bool = False

    def loss_bytes(self, num_logits: Numbers) -> tuple[Numbers, Numbers]:
        """(saved, peak) bytes of ``num_logits`` logits and their loss.

        At the peak plain PyTorch with an fp32 loss holds 14 bytes a logit, a bf16 loss 6, eight chunks 1.6,
        Megatron's vocabulary-parallel loss 2 + 4 and 2..4 more in backward.
        """
        saved = self.logit_saved_bytes if self.loss_chunks == 1 else 0.0
        return saved * num_logits, self.logit_bytes * num_logits / self.loss_chunks


class RecomputeHabits(LossHabits):
    """What recomputation means.

    ``selective`` is what selective recompute means: Megatron drops core attention; torchtitan keeps attention and every
    other matmul and recomputes the rest. ``checkpoints`` are what full recompute runs again as one: whole layers, or
    each of their modules (norms, attention, MLP), whose inputs are kept then.
    """

    selective: Literal["attention", "operators"] = "attention"
    checkpoints: Literal["layer", "modules"] = "layer"


class MemoryHabits(RecomputeHabits):
    """What the stack keeps in memory.

    Of a layer: ``pins_packed_qkv`` (views keep the packed projection alive), ``gate`` (of a gated activation "inputs"
    alone, so that the backward kernel that reads them computes their product again; the "product" as well; or "all",
    where the activated gate is a tensor of its own), ``gate_inputs`` (its inputs, as they are or in 8 bits:
    activation_func_fp8_input_store of Megatron-Core), ``eager_copies`` (fp32 copies in norms),
    ``extra_saved`` bytes per token and hidden feature. For the whole run: ``gather_buffers`` of one full residual
    stream each under sequence parallelism, ``bucket_bytes`` per parameter for gradient buckets apart from the
    gradients, ``gather_copies`` (flat copies made to gather sharded parameters after the update stay until the next
    pass), ``cast_weights`` (parameters that are stored wider than a product reads them are cast once a step, and the
    copies stay through all passes; fully sharded ones are gathered in the narrow dtype), ``transformer_engine``
    (empty weight gradients of its products, one of each shape, stay for the run, see
    :func:`simpar.cost.memory.static.placeholder_bytes`; its 8-bit products keep cast inputs), and
    ``quantized_weights`` (of 8- and 4-bit products, by precision and for all "others": "none", "cached" or "stored",
    see :mod:`simpar.cost.memory.quantized`).
    """

    pins_packed_qkv: bool = False
    gate: Literal["inputs", "product", "all"] = "product"
    gate_inputs: Literal["bf16", "fp8"] = "bf16"
    eager_copies: bool = False
    extra_saved: float = Field(0.0, ge=0, allow_inf_nan=False)
    gather_buffers: int = Field(0, ge=0)
    bucket_bytes: float = Field(0.0, ge=0, allow_inf_nan=False)
    gather_copies: bool = False
    cast_weights: bool = False
    transformer_engine: bool = False
    quantized_weights: dict[str, QuantizedWeights] = Field(default_factory=dict)
    allocator: AllocatorHabits = AllocatorHabits()

    def weights_in(self, precision: str) -> QuantizedWeights:
        """How weights of products in a precision of 8 or 4 bits are held."""
        return self.quantized_weights.get(precision, self.quantized_weights.get("others", "none"))


class Described(Strict):
    """What a profile is called, and where its numbers come from.

    ``learned_from`` names the shipped profile from which this one was learnt. Measurements of that profile count for
    this one too, beside the user's ``own_runs`` and every ``measured`` layout of theirs. ``earlier`` names the profiles
    of releases up to some year and month, where they have one of their own.
    """

    name: str
    learned_from: str = ""
    own_runs: tuple[OwnRuns, ...] = ()
    measured: tuple[MeasuredLayout, ...] = ()
    description: str
    provenance: str = ""
    sources: tuple[str, ...] = ()
    earlier: dict[str, str] = Field(default_factory=dict)

    @property
    def known_as(self) -> str:
        """The profile under which measured runs count for this one."""
        return self.learned_from or self.name


class Stack(Described):
    """A training framework as the simulator sees it.

    ``passes`` are measured (forward, backward) passes over memory of memory-bound operators by kind, each of the
    operator's output (of a loss, of its logits in fp32), in place of those that ``fusion`` implies.
    ``variants`` name releases or settings that differ, by dotted key, in SI.
    """

    data_parallel: Literal["ddp", "fsdp"] = "ddp"
    sequence_parallel: bool = True
    fusion: Fusion = Fusion()
    launch: Launch = Launch()
    experts: ExpertHabits = ExpertHabits()
    overlap: Overlap = Overlap()
    context: Context = Context()
    numerics: StackNumerics = StackNumerics()
    buckets: Buckets = Buckets()
    memory: MemoryHabits = MemoryHabits()
    passes: dict[str, tuple[PositiveFloat, PositiveFloat]] = Field(default_factory=dict)
    variants: dict[str, dict[str, bool | float | str]] = Field(default_factory=dict)

    def step_s(self, makespan_ns: Numbers) -> Numbers:
        """Seconds of a step whose passes end after ``makespan_ns``: the stack's overhead per step is added."""
        return makespan_ns / NS_PER_S + self.launch.step_overhead_s

    def shards(self, zero: Numbers) -> Flags:
        """Whether data parallelism at a ZeRO stage works block by block (FSDP) where a plan does not name its kind."""
        third, second = np.asarray(zero) == 3, np.asarray(zero) == 2
        return np.asarray(third | (second & (self.data_parallel == "fsdp")))

    def reduces_in_turn(self, zero: Numbers) -> Flags:
        """Whether gradients that are not reduced beside the backward are reduced between its kernels."""
        return np.asarray(self.buckets.in_turn & (np.asarray(zero) >= 2))

    def once_a_step(self, sharded: Flags | bool, is_pipelined: Flags | bool) -> Flags:
        """Whether FSDP (``sharded``) gathers parameters and reduces whole gradients once a step: in pipelines."""
        return np.asarray(sharded & self.overlap.once_in_pipelines & np.asarray(is_pipelined))


DEFAULT_STACK = "megatron"
ADAPTER_STACK = "huggingface"
"""The stack of those who train adapters, where none is named: Megatron-Core trains none, and no weights of 4 bits."""


@once_if_shipped("stacks")
def load_stack(name: str | Path) -> Stack:
    """A stack by bundled name, by the path of its YAML, or by a part of a learnt file. Raises UserError.

    A bundled name may state a release by year and month ("nemo@24.05"); without one it is the newest.

    >>> load_stack("torchtitan").name
    'torchtitan'
    """
    named, at, release = str(name).partition("@")
    if at and named in files.bundled("stacks"):
        if not re.fullmatch(r"\d\d\.\d\d(\.\d+)?", release):
            raise UserError(f"stack = {name!r}: a release is a year and a month, such as {named}@24.05")
        newest = load_stack(named)
        until = next((last for last in sorted(newest.earlier) if release[:5] <= last), None)
        return newest if until is None else load_stack(newest.earlier[until])
    return files.parse(Stack, load_profile(name, "stacks", "stack")[0], also=(LIKE,))
