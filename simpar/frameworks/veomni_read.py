"""VeOmni back to a plan: the YAML of its tasks, and commands that give one to ``tasks/train_text.py``.

Source: ByteDance-Seed/VeOmni d977449 (``veomni/arguments``, ``veomni/trainer/base.py``, ``distributed``), and 742f88f,
whose options have other names and no kernels of Liger: torch's FSDP2, Ulysses, and experts on ranks of their own.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from simpar.architectures.catalogue import config_of, load_model
from simpar.errors import UserError
from simpar.frameworks.data_sets import pack_documents
from simpar.frameworks.match import find_released
from simpar.frameworks.overrides import choice, command_of, flagged, is_config, laid_over, load_beside, mapping
from simpar.frameworks.overrides import reader_of as values_in
from simpar.frameworks.reader import Reader
from simpar.frameworks.recipes import ConfigReader, flat, nest_names
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.trainer_adapters import PROJECTIONS
from simpar.frameworks.trainer_read import low_states
from simpar.frameworks.trainer_towers import frozen_parts, has_tower
from simpar.frameworks.trainer_words import VISION
from simpar.frameworks.words import Assumed, ReadWords, WordTable
from simpar.plan.choices.tuning import Tuning

ACCELERATOR = "train.accelerator."
FSDP = f"{ACCELERATOR}fsdp_config."
OFFLOADED = f"{ACCELERATOR}offload.enable_activation"
EARLIER = {
    "train.data_parallel_mode": f"{FSDP}fsdp_mode", "train.enable_full_shard": f"{FSDP}reshard_after_forward",
    "train.enable_mixed_precision": f"{FSDP}mixed_precision.enable", "train.enable_fsdp_offload": f"{FSDP}offload",
    "train.enable_gradient_checkpointing": "train.gradient_checkpointing.enable",
    "train.enable_activation_offload": f"{ACCELERATOR}offload_config.enable_activation",
    "train.data_parallel_replicate_size": f"{ACCELERATOR}dp_replicate_size",
    "train.data_parallel_shard_size": f"{ACCELERATOR}dp_shard_size",
    "train.expert_parallel_size": f"{ACCELERATOR}ep_size", "train.ulysses_parallel_size": f"{ACCELERATOR}ulysses_size",
    "train.optimizer": "train.optimizer.type",
    "model.attn_implementation": "model.ops_implementation.attn_implementation",
    "model.moe_implementation": "model.ops_implementation.moe_implementation",
    OFFLOADED: f"{ACCELERATOR}offload_config.enable_activation",
}  # fmt: skip
"""Options of releases before 0.1.5, and a name in shipped configs, by those that the options have now."""
MODES, EARLIER_MODE = {"fsdp2": "fsdp", "fsdp1": "fsdp", "ddp": "ddp"}, "ddp"
KERNELS = {
    "eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash2", "flash_attention_3": "flash3",
    "flash_attention_4": "flash3",
}  # fmt: skip
OPTIMIZERS = {"adamw": "adamw", "muon": "muon"}
OPERATORS = {"norm": "rms_norm", "activation": "swiglu_mlp", "rope": "rotary_pos_emb"}
"""What may run as one kernel each, by its options (``OpsImplementationConfig``)."""
LIGER = "liger_kernel"
PIECES = {LIGER, "chunk_loss"}
"""Implementations of the loss that never store all logits."""
TEXTS = ("plaintext", "conversation")
SCRIPTS = ("train_text.py", "train_torch.py")
"""Its tasks on texts, the second that of earlier releases."""
UNSPREAD = ("tp_size", "pp_size", "cp_size")
"""Axes that VeOmni refuses to have more than one rank."""
FILE_CLASSES = 32


def read(text: str, name: str) -> Imported:
    """The plan in a config of VeOmni, or in a command with one. Raises UserError naming file, option and value."""
    data = mapping(text, name) if is_config(name) else _of_command(text, name)
    if not owns(data):
        raise UserError(f"{name}: no config of VeOmni: it has sections model, with model_path, data and train")
    given, is_earlier = _values(data, name)
    _refuse_others(given)
    axes = {axis: given.whole(f"{ACCELERATOR}{key}", -1) for axis, key in (
        ("ulysses", "ulysses_size"), ("ep", "ep_size"), ("hsdp", "dp_replicate_size"), ("shards", "dp_shard_size"),
    )}  # fmt: skip
    axes = {axis: size if size and size > 0 else None for axis, size in axes.items()}
    kind = choice(given, f"{FSDP}fsdp_mode", MODES, EARLIER_MODE if is_earlier else "fsdp")
    named = given.name_of("model.model_path") or given.name_of("model.config_path")
    model = find_released(named, name) if named else None
    kernel = choice(given, "model.ops_implementation.attn_implementation", KERNELS, "flash2")
    micro, batch = given.whole("train.micro_batch_size") or 1, given.whole("train.global_batch_size")
    training, assumed = _shape(given, batch)
    ep = axes["ep"] or 1
    values: dict[str, Any] = {
        "stack": "fsdp" if kind == "fsdp" else "ddp",
        "model": model,
        **({"ep": ep, "etp": 1} if ep > 1 else {}),
        **_sequence(axes["ulysses"] or 1),
        "zero": (3 if given.get(f"{FSDP}reshard_after_forward", True) is not False else 2) if kind == "fsdp" else 0,
        "micro_batch": micro,
        "recompute": "full" if given.get("train.gradient_checkpointing.enable", True) is not False else "none",
        "attention_kernel": kernel,
        "training": training,
        **_numerics(given, kind),
        **_execution(given, model, is_earlier=is_earlier),
        **_copies(axes, kind),
    }
    adapters = _adapters(given)
    if adapters and values["parameter_dtype"] is None and values["precision"] != "fp32":
        adapters["frozen_dtype"] = "fp32"  # as all parameters are
    if model and has_tower(model) and not adapters and given.get("train.freeze_vit"):
        values |= frozen_parts(
            [False, "omni" in str(config_of(model).get("model_type"))]
        )  # of which mergers are trained
    ask = "" if model else f"{named or 'The model'} is no shipped model and no local folder: give --model."
    words = given.words()
    notes = tuple(filter(None, (ask, *given.misspelt(WORDS))))
    return Imported(
        plan_said({**values, **adapters}), _spelt(words, data), notes,
        per_replica=None if batch else micro,
        asks={"model": ask} if ask else {}, assumed=assumed, expert_balance="tuned" if _is_tuned(given) else "loss",
    )  # fmt: skip


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of VeOmni."""
    model, train = data.get("model"), data.get("train")
    has_model = isinstance(model, Mapping) and bool({"model_path", "config_path"} & set(model))
    telling = {"accelerator", "micro_batch_size", "data_parallel_mode", "init_device"}
    return has_model and isinstance(train, Mapping) and bool(telling & set(train)) and "data" in data


