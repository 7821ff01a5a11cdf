"""NeMo Automodel back to a plan: the YAML of a recipe, and commands that start one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, get_args

from simpar.architectures.catalogue import config_of, find_model, load_model
from simpar.architectures.hf_config import reason_unread
from simpar.errors import UserError
from simpar.frameworks.match import sizes_of
from simpar.frameworks.overrides import (
    choice,
    command_of,
    flagged,
    is_config,
    laid_over,
    load_beside,
    mapping,
    reader_of,
    real,
)
from simpar.frameworks.predictions import with_predictions
from simpar.frameworks.reader import SPAWNS, Reader, value_of
from simpar.frameworks.recipes import ConfigReader, nest_names
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.titan import SCHEDULES
from simpar.frameworks.trainer_read import BLOCKS
from simpar.frameworks.trainer_words import TORCH_UPDATE
from simpar.frameworks.trainers import ATTENTION
from simpar.frameworks.words import Assumed, ReadWords, WordTable
from simpar.plan.choices.tuning import Projection
from simpar.plan.optimizers import DEFAULT_OPTIMIZER
from simpar.plan.routing import Balance
from simpar.plan.schedules import natural_vpp

ADAPTER_DIM = 8
"""Default of ``PeftConfig`` (``components/_peft/lora.py``)."""
DATA_OPEN = "lengths are those of the data, which the config does not bound"
USUAL_SEQ_LEN = 2048
STRATEGIES = {
    "fsdp2": "fsdp", "fsdp2manager": "fsdp", "ddp": "ddp", "ddpmanager": "ddp", "megatron_fsdp": "fsdp",
    "megatronfsdpmanager": "fsdp", "nvfsdpmanager": "fsdp", "mfsdp": "fsdp",
}  # fmt: skip
"""Strategies of NeMo Automodel (``components/distributed/config.py``), and the managers of earlier releases."""
HALVES = {
    "bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16", "auto": "bf16", "fp32": "fp32", "float32": "fp32",
    "torch.float32": "fp32",
}  # fmt: skip
SEQUENCES = (
    "packed_sequence.packed_sequence_size", "packed_sequence.collate_max_length", "packed_sequence.pack_size",
    "dataloader.collate_fn.max_length", "dataset.seq_length", "dataset.seq_len", "dataset.max_length",
    "dataset.seq_length_tokens", "dataset.block_size", "dataset.max_sentence_len",
)  # fmt: skip
"""Lengths of packs and of what is padded, before bounds of the data (``recipes/_typed_config.py``)."""
LOSSES = {"MaskedCrossEntropy": None, "FusedLinearCrossEntropy": BLOCKS}
"""Pieces of the losses that a plan has; None for whole logits (``components/loss``)."""
PIPELINES = ("distributed.pipeline", "autopipeline", "pipeline")
PREDICTED = (
    "model.num_nextn_predict_layers", "model.config.num_nextn_predict_layers",
    "model.text_config.num_nextn_predict_layers", "model.text_config.num_mtp_modules",
    "model.text_config.mtp_num_hidden_layers",
)  # fmt: skip
"""Layers that predict further tokens."""
WITHOUT_PREDICTIONS = ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "kimi_k2")
"""Families of which Automodel builds none of these (``components/models``)."""
NAMES = (
    "model.pretrained_model_name_or_path", "model.config.pretrained_model_name_or_path", "model.config.name_or_path",
)  # fmt: skip
"""Where a recipe names its model."""
SIZES_OF_CONFIG = {
    f"model.config.{key}": size
    for key, size in {
        "num_hidden_layers": "layers", "hidden_size": "hidden", "intermediate_size": "ffn",
        "num_attention_heads": "heads", "num_key_value_heads": "kv_heads", "vocab_size": "vocab",
        "num_experts": "num_experts", "n_routed_experts": "num_experts", "num_local_experts": "num_experts",
        "moe_intermediate_size": "expert_ffn",
    }.items()
}  # fmt: skip
"""Fields of a config by the sizes that they are (:data:`simpar.frameworks.match.SIZES`)."""
PER_LAYER = ("fsdp2", "fsdp2manager")
"""Strategies of torch's FSDP, which a recipe asks to reduce gradients with the last microbatch alone."""
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "fusedadam": "adamw", "sgd": "sgd", "muon": "muon"}
FROZEN = {"4bit": "nf4", "8bit": "int8"}
DISPATCHERS = {"deepep": "deepep", "hybridep": "hybridep"}


