"""Software stacks: what a training framework fuses, overlaps, buckets and keeps. Chosen by name."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from simpar import files
from simpar.cost.memory_policy import MemoryHabits
from simpar.plan.plan import ContextParallel, Plan
from simpar.plan.staged import has_tensor_ranks
from simpar.units import DTYPE_BYTES, Bytes, Seconds

Dtype = Literal["fp32", "bf16"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fusion(_Part):
    """Which kernels are one pass over memory, and which attention.

    ``attention_rate`` is the speed of the stack's attention kernel over that of its family, by device and of all
    "others" (1 where neither is given). Of a
    mixture of experts: ``grouped_products`` runs the products of all local experts in one kernel, ``permutation`` sorts
    tokens on their way, ``router`` scores and counts in one, ``expert_epilogues`` add biases, clamp, activate and cast
    in the kernels of the products.
    """

    norm: bool = True
    activation: bool = True
    rope: bool = True
    residual: bool = False
    dropout: bool = True
    cross_entropy: bool = True
    grouped_products: bool = True
    permutation: bool = True
    router: bool = True
    expert_epilogues: bool = False
    attention: Literal["flash", "flash2", "unfused"] = "flash"
    attention_rate: dict[str, PositiveFloat] = {}

    def rate_on(self, device: str) -> float:
        """Speed of the attention kernel on a device over that of its family there."""
        return self.attention_rate.get(device, self.attention_rate.get("others", 1.0))


Captured = Literal["attention", "mamba", "mlp", "router", "step"]


class Launch(_Part):
    """How work is issued and what it costs beyond the listed kernels.

    ``host_time_per_kernel_s`` to launch a kernel or one of the ``graphs`` captured of a layer (see
    :mod:`simpar.cost.graphs`; "step" captures all), ``host_time_per_collective_s`` to launch a tensor-parallel
    collective; ``message_s`` for a pipeline message to be agreed on before its data goes (a stack that sends shapes
    ahead waits for them); ``dispatch_s`` for a tensor-parallel collective to be prepared where nothing else runs
    meanwhile, because the host is the device; ``kernel_overhead`` multiplies kernel times for the copies,
    casts and layout changes that an operator list does not contain; ``optimizer_passes`` over the optimizer's
    states; ``gather_passes`` and ``reduce_passes`` over memory around a gather of sharded parameters and a reduction of
    their gradients, per byte of them; ``pipeline_balance`` "cost" counts the output projection when layers are spread
    over stages; ``step_overhead_s`` once a step (data, logging, clipping, synchronisation).
    """

    host_time_per_kernel_s: Seconds = 0.0
    graphs: tuple[Captured, ...] = ()
    host_time_per_collective_s: Seconds = 0.0
    message_s: Seconds = 0.0
    dispatch_s: Seconds = 0.0
    kernel_overhead: float = Field(1.0, gt=0, allow_inf_nan=False)
    optimizer_passes: float = Field(1.0, gt=0, allow_inf_nan=False)
    gather_passes: float = Field(0.0, ge=0, allow_inf_nan=False)
    reduce_passes: float = Field(0.0, ge=0, allow_inf_nan=False)
    step_overhead_s: Seconds = 0.0
    pipeline_balance: Literal["layers", "cost"] = "layers"


class ExpertHabits(_Part):
    """What experts cost besides the listed kernels.

    ``overhead`` multiplies their kernels and those of their exchange; every routed row takes ``row_s`` in each of the
    four copies of a layer, whatever its length. Where no cap says how many tokens go where, the host waits ``sync_s``
    before each dispatch of a forward to learn it, and needs ``exchange_host_s`` for each exchange of copies between
    ranks: splits, padding and permutation, which a library that sends a token once to a rank does on the device.
    """

    overhead: float = Field(1.0, gt=0, allow_inf_nan=False)
    row_s: Seconds = 0.0
    sync_s: Seconds = 0.0
    exchange_host_s: Seconds = 0.0


class Overlap(_Part):
    """What runs beside what, and what that costs the kernels.

    Without ``grad_reduce_zero1`` sharded optimizers reduce all gradients at once after the last backward. With
    ``once_in_pipelines`` FSDP gathers a stage once a step, keeps it, and reduces its whole gradients once behind the
    last backward, as torch's pipeline runtime has it do.
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
    compute_slowdown_while_comm: float = Field(1.0, ge=1)


class Context(_Part):
    """How the stack does context parallelism unless the plan says so (see ContextParallel in the plan)."""

    method: Literal["ring", "ulysses", "all_gather"] = "ring"
    balance: Literal["zigzag", "striped", "contiguous"] = "zigzag"


class StackNumerics(_Part):
    """Dtypes of gradients and states, and whether weight gradients accumulate in the GEMM."""

    grad_dtype: Dtype = "fp32"
    reduce_dtype: Dtype = "fp32"
    parameter_dtype: Dtype = "bf16"
    master_weights: bool = True
    gradient_accumulation_fusion: bool = True


