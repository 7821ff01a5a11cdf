"""nanotron's YAML back to a plan."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from simpar import files
from simpar.architectures.catalogue import config_of
from simpar.errors import UserError
from simpar.frameworks.match import is_telling, model_note, models_with
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.recipes import ConfigReader, flat
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.words import ReadWords, WordTable, rate_of
from simpar.plan.plan import Plan
from simpar.precisions import LONG_NAMES

CONFIG_FILE = ("--config-file",)
ENGINES = {"1f1b": "1f1b", "afab": "gpipe"}
DTYPES = LONG_NAMES
SIZES = {
    "hidden_size": "hidden", "intermediate_size": "ffn", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "vocab_size": "vocab", "moe_config.num_experts": "num_experts",
    "moe_config.moe_intermediate_size": "expert_ffn",
}  # fmt: skip
MODEL = "model.model_config."
MIXTURE = f"{MODEL}moe_config."
HF = {
    "hidden_size": "hidden_size", "intermediate_size": "intermediate_size", "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads", "num_key_value_heads": "num_key_value_heads",
    "tie_word_embeddings": "tie_word_embeddings",
}  # fmt: skip
"""Fields that configs of the hub have, too."""
KIND = re.compile(r"is_(\w+)_config")
"""The field by which nanotron tells its models apart (``src/nanotron/config/models_config.py``)."""
USUAL_EXPERTS = {"moe_config.moe_intermediate_size": 1408, "moe_config.top_k": 2}
SHARED_EXPERT = 5632
"""Defaults of its ``MoEConfig``."""
RECOMPUTED = "parallelism.tp_recompute_allgather"
ORDINARY: dict[str, tuple[Any, ...]] = {
    RECOMPUTED: (True,), f"{MODEL}_attn_implementation": ("flash_attention_2",),
    f"{MIXTURE}token_dispatcher_type": ("alltoall",),
}  # fmt: skip
"""Values of words that say what the stack does anyhow."""
EXPERTS = ("moe_config.num_local_experts", "num_local_experts", "moe_num_experts", "num_experts")
"""Other names of the number of experts (``examples/moe``; configs converted from the hub)."""
STARCODER, STARCODER_DROPS = "starcoder2", 0.1
"""A kind of nanotron's models, and its dropout where none is said."""
ASYNC = "tp_linear_async_communication"


def read(text: str, name: str) -> Imported:
    """The plan in a config of ``run_train.py``. Raises UserError naming file, option and value."""
    data, twice = files.read_yaml_of_python(text, name)
    if not isinstance(data, dict) or not isinstance(data.get("parallelism"), dict):
        raise UserError(f"{name}: no section parallelism, as nanotron's configs have")
    given = ConfigReader(flat(data), name)
    dp = given.whole("parallelism.dp") or 1
    values = {"stack": "nanotron", "dp": dp, **_layout(given), **_numerics(given)}
    micro = given.whole("tokens.micro_batch_size") or 1
    seq_len, steps = (given.whole("tokens.sequence_length"), given.whole("tokens.batch_accumulation_per_replica") or 1)
    if seq_len:
        values |= {"micro_batch": micro, "training": {"seq_len": seq_len, "global_batch": micro * steps * dp}}
    sizes, told = _sizes(given)
    models = _with_said_window(_tied_as_said(models_with(sizes), given), given)
    values |= {"model": models[0] if models else None}
    plan = plan_said(values)
    config, drops = None if models else _config(given, values["tp"]), _dropout(given)
    note = "" if config else model_note(models, sizes)
    built = f"No shipped model has these sizes; it is built from the config (model_type {config['model_type']})." if (
        config) else ""  # fmt: skip
    notes = (*filter(None, (note, built, _serial(given, plan))), *twice, *given.misspelt())
    sizes = sizes if is_telling(sizes) else told
    return Imported(plan, _words(given), notes, sizes=sizes, asks={"model": note}, config=config,
                    dropout=drops)  # fmt: skip


def _words(given: ConfigReader) -> ReadWords:
    """The words of a config; of some, one value is what the stack does, and others decide."""
    for key, usual in ORDINARY.items():
        if given.values_.get(key) in usual:
            given.used.add(key)
    told = given.words()
    kept = {RECOMPUTED: "not done"} if given.values_.get(RECOMPUTED) is False else {}
    return ReadWords(told.used, {**told.unread, **kept})


