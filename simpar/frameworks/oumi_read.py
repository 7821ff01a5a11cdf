"""Oumi back to a plan: the YAML of ``oumi train``, and commands that give it one.

Source: oumi-ai/oumi d8ed077 (``core/configs``, ``train.py``, ``builders/models.py``, ``core/distributed.py``): it
trains by TRL's SFTTrainer, by transformers' Trainer or by a loop of its own, with Accelerate's FSDP or DeepSpeed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.overrides import assigned, flagged, is_config, laid_over, load_beside, mapping
from simpar.frameworks.reader import Reader, value_of, why_refused
from simpar.frameworks.recipes import flat
from simpar.frameworks.references import resolved
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.shipped_configs import of_deepspeed
from simpar.frameworks.target import Imported
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand
from simpar.frameworks.trainer_read import DTYPES, Adapters, Habits, plan_of
from simpar.frameworks.trainer_words import PREFERENCE, VISION, WORDS
from simpar.frameworks.words import ReadWords, WordTable, is_off

PROGRAM, STARTED = "oumi", "train"
OF_TRAINER = {
    "model.model_name": "model_name_or_path", "model.model_max_length": "max_length",
    "model.torch_dtype_str": "torch_dtype", "model.attn_implementation": "attn_implementation",
    "model.enable_liger_kernel": "use_liger_kernel", "data.train.pack": "group_texts",
    "training.enable_gradient_checkpointing": "gradient_checkpointing", "training.optimizer": "optim",
    "training.compile": "torch_compile", "training.empty_device_cache_steps": "torch_empty_cache_steps",
    "fsdp.mixed_precision": "mixed_precision",
}  # fmt: skip
"""Its options, by the names that arguments of trainers have."""
AS_THEY_ARE = ("training.trainer_kwargs.", "training.")
"""Sections whose other options have the trainers' names (``TrainingParams.to_hf``)."""
OF_PEFT = "peft."
TRAINERS, USUAL_TRAINER = ("trl_sft", "hf", "oumi"), "hf"
"""What trains on the next token (``TrainerType``)."""
HALVES = {"bf16": "bf16", "fp16": "fp16"}
NARROW = {**DTYPES, "bf16": "bf16", "f16": "fp16", "f32": "fp32"}
STAGES = ("0", "1", "2", "3")
USUAL_BITS, USUAL_COMPUTED = 4, "float32"
"""``q_lora_bits`` and ``bnb_4bit_compute_dtype`` where nothing is said (``PeftParams``)."""
COMPUTED = "peft.bnb_4bit_compute_dtype"
QUANTISED, WIDENED = "model.model_kwargs.quantization_config.quant_method", "mxfp4"
"""How a checkpoint is stored, and the way of it that is widened to the dtype of the model (``builders/models.py``)."""
STRATEGY = "fsdp.sharding_strategy"
COLLATOR = "data.train.collator_name"
TRL_LENGTH = 1024
HABITS = Habits("oumi", precision="bf16", states="low", attention="sdpa", adapters=Adapters(dropout=0.0))
"""Weights in the dtype of the model's config (bf16 of nearly all), and products in it, unless these are mixed."""
IN_FP32 = replace(HABITS, precision="fp32", states="fp32", adapters=replace(HABITS.adapters, frozen="fp32"))
ALONE = "oumi train is one process: one device (several visible ones would share out the layers, device_map: auto)."


def read(text: str, name: str) -> Imported:
    """The plan in a config of Oumi, or in a command with one. Raises UserError naming file, option and value."""
    if is_config(name):
        return _plan(mapping(text, name), name, None)
    script = script_of(text, name)
    own = [each for each in zip(script.commands, script.environments, strict=True) if _starts(each[0])]
    words, environment = next((each for each in own if _trains(each[0])), own[0] if own else ([], {}))
    at = _place(words)
    file = None if at is None else value_of(words[at:], ("-c", "--config"))
    if at is None or file is None:
        told = " ".join(words[:3]) if words else "no command of Oumi"
        raise UserError(f"{name}: {told}: allowed: oumi train -c FILE; of oumi launch, the job's file")
    data = load_beside(file.removeprefix("oumi://"), name)
    data = laid_over(data, {**assigned(words[at:]), **flagged(words[at:])})
    command = TrainerCommand(tuple(words[: at - 1]), PROGRAM, environment=environment)
    return _plan(data, name, command)


def owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a config of Oumi's training."""
    model = data.get("model")
    return isinstance(model, Mapping) and "model_name" in model and isinstance(data.get("training"), Mapping)


def _plan(data: Mapping[str, Any], name: str, command: TrainerCommand | None) -> Imported:
    if not owns(data):
        raise UserError(f"{name}: no config of Oumi: it has sections model, with model_name, and training")
    given = _arguments(resolved(flat(data)), name)
    trainer = str(given.one("trainer_type") or USUAL_TRAINER).lower()
    if trainer not in TRAINERS:
        raise given.refused("trainer_type", f"{', '.join(TRAINERS)}; {why_refused(trainer)}")
    mixed = HALVES.get(str(given.one("mixed_precision_dtype") or "none").lower())
    if mixed:
        given.suppose(**{mixed: True})
    _shard(given)
    left = dict(_adapt(given))
    if given.values_.get(QUANTISED) == WIDENED:
        given.used.add(QUANTISED)
    wide = NARROW.get(str(given.one("torch_dtype")).lower()) == "fp32"
    habits = IN_FP32 if wide else HABITS
    result = plan_of(given, replace(habits, length=TRL_LENGTH if trainer == "trl_sft" else None), command)
    words = result.words + ReadWords((), left)
    notes = result.notes if command is None or command.launched_by else (*result.notes, ALONE)
    return replace(result, words=_without_towers(words), notes=notes, written_as="")


def _arguments(values: Mapping[str, Any], name: str) -> TrainerArguments:
    """The options by the trainers' names, where these have one."""
    named: dict[str, str] = {}
    adapts = not is_off(values.get("training.use_peft", False))
    for key in values:
        section = next((each for each in AS_THEY_ARE if key.startswith(each)), "")
        plainly = key.removeprefix(OF_PEFT) if adapts and key.startswith(OF_PEFT) else key
        named[key] = OF_TRAINER.get(key, key.removeprefix(section) if section else plainly)
    given = {ours: values[theirs] for theirs, ours in named.items()}
    sets = values.get("data.train.datasets")
    result = TrainerArguments(given, name, {ours: theirs for theirs, ours in named.items()})
    listed = [each["dataset_name"] for each in sets or () if isinstance(each, dict) and "dataset_name" in each]
    result.suppose(**({"dataset_name": listed} if listed else {}))
    return result


def _adapt(given: TrainerArguments) -> Iterator[tuple[str, Any]]:
    """Put in the bits of frozen weights; yields words that decide. Raises UserError."""
    if not given.on("use_peft"):  # then its section has no effect
        given.used |= {key for key in given if key.startswith(OF_PEFT)}
    if not given.on("use_peft") or not given.on("q_lora"):
        return
    bits = given.number("q_lora_bits") or USUAL_BITS
    if bits not in (4, 8):
        raise given.refused("q_lora_bits", "4, 8")
    given.values_.pop("q_lora")
    given.suppose(**{f"load_in_{bits}bit": True})
    computed = given.one("bnb_4bit_compute_dtype") or USUAL_COMPUTED
    if bits == USUAL_BITS and NARROW.get(str(computed).lower()) == "fp32":
        yield COMPUTED, computed


def _shard(given: TrainerArguments) -> None:
    """Put in FSDP of Accelerate, or the config of DeepSpeed. Raises UserError."""
    if given.on("fsdp.enable_fsdp"):
        strategy = str(given.one(STRATEGY) or "FULL_SHARD").lower()
        wraps = str(given.one("fsdp.auto_wrap_policy") or "NO_WRAP").upper() != "NO_WRAP"
        told = [strategy]
        told += ["auto_wrap"] * wraps + ["offload"] * bool(given.on("fsdp.cpu_offload"))
        checkpoints = bool(given.on("gradient_checkpointing"))
        given.suppose(fsdp=" ".join(told), fsdp_config={"activation_checkpointing": checkpoints})
    if given.on("deepspeed.enable_deepspeed"):
        given.suppose(deepspeed=given.one("deepspeed.deepspeed_config_path") or _deepspeed(given))


