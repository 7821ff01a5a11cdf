"""NeMo 1 back to a plan: the YAML of its Megatron models, and commands with Hydra's overrides."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, get_args

from simpar.errors import UserError
from simpar.frameworks.megatron_arguments import of_mapping
from simpar.frameworks.megatron_execution import with_weights
from simpar.frameworks.megatron_read import DROPPED, IN_FP32, plan_of
from simpar.frameworks.megatron_words import MEGATRON_WORDS
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
from simpar.frameworks.reader import SPAWNS, Reader, value_of
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported
from simpar.frameworks.words import Assumed, ReadWords, WordTable
from simpar.plan.choices.tuning import Projection

RENAMED = {
    "encoder_seq_length": "seq_length", "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method", "activations_checkpoint_num_layers": "recompute_num_layers",
    "ub_tp_comm_overlap": "tp_comm_overlap", "rotary_percentage": "rotary_percent", "qkv_bias": "add_qkv_bias",
    "override_vocab_size": "vocab_size", "mamba_ssm_ngroups": "mamba_num_groups",
    "use_flash_attention": "use_flash_attn", "ub_tp_comm_bootstrap_backend": "tp_comm_bootstrap_backend",
}  # fmt: skip
"""NeMo 1's names of Megatron-LM's arguments (``examples/nlp/language_modeling/conf/megatron_gpt_config.yaml``); others
are the same."""
OF_MODEL = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "num_moe_experts",
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "sequence_parallel", "micro_batch_size", "global_batch_size",
)  # fmt: skip
"""Words with Megatron-LM's names, which a note may name where a config has none."""
AS_VALUES = {
    "--swiglu": "model.activation = swiglu", "--disable-bias-linear": "model.bias = false",
    "--untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights = false",
    "--normalization": "model.normalization", "--position-embedding-type": "model.position_embedding_type",
}  # fmt: skip
"""What NeMo has for flags of Megatron-LM whose words it does not share."""
OWN = (
    "activation", "bias", "share_embeddings_and_output_weights", "transformer_engine", "fp8", "fp8_e4m3", "fp8_hybrid",
    "megatron_amp_O2", "fsdp",
)  # fmt: skip
"""Words of a model that are no arguments; all are read here."""
FUSED = (
    "bias_activation_fusion", "bias_dropout_add_fusion", "masked_softmax_fusion",
    "apply_rope_fusion", "persist_layer_norm",
)  # fmt: skip
"""Kernels that stacks fuse, where a word says that they are not."""
GATES = {
    "model.fsdp": "model.fsdp_", "model.cpu_offloading": "model.cpu_offloading_", "model.fp8": "model.fp8_",
    "model.ub_tp_comm_overlap": "model.tp_comm_overlap_", "model.defer_embedding_wgrad_compute": "model.wgrad_deferral",
}  # fmt: skip
"""Switches without which the words that begin so have no effect."""
ACTIVATIONS = {
    "gelu": "", **dict.fromkeys(("swiglu", "geglu", "reglu", "fast-swiglu", "fast-geglu", "fast-reglu"), "swiglu"),
    "squared-relu": "squared_relu",
}  # fmt: skip
"""By the argument for a layer of as many products; the function between them costs about the same."""
NEMO_PRECISIONS = {
    "bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "fp16": "fp16", "32": "", "32-true": "",
    "fp32": "",
}  # fmt: skip
OTHER_MODELS = {
    "model.encoder.": "T5, an encoder and a decoder", "model.mm_cfg.": "a model of images and text",
    "model.adapter_tuning.": "adapters of their own layers", "model.ia3_tuning.": "factors of activations (IA3)",
    "model.p_tuning.": "tables of prompts", "model.prompt_tuning.": "tables of prompts",
    "model.retro.": "retrieval beside a language model", "model.hyena.": "Hyena's filters in place of attention",
}  # fmt: skip
"""What a config trains that has words of these sections."""
SCRIPTS = {"mamba_ssm_ngroups": "megatron_mamba", "hybrid_override_pattern": "megatron_mamba",
           "bert_binary_head": "pretrain_bert"}  # fmt: skip
