"""The Plan: how a training step is split. Search writes it, simulate reads it, export translates it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.functional_validators import ModelWrapValidatorHandler

from simpar import files
from simpar.formats import PLAN
from simpar.models import recompute
from simpar.models.training import Training
from simpar.plan import flat
from simpar.plan.mesh import Mesh
from simpar.plan.optimizers import OPTIMIZERS, USUAL, known_optimizer
from simpar.plan.schedules import SCHEDULES, known_name, meant_by, natural_vpp, usual_schedule
from simpar.plan.stages import StagePlan
from simpar.plan.sync import SCHEMES, problem
from simpar.precisions import PRECISIONS, Precision, known_precision
from simpar.units import Bytes, Count

VERSION = str(PLAN.version)
SLICING = ", ".join(each.name for each in SCHEDULES.values() if each.sliced)
"""Schedules that cut sequences into slices of tokens."""
CUSTOM = "custom"
PrecisionName = Annotated[
    str, AfterValidator(known_precision), WithJsonSchema({"type": "string", "enum": [*PRECISIONS]})
]
Projection = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Home = Literal["none", "cpu", "nvme"]
Optimizer = Annotated[
    str, AfterValidator(known_optimizer), WithJsonSchema({"type": "string", "enum": [*OPTIMIZERS]})
]
PassCost = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Layers = Annotated[int, Field(ge=0, strict=True)]
BucketSize = Annotated[Bytes, Field(gt=0), WithJsonSchema({"type": "string", "examples": ["25 MiB"]})]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Pipeline(_Part):
    """Pipeline parallelism: which schedule, how many chunks a rank, layers of every virtual stage."""

    schedule: str | None = Field(
        None,
        description=f"name of a schedule; default {usual_schedule()}, {usual_schedule(chunks=2)} with chunks",
    )
    vpp: Count = Field(1, description="model chunks per pipeline rank; default as the schedule needs")
    layers: tuple[Layers, ...] | None = Field(
        None, description="transformer layers per virtual stage, in order"
    )
    actions: str | None = Field(
        None, description="action table (CSV, a line a rank) instead of a named schedule"
    )
    slices: tuple[Count, ...] | None = Field(
        None, description=f"tokens of every slice of a sequence; {SLICING} chooses them"
    )
    pass_costs: tuple[PassCost, PassCost, PassCost] | None = Field(
        None, description="durations of F, I and W, in any unit, that a greedy schedule is made for"
    )
    stages: tuple[StagePlan, ...] | None = Field(
        None, description="stages with devices, meshes and shardings of their own"
    )

    @model_validator(mode="before")
    @classmethod
    def _natural_vpp(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("schedule"), str) or "vpp" in data:
            return data
        name = known_name(data["schedule"])
        return data if name is None else {**data, "vpp": natural_vpp(name)}

    @field_validator("schedule")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is None or name == CUSTOM:
            return name
        known = known_name(name)
        if known is None:
            hint = meant_by(name) or files.suggest(name, SCHEDULES)
            raise ValueError(f"is not a schedule{hint}{files.allowed(SCHEDULES)}")
        return known

    @model_validator(mode="after")
    def _custom_has_actions(self) -> Pipeline:
        if self.schedule == CUSTOM and not self.actions:
            raise ValueError("schedule = 'custom' needs an action table in actions")
        if self.actions and self.schedule not in (None, CUSTOM):
            raise ValueError(f"schedule = {self.schedule!r} and an action table: give one of them")
        return self


class DataParallel(_Part):
    """Data parallelism. What is None is decided by the software stack.

    ``zero`` 1 shards optimizer states, 2 also gradients, 3 also parameters. With 2 and 3 gradients are reduced after
    every microbatch, unless the stack does so once a step in pipelines or once for microbatches that a chunk runs in
    turn; parameters are gathered for every microbatch with 3 where they are resharded after forward.
    """

    kind: Literal["ddp", "fsdp", "single_process"] | None = None
    zero: Literal[0, 1, 2, 3] = 0
    hsdp: Count = Field(1, description="replicas of the sharded states")
    bucket_bytes: BucketSize | None = None
    first_bucket_bytes: BucketSize | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    reshard_after_forward: bool | None = None
    sync: str = Field("bsp", description="how replicas cooperate: bsp, ssp, asp, local-sgd or diloco")
    sync_every: Count | None = Field(None, description="local steps between averages (local-sgd, diloco)")
    staleness: int | None = Field(None, ge=0, description="clocks a replica may run ahead (ssp)")
    servers: Count | None = Field(None, description="parameter servers (bsp, ssp, asp)")

    @field_validator("sync")
    @classmethod
    def _known_scheme(cls, name: str) -> str:
        if name not in SCHEMES:
            raise ValueError(f"is not a scheme{files.suggest(name, SCHEMES)}{files.allowed(SCHEMES)}")
        return name

    @model_validator(mode="after")
    def _scheme_takes(self) -> DataParallel:
        if (words := problem(self)) is not None:
            raise ValueError(words)
        return self

    @field_serializer("bucket_bytes", "first_bucket_bytes")
    def _with_unit(self, size: float | None) -> str | None:
        return None if size is None else f"{int(size) if size == int(size) else size} B"


class TensorParallel(_Part):
    """Tensor parallelism: sequence parallelism and overlap. What is None is decided by the stack.

    ``tp_method`` "1d" is Megatron's; "2d" (SUMMA), "2.5d" (with ``tp_depth`` copies of the weights) and "3d" spread
    rows and columns of every matrix over a square, squares or a cube of ranks.
    """

    sequence_parallel: bool | None = None
    overlap: bool | None = None
    tp_method: Literal["1d", "2d", "2.5d", "3d"] = "1d"
    tp_depth: Count = Field(1, description="layers of a 2.5d grid, each with a copy of the weights")

    @property
    def copies(self) -> int:
        """Tensor-parallel ranks that hold the same weights."""
        return self.tp_depth if self.tp_method == "2.5d" else 1

    @model_validator(mode="after")
    def _depth_of_layers(self) -> TensorParallel:
        if self.tp_depth > 1 and self.tp_method != "2.5d":
            raise ValueError(f"tp_depth = {self.tp_depth}: allowed: 1, or tp_method 2.5d")
        return self


class ContextParallel(_Part):
    """Context parallelism: how queries meet keys of other ranks. What is None is decided by the stack.

    ``cp_method`` "ring" passes blocks of keys and values round the ranks, "all_gather" collects them first,
    "ulysses" exchanges heads for tokens. With "ring" and "all_gather", groups of ``ulysses`` neighbours exchange
    heads first (the hybrid). ``cp_balance`` says which tokens a rank holds: "zigzag" (one chunk from each end),
    "striped" (every cp-th token) or "contiguous" (one chunk: causal ranks at the end have the most work).
    """

    cp_method: Literal["ring", "ulysses", "all_gather"] | None = None
    cp_balance: Literal["zigzag", "striped", "contiguous"] | None = None
    ulysses: Count | None = Field(
        None, description="context ranks that exchange heads; default all of them for ulysses, else 1"
    )

    def degree(self, cp: Any) -> Any:
        """Ranks (an int, or an array like ``cp``) that exchange heads for tokens."""
        return self.ulysses or (cp if self.cp_method == "ulysses" else 1)


class Experts(_Part):
    """Mixture of experts: how tokens spread over experts, and what runs beside their exchange.

    ``capacity_factor`` pads (and drops) to that many times the mean; without it nothing is dropped.
    ``expert_imbalance`` is the standard deviation of the experts' loads over their mean (0: forced balance); under the
    ``expert_distribution`` "power_law" it is the exponent, and loads are spread as in measured routing.
    ``expert_load`` "expected" gives every rank the expected load of the fullest one; "sampled" draws each rank's load
    from the seed. ``ep_overlap`` runs the exchange of one microbatch beside the compute of another (passes that run in
    pairs, as in DualPipe, have each other for that, with or without it).
    ``token_dispatch`` "per_expert" sends a copy of a token to each of its experts, "per_rank" one to each rank that
    holds some of them, "per_node" one to each scale-up domain that does, forwarded inside it (DeepEP, HybridEP).
    """

    capacity_factor: float | None = Field(None, gt=0, le=64, allow_inf_nan=False)
    expert_imbalance: float = Field(0.0, ge=0, le=16, allow_inf_nan=False)
    expert_distribution: Literal["normal", "power_law"] = "normal"
    expert_load: Literal["expected", "sampled"] = "expected"
    ep_overlap: bool | None = None
    token_dispatch: Literal["per_expert", "per_rank", "per_node"] = "per_expert"


class MemoryPolicy(_Part):
    """What is kept for backward: ``none``, ``selective``, ``full``, ``every:C`` or ``modules:A+B`` recompute.

    ``layers:none*4,full*8`` chooses layer by layer; ``optimal`` stands for the choice by layer that fits in memory
    with the least time. ``recompute_early`` runs layers that are recomputed in full again while a stage waits for the
    gradient, ahead of their backward, so that it hides in bubbles; their activations are live for longer.
    """

    recompute: str = Field("none", json_schema_extra={"pattern": f"^{recompute.PATTERN}$"})
    recompute_early: bool = Field(False, description="recompute while a stage waits for the gradient")

    @field_validator("recompute")
    @classmethod
    def _known(cls, value: str) -> str:
        if not recompute.is_known(value):
            raise ValueError(f"allowed {recompute.ALLOWED}")
        return value


class Offload(_Part):
    """What lives on the host instead of the device, and is brought when it is needed.

    ``offload_optimizer`` "cpu" keeps optimizer states in host memory and updates on the processors [ZeRO-Offload, Ren
    et al. 2021, arXiv 2101.06840], "nvme" keeps them on drives [ZeRO-Infinity, Rajbhandari et al. 2021, arXiv
    2104.07857]; ``offload_ratio`` of the parameters is updated there, the others on the device at the same time
    (Twin-Flow of ZeRO-Offload++). ``offload_gradients`` sends them as they are made and keeps none on the device
    (default: where states are offloaded and nothing else needs them there). ``offload_delayed`` updates with the
    gradients of the step before, beside the passes of this one. ``offload_parameters`` brings the weights of a block
    for every pass; ``offload_activations`` is the share of saved activations that waits on the host.
    """

    offload_optimizer: Home = "none"
    offload_ratio: float = Field(1.0, gt=0, le=1, allow_inf_nan=False)
    offload_gradients: bool | None = None
    offload_delayed: bool = False
    offload_parameters: Home = "none"
    offload_activations: float = Field(0.0, ge=0, le=1, allow_inf_nan=False)

    @property
    def ratio(self) -> float:
        """Share of the parameters that is updated on the host."""
        return self.offload_ratio if self.offload_optimizer != "none" else 0.0

    @property
    def is_used(self) -> bool:
        """Whether anything is offloaded."""
        away = (self.offload_optimizer, self.offload_parameters) != ("none", "none")
        return away or self.offload_activations > 0


class Tuning(_Part):
    """What of the model is trained.

    Either low-rank adapters of ``lora_rank`` beside ``lora_targets``, or all but the embedding and the first
    ``frozen_layers``; ``frozen_dtype`` nf4 stores frozen matrices of layers in 4 bits, fp8 in the 8 bits that products
    of that precision read.
    """

    lora_rank: Count | None = None
    lora_targets: tuple[Projection, ...] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip
    frozen_layers: int = Field(0, ge=0, strict=True)
    frozen_dtype: Literal["bf16", "fp8", "nf4"] = "bf16"

    @property
    def is_used(self) -> bool:
        """Whether anything is frozen."""
        return self.lora_rank is not None or self.frozen_layers > 0


class Numerics(_Part):
    """Precision of compute, dtype of gradients, master weights and the optimizer.

    ``reduce_dtype`` and ``gather_dtype`` are what data parallelism sends: gradients on their way to a sum, and
    parameters on their way to where they are used (None: as the stack does). Below 16 bits values are quantised
    in blocks before they are sent [ZeRO++, Wang et al. 2023, arXiv 2306.10209]. ``moment_dtype`` is that of optimizer
    states (None: fp32).
    """

    precision: PrecisionName = "bf16"
    grad_dtype: Literal["fp32", "bf16"] | None = None
    reduce_dtype: Literal["fp32", "bf16", "fp8", "int4"] | None = None
    gather_dtype: Literal["fp32", "bf16", "fp8", "int8"] | None = None
    master_weights: bool | None = None
    optimizer: Optimizer = USUAL
    moment_dtype: Literal["fp32", "bf16", "fp16", "fp8"] | None = None

    @property
    def products(self) -> Precision:
        """What the precision means for products."""
        return PRECISIONS[self.precision]

    @model_validator(mode="after")
    def _states_have_a_dtype(self) -> Numerics:
        if self.moment_dtype is not None and OPTIMIZERS[self.optimizer].has_own_width:
            raise ValueError(
                f"moment_dtype = {self.moment_dtype}: {self.optimizer} has its own width of states; allowed: none"
            )
        return self


def _add_flat_keys(schema: dict[str, Any]) -> None:
    sections = {
        "mesh": Mesh, "pipeline": Pipeline, "data_parallel": DataParallel, "tensor_parallel": TensorParallel,
        "context_parallel": ContextParallel, "experts": Experts, "memory": MemoryPolicy, "offload": Offload,
        "tuning": Tuning,
        "numerics": Numerics,
    }  # fmt: skip
    schema["properties"] |= flat.flat_schema(sections)
    schema["properties"]["rank_order"] = {"type": "string", "examples": ["tp-cp-dp-pp"]}


class Searched(_Part):
    """What the search that found a plan was asked for: how probable it had to be that the plan fits."""

    fit_probability: float = Field(ge=0.5, lt=1, allow_inf_nan=False)


class Record(_Part):
    """What a plan was made for: model, training shape, cluster, software stack, and what was predicted for it.

    ``cluster`` and ``perturbation`` (slow ranks, degraded links, jitter; None without any) are written as scenarios
    write theirs; they are where the plan is simulated when nothing else is said.
    ``search`` is what was wanted where a search found it; None where nobody searched, or did not write it down.
    """

    version: Literal["1"] = "1"
    model: str | None = None
    training: dict[str, Any] | None = None
    cluster: dict[str, Any] | None = None
    perturbation: dict[str, Any] | None = None
    stack: str | None = None
    search: Searched | None = None
    predicted: dict[str, Any] | None = None

    @field_validator("version", mode="before")
    @classmethod
    def _readable(cls, version: Any) -> Any:
        if str(version) != VERSION:
            raise ValueError(f"plans of another version cannot be read; allowed: {VERSION!r}")
        return VERSION

    @field_validator("training", mode="before")
    @classmethod
    def _shape(cls, training: Any) -> Any:
        """The shape of a step; a file of another framework may say a half of it, and who uses the plan the rest."""
        if isinstance(training, Mapping) and set(training) in ({"seq_len"}, {"global_batch"}):
            Training.model_validate({"seq_len": 1, "global_batch": 1, **training})
            return dict(training)
        return None if training is None else Training.model_validate(training).model_dump()


class Plan(Record):
    """One layout. Flat keys (``Plan(tp=8, pp=4, micro_batch=1, zero=1)``) and sections mean the same.

    What a plan leaves open (the data-parallel degree, what the software stack decides) is settled where it is
    simulated. Raises pydantic's ValidationError for keys and values that no plan has; whether a plan can be on a model
    and a cluster, :func:`simpar.simulate` says.

    >>> plan = Plan(tp=8, pp=4, micro_batch=1, zero=1)
    >>> plan.mesh.tp, plan.schedule, plan.data_parallel.zero
    (8, '1f1b', 1)
    >>> plan.with_values(vpp=2).schedule
    'interleaved'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, json_schema_extra=_add_flat_keys)
    FLAT: ClassVar = (*flat.SECTION_OF,)

    mesh: Mesh = Mesh()
    micro_batch: Count = Field(1, description="sequences a data-parallel rank runs at once")
    pipeline: Pipeline = Pipeline()
    data_parallel: DataParallel = DataParallel()
    tensor_parallel: TensorParallel = TensorParallel()
    context_parallel: ContextParallel = ContextParallel()
    experts: Experts = Experts()
    memory: MemoryPolicy = MemoryPolicy()
    offload: Offload = Offload()
    tuning: Tuning = Tuning()
    numerics: Numerics = Numerics()

    @model_validator(mode="wrap")
    @classmethod
    def _accept_flat(cls, data: Any, handler: ModelWrapValidatorHandler[Plan]) -> Plan:
        if not isinstance(data, Mapping):
            return handler(data)
        try:
            return handler(flat.nest(data))
        except ValidationError as error:
            raise flat.relocated(error, data) from None

    def said(self, key: str) -> Any:
        """What it says under a flat key; None where that is left open."""
        return getattr(getattr(self, flat.SECTION_OF[key]) if key in flat.SECTION_OF else self, key)

    @property
    def schedule(self) -> str:
        """The schedule's name: as given, "custom" with an action table, else the usual one for vpp chunks."""
        if self.pipeline.actions:
            return CUSTOM
        return self.pipeline.schedule or usual_schedule(self.pipeline.vpp)

    @property
    def runs_slices(self) -> bool:
        """Whether sequences go through the pipeline in slices of tokens, which may not be chosen yet."""
        named = SCHEDULES.get(self.schedule)
        return bool(self.pipeline.slices) or (named is not None and named.sliced)

    @property
    def ulysses(self) -> int:
        """Context ranks that exchange heads for tokens; 1 where nothing else is decided yet."""
        return int(self.context_parallel.degree(self.mesh.cp))

    @property
    def world_size(self) -> int | None:
        """Devices of all stages or of the mesh; None where the data-parallel ranks are left open."""
        if self.pipeline.stages:
            return sum(stage.num_devices for stage in self.pipeline.stages)
        return None if self.mesh.dp is None else self.mesh.world_size

    def num_microbatches(self, global_batch: int) -> int:
        """Microbatches a pipeline runs in one step: global batch / (dp x micro-batch)."""
        return global_batch // (self.mesh.replicas * self.micro_batch)

    def with_values(self, **values: Any) -> Plan:
        """A copy with flat values replaced, validated again."""
        return Plan.model_validate({**self.model_dump(), **values})

    def flat_values(self) -> dict[str, Any]:
        """The layout alone, as plain data with flat keys; what it leaves open, and what it was made for, left out."""
        found: dict[str, Any] = {"rank_order": "-".join(self.mesh.order)}
        for section, value in self.model_dump(mode="json", exclude=set(Record.model_fields)).items():
            flat_names = flat.SECTIONS.get(section)
            if flat_names is None:
                found[section] = value
                continue
            found |= {name: each for name, each in value.items() if name in flat_names and each is not None}
            rest = {name: each for name, each in value.items() if name not in flat_names and each is not None}
            if rest:
                found[section] = rest
        return found

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically; an equal plan gives equal bytes."""
        files.write_atomic(Path(path), json.dumps(self.model_dump(mode="json"), indent=2) + "\n")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan (JSON or YAML). Raises UserError."""
        return files.parse(Plan, files.load(Path(path)))


def plan_schema() -> dict[str, Any]:
    """JSON Schema of the plan file, flat keys included."""
    return Plan.model_json_schema()