def read(text: str, name: str) -> Imported:
    """The plan in a recipe of NeMo Automodel, or in a command that starts one. Raises UserError."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no recipe of NeMo Automodel: it has a section step_scheduler beside model")
    given = reader_of(data, name)
    _refuse_other_recipes(given)
    sizes = {axis: _size(given, f"{axis}_size") or 1 for axis in ("tp", "cp", "pp", "ep")}
    replicate, dp = _size(given, "dp_replicate_size") or 1, _size(given, "dp_size")
    target = given.get("distributed._target_")
    word = given.get("distributed.strategy") or (str(target).rpartition(".")[2] if target else "fsdp2")
    kind = STRATEGIES.get(str(word).lower())
    if kind is None:
        raise UserError(f"{name}: distributed.strategy = {word}: allowed: {', '.join(STRATEGIES)}")
    model_name, model, config = _model(given)
    seq_len, assumed = _sequence(given)
    batch = given.whole("step_scheduler.global_batch_size")
    local = given.whole("step_scheduler.local_batch_size") or 1
    values: dict[str, Any] = {
        "stack": "automodel",
        "model": model,
        **sizes,
        "dp": dp,
        "etp": 1 if sizes["ep"] > 1 else None,
        "zero": 0 if kind == "ddp" else 3 if _reshards(given, sizes["ep"]) else 2,
        "hsdp": replicate if kind == "fsdp" else None,
        "micro_batch": local,
        "recompute": choice(given, "distributed.activation_checkpointing", RECOMPUTED, "none"),
        "training": {"seq_len": seq_len} | ({"global_batch": batch} if batch else {}),
        **_automodel_numerics(given),
        **_automodel_adapters(given),
        **_automodel_execution(given),
    }
    if sizes["tp"] > 1:
        overlap = bool(given.get("distributed.enable_async_tensor_parallel"))
        parallel = bool(given.get("distributed.sequence_parallel"))
        values["tensor_parallel"] = {"sequence_parallel": parallel, "overlap": overlap}
    if sizes["cp"] > 1:
        values |= {"cp_method": "all_gather", "cp_balance": "zigzag"}  # torch's context_parallel
    if kind == "fsdp" and sizes["pp"] == 1 and not (str(word).lower() in PER_LAYER and _waits(given)):
        values["defer_grad_reduce"] = False
    if sizes["pp"] > 1:
        values |= _stages(given, sizes["pp"], model)
    ask = "" if model or config else f"The model {model_name or 'of the recipe'} is not shipped: give --model."
    balance: Balance = "forced" if given.get("model.backend.fake_balanced_gate") else "tuned"
    notes = tuple(filter(None, (ask, *given.misspelt(READER.words))))
    if "VLM" not in str(given.values_.get("recipe")) and "ImageTextToText" not in str(given.get("model._target_")):
        given.used.add("recipe")
    else:
        given.used.discard("recipe")
    result = Imported(plan_said(values), notes=notes, asks={"model": ask}, expert_balance=balance,
                      assumed=tuple(assumed), config=config)  # fmt: skip
    result, left = _with_predictions(result, given, model)
    return replace(result, words=given.words() + ReadWords(unread=left))


def _with_predictions(imported: Imported, given: ConfigReader, model: str | None) -> tuple[Imported, dict[str, Any]]:
    """The plan with the layers that predict further tokens which are built, and the word of others."""
    key = next((each for each in PREDICTED if each in given), None)
    if model is None or (key is None and config_of(model).get("model_type") not in WITHOUT_PREDICTIONS):
        return imported, {}
    imported, left = with_predictions(imported, model, given.get(key) if key else 0)
    return imported, {} if key is None or left is None else {key: left}


def _reshards(given: ConfigReader, ep: int) -> bool:
    """Whether parameters are freed after the forward pass: layers of experts have a section of their own.

    With experts on several ranks the model is sharded by ``components/moe/parallelizer.py``, which keeps parameters
    unless told otherwise; else by ``components/distributed/parallelizer.py``.
    """
    if ep > 1:
        return bool(given.get("distributed.moe.reshard_after_forward"))
    return given.get("distributed.reshard_after_forward") is not False


def _waits(given: ConfigReader) -> bool:
    """Whether whole gradients wait for the last microbatch (``get_sync_ctx``), as they do by default."""
    return given.get("distributed.defer_fsdp_grad_sync", True) is not False


def _model(given: ConfigReader) -> tuple[Any, str | None, dict[str, Any] | None]:
    """The name of a model, the shipped one of it, and the config of one that the recipe states in full.

    Sizes beside a name are used where they are the named model's own; else they stay words that decide.
    """
    named = next((name for key in NAMES if (name := given.get(key))), None)
    model = find_model(str(named)) if named else None
    own = sizes_of(load_model(model)) if model else {}
    given.used |= {key for key, size in SIZES_OF_CONFIG.items() if own and given.values_.get(key) == own.get(size)}
    stated = {key.removeprefix("model.config."): value for key, value in given.values_.items()
              if key.startswith("model.config.") and not key.endswith("_target_")}  # fmt: skip
    if named or "hidden_size" not in stated:
        return named, model, None
    made_by = str(given.get("model.config._target_") or "").split(".")
    kind = made_by[-3] if made_by[:2] == ["transformers", "models"] and len(made_by) > 3 else _snake(made_by[-1])
    config = {"model_type": kind, **nest_names(stated)}
    if reason_unread(config, given.source):
        return named, None, None
    given.used |= {key for key in given.values_ if key.startswith("model.config.")}
    return named, None, config


def _snake(name: str) -> str:
    """The type of a model by the class of its config: ``qwen3_moe`` for ``Qwen3MoeConfig``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix("Config")).lower()


