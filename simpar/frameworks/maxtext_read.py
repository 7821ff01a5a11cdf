"""MaxText back to a plan: a YAML over its base config, and ``python -m maxtext...train base.yml key=value``."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from simpar.architectures.catalogue import load_model
from simpar.errors import UserError
from simpar.frameworks.match import is_telling, model_note, models_with, sizes_of
from simpar.frameworks.maxtext import MINIMAL, MODELS, REMAT
from simpar.frameworks.open_axes import filled, spread
from simpar.frameworks.overrides import (
    ToldReader,
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
from simpar.frameworks.reader import DeviceHabits, Reader
from simpar.frameworks.recipes import ConfigReader
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.trainer_read import low_states
from simpar.frameworks.words import ON_PROCESSORS, WordTable
from simpar.precisions import LONG_NAMES

SIZES = {
    "base_emb_dim": "hidden", "base_num_query_heads": "heads", "base_num_kv_heads": "kv_heads", "base_mlp_dim": "ffn",
    "base_num_decoder_layers": "layers", "vocab_size": "vocab", "num_experts": "num_experts",
    "base_moe_mlp_dim": "expert_ffn",
}  # fmt: skip
DTYPES = LONG_NAMES
QUANTIZED = {"": None, "fp8": "fp8", "te_fp8_delayedscaling": "fp8", "te_fp8_currentscaling": "fp8", "nanoo_fp8": "fp8",
             "fp8_full": "fp8", "fp8_gpu": "fp8", "te_mxfp8": "mxfp8"}  # fmt: skip
PER_DEVICE, SEQ_LEN = 12.0, 2048
"""Defaults of ``per_device_batch_size`` and ``max_target_length`` (configs/base.yml of 0.2.5)."""
OPEN = -1
AXES = ("data", "fsdp", "fsdp_transpose", "tensor", "tensor_sequence", "tensor_transpose", "context", "expert",
        "pipeline", "sequence", "autoregressive", "diloco")  # fmt: skip
POLICIES = {theirs: ours for ours, theirs in REMAT.items()} | {"minimal_flash": MINIMAL, "none": "none"}
"""Policies by name; ``minimal_flash`` keeps the products as minimal does."""
OTHER_POLICIES = {
    **dict.fromkeys(("minimal_with_context", "minimal_offloaded"), "minimal"),
    **dict.fromkeys(("custom", "save_dot_except_mlp", "save_dot_except_mlpwi", "save_dot_with_context_except_mlp",
                     "save_qkv_proj", "qkv_proj_offloaded", "save_out_proj"), "full"),
}  # fmt: skip
"""Policies that no plan has, by the one that is nearest."""
KEPT = (
    "decoder_layer_input", "context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1", "moe_mlpwo",
    "query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj", "out_proj", "query_wa_proj", "kv_wa_proj", "mla_q",
    "mla_kv", "attention_out", "engram", "indexer_cutoff_threshold",
)  # fmt: skip
"""Tensors that policy custom keeps, moves to the host, or recomputes (configs/base.yml)."""
TIED = "logits_via_embedding"
USUAL_SIZES = {
    "base_emb_dim": 2048, "base_num_query_heads": 16, "base_num_kv_heads": 16, "base_mlp_dim": 7168,
    "base_num_decoder_layers": 16, "head_dim": 128, "vocab_size": 32000,
}  # fmt: skip
"""Of the model of configs/base.yml: Llama's layers."""
ATTENTION = {"dot_product": "eager", "cudnn_flash_te": "cudnn", "cudnn_flash_jax": "cudnn", "flash": None,
             "autoselected": None}  # fmt: skip
