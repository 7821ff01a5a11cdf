"""Launches of trainers on Hugging Face's back to a plan: their arguments, whatever names these have."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from simpar.architectures.catalogue import load_model
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks.match import find_released
from simpar.frameworks.predictions import as_transformers_has_it
from simpar.frameworks.ray_workers import replicas_of_ray
from simpar.frameworks.reader import ONE_PROCESS
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.target import LAUNCHER, PYTHON, Imported, Sized, plan_said
from simpar.frameworks.trainer_adapters import (
    ADAPTS,
    ALL_LINEAR,
    BITS,
    IN_EIGHT,
    IN_FOUR,
    KINDS,
    PARAMETERS,
    TARGETS,
    USUAL_DROPOUT,
    USUAL_TARGETS,
    WORD,
    adapts_experts,
    assume_qlora,
    assumed_targets,
    kind_of,
    refuse_frozen_decoder,
    refuse_unknown_adapters,
    take_beside_adapters,
    targets_of,
)
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand, words_of
from simpar.frameworks.trainer_options import CHECKPOINTING, is_of_checkpoint, offloads_checkpoints, take_model_options
from simpar.frameworks.trainer_shape import BATCH, MICRO_BATCH, length_of, micro_batch_of, shape_of
from simpar.frameworks.trainer_sharding import OF_NODES, SHARD_RANKS, Filled, Sharding, context_of, sharding_of
from simpar.frameworks.trainer_towers import frozen_parts, switches_of_tower, word_of_tower
from simpar.frameworks.trainer_words import WORDS
from simpar.frameworks.trainers import ADAM, ATTENTION, FLASH_ATTN, LIGER, OPTIMIZERS
from simpar.frameworks.words import MODEL, Assumed, ReadWords
from simpar.plan.choices.tuning import Tuning
from simpar.plan.optimizers import DEFAULT_OPTIMIZER, IN_LIBRARIES
from simpar.precisions import LONG_NAMES

DROPOUT = ("lora_dropout", "lora_dropout_p", "lora_droppout", "peft_config.lora_dropout", "peft_lora_dropout")
OF_INTERN_VL = "use_llm_lora"  # 0 for none
RANK = ("lora_r", "lora_rank", "r", "lora_dim", "peft_lora_r", OF_INTERN_VL)
DTYPE = ("dtype", "torch_dtype", "model_dtype")
IN_ITS_NAME = re.compile(r"bnb[-_]?4bit|awq|gptq|int[48]|aqlm|hqq", re.IGNORECASE)
"""What the name of a model says of the bits that its weights are stored in."""
EIGHT_IN_ITS_NAME = re.compile(r"(int|w)8(?!\d)|8[-_]?bit", re.IGNORECASE)
DTYPES = LONG_NAMES | {name: name for name in LONG_NAMES.values()} | {"half": "fp16", "float": "fp32"}
OPTIMIZER_OF = {theirs: ours for ours, theirs in OPTIMIZERS.items()} | {
    "adamw_hf": "adamw", "adamw": "adamw", "adam": "adamw", "adamw_torch_fused": "adamw", "adamw_apex_fused": "adamw",
    "adamw_torch_xla": "adamw", "adamw_torch_npu_fused": "adamw", "adamw_8bit": "adamw_8bit",
    "adamw_torch_8bit": "adamw_8bit", "paged_adamw": "paged_adamw", "lion": "lion", "paged_lion_32bit": "lion",
    "paged_lion_8bit": "lion_8bit", **IN_LIBRARIES, "muon": "muon", "stable_adamw": "adamw",
    "schedule_free_adamw": "adamw",
}  # fmt: skip
"""Optimizers by their names (transformers, ``OptimizerNames``); the table of words has those with other states."""
FUSED_UPDATES = ("adamw_torch_fused", "adamw_apex_fused", "adamw_torch_npu_fused")
KERNEL_OF = {theirs: ours for ours, theirs in (*ATTENTION.items(), *FLASH_ATTN.items())} | {
    "kernels-community/flash-attn2": "flash2", "kernels-community/flash-attn": "flash2", "auto": "sdpa",
    "kernels-community/flash-attn3": "flash3", "kernels-community/vllm-flash-attn3": "flash3", "fa": "flash2",
    "flash_attention": "flash2", "flash_attn": "flash2", "flash_attention_4": "flash3",
}  # fmt: skip
FLASH_SWITCHES = ("use_flash_attention_2", "use_flash_attn", "flash_attention", "use_flash_attention",
                  "use_flash_attn_2")  # fmt: skip
PLUGINS = {"LigerPlugin", "CutCrossEntropyPlugin", "SwanLabPlugin"}
"""Plugins of Axolotl whose options say all that they change."""
BLOCKS = 64
"""Pieces of a loss whose logits are never stored (cut cross entropy)."""
LEFT_OPEN = (2, 4)
"""Parts of the longest sequence that data may be: padded to the longest of a micro-batch."""


@dataclass(frozen=True)
class Adapters:
    """Adapters where a trainer is not told more: their rank, targets and dropout, and the weights beside them.

    These have ``bits``, and are loaded in the dtype ``frozen``: "fp32", or "low" for that of the products, whose
    ``precision`` is the trainer's if it is None.
    """

    rank: int = 8
    targets: tuple[str, ...] = USUAL_TARGETS
    bits: int | None = None
    frozen: str = "low"
    precision: str | None = None
    dropout: float | None = None


@dataclass(frozen=True)
class Habits:
    """What a trainer does where its arguments say nothing.

    ``states`` is the dtype of the parameters that the optimizer updates: "fp32", "low" for that of the products, or ""
    if the script decides it. ``attention`` is "" if the script decides. ``presets`` are DeepSpeed configs that the
    trainer has by name. ``of_towers`` are switches, on by default, that leave a tower and its projector as they are.
    """

    name: str
    precision: str = "fp32"
    recompute: bool = False
    length: int | None = None
    states: str = ""
    attention: str = ""
    adapters: Adapters = Adapters()
    told: Mapping[str, str] = field(default_factory=dict)
    micro_batch: int = 8  # transformers, training_args.py
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    of_towers: tuple[str, ...] = ()


def plan_of(given: TrainerArguments, habits: Habits, command: TrainerCommand | None = None) -> Imported:
    """The plan in the arguments of a trainer. Raises UserError naming file, option and value."""
    take_model_options(given)
    model, named = _model(given)
    micro, of_batch = micro_batch_of(given, habits.micro_batch, WORDS)
    accumulation = given.number("gradient_accumulation_steps") or 1
    names = (given.source, *(() if command is None else (command.script, *command.configs)))
    of_name = () if habits.states else assume_qlora(given, names)
    adapters = _adapters(given, habits, model)
    precision = _precision(given, habits, adapts="lora_rank" in adapters)
    sharding = sharding_of(given, command, Filled(micro, accumulation, precision, model), habits.presets)
    precision = sharding.values.get("precision", precision)
    values = {
        "model": model,
        "micro_batch": micro,
        "precision": precision,
        "zero": 0,
        "dp": None,
        "recompute": "full" if _recomputes(given, habits) else "none",
        **_optimizer(given),
        **_kernels(given, model),
        **adapters,
    }
    kernel = values.get("attention_kernel") or habits.attention
    pairs = model is not None and "buckets" in load_model(model).dims  # T5's: source and target apart
    usual = length_of(given, habits.length, pairs=pairs)
    training, of_data = shape_of(given, usual, kernel, joins=habits.name == "llama-factory")
    values["training"] = training
    values |= context_of(given) | {key: value for key, value in sharding.values.items() if value is not None}
    if values.get("recompute") == "none" and sharding.values.get("recompute") == "none" and _recomputes(given, habits):
        values["recompute"] = "full"
    values |= _states(given, habits, values, sharding)
    if values["precision"] != "fp32":
        given.on("tf32", "enable_tf32")  # of products in fp32
    if values.get("frozen_dtype") == "fp32" and (sharding.is_deepspeed or values["precision"] == "fp32"):
        values["frozen_dtype"] = "bf16"  # that of products, in which DeepSpeed's parameters are
    if _is_started_alone(command) and values.get("stack") in (None, "huggingface"):
        values["dp"] = 1
    values |= replicas_of_ray(given, habits.name, command, values)
    stack = values.setdefault("stack", "ddp")
    assumed = *sharding.assumed, *_assumed(given, habits, values, sharding, command), *of_data, *of_batch, *of_name
    of_experts = adapts_experts(model, values) and habits.name != "unsloth"  # which has kernels of its own
    if of_experts:
        said = str(given.one(*TARGETS) or "all").lower() not in ALL_LINEAR
        assumed = *assumed, *assumed_targets(habits.name, values["lora_targets"], said=said)
    if values["precision"] == "bf16" and not (_says_precision(given) or "precision" in sharding.values):
        values["precision"] = None  # which 16 bits is left to the device
    of_tower = switches_of_tower(given, habits.of_towers, model)
    values |= {} if "lora_rank" in adapters else frozen_parts(of_tower)
    words_beside = word_of_tower(of_tower) if "lora_rank" in adapters else ReadWords()
    note, of_one = "" if model else _no_model(named), "huggingface" if stack == "ddp" else ""
    shard_ranks, of_nodes = values.pop(SHARD_RANKS, None), bool(values.pop(OF_NODES, False))
    result = Imported(
        plan_said(values),
        given.words() + sharding.words + words_beside + ReadWords((), {WORD: True} if of_experts else {}),
        tuple(filter(None, (note, *sharding.notes, *_notes(given, habits, command)))),
        per_replica=None if training and "global_batch" in training else micro * accumulation,
        asks={"model": note} if note else {},
        assumed=assumed,
        expert_balance="loss" if given.told("stage") == "pt" else "tuned",
        sized=Sized(of_one, shard_ranks, _alone(command, sharding), of_nodes),
    )
    return as_transformers_has_it(result)


def _alone(command: TrainerCommand | None, sharding: Sharding) -> str:
    """What starts one process alone; "" where nothing says so."""
    return LAUNCHER if sharding.starts_one else PYTHON if _is_started_alone(command) else ""


def _model(given: TrainerArguments) -> tuple[str | None, str]:
    """The model, and the name that the text gives it."""
    named = given.told(*MODEL) or next(filter(None, map(given.get, MODEL)), None)  # its folder may be a variable's
    if not isinstance(named, str):
        return None, ""
    return find_released(named, given.source), named


def _no_model(named: str) -> str:
    if not named:
        return "The arguments name no model: give --model."
    if UNKNOWN.search(named.rpartition("/")[2]):
        return f"The model is {named}, which the text does not say: give --model."
    return f"{named} is no shipped model, no local folder and not in the hub's local cache: give --model."


IN_INT8 = "Products beside weights in 8 bits are timed as those of 16 behind a pass that widens weights (LLM.int8)."
HALVES = (("bf16", "pure_bf16", "bfloat16"), ("fp16", "float16"))


def _precision(given: TrainerArguments, habits: Habits, *, adapts: bool) -> str:
    """The precision of products: mixed, or that of the parameters where all is low."""
    bf16, fp16 = (given.on_any(*names) for names in HALVES)
    mixed = given.one("mixed_precision")
    if mixed in ("bf16", "fp16"):
        return str(mixed)
    dtype = _loaded(given)
    if given.get("bf16") == "auto":  # Axolotl: where the device has it, and nothing else is asked for
        bf16 = not fp16
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    untold = bf16 is None and fp16 is None
    if untold and dtype in ("bf16", "fp16"):
        return dtype
    if untold and given.on(*IN_FOUR, *IN_EIGHT):
        return "bf16"  # what 4 bits are widened to
    if untold and adapts and habits.adapters.precision:
        return habits.adapters.precision
    return "fp32" if bf16 is False else habits.precision


def _says_precision(given: TrainerArguments) -> bool:
    """Whether the arguments say a precision, or a dtype of weights."""
    names = (*HALVES[0], *HALVES[1], "mixed_precision", *DTYPE, *IN_FOUR, *IN_EIGHT)
    return any(given.values_.get(name) not in (None, "auto") for name in names)


def _recomputes(given: TrainerArguments, habits: Habits) -> bool:
    if given.on("disable_gradient_checkpointing"):
        return False
    return bool(given.on("use_unsloth_gc")) or _first(given.on(*CHECKPOINTING), habits.recompute)


def _first(told: bool | None, usual: bool) -> bool:
    return usual if told is None else told


def _optimizer(given: TrainerArguments) -> dict[str, Any]:
    """The optimizer; a name whose states have other sizes is left to the table of words."""
    name = str(given.one("optim", "optimizer") or ADAM[None]).lower().removeprefix("optimizernames.").split(".")[-1]
    name = "muon" if str(given.get("use_muon")).lower() == "true" else name  # LLaMA-Factory's
    name = "adafactor" if given.on("adafactor") else name  # of transformers 4
    ours = OPTIMIZER_OF.get(name)
    if ours is None or (ours == "galore" and "rank" in str(given.told("optim_args") or "")):  # its own is modelled
        given.leave("optim", "optimizer")
    return {"optimizer": ours or DEFAULT_OPTIMIZER, "optimizer_kernels": "fused" if name in FUSED_UPDATES else None}


def _kernels(given: TrainerArguments, model: str | None) -> dict[str, Any]:
    """Kernels of attention, of fused operators, and pieces of the loss."""
    result: dict[str, Any] = {}
    attention = given.one("attn_implementation", "attn_impl", "flash_attn", "attention_implementation")
    if attention is not None:
        kernel = KERNEL_OF.get(
            str(attention).lower(), "flash2" if attention is True else "sdpa" if attention is False else None
        )
        if kernel is None:
            given.leave("attn_implementation", "attn_impl", "flash_attn", "attention_implementation")
        result["attention_kernel"] = kernel
    elif given.on(*FLASH_SWITCHES):
        result["attention_kernel"] = "flash2"
    elif (off := given.on("disable_flash_attn2")) is not None:
        result["attention_kernel"] = "sdpa" if off else "flash2"
    elif given.on("eager_attention"):
        result["attention_kernel"] = "eager"
    elif given.on("sdp_attention"):
        result["attention_kernel"] = "sdpa"
    plugins = {word.rpartition(".")[2] for word in words_of(given.one("plugins") or [])}
    if plugins - PLUGINS:
        given.leave("plugins")
    if "CutCrossEntropyPlugin" in plugins and given.on("cut_cross_entropy") is not False:
        result["loss_chunks"] = BLOCKS
    is_liger = given.on("use_liger_kernel", "enable_liger_kernel", "use_liger")
    if given.on_any("torch_compile", "torch_compile_backend", "torch_compile_mode"):  # each of the others turns it on
        result["fused_kernels"] = "compiled"
        if is_liger:
            result["loss_chunks"] = _liger(given, model)["loss_chunks"]
    elif is_liger:
        result |= _liger(given, model)
    elif axolotl := {ours for ours, keys in _AXOLOTL_LIGER.items() if given.on(*keys)}:
        result["fused_kernels"] = "+".join(name for name in LIGER if name in axolotl)
    if given.on("liger_fused_linear_cross_entropy"):
        result["loss_chunks"] = _pieces(model)
    if given.on("chunked_cross_entropy"):
        result["loss_chunks"] = given.number("chunked_cross_entropy_num_chunks") or 8
    if (steps := given.number("torch_empty_cache_steps")) is not None:
        result["empty_cache_steps"] = steps
    kept_away = offloads_checkpoints(given) or str(given.one(*CHECKPOINTING)).lower() in ("offload", "unsloth")
    if kept_away or given.on("activation_offloading"):
        result["offload_activations"] = 1.0
    return result


_AXOLOTL_LIGER = {"norm": ("liger_rms_norm",), "activation": ("liger_glu_activation", "liger_swiglu"),
                  "rope": ("liger_rope",), "loss": ("liger_cross_entropy",)}  # fmt: skip
"""The second name of an activation is that of Axolotl before 0.5."""


def _liger(given: TrainerArguments, model: str | None) -> dict[str, Any]:
    """Liger's kernels: all, and the loss with the output projection in pieces, unless its config says otherwise."""
    config = given.one("liger_kernel_config")
    if not isinstance(config, dict):
        config = {
            key: given.one(f"liger_kernel_config.{key}") for key in (*LIGER.values(), "fused_linear_cross_entropy")
        }
    config = {key: value for key, value in config.items() if value is not None}
    parts = [ours for ours, theirs in LIGER.items() if config.get(theirs, theirs != LIGER["loss"])]
    whole = config.get("fused_linear_cross_entropy", not config.get(LIGER["loss"]))
    return {"fused_kernels": "+".join([*parts]) or "none", "loss_chunks": _pieces(model) if whole else None}


