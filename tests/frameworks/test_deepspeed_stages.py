"""How DeepSpeed's pipeline spreads layers over stages, by method."""

import pytest

from simpar.frameworks.deepspeed_stages import HEADS, layers_by_method


@pytest.mark.parametrize(
    ("method", "layers", "stages", "head", "expected"),
    [
        ("type:transformer", 48, 4, "tied", (12,) * 4),
        ("'type:transformer|embedding'", 46, 4, "tied", (11, 12, 12, 11)),  # 48 of the classes, 12 each
        ("type:Transformer|Embedding", 47, 4, "megatron-deepspeed", (11, 12, 12, 12)),  # the head is no embedding
        ("type:transformer|mlp", 44, 4, "gpt-neox", (11,) * 4),
        ("type:transformer", 46, 4, "tied", None),  # versions differ in who has more
        ("type:embedding", 46, 2, "tied", None),
        ("type:[", 46, 2, "tied", None),
        ("type:", 48, 4, "tied", None),
        ("uniform", 48, 4, "tied", None),
        ("parameters", 48, 4, "tied", None),
    ],
)
def test_layers_by_method(method, layers, stages, head, expected):
    """As many of what is counted in every stage; None where only the version of DeepSpeed tells."""
    assert layers_by_method(method, layers, stages, HEADS[head]) == expected