"""Kernels of attention; the flash ones are the stack's."""
CP_METHODS = {"all_gather": "all_gather", "ring": "ring", "ulysses": "ulysses"}
OPTIMIZERS = {"adamw": "adamw", "adam_pax": "adamw", "sgd": "sgd", "muon": "muon"}
SHOWN = {"tpu-v7x": 2}
"""Devices that JAX shows of a chip of two TensorCores (Google Cloud, TPU7x: each has its own half of the memory)."""
CONFIGS = ("base.yml", "base.yaml")
FURTHER = {
    "gemma-2b": "gemma-2b", "gemma-7b": "gemma-7b", "gemma4-26b": "gemma-4-26b-a4b", "gemma4-31b": "gemma-4-31b",
    "gemma4-e2b": "gemma-4-e2b", "gemma4-e4b": "gemma-4-e4b", "llama3-405b": "llama-3.1-405b",
    "llama3.3-70b": "llama-3.1-70b", "llama4-17b-16e": "llama-4-scout", "llama4-17b-128e": "llama-4-maverick",
    "qwen3-1.7b-base": "qwen3-1.7b", "qwen3-4b-base": "qwen3-4b", "qwen3-4b-thinking-2507": "qwen3-4b",
    "qwen3-8b-base": "qwen3-8b", "qwen3-14b-base": "qwen3-14b", "qwen3-30b-a3b-base": "qwen3-30b-a3b",
    "qwen3-480b-a35b": "qwen3-coder-480b-a35b", "qwen3-next-80b-a3b": "qwen3-next-80b-a3b",
    "qwen3-vl-2b": "qwen3-vl-2b", "qwen3-vl-4b": "qwen3-vl-4b", "qwen3-vl-30b-a3b": "qwen3-vl-30b-a3b",
    "qwen3.5-35b-a3b": "qwen3.5-35b-a3b", "qwen3.5-397b-a17b": "qwen3.5-397b-a17b",
    "deepseek3-671b-2dfsdp": "deepseek-v3", "deepseek3-671b-batchsplit": "deepseek-v3",
    "deepseek3.2-671b": "deepseek-v3.2",
}  # fmt: skip
"""Shipped models by further names in ``configs/models``: releases of the same sizes, and what is not exported."""
SCALE = "global_parameter_scale"
NAMED = {SCALE: (1,), "mlp_activations": (["silu", "linear"],)}
"""What says nothing beside a model's name."""
OTHER_LOOPS = ("train_rl", "train_dpo", "train_distill", "train_tokenizer")
"""Modules of MaxText that train on something else than the next token."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of MaxText, or in a command. Raises UserError naming file, option and value."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of MaxText, such as one with per_device_batch_size")
    return plan_in(data, name)


def plan_in(data: Mapping[str, Any], name: str) -> Imported:
    """The plan that a mapping of options over MaxText's base config is. Raises UserError."""
    given = reader_of(data, name)
    sizes, far = ({axis: _size(given, f"{place}_{axis}_parallelism") for axis in AXES} for place in ("ici", "dcn"))
    sizes, filled_note = _filled(given, sizes)
    if given.get("dcn_data_parallelism", OPEN) == OPEN and given.get("dcn_fsdp_parallelism", 1) != OPEN:
        far = spread(far, "data")
    tp = _product(sizes, far, "tensor", "tensor_sequence", "tensor_transpose")
    cp, pp, ep = (
        _product(sizes, far, "context", "sequence"),
        _product(sizes, far, "pipeline"),
        _product(sizes, far, "expert"),
    )
    slices = given.whole("num_slices", -1)
    fsdp_open = given.get("ici_fsdp_parallelism", -1) == -1 or given.get("dcn_fsdp_parallelism") == -1
    shards, copies = _product(sizes, far, "fsdp", "fsdp_transpose"), _product(sizes, far, "data", "diloco")
    data_open = given.get("dcn_data_parallelism", -1) == -1 or given.get("ici_data_parallelism") == -1
    data_open = data_open and slices not in (None, 1, -1)
    whole = None if fsdp_open or data_open else shards * copies * ep
    per_device = real(given, "per_device_batch_size") or PER_DEVICE
    steps = given.whole("gradient_accumulation_steps") or 1
    micro, rest = divmod(per_device * tp * cp * pp, 1)
    if rest or not micro:
        raise UserError(f"{name}: per_device_batch_size = {per_device:g}: allowed: whole sequences of a replica")
    seq_len = given.whole("max_target_length") or SEQ_LEN
    mixed = choice(given, "dtype", DTYPES, "bf16")
    low = choice(given, "quantization", QUANTIZED)
    model, told, config, note = _model(given)
    host = "cpu" if given.get("optimizer_memory_host_offload") else None
    if str(given.values_.get("hardware")) != "cpu":
        given.get("hardware")
    values: dict[str, Any] = {
        "stack": "maxtext",
        "model": model,
        "tp": tp, "cp": cp, "pp": pp, "ep": ep,
        "etp": 1 if ep > 1 else None,
        "dp": whole,
        "zero": 3 if fsdp_open or shards * ep > 1 else 0,
        "hsdp": copies if copies > 1 and (fsdp_open or shards > 1) else None,
        "recompute": _policy(given),
        "precision": low or mixed,
        "parameter_dtype": None if mixed == "fp32" else choice(given, "weight_dtype", DTYPES, "fp32"),
        "optimizer": choice(given, "opt_type", OPTIMIZERS, "adamw"),
        "offload_optimizer": host,
        "offload_parameters": "cpu" if given.get("parameter_memory_host_offload") else None,
        "attention_kernel": choice(given, "attention", ATTENTION),
        "capacity_factor": _capacity(given),
        "loss_chunks": given.whole("num_vocab_tiling"),
        "training": {"seq_len": seq_len},
    }  # fmt: skip
    if values["parameter_dtype"] == "bf16":  # so are gradients and moments, which follow it
        values |= low_states(str(values["optimizer"]))
        given.used |= {"mu_dtype"} if given.values_.get("mu_dtype") in ("", "bfloat16") else set()
    if tp > 1:
        values["sequence_parallel"] = sizes["tensor_sequence"] * far["tensor_sequence"] > 1
    if cp > 1:
        values["cp_method"] = choice(given, "context_parallel_strategy", CP_METHODS, "all_gather")
        values["cp_balance"] = "contiguous" if given.get("context_parallel_load_balance") is False else "zigzag"
    local = int(micro) * steps
    values["micro_batch"] = int(micro)
    if pp > 1:
        microbatches = given.whole("num_pipeline_microbatches", -1) or -1
        microbatches = microbatches if microbatches > 0 else pp
        values |= {"micro_batch": max(1, int(micro) // microbatches)}
        repeats = given.whole("num_pipeline_repeats", -1) or -1
        values |= {"vpp": repeats} if repeats > 1 else {}
    notes = tuple(filter(None, (note, filled_note, *given.misspelt())))
    given.used |= {key for key, value in given.values_.items() if key.startswith(("ici_", "dcn_")) and value in (1, -1)}
    asks = {"model": "" if config else note}
    return Imported(plan_said(values), given.words(), notes, local, sizes=told, asks=asks, config=config)


def merged(imported: Imported, count: int) -> Imported:
    """The plan on chips, of which JAX shows ``count`` devices each: they are taken for one. Raises UserError.

    They are devices of the axis of data, whose batches a chip has all, if the size of that allows it, else of the axis
    of experts, tensors or contexts.
    """
    mesh, hsdp = imported.plan.mesh, imported.plan.data_parallel.hsdp
    dp = mesh.dp and mesh.dp // count
    is_whole = mesh.dp is None or mesh.dp % count == 0
    if is_whole and (dp is None or (dp * mesh.cp) % mesh.ep == 0 or mesh.ep % count == 0):
        values: dict[str, Any] = {"dp": dp, "micro_batch": imported.plan.micro_batch * count}
        values |= {"ep": mesh.ep // count} if dp and (dp * mesh.cp) % mesh.ep else {}
        values |= {"hsdp": hsdp // count} if dp and dp % hsdp else {}
        imported = replace(imported, per_replica=imported.per_replica and imported.per_replica * count)
    elif axis := next((axis for axis in ("tp", "cp") if getattr(mesh, axis) % count == 0), None):
        values = {axis: getattr(mesh, axis) // count}
        values |= {"sequence_parallel": None} if values.get("tp") == 1 else {}
        values |= {"cp_method": None, "cp_balance": None} if values.get("cp") == 1 else {}
    else:
        raise UserError(f"devices of the mesh: allowed: a multiple of {count} in an axis, the devices of a chip")
    told = f"JAX shows {count} devices of a chip, which are taken for one."
    return replace(imported, plan=imported.plan.with_values(**values), notes=(*imported.notes, told), written_as="")


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of MaxText."""
    return any(key in data for key in ("per_device_batch_size", "max_target_length", "remat_policy")) or any(
        str(key).startswith(("ici_", "dcn_")) for key in data
    )


def _size(given: ConfigReader, key: str) -> int:
    """The size of an axis; 1 where it is open (-1), as axes of data may be, and OPEN for others inside of a slice.

    Raises UserError.
    """
    value = given.whole(key, -1)
    if value == -1 and not any(f"_{axis}_parallelism" in key for axis in ("data", "fsdp")):
        if key.startswith("dcn_"):
            raise UserError(f"{given.source}: {key} = -1: allowed: its size, as the number of slices is not said")
        return OPEN
    return value if value is not None and value > 0 else 1


def _filled(given: ConfigReader, sizes: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """The sizes inside of a slice without open ones, and a note (``fill_unspecified_mesh_axes`` of max_utils.py)."""
    if OPEN not in sizes.values():
        return dict(sizes), ""
    said = {f"ici_{axis}_parallelism": size for axis, size in sizes.items()}
    shards = "ici_fsdp_parallelism"  # base.yml leaves it open
    said |= {key: OPEN for key in said if given.get(key, OPEN if key == shards else 1) == OPEN}
    full, note = filled(said, given.source)
    return {axis: full[f"ici_{axis}_parallelism"] for axis in sizes}, note


def _product(sizes: Mapping[str, int], far: Mapping[str, int], *axes: str) -> int:
    result = 1
    for axis in axes:
        result *= sizes[axis] * far[axis]
    return result


def _policy(given: ConfigReader) -> str:
    """What is recomputed; policies that keep other products are read as the nearest, and their name decides."""
    word = str(given.values_.get("remat_policy", "full"))
    if word in POLICIES:
        given.get("remat_policy")
        given.used |= {key for key in KEPT if key in given}
        return POLICIES[word]
    if word not in OTHER_POLICIES:
        raise UserError(f"{given.source}: remat_policy = {word}: allowed: {', '.join((*POLICIES, *OTHER_POLICIES))}")
    kept = {key for key in KEPT if given.values_.get(key, "remat") != "remat"} - {"decoder_layer_input"}
    if word == "custom" and not kept and given.values_.get("decoder_layer_input", "device") == "device":
        given.used |= {"remat_policy", *KEPT}
    given.used |= {key for key in KEPT if word != "custom" or given.values_.get(key) == "remat"}
    return POLICIES[OTHER_POLICIES[word]]


def _capacity(given: ConfigReader) -> float | None:
    """The capacity of experts, which dense products alone have: sparse ones drop no token (``layers/moe.py``)."""
    value = real(given, "capacity_factor")
    is_sparse = given.values_.get("sparse_matmul", True) is not False
    return None if is_sparse or value is None or value <= 0 else value


def _model(given: ToldReader) -> tuple[str | None, dict[str, int], dict[str, Any] | None, str]:
    """The shipped model of a name or of sizes, the sizes, the config of one that is not shipped, and a note."""
    named = given.name_of("model_name") if "model_name" in given else "default"
    if named is None:
        return None, {}, None, f"The text does not say model_name ({given.values_['model_name']}): give --model."
    ours = next((ours for ours, theirs in MODELS.items() if theirs == named), FURTHER.get(named))
    scale = _scale(given) if named == "default" else dict.fromkeys(SIZES, 1)
    read_sizes = {own: size and size * scale[key] for key, own in SIZES.items() for size in (given.whole(key),)}
    told = {own: size for own, size in read_sizes.items() if size is not None}
    if named != "default":
        own = sizes_of(load_model(ours)) if ours else {}
        given.used -= {key for key, name in SIZES.items() if told.get(name, own.get(name)) != own.get(name)}
        given.used |= {key for key, usual in NAMED.items() if given.values_.get(key) in usual}
        if ours and bool(given.values_.get(TIED)) == load_model(ours).tied_embeddings:
            given.used.add(TIED)
        return ours, {}, None, "" if ours else f"The model {named} is not shipped: give --model."
    models = models_with(told) if is_telling(told) else []
    config = None if models else _config(given, scale)
    if config:
        return None, {}, config, "The model is built of the config's sizes, and those of base.yml (Llama's layers)."
    return (models[0] if models else None), told, None, model_note(models, told)


def _scale(given: ConfigReader) -> dict[str, int]:
    """By how much sizes grow with ``global_parameter_scale``, by their words. Raises UserError.

    Each doubling is one of heads and MLPs, then of the width, then of the layers' number (``get_individual_scales`` of
    configs/types.py).
    """
    whole = given.whole(SCALE) or 1
    cycles, rest = divmod(whole.bit_length() - 1, 3)
    if whole != 1 << (whole.bit_length() - 1):
        raise UserError(f"{given.source}: {SCALE} = {whole}: allowed: a power of 2")
    wide = dict.fromkeys(("base_num_query_heads", "base_num_kv_heads", "base_mlp_dim", "base_moe_mlp_dim"),
                         1 << (cycles + (rest > 0)))  # fmt: skip
    others = {"base_emb_dim": 1 << (cycles + (rest > 1)), "base_num_decoder_layers": 1 << cycles}
    return {**dict.fromkeys((*SIZES, "head_dim"), 1), **wide, **others}


def _config(given: ConfigReader, scale: Mapping[str, int]) -> dict[str, Any] | None:
    """The config of a decoder of Llama's layers, of sizes that are scaled; None for other layers."""
    experts, gated = given.whole("num_experts") or 1, given.get("mlp_activations") or ("silu", "linear")
    other = experts > 1 or "normalization_layer" in given or len(gated) != 2
    if other or given.get("decoder_block", "llama2") != "llama2":
        return None
    size = {key: (given.whole(key) or usual) * scale[key] for key, usual in USUAL_SIZES.items()}
    return {
        "model_type": "llama", "hidden_size": size["base_emb_dim"], "intermediate_size": size["base_mlp_dim"],
        "num_attention_heads": size["base_num_query_heads"], "num_key_value_heads": size["base_num_kv_heads"],
        "num_hidden_layers": size["base_num_decoder_layers"], "head_dim": size["head_dim"],
        "vocab_size": size["vocab_size"], "tie_word_embeddings": bool(given.get(TIED)),
    }  # fmt: skip


def _module(words: Sequence[str]) -> str:
    """The module or script that a command starts, in lower case; "" if none."""
    at = words.index("-m") + 1 if "-m" in words else next((n for n, w in enumerate(words) if w.endswith(".py")), None)
    return "" if at is None or at >= len(words) else words[at].lower()


def _trains(words: Sequence[str]) -> bool:
    """Whether a command trains a language model; others convert checkpoints or generate text."""
    module = _module(words)
    name = Path(module.removesuffix(".py")).name.rpartition(".")[2]
    of_maxtext = "maxtext" in module or _has_base(words)
    return of_maxtext and ("train" in name or name.endswith("sft")) and name not in OTHER_LOOPS


def _has_base(words: Sequence[str]) -> bool:
    return any(Path(word).name in CONFIGS for word in words)


def _starts(words: Sequence[str]) -> bool:
    return _trains(words) or (_has_base(words) and "maxtext" not in _module(words))


def _of_command(text: str, name: str) -> dict[str, Any]:
    words = command_of(text, name, _starts, _trains)
    config = next((word for word in words if word.endswith((".yml", ".yaml")) and "=" not in word), None)
    is_base = config is None or Path(config).name in CONFIGS
    whole = {} if is_base else load_beside(str(config), name)  # what base.yml says is known here
    changes = assigned(words)
    return laid_over({"per_device_batch_size": PER_DEVICE} | whole, changes)


READER = Reader(
    name="maxtext",
    description="MaxText: a YAML over its base config, and commands with key=value",
    read=read,
    starts=_starts,
    trains=_trains,
    owns=owns,
    written_as="maxtext",
    devices=DeviceHabits(spawns=True, shown=SHOWN, merged=merged),
    words=WordTable(
        idle=(
            "base_config",
            "pure_nnx*",
            "run_name",
            "steps",
            "learning_rate*",
            "dataset_*",
            "enable_checkpointing",
            "base_output_directory",
            "tokenizer_*",
            "eval_*",
            "profiler*",
            "skip_first_n_steps*",
            "hf_*",
            "checkpoint_*",
            "async_checkpointing",
            "enable_goodput*",
            "monitor_goodput",
            "max_prefill*",
            "log_*",
            "compile_topology*",
            "olmo_*",
            "cost_estimate_*",
            "enable_single_replica_ckpt_restoring",
            "profile_periodically_period",
            "*_calibration_method",
            "save_checkpoint_on_completion",
            "shardy",
            "kv_quant_*",
            "param_scan_axis",
            "max_segments_per_seq",
            "compiled_trainstep*",
            "tokenize_*",
            "data_shuffle*",
            "per_device_batch_size_*",
            "enable_single_controller",
            "dump_*",
            "reuse_example_batch",
            "load_*",
            "warmup_*",
            "adam_*",
            "cosine_*",
            "gcs_*",
            "metrics_file",
            "grain_*",
            "decode_*",
            "packing",
            "add_bos",
            "add_eos",
            "save_config_to_gcs",
            "skip_jax_distributed_system",
            "abort_on_*",
            "remat_policy_for_vit",
            "z_loss*",
            "gradient_clipping*",
            "model_call_mode",
            "num_epoch",
            "mlp_activations_limit",
            "normalization*",
            "rope_*",
            "decoder_block",
            "max_target_length_*",
            "sharding_tolerance",
            "override_model_config",
            "allow_split_physical_axes",
            "stack_trace*",
            "enable_data_shuffling",
            "opt_type",
            "xprof*",
            "scan_pipeline*",
        ),
        deciding={
            "hardware": ON_PROCESSORS,
            TIED: "whether the output shares the embedding's table, unlike the named model: memory",
            "logits_dot_in_fp32": "the precision of the output projection: time",
            **dict.fromkeys((*SIZES, "head_dim"), "a size that is not the named model's: memory and time"),
            **dict.fromkeys(
                ("fsdp_shard_on_exp", "shard_exp_on_fsdp", "use_2d_fsdp_sharding"),
                "which dimension of experts is shared out: communication",
            ),
            **dict.fromkeys(
                ("dq_reduction_steps", "use_max_logit_estimate", "use_custom_sort_vjp", "float32_weight_sum"),
                "kernels of attention and experts: time",
            ),
            "use_dpo": "another training loop than that of pre-training: time and memory",
            **dict.fromkeys(
                ("mlp_activations", "num_experts_per_tok", SCALE),
                "layers that are not the named model's: memory and time",
            ),
            "use_qwix_quantization": "which library rounds products: time",
            "use_random_routing": "how evenly experts are loaded: time",
            "*diloco*": "replicas that average now and then: communication and memory",
            "ici_*": "an axis of the mesh: memory and communication",
            "dcn_*": "an axis of the mesh: memory and communication",
            "remat_policy": "which products are kept, on the device or the host: memory and time",
            **dict.fromkeys(KEPT, "a tensor that is kept, on the device or the host: memory and time"),
            "use_tokamax*": "kernels of attention and experts: time",
            "w[io]_tile_*": "tiles of experts' products: time",
            "shard_optimizer_over_data": "states sharded over replicas: memory",
            "use_iota_embed": "how embeddings are looked up: time",
            "*_offload": "what waits on the host: memory and time",
            "mu_dtype": "the dtype of a moment: memory",
            "grad_dtype": "the dtype of gradients: memory and time of sums",
            "use_ring_of_experts": "how tokens reach experts: time",
            "sa_*": "tiles of attention: time",
            "custom_mesh*": "the order of the mesh: time",
            "quantize_kvcache": "attention in 8 bits: time",
            "pipeline_*": "how a pipeline gathers: time",
            "num_layers_per_pipeline_stage": "stages: bubbles of the pipeline",
            "fused_qkv": "products that are joined: time",
            "fused_mlp": "products that are joined: time",
            "engram*": "tables beside layers: memory",
        },
        off={
            "scan_layers": "layers are compiled one by one, not as a loop: memory, time and compile time",
            "sparse_matmul": "experts as dense products over masks of tokens: time and memory",
            "megablox": "kernels of experts: time",
        },
    ),
)
