"""AMD Primus on MaxText: the overrides of an experiment over the defaults of Primus and of MaxText's base config.

Defaults are those of ``primus/configs/modules/maxtext`` and the models of ``primus/configs/models/maxtext`` at
AMD-AGI/Primus fd1eeab.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.maxtext_read import plan_in
from simpar.frameworks.target import Imported
from simpar.frameworks.words import ReadWords

DEFAULTS = {
    "remat_policy": "full", "scan_layers": True, "dtype": "bfloat16", "weight_dtype": "bfloat16",
    "attention": "cudnn_flash_te",
}  # fmt: skip
NAMED = {"deepseek_v2_16B": "deepseek2-16b"}
"""Models of files whose names are spelt otherwise."""
GROK = {
    "decoder_block": "mixtral", "base_emb_dim": 6144, "base_num_query_heads": 48, "base_num_kv_heads": 8,
    "base_mlp_dim": 32768, "base_moe_mlp_dim": 32768, "base_num_decoder_layers": 64, "head_dim": 128,
    "vocab_size": 131072, "num_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
"""What MaxText has no model for (``grok1.yaml``)."""


def read_module(asked: str, said: Mapping[str, Any], name: str) -> Imported:
    """The plan of a module that trains by MaxText: ``asked`` is its model, ``said`` its overrides.

    Raises UserError.
    """
    if not asked:
        raise UserError(f"{name}: model is missing, such as llama3_8B.yaml")
    told = {key: value for key, value in said.items() if value is not None}
    own = GROK if asked == "grok1" else {"model_name": NAMED.get(asked, _spelt(asked))}
    result = plan_in({**DEFAULTS, **own, **told}, name)
    unread = {word: value for word, value in result.words.unread.items() if word in told}
    used = tuple(word for word in result.words.used if word in told)
    return replace(result, words=ReadWords((*used, "model"), unread), written_as="")


def _spelt(asked: str) -> str:
    """A model as MaxText spells it: ``llama3-8b`` for ``llama3_8B``."""
    return re.sub("_", "-", asked).lower()
