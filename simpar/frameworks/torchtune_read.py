"""torchtune back to a plan: the YAML of a recipe, and ``tune run RECIPE --config NAME key=value``."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from simpar import files
from simpar.architectures.catalogue import find_model
from simpar.architectures.recompute import policy_of_every
from simpar.errors import UserError
from simpar.frameworks.data_sets import pack_documents
from simpar.frameworks.overrides import (
    assigned,
    choice,
    command_of,
    is_config,
    laid_over,
    load_beside,
    mapping,
    reader_of,
    real,
)
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.trainer_words import TORCH_UPDATE, VISION
from simpar.frameworks.words import ON_PROCESSORS, Assumed, WordTable
from simpar.precisions import LONG_NAMES

BUILT_IN = Path(__file__).with_name("torchtune_configs.json")
"""What a plan needs of the configs that torchtune ships, by name (its recipes/configs at bd2a0fc)."""
DTYPES = LONG_NAMES | {name: name for name in LONG_NAMES.values()}
OPTIMIZERS = {
    "adamw": "adamw", "adam": "adamw", "sgd": "sgd", "pagedadamw": "paged_adamw", "pagedadamw8bit": "paged_adamw_8bit",
    "adamw8bit": "adamw_8bit", "adam8bit": "adamw_8bit", "cpuoffloadoptimizer": "adamw", "lion": "lion",
}  # fmt: skip
"""Optimizers of torch, bitsandbytes and torchao, by the last part of ``optimizer._component_`` in lower case."""
ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj", "o_proj": "o_proj"}
MLP = ("gate_proj", "up_proj", "down_proj")
RECIPES = ("full_finetune", "lora_finetune", "full_dpo", "lora_dpo", "knowledge_distillation", "qat", "ppo", "dev/")
READ_RECIPES = ("full_finetune_distributed", "full_finetune_single_device", "lora_finetune_distributed",
                "lora_finetune_single_device", "lora_finetune_distributed_multi_dataset")  # fmt: skip
NOT_MODELLED = {"teacher_": "a teacher's passes", "ref_checkpointer": "preferences or rewards", "reward_": "rewards",
                "ppo_": "rewards", "grpo_": "rewards"}  # fmt: skip
"""Beginnings of options by which recipes of other kinds are known, and what those do."""
USUAL_SEQ_LEN = 2048
LAYERS_OF = {"llama2": "llama", "llama3": "llama", "llama3_1": "llama", "mistral": "mistral", "qwen2": "qwen2"}
"""Builders of models of any size (torchtune, ``models/*/_component_builders.py``), by the family of their layers."""
SIZES_OF_BUILDERS = {
    "vocab_size": "vocab_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads", "embed_dim": "hidden_size", "intermediate_dim": "intermediate_size",
}  # fmt: skip
FFN_IN = 256
"""Llama's MLP is 8/3 of the width, in steps of this (``scale_hidden_dim_for_mlp``), where no width is said."""
ALIKE = {"llama3_3_70b": "llama-3.1-70b"}
"""Models of torchtune that have the architecture of a shipped one of another name."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of torchtune, or in a command that starts a recipe. Raises UserError."""
    recipe = ""
    if is_config(name):
        data = mapping(text, name)
        recipe = "single_device" if "single_device" in name or "low_memory" in name else ""
    else:
        recipe, data = _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of torchtune: it has model._component_ and batch_size")
    return _plan(reader_of(data, name), recipe)


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of torchtune."""
    model = data.get("model")
    return isinstance(model, Mapping) and "_component_" in model and "batch_size" in data


@cache
def _built_in() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(BUILT_IN.read_text())
    return result


def _of_command(text: str, name: str) -> tuple[str, dict[str, Any]]:
    words = command_of(text, name, _starts)
    recipe = _recipe(words) or ""
    if "/" not in recipe.removeprefix("dev/") and recipe.removesuffix(".py") not in READ_RECIPES:
        raise UserError(f"{name}: recipe {recipe}: allowed: {', '.join(READ_RECIPES)}")
    config = str(value_of(words, ("--config",)))
    if is_config(config):
        data = load_beside(config, name)
    else:
        data = _built_in()[files.choose(config, _built_in(), "config of torchtune")]
    changes = {
        f"{key}._component_" if isinstance(data.get(key), Mapping) and "_component_" in data[key] else key: value
        for key, value in assigned(words).items()
    }  # a word for a whole component names another one (torchtune/config/_utils.py)
    for word in words:  # ~key removes one
        if word.startswith("~"):
            changes[word[1:]] = None
    return recipe, laid_over(data, changes)


def _check_trains(given: ConfigReader) -> None:
    """Refuse configs that evaluate, or train on something else than the next token, by what they have."""
    if not any(key.startswith("optimizer") for key in given):
        raise UserError(
            f"{given.source}: no optimizer: a config that trains nothing; allowed: one of a finetuning recipe"
        )
    loss = given.get("loss._component_")
    if ".rlhf." in str(loss):
        raise UserError(
            f"{given.source}: loss._component_ = {loss}: preferences are not modelled; allowed: cross entropies"
        )
    for key, what in NOT_MODELLED.items():
        if (name := next((each for each in given if each.startswith(key)), None)) is not None:
            raise UserError(f"{given.source}: {name}: {what}: not modelled; allowed: full_finetune, lora_finetune")


def _plan(given: ConfigReader, recipe: str) -> Imported:
    _check_trains(given)
    component = str(given.get("model._component_")).rpartition(".")[2]
    stem = re.sub(r"^(lora|qlora|dora|qdora)_", "", component)
    model, config = _model(given, stem)
    micro, steps = given.whole("batch_size") or 1, given.whole("gradient_accumulation_steps") or 1
    alone = "single_device" in recipe
    sizes = {axis: given.whole(f"{key}_parallel_dim") or 1 for axis, key in (("tp", "tensor"), ("cp", "context"))}
    shard, replicate = given.get("data_parallel_shard_dim", -1), given.whole("data_parallel_replicate_dim") or 1
    reshard = given.get("fsdp_reshard_after_forward", True)
    training, assumed = _sequence(given)
    away = "cpu" if True in (given.get("fsdp_cpu_offload"), given.get("fsdp.cpu_offload")) else None  # before 0.2
    if given.values_.get("device") not in ("cpu", "mps"):
        given.get("device")
    values: dict[str, Any] = {
        "stack": "torchtune",
        "model": model,
        **sizes,
        "dp": 1 if alone else replicate * shard if isinstance(shard, int) and shard > 0 else None,
        "zero": 0 if alone else 3 if reshard else 2,
        "hsdp": None if alone else replicate,
        "micro_batch": micro,
        "recompute": _recompute(given),
        "offload_activations": 1.0 if given.get("enable_activation_offloading") else None,
        "offload_parameters": away,
        "fused_kernels": "compiled" if given.get("compile") is True else None,
        "update_in_backward": True if given.get("optimizer_in_bwd") else None,
        "precision": choice(given, "dtype", DTYPES, "bf16"),
        "training": training,
        **_optimizer(given, away),
        **_adapters(given, component),
    }
    if sizes["tp"] > 1:
        values["sequence_parallel"] = False  # base_llama_tp_plan
    loss = str(given.get("loss._component_") or "").rpartition(".")[2]
    chunks = given.whole("loss.num_output_chunks")
    values["loss_chunks"] = chunks or (1 if loss == "CrossEntropyLoss" else None)
    ask = "" if model or config else f"The model {stem} is not shipped: give --model."
    notes = tuple(filter(None, (ask, *given.misspelt())))
    return Imported(
        plan_said(values), given.words(), notes, micro * steps, asks={"model": ask}, config=config, assumed=assumed
    )


def _model(given: ConfigReader, stem: str) -> tuple[str | None, dict[str, Any] | None]:
    """The shipped model, or the config of one of the sizes that are said: of a builder of layers. Raises UserError."""
    sizes = {ours: given.whole(f"model.{theirs}") for theirs, ours in SIZES_OF_BUILDERS.items()}
    if sizes["num_hidden_layers"] is None:
        return ALIKE.get(stem) or find_model(stem), None
    missing = next((theirs for theirs, ours in SIZES_OF_BUILDERS.items() if sizes[ours] is None), None)
    if stem not in LAYERS_OF or missing not in (None, "intermediate_dim"):
        what = f"{stem} with sizes of its own" if stem not in LAYERS_OF else f"model.{missing} is missing"
        raise UserError(f"{given.source}: model._component_: {what}; allowed: {', '.join(LAYERS_OF)} with all sizes")
    hidden = sizes["hidden_size"] or 0
    ffn = sizes["intermediate_size"] or -(-(8 * hidden // 3) // FFN_IN) * FFN_IN
    theta = given.get("model.rope_base")
    rope = {"rope_theta": theta} if theta else {}
    return None, {
        **sizes,
        "intermediate_size": ffn,
        "model_type": LAYERS_OF[stem],
        "tie_word_embeddings": False,
        **rope,
    }


def _sequence(given: ConfigReader) -> tuple[dict[str, Any], tuple[Assumed, ...]]:
    """Packed sequences have the tokenizer's longest; others are as long as the longest document of a batch.

    Packed documents attend to themselves only (datasets/_packed.py). Data sets are known by their source or builder.
    """
    most = given.whole("tokenizer.max_seq_len")
    if given.get("dataset.packed") and most:
        built = str(given.get("dataset._component_") or "").rpartition(".")[2].removesuffix("_dataset")
        data_set = str(given.get("dataset.source") or built.replace("_", "-"))
        training, of_data = pack_documents({"seq_len": most}, [data_set])
        return training, (of_data,)
    value = most or USUAL_SEQ_LEN
    why = "sequences are as long as the longest document of a batch" + (
        ", at most tokenizer.max_seq_len" if most else "; tokenizer.max_seq_len is not set"
    )
    return {"seq_len": value}, (Assumed("seq_len", value, why, (value // 4, *(() if most else (value * 4,)))),)


def _recompute(given: ConfigReader) -> str:
    mode, option = given.get("ac_mode"), given.get("ac_option")
    if mode == "selective" and option is not None:
        return "selective" if option == "op" else policy_of_every(str(option))
    return "full" if given.get("enable_activation_checkpointing") or mode == "full" else "none"


def _optimizer(given: ConfigReader, away: str | None) -> dict[str, Any]:
    named = str(given.get("optimizer._component_") or "torch.optim.AdamW").rpartition(".")[2]
    if named.lower() not in OPTIMIZERS:
        raise UserError(f"{given.source}: optimizer._component_ = {named}: allowed: {', '.join(OPTIMIZERS)}")
    host = "cpu" if named.lower() == "cpuoffloadoptimizer" else away
    fused = given.get("optimizer.fused") is True and host is None
    return {
        "optimizer": OPTIMIZERS[named.lower()],
        "optimizer_kernels": "fused" if fused else None,
        "offload_optimizer": host,
    }


def _adapters(given: ConfigReader, component: str) -> dict[str, Any]:
    if "model.lora_attn_modules" not in given and not re.match(r"q?(lora|dora)_", component):
        return {}
    if given.get("model.use_dora"):
        raise UserError(f"{given.source}: model.use_dora = true: allowed: false (LoRA)")
    listed = given.get("model.lora_attn_modules") or []
    unknown = [str(each) for each in listed if each not in ATTENTION]
    if unknown:
        raise UserError(
            f"{given.source}: model.lora_attn_modules = {', '.join(unknown)}: allowed: {', '.join(ATTENTION)}"
        )
    targets = [ATTENTION[each] for each in listed] + [*MLP] * bool(given.get("model.apply_lora_to_mlp"))
    low = component.startswith("qlora") or given.get("model.quantize_base")
    rank = given.whole("model.lora_rank") or 8
    dropout = real(given, "model.lora_dropout") or 0.0
    return {
        "lora_rank": rank, "lora_targets": tuple(targets), "lora_dropout": dropout,
        "frozen_dtype": "nf4" if low else None,
    }  # fmt: skip


def _recipe(words: Sequence[str]) -> str | None:
    at = next((at for at, word in enumerate(words) if PurePath(word).name == "tune"), None)
    after = () if at is None else words[at + 1 :]
    is_recipe = (word for word in after if word.startswith(RECIPES) or word.endswith(".py"))
    return next(is_recipe, None)


def _starts(words: Sequence[str]) -> bool:
    names = [PurePath(word).name for word in words]
    return "tune" in names and "run" in names and value_of(words, ("--config",)) is not None


READER = Reader(
    name="torchtune",
    description="torchtune: the YAML of a recipe, and tune run",
    read=read,
    starts=_starts,
    owns=owns,
    words=WordTable(
        idle=(
            "output_dir",
            "tokenizer.*",
            "dataset.*",
            "datasets",
            "dataloader.*",
            "name",
            "checkpoint_dir",
            "dataset_val.*",
            "seed",
            "shuffle",
            "epochs",
            "checkpointer.*",
            "max_steps_per_epoch",
            "run_val_every*",
            "batch_size_val",
            "resume_from_checkpoint",
            "log_*",
            "metric_logger.*",
            "profiler.*",
            "lr_scheduler.*",
            "optimizer.lr",
            "optimizer.betas",
            "optimizer.eps",
            "optimizer.weight_decay",
            "optimizer.momentum",
            "loss.ignore_index",
            "model.lora_*",
            "model.apply_lora_*",
            "save_*",
            "low_cpu_ram",
            "custom_sharded_layers",
            "tensor_parallel_plan.*",
            "clip_grad_norm",
            "collate_fn",
            "memory_efficient_fsdp_wrap",
            "fsdp.*",
            "enable_async_checkpointing",
            "cudnn_deterministic_mode",
            "use_distributed_state_dict",
            "compile.*",
            "model.use_dora",
            "model.norm_eps",
            "model.*dropout",
            "model.*_len",
        ),
        deciding={
            **TORCH_UPDATE,
            "device": ON_PROCESSORS,
            **dict.fromkeys(
                ("model.image_size", "model.*coder_trainable", "model.fusion_trainable", "tokenizer.image_size"), VISION
            ),
            **dict.fromkeys(("early_exit_loss.*", "layer_dropout.*"), "layers that are left out: time"),
            "model.apply_lora_to_output": "an adapter beside the head: memory",
            "custom_sharded_layers": "what is sharded apart: memory and time of gathers",
            "compile.*": "parts that are compiled: time and memory",
            "quantizer.*": "quantised training: time and memory",
            "resize_token_embeddings": "the size of the vocabulary: memory",
            "*.quantization_kwargs*": "how frozen weights are stored: memory",
        },
    ),
)
