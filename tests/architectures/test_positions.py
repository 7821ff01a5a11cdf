"""Tables of learned positions: no sequence is longer than they are."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.errors import UserError

LEARNED = {"gpt2": 1024, "roberta-base": 512, "bert-base": 512, "opt-125m": 2048, "gpt-neo-125m": 2048}
"""Models with a table of positions and what it holds, without rows that stand for no position."""


@pytest.mark.parametrize(("model", "positions"), LEARNED.items())
def test_no_sequence_is_longer_than_learned_positions(model, positions):
    """One that is as long as the table is answered."""
    simpar.simulate(model, "dgx-h100", {}, simpar.Training(seq_len=positions, global_batch=8))
    with pytest.raises(UserError, match=f"seq_len = {positions + 1}: .* has {positions} positions; allowed: as many"):
        simpar.simulate(model, "dgx-h100", {}, simpar.Training(seq_len=positions + 1, global_batch=8))


def test_rotary_positions_have_no_end():
    """Whatever a config says of them."""
    graph = load_model("pythia-160m")
    assert graph.longest is None
