"""Masked tokens: how many, which, the same for every rank, and where their targets stand."""

import numpy as np

from simpar.runtime.data import IGNORED_TARGET, Loader, Synthetic
from simpar.runtime.masked import MaskedTokens

MASK, VOCAB, LENGTH = 999, 1000, 64


def test_shares_of_tokens_are_those_of_bert() -> None:
    """15 % are predicted; of these 80 % are masked, 10 % are others, 10 % stay: within 4 standard deviations."""
    source = Synthetic(VOCAB, LENGTH, 3)
    made = MaskedTokens(source, MASK, VOCAB, 3)
    samples = [(source.sample(i)[:-1], made.sample(i)[:-1], made.wanted(i)[1:]) for i in range(400)]
    tokens, shown, wanted = (np.concatenate(each) for each in zip(*samples, strict=True))
    chosen = wanted != IGNORED_TARGET
    assert np.array_equal(wanted[chosen], tokens[chosen])
    assert np.array_equal(shown[~chosen], tokens[~chosen])
    count = chosen.sum()
    assert abs(chosen.mean() - 0.15) < 4 * np.sqrt(0.15 * 0.85 / len(tokens))
    for share, expected in (((shown[chosen] == MASK).mean(), 0.8), ((shown == tokens)[chosen].mean(), 0.1)):
        assert abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / count)
    assert all((each[2] != IGNORED_TARGET).any() for each in samples)


def test_every_rank_sees_the_same_masks() -> None:
    """The parts of two ranks are the batch of one, and a step is what it was."""
    made = MaskedTokens(Synthetic(VOCAB, LENGTH, 0), MASK, VOCAB, 0)
    whole = Loader(made, 4, 0, 1, 0)
    parts = [Loader(made, 4, rank, 2, 0) for rank in (0, 1)]
    assert np.array_equal(whole.batch(2), np.concatenate([each.batch(2) for each in parts]))
    targets, factor = whole.targets(2)
    assert np.array_equal(targets, np.concatenate([each.targets(2)[0] for each in parts]))
    assert factor == parts[0].targets(2)[1] == 4 * LENGTH / (targets[:, 1:] != IGNORED_TARGET).sum()
    assert np.array_equal(whole.batch(2), Loader(made, 4, 0, 1, 0).batch(2))


def test_what_does_not_count_is_no_target() -> None:
    """Of a source whose prompts are outside the loss."""

    class Half(Synthetic):
        masked = True

        def wanted(self, index):
            return np.where(np.arange(LENGTH + 1) < LENGTH // 2, IGNORED_TARGET, self.sample(index))

    wanted = MaskedTokens(Half(VOCAB, LENGTH, 0), MASK, VOCAB, 0).wanted(5)
    assert (wanted[1 : LENGTH // 2 + 1] == IGNORED_TARGET).all()
    assert (wanted[LENGTH // 2 + 1 :] != IGNORED_TARGET).any()