def _refuse_other_recipes(given: ConfigReader) -> None:
    """Raise UserError for a recipe that trains no decoder alone (``nemo_automodel/recipes``)."""
    recipe, target = (str(given.get(key) or "") for key in ("recipe", "model._target_"))
    for pattern, what in OTHER_RECIPES.items():
        if match := re.search(pattern, f"{recipe} {target}"):
            key = "recipe" if match[0] in recipe else "model._target_"
            allowed = "recipes of next-token prediction and of VLM"
            raise UserError(f"{given.source}: {key} = {recipe or target}: {what}: not modelled; allowed: {allowed}")
    if "diffusers" in str(given.get("model.pretrained_model_name_or_path")).lower() or any(
        key.startswith(("flow_matching.", "model.pipeline_spec.")) for key in given
    ):
        raise UserError(f"{given.source}: model: a diffusion model: not modelled; allowed: language models of text")


OTHER_RECIPES = {
    "Diffusion": "diffusion", "BiEncoder|CrossEncoder|Embedding": "retrieval",
    "SequenceClassification": "a classifier", "RecipeForMultimodal": "a model of images and text",
    "Train(Eagle|DFlash|DSpark|Domino|JetSpec|Vispec)": "a draft model beside a frozen one",
    "KnowledgeDistillation": "distillation from a teacher",
}  # fmt: skip
"""Recipes by a part of their names."""
RECOMPUTED = {True: "full", False: "none", "full": "full", "selective": "selective", "true": "full", "false": "none"}


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a recipe of NeMo Automodel."""
    return isinstance(data.get("step_scheduler"), Mapping) and isinstance(data.get("model"), Mapping)


def _size(given: ConfigReader, key: str) -> int | None:
    value = given.get(f"distributed.{key}")
    return None if value in (None, "none", "None", -1, 0) else given.whole(f"distributed.{key}")


def _sequence(given: ConfigReader) -> tuple[int, Iterator[Assumed]]:
    told = next((size for key in SEQUENCES if (size := given.get(key))), None)
    if isinstance(told, int) and not isinstance(told, bool):
        return told, iter(())
    assumed = Assumed("seq_len", USUAL_SEQ_LEN, DATA_OPEN, (USUAL_SEQ_LEN // 4, USUAL_SEQ_LEN * 2))
    return USUAL_SEQ_LEN, iter((assumed,))


def _automodel_numerics(given: ConfigReader) -> dict[str, Any]:
    """Parameters have the dtype of the model, and so have the states of torch's optimizers."""
    kept = choice(given, "model.torch_dtype", HALVES, choice(given, "model.dtype", HALVES, "bf16"))
    computed = choice(given, "distributed.mp_policy.param_dtype", HALVES, "bf16")
    reduced = choice(given, "distributed.mp_policy.reduce_dtype", HALVES, "fp32")
    named = str(given.get("optimizer._target_", "torch.optim.AdamW"))
    if (word := named.rpartition(".")[2].lower()) not in OPTIMIZERS:
        raise UserError(f"{given.source}: optimizer._target_ = {named}: allowed: {', '.join(OPTIMIZERS)}")
    optimizer = OPTIMIZERS[word]
    master, offload = bool(given.get("optimizer.master_weights")), given.get("distributed.offload_policy._target_")
    low = kept == "bf16" and computed == "bf16"
    remainders = low and master and bool(given.get("optimizer.store_param_remainders"))
    moments = {key: choice(given, f"optimizer.exp_avg{key}_dtype", HALVES) for key in ("", "_sq")}
    return {
        "precision": computed,
        "optimizer": optimizer,
        "parameter_dtype": "bf16" if low else None,
        "grad_dtype": "bf16" if low else None,
        "master_weights": master if low else None,
        "master_dtype": "remainder" if remainders and optimizer == DEFAULT_OPTIMIZER and not offload else None,
        "moment_dtype": None if not low or master or "fp32" in moments.values() or optimizer == "muon" else "bf16",
        "reduce_dtype": reduced if low else None,
        **dict.fromkeys(("offload_parameters", "offload_optimizer"), "cpu" if offload else None),
    }


