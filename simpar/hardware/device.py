"""A device: peak rates, memory, and the fitted parameters of its kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from simpar import files
from simpar.units import Bytes, BytesPerS, Count, FlopPerS, UsdPerHour, Watts


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Power(_Part):
    """Electrical power of one device."""

    limit: Watts
    idle: Watts


class Device(_Part):
    """One accelerator (or CPU) as its datasheet and measurements describe it.

    ``peak_flop_per_s`` are dense rates by dtype; ``memory_bytes`` is what the driver reports; ``kernels`` holds
    the fitted parameters that :mod:`simpar.cost.kernels` reads, ``provenance`` where they come from.
    """

    name: str
    kind: Literal["gpu", "tpu", "cpu"] = "gpu"
    peak_flop_per_s: dict[str, FlopPerS]
    memory_bytes: Bytes
    memory_bandwidth: BytesPerS
    num_sms: Count
    l2_bytes: Bytes = 0.0
    power: Power | None = None
    price_per_hour: UsdPerHour | None = None
    kernels: dict[str, float] = Field(default_factory=dict)
    provenance: str = ""
    sources: tuple[str, ...] = ()


@lru_cache(maxsize=64)
def load_device(name: str) -> Device:
    """A device by bundled name or by the path of its YAML. Raises UserError."""
    path = files.find(name, "devices", "device")
    return files.parse(Device, files.load(path))
