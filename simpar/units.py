"""Quantities: SI inside, units in files, readable text for users. Unit literals live in this module only."""

import math
import re
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from simpar.errors import BeyondIntegers

Ints = NDArray[np.int64]
Indices = NDArray[np.int32 | np.int64]
"""Indices of ops, classes and the like: Programs have fewer than 2**31 of any of them, and keep them in 32 bits."""
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = int | Ints
"""One count, or an array of them."""
Numbers = float | Ints | NDArray[np.floating]
"""One number, or an array that broadcasts against others: formulas take one case or many."""

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
MS, US, NS = 1e-3, 1e-6, 1e-9
KILO, MEGA, GIGA, TERA, PETA = 1e3, 1e6, 1e9, 1e12, 1e15
NS_PER_S = 10**9
PS_PER_S = 10**12
HOUR_S, DAY_S = 3600.0, 86400.0
_MOST_S = 2.0**63 / NS_PER_S
_ALLOWED = (
    f"must be finite and less than {_MOST_S:.0f} s (292 years); fewer tokens a microbatch (training.seq_len, "
    "plan.micro_batch) or faster hardware"
)
MOST_LINK_BYTES_PER_S = 500e12
"""Upper limit for a single link. Integers of :mod:`simpar.program.ir.flow` hold it and still resolve slow links."""

DTYPE_BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5, "int8": 1.0, "int4": 0.5}

_DECIMAL = {"": 1.0, "k": KILO, "K": KILO, "M": MEGA, "G": GIGA, "T": TERA, "P": PETA}
_BINARY = {"Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": TIB}
_UNITS: dict[str, dict[str, float]] = {
    "bytes": {**{f"{p}B": f for p, f in {**_DECIMAL, **_BINARY}.items()}},
    "seconds": {"s": 1.0, "ms": MS, "us": US, "µs": US, "ns": NS, "min": 60.0, "h": HOUR_S, "d": DAY_S},
    "bytes_per_s": {
        **{f"{p}B/s": f for p, f in {**_DECIMAL, **_BINARY}.items()},
        **{f"{p}{bits}": f / 8 for p, f in _DECIMAL.items() for bits in ("b/s", "bps")},
    },
    "flop_per_s": {f"{p}FLOP/s": f for p, f in _DECIMAL.items()},
    "watts": {"W": 1.0, "kW": KILO, "MW": MEGA},
    "usd_per_hour": {"USD/h": 1.0},
    "hertz": {"Hz": 1.0, "MHz": MEGA, "GHz": GIGA},
}
_EXAMPLES = {
    "bytes": "80 GiB", "seconds": "5 us", "bytes_per_s": "450 GB/s or 400 Gb/s", "flop_per_s": "989 TFLOP/s",
    "watts": "700 W", "usd_per_hour": "2.5 USD/h", "hertz": "1.98 GHz",
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d][^\s]*)\s*")


def parse_quantity(text: str | float, dimension: str) -> float:
    """SI value of a text such as "80 GiB", "400 Gb/s" or "5 us"; a number is taken as SI already.

    Raises ValueError for a wrong number, unit or dimension; GB is 10^9 bytes, GiB 2^30, Gb 10^9 bits.
    """
    units = _UNITS[dimension]
    if not isinstance(text, str):
        text = f"{float(text)!r} {next(unit for unit, factor in units.items() if factor == 1)}"
    match = _QUANTITY.fullmatch(text)
    if match is None or match.group(2) not in units:
        raise ValueError(f"needs a number and a unit, such as {_EXAMPLES[dimension]}")
    value = float(match.group(1)) * units[match.group(2)]
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


