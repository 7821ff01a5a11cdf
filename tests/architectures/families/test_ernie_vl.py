"""ERNIE 4.5 with vision: published sizes, products of tokens by their kind, and plans with experts."""

from __future__ import annotations

from typing import Any

import pytest

import simpar
from simpar.architectures.families import DECLARED
from simpar.architectures.flops import matmul_flop_per_token, shape_dims
from simpar.architectures.graph import ModelGraph, evaluate
from simpar.architectures.hf_config import read
from simpar.errors import UserError

TINY = DECLARED["ernie4_5_vl_moe"].tiny
RELEASED = {"model_type": "ernie4_5_vl_moe", "text_config": {  # baidu/ERNIE-4.5-VL-28B-A3B-PT config.json
    "vocab_size": 103_424, "hidden_size": 2560, "intermediate_size": 12_288, "num_hidden_layers": 28,
    "num_attention_heads": 20, "num_key_value_heads": 4, "moe_intermediate_size": [1536, 512], "moe_k": 6,
    "moe_num_experts": 64, "moe_num_shared_experts": 2, "tie_word_embeddings": True,
}, "vision_config": {"depth": 32, "hidden_size": 1280}}  # fmt: skip
IMAGE = {"patches_per_image": 16}
TEXT_ALONE = {"images_per_sequence": 0}


def tiny(**more: Any) -> ModelGraph:
    """A tiny model with an image of four visual tokens a sequence."""
    return read({**TINY, "model_type": "ernie4_5_vl_moe", **IMAGE, **more}, "tiny")


def test_parameters_are_the_published() -> None:
    """28B-A3B: 29,399,294,336 in the class of transformers, 6.79 billion of them images' experts.

    A token of text uses 3 billion, the table aside: 3.36 of the language model, as 6 of 64 experts and two shared ones
    are 3 x 2560 x 1536 x 8 x 27 = 2.55 and attention, the dense layer and routers 0.54.
    """
    graph = read(RELEASED, "ernie")
    assert graph.num_parameters() == 29_399_294_336
    language = read({**RELEASED, **TEXT_ALONE}, "ernie")
    experts = 27 * (64 * 3 * 2560 * 512 + 64 * 2560 + 64)
    tower = sum(int(graph.blocks[name].parameters(graph.dims)) for name in graph.layers if not name.startswith("layer"))
    assert graph.num_parameters() - language.num_parameters() - tower == experts
    assert language.num_active_parameters() == pytest.approx(3.36e9, rel=0.005)
    more = graph.num_active_parameters() - language.num_active_parameters() - tower
    assert more == 27 * (64 * 2560 + 64), "the other router"


BESIDE = {  # as the released file has it, under the name of its own code
    **RELEASED["text_config"], "model_type": "ernie4_5_moe_vl", "moe_num_experts": [64, 64], "spatial_conv_size": 2,
    "moe_layer_start_index": [1, 1], "moe_layer_end_index": [29, 28], "moe_capacity": [128, 128, 128],
    "temporal_conv_size": 2, "pixel_hidden_size": 1280, "moe_gate": "topk", "im_patch_id": 100_295,
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1280, "mlp_ratio": 4, "num_heads": 16},
}  # fmt: skip


def test_released_configs_have_the_text_beside_the_tower() -> None:
    """Lists of what text's and images' experts have are read, and no field is left."""
    graph = read(BESIDE, "ernie")
    assert graph.num_parameters() == 29_399_294_336
    assert graph.details.unread == ()
    narrow = read({**BESIDE, "vision_config": {**BESIDE["vision_config"], "mlp_ratio": 2}}, "ernie")
    assert graph.num_parameters() - narrow.num_parameters() == 32 * (2 * 1280 + 1) * 1280 * 2
    with pytest.raises(UserError, match=r"moe_num_experts = \[64, 32\]: allowed: as many of text as of images"):
        read({**BESIDE, "moe_num_experts": [64, 32]}, "ernie")


def test_tokens_have_the_experts_of_their_kind() -> None:
    """4 of 16 tokens are visual: a text token costs 2 x 3 x 32 x 16 a expert and layer, a visual one half of it."""
    wide, narrow = (
        tiny(text_config={**TINY["text_config"], "moe_intermediate_size": widths}) for widths in ([24, 8], [16, 16])
    )
    seq, layers, topk = 16, 2, 2
    usual = matmul_flop_per_token(tiny(), seq) * seq
    shared = 2 * 3 * 32 * 8 * 2 * seq * layers  # two shared experts are as wide as text's
    text = 2 * 3 * 32 * 8 * topk * (seq - 4) * layers
    assert matmul_flop_per_token(wide, seq) * seq - usual == pytest.approx(text + shared)
    assert matmul_flop_per_token(narrow, seq) * seq - usual == pytest.approx(2 * 3 * 32 * 8 * topk * 4 * layers)


def test_every_row_is_sent_once() -> None:
    """What both kinds of experts read is what was dispatched."""
    graph = tiny()
    block = next(block for block in graph.blocks.values() if any(op.kind == "router" for op in block.operators))
    dims = shape_dims(graph, 16)
    rows = {op.name: evaluate(op.rows, dims) for op in block.operators}
    assert (rows["router"], rows["vision_router"]) == (12, 4)
    assert (rows["expert_up"], rows["vision_expert_up"], rows["dispatch"]) == (24, 8, 32)
    assert block.operator("combine").inputs == ("expert_down", "vision_expert_down")


def test_experts_of_both_kinds_are_spread() -> None:
    """Over two ranks each holds half of either: 3 x 32 x (16 + 8) x 4 / 2 parameters less in two layers."""
    training = simpar.Training(seq_len=64, global_batch=64)
    one, two = (
        simpar.simulate(tiny(), "dgx-h100", {"ep": ep, "dp": 8}, training, with_timeline=False) for ep in (1, 2)
    )
    fewer = 2 * 3 * 32 * (16 + 8) * 2
    bytes_each = (one.memory.static_memory_bytes - two.memory.static_memory_bytes) / fewer
    assert bytes_each == pytest.approx(18, abs=1.0)
    assert one.speed.model_flops_per_step == two.speed.model_flops_per_step


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"moe_intermediate_size": 16}, "moe_intermediate_size = 16: allowed: two widths"),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, "mlp_layer_types = .* allowed: dense layers, then sparse"),
    ],
)
def test_other_layers_are_refused(text: dict[str, Any], words: str) -> None:
    """In one line."""
    with pytest.raises(UserError, match=words):
        tiny(text_config={**TINY["text_config"], **text})
