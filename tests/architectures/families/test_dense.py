"""Configs of dense families: parameters as transformers counts them, positions by layer, and what no run computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simpar.architectures.families import DECLARED
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.architectures.counted import counted_alike

DOCS = Path(__file__).parents[3] / "docs" / "modeling.md"
LLAMA = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "n_embd": 32, "n_layer": 2, "n_head": 4}
NORMED = "LayerNorm of queries and keys"
SIMULATED: dict[str, tuple[dict[str, Any], str]] = {
    "cohere": ({**LLAMA, "use_qk_norm": True}, NORMED),
    "stablelm": ({**LLAMA, "qk_layernorm": True}, NORMED),
    "persimmon": ({key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}, NORMED),
    "apertus": (LLAMA, "xIELU"),
    "ministral3": ({**LLAMA, "head_dim": 8}, "queries scaled by their position"),
    "gptj": ({**GPT, "rotary_dim": 4, "resid_pdrop": 0.1}, "dropout behind branches side by side"),
}
"""Families that are simulated and not run: a config, and what of it no run computes."""


@pytest.mark.parametrize("family", sorted(SIMULATED))
def test_parameters_of_what_is_only_simulated_are_those_of_transformers(family: str) -> None:
    """To the parameter, and the part that no run computes is named."""
    config, said = SIMULATED[family]
    assert said in counted_alike(family, config).details.unbuilt[0]


def rotary(graph: Any) -> list[bool]:
    """Which layers turn queries and keys."""
    return [any(op.kind == "rope" for op in graph.blocks[name].operators) for name in graph.layers]


@pytest.mark.parametrize(
    ("family", "changes", "turns", "windows"),
    [
        ("smollm3", {}, [True, True, True, False], [None] * 4),
        ("smollm3", {"no_rope_layers": [0, 1, 0, 1]}, [False, True, False, True], [None] * 4),
        ("cohere2", {}, [True, True, True, False], [4096, 4096, 4096, None]),
        ("exaone4", {"sliding_window": 8}, [True, True, True, False], [8, 8, 8, None]),
        ("exaone4", {"sliding_window": None, "sliding_window_pattern": None}, [True] * 4, [None] * 4),
        ("olmo3", {}, [True] * 4, [4096, 4096, 4096, None]),
        ("cwm", {}, [True] * 4, [None, 8192, 8192, 8192]),
        ("ministral", {"layer_types": ["full_attention", "sliding_attention"] * 2}, [True] * 4, [None, 4096] * 2),
    ],
)
def test_positions_and_windows_by_layer(
    family: str, changes: dict[str, Any], turns: list[bool], windows: list[int | None]
) -> None:
    """Layers without positions are blocks of their own; windows stand where the config puts them."""
    graph = read({"model_type": family, **LLAMA, **changes}, family)
    assert rotary(graph) == turns
    masks = [graph.blocks[name].operator("attention").attention for name in graph.layers]
    assert [mask.window for mask in masks if mask] == windows


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers = [1, 0]: allowed: 1 (positions) or 0 for each of 4"),
        ("cohere2", {"layer_types": ["full_attention"]}, "allowed: one for each of 4 layers"),
        ("gptj", {**GPT, "rotary_dim": 64}, "rotary_dim = 64: allowed: 1 to the 8 features of a head"),
        ("gpt_neo", {"num_layers": 3, "num_heads": 4}, "attention_types = None: allowed: pairs of global and local"),
        ("gpt_bigcode", {**GPT, "add_cross_attention": True}, "add_cross_attention = true: allowed: false"),
    ],
)
def test_what_cannot_be_says_why(family: str, changes: dict[str, Any], said: str) -> None:
    """One line with the field, its value and what is allowed."""
    with pytest.raises(UserError) as error:
        read({"model_type": family, **LLAMA, **changes}, "config.json")
    assert str(error.value).startswith("config.json: ")
    assert said in str(error.value)


def test_a_share_of_a_head_is_whole_features() -> None:
    """``rotary_dim`` features turn, whatever the head's width does to the quotient."""
    for turned in range(2, 81, 2):
        config = {**GPT, "n_embd": 320, "rotary_dim": turned, "model_type": "gptj"}
        assert read(config, "gptj").details.positions.rope.turned(80) == turned


def test_documents_list_every_family() -> None:
    """The table of families has them all and no other."""
    text = DOCS.read_text(encoding="utf-8").partition("## Families of models")[2].partition("\n## ")[0]
    rows = [line.split("|")[2] for line in text.splitlines() if line.startswith("| ")][1:]
    listed = [name.strip().rstrip("*") for row in rows for name in row.split(",")]
    assert sorted(listed) == sorted(DECLARED)
