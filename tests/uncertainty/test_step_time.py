"""The spread of errors of a step time: lacks multiply it, and it is never below what was seen."""

from __future__ import annotations

from math import exp

import pytest

from simpar.uncertainty.step_time import StepTimeError
from simpar.uncertainty.support import Evidence, Traits, support_of
from simpar.uncertainty.table import TimeErrors, load_error_table

KNOWN = Traits("megatron", "h100-sxm-80gb")
EVIDENCE = tuple(Evidence(source, "gpt", 40, KNOWN) for source in "abcde")


def error(traits: Traits, seen: dict[str, dict[str, float]]) -> StepTimeError:
    """The error of a prediction under a table of one lack."""
    errors = TimeErrors(base=0.04, lacking={"mixture": 0.7}, seen=seen, low=-1.5, high=3.0, layout=0.5)
    return StepTimeError.of(support_of(traits, EVIDENCE), errors)


def test_no_spread_is_below_that_of_its_own_runs() -> None:
    """The larger of both, of that stack on that device alone; ends and the part of layouts go with it."""
    assert error(KNOWN, {}).spread == 0.04
    found = error(KNOWN, {"megatron": {"h100-sxm-80gb": 0.1, "b200-sxm": 0.3}, "nemo": {"h100-sxm-80gb": 0.2}})
    assert (found.spread, found.layout) == (0.1, 0.05)
    assert found.interval_s(2.0) == pytest.approx((2.0 * exp(-0.15), 2.0 * exp(0.3)))
    mixture = Traits("megatron", "h100-sxm-80gb", mixture=True)
    assert error(mixture, {"megatron": {"h100-sxm-80gb": 0.05}}).spread == pytest.approx(0.04 * exp(0.7))


def test_steps_below_a_second_spread_more() -> None:
    """By the factor of the table, as a lack of runs does; a step of which no time is given is not short."""
    errors = TimeErrors(base=0.04, lacking={"short": 0.7}, low=-1.5, high=3.0, layout=0.5)
    support = support_of(KNOWN, EVIDENCE)
    short, long, unknown = (StepTimeError.of(support, errors, *step).spread for step in ((0.999,), (1.0,), ()))
    assert (short, long, unknown) == (pytest.approx(0.04 * exp(0.7)), 0.04, 0.04)


def test_the_shipped_table_says_what_spreads_most() -> None:
    """Each spread seen is wider than the base, which needs none; those of code and a grid of one source are large."""
    time = load_error_table().time
    seen = [spread for devices in time.seen.values() for spread in devices.values()]
    assert min(seen) > time.base
    middle = sorted(seen)[len(seen) // 2]
    assert min(time.seen["kempnerforge"]["h200-sxm"], time.seen["nanotron"]["h100-sxm-80gb"]) > middle