"""Which of its models a config is of, by a word of only these."""
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
OPTIMIZERS = (*SHARDED, "fused_adam", "adam", "adamw", "sgd")
STARTED_BY = ("megatron_gpt_pretraining", "megatron_gpt_finetuning", "megatron_gpt_sft", "megatron_gpt_peft_tuning",
              "megatron_llama_pretraining", "megatron_gpt_continue_training")  # fmt: skip
TUNED = {
    "attention_qkv": ("q_proj", "k_proj", "v_proj"), "attention_dense": ("o_proj",),
    "mlp_fc1": ("gate_proj", "up_proj"), "mlp_fc2": ("down_proj",),
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj"), "all": get_args(Projection),
}  # fmt: skip
"""Targets of ``model.peft.lora_tuning`` (``megatron_gpt_finetuning_config.yaml``)."""
OPEN = re.compile(r"\$\{[^}]*\}/?")
"""A part of a path that another file says."""
ADAPTER_DIM = 32
"""Default of ``lora_tuning.adapter_dim``."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of NeMo 1, or in a command with one. Raises UserError naming file, option and value."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of NeMo 1: it has sections trainer and model with parallel sizes")
    given = reader_of(data, name)
    _refuse_other_models(given)
    values = _arguments_of(given)
    for key, theirs in (("seq_length", "max_seq_length"), ("micro_batch_size",) * 2, ("global_batch_size",) * 2):
        tuned = given.get(f"model.data.train_ds.{theirs}")  # fine-tuning has them there
        values |= {key: tuned} if tuned is not None else {}
    values |= _nemo_numerics(given) | _nemo_optimizer(given)
    arguments = of_mapping(values, name)
    arguments.script = next((script for word, script in SCRIPTS.items() if f"model.{word}" in given), "")
    arguments.names = _names(arguments.names)
    tunes = any(word.startswith(("model.data.train_ds.", "model.peft.")) for word in given.values_)
    result = plan_of(arguments, dropout=0.0 if tunes else DROPPED)
    its_own = arguments.in_own_words(IN_FP32)  # says nothing of a config, whose words have other names
    result = replace(result, notes=tuple(note for note in result.notes if note != its_own))
    changes: dict[str, Any] = {"dp": _replicas(given, result.plan.mesh.sizes.replica_ranks)} | _nemo_adapters(given)
    bucket = given.get("model.optim.bucket_cap_mb")
    if bucket and given.get("model.optim.name") == "distributed_fused_adam":  # Megatron-Core's has another word
        changes["bucket_bytes"] = f"{bucket} MiB"
    if given.get("model.fsdp"):
        changes |= {"zero": 3, "kind": "fsdp"}
    assumed: tuple[Assumed, ...] = ()
    in_half = given.get("model.megatron_amp_O2")
    if result.plan.numerics.precision != "fp32" and not in_half:
        if "model.megatron_amp_O2" in given or is_config(name):  # off by default
            changes["parameter_dtype"] = "fp32"
        else:  # the command's config may say it
            why = "model.megatron_amp_O2 is not said; without it parameters stay in fp32"
            assumed = (Assumed("parameter_dtype", "bf16", why, ("fp32",)),)
    plan = result.plan.with_values(**{key: value for key, value in changes.items() if value is not None})
    plan = with_weights(plan.model_copy(update={"stack": "nemo"}), "nemo")
    for switch, gated in GATES.items():
        if not given.values_.get(switch):  # what they say has no effect then; a switch that is on is not read by this
            given.used |= {word for word in given.values_ if word.startswith(gated)}
    told = arguments.words()
    given.used |= {word for word in told.used if word in given.values_}
    plain = {word: word.removeprefix("model.") for word in given.values_}
    asked = {word: f"--{RENAMED.get(name, name).replace('_', '-')}" for word, name in plain.items()}
    given.used |= {word for word, flag in asked.items() if flag in arguments.used}  # asked for, and off
    words = given.words()
    left = {word: value for word, value in words.unread.items() if not (word in unfused(given) and value is True)}
    left |= dict.fromkeys((word for word, fused in unfused(given).items() if not fused), "not fused")
    if plan.execution.attention_kernel != "eager":
        left.pop("model.masked_softmax_fusion", None)  # no other kernel leaves a softmax of its own
    return replace(result, plan=plan, words=ReadWords(words.used, left), assumed=(*result.assumed, *assumed))


def _names(names: Mapping[str, str]) -> dict[str, str]:
    """NeMo's words by the flags of Megatron-LM: those that a config has, and all that are known here."""
    theirs = {ours: theirs for theirs, ours in RENAMED.items()}
    spelt = {flag: f"model.{theirs.get(key, key)}" for flag, key in names.items()}
    known = (*RENAMED.values(), *OF_MODEL, "attention_dropout", "hidden_dropout")
    return AS_VALUES | {f"--{key.replace('_', '-')}": f"model.{theirs.get(key, key)}" for key in known} | spelt


