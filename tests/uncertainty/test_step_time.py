"""The spread of errors of a step time: lacks multiply it, and it is never below what was seen."""

from __future__ import annotations

from math import exp, hypot, log

import pytest

from simpar.uncertainty.step_time import StepTimeError, UntoldTime
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


def test_steps_in_which_python_sorts_tokens_spread_as_those_that_were_measured() -> None:
    """At least so much, whatever else is known; other mixtures do not, and a reason is given."""
    errors = TimeErrors(base=0.04, lacking={"mixture": 0.7}, sorted=0.2, low=-1.5, high=3.0, layout=0.5)
    fused, by_hand = (Traits("megatron", "h100-sxm-80gb", mixture=True, sorted=each) for each in (False, True))
    assert StepTimeError.of(support_of(fused, EVIDENCE), errors).spread == pytest.approx(0.04 * exp(0.7))
    assert StepTimeError.of(support_of(by_hand, EVIDENCE), errors).spread == 0.2
    assert any("Python sorts" in each for each in support_of(by_hand, EVIDENCE).missing())
    assert not any("Python sorts" in each for each in support_of(fused, EVIDENCE).missing())
    assert 0 < load_error_table().time.sorted < 1


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


NETWORK = (log(0.5), log(3.0))  # it may take half as long or three times


def over(network: UntoldTime) -> StepTimeError:
    """The error of a known prediction that such a network carries."""
    errors = TimeErrors(base=0.04, lacking={}, low=-1.5, high=3.0, layout=0.5, network=NETWORK)
    return StepTimeError.of(support_of(KNOWN, EVIDENCE), errors).over(network)


def test_a_network_that_no_run_tells_widens_by_what_it_is_of_a_step() -> None:
    """Ends are those of a step whose exposed part takes as long as it may, beside the other errors, in squares."""
    known, found = (
        over(UntoldTime(0.0, 0.0, 0.0, NETWORK)),
        over(UntoldTime(busy=0.5, exposed=0.4, least=0.0, factors=NETWORK)),
    )
    assert (known.low, known.high, known.layout) == (-0.06, 0.12, 0.02)
    low, high = log(0.6 + 0.4 * 0.5), log(0.6 + 0.4 * 3.0)
    assert (found.low, found.high) == pytest.approx((-hypot(0.06, low), hypot(0.12, high)))
    assert found.spread == pytest.approx(hypot(0.04, (high - low) / 3.29))
    assert found.layout == pytest.approx(found.spread / 2)


def test_a_hidden_network_still_bounds_the_step() -> None:
    """No step is shorter than its network is busy, whatever hides it as predicted; a short one stays hidden."""
    hidden = over(UntoldTime(busy=0.9, exposed=0.0, least=0.0, factors=NETWORK))
    assert hidden.high == pytest.approx(hypot(0.12, log(0.9 * 3.0)))
    assert hidden.low == -0.06
    assert over(UntoldTime(busy=0.3, exposed=0.0, least=0.0, factors=NETWORK)).high == 0.12


def test_no_network_is_faster_than_its_wires() -> None:
    """At most as fast as ``least`` says, here a tenth faster instead of twice."""
    found = over(UntoldTime(busy=1.0, exposed=1.0, least=0.9, factors=NETWORK))
    assert found.low == pytest.approx(-hypot(0.06, log(0.9)))


def test_what_all_layouts_share_does_not_tell_them_apart() -> None:
    """Another clock makes the interval wider, and leaves what layouts differ by."""
    found = over(UntoldTime(busy=1.0, exposed=1.0, least=0.0, factors=NETWORK, is_common=True))
    assert found.high == pytest.approx(hypot(0.12, NETWORK[1]))
    assert found.layout == 0.02
