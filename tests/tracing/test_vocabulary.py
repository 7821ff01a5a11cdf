"""The lists of operators."""

from itertools import combinations

import pytest

from simpar.tracing import vocabulary as known

LISTS = ("VIEWS", "POINTWISE", "COPIES", "PRODUCTS", "NORMS", "LOSSES", "DROPOUTS")


@pytest.mark.parametrize(("one", "two"), [*combinations(LISTS, 2)])
def test_an_operator_is_in_one_list(one, two):
    """Else what it costs hung on the order of questions."""
    assert getattr(known, one) & getattr(known, two) == frozenset()


def test_what_is_said_of_pointwise_operators_is_of_pointwise_operators():
    """Reductions, roots and nonlinear operators are passes over memory."""
    for listed in (known.REDUCTIONS, known.ROOTS, known.NONLINEAR):
        assert listed - {"std_mean", "var_mean"} <= known.POINTWISE


@pytest.mark.parametrize(
    ("op", "expected"), [("add_", "add"), ("add", "add"), ("__and__", "__and__"), ("relu_", "relu")]
)
def test_in_place_is_the_same_operator(op, expected):
    """One underscore behind the name goes, two stay."""
    assert known.base(op) == expected
    assert known.is_known(op)


def test_what_is_in_no_list_is_unknown():
    """A Fourier transform has no rule; attention, tables and inputs have theirs."""
    assert not known.is_known("fft_fft")
    assert all(known.is_known(each) for each in (known.ATTENTION, "embedding", "placeholder"))


def test_limits_that_are_infinite_cost_nothing():
    """A clamp to infinity is a view; one to a number, at one end or both, is a pass, as is one of unknown numbers."""
    inf = float("inf")
    assert known.is_unlimited("clamp", ("x", None, inf))
    assert known.is_unlimited("clamp_", ("x", -inf, inf))
    assert not known.is_unlimited("clamp", ("x", -inf, 7.0))
    assert not known.is_unlimited("clamp", ("x", 0, None))
    assert not known.is_unlimited("clamp", ("x",))
    assert not known.is_unlimited("add", ("x", inf))
