"""How a cluster is operated over weeks: checkpoints, detection, restarts, spares, slow nodes."""

from typing import Literal

from pydantic import Field

from simpar.calls import Strict
from simpar.units import GB, BytesPerS, Seconds

MOST_DAYS = 3650.0


class SlowNodes(Strict):
    """Nodes that turn slow without failing: the whole job runs ``slowdown`` times slower until they are found.

    Off by default: rates differ by cluster, and are not published for the profiles that are shipped.
    """

    per_node_day: float = Field(0.0, ge=0, allow_inf_nan=False)
    slowdown: float = Field(1.5, ge=1, allow_inf_nan=False)
    detection: Seconds = Field(1800.0, description="time until a slow node is found and swapped")


class Operation(Strict):
    """A campaign of ``days`` and what interruptions cost. Durations and rates are SI; None is decided here.

    Without ``days`` it is as long as the run of ``training.tokens``.

    ``checkpoint`` "sync" stops training while storage is written, "async" while the state is copied to host
    memory, "memory" writes it to the host memory of another node and not to storage. ``interval`` None is Daly's
    optimum. ``spares`` None means that there is always a node to take.
    """

    days: float | None = Field(None, gt=0, le=MOST_DAYS, allow_inf_nan=False)
    reliability: str = Field("meta-llama3", description="reliability profile: shipped name or file")
    checkpoint: Literal["sync", "async", "memory"] = "sync"
    interval: Seconds | None = Field(None, description="work between checkpoints; default Daly's optimum")
    storage_per_node: BytesPerS = Field(float(GB), description="storage bandwidth that a node can count on")
    detection: Seconds = Field(300.0, description="from an interruption until the restart begins")
    restart: Seconds = Field(300.0, description="start of processes, communicators and data, without loading")
    spares: int | None = Field(None, ge=0, le=10_000, description="nodes in reserve; default as many as are needed")
    repair: Seconds = Field(86400.0, description="until a node that was taken out is a spare again")
    slow: SlowNodes = SlowNodes()
    runs: int = Field(1000, ge=2, le=100_000, description="repetitions of the Monte Carlo simulation")