def _refuse_other_models(given: ConfigReader) -> None:
    """Raise UserError if a config trains no language model of text alone, whose sizes might look like one's."""
    for section, what in OTHER_MODELS.items():
        if word := next((word for word in given.values_ if word.startswith(section)), None):
            raise UserError(f"{given.source}: {word}: {what}: not modelled; allowed: GPT's, Llama's and Mamba's")


def unfused(given: ConfigReader) -> dict[str, bool]:
    """The kernels of :data:`FUSED` that a config names, and whether they are fused."""
    rotates = str(given.values_.get("model.position_embedding_type")).lower() == "rope"
    named = [each for each in FUSED if f"model.{each}" in given and (rotates or "rope" not in each)]
    return {f"model.{each}": bool(given.values_[f"model.{each}"]) for each in named}


def _arguments_of(given: ConfigReader) -> dict[str, Any]:
    """Megatron-LM's arguments in the section of the model: all words but those of NeMo's own."""
    values: dict[str, Any] = {}
    for key, value in given.values_.items():
        word = key.removeprefix("model.")
        is_off = value is None or (value == 0 and not word.endswith("_dropout"))
        if not key.startswith("model.") or "." in word or word in (*OWN, *FUSED) or is_off:
            continue
        if isinstance(value, list) and not all(isinstance(each, int | str) for each in value):
            continue
        values[RENAMED.get(word, word)] = value
    if "num_query_groups" in values:
        values["group_query_attention"] = True
    activation = choice(given, "model.activation", ACTIVATIONS, "")
    told = {
        activation: bool(activation),
        "disable_bias_linear": given.get("model.bias") is False,
        "no_gradient_accumulation_fusion": given.get("model.gradient_accumulation_fusion") is False,
        "untie_embeddings_and_output_weights": given.get("model.share_embeddings_and_output_weights") is False,
    }
    positions = str(values.get("position_embedding_type", "")).lower()
    if positions:
        values["position_embedding_type"] = positions
    if not given.get("model.transformer_engine"):  # attention is unfused, unless flash attention is asked for
        values["transformer_impl"] = "local"
    library, kind = given.get("model.tokenizer.library"), given.get("model.tokenizer.type")
    file = str(given.values_.get("model.tokenizer.model") or "")
    if OPEN.search(file):  # its name tells the vocabulary, wherever it lies
        given.used.add("model.tokenizer.model")
        file = OPEN.sub("", file)
    named = kind if library == "huggingface" else file or given.get("model.tokenizer.model")
    is_gpt2 = library == "megatron" and kind == "GPT2BPETokenizer"
    values |= {} if is_gpt2 else {"tokenizer_type": library or "none", "tokenizer_model": named}
    if values.get("num_moe_experts"):
        values.setdefault("moe_router_topk", 2)
    return values | {name: True for name, on in told.items() if on}


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of NeMo 1's Megatron models."""
    model = data.get("model")
    return isinstance(data.get("trainer"), Mapping) and isinstance(model, Mapping) and any(
        key in model for key in ("tensor_model_parallel_size", "encoder_seq_length", "megatron_amp_O2", "peft")
    )  # fmt: skip


def _starts(words: Sequence[str]) -> bool:
    return any(PurePath(word).stem in STARTED_BY for word in words if word.endswith(".py"))


def _of_command(text: str, name: str) -> dict[str, Any]:
    """The config that a command of NeMo 1 names (Hydra's flags), with the command's values over it."""
    words = command_of(text, name, _starts)
    script = next(word for word in words if PurePath(word).stem in STARTED_BY)
    folder, config = value_of(words, ("--config-path", "-cp")), value_of(words, ("--config-name", "-cn"))
    whole: dict[str, Any] = {}
    if config is not None:
        file = PurePath(folder or "conf") / (config if is_config(config) else f"{config}.yaml")
        whole = load_beside(str(file if folder and file.is_absolute() else PurePath(script).parent / file), name)
    return laid_over(whole, assigned(words))


