"""Choices of data parallelism."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema, field_serializer, field_validator, model_validator

from simpar import files
from simpar.plan.choices.section import Section
from simpar.plan.sync import SCHEMES, problem
from simpar.units import Bytes, Count

BucketSize = Annotated[Bytes, Field(gt=0), WithJsonSchema({"type": "string", "examples": ["25 MiB"]})]


class DataParallel(Section):
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