def _quantity(dimension: str) -> BeforeValidator:
    def convert(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            return parse_quantity(value, dimension)
        if isinstance(value, bool) or ((info.context or {}).get("file") and isinstance(value, int | float)):
            raise ValueError(f"needs a unit, such as {_EXAMPLES[dimension]}")
        return value

    convert.dimension = dimension  # type: ignore[attr-defined]
    said = f"a number and its unit, such as {_EXAMPLES[dimension]}"
    return BeforeValidator(convert, json_schema_input_type=Annotated[str, Field(description=said)])


def dimension_of(metadata: Iterable[Any]) -> str | None:
    """The dimension ("bytes", "seconds", ...) in the annotations of a field; None for a plain number."""
    dimensions = (getattr(getattr(each, "func", None), "dimension", None) for each in metadata)
    return next((name for name in dimensions if name), None)


def with_unit(value: float, dimension: str, digits: int = 6) -> str:
    """A quantity as files write it, with ``digits`` significant digits: "18.2 GB/s" for 1.82e10 ``bytes_per_s``."""
    units = {unit: factor for unit, factor in _UNITS[dimension].items() if "b" not in unit and "i" not in unit}
    fitting = {unit: factor for unit, factor in units.items() if factor <= abs(value)} or units
    choose = max if fitting is not units else min
    unit = choose(fitting, key=lambda name: fitting[name]) if value else next(u for u, f in units.items() if f == 1)
    return f"{value / units[unit]:.{digits}g} {unit}"


def link_rate(bytes_per_s: float) -> float:
    """The capacity of a link, checked against MOST_LINK_BYTES_PER_S. Raises ValueError."""
    if bytes_per_s > MOST_LINK_BYTES_PER_S:
        raise ValueError(f"allowed: up to {format_rate(MOST_LINK_BYTES_PER_S)}")
    return bytes_per_s


_TOKENS = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE]\+?\d+)?)\s*([KMBT]?)\s*", re.IGNORECASE)
_SUFFIXES = {"": 1.0, "K": KILO, "M": MEGA, "B": GIGA, "T": TERA}
MOST_TOKENS_TRAINED = 10**18


def parse_tokens(text: Any) -> Any:
    """Number of tokens from a text such as "15T", "300B" or "1.4e12"; a float is rounded, other values stay.

    Raises ValueError.
    """
    if isinstance(text, str):
        match = _TOKENS.fullmatch(text)
        if match is None:
            raise ValueError("needs a number of tokens, such as 15T, 300B or 1.4e12")
        text = float(match.group(1)) * _SUFFIXES[match.group(2).upper()]
    if isinstance(text, float) and math.isfinite(text):
        return round(text)
    return text


_POSITIVE = Field(gt=0, allow_inf_nan=False)
_NON_NEGATIVE = Field(ge=0, allow_inf_nan=False)
Bytes = Annotated[float, _quantity("bytes"), _NON_NEGATIVE]
PositiveBytes = Annotated[float, _quantity("bytes"), _POSITIVE]
Seconds = Annotated[float, _quantity("seconds"), _NON_NEGATIVE]
BytesPerS = Annotated[float, _quantity("bytes_per_s"), _POSITIVE]
LinkRate = Annotated[float, _quantity("bytes_per_s"), _POSITIVE, AfterValidator(link_rate)]
FlopPerS = Annotated[float, _quantity("flop_per_s"), _POSITIVE]
Watts = Annotated[float, _quantity("watts"), _NON_NEGATIVE]
PositiveWatts = Annotated[float, _quantity("watts"), _POSITIVE]
Hertz = Annotated[float, _quantity("hertz"), _POSITIVE]
UsdPerHour = Annotated[float, _quantity("usd_per_hour"), _NON_NEGATIVE]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
PositiveFraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, strict=True)]
Tokens = Annotated[int, BeforeValidator(parse_tokens), Field(ge=1, le=MOST_TOKENS_TRAINED, strict=True)]


def number(value: Any) -> Any:
    """A Python number of an array without dimensions; other arrays stay."""
    return value if np.ndim(value) else np.asarray(value).item()


def unique(values: Any) -> NDArray[Any]:
    """The distinct values, in order: as ``np.unique``, which imports masked arrays to see whether there are any."""
    ordered = np.sort(np.asarray(values), axis=None)
    result: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return result