def _replicas(given: ConfigReader, inside: Any) -> int | None:
    """Data-parallel ranks of the trainer's devices; None if it does not count them."""
    devices, nodes = given.get("trainer.devices"), given.get("trainer.num_nodes", 1)
    if not isinstance(devices, int) or not isinstance(nodes, int) or devices < 1:
        return None
    count, rest = divmod(devices * nodes, int(inside))
    if rest or not count:
        raise UserError(
            f"{given.source}: trainer.devices x trainer.num_nodes = {devices * nodes}: allowed: a multiple of "
            f"tp x cp x pp = {inside}"
        )
    return count


def _nemo_numerics(given: ConfigReader) -> dict[str, Any]:
    word = str(given.get("trainer.precision", "32"))
    if word not in NEMO_PRECISIONS:
        raise UserError(f"{given.source}: trainer.precision = {word}: allowed: {', '.join(NEMO_PRECISIONS)}")
    result: dict[str, Any] = {half: True for half in [NEMO_PRECISIONS[word]] if half}
    stores = given.get("model.fp8_params") is True
    if given.get("model.fp8"):
        e4m3 = given.get("model.fp8_e4m3") and not given.get("model.fp8_hybrid")
        result["fp8_format"] = "e4m3" if e4m3 else "hybrid"
        result["fp8_param_gather"] = stores
    return result


def _nemo_optimizer(given: ConfigReader) -> dict[str, Any]:
    """How states are sharded and gradients reduced (NeMo 2.4, ``megatron_gpt_model.py``, ``megatron_base_model.py``).

    Apex's distributed Adam overlaps gradients unless told not to, Megatron-Core's only if told to; with neither, NeMo
    overlaps them where no pipeline, split sequences or fused accumulation stand in the way. Parameters only overlap if
    told to.
    """
    name = str(given.get("model.optim.name", "fused_adam"))
    if name not in OPTIMIZERS:
        raise UserError(f"{given.source}: model.optim.name = {name}: allowed: {', '.join(OPTIMIZERS)}")
    overlaps, gathers = given.get("model.optim.overlap_grad_sync"), given.get("model.optim.overlap_param_sync")
    low = str(given.get("model.optim.grad_sync_dtype")) in ("bf16", "bfloat16")
    sharded = name in SHARDED
    if name == "mcore_distributed_optim":
        overlaps = bool(overlaps)
    elif not sharded:
        stands = [given.get(f"model.{key}") for key in ("sequence_parallel", "gradient_accumulation_fusion")]
        piped = (given.get("model.pipeline_model_parallel_size") or 1) > 1
        whole = given.get("model.megatron_amp_O2") and given.get("model.async_grad_allreduce", True)
        overlaps = bool(whole) and not piped and not any(stands)
    return {
        "optimizer": "sgd" if name == "sgd" else "adam",
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": overlaps is not False,
        "overlap_param_gather": sharded and bool(gathers),
        "ddp_bucket_size": given.get("model.optim.ddp_bucket_size"),
        "grad_reduce_in_bf16": low,
    }


def _nemo_adapters(given: ConfigReader) -> dict[str, Any]:
    scheme = given.get("model.peft.peft_scheme")
    if scheme in (None, "none", "null", ""):
        return {}
    if scheme != "lora":
        raise UserError(f"{given.source}: model.peft.peft_scheme = {scheme}: allowed: lora, null")
    listed = given.get("model.peft.lora_tuning.target_modules") or ["attention_qkv"]
    wanted = [str(each) for each in (listed if isinstance(listed, list) else [listed])]
    if not set(wanted) <= set(TUNED):
        key = "model.peft.lora_tuning.target_modules"
        raise UserError(f"{given.source}: {key} = {', '.join(wanted)}: allowed: {', '.join(TUNED)}")
    rank = given.whole("model.peft.lora_tuning.adapter_dim") or ADAPTER_DIM
    targets = dict.fromkeys(part for each in wanted for part in TUNED[each])
    dropout = real(given, "model.peft.lora_tuning.adapter_dropout") or 0.0
    return {"lora_rank": rank, "lora_targets": tuple(targets), "lora_dropout": dropout}


