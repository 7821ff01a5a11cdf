"""AMD Primus on Megatron-Bridge: what an experiment hands to the function of a recipe, over that recipe's own values.

Primus calls the function (``flavor``) with all its overrides, and drops those that it does not take, in silence
(``config_utils.py`` of its back end at AMD-AGI/Primus fd1eeab). Recipes are those of Megatron-Bridge 0.2, whose
functions take arguments (``recipes/qwen/qwen3.py``, ``recipes/llama/llama3.py``).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.bridge_read import of_config
from simpar.frameworks.match import find_released
from simpar.frameworks.recipe_values import ConfigCall
from simpar.frameworks.target import Imported
from simpar.frameworks.words import ReadWords, WordTable

LAYOUT = {
    **{key: f"model.{key}" for key in (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
        "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
    )},
    "use_megatron_fsdp": "ddp.use_megatron_fsdp",
}  # fmt: skip
SHAPE = {
    "global_batch_size": "train.global_batch_size", "micro_batch_size": "train.micro_batch_size",
    "seq_length": "model.seq_length", "precision_config": "mixed_precision",
}  # fmt: skip
"""Overrides by the fields of Bridge's config that functions of recipes set from them."""
NEEDED = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "global_batch_size",
    "micro_batch_size",
    "seq_length",
)
"""What recipes have values of their own for, model by model."""
UNTAKEN = (
    "recompute_granularity", "recompute_method", "recompute_num_layers", "use_distributed_optimizer",
    "cross_entropy_loss_fusion", "overlap_grad_reduce", "overlap_param_gather", "grad_reduce_in_fp32",
)  # fmt: skip
"""Fields of Bridge's config that no function takes as an argument."""
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
OWN: dict[str, tuple[tuple[int, int], tuple[int, int], int]] = {
    "llama3_8b": ((2, 1), (1, 1), 8), "llama31_8b": ((2, 1), (1, 1), 8), "llama3_70b": ((8, 4), (8, 1), 16),
    "llama31_70b": ((8, 4), (8, 1), 16),
}  # fmt: skip
"""Tensor and pipeline ranks that recipes of fine-tuning set themselves, of full training and with adapters, and the
adapters' rank."""
SET = "recipes of this model set their own layout in Megatron-Bridge 0.2, whatever they are handed: layout"
WORDS = WordTable(
    idle=("finetune_lr", "dataset", "dataset_name", "skip_save", "mock", "data_paths", "peft_alpha", "hf_path",
          "flavor", "packed_*_data_path", "packed_metadata_path"),
    deciding={
        **dict.fromkeys(LAYOUT, SET),
        "packed_sequence": "sequences of examples: how full they are, and attention's time",
        "comm_overlap_config": "communication beside computation: step time",
        "peft_dim": "the adapters' rank, which functions of recipes are not handed: memory and time",
    },
)  # fmt: skip
"""Of words that the recipe's function does not take, or need not heed."""
RANK = 32
"""Of adapters elsewhere (``default_peft_config``)."""
RECOMPUTED = ("qwen3_32b",)
"""Models whose recipes recompute all layers."""
_FLAVOR = re.compile(r"((?:llama3|llama31|llama32|qwen3)_\d+[mb](?:_a\d+b)?)_(pretrain|finetune)_config")


def read_module(asked: str, said: Mapping[str, Any], name: str) -> Imported:
    """The plan of a module that trains by Megatron-Bridge: ``asked`` is its model, ``said`` its overrides.

    Raises UserError.
    """
    flavor = str(said.get("flavor") or f"{asked}_finetune_config")
    match = _FLAVOR.fullmatch(flavor)
    model = find_released(asked.replace("_", "-")) if match else None
    if match is None or model is None:
        raise UserError(
            f"{name}: {'flavor = ' + flavor if 'flavor' in said else 'model = ' + (asked or 'none')}: a recipe of "
            "Primus or Megatron-Bridge that is not read; allowed: recipes of Llama 3 and Qwen3"
        )
    absent = next((key for key in NEEDED if said.get(key) is None), None)
    if absent is not None:
        raise UserError(f"{name}: {absent} is missing: {flavor} has it from a file that is not here")
    family, kind = match.groups()
    config, notes = _config(family, kind, model, said), list[str]()
    dropped = [key for key in UNTAKEN if said.get(key) is not None]
    if dropped:
        notes.append(f"{flavor} takes no {', '.join(dropped)}: Primus drops them, and the recipe's own values hold.")
    result = of_config(flavor, config, name, notes)
    idle = {*dropped, *(["peft_dim"] if family in OWN and said.get("peft_dim") == OWN[family][2] else [])}
    return replace(result, words=_words(said, result, idle, _unheeded(family, kind, said)), written_as="")


def _config(family: str, kind: str, model: str, said: Mapping[str, Any]) -> ConfigCall:
    """The config that the function of a recipe returns, of the overrides that it takes."""
    config = ConfigCall("_pretrain_common" if kind == "pretrain" else "")
    config.put("model", ConfigCall("AutoBridge.from_hf_pretrained", [model]))
    config.put("mixed_precision", "bf16_mixed")
    for key, field in (LAYOUT | SHAPE).items():
        if said.get(key) is not None:
            config.put(field, said[key])
    scheme = _scheme(kind, said)
    adapted = scheme != "none"
    config.put("peft", None)
    if adapted:
        rank = OWN[family][2] if family in OWN else RANK
        config.put("peft", ConfigCall("LoRA", fields={"dim": rank}) if scheme == "lora" else scheme)
    if kind == "finetune":
        config.put("ddp.use_distributed_optimizer", not (adapted and family in OWN))
    if family in RECOMPUTED and said.get("enable_recompute") is not False:
        for key, value in FULL.items():
            config.put(f"model.{key}", value)
    return config


def _unheeded(family: str, kind: str, said: Mapping[str, Any]) -> set[str]:
    """The overrides of the layout that a recipe may set itself, to another value."""
    if kind == "pretrain":
        return set()
    if re.search(r"_a\d+b", family):
        return {key for key in LAYOUT if said.get(key) not in (None, False)}
    if family not in OWN:
        return set()
    full, adapted, _ = OWN[family]
    tp, pp = full if _scheme(kind, said) == "none" else adapted
    own = {"tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "context_parallel_size": 1}
    return {key for key in LAYOUT if said.get(key) not in (None, False, own.get(key))}


def _scheme(kind: str, said: Mapping[str, Any]) -> str:
    """How a recipe adapts its model; "none" if it trains all of it."""
    return "none" if kind == "pretrain" else str(said.get("peft", "lora")).lower()


def _words(said: Mapping[str, Any], result: Imported, idle: set[str], unheeded: set[str]) -> ReadWords:
    """The account of the overrides: their fields' words belong to them, and defaults are no words of the text.

    ``idle`` are those that do nothing, ``unheeded`` those that the recipe may not heed.
    """
    keys = {field: key for key, field in (LAYOUT | SHAPE).items()}
    unread = {keys[word] for word in result.words.unread if keys.get(word) in said} | unheeded
    used = [key for key in (*LAYOUT, *SHAPE, "peft", "enable_recompute", *sorted(idle)) if key in said]
    used = [key for key in used if key not in unread]
    return ReadWords((*used, "model"), {key: value for key, value in said.items() if key not in used})
