"""Every flag of every family's config, turned over: transformers' parameters, a refusal, or a field that is named."""

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

OF_THE_LIBRARY = ("use_cache", "return_dict", "output_hidden_states", "output_attentions", "is_encoder_decoder")
"""Flags of all configs, which say nothing of sizes."""
OTHERWISE = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), ("tie_word_embeddings",)),  # a head of masked tokens is tied
    **dict.fromkeys(("t5", "mt5", "umt5"), ("is_gated_act", "tie_word_embeddings")),  # feed_forward_proj says which
    "kimi_linear": ("tie_word_embeddings",),  # which its class does not read
    "nemotron_h": ("tie_word_embeddings", "attention_bias"),  # nor these, unlike the code of the released models
    "lfm2_moe": ("use_expert_bias",),  # a buffer there, and among the parameters of a published count
    "gpt2": ("add_cross_attention",),  # to an encoder that no config describes
    "mpt": ("no_bias",),  # of its class, which has none at all
}
"""Flags that a class reads otherwise than its released models were made, or not at all."""


def kinds() -> list[str]:
    """Families of a single sequence of which the library has a class by their config."""
    return sorted(
        kind for kind, family in DECLARED.items() if kind in transformers.CONFIG_MAPPING and not family.nested
    )


def held(config: dict[str, Any]) -> int | None:
    """Parameters that the library counts, None where its class cannot be made of a config."""
    from simpar.tracing.library import make_module

    try:
        with torch.device("meta"):
            module, _ = make_module(config, "", "model")
    except Exception:  # noqa: BLE001 - whatever a class raises of a config that it cannot be made of
        return None
    return sum(each.numel() for each in module.parameters())


def counted(config: dict[str, Any], field: str) -> int | None:
    """Parameters that are declared; None where the config is refused, or the field named as not understood."""
    try:
        graph = read(config, "model")
    except UserError:
        return None
    return None if field in graph.details.unread else graph.num_parameters()


def flags(config: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """The flags of a config's class, and what they are in it."""
    full = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config).to_dict()
    for field, value in full.items():
        if isinstance(value, bool) and field not in OF_THE_LIBRARY and not field.startswith("_"):
            yield field, bool(config.get(field, value))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", some(kinds(), ["deepseek_v3", "nemotron_h"]))
def test_no_flag_is_read_in_silence(kind: str) -> None:
    """Biases, norms, ties: what a flag changes in transformers, it changes here, or is said not to."""
    config = {**DECLARED[kind].tiny, "model_type": kind}
    theirs, ours = held(config), counted(config, "")
    if theirs is None or ours is None:
        pytest.skip("the library has no language model for the config")
    wrong = []
    for field, value in flags(config):
        turned = {**config, field: not value}
        one, two = held(turned), counted(turned, field)
        if field not in OTHERWISE.get(kind, ()) and one is not None and two is not None and one - theirs != two - ours:
            wrong.append(f"{field} = {not value}: {one - theirs:+} in transformers, {two - ours:+} here")
    assert wrong == []
