"""The cost of a step, and of a whole training run of given tokens: days, device-hours, dollars, energy.

The run follows from one step: the step time and its interval scale everything that takes time. This is without
failures; :mod:`simpar.operate.whole_run` adds the cost of interruptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from simpar.calls import Strict
from simpar.units import DAY_S, HOUR_S

if TYPE_CHECKING:
    import pandas as pd

MWH_J = 3.6e9
"""Joules of a megawatt-hour."""


class Amount(Strict):
    """A predicted amount with its 90 % interval; the bounds are None if they are not known."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Amount:
        """The amount and its bounds, multiplied by a factor."""
        low, high = (None if each is None else factor * each for each in (self.low, self.high))
        return Amount(value=factor * self.value, low=low, high=high)


class Failures(Strict):
    """Interruptions of a whole run: the reliability assumed, the share of useful time, and their expected number.

    ``lost_days`` are the days without lasting progress: checkpoints, repeated work, detection, restarts.
    """

    reliability: str
    effective_time: float
    interruptions: float
    lost_days: float


class WholeRun(Strict):
    """A run of ``tokens`` in ``steps``; ``cost_usd`` and ``energy_mwh`` are None if the profile has no price or power.

    ``failures`` is None if interruptions are not counted.
    """

    tokens: int
    steps: int
    days: Amount
    device_hours: Amount
    cost_usd: Amount | None = None
    energy_mwh: Amount | None = None
    failures: Failures | None = None

    def to_frame(self) -> pd.DataFrame:
        """Amounts as a pandas DataFrame: one row each, with its value and 90 % bounds."""
        import pandas as pd

        amounts = {name: getattr(self, name) for name in AMOUNTS}
        rows = {name: one.model_dump() for name, one in amounts.items() if one is not None}
        return pd.DataFrame.from_dict(rows, orient="index", columns=list(Amount.model_fields))


AMOUNTS = ("days", "device_hours", "cost_usd", "energy_mwh")


class Bill(Strict):
    """Money in USD and energy in joules of one step of the whole job; None if the profile has no price or power.

    ``usd_per_device_hour`` is the price behind it, the mean over devices (None in older files).

    ``whole_run`` is known if the number of tokens is; otherwise it is left out of files.
    """

    cost_usd_per_step: float | None = None
    energy_j_per_step: float | None = None
    usd_per_device_hour: float | None = None
    whole_run: WholeRun | None = None

    @model_serializer(mode="wrap")
    def _known(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        return data if self.whole_run else {key: data[key] for key in data if key != "whole_run"}


class Step(Strict):
    """One step: seconds with their interval, devices, and dollars and joules if they are known."""

    seconds: Amount
    devices: int
    cost_usd: float | None
    energy_j: float | None


def whole_run(tokens: int, tokens_per_step: int, step: Step) -> WholeRun:
    """A run without failures; the number of steps is rounded up."""
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
