"""Which tokens a rank holds under context parallelism, and what it sees of the others'."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from simpar.runtime.context import CAUSAL, FULL, NONE, STRICT, Context, Run, runs, visibility  # noqa: E402

BALANCES = ("contiguous", "zigzag", "striped")


@given(
    groups=st.sampled_from([1, 2, 4]), ulysses=st.sampled_from([1, 2]), chunk=st.integers(1, 3),
    balance=st.sampled_from(BALANCES),
)  # fmt: skip
def test_every_token_is_on_one_rank(groups, ulysses, chunk, balance):
    """Positions of all ranks are the sequence, whatever is exchanged and however it is shared out."""
    cp, length = groups * ulysses, 2 * chunk * ulysses
    ranks = [Context(cp, rank, ulysses, balance=balance).positions(length) for rank in range(cp)]
    assert {len(each) for each in ranks} == {length}
    assert sorted(torch.cat(ranks).tolist()) == list(range(cp * length))


@given(
    start=st.tuples(st.integers(0, 12), st.integers(0, 12)), step=st.integers(1, 3), length=st.integers(1, 5),
    window=st.one_of(st.none(), st.integers(1, 9)),
)  # fmt: skip
def test_visibility_is_what_the_positions_say(start, step, length, window):
    """No mask where none is needed: every kind equals the mask written out."""
    query, key = (Run(each, step, length) for each in start)
    distance = query.positions()[:, None] - key.positions()[None, :]
    seen = (distance >= 0) & (distance < (window or 1000))
    square = torch.ones(length, length, dtype=torch.bool)
    written = {
        NONE: ~square,
        FULL: square,
        CAUSAL: square.tril(),
        STRICT: square.tril(-1),
    }
    kind = visibility(query, key, window)
    if kind in written:
        assert torch.equal(seen, written[kind])
    if window is None and not seen.any():
        assert kind == NONE or (kind == STRICT and length == 1)


def test_zigzag_gives_every_rank_the_same_work():
    """Pairs of query and key that a rank computes: equal for zigzag, rising for contiguous chunks."""

    def work(balance):
        parts = [torch.cat([run.positions() for run in runs(group, 4, 64, balance)]) for group in range(4)]
        return [int((part + 1).sum()) for part in parts]

    assert len(set(work("zigzag"))) == 1
    assert work("contiguous") == sorted(set(work("contiguous")))
