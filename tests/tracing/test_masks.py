"""Masks that depend on no input, made for real."""

import pytest

torch = pytest.importorskip("torch")

from simpar.tracing.masks import Constants, Made  # noqa: E402
from simpar.tracing.nodes import Mask, Ref, TracedCall  # noqa: E402


def made(name, target, *given, **named):
    """A call of a trace with its arguments as given."""
    return TracedCall(name, getattr(target, "__name__", str(target)), given, None, (), target, (given, named))


def constants(rows):
    """Constants with one call ``mask`` that makes some rows, and one ``turned`` that reverses them."""
    return Constants([made("mask", lambda: rows), made("turned", torch.logical_not, Ref("mask"))])


ONES = torch.ones(6, 6, dtype=torch.bool)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (ONES, Mask()),
        (ONES.tril(), Mask(causal=True)),
        (ONES.tril().triu(-2), Mask(causal=True, window=3)),
        (ONES.tril(1).triu(-1), Mask(window=3)),
        (ONES.tril(1).triu(-2), None),
        (ONES.triu(), None),
        (ONES[:4].tril(), None),
        (torch.where(ONES.tril(), 0.0, -1e9), Mask(causal=True)),
        (torch.where(ONES.tril(), 0.0, -5.0), Mask()),
        (torch.full((6, 6), -1e9), None),
    ],
    ids=[
        "all",
        "causal",
        "window",
        "on both sides",
        "more before",
        "later ones",
        "not square",
        "added",
        "a bias hides nothing",
        "none yet",
    ],
)
def test_what_a_mask_shows(rows, expected):
    """Of true or near 0; a form that is not known says nothing."""
    assert constants(rows).mask("mask", hides=False) == expected


def test_a_mask_that_hides_is_the_reverse():
    """Of true for what is not seen, as masked_fill has it; arguments that are calls are made first."""
    known = constants(ONES.tril())
    assert known.mask("turned", hides=True) == Mask(causal=True)
    assert known.mask("turned", hides=False) is None


def test_buffers_of_the_module_are_unknown():
    """What only the real module has is not guessed, nor what is made of it, nor what is no matrix."""
    inside = TracedCall("buffer", "placeholder", (), torch.ones(4, 4), (), None)
    known = Constants([inside, made("copy", torch.clone, Ref("buffer")), made("row", lambda: torch.ones(4))])
    assert known.mask("buffer", hides=False) is None
    assert known.mask("copy", hides=False) is None
    assert known.mask("row", hides=False) is None


def test_a_mask_is_looked_at_once():
    """Layers share masks."""
    asked = []
    known = Constants([made("mask", lambda: asked.append(1) or ONES.tril())])
    assert known.mask("mask", hides=False) is known.mask("mask", hides=False)
    assert known.mask("mask", hides=True) is None
    assert asked == [1]


def test_buffers_have_the_values_that_they_were_made_with():
    """Where the calls that made the module are known and depend on nothing: a window made with it is one."""
    inside = TracedCall("b_bias", "placeholder", (), torch.ones(4, 4), (), None)
    before = Made([made("window", lambda: ONES.tril().triu(-2))], {"b_bias": "window"})
    known = Constants([inside, made("copy", torch.clone, Ref("b_bias"))], made=before)
    assert known.mask("copy", hides=False) == Mask(causal=True, window=3)
