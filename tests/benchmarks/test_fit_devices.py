"""Clocks of devices before any run tells them: by power, and half of what is possible below."""

import sys
from math import log
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from fit_devices import clock_before_runs, clock_of_power, middle_below
from pooled import power_of


@pytest.mark.parametrize(("center", "spread", "top"), [(1.0, 0.2, 1.0), (0.8, 0.2, 1.0), (0.7, 0.1, 1.3)])
def test_half_of_what_is_possible_is_below_the_middle(center, spread, top):
    """Of draws of the distribution that are possible; far from the top the middle is the center."""
    draws = center * np.exp(spread * np.random.default_rng(0).standard_normal(400_000))
    middle = middle_below(center, spread, top)
    assert middle == pytest.approx(np.median(draws[draws <= top]), rel=2e-3)
    if log(top / center) > 5 * spread:
        assert middle == pytest.approx(center, rel=1e-3)


def test_a_device_with_less_power_for_its_products_has_a_lower_clock():
    """Without a limit of power it is the boost clock, less what that may be off by; TPUs obey the same law."""
    assert clock_of_power("v100-sxm2-32gb") == 1.0
    assert clock_before_runs("v100-sxm2-32gb") < 1.0
    by_power = sorted(["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e"], key=power_of)
    clocks = [clock_of_power(device) for device in by_power]
    assert clocks == sorted(clocks)
    assert clocks[0] < clocks[-1]
