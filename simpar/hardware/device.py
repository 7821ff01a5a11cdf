"""A device: peak rates, memory, and the fitted parameters of its kernels."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from simpar import files
from simpar.calls import Strict
from simpar.files import allowed, suggest
from simpar.profiles import LIKE, load_profile, once_if_shipped
from simpar.units import (
    DTYPE_BYTES,
    Bytes,
    BytesPerS,
    Count,
    FlopPerS,
    Hertz,
    PositiveBytes,
    PositiveWatts,
    UsdPerHour,
    Watts,
)


class Power(Strict):
    """Electrical power of one device, and the clock that its peak rates assume while power allows it."""

    limit: PositiveWatts
    idle: Watts
    boost_clock: Hertz | None = None

    @model_validator(mode="after")
    def _idle_below_limit(self) -> Self:
        if self.idle > self.limit:
            raise ValueError(f"idle = {self.idle:g} W: allowed: at most the limit, {self.limit:g} W")
        return self


class MatrixUnits(Strict):
    """What matrix units read.

    ``any_8_bit_layout``: products of 8 bits with one scale a tensor read operands by columns, too, others by rows.
    """

    any_8_bit_layout: bool = False


class Device(MatrixUnits):
    """One accelerator (or CPU) as its datasheet and measurements describe it.

    ``peak_flop_per_s`` are dense rates by dtype; ``memory_bytes`` is what programs get to see (``total_memory``
    of torch or HIP, some hundred MiB below the driver's own table); ``num_sms`` counts SMs, compute units or
    matrix units; ``l2_bytes`` is the last cache before memory. ``kernels`` holds the fitted parameters that
    :mod:`simpar.cost.kernels` reads, ``provenance`` where they come from.
    """

    name: str
    kind: Literal["gpu", "tpu", "cpu"] = "gpu"
    peak_flop_per_s: dict[str, FlopPerS]
    memory_bytes: PositiveBytes
    memory_bandwidth: BytesPerS
    num_sms: Count
    l2_bytes: Bytes = 0.0
    power: Power | None = None
    price_per_hour: UsdPerHour | None = None
    kernels: dict[str, float] = Field(default_factory=dict)
    provenance: str = ""
    sources: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _known_dtypes(self) -> Self:
        for dtype in self.peak_flop_per_s:
            if dtype not in DTYPE_BYTES:
                hint = suggest(dtype, DTYPE_BYTES) or allowed(DTYPE_BYTES)
                raise ValueError(f"peak_flop_per_s: unknown dtype {dtype!r}{hint}")
        if not self.peak_flop_per_s:
            raise ValueError("peak_flop_per_s: needs at least one dtype")
        return self

    def share_held(self, num_sms: int) -> float:
        """The share of the device that a collective on so many multiprocessors holds, at most all of it.

        Matrix machines (kind tpu) move data with engines of their own, beside their matrix units: nothing is held.
        """
        return 0.0 if self.kind == "tpu" else min(1.0, num_sms / self.num_sms)

    def computes_instead(self, precision: str) -> str | None:
        """The other precision of 16 bits, if this device has units for that one and runs this one at the fp32 rate."""
        rates, other = self.peak_flop_per_s, {"bf16": "fp16", "fp16": "bf16"}.get(precision)
        is_slow = other and 0 < rates.get(precision, 0.0) <= rates.get("fp32", 0.0) < rates.get(other, 0.0)
        return other if is_slow else None


@once_if_shipped("devices")
def load_device(name: str | Path) -> Device:
    """A device by bundled name or by the path of its YAML. Raises UserError.

    >>> device = load_device("h100-sxm-80gb")
    >>> f"{device.peak_flop_per_s['bf16']:.4g} FLOP/s, {device.memory_bandwidth:.4g} bytes/s"
    '9.89e+14 FLOP/s, 3.352e+12 bytes/s'
    """
    return files.parse(Device, load_profile(name, "devices", "device")[0], also=(LIKE,))