def _sizes(given: ConfigReader) -> tuple[dict[str, int], dict[str, int]]:
    """The sizes of the model, with what follows from them, and those that are said. Raises UserError."""
    result = {ours: given.whole(MODEL + theirs) for theirs, ours in SIZES.items()}
    if result["num_experts"] is None:
        result["num_experts"] = next(filter(None, (given.whole(MODEL + key) for key in EXPERTS)), None)
        if result["num_experts"] == 1:
            result["num_experts"] = None
        elif result["num_experts"] is not None and result["expert_ffn"] is None:
            result["expert_ffn"], result["ffn"] = result["ffn"], None  # every layer has experts of that size
        elif any(key.startswith(MIXTURE) and given.values_[key] is not None for key in given):
            raise UserError(f"{given.source}: {MIXTURE}num_experts is missing: {MIXTURE[:-1]} says a mixture")
    elif result["expert_ffn"] is None:
        result["expert_ffn"] = USUAL_EXPERTS["moe_config.moe_intermediate_size"]
    if _kind(given) == STARCODER:
        result |= _of_starcoder(given, result)
    told = {ours: size for ours, size in result.items() if size is not None}
    sizes = dict(told)
    sizes.setdefault("kv_heads", sizes.get("heads", 0))
    if "num_experts" not in sizes:
        sizes |= {"num_experts": 0, "expert_ffn": 0}
    return sizes, told


def _tied_as_said(models: Sequence[str], given: ConfigReader) -> list[str]:
    """The models whose head has the table of the embeddings as the config says, which is no unless it says so."""
    told = given.get(f"{MODEL}tie_word_embeddings")
    return [name for name in models if told is None or bool(config_of(name).get("tie_word_embeddings")) == bool(told)]


def _with_said_window(models: Sequence[str], given: ConfigReader) -> list[str]:
    """The models; of StarCoder 2 only those whose window is the config's, which has none unless it says one."""
    if _kind(given) != STARCODER:
        return list(models)
    said = given.whole(f"{MODEL}sliding_window_size")
    return [name for name in models if config_of(name).get("sliding_window") == said]


def _kind(given: ConfigReader) -> str:
    """Which of nanotron's models a config has."""
    kinds = (match[1] for key in given if (match := KIND.fullmatch(key.removeprefix(MODEL))) and given.get(key))
    return next(kinds, "llama")


def _of_starcoder(given: ConfigReader, sizes: Mapping[str, int | None]) -> dict[str, int | None]:
    """Sizes in the words of StarCoder 2: heads of keys that are grouped, one, or all, and an MLP of four widths.

    Source: ``Starcoder2Config`` (``src/nanotron/config/models_config.py``).
    """
    grouped, one = given.get(f"{MODEL}grouped_query"), given.get(f"{MODEL}multi_query")
    groups, hidden = given.whole(f"{MODEL}num_kv_heads"), sizes["hidden"]
    usual = 4 * hidden if hidden else None
    return {"kv_heads": groups if grouped else 1 if one else sizes["heads"], "ffn": sizes["ffn"] or usual}


def _dropout(given: ConfigReader) -> dict[str, float]:
    """The dropout of StarCoder 2; no other model of nanotron has any."""
    if _kind(given) != STARCODER:
        return {}
    said = {"attention": given.get(f"{MODEL}attn_pdrop"), "hidden": given.get(f"{MODEL}resid_pdrop")}
    given.get(f"{MODEL}embd_pdrop")  # as that of branches
    rates = {name: rate_of(rate) for name, rate in said.items()}
    return {name: STARCODER_DROPS if rate is None else rate for name, rate in rates.items()}


