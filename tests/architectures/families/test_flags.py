"""Every flag and size of every family's config, changed: transformers' parameters, a refusal, or a named field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from simpar.architectures.families import DECLARED
from simpar.architectures.hf_config import read
from simpar.errors import UserError
from tests.gate import some

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

OF_THE_LIBRARY = (
    "use_cache", "return_dict", "output_hidden_states", "output_attentions", "is_encoder_decoder", "num_labels",
    "chunk_size_feed_forward", "vocab_size", "max_position_embeddings", "image_size", "patch_size",
)  # fmt: skip
"""Fields of all configs that say nothing of sizes, or that tokens, positions and patches depend on."""
TIED = ("tie_word_embeddings",)
OTHERWISE = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), TIED),  # a head of masked tokens is tied
    **dict.fromkeys(("t5", "mt5", "umt5"), ("is_gated_act", *TIED)),  # feed_forward_proj says which
    # its class does not read the first, and has other names for what linear_attn_config says
    "kimi_linear": (*TIED, "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"),
    "nemotron_h": ("tie_word_embeddings", "attention_bias"),  # nor these, unlike the code of the released models
    "lfm2_moe": ("use_expert_bias",),  # a buffer there, and among the parameters of a published count
    "gpt2": ("add_cross_attention",),  # to an encoder that no config describes
    "mpt": ("no_bias", "expansion_ratio"),  # of its class, which has none at all, and four times the width
    "deepseek_v4": ("moe_intermediate_size", "n_shared_experts"),  # its class reads one width and one expert
    "glm4_moe_lite": ("first_k_dense_replace",),  # its class reads mlp_layer_types alone
    # its class has weights for experts that do nothing, and one width of heads where released ones have two
    "longcat_flash": ("hidden_size", "expert_ffn_hidden_size", "zero_expert_num", "qk_head_dim", "num_layers"),
    "helium": ("hidden_size", "num_attention_heads", "head_dim"),  # heads together are as wide as the model
    "llama4": TIED,  # the class of the whole ties nothing, unlike that of its text
    "kimi_k25": ("hidden_size",),  # beside projection_hidden_size
}  # fmt: skip
"""Fields that a class reads otherwise than its released models were made, or not at all."""
SECTIONS = ("text_config", "vision_config")
OF_SECTIONS = (*TIED, "vision_use_head")
"""Fields in sections: many wholes read of tables what stands beside these alone, where released configs say it in both;
no language model reads the pooling head of a tower."""


def kinds() -> list[str]:
    """Families of which the library has a class by their config."""
    classes = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    known = {kind for kind in DECLARED if kind in transformers.CONFIG_MAPPING and kind != "gemma3n"}  # as its text
    return sorted(kind for kind in known if not DECLARED[kind].nested or transformers.CONFIG_MAPPING[kind] in classes)


def held(config: dict[str, Any]) -> int | None:
    """Parameters that the library counts, None where its class cannot be made of a config.

    A bias that only chooses experts is a buffer there.
    """
    from simpar.tracing.library import make_module

    kind = str(config["model_type"])
    try:
        with torch.device("meta"):
            if DECLARED[kind].nested:
                whole = transformers.CONFIG_MAPPING[kind].from_dict(config)
                module = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(whole)](whole)
            else:
                module, _ = make_module(config, "", "model")
    except Exception:  # noqa: BLE001 - whatever a class raises of a config that it cannot be made of
        return None
    biases = [each.numel() for name, each in module.named_buffers() if name.endswith(BIASES)]
    return sum(each.numel() for each in module.parameters()) + sum(biases)


BIASES = ("e_score_correction_bias", "expert_bias")


def counted(config: dict[str, Any], field: str) -> int | None:
    """Parameters that are declared; None where the config is refused, or the field named as not understood."""
    try:
        graph = read(config, "model")
    except UserError:
        return None
    named = {each.rpartition(".")[2] for each in graph.details.unread}
    return None if field in named else graph.num_parameters()


def others(value: Any) -> list[Any]:
    """Other values of a field: a flag turned over, a size doubled and halved."""
    if isinstance(value, bool):
        return [not value]
    return [value * 2, max(1, value // 2)] if isinstance(value, int) and value > 0 else []


def changed(config: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every field of a config's class and of the sections of one, another value of it, and the config with that."""
    full = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config).to_dict()
    for section in ("", *SECTIONS):
        fields = full if not section else full.get(section) or {}
        own = config if not section else config.get(section, {})
        for field, value in fields.items():
            if (
                field in (*OF_THE_LIBRARY, *OF_SECTIONS * bool(section))
                or field.startswith("_")
                or field.endswith(("_id", "_index"))
            ):
                continue
            for other in others(own.get(field, value)):
                given = {**own, field: other}
                yield field, other, {**config, section: given} if section else given


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", some(kinds(), ["deepseek_v3", "nemotron_h", "internvl"]))
def test_no_field_is_read_in_silence(kind: str) -> None:
    """Sizes, biases, norms, ties: what a field changes in transformers, it changes here, or is said not to."""
    config = {**DECLARED[kind].tiny, "model_type": kind}
    theirs, ours = held(config), counted(config, "")
    if theirs is None or ours is None:
        pytest.skip("the library has no language model for the config")
    left = OTHERWISE.get(kind, ())
    wrong = []
    for field, value, other in changed(config):
        one, two = (None, None) if field in left else (held(other), counted(other, field))
        if one is not None and two is not None and one - theirs != two - ours:
            wrong.append(f"{field} = {value}: {one - theirs:+} in transformers, {two - ours:+} here")
    assert "; ".join(wrong) == ""
