"""Residual streams that maps of every token add up, spread and mix."""

from __future__ import annotations

import pytest

from simpar.tracing.hyper_roles import hyper_connections
from simpar.tracing.raw_operators import DraftWeight, OperatorDraft
from simpar.tracing.roles import find_roles
from tests.tracing.drafts import TOKENS, draft

STREAMS, HIDDEN = 2, 32
WIDE, MAPS = STREAMS * HIDDEN, STREAMS * (STREAMS + 2)
ROWS = ((STREAMS, ("batch", "seq")),)


def piece(name: str, numel: int) -> tuple[DraftWeight, ...]:
    """A parameter."""
    return (DraftWeight(name, name, numel, "embedding"),)


def branch(end: str = "matmul") -> list[OperatorDraft]:
    """Two streams of 32: eight maps, of which two add up, two spread and four mix."""
    return [
        draft("norm", "norm", WIDE, "x"),
        draft("maps", "matmul", MAPS, "norm", contraction=WIDE, saves=("norm",)),
        draft("bend", "activation", STREAMS, "maps", rows=ROWS, pieces=piece("mixed", 5)),
        draft("sum", "gated_activation", HIDDEN, "maps", "x", pieces=piece("added", 3), saves=("maps", "x")),
        draft("up", "matmul", 48, "sum", contraction=HIDDEN),
        draft("act", "activation", 48, "up"),
        draft("down", end, HIDDEN, "act", *(["sum"] if end == "add" else []), contraction=48 if end == "matmul" else 0),
        draft("spread", "gated_activation", HIDDEN, "maps", "down", rows=ROWS, pieces=piece("spread", 3)),
        draft("mixing", "mixing", HIDDEN, "bend", "x", contraction=STREAMS, rows=ROWS),
        draft("last", "add", HIDDEN, "spread", "mixing", rows=ROWS),
    ]


def test_a_branch_between_streams() -> None:
    """Of a token, 8 maps are read for 8 weights, 64 elements for the sum, and 64 + 32 for the streams behind."""
    drafts, roles = hyper_connections(branch())
    assert [each.name for each in drafts] == [
        "maps", "maps.weights", "sum", "up", "act", "down", "last.output", "last",
    ]  # fmt: skip
    made = {each.name: each for each in drafts}
    assert made["maps"].inputs == made["maps"].saves == ("x",)
    assert sum(each.numel for each in made["maps"].pieces) == 5 + 3 + 3
    assert {each.kind for each in made["maps"].pieces} == {"vector"}
    mixes = {each.name: (each.rows, each.columns, each.contraction) for each in drafts if each.kind == "mix"}
    assert mixes == {
        "maps.weights": (TOKENS, MAPS, MAPS), "sum": (TOKENS, HIDDEN, WIDE),
        "last": (ROWS, HIDDEN, (WIDE + HIDDEN) // STREAMS),
    }  # fmt: skip
    assert made["last"].inputs == made["last"].saves == ("x", "maps.weights", "last.output")
    assert made["last.output"].inputs == ("down",)
    assert roles == {
        "maps": "maps", "maps.weights": "weights", "sum": "collapse", "last.output": "output", "last": "merge",
    }  # fmt: skip


def test_a_branch_that_ends_in_a_sum() -> None:
    """Needs no other one in front of the streams."""
    drafts, _ = hyper_connections(branch(end="add"))
    assert next(each for each in drafts if each.name == "last").inputs[-1] == "down"


def test_the_sum_in_front_of_a_head() -> None:
    """Has a map for each stream and nothing behind it."""
    drafts, roles = hyper_connections(
        [
            draft("norm", "norm", WIDE, "x"),
            draft("maps", "matmul", STREAMS, "norm", contraction=WIDE),
            draft("sum", "gated_activation", HIDDEN, "maps", "x"),
        ]
    )
    assert [each.name for each in drafts] == ["maps", "maps.weights", "sum"]
    assert roles["sum"] == "collapse"


@pytest.mark.parametrize("change", ["a weighted norm", "other maps", "a second reader"])
def test_what_is_no_connection(change: str) -> None:
    """Norms with a weight, maps of another number, and norms that others read stay as they are."""
    layer = branch()
    if change == "a weighted norm":
        layer[0] = draft("norm", "norm", WIDE, "x", pieces=piece("w", WIDE))
    elif change == "other maps":
        layer[1] = draft("maps", "matmul", MAPS + 1, "norm", contraction=WIDE)
    else:
        layer.append(draft("other", "copy", WIDE, "norm"))
    assert hyper_connections(layer) == (layer, {})


def test_connections_work_on_a_ranks_rows() -> None:
    """All of their operators, and no tensor-parallel rank repeats them."""
    roles = find_roles(branch(), "")
    names = {name: key for key, name in roles.names.items()}
    assert {roles.regions[names[each]] for each in ("maps", "weights", "collapse", "output", "merge")} == {"sequence"}
    assert roles.refusal == ""