def _values(data: Mapping[str, Any], name: str) -> tuple[Any, bool]:
    """The options by the names that they have now, and whether the file is of an earlier release."""
    values = flat(data)
    is_earlier = any(key in values for key in EARLIER if key != OFFLOADED)
    return values_in(nest_names({EARLIER.get(key, key): value for key, value in values.items()}), name), is_earlier


def _spelt(words: ReadWords, data: Mapping[str, Any]) -> ReadWords:
    """The words as the file spells them."""
    own = {now: then for then, now in EARLIER.items() if then in flat(data)}
    left = {own.get(word, word): value for word, value in words.unread.items()}
    return ReadWords(tuple(own.get(word, word) for word in words.used), left)


def _refuse_others(given: ConfigReader) -> None:
    """Raise UserError for axes that VeOmni has not, and for data that are no texts."""
    for axis in UNSPREAD:
        if (given.whole(f"{ACCELERATOR}{axis}") or 1) > 1:
            raise UserError(f"{given.source}: {ACCELERATOR}{axis}: allowed: 1, as VeOmni itself asks")
    kind = str(given.get("data.data_type") or TEXTS[1])
    if kind not in TEXTS:
        raise UserError(
            f"{given.source}: data.data_type = {kind}: allowed: {', '.join(TEXTS)}; others are not modelled"
        )