class Buckets(_Part):
    """Sizes of gradient buckets in bytes of the reduced dtype."""

    bucket: Bytes = 25e6
    first: Bytes = 0.0


class Described(_Part):
    """What a profile is called, and where its numbers come from."""

    name: str
    description: str
    provenance: str = ""
    sources: tuple[str, ...] = ()


class Stack(Described):
    """A training framework as the simulator sees it.

    ``passes`` are measured (forward, backward) passes over memory of memory-bound operators by kind, each of the
    operator's output, in place of those that ``fusion`` implies.
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
    variants: dict[str, dict[str, bool | float]] = Field(default_factory=dict)


DEFAULT_STACK = "megatron"
ALL_AT_ONCE = float(2**50)  # bytes of a bucket that nothing fills


@lru_cache(maxsize=32)
def load_stack(name: str) -> Stack:
    """A stack by bundled name or by the path of its YAML. Raises UserError."""
    return files.parse(Stack, files.load(files.find(name, "stacks", "stack")))


def under(stack: Stack, plan: Plan) -> Stack:
    """The habits under a resolved plan: FSDP hands gradients to its reduction, so nothing accumulates in place.

    A rank without others to share with reduces nothing, and accumulates as it always does.
    """
    alone = plan.mesh.dp == 1 and plan.mesh.cp == 1
    if plan.data_parallel.kind != "fsdp" or alone or not stack.numerics.gradient_accumulation_fusion:
        return stack
    numerics = stack.numerics.model_copy(update={"gradient_accumulation_fusion": False})
    return stack.model_copy(update={"numerics": numerics})


def resolve(plan: Plan, stack: Stack) -> Plan:
    """The plan with everything it leaves to the stack decided."""
    data, tensor, numerics = plan.data_parallel, plan.tensor_parallel, plan.numerics
    kind = data.kind or (
        "fsdp" if data.zero == 3 or (data.zero == 2 and stack.data_parallel == "fsdp") else "ddp"
    )
    at_once = data.zero == 1 and not stack.overlap.grad_reduce_zero1
    several = max(plan.mesh.pp, len(plan.pipeline.stages or ())) > 1
    once = kind == "fsdp" and several and stack.overlap.once_in_pipelines
    low = numerics.precision != "fp32"

    def chosen(value: object, default: object) -> object:
        return default if value is None else value

    return plan.model_copy(
        update={
            "stack": stack.name,
            "data_parallel": data.model_copy(
                update={
                    "kind": kind,
                    "bucket_bytes": chosen(
                        data.bucket_bytes, ALL_AT_ONCE if at_once else stack.buckets.bucket
                    ),
                    "first_bucket_bytes": chosen(data.first_bucket_bytes, stack.buckets.first or None),
                    "overlap_grad_reduce": chosen(
                        data.overlap_grad_reduce,
                        stack.overlap.grad_reduce and not at_once and not once,
                    ),
                    "overlap_param_gather": chosen(data.overlap_param_gather, stack.overlap.param_gather),
                    "reshard_after_forward": chosen(data.reshard_after_forward, data.zero == 3 and not once),
                }
            ),
            "context_parallel": _resolved_context(plan, stack),
            "tensor_parallel": tensor.model_copy(
                update={
                    "sequence_parallel": chosen(
                        tensor.sequence_parallel,
                        has_tensor_ranks(plan) and (stack.sequence_parallel or tensor.tp_method != "1d"),
                    ),
                    "overlap": chosen(tensor.overlap, stack.overlap.tensor_forward),
                }
            ),
            "numerics": numerics.model_copy(
                update={
                    "grad_dtype": chosen(numerics.grad_dtype, stack.numerics.grad_dtype if low else "fp32"),
                    "master_weights": chosen(numerics.master_weights, stack.numerics.master_weights and low),
                }
            ),
        }
    )


def _resolved_context(plan: Plan, stack: Stack) -> ContextParallel:
    """Method and balance in effect."""
    given = plan.context_parallel
    chosen = {"cp_method": given.cp_method or stack.context.method}
    return given.model_copy(update={**chosen, "cp_balance": given.cp_balance or stack.context.balance})


def gather_bytes(plan: Plan) -> float:
    """Bytes a parameter that a gather sends: as computed with, unless the plan says otherwise."""
    numerics = plan.numerics
    return DTYPE_BYTES[numerics.gather_dtype or ("fp32" if numerics.precision == "fp32" else "bf16")]


def reduce_bytes(plan: Plan, stack: Stack) -> float:
    """Bytes a parameter that a gradient reduction sends: as the stack reduces, unless the plan says otherwise."""
    numerics = plan.numerics
    usual = "fp32" if numerics.precision == "fp32" else stack.numerics.reduce_dtype
    return DTYPE_BYTES[numerics.reduce_dtype or usual]
