"""Quantities are read with their unit or refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from simpar.units import (
    GB,
    GIB,
    NS_PER_S,
    TERA,
    Bytes,
    BytesPerS,
    Count,
    Fraction,
    PositiveBytes,
    Seconds,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_quantity,
    to_ns,
    to_seconds,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", "bytes", 80 * GIB), ("80 GB", "bytes", 80 * GB), ("81559 MiB", "bytes", 81559 * 2**20),
        ("450 GB/s", "bytes_per_s", 450 * GB), ("400 Gb/s", "bytes_per_s", 50 * GB),
        ("100 Gbps", "bytes_per_s", 12.5 * GB),
        ("989 TFLOP/s", "flop_per_s", 989 * TERA), ("5 us", "seconds", 5e-6), ("700 W", "watts", 700.0),
        ("2.5 USD/h", "usd_per_hour", 2.5), ("1e3 B", "bytes", 1000.0),
    ],
)  # fmt: skip
def test_known_quantities(text: str, dimension: str, value: float) -> None:
    """GB is 10^9 bytes, GiB 2^30, Gb 10^9 bits."""
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["80", "80 gb", "GiB", "nan B", "1e400 B", "80 GiB/s", "", "80 80 GiB", "80 GFLOP"])
def test_other_texts_are_refused(text: str) -> None:
    """A number without unit, an unknown unit, an infinite number: ValueError."""
    with pytest.raises(ValueError, match=r"needs a number|finite"):
        parse_quantity(text, "bytes")


@given(st.text(max_size=20), st.sampled_from(["bytes", "seconds", "flop_per_s"]))
def test_any_text_is_a_number_or_a_value_error(text: str, dimension: str) -> None:
    """The parser never fails in another way."""
    with contextlib.suppress(ValueError):
        assert np.isfinite(parse_quantity(text, dimension))


@given(st.floats(1e-9, 1e9), st.sampled_from(["B/s", "kB/s", "MiB/s", "GB/s", "Gb/s", "TB/s"]))
def test_a_number_survives_its_unit(value: float, unit: str) -> None:
    """Parsing is linear: value times the unit of one."""
    one = parse_quantity(f"1 {unit}", "bytes_per_s")
    assert parse_quantity(f"{value!r} {unit}", "bytes_per_s") == pytest.approx(value * one, rel=1e-12)


def test_a_number_is_si_already() -> None:
    """Python code passes SI numbers; they need no unit and must be finite."""
    assert parse_quantity(5e16, "bytes") == 5e16
    with pytest.raises(ValueError, match="needs a number"):
        parse_quantity(float("nan"), "bytes")


@pytest.mark.parametrize("kind", [Bytes, BytesPerS, Seconds, PositiveBytes])
@pytest.mark.parametrize("value", [0, 0.0, 5, 5.0, True, False])
def test_files_must_write_the_unit(kind: type, value: float) -> None:
    """A bare number, zero included, is refused in a file; the message shows how to write it."""
    with pytest.raises(ValidationError, match="needs a unit, such as"):
        TypeAdapter(kind).validate_python(value, context={"file": True})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Bytes, -1.0), (Bytes, float("inf")), (Seconds, float("nan")), (BytesPerS, 0.0), (PositiveBytes, 0.0),
        (Bytes, "-1 GiB"), (BytesPerS, "0 GB/s"), (Fraction, 1.1), (Fraction, float("nan")), (Count, 0), (Count, 2.0),
        (Seconds, True), (Bytes, None), (Bytes, [1]),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(kind: type, value: object) -> None:
    """Sizes and times are not negative, rates positive, shares within 0..1, counts whole; all finite."""
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


@given(st.integers(0, 10**15))
def test_nanoseconds_round_trip(ns: int) -> None:
    """Up to eleven days, integers of nanoseconds survive seconds and back."""
    assert to_ns(to_seconds(ns)) == pytest.approx(ns, abs=max(1, ns * 2e-16 * NS_PER_S / NS_PER_S))


def test_nanoseconds_round_half_to_even() -> None:
    """Half a nanosecond goes to the even neighbour, in arrays as in scalars."""
    assert to_ns(np.array([0.5, 1.5, 2.5]) / NS_PER_S).tolist() == [0, 2, 2]
    assert [to_ns(2.0), to_seconds(2 * NS_PER_S)] == [2 * NS_PER_S, 2.0]
    assert to_seconds(np.array([NS_PER_S])).tolist() == [1.0]


@pytest.mark.parametrize("seconds", [1e10, float("nan"), float("inf"), np.array([0.0, 1e300])])
def test_times_that_do_not_fit_are_refused(seconds: float) -> None:
    """What 64 bits of nanoseconds cannot hold is an error, not a wrapped number."""
    with pytest.raises(ValueError, match="must be finite and less than"):
        to_ns(seconds)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("79.2 GiB", format_bytes(79.2 * GIB)), ("8.03 B", format_count(8_030_261_248)),
        ("1.50 ms", format_seconds(0.0015)), ("1.00 s", format_seconds(0.9996)),
        ("12.3 s", format_seconds(12.34)), ("405 B", format_count(405e9)),
        ("10.0 s", format_seconds(9.999)), ("350 ns", format_seconds(3.5e-7)), ("0 s", format_seconds(0)),
        ("512 B", format_bytes(512)), ("0.125 GiB", format_bytes(GIB / 8)), ("2,048 GiB", format_bytes(2048 * GIB)),
        ("20.0 TiB", format_bytes(20 * 1024 * GIB)), ("50.0 GB/s", format_rate(50 * GB)), ("0 GB/s", format_rate(0)),
        ("999", format_count(999)), ("inf GB/s", format_rate(float("inf"))),
    ],
)  # fmt: skip
def test_three_significant_digits(text: str, value: str) -> None:
    """Texts for people have three significant digits and the unit that reads best."""
    assert value == text