def _automodel_adapters(given: ConfigReader) -> dict[str, Any]:
    target = given.get("peft._target_")
    if target is None and not any(key.startswith("peft.") for key in given):
        return {}
    if given.get("peft.use_dora"):
        raise UserError(f"{given.source}: peft.use_dora = true: allowed: false (LoRA)")
    wanted, spared = (_listed(given, f"peft.{key}_modules") for key in ("target", "exclude"))
    # all but those that are spared, or ``*_proj``, where no targets are said (``_peft/module_matcher.py``)
    patterns = ["*"] if given.get("peft.match_all_linear") or spared else wanted or ["*_proj"]
    targets = [
        name for name in get_args(Projection)
        if any(_matches(name, each) for each in patterns) and not any(_matches(name, each) for each in spared)
    ]  # fmt: skip
    if not targets:
        said, known = given.get("peft.target_modules"), ", ".join(get_args(Projection))
        raise UserError(f"{given.source}: peft.target_modules = {said}: allowed: patterns of {known}")
    low = next((kept for bits, kept in FROZEN.items() if given.get(f"quantization.load_in_{bits}")), None)
    rank = given.whole("peft.dim") or ADAPTER_DIM
    dropout = real(given, "peft.dropout") or 0.0
    return {
        "lora_rank": rank, "lora_targets": tuple(targets), "lora_dropout": dropout,
        "frozen_dtype": low,
    }  # fmt: skip


def _listed(given: ConfigReader, key: str) -> list[str]:
    value = given.get(key) or []
    return [str(each) for each in ([value] if isinstance(value, str) else value)]


def _matches(name: str, pattern: str) -> bool:
    part = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
    return any(fnmatchcase(each, pattern) for each in (name, f"model.layers.0.{part}.{name}"))


