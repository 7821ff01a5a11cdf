"""Ways between drafts, from a value back to its product and on to the next one."""

from simpar.tracing.paths import behind_draft, path_to, readers_of
from simpar.tracing.raw_operators import makers
from tests.tracing.drafts import draft

CHAIN = [
    draft("up", "matmul", 64, "x", contraction=32),
    draft("norm", "norm", 64, "up"),
    draft("turned", "rope", 64, "norm", "up"),
    draft("core", "attention", 64, "turned"),
    draft("back", "rope", 64, "core"),
    draft("down", "matmul", 32, "back", contraction=64),
    draft("sum", "add", 32, "x", "down"),
]


def test_ways_lead_through_what_reads_one_tensor():
    """A rotation that also reads the product behind its norm has two sources, and ends a way; so does a sum."""
    made = makers(CHAIN)
    assert [each.name for each in path_to("norm", made)] == ["norm", "up"]
    assert [each.name for each in path_to("turned", made)] == ["turned"]
    assert [each.name for each in path_to("sum", made)] == ["sum"]
    assert [*path_to("x", made)] == []


def test_what_stands_behind_a_draft():
    """The passes after it and the product that reads them; none where there is another reader."""
    between, product = behind_draft(CHAIN, makers(CHAIN), CHAIN[3])
    assert ([each.name for each in between], product) == (["back"], CHAIN[5])
    two = [*CHAIN, draft("other", "copy", 64, "back")]
    assert behind_draft(two, makers(two), CHAIN[3])[1] is None
    assert readers_of(CHAIN, CHAIN[0]) == [CHAIN[1], CHAIN[2]]
