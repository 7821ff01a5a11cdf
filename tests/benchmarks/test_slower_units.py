"""Kernel parameters of boards whose matrix units are slower than those of what was timed."""

import pytest

from benchmarks.slower_units import with_half_rate, with_slower_units


def test_only_the_time_in_matrix_units_stretches() -> None:
    """A share of 0.8 is 1 part in matrix units and 0.25 beside them: 2 / 2.25 and 4 / 4.25 where units are slower."""
    known = {"gemm_efficiency": 0.8, "gemm_prologue_k": 200.0, "gemm_wave_overlap": 0.3, "kernel_latency_us": 5.0}
    half, quarter = with_slower_units(known, 2.0), with_slower_units(known, 4.0)
    assert half == {**known, "gemm_efficiency": pytest.approx(0.8889), "gemm_prologue_k": 100.0}
    assert quarter == {**known, "gemm_efficiency": pytest.approx(0.9412), "gemm_prologue_k": 50.0}
    assert with_slower_units(known, 1.0) == known


def test_products_of_half_rate_boards_are_bound_by_units() -> None:
    """Those of a power-limited sibling do not count: L20's are measured; attention of 0.6 becomes 2 / (2 + 0.667)."""
    found = with_half_rate({"attention_forward_efficiency": 0.6, "gemm_efficiency": 0.65}, 2.0)
    assert found == {"attention_forward_efficiency": pytest.approx(0.75), "gemm_efficiency": 0.955}