def _pieces(model: str | None) -> int:
    """Pieces of Liger's loss, with logits no larger than hidden states (``fused_linear_cross_entropy.py``)."""
    if model is None:
        return 32
    dims = load_model(model).dims
    return 1 << (max(1, dims["vocab"] // dims["hidden"]).bit_length() - 1)


def _adapters(given: TrainerArguments, habits: Habits, model: str | None) -> dict[str, Any]:
    """What is trained: adapters, the last layers, or all parameters."""
    kind = kind_of(given)
    rank = given.number(*(RANK if given.on(OF_INTERN_VL) is not False else RANK[:-1]))
    bits = given.number(*BITS) or habits.adapters.bits
    packed = _packed(given)  # bits of the checkpoint itself
    four = given.on(*IN_FOUR) or bits == 4 or kind == "qlora" or packed == 4
    eight = given.on(*IN_EIGHT) or bits == 8 or packed == 8
    if packed == 8:
        given.leave(*MODEL)
    if bits not in (None, 4, 8, 16, 32):
        given.leave(*BITS)
    trains_all = kind == "full" or given.on("full_finetune", "full_finetuning")
    if (eight or (four and habits.name != "unsloth")) and (trains_all or kind == "freeze"):  # which nothing does
        given.leave(*IN_FOUR, *IN_EIGHT, *BITS)
    if kind == "freeze":
        return _last_layers(given, model)
    uses = given.on(*ADAPTS)
    parameters = words_of(given.one(*PARAMETERS) or [])
    open_ = not kind and uses is None and (rank is not None or bool(parameters))
    adapts = _first(uses, kind not in ("full", "none", "") or open_)
    if trains_all or (not adapts and not (four or eight)):
        if not (trains_all or uses is False or kind):
            refuse_unknown_adapters(given, WORDS)
        refuse_frozen_decoder(given)
        given.rate(*DROPOUT)  # without effect
        take_beside_adapters(given, adapts=False)
        return {}
    if kind not in (*KINDS, ""):
        raise UserError(f"{given.source}: adapters of kind {kind}: allowed: lora, qlora, full, freeze")
    take_beside_adapters(given, adapts=True)
    return {
        "lora_rank": rank or habits.adapters.rank,
        "lora_targets": targets_of(given, habits.adapters.targets, parameters),
        "lora_dropout": given.rate(*DROPOUT, usual=habits.adapters.dropout),
        "frozen_dtype": "nf4" if four else "int8" if eight and packed != 8 else _loaded_as(given, habits),
    }


def _packed(given: TrainerArguments) -> int | None:
    """The bits in which a checkpoint stores weights, by the model's name; None if it says none."""
    named = str(given.told(*MODEL) or "")
    eight = EIGHT_IN_ITS_NAME.search(named) is not None
    return (8 if eight else 4) if IN_ITS_NAME.search(named) else None


def _loaded_as(given: TrainerArguments, habits: Habits) -> str:
    """The dtype in which frozen weights are loaded."""
    wide = habits.adapters.frozen == "fp32" if given.one(*DTYPE) in (None, "") else _loaded(given) == "fp32"
    return "fp32" if wide else "bf16"


def _last_layers(given: TrainerArguments, model: str | None) -> dict[str, Any]:
    trained = given.number("freeze_trainable_layers") or 2  # LLaMA-Factory, finetuning_args.py
    layers = len(load_model(model).layers) if model else trained
    return {"frozen_layers": max(0, layers - trained)}


def _states(given: TrainerArguments, habits: Habits, values: Mapping[str, Any], sharding: Sharding) -> dict[str, Any]:
    """The dtype of what the optimizer updates. DeepSpeed and mixed precision of FSDP keep fp32."""
    low = values["precision"] in ("bf16", "fp16")
    if not low or sharding.is_deepspeed or values.get("lora_rank"):
        return {}
    if given.on("pure_bf16") or (not _is_mixed(given) and _loads_low(given)):
        return low_states(values["optimizer"])
    if habits.states == "low" or _loads_low(given):
        kept = {"master_weights": False} if habits.states == "low" else {}
        return kept if sharding.shards_parameters else low_states(values["optimizer"])
    return {}


def low_states(optimizer: str) -> dict[str, Any]:
    """Choices of a plan whose parameters are bf16 alone: so are gradients, and the moments of torch's AdamW."""
    moments = {"moment_dtype": "bf16"} if optimizer == DEFAULT_OPTIMIZER else {}
    return {"parameter_dtype": "bf16", "master_weights": False, "grad_dtype": "bf16", **moments}


def _is_mixed(given: TrainerArguments) -> bool:
    return bool(given.on("bf16", "fp16")) or given.get("mixed_precision") in ("bf16", "fp16")


def _loads_low(given: TrainerArguments) -> bool:
    return _loaded(given) in ("bf16", "fp16")


def _loaded(given: TrainerArguments) -> str | None:
    """The dtype in which weights are loaded; None if the arguments say none that is known."""
    told = str(given.one(*DTYPE)).removeprefix("torch.").lower()
    return "bf16" if is_of_checkpoint(given, told) else DTYPES.get(told)


def _is_started_alone(command: TrainerCommand | None) -> bool:
    """Whether Python itself starts the script, without a launcher, and nobody tells it that it is one of several."""
    if command is None or command.environment.get("WORLD_SIZE"):
        return False
    return not command.launched_by and command.script.endswith(".py")


def _notes(given: TrainerArguments, habits: Habits, command: TrainerCommand | None) -> Iterator[str]:
    if _is_started_alone(command):
        yield ONE_PROCESS
    if given.number(*MICRO_BATCH, BATCH) is None:
        own = habits.name if habits.micro_batch != Habits.micro_batch else "transformers"
        yield f"The micro-batch is the default of {own}: {habits.micro_batch}."
    if given.on(*IN_EIGHT) or given.number(*BITS) == 8:
        yield IN_INT8
    yield from given.misspelt(WORDS)


def _assumed(
    given: TrainerArguments,
    habits: Habits,
    values: Mapping[str, Any],
    sharding: Sharding,
    command: TrainerCommand | None,
) -> Iterator[Assumed]:
    """What the arguments leave open."""
    length = (values.get("training") or {}).get("seq_len")
    packs = given.on(
        "packing", "sample_packing", "neat_packing", "pad_to_sequence_len", "pad_to_max_length", "group_texts"
    )
    cuts = command is not None and re.search("run_[cm]lm", command.script) is not None
    joins = (cuts or (command is not None and "disable_group_texts" in given)) and not given.on("line_by_line")
    if given.one("block_size", "max_seq_length") is not None and joins and not given.on("disable_group_texts"):
        packs = True  # run_clm.py and LMFlow join texts and cut blocks
    others = tuple(length // part for part in LEFT_OPEN if length // part) if length else ()
    if length and cuts and joins and given.one("block_size", "max_seq_length") is None:
        yield Assumed(
            "seq_len", length, "texts are joined and cut in blocks of what the tokenizer allows, or this", others
        )
    elif length and not packs:
        yield Assumed(
            "seq_len", length, "without packing sequences are as long as the data: the longest allowed", others
        )
    if not values.get("attention_kernel") and not habits.attention:
        yield Assumed(
            "attention_kernel", "sdpa", "what transformers takes unless the script asks otherwise", ("eager",)
        )
    adapts = bool(values.get("lora_rank"))
    if adapts and _packed(given) == 4 and "bnb" not in str(given.told(*MODEL)).lower():
        why = "the model's name says 4 bits and a scale for a group: of about its size, and kernels may be slower"
        yield Assumed("frozen_dtype", "nf4", why)
    if not habits.states and values["precision"] == "fp32" and not _says_precision(given):
        why = "no bf16, fp16 or dtype is asked for: fp32 unless the script sets it"
        yield Assumed("precision", "fp32", why, ("bf16",))
    if adapts and not habits.states and habits.adapters.targets == USUAL_TARGETS:  # others are the script's own
        yield from _assumed_adapters(given, values, sharding)
    is_open = not habits.states and _loaded(given) is None and not adapts
    sharded = sharding.is_deepspeed or sharding.shards_parameters
    if is_open and values["precision"] in ("bf16", "fp16") and not sharded:
        why = "the script says in which dtype weights are loaded: fp32 where it says none"
        yield Assumed("parameter_dtype", "fp32", why, ("bf16",), {"bf16": low_states(values["optimizer"])})
    if not adapts and not sharded and is_of_checkpoint(given, str(given.one(*DTYPE)).lower()):
        yield Assumed("parameter_dtype", "bf16", "auto is the dtype of the checkpoint, 16 bits of nearly all")
    for key, why in habits.told.items():
        if key == "recompute" and given.on(*CHECKPOINTING) is None:
            yield Assumed(key, values["recompute"], why, ("none" if values["recompute"] == "full" else "full",))


def _assumed_adapters(given: TrainerArguments, values: Mapping[str, Any], sharding: Sharding) -> Iterator[Assumed]:
    """What a script's own defaults may say of its adapters."""
    if given.number(*RANK) is None:
        yield Assumed("lora_rank", values["lora_rank"], "the script's own; PEFT's is 8", (8, 16, 64))
    if values["lora_dropout"] is None:
        yield Assumed("lora_dropout", USUAL_DROPOUT, "the script's own; PEFT's is 0", (0.0,))
    if given.one(*TARGETS) in (None, False) and not given.number("lora_dim"):
        yield Assumed("lora_targets", values["lora_targets"], "the script's own; PEFT's of most families",
                      (Tuning().lora_targets,))  # fmt: skip
    is_low = values["precision"] in ("bf16", "fp16") and values["frozen_dtype"] == "bf16"
    if is_low and given.one(*DTYPE) is None and not sharding.is_deepspeed:
        why = "the script says in which dtype weights are loaded; transformers 5 takes the checkpoint's, earlier fp32"
        yield Assumed("frozen_dtype", "bf16", why, ("fp32",))
