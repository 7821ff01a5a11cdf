"""The Plan: how a training step is split. Search writes it, simulate reads it, export translates it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from simpar import files
from simpar.plan.mesh import Mesh
from simpar.units import Count

VERSION = "1"
Precision = Literal["bf16", "fp16", "fp32", "fp8"]
Optimizer = Literal["adamw", "sgd", "sgd_momentum"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pipeline(_Part):
    """Pipeline parallelism: which schedule, how many chunks a rank, layers of every virtual stage."""

    schedule: str | None = Field(None, description="name in the table of schedules; default by vpp")
    vpp: Count = Field(1, description="model chunks per pipeline rank")
    layers: tuple[Count, ...] | None = Field(
        None, description="transformer layers per virtual stage, model order"
    )
    actions: str | None = Field(None, description="action table (CSV) instead of a named schedule")


class DataParallel(_Part):
    """Data parallelism. Fields left out are decided by the software stack."""

    kind: Literal["ddp", "fsdp", "single_process"] | None = None
    zero: Literal[0, 1, 2, 3] = 0
    hsdp: Count = Field(1, description="replicas of the sharded states")
    bucket_bytes: float | None = Field(None, gt=0, allow_inf_nan=False)
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    reshard_after_forward: bool | None = None


class TensorParallel(_Part):
    """Tensor parallelism: sequence parallelism and overlap. Fields left out are decided by the stack."""

    sequence_parallel: bool | None = None
    overlap: bool | None = None


class MemoryPolicy(_Part):
    """What is kept for backward: ``none``, ``selective``, ``full`` or ``every:C`` recompute."""

    recompute: str = "none"

    @field_validator("recompute")
    @classmethod
    def _known(cls, value: str) -> str:
        period = value.removeprefix("every:")
        if value in ("none", "selective", "full") or (
            value != period and period.isdigit() and int(period) > 0
        ):
            return value
        raise ValueError("allowed none, selective, full, every:C with C >= 1")


class Numerics(_Part):
    """Precision of compute, dtype of gradients, master weights and the optimizer."""

    precision: Precision = "bf16"
    grad_dtype: Literal["fp32", "bf16"] | None = None
    master_weights: bool | None = None
    optimizer: Optimizer = "adamw"


_FLAT = {
    "tp": "mesh", "cp": "mesh", "dp": "mesh", "pp": "mesh", "ep": "mesh", "schedule": "pipeline", "vpp": "pipeline",
    "layers": "pipeline", "actions": "pipeline", "kind": "data_parallel", "zero": "data_parallel",
    "hsdp": "data_parallel", "bucket_bytes": "data_parallel", "overlap_grad_reduce": "data_parallel",
    "overlap_param_gather": "data_parallel", "reshard_after_forward": "data_parallel",
    "sequence_parallel": "tensor_parallel", "recompute": "memory", "precision": "numerics",
    "grad_dtype": "numerics", "master_weights": "numerics", "optimizer": "numerics",
}  # fmt: skip
_SYNONYMS = {
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp",
    "context_parallel_size": "cp", "expert_parallel_size": "ep", "micro_batch_size": "micro_batch",
    "virtual_pipeline_parallel_size": "vpp", "zero_stage": "zero",
}  # fmt: skip


class Plan(_Part):
    """One layout. Flat keywords (``Plan(tp=8, pp=4, micro_batch=1, zero=1)``) and nested sections mean the same."""

    version: Literal["1"] = VERSION
    model: str | None = None
    training: dict[str, int] | None = None
    mesh: Mesh = Mesh()
    micro_batch: Count = 1
    pipeline: Pipeline = Pipeline()
    data_parallel: DataParallel = DataParallel()
    tensor_parallel: TensorParallel = TensorParallel()
    memory: MemoryPolicy = MemoryPolicy()
    numerics: Numerics = Numerics()
    stack: str | None = None
    predicted: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nest(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        nested = {key: value for key, value in data.items() if key not in _FLAT and key not in _SYNONYMS}
        for key, value in data.items():
            flat = _SYNONYMS.get(key, key)
            if flat == "micro_batch":
                nested["micro_batch"] = value
            elif flat == "rank_order":
                section = dict(nested.get("mesh") or {})
                nested["mesh"] = {**section, "order": _order(value)}
                nested.pop("rank_order", None)
            elif flat in _FLAT and not (key == "tensor_parallel"):
                section = nested.get(_FLAT[flat]) or {}
                section = section.model_dump() if isinstance(section, BaseModel) else dict(section)
                nested[_FLAT[flat]] = {**section, flat: value}
        return nested

    @property
    def schedule(self) -> str:
        """The schedule's name: as given, else 1f1b, or interleaved with several chunks."""
        return self.pipeline.schedule or ("interleaved" if self.pipeline.vpp > 1 else "1f1b")

    def num_microbatches(self, global_batch: int) -> int:
        """Microbatches a pipeline runs in one step: global batch / (dp x micro-batch)."""
        return global_batch // (int(self.mesh.dp or 1) * self.micro_batch)

    def with_values(self, **values: Any) -> Plan:
        """A copy with flat values replaced, validated again."""
        return Plan.model_validate({**self.model_dump(exclude_unset=False), **values})

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically."""
        files.write_atomic(Path(path), json.dumps(self.model_dump(mode="json"), indent=2) + "\n")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan (JSON or YAML). Raises UserError."""
        return files.parse(Plan, files.load(Path(path)))


def _order(value: Any) -> tuple[str, ...]:
    """Axes of a rank order such as "tp-cp-ep-dp-pp" (ep is no axis of its own)."""
    names = value.split("-") if isinstance(value, str) else list(value)
    return tuple(name for name in names if name != "ep")


def plan_schema() -> dict[str, Any]:
    """JSON Schema of the plan file."""
    return Plan.model_json_schema()
