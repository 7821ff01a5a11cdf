"""Drafts that become one."""

from simpar.tracing.raw_operators import DraftWeight, makers, merge_drafts
from tests.tracing.drafts import draft

PIECE = DraftWeight("w", "weight", 4, "matrix")


def test_a_group_stands_in_place_of_its_first():
    """Columns add up, what is read, made, saved and owned is kept once."""
    before = [
        draft("norm", "norm", 8, "x"),
        draft("q", "matmul", 8, "norm", pieces=(PIECE,), saves=("norm",)),
        draft("other", "copy", 8, "x"),
        draft("k", "matmul", 4, "norm", pieces=(PIECE,), saves=("norm",)),
    ]
    found = merge_drafts(before, [["q", "k"]])
    assert [each.name for each in found] == ["norm", "q", "other"]
    joined = found[1]
    assert (joined.columns, joined.inputs, joined.outputs) == (12, ("norm",), ("q", "k"))
    assert (joined.pieces, joined.saves) == ((PIECE,), ("norm",))
    assert makers(found)["k"] is joined


def test_no_group_changes_nothing():
    """And what is heavy is a product, attention or a table."""
    before = [draft(kind, kind, 8) for kind in ("matmul", "attention", "embedding", "norm", "add")]
    assert merge_drafts(before, []) == before
    assert [each.is_heavy for each in before] == [True, True, True, False, False]
