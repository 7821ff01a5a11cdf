"""Tables of learned positions: no sequence is longer than they are."""

from __future__ import annotations

import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.errors import UserError

LEARNED = {"gpt2": 1024, "roberta-base": 512, "bert-base": 512, "opt-125m": 2048, "gpt-neo-125m": 2048}
"""Models with a table of positions and what it holds, without rows that stand for no position."""


@pytest.mark.parametrize(("model", "positions"), LEARNED.items())
def test_a_table_holds_so_many_positions(model, positions):
    """Without rows that stand for none."""
    assert load_model(model).longest == positions


def test_robertas_sequences_end_before_its_table():
    """With what is allowed."""
    with pytest.raises(UserError, match="seq_len = 513: roberta-base has 512 positions; allowed: as many"):
        simpar.simulate("roberta-base", "dgx-h100", {}, simpar.Training(seq_len=513, global_batch=8))


def test_rotary_positions_have_no_end():
    """Whatever a config says of them."""
    graph = load_model("pythia-160m")
    assert graph.longest is None
