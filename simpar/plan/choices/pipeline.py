"""Choices of pipeline parallelism."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from simpar import files
from simpar.plan.choices.section import Section
from simpar.plan.schedules import SCHEDULES, known_name, meant_by, natural_vpp, usual_schedule
from simpar.plan.stages import StagePlan
from simpar.units import Count

SLICING = ", ".join(each.name for each in SCHEDULES.values() if each.sliced)
"""Schedules that cut sequences into slices of tokens."""
CUSTOM = "custom"
PassCost = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Layers = Annotated[int, Field(ge=0, strict=True)]


class Pipeline(Section):
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