def _config(given: ConfigReader, tp: int) -> dict[str, Any] | None:
    """The config of a model that is not shipped; None if its fields do not say all of it. Raises UserError."""
    kind = _kind(given)
    if kind == "mamba":
        raise UserError(f"{given.source}: {MODEL}is_mamba_config: Mamba-1 is not modelled; allowed: llama, qwen2")
    result = {theirs: given.get(MODEL + ours) for ours, theirs in HF.items()}
    words = given.whole(f"{MODEL}vocab_size")
    if kind == STARCODER:
        own = _of_starcoder(given, _sizes(given)[0])
        result |= {"intermediate_size": own["ffn"], "num_key_value_heads": own["kv_heads"], "tie_word_embeddings": True}
    if (
        words is None
        or kind not in ("llama", "qwen2", "llamoe", STARCODER)
        or (None in (result[key] for key in list(HF)[:4]))
    ):
        return None
    multiple = (given.whole("model.make_vocab_size_divisible_by") or 1) * tp
    result |= {
        "vocab_size": -(-words // multiple) * multiple,
        "tie_word_embeddings": bool(result["tie_word_embeddings"]),
    }
    result["num_key_value_heads"] = result["num_key_value_heads"] or result["num_attention_heads"]
    window = given.whole(f"{MODEL}sliding_window_size")
    biased = bool(given.get(f"{MODEL}attention_bias"))
    windows = {"sliding_window": window, "use_sliding_window": True} if window else {}
    if kind == STARCODER:
        return {**result, "model_type": kind, "sliding_window": window}
    sizes, _ = _sizes(given)
    if sizes["num_experts"]:
        return _mixture(given, {**result, **windows}, sizes, biased=biased)
    if window:
        return {**result, **windows, "model_type": "qwen2" if biased else "mistral"}
    if kind == "qwen2" and biased:
        return {**result, "model_type": "qwen2"}
    return {**result, "model_type": "llama", "attention_bias": biased}


def _mixture(
    given: ConfigReader, result: dict[str, Any], sizes: Mapping[str, int], *, biased: bool
) -> dict[str, Any] | None:
    """The config of a mixture: Mixtral's layers, or Qwen's beside a shared expert."""
    chosen = next(filter(None, (given.whole(MODEL + key) for key in ("moe_config.top_k", "num_experts_per_tok"))), 2)
    experts, width = sizes["num_experts"], sizes["expert_ffn"]
    if given.get(f"{MIXTURE}layers", [-1]) != [-1] or given.get(f"{MODEL}moe_glu") is False:
        return None
    if not given.get(f"{MIXTURE}enable_shared_expert"):
        given.get(f"{MIXTURE}shared_expert_intermediate_size")
        if biased:
            return None
        return {**result, "model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": chosen,
                "intermediate_size": width}  # fmt: skip
    shared = given.whole(f"{MIXTURE}shared_expert_intermediate_size") or SHARED_EXPERT
    return {**result, "model_type": "qwen2_moe", "num_experts": experts, "num_experts_per_tok": chosen,
            "moe_intermediate_size": width, "shared_expert_intermediate_size": shared, "qkv_bias": biased}  # fmt: skip


def _layout(given: ConfigReader) -> dict[str, Any]:
    prefix = "parallelism."
    axes = {"tp": "tp", "pp": "pp", "cp": "context_parallel_size", "ep": "expert_parallel_size"}
    values: dict[str, Any] = {axis: given.whole(prefix + key) or 1 for axis, key in axes.items()}
    engine = _of(given, f"{prefix}pp_engine", ENGINES, "afab")
    mode = str(given.get(f"{prefix}tp_mode") or "ALL_REDUCE").upper()
    if mode not in ("ALL_REDUCE", "REDUCE_SCATTER"):
        raise UserError(f"{given.source}: {prefix}tp_mode = {mode}: allowed: ALL_REDUCE, REDUCE_SCATTER")
    if values["tp"] > 1:
        values["sequence_parallel"] = mode == "REDUCE_SCATTER"
    if values["pp"] > 1:
        values["schedule"] = engine
    bucket = given.whole("model.ddp_bucket_cap_mb")
    return values | {
        "zero": given.whole("optimizer.zero_stage", 0) or 0,
        "recompute": "full" if given.get(f"{prefix}recompute_layer") else "none",
        "bucket_bytes": f"{bucket} MiB" if bucket else None,
    }


def _serial(given: ConfigReader, plan: Plan) -> str:
    """A note if tensor-parallel ranks wait for each other; "" if they do not. Raises UserError."""
    key, tensor = f"parallelism.{ASYNC}", plan.tensor_parallel.sequence_parallel
    beside = given.get(key)
    if beside not in (None, True, False):
        raise UserError(f"{given.source}: {key} = {beside!r}: allowed: true, false")
    if beside and not tensor and plan.mesh.tp > 1:  # nanotron raises ValueError
        raise UserError(f"{given.source}: {key} = true: allowed: false, or parallelism.tp_mode = REDUCE_SCATTER")
    if beside or not tensor:
        return ""
    return f"{key} is off, for which a plan has no word: stack nanotron is fitted to runs that have it on."


def _numerics(given: ConfigReader) -> dict[str, Any]:
    precision = _of(given, "model.dtype", DTYPES, "bfloat16")
    optimizer = _of(given, "optimizer.optimizer_factory.name", {"adamW": "adamw", "sgd": "sgd"}, "adamW")
    whole = given.get("optimizer.accumulate_grad_in_fp32", True)
    gradients = None if precision == "fp32" else "fp32" if whole else "bf16"
    fused = given.get("optimizer.optimizer_factory.torch_adam_is_fused", True)
    kernels = "foreach" if optimizer == "adamw" and not fused else None  # fused is what the stack does
    return {"precision": precision, "optimizer": optimizer, "grad_dtype": gradients, "optimizer_kernels": kernels}


def _of(given: ConfigReader, key: str, known: dict[str, str], usual: str) -> str:
    value = given.get(key)
    value = usual if value is None else value
    if value not in known:
        raise UserError(f"{given.source}: {key} = {value!r}: allowed: {', '.join(known)}")
    return known[value]


def _starts(words: Sequence[str]) -> bool:
    return any("run_train" in word for word in words) and value_of(words, CONFIG_FILE) is not None


WORDS = WordTable(
    idle=(
        "checkpoints*", "data_stages*", "model.make_vocab_size_divisible_by",
        "data.*", "general.*", "logging.*", "metrics_logging*", "tokenizer.*",
        "lighteval*", "s3_upload*", "profiler*", "doremi.*", "model.init_method.*", "optimizer.clip_grad",
        "optimizer.learning_rate_scheduler.*", "optimizer.weight_decay*", "optimizer.optimizer_factory.adam_*",
        "tokens.train_steps", "tokens.val_check_interval", "tokens.limit_*", "optimizer.optimizer_factory.torch_adam*",
        "optimizer.adam_*", "optimizer.torch_adam*",
        *(f"{MODEL}{name}" for name in (
            "*_token_id", "hidden_act", "initializer_range", "is_*_config", "max_position_embeddings", "pretraining_tp",
            "rms_norm_eps", "rope_*", "use_cache", "z_loss_*", "no_rope_layer", "interleaved_rotary", "_use_qkv_packed",
            "log_attn_probs", "layer_norm_epsilon", "scale_attn_weights", "activation_function",
            "attention_softmax_in_fp32", "use_rotary_embeddings",
            "moe_config.router_aux_loss_coef", "moe_config.router_z_loss*", "_fused_*", "mup*", "attention_bias",
            "moe_config.shared_expert_intermediate_size", "moe_loss_weight", "moe_z_loss_weight",
        )),
    ),
    deciding={
        f"{MODEL}_use_doc_masking": "tokens see their own document alone: attention's time",
        f"{MODEL}flex_attention_mask": "which keys are seen: attention's time",
        f"{MODEL}sliding_window_size": "attention in windows: time",
        f"{MODEL}moe_config.token_dispatcher_type": "how tokens are exchanged: time",
        f"{MODEL}moe_config.use_torch_permute": "kernels that sort tokens: time",
        f"{MODEL}moe_capacity_factor": "how many tokens an expert takes: time and memory",
        f"{MODEL}ring_attn_heads_k_stride": "how context-parallel ranks exchange keys: time",
        RECOMPUTED: "inputs that were gathered are kept for the backward: memory and time",
        f"{MODEL}_attn_implementation": "which kernel runs attention: time and memory",
        "parallelism.moe_layer_recompute": "mixtures are recomputed: time and memory",
    },
)  # fmt: skip
"""Fields of nanotron's configs that no plan has (``src/nanotron/config``)."""

READER = Reader(
    name="nanotron",
    description="nanotron: the YAML of run_train.py",
    read=read,
    starts=_starts,
    config=lambda words: value_of(words, CONFIG_FILE),
    owns=lambda data: isinstance(data.get("parallelism"), Mapping),
    words=WORDS,
    written_as="nanotron",
)
