"""What a step costs, and what a whole training run of so many tokens comes to: days, device-hours, dollars, energy.

All of the latter follows from one step: its time, and its interval, scale everything that takes time. That is without
failures; :mod:`simpar.operate.whole_run` adds what interruptions cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from simpar.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    import pandas as pd

MWH_J = 3.6e9
"""Joules of a megawatt-hour."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Amount(_Part):
    """A predicted amount, and between what it lies in nine of ten cases; the bounds are None where nobody knows."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Amount:
        """As many times as much."""
        low, high = (None if each is None else factor * each for each in (self.low, self.high))
        return Amount(value=factor * self.value, low=low, high=high)


class Failures(_Part):
    """Interruptions of a whole run: how often things fail, the share of time that is work kept, and how many there are.

    ``lost_days`` are days that are no work kept: checkpoints, work done again, detection, restarts.
    """

    reliability: str
    effective_time: float
    interruptions: float
    lost_days: float


class WholeRun(_Part):
    """A run of ``tokens`` in ``steps``; ``cost_usd`` and ``energy_mwh`` are None where the profile has no facts.

    ``failures`` is None where none are counted.
    """

    tokens: int
    steps: int
    days: Amount
    device_hours: Amount
    cost_usd: Amount | None = None
    energy_mwh: Amount | None = None
    failures: Failures | None = None

    def to_frame(self) -> pd.DataFrame:
        """Amounts as a pandas DataFrame: a row each, with its value and the bounds of nine in ten cases."""
        import pandas as pd

        amounts = {name: getattr(self, name) for name in AMOUNTS}
        rows = {name: one.model_dump() for name, one in amounts.items() if one is not None}
        return pd.DataFrame.from_dict(rows, orient="index", columns=list(Amount.model_fields))


AMOUNTS = ("days", "device_hours", "cost_usd", "energy_mwh")


class Bill(_Part):
    """Money and energy of one step of the whole job; None where the profile has no facts.

    ``whole_run`` is what a run comes to whose tokens are known; left out of files where they are not.
    """

    cost_usd_per_step: float | None = None
    energy_j_per_step: float | None = None
    whole_run: WholeRun | None = None

    @model_serializer(mode="wrap")
    def _known(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        return found if self.whole_run else {key: found[key] for key in found if key != "whole_run"}


class Step(_Part):
    """One step: seconds and between what they lie, devices, and dollars and joules where they are known."""

    seconds: Amount
    devices: int
    cost_usd: float | None
    energy_j: float | None


def whole_run(tokens: int, tokens_per_step: int, step: Step) -> WholeRun:
    """A run without failures; the last step is a whole one."""
    steps = -(-tokens // tokens_per_step)
    wall_s = step.seconds.times(steps)
    shares = step.seconds.times(1.0 / step.seconds.value)
    return WholeRun(
        tokens=tokens,
        steps=steps,
        days=wall_s.times(1.0 / DAY_S),
        device_hours=wall_s.times(step.devices / HOUR_S),
        cost_usd=None if step.cost_usd is None else shares.times(steps * step.cost_usd),
        energy_mwh=None if step.energy_j is None else shares.times(steps * step.energy_j / MWH_J),
    )
