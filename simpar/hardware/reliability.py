"""How often things fail: counts by cause over an exposure, from which rates follow for any size of cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from simpar import files
from simpar.calls import Strict
from simpar.dataclass import dataclass
from simpar.profiles import once_if_shipped
from simpar.units import DAY_S, Count

PLANNED = "planned"


class Exposure(Strict):
    """What the counts cover: a number of devices for a number of days."""

    devices: Count
    devices_per_node: Count
    days: float = Field(gt=0, allow_inf_nan=False)


class Cause(Strict):
    """Interruptions of one cause during the exposure.

    ``unit`` is what the rate is proportional to: devices, nodes, or the job whatever its size. ``takes_node``:
    the node is gone until it is repaired.
    """

    failures: float = Field(ge=0, allow_inf_nan=False)
    unit: Literal["device", "node", "job"]
    takes_node: bool = False


class Reliability(Strict):
    """Interruptions by cause, unexpected ones and planned ones, with their exposure and sources."""

    name: str
    description: str = ""
    exposure: Exposure
    components: dict[str, Cause]
    planned: Cause | None = None
    sources: tuple[str, ...]
    provenance: str = ""

    def rates(self, nodes: int, devices_per_node: float) -> tuple[Rate, ...]:
        """Interruptions per second of a job on ``nodes`` nodes, by cause; planned ones last."""
        seen = self.exposure
        watched = {"device": seen.devices, "node": seen.devices / seen.devices_per_node, "job": 1.0}
        here = {"device": nodes * devices_per_node, "node": nodes, "job": 1}
        causes = [*self.components.items(), *([(PLANNED, self.planned)] if self.planned else [])]
        return tuple(
            Rate(
                name=name,
                per_s=cause.failures * here[cause.unit] / (watched[cause.unit] * seen.days * DAY_S),
                takes_node=cause.takes_node,
                planned=name == PLANNED,
            )
            for name, cause in causes
        )


@dataclass(frozen=True)
class Rate:
    """How often one cause interrupts a job, in interruptions per second."""

    name: str
    per_s: float
    takes_node: bool
    planned: bool


@once_if_shipped("reliability")
def load_reliability(name: str | Path) -> Reliability:
    """A reliability profile by bundled name or by the path of its YAML. Raises UserError."""
    return files.parse(Reliability, files.load(files.find(name, "reliability", "reliability profile")))
