"""Qwen3.5's dense text models: parameters by a formula of their own."""

import pytest

from simpar.architectures.catalogue import load_model

VOCABULARY, HEAD, KEY_HEADS, LINEAR_HEAD, KERNEL = 248_320, 256, 16, 128, 4
SIZES = {  # layers, hidden, heads, heads of keys, ffn, value heads of linear attention, whether the table is tied
    "Qwen/Qwen3.5-0.8B": (24, 1024, 8, 2, 3584, 16, True),
    "Qwen/Qwen3.5-4B": (32, 2560, 16, 4, 9216, 32, True),
    "Qwen/Qwen3.5-9B": (32, 4096, 16, 4, 12_288, 32, False),
    "Qwen/Qwen3.5-27B": (64, 5120, 24, 4, 17_408, 48, False),
}


@pytest.mark.parametrize("name", sorted(SIZES))
def test_parameters(name: str) -> None:
    """Every fourth layer attends with a gate as wide as its queries; the others are gated delta networks."""
    layers, hidden, heads, keys, ffn, values, tied = SIZES[name]
    attention = hidden * HEAD * (2 * heads + 2 * keys + heads) + 2 * HEAD
    mixed, made = (2 * KEY_HEADS + values) * LINEAR_HEAD, values * LINEAR_HEAD
    delta = hidden * (mixed + 2 * made + 2 * values) + KERNEL * mixed + 2 * values + LINEAR_HEAD
    each = 3 * hidden * ffn + 2 * hidden
    whole = layers * each + layers // 4 * attention + 3 * layers // 4 * delta
    assert load_model(name).num_parameters() == whole + VOCABULARY * hidden * (2 - tied) + hidden
