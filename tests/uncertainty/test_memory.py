"""The risk of memory: probabilities, what is needed with them, and what moves them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.uncertainty.memory import MemoryRisk
from simpar.uncertainty.table import MemoryErrors, shipped
from simpar.units import GIB

EXACT = MemoryErrors(bias=0.0, allocator=0.1, communicators=0.0, habits=(0.0, 0.0, 0.0), low=-1.6, high=1.6)
SIZES = st.floats(1.0, 80.0)


def test_one_standard_deviation_left_is_as_probable_as_in_a_table_of_the_normal_distribution() -> None:
    """One deviation left is 84 % sure."""
    risk = MemoryRisk(EXACT, 0.0)
    held = risk.fit_probability(70 * GIB, 66 * GIB, (26 * GIB, 40 * GIB, 0.0))
    assert held == pytest.approx(0.8413, abs=1e-4)


@given(SIZES, SIZES, st.floats(0.0, 5.0), st.floats(0.55, 0.99))
def test_what_is_needed_with_a_probability_fits_with_it(
    static: float, moving: float, outside: float, probability: float
) -> None:
    """The need with a probability, as a capacity, gives that probability."""
    risk = MemoryRisk.of("megatron", shipped())
    parts = (static * GIB, moving * GIB, outside * GIB)
    needed = sum(parts)
    capacity = float(risk.needed_bytes(probability, needed, parts))
    assert capacity >= needed
    assert risk.fit_probability(capacity, needed, parts) >= probability - 1e-9


@given(st.lists(SIZES, min_size=1, max_size=4))
def test_arrays_are_many_single_cases(moving: list[float]) -> None:
    """Arrays of sizes give what each of them gives."""
    risk = MemoryRisk.of("nobody's", shipped())
    sizes = np.array(moving) * GIB
    many = risk.needed_bytes(0.95, sizes + GIB, (GIB, sizes, 0.0))
    each = [float(risk.needed_bytes(0.95, size + GIB, (GIB, size, 0.0))) for size in sizes.tolist()]
    assert np.asarray(many).tolist() == pytest.approx(each)


def test_stacks_whose_memory_nobody_measured_are_riskier() -> None:
    """A stack without measured memory is riskier than one with it."""
    table = shipped()
    known = max(table.memory_runs, key=lambda name: table.memory_runs[name], default="")
    risks = [MemoryRisk.of(name, table).deviation_bytes(10.0, 10.0, 0.0) for name in (known, "nobody's")]
    assert risks[0] < risks[1]