def _shape(given: ConfigReader, batch: int | None) -> tuple[dict[str, Any], tuple[Assumed, ...]]:
    """The shape of a step: documents are packed up to the tokens of a micro-batch, and attend to themselves only."""
    length = given.whole("data.max_seq_len") or 2048
    training: dict[str, Any] = {"seq_len": length} | ({"global_batch": batch} if batch else {})
    if given.get("data.data_type", TEXTS[1]) == TEXTS[0]:
        return training, ()
    if given.get("train.dyn_bsz", True) is False:
        why = "without packing sequences are as long as the data: the longest allowed"
        return training, (Assumed("seq_len", length, why, (length // 2, length // 4)),)
    training, assumed = pack_documents(training, [str(given.get("data.train_path") or "")])
    return training, (assumed,)


def _sequence(ulysses: int) -> dict[str, Any]:
    return {"cp": ulysses, "cp_method": "ulysses", "cp_balance": "contiguous"} if ulysses > 1 else {}


def _copies(axes: Mapping[str, int | None], kind: str) -> dict[str, Any]:
    """The copies of the shards (``_validate_accelerator``): one unless a size says more."""
    if kind != "fsdp":
        return {}
    copies, shards = axes["hsdp"], axes["shards"]
    return {"hsdp": copies or 1, **({"dp": copies * shards} if copies and shards else {})}


def _numerics(given: ConfigReader, kind: str) -> dict[str, Any]:
    """Parameters in fp32 that FSDP gathers in 16 bits, or all of it in bf16 where nothing is mixed."""
    optimizer = choice(given, "train.optimizer.type", OPTIMIZERS)
    if optimizer is None:
        given.used.discard("train.optimizer.type")
        optimizer = "adamw"
    away = "cpu" if given.get(f"{FSDP}offload") else "none"
    result: dict[str, Any] = {
        "optimizer": optimizer, "optimizer_kernels": "fused" if optimizer == "adamw" else None,
        "offload_optimizer": away, "offload_parameters": away,
    }  # fmt: skip
    mixed = f"{FSDP}mixed_precision."
    if given.get(f"{mixed}enable", True) is False:
        return {**result, "precision": "bf16", **low_states(optimizer)}
    halves = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    computed = choice(given, f"{mixed}param_dtype", halves, "bf16")
    reduced = choice(given, f"{mixed}reduce_dtype", halves, "fp32")
    return {
        **result,
        "parameter_dtype": None,
        "precision": computed,
        "reduce_dtype": reduced if kind == "fsdp" else None,
    }


def _execution(given: ConfigReader, model: str | None, *, is_earlier: bool) -> dict[str, Any]:
    """Fused operators and the loss, which are Liger's unless the file says otherwise; earlier releases had none."""
    usual = "eager" if is_earlier else LIGER
    keys = {name: f"model.ops_implementation.{each}_implementation" for name, each in OPERATORS.items()}
    fused = [name for name, key in keys.items() if given.get(key, usual) == LIGER]
    loss = given.get("model.ops_implementation.cross_entropy_loss_implementation", usual)
    result: dict[str, Any] = {"fused_kernels": "+".join(fused) or "none"}
    if given.get("train.torch_compile.enable"):
        result["fused_kernels"] = "compiled"
    if loss in PIECES:
        result["loss_chunks"] = _pieces(model)
    if given.get(f"{ACCELERATOR}offload_config.enable_activation"):
        result["offload_activations"] = 1.0
    if (steps := given.whole("train.empty_cache_steps", 0)) is not None:
        result["empty_cache_steps"] = steps or None
    return result


def _pieces(model: str | None) -> int:
    """Pieces of Liger's loss, with logits no larger than hidden states (``fused_linear_cross_entropy.py``)."""
    if model is None:
        return FILE_CLASSES
    dims = load_model(model).dims
    return 1 << (max(1, dims["vocab"] // dims["hidden"]).bit_length() - 1)


def _adapters(given: ConfigReader) -> dict[str, Any]:
    """Adapters of the projections that ``lora_config`` names; none where there is no section. Raises UserError."""
    section = "model.lora_config."
    if not any(key.startswith(section) for key in given):
        return {}
    rank = given.whole(f"{section}rank") or given.whole(f"{section}r") or 8
    named = given.get(f"{section}lora_modules") or given.get(f"{section}target_modules") or []
    words = [str(each).rpartition(".")[2].lower() for each in (named if isinstance(named, list) else [named])]
    own = {target for word in words for target in PROJECTIONS.get(word, ())}
    own |= set(Tuning().lora_targets) if "all-linear" in words else set()
    if any(word not in PROJECTIONS and word != "all-linear" for word in words):
        given.used.discard(f"{section}lora_modules")
    if not own:
        raise UserError(
            f"{given.source}: {section}lora_modules = {named}: allowed: {', '.join(Tuning().lora_targets)}, all-linear"
        )
    return {
        "lora_rank": rank, "lora_targets": tuple(each for each in Tuning().lora_targets if each in own),
        "lora_dropout": 0.0, "frozen_dtype": "bf16", "parameter_dtype": None, "master_weights": None,
        "grad_dtype": None, "moment_dtype": None,
    }  # fmt: skip


def _is_tuned(given: ConfigReader) -> bool:
    return bool(given.get("data.data_type", TEXTS[1]) == TEXTS[1])


def _place(words: Sequence[str]) -> int | None:
    """Where the script of texts stands in a command with a config; None if nowhere."""
    at = next((at for at, word in enumerate(words) if PurePath(word).name in SCRIPTS), None)
    return at if at is not None and any(is_config(word) for word in words[at + 1 :]) else None


def _starts(words: Sequence[str]) -> bool:
    at = _place(words)
    return at is not None and "tasks" in PurePath(words[at]).parts


def _of_command(text: str, name: str) -> dict[str, Any]:
    """The config that a command gives to its script, with its flags over it."""
    words = command_of(text, name, lambda words: _place(words) is not None)
    after = words[int(_place(words) or 0) + 1 :]
    return laid_over(load_beside(next(filter(is_config, after)), name), flagged(after))


WORDS = WordTable(
    idle=(
        "model.tokenizer_path", "model.safetensor_idx_path", "model.config_path", "model.basic_modules",
        "model.lora_config.alpha", "model.lora_config.lora_*",
        "model.lora_config.use_rslora", "model.input_encoder", "model.output_encoder", "data.*",
        "model.ops_implementation.rotary_pos_emb_vision_implementation",
        "model.ops_implementation.load_balancing_loss_implementation", "train.output_dir", "train.*wandb*", "train.lr*",
        "train.optimizer.*", "train.num_train_epochs", "train.max_steps", "train.seed", "train.checkpoint*",
        "train.bsz_warmup_*", "train.init_device", "train.enable_full_determinism", "train.gc_steps", "train.eval_*",
        "train.profile*", "train.enable_profiling", "train.ckpt_manager", "train.save_*", "train.load_*",
        "train.hf_save*", "train.use_wandb", "train.weight_decay", "train.max_grad_norm", "train.warmup*",
        "train.broadcast_model_weights_from_rank0", "train.enable_rank0_init", "train.ep_sharded_stream_load",
        "train.dyn_bsz_*", "train.enable_reentrant", "train.gradient_checkpointing.enable_reentrant",
        "train.gradient_checkpointing.debug", "train.gradient_checkpointing.early_stop", "train.use_doptim",
        "train.no_decay_*", "train.async_enabled", "train.dist_backend", "train.*forward_prefetch",
        f"{FSDP}max_load_broadcast_size", "train.moe_load_balance_monitor_interval", "train.channel_loss*",
        f"{ACCELERATOR}offload_config.activation_gpu_limit", "train.activation_gpu_limit", "train.drop_last",
        "train.sync_each_train_step", "train.rmpad*", "train.pad_to_length", "train.freeze_vit", "train.vit_lr",
        "train.torch_compile.*",
        "train.chunk_mbs_config.chunk_mbs",
    ),
    deciding={
        "model.model_config*": "sizes of the model: memory and time",
        "data.mm_configs*": VISION,
        **dict.fromkeys(("model.encoders*", "model.decoders*", "model.foundation*"), VISION),
        "model.ops_implementation.moe_implementation": "kernels of experts: time",
        "model.ops_implementation.*": "kernels and fused operators: time and memory",
        "train.optimizer.type": "states of other sizes: memory, and the time of the update",
        "train.optimizer": "states of other sizes: memory, and the time of the update",
        "train.optimizer.muon_head_group_size": "products of the update: time",
        "train.enable_batch_invariant_mode": "kernels: time",
        "train.chunk_mbs_config.enable": "pieces of a micro-batch: memory and time",
        f"{FSDP}mixed_precision.output_dtype": "the dtype of logits: memory",
        f"{ACCELERATOR}enable_async": "when the parts of sequences meet: time between devices",
        f"{ACCELERATOR}ep_outside": "on which ranks experts are: time between devices",
        f"{ACCELERATOR}extra_parallel_*": "which parameters are on ranks of their own: memory and time",
        "model.lora_config.share_expert_lora": "how many adapters experts have: memory and time",
        "model.lora_config.lora_modules": "adapters of other matrices than a layer's projections: memory",
        "model.lora_config.target_parameters": "which matrices have adapters: memory and time",
    },
    off={f"{FSDP}reshard_after_backward": "parameters stay gathered between microbatches: memory and time"},
)  # fmt: skip

READER = Reader(
    name="veomni",
    description="VeOmni: the YAML of its tasks on texts, and commands that give one to tasks/train_text.py",
    read=read,
    starts=_starts,
    owns=owns,
    words=WORDS,
    takes_files=True,
)