def _automodel_execution(given: ConfigReader) -> dict[str, Any]:
    kernels = {theirs: ours for ours, theirs in ATTENTION.items()} | {"te": "cudnn"}
    named = given.get("model.attn_implementation") or given.get("model.backend.attn")
    compiled = given.get("compile.enabled") or given.get("distributed.enable_compile")
    dispatcher = DISPATCHERS.get(str(given.get("model.backend.dispatcher")))
    loss = str(given.get("loss_fn._target_", "MaskedCrossEntropy")).rpartition(".")[2]
    if loss not in LOSSES:
        given.used.discard("loss_fn._target_")
    if (_size(given, "pp_size") or 1) > 1 and any(
        given.get(f"{each}.patch_causal_lm_model") is False for each in PIPELINES
    ):
        loss = "MaskedCrossEntropy"  # in place of a fused one, which needs hidden states (``recipes/llm/train_ft.py``)
    return {
        "attention_kernel": kernels.get(str(named)),
        "loss_chunks": LOSSES.get(loss),
        "fused_kernels": "compiled" if compiled else None,
        "dispatcher": dispatcher,
        "token_dispatch": "per_node" if dispatcher else None,
    }


def _stages(given: ConfigReader, pp: int, model: str | None) -> dict[str, Any]:
    """Schedule and chunks of a pipeline; schedules of several stages a rank have two unless layers are counted."""
    section = next((name for name in PIPELINES
                    if any(key.startswith(f"{name}.") for key in given)), "distributed.pipeline")  # fmt: skip
    schedules = {theirs.lower(): ours for ours, theirs in SCHEDULES.items()}
    schedule = choice(given, f"{section}.pp_schedule", schedules, "1f1b")
    micro = given.whole(f"{section}.pp_microbatch_size") or 1
    each, chunks = given.whole(f"{section}.layers_per_stage"), natural_vpp(schedule)
    if each and model:
        graph = load_model(model)
        layers = sum(kind not in graph.auxiliary for kind in graph.layers)
        stages = -(-layers // each)
        up = given.get(f"{section}.round_virtual_stages_to_pp_multiple") == "up"
        chunks = max(1, -(-stages // pp) if up else stages // pp)
    local = given.whole("step_scheduler.local_batch_size") or 1  # of one run of the schedule
    return {"schedule": schedule, "vpp": chunks, "micro_batch": micro, "kept_outputs": max(1, local // micro)}


def _is_automodel(word: str) -> bool:
    return PurePath(word).name == "automodel" or "nemo_automodel" in word or word.endswith((
        "llm_finetune/finetune.py", "llm_pretrain/pretrain.py", "train_ft.py", "llm_benchmark/benchmark.py",
    ))  # fmt: skip


def _config_of_automodel(words: Sequence[str]) -> str | None:
    named = value_of(words, ("-c", "--config"))
    return named or next((word for word in words if word.endswith((".yaml", ".yml"))), None)


def _starts(words: Sequence[str]) -> bool:
    return any(_is_automodel(word) for word in words) and _config_of_automodel(words) is not None


def _of_command(text: str, name: str) -> dict[str, Any]:
    words = command_of(text, name, _starts)
    return laid_over(load_beside(str(_config_of_automodel(words)), name), flagged(words))


READER = Reader(
    name="automodel",
    description="NeMo Automodel: the YAML of a recipe, and commands that start one",
    read=read,
    starts=_starts,
    owns=owns,
    devices=SPAWNS,
    words=WordTable(
        idle=(
            "seed",
            "step_scheduler.*",
            "dist_env.*",
            "rng.*",
            "checkpoint.*",
            "dataset.*",
            "dataloader.*",
            "optimizer._target_",
            "optimizer.lr",
            "optimizer.betas",
            "optimizer.eps",
            "optimizer.weight_decay",
            "optimizer.adam_w_mode",
            "optimizer.bias_correction",
            "optimizer.momentum",
            "processor.*",
            "lr_scheduler.*",
            "wandb.*",
            "ci.*",
            "tokenizer.*",
            "mlflow.*",
            "benchmark.*",
            "model._target_",
            "model.trust_remote_code",
            "model.config.*",
            "model.load_base_model",
            "peft.*",
            "logger.*",
            "slurm.*",
            "launcher.*",
            "packed_sequence.*",
            "profiling.*",
            "distributed.sequence_parallel",
            "distributed.mp_policy.*",
            "distributed.pipeline.*",
            "compile.*",
            "model.backend.enable_*",
            "model.use_liger_kernel",
            "distributed.moe.*",
            "quantization.*",
            "distributed.dp_size",
            "distributed.offload_policy.*",
            "clip_grad_norm.*",
            "model.use_sdpa_patching",
            "autopipeline.*",
            "_*",  # sections under which YAML keeps what others refer to
            "recipe._target_",
            "distributed_config._target_",
            "parallelizer._target_",
            "model.backend._target_",
            "model.backend.gate_precision",
            "model.output_hidden_states",
            "model.text_config.use_cache",
            "model.text_config.output_hidden_states",
            "loss_fn.reduction",
            "loss_fn.logit_softcapping",
            "*.mtp_loss_scaling_factor",
            "distributed.multimodal.*",
            "skypilot.cloud",
            "skypilot.disk_size",
            "skypilot.job_name",
            *(f"skypilot.{name}" for name in ("use_spot", "hf_token", "region")),
            "nvtx",
            "validation_data*",
            "optimizer.mu",
            "optimizer.epsilon",
            "optimizer.adjust_lr",
            "optimizer.scalar_*",
            "optimizer.*_lr",
            "optimizer.nesterov",
            "optimizer.flatten",
            "prewarm.*",
            "moe_metrics.*",
            "tool_call_eval*",
            "neftune.*",
            "embedding_row_repair*",
            "model.router_aux_loss_coef",
            "model.*_token_id",
            "loss_fn.ignore_index",
            "fp8.*",  # where fp8.enabled is on, that decides
        ),
        deciding={
            **TORCH_UPDATE,
            "recipe": "an encoder of images beside the language model, and its tokens: time and memory",
            "model.use_liger_kernel": "fused operators: time and memory",
            "loss_fn._target_": "another loss: memory of logits and time",
            "loss_fn.fp32_upcast": "the dtype of logits: memory",
            "model.backend.linear": "kernels of products: time",
            "model.backend.rms_norm": "kernels of norms: time",
            "model.backend.experts": "kernels of experts: time",
            "model.backend.rope_fusion": "a fused rotation: time and memory",
            "model.backend.attn": "kernels of attention: time and memory",
            "model.backend.mok.*": "kernels of experts: time",
            "model.force_hf": "transformers' own layers: time and memory",
            **dict.fromkeys(("loss_fn.chunk_len", "loss_fn.compile"), "the loss in pieces: memory of logits"),
            **dict.fromkeys(
                (*PREDICTED, "model.mtp_use*", "model.drafter_*"), "layers that predict further tokens: time and memory"
            ),
            "parallelizer.activation_checkpointing": "what is recomputed: memory and time",
            "longalign": "how full sequences are: time",
            **dict.fromkeys(("fp8.enabled", "model.backend.te_fp8*"), "products in 8 bits: time"),
            **dict.fromkeys(
                ("skypilot.accelerators", "skypilot.num_nodes"), "how many devices start: --nodes or --gpus"
            ),
            **dict.fromkeys(
                (
                    "model.backend.compile_attn",
                    "model.backend.rope",
                    "model.kda_mode",
                    "model.text_config.cp_full_attn_backend",
                ),
                "kernels of attention: time and memory",
            ),
            "model.backend.dispatcher_num_sms": "multiprocessors of the exchange of tokens: time",
            "model.base_activation_checkpointing": "what is recomputed: memory and time",
            "optimizer.master_weight_dtype": "the dtype of weights that are updated: memory",
            "optimizer.use_triton": "how the update runs: time",
            **dict.fromkeys(
                (
                    "distributed.enable_fsdp2_prefetch",
                    "distributed.enable_async_tensor_parallel",
                    "parallelizer.reshard_after_forward",
                ),
                "when parameters are gathered: time and memory",
            ),
            **dict.fromkeys(SIZES_OF_CONFIG, "a size that is not the named model's: memory and time"),
            "qat.*": "quantised training: time and memory",
            "freeze_config.*": "parts that are not trained: memory and time",
        },
        off={"distributed.defer_fsdp_grad_sync": "when gradients are reduced: memory and time"},
    ),
)