def _deepspeed(given: TrainerArguments) -> dict[str, Any]:
    """The config that the section of DeepSpeed gives (``DeepSpeedParams.to_deepspeed``). Raises UserError."""
    stage = str(given.one("deepspeed.zero_stage") or "0").upper().removeprefix("ZERO_")
    if stage not in STAGES:
        raise given.refused("deepspeed.zero_stage", ", ".join(f"ZERO_{each}" for each in STAGES))
    homes = {f"offload_{what}": home for what in ("optimizer", "param")
             if (home := _home(given, f"deepspeed.offload_{what}"))}  # fmt: skip
    keys = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
            "allgather_bucket_size", "sub_group_size", "stage3_max_live_parameters")  # fmt: skip
    sizes = {key: value for key in keys if (value := given.one(f"deepspeed.{key}")) is not None}
    usual: dict[str, Any] = {"reduce_bucket_size": 500_000_000}
    overlaps = bool(given.on("deepspeed.overlap_comm"))
    half = str(given.one("deepspeed.precision") or "").lower()
    result = of_deepspeed(int(stage), overlaps=overlaps, bf16=half == "bf16", **{**usual, **sizes, **homes})
    return {**result, "fp16": {"enabled": half == "fp16"}}


def _home(given: TrainerArguments, section: str) -> dict[str, str] | None:
    """Where a section says that states wait, on the host unless told; None without one."""
    if not any(key.startswith(section) and given.one(key) is not None for key in list(given)):
        return None
    return {"device": str(given.one(f"{section}.device") or "cpu").lower()}


def _without_towers(words: ReadWords) -> ReadWords:
    """The words without a collator of texts alone."""
    if "vision" in str(words.unread.get(COLLATOR, "vision")):
        return words
    left = {word: value for word, value in words.unread.items() if word != COLLATOR}
    return ReadWords((*words.used, COLLATOR), left)


def _place(words: Sequence[str]) -> int | None:
    """Where the word ``train`` of Oumi stands in a command; None if nowhere."""
    pairs = enumerate(pairwise(words), 1)
    return next((at for at, (name, word) in pairs if PurePath(name).name == PROGRAM and word == STARTED), None)


def _trains(words: Sequence[str]) -> bool:
    return _place(words) is not None


def _starts(words: Sequence[str]) -> bool:
    return bool(words) and (PurePath(words[0]).name == PROGRAM or _trains(words))


OWN_WORDS = WordTable(
    idle=(
        "model.tokenizer_*", "model.trust_remote_code", "model.load_pretrained_weights", "model.chat_template*",
        "model.model_revision", "model.adapter_model", "model.shard_for_eval", "model.device_map", "model.compile",
        "model.processor_kwargs*", "model.tool_call_parser", "data.*", "peft.*", "lora_init_weights",
        "lora_exclude_modules", "lora_task_type", "llm_int8_skip_modules", "peft_save_mode", "q_lora_bits",
        "fsdp.*", "deepspeed.*", "trainer_type", "enable_wandb", "enable_mlflow", "enable_tensorboard",
        "include_performance_metrics", "include_alternative_mfu_metrics", "dep_log_level", "use_deterministic",
        "metrics_function", "telemetry*", "profiler*", "nccl_default_timeout_minutes", "label_ignore_index",
        "sgd_momentum", "try_resume_from_last_checkpoint", "reward_function*", "verl_config_overrides*", "grpo*",
        "gkd*", "gold*", "run_name",
    ),
    deciding={
                COMPUTED: "products beside weights in 4 bits, in fp32 unless told: time",
        COLLATOR: VISION,
        "fsdp.min_num_params": "how many layers are gathered at a time: memory",
        "fsdp.mixed_precision": "dtypes of gathered parameters and of gradients: time and memory",
        "deepspeed.activation_checkpointing*": "what is recomputed, and where it waits: memory and time",
        "deepspeed.memory_efficient_linear": "what a linear layer keeps: memory",
        QUANTISED: "bits of weights: memory and time",
        "model.model_kwargs*": "sizes of the model, or bits of its weights: memory and time",
        "model.freeze_layers": "which parameters are trained: memory and time",
        "training.grpo*": PREFERENCE,
    },
)  # fmt: skip
"""Its own options, beside those that arguments of trainers have."""


def _all_words() -> WordTable:
    """The words of trainers in every section that hands options on, and its own over them."""
    result = WORDS
    for section in ("training", "training.trainer_kwargs", "peft"):
        result |= WORDS.under(section) | OWN_WORDS.under(section)
    return result | OWN_WORDS


READER = Reader(
    name="oumi",
    description="Oumi: the YAML of oumi train, and commands that give it one",
    read=read,
    starts=_starts,
    trains=_trains,
    owns=owns,
    words=_all_words(),
    takes_files=True,
)
