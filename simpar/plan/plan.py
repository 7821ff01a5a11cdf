"""The Plan: how a training step is split. Search writes it, simulate reads it, export translates it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from warnings import warn

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler

from simpar import files
from simpar.architectures.training import Training
from simpar.deprecated import renamed_method
from simpar.formats import PLAN
from simpar.plan import flat
from simpar.plan.choices import SECTION_OF, SECTIONS, path_of
from simpar.plan.choices.context_parallel import ContextParallel
from simpar.plan.choices.data_parallel import DataParallel
from simpar.plan.choices.execution import Execution
from simpar.plan.choices.experts import Experts
from simpar.plan.choices.memory import MemoryPolicy
from simpar.plan.choices.numerics import Numerics
from simpar.plan.choices.offload import Offload
from simpar.plan.choices.pipeline import CUSTOM, Pipeline
from simpar.plan.choices.section import Section
from simpar.plan.choices.tensor_parallel import TensorParallel
from simpar.plan.choices.tuning import Tuning
from simpar.plan.mesh import Mesh
from simpar.plan.schedules import default_schedule
from simpar.stacks.stack import ADAPTER_STACK, DEFAULT_STACK
from simpar.units import Count

if TYPE_CHECKING:
    from typing import Unpack

    from simpar.plan.flat_keys import FlatKeys, PlanKeys

VERSION = str(PLAN.version)


def _add_flat_keys(schema: dict[str, Any]) -> None:
    sections = {
        "mesh": Mesh, "pipeline": Pipeline, "data_parallel": DataParallel, "tensor_parallel": TensorParallel,
        "context_parallel": ContextParallel, "experts": Experts, "memory": MemoryPolicy, "offload": Offload,
        "tuning": Tuning,
        "numerics": Numerics, "execution": Execution,
    }  # fmt: skip
    schema["properties"] |= flat.flat_schema(sections)
    schema["properties"]["rank_order"] = {"type": "string", "examples": ["tp-cp-dp-pp"]}


class Searched(Section):
    """What the search that found a plan was asked for: how probable it had to be that the plan fits."""

    fit_probability: float = Field(ge=0.5, lt=1, allow_inf_nan=False)


class Record(Section):
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
        if isinstance(training, Mapping) and set(training) - {"documents"} in ({"seq_len"}, {"global_batch"}):
            Training.model_validate({"seq_len": 1, "global_batch": 1, **training})
            return dict(training)
        return None if training is None else Training.model_validate(training).model_dump()


if not TYPE_CHECKING:
    FlatKeys = Record


class Plan(FlatKeys):
    """One layout. Flat keys (``Plan(tp=8, pp=4, micro_batch=1, zero=1)``) and sections mean the same.

    What a plan leaves open (the data-parallel degree, what the software stack decides) is settled where it is
    simulated. Raises UserError for keys and values that no plan has; whether a plan can be on a model
    and a cluster, :func:`simpar.simulate` says. Flat keys are read as they are written; its string is one line of those
    that are not the defaults.

    >>> plan = Plan(tp=8, pp=4, micro_batch=1, zero=1)
    >>> plan
    Plan(tp=8, pp=4, zero=1)
    >>> plan.tp, plan.zero, plan.recompute, plan.schedule
    (8, 1, 'none', '1f1b')
    >>> plan.with_values(vpp=2).schedule
    'interleaved'
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, json_schema_extra=_add_flat_keys)
    FLAT: ClassVar[tuple[str, ...]] = (*SECTION_OF,)

    mesh: Mesh = Mesh()
    micro_batch: Count = Field(default=1, description="sequences a data-parallel rank runs at once")
    pipeline: Pipeline = Pipeline()
    data_parallel: DataParallel = DataParallel()
    tensor_parallel: TensorParallel = TensorParallel()
    context_parallel: ContextParallel = ContextParallel()
    experts: Experts = Experts()
    memory: MemoryPolicy = MemoryPolicy()
    offload: Offload = Offload()
    tuning: Tuning = Tuning()
    numerics: Numerics = Numerics()
    execution: Execution = Execution()

    @model_validator(mode="wrap")
    @classmethod
    def _accept_flat(cls, data: Any, handler: ModelWrapValidatorHandler[Plan]) -> Plan:
        if not isinstance(data, Mapping):
            return handler(data)
        try:
            return handler(flat.nest(data))
        except ValidationError as error:
            raise flat.relocate_error(error, data) from None

    if TYPE_CHECKING:

        def __init__(self, **keys: Unpack[PlanKeys]) -> None: ...

    else:  # type checkers know every key and attribute from FlatKeys and PlanKeys, and with these no misspelt one

        def __init__(self, *unnamed: Any, **data: Any) -> None:
            super().__init__(*unnamed, **data)

        __init__.__pydantic_base_init__ = True  # see Strict

        @property
        def schedule(self) -> str:
            """The schedule's name: as given, "custom" with an action table, else the usual one for vpp chunks."""
            if self.pipeline.actions:
                return CUSTOM
            return self.pipeline.schedule or default_schedule(self.pipeline.vpp)

        def __getattr__(self, name: str) -> Any:
            if name in SECTION_OF:
                return self.get(name)
            try:
                return super().__getattr__(name)
            except AttributeError as error:
                nearest = "" if name.startswith("_") else files.suggest(name, dir(self))
                raise AttributeError(f"{error}{nearest}") from None

    @property
    def usual_stack(self) -> str:
        """The name of the software stack: the plan's own, else the usual one of those who train what it trains.

        >>> Plan(tp=8).usual_stack, Plan(lora_rank=16).usual_stack
        ('megatron', 'huggingface')
        """
        adapts = self.tuning.lora_rank is not None and self.tuning.frozen_dtype != "fp8"
        return self.stack or (ADAPTER_STACK if adapts else DEFAULT_STACK)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *SECTION_OF]

    def __repr__(self) -> str:
        usual = Plan().flat_values()
        given = {key: value for key, value in self.flat_values().items() if usual.get(key) != value}
        return f"Plan({', '.join(f'{key}={files.short(value)}' for key, value in given.items())})"

    __str__ = __repr__

    def get(self, name: str) -> Any:
        """Its value of a choice, by name; None where that is left open."""
        section, field = path_of(name)
        return getattr(getattr(self, section) if section else self, field)

    said: ClassVar[Callable[..., Any]] = renamed_method("said", "get")

    def num_microbatches(self, global_batch: int) -> int:
        """Microbatches of a data-parallel rank in a step. Moved: results have it as ``result.layout``."""
        warn("Plan.num_microbatches has become Result.layout.num_microbatches; it goes with the next release",
             FutureWarning, stacklevel=2)  # fmt: skip
        return global_batch // (self.mesh.replicas * self.micro_batch)

    @property
    def world_size(self) -> int | None:
        """Devices of all stages or of the mesh; None where the data-parallel ranks are left open."""
        if self.pipeline.stages:
            return sum(stage.num_devices for stage in self.pipeline.stages)
        return None if self.mesh.dp is None else self.mesh.world_size

    def with_values(self, **values: Unpack[PlanKeys]) -> Plan:
        """A copy with flat values replaced, validated again; what nobody stated stays open. Raises UserError."""
        copy = Plan(**{**self.model_dump(), **values})
        given = flat.nest(values)
        copy.model_fields_set.intersection_update(self.model_fields_set | given.keys())
        for name in SECTIONS:
            stated = getattr(self, name).model_fields_set | flat.fields_of(given.get(name)).keys()
            getattr(copy, name).model_fields_set.intersection_update(stated)
        return copy

    def flat_values(self) -> dict[str, Any]:
        """The layout alone, as plain data with flat keys; what it leaves open, and what it was made for, left out."""
        result: dict[str, Any] = {"rank_order": "-".join(self.mesh.order)}
        for section, value in self.model_dump(mode="json", exclude=set(Record.model_fields)).items():
            flat_names = SECTIONS.get(section)
            if flat_names is None:
                result[section] = value
                continue
            result |= {name: each for name, each in value.items() if name in flat_names and each is not None}
            rest = {name: each for name, each in value.items() if name not in flat_names and each is not None}
            if rest:
                result[section] = rest
        return result

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically; an equal plan gives equal bytes."""
        files.write_atomic(Path(path), json.dumps(self.model_dump(mode="json"), indent=2) + "\n")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan (JSON or YAML). Raises UserError."""
        return files.parse(Plan, files.load(Path(path)))


Plan.__init__.__signature__ = flat.signature(Plan.model_fields)  # type: ignore[attr-defined]
