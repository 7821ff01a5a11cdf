"""Quantities are read with their unit or refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.units import (
    GB,
    GIB,
    NS_PER_S,
    TERA,
    format_bytes,
    format_count,
    format_seconds,
    parse_quantity,
    to_ns,
    to_seconds,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", "bytes", 80 * GIB), ("80 GB", "bytes", 80 * GB), ("81559 MiB", "bytes", 81559 * 2**20),
        ("450 GB/s", "bytes_per_s", 450 * GB), ("400 Gb/s", "bytes_per_s", 50 * GB),
        ("989 TFLOP/s", "flop_per_s", 989 * TERA), ("5 us", "seconds", 5e-6), ("700 W", "watts", 700.0),
        ("2.5 USD/h", "usd_per_hour", 2.5), ("1e3 B", "bytes", 1000.0),
    ],
)  # fmt: skip
def test_known_quantities(text: str, dimension: str, value: float) -> None:
    """GB is 10^9 bytes, GiB 2^30, Gb 10^9 bits."""
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "text", ["80", "80 gb", "GiB", "nan B", "1e400 B", "80 GiB/s", "", "80 80 GiB", "80 GFLOP"]
)
def test_other_texts_are_refused(text: str) -> None:
    """A number without unit, an unknown unit, an infinite number: ValueError."""
    with pytest.raises(ValueError, match=r"needs a number|finite"):
        parse_quantity(text, "bytes")


@given(st.text(max_size=20), st.sampled_from(["bytes", "seconds", "flop_per_s"]))
def test_any_text_is_a_number_or_a_value_error(text: str, dimension: str) -> None:
    """The parser never fails in another way."""
    with contextlib.suppress(ValueError):
        assert np.isfinite(parse_quantity(text, dimension))


@given(st.integers(0, 10**15))
def test_nanoseconds_round_trip(ns: int) -> None:
    """Up to eleven days, integers of nanoseconds survive seconds and back."""
    assert to_ns(to_seconds(ns)) == pytest.approx(ns, abs=max(1, ns * 2e-16 * NS_PER_S / NS_PER_S))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("79.2 GiB", format_bytes(79.2 * GIB)), ("8.03 B", format_count(8_030_261_248)),
        ("1.50 ms", format_seconds(0.0015)), ("12.3 s", format_seconds(12.34)), ("405 B", format_count(405e9)),
    ],
)  # fmt: skip
def test_three_significant_digits(text: str, value: str) -> None:
    """Texts for people have three significant digits and the unit that reads best."""
    assert value == text
