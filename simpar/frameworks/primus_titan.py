"""AMD Primus on torchtitan: the overrides of an experiment are a job config over Primus' own defaults.

Defaults are those of ``primus/configs/modules/torchtitan`` and the models of ``primus/configs/models/torchtitan`` at
AMD-AGI/Primus fd1eeab.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.target import Imported
from simpar.frameworks.titan_read import WORDS as TITAN_WORDS
from simpar.frameworks.titan_read import read_job
from simpar.frameworks.words import ReadWords, WordTable

DEFAULTS = {
    "training.local_batch_size": 8, "training.seq_len": 2048, "training.global_batch_size": -1,
    "training.mixed_precision_param": "bfloat16", "parallelism.data_parallel_shard_degree": -1,
    "activation_checkpoint.mode": "none", "activation_checkpoint.selective_ac_option": "2",
    "optimizer.implementation": "fused", "compile.enable": True,
}  # fmt: skip
MODELS = (
    (r"llama3(?:\.\d)?_(\d+)B", "llama3", "{}B"), (r"qwen3_([\d.]+)b", "qwen3", "{}B"),
    (r"deepseek_v3_(\d+)b", "deepseek_v3", "{}B"), (r"gpt_oss_(\d+)b", "gpt_oss", "{}b"),
    (r"llama4_17Bx(\d+)E", "llama4", "17bx{}e"),
)  # fmt: skip
"""Names of files of models, with torchtitan's folder and flavor that they have."""
IN_8_BITS = "-fp8"
"""The end of the names of models whose products torchao has in 8 bits."""
SWITCH = "primus_turbo.enable_primus_turbo"
KERNELS = "kernels of Primus-Turbo in place of torch's: time"
NOTE = f"{KERNELS}, unless {SWITCH} is false (Primus' default is true)."
WORDS = TITAN_WORDS | WordTable(
    idle=("*sink_level", "training.mock_data", "quantize.*.filter_fqns", "primus_turbo.enable_embedding_autocast"),
    deciding={
        "primus_turbo.*": KERNELS,
        "training.debug_moe*": "which experts tokens go to: time",
        "debug.deterministic": "kernels that repeat their sums: time",
        "debug.moe_force_load_balance": "which experts tokens go to: time",
    },
)
"""Words of such experiments that no plan has."""


def read_module(asked: str, said: Mapping[str, Any], name: str) -> Imported:
    """The plan of a module that trains by torchtitan: ``asked`` is its model, ``said`` its overrides by dotted name.

    Raises UserError.
    """
    told = {key: value for key, value in said.items() if value is not None}
    plain = asked.removesuffix(IN_8_BITS)
    kinds = ((family, form.format(match[1])) for pattern, family, form in MODELS
             if (match := re.fullmatch(pattern, plain)))  # fmt: skip
    family, flavor = next(kinds, ("", plain))
    if not asked:
        raise UserError(f"{name}: model is missing, such as llama3.1_8B.yaml")
    own: dict[str, Any] = {"model.name": family, "model.flavor": flavor}
    own |= {"model.converters": ["quantize.linear.float8"]} if asked != plain else {}
    result = read_job({**DEFAULTS, **own, **told}, name)
    words = result.words
    used = tuple(word for word in words.used if word in told)
    unread = {word: value for word, value in words.unread.items() if word in told}
    notes = result.notes if told.get(SWITCH) is False else (*result.notes, NOTE)
    return replace(result, words=ReadWords((*used, "model"), unread), notes=notes)
