"""Which tokens a rank holds under context parallelism, and what it sees of the others'."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from simpar.runtime.context import ContextRank, attention, runs  # noqa: E402

BALANCES = ("contiguous", "zigzag", "striped")


@given(
    groups=st.sampled_from([1, 2, 4]), ulysses=st.sampled_from([1, 2]), chunk=st.integers(1, 3),
    balance=st.sampled_from(BALANCES),
)  # fmt: skip
def test_every_token_is_on_one_rank(groups, ulysses, chunk, balance):
    """Positions of all ranks are the sequence, whatever is exchanged and however it is shared out."""
    cp, length = groups * ulysses, 2 * chunk * ulysses
    ranks = [ContextRank(cp, rank, ulysses, balance=balance).positions(length) for rank in range(cp)]
    assert {len(each) for each in ranks} == {length}
    assert sorted(torch.cat(ranks).tolist()) == list(range(cp * length))


def test_zigzag_gives_every_rank_the_same_work():
    """Pairs of query and key that a rank computes: equal for zigzag, rising for contiguous chunks."""

    def work(balance):
        parts = [torch.cat([run.positions() for run in runs(group, 4, 64, balance)]) for group in range(4)]
        return [int((part + 1).sum()) for part in parts]

    assert len(set(work("zigzag"))) == 1
    assert work("contiguous") == sorted(set(work("contiguous")))


@pytest.mark.parametrize("window", [None, 3])
def test_sinks_take_their_share_of_every_softmax(window):
    """Output and gradients are those of a softmax with one more logit a head, whose value is zero."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, 9, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    keys, values = (x.repeat_interleave(2, dim=1) for x in (key, value))
    distance = torch.arange(9)[:, None] - torch.arange(9)
    seen = (distance >= 0) & (distance < (window or 9))
    scores = (query @ keys.transpose(-1, -2) * 8**-0.5).masked_fill(~seen, -torch.inf)
    column = sinks[None, :, None, None].expand(2, 4, 9, 1)
    expected = torch.cat((scores, column), -1).softmax(-1)[..., :-1] @ values
    found = attention(query, key, value, ContextRank(), window, sinks)
    torch.testing.assert_close(found, expected)
    leaves, ones = (query, key, value, sinks), torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, ones), torch.autograd.grad(expected, leaves, ones), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
