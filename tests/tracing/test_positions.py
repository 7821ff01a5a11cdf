"""Sequences beyond a table of positions: refused in one line, whatever the meta device lets pass."""

import pytest

from simpar.errors import UserError
from simpar.tracing.graph import trace_library

pytest.importorskip("torch")
pytest.importorskip("transformers")

GPT = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CONFIGS = {
    "openai-gpt": GPT,
    "ctrl": {**GPT, "dff": 48},
    "biogpt": {**SMALL, "max_position_embeddings": 64},
    "xlm-roberta-xl": {**SMALL, "max_position_embeddings": 66, "pad_token_id": 1},
}


def traced(kind, seq_len):
    """The graph of a tiny model whose table ends at 64 tokens."""
    return trace_library({**CONFIGS[kind], "model_type": kind}, "", kind, seq_len, f"model = {kind}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("openai-gpt", "seq_len = 96: openai-gpt has 64 positions; allowed: as many or fewer"),  # a buffer is cut
        ("ctrl", "seq_len = 96: ctrl reads row 95 of the 64 in transformer"),  # a buffer is indexed
        ("biogpt", "seq_len = 96: biogpt reads row 97 of the 66 in biogpt.embed_positions"),  # a table of parameters
        ("xlm-roberta-xl", "seq_len = 96: xlm-roberta-xl reads row 97 of the 66"),  # positions are counted by tokens
    ],
)
def test_a_sequence_beyond_the_table_is_refused(kind, said):
    """Each of the four ways in which classes of transformers look positions up."""
    with pytest.raises(UserError, match=said):
        traced(kind, 96)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_sequence_as_long_as_the_table_is_read(kind):
    """The table is read without a cut at this length alone, and one token more has no row."""
    assert traced(kind, 64).num_parameters() > 0
