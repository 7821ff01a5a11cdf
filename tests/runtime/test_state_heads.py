"""Context ranks of a state-space layer: every head once, beside its group, over the tokens in their order."""

import pytest

torch = pytest.importorskip("torch")

from simpar.runtime import state_heads  # noqa: E402
from simpar.runtime.context import ContextRank  # noqa: E402
from simpar.runtime.state_heads import of_rank, to_heads, to_tokens  # noqa: E402

BATCH, SEQ, WIDTH, STATE = 2, 24, 3, 5


def ranks_of(cp, **choices):
    """All context ranks of a sequence."""
    return [ContextRank(cp=cp, rank=rank, **choices) for rank in range(cp)]


def exchanged(call, given, ranks, monkeypatch):
    """What every rank gets from a call that exchanges once, of what each of them gives, and how much each sends."""
    sent = []
    keep = lambda x, _, split, join: sent.append((x, split, join)) or x  # noqa: E731
    monkeypatch.setattr(state_heads.Exchange, "apply", keep)
    for each, rank in zip(given, ranks, strict=True):
        try:
            call(each, rank)
        except RuntimeError:  # what it did not get cannot be parted
            assert len(sent) == rank.rank + 1
    results = []
    for each, rank in zip(given, ranks, strict=True):
        arrived = torch.cat([x.chunk(len(ranks), split)[rank.rank] for x, split, _ in sent], dim=sent[0][2])
        monkeypatch.setattr(state_heads.Exchange, "apply", lambda *_, arrived=arrived: arrived)
        results.append(call(each, rank))
    return results, {x.numel() for x, _, _ in sent}


@pytest.mark.parametrize(
    ("heads", "groups", "cp"), [(8, 2, 2), (8, 2, 4), (8, 8, 2), (12, 1, 3), (12, 6, 2), (8, 4, 8)]
)
def test_ranks_have_every_head_beside_its_group(heads, groups, cp):
    """Head h reads group h // (heads / groups) [arXiv 2405.21060, section 7.2]."""
    group_of = torch.arange(heads) // (heads // groups)
    mine = [of_rank(torch.arange(heads), rank) for rank in ranks_of(cp)]
    assert torch.cat(mine).tolist() == [*range(heads)]
    for rank, own in zip(ranks_of(cp), mine, strict=True):
        assert of_rank(torch.arange(groups), rank, groups).tolist() == group_of[own].unique().tolist()


@pytest.mark.parametrize(
    ("cp", "choices"),
    [(2, {"balance": "zigzag"}), (4, {"balance": "striped"}), (4, {"ulysses": 4, "balance": "zigzag"}), (3, {})],
)
def test_heads_see_the_sequence_in_its_order_and_go_back(cp, choices, monkeypatch):
    """Of a whole tensor whose parts the ranks hold: some features of all tokens, then all features of some."""
    heads, groups = 12, 2 if cp == 4 else 6
    sizes = (heads * WIDTH, heads * WIDTH, groups * STATE, groups * STATE, heads)
    whole = [torch.randn(BATCH, SEQ, size) for size in sizes]
    ranks = ranks_of(cp, **choices)
    given = [tuple(x[:, rank.positions(SEQ // cp)] for x in whole) for rank in ranks]
    there, there_elements = exchanged(lambda mine, rank: to_heads(mine, groups, rank), given, ranks, monkeypatch)
    inner, copies = heads * WIDTH, max(groups, cp)
    assert there_elements == {BATCH * SEQ // cp * (2 * inner + 2 * copies * STATE + heads)}  # as it is priced
    for rank, parts in zip(ranks, there, strict=True):
        for number, (part, x) in enumerate(zip(parts, whole, strict=True)):
            of_groups = (groups,) if number in (2, 3) else ()
            expected = of_rank(x.unflatten(-1, (groups if of_groups else heads, -1)).movedim(2, 0), rank, *of_groups)
            assert torch.equal(part, expected.movedim(0, 2).flatten(-2))
    back, back_elements = exchanged(to_tokens, [parts[1] for parts in there], ranks, monkeypatch)
    assert back_elements == {BATCH * SEQ // cp * inner}
    assert all(torch.equal(x, mine[1]) for x, mine in zip(back, given, strict=True))