NEMO_WORDS = MEGATRON_WORDS.under("model") | WordTable(
    idle=(
        # of the run
        "name", "run.*", "defaults", "restore_from*", "exp_manager.*", "hydra.*", "s3_checkpointing.*", "trainer.*",
        "inference.*", "cluster_type",
        # of the data and the optimizer's numbers
        "model.data.*", "model.tokenizer.*", "model.optim.lr", "model.optim.betas", "model.optim.eps",
        "model.optim.weight_decay", "model.optim.sched.*", "model.optim.contiguous*", "model.optim.capturable",
        "model.answer_only_loss", "model.prompt_format", "model.target", "model.precision", "model.name",
        # of the model, and what a shipped one has anyhow
        "model.restore_from*", "model.resume_from*", "model.save_xser", "model.load_xser", "model.do_layer_norm*",
        "model.pre_process", "model.post_process", "model.headscale", "model.transformer_block_type",
        "model.transformer_engine", "model.normalize_attention_scores", "model.attention_type", "model.mcore_*",
        "model.use_scaled_init_method", "model.scale_positional_embedding", "model.activation", "model.bias",
        "model.share_embeddings*", "model.hysteresis", "model.native_amp*", "model.apex_*", "model.drop_layers",
        "model.gradient_as_bucket_view", "model.sync_batch_comm", "model.grad_div_ar_fusion", "model.reduce_amax",
        "model.grad_allreduce_chunk_size_mb", "model.get_attention_mask_from_fusion", "model.nsys_profile.*",
        "model.gc_interval", "model.rotary_percentage", "model.ffn_dropout", "model.reset_lr*", "model.peft.*",
        "model.enable_megatron_timers", "model.megatron_timer_kwargs.*", "model.dist_ckpt*", "model.fsdp_sharded*",
        "model.megatron_legacy", "model.add_pooler", "model.add_lm_head", "model.activations_checkpoint_recurrent",
        "model.apply_embedding_scaling",
        "model.validation_param_sync_overlap", "model.use_emha", "model.seq_len_interpolation_factor",
        "model.memory_profile.*", "model.tp_only_amax_red", "model.activations_checkpoint_layers_per_pipeline",
        "model.merge_*", "model.expert_tensor_parallel_size", "model.moe_pad_expert_input_to_capacity",
        "model.fp8_e4m3", "model.fp8_hybrid", "model.layernorm_zero_centered_gamma", "model.cpu_offloading_num_layers",
        "model.cpu_offloading_activations", "model.cpu_offloading_weights",
    ),
    deciding={
        "model.optim.overlap_param_gather_with_optimizer_step": "gathers overlap with the update: step time",
        "model.optim.align_param_gather": "stages gather parameters together: step time",
        "model.optim.dtype": "the dtype of the optimizer's states: memory",
        "model.optim.store_params*": "how the optimizer keeps 32-bit parameters: memory",
        "model.ub_tp_comm_overlap_cfg*": "how tensor parallelism overlaps: time",
        "model.cpu_offloading": "activations leave the device: memory and time",
        "model.fsdp_sharding_strategy": "how FSDP shards: memory and communication",
        "model.fsdp_grad_reduce_dtype": "the dtype in which FSDP reduces gradients: communication",
        "model.num_micro_batches_with*": "how many microbatches recompute: time and memory",
        "model.optim.nccl_ub": "registered buffers of collectives: time and memory",
        "model.sharp": "reductions inside of switches: communication",
        **{f"model.{name}": "a kernel that is not fused: time and memory of what lies between" for name in FUSED},
        "trainer.overlap_ddp": "when gradients are reduced: overlap",
    },
)  # fmt: skip
"""Words of a model are Megatron-LM's arguments, and sorted as they are."""

READER = Reader(
    name="nemo-1",
    description="NeMo 1: the YAML of its Megatron models, and commands with Hydra's overrides",
    read=read,
    starts=_starts,
    owns=owns,
    devices=SPAWNS,
    words=NEMO_WORDS,
)
