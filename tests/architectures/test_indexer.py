"""Keys that an indexer chooses: how many a query sees, counted one by one."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.architectures.graph import AttentionPattern, Selection
from simpar.architectures.indexer import Indexer, choose

TOKENS = np.arange(8192)
"""Places of queries."""


def test_blocks_of_keys_are_half_behind_their_query() -> None:
    """16 blocks of 128 keys: all earlier ones, then 15 whole blocks and what there is of the query's own."""
    own, earlier = TOKENS % 128 + 1, TOKENS // 128
    seen = np.minimum(earlier, 15) * 128 + own
    assert Selection(2048, block=128).mean_keys(8192) == pytest.approx(seen.mean(), rel=1e-3)
    assert Selection(2048, block=128).most_keys(8192) == 2048


@pytest.mark.parametrize("chosen", [512, None])
def test_compressed_keys_are_whole_pieces_before_the_query(chosen: int | None) -> None:
    """Pieces of 4 tokens, at most 512 of them or all, beside a window of 128 tokens."""
    pieces = np.minimum((TOKENS + 1) // 4, chosen or 8192)
    window = np.minimum(TOKENS + 1, 128)
    pattern = AttentionPattern(window=128, selection=Selection(chosen, ratio=4))
    assert pattern.mean_keys(8192) == pytest.approx((pieces + window).mean(), rel=2e-3)
    assert pattern.most_keys(8192) == 128 + (chosen or 2048)
    assert pattern.is_bounded


def test_places_are_kept_for_every_ranking() -> None:
    """Four heads that choose 16 blocks each; one choice of 2,048 keys for all."""
    apart, together = Indexer(4, 128, 2048, block=128, apart=True), Indexer(64, 128, 2048)
    assert [sizes.dims["index_choices"] for sizes in (apart, together)] == [64, 2048]
    assert choose("q").columns == ((2, ("index_choices",)),)