def floats(value: Numbers) -> Numbers:
    """A float of one number, a float64 array of several."""
    return np.asarray(value, dtype=np.float64) if np.ndim(value) else float(value)


def scalar_truth(flags: bool | np.bool_ | NDArray[np.bool_]) -> bool:
    """The truth value on which all members of a batch agree, so that one structure stands for all of them.

    Raises ValueError where they differ: the structure of a batch must not depend on its first member.
    """
    if isinstance(flags, bool | np.bool_):
        return bool(flags)
    values = np.asarray(flags)
    if values.any() != values.all():
        raise ValueError("cases of one batch differ in structure")
    return bool(values.all())


def to_ns(seconds: Numbers) -> Any:
    """Seconds as nanoseconds (int, or int64 array), rounded half to even.

    Raises BeyondIntegers for values that are not finite or do not fit in 64 bits (292 years).
    """
    if isinstance(seconds, float):
        if not abs(seconds) < _MOST_S:
            raise BeyondIntegers(f"{seconds:g} s: {_ALLOWED}")
        return round(seconds * NS_PER_S)
    exact = np.asarray(seconds, dtype=np.float64)
    if not np.all(np.abs(exact) < _MOST_S):
        raise BeyondIntegers(f"{exact.max():g} s: {_ALLOWED}")
    whole = np.rint(exact * NS_PER_S).astype(np.int64)
    return int(whole) if whole.ndim == 0 else whole


def to_seconds(ns: Any) -> Any:
    """Nanoseconds as seconds (float, or float64 array)."""
    return np.asarray(ns, dtype=np.float64) / NS_PER_S if np.ndim(ns) else float(ns) / NS_PER_S


def format_bytes(size: float) -> str:
    """Bytes in GiB (TiB from 10 TiB on, a smaller binary unit below 0.1 GiB), 3 significant digits."""
    for unit, factor, least in (("TiB", TIB, 10 * TIB), ("GiB", GIB, GIB / 10), ("MiB", MIB, MIB), ("KiB", KIB, KIB)):
        if abs(size) >= least:
            return f"{format_figure(size / factor)} {unit}"
    return f"{size:.0f} B"


def number_of(count: int, what: str) -> str:
    """A count with its noun.

    >>> number_of(1, "node"), number_of(1024, "node")
    ('1 node', '1,024 nodes')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


ROUNDS_UP = 0.9995
"""The share of a unit from which 3 significant digits round to a whole one: 999.6 ms are 1.00 s."""


def format_seconds(seconds: float) -> str:
    """Seconds in the unit that reads best, 3 significant digits."""
    for unit, factor in (("s", 1.0), ("ms", MS), ("us", US)):
        if abs(seconds) >= ROUNDS_UP * factor:
            return f"{format_figure(seconds / factor)} {unit}"
    return f"{format_figure(seconds / NS)} ns" if seconds else "0 s"


def format_rate(bytes_per_s: float) -> str:
    """Bandwidth in GB/s, 3 significant digits."""
    return f"{format_figure(bytes_per_s / GB)} GB/s"


def format_count(value: float) -> str:
    """A large count with a decimal suffix: 8.03 B, 405 B, 1.01 T, 124 M."""
    for suffix, factor in (("T", TERA), ("B", GIGA), ("M", MEGA), ("K", KILO)):
        if abs(value) >= ROUNDS_UP * factor:
            return f"{format_figure(value / factor)} {suffix}"
    return f"{value:.0f}"


def format_energy(joule: float) -> str:
    """Energy in MJ, kJ or J, 3 significant digits."""
    scale, unit = (MEGA, "MJ") if joule >= MEGA else (KILO, "kJ") if joule >= KILO else (1.0, "J")
    return f"{format_figure(joule / scale)} {unit}"


def format_figure(value: float) -> str:
    """Three significant digits (or all before the point) without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    rounded = float(f"{value:.2e}") if abs(value) < KILO else value
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"
