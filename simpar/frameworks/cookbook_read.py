"""llama-cookbook (formerly llama-recipes): the arguments of ``finetuning.py``, with FSDP or on one device, as a plan.

Defaults are those of its ``configs/`` (training.py, fsdp.py, peft.py, quantization.py at 0e00335).
"""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.match import find_released
from simpar.frameworks.overrides import command_of
from simpar.frameworks.reader import ONE_PROCESS, Reader
from simpar.frameworks.target import PYTHON, Imported, Sized, plan_said
from simpar.frameworks.trainer_adapters import USUAL_TARGETS, targets_of
from simpar.frameworks.trainer_arguments import TrainerArguments, TrainerCommand, split_command
from simpar.frameworks.trainer_read import low_states
from simpar.frameworks.trainer_sharding import nodes_of
from simpar.frameworks.trainer_words import VISION
from simpar.frameworks.words import Assumed, WordTable

SCRIPTS, MODULES = (("finetuning.py", "llama_finetuning.py"), ("llama_cookbook.finetuning", "llama_recipes.finetuning"))
TELLING = ("enable_fsdp", "batch_size_training", "low_cpu_fsdp", "dist_checkpoint_folder", "peft_method",
           "use_fast_kernels", "batching_strategy", "dist_checkpoint_root_folder")  # fmt: skip
"""Arguments that no other script has."""
SECTIONS = ("fsdp_config", "train_config", "lora_config", "quantization_config")
"""Names that may stand before those of arguments (``utils/config_utils.py``, update_config)."""
SHARDING = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3}
BITS = {"true": 8, "8bit": 8, "int8": 8, "4bit": 4, "int4": 4}
LEFT_OPEN = (2, 4)
"""Parts of the longest sequence that data may be where they are padded."""


def read(text: str, name: str) -> Imported:
    """The plan in a command that starts ``finetuning.py``. Raises UserError naming file, option and value."""
    command = split_command(command_of(text, name, _starts))
    if command is None:
        raise UserError(f"{name}: no command of llama-cookbook, such as torchrun finetuning.py --enable_fsdp")
    flags = {key.partition(".")[2] if key.partition(".")[0] in SECTIONS else key: key for key in command.flags}
    written = {plain: command.written[key] for plain, key in flags.items()}
    return _plan(TrainerArguments({plain: command.flags[key] for plain, key in flags.items()}, name, written), command)


def _plan(given: TrainerArguments, command: TrainerCommand) -> Imported:
    shards = bool(given.on("enable_fsdp"))
    named = given.told("model_name")
    model = find_released(str(named), given.source) if named else None
    note = "" if model else f"The model is {named}: give --model." if named else "No --model_name: give --model."
    micro, accumulation = (given.number("batch_size_training") or 4, given.number("gradient_accumulation_steps") or 1)
    adapters = _adapters(given, shards=shards)
    precision = "fp16" if given.on("use_fp16") else "bf16"
    values: dict[str, Any] = {
        "model": model,
        "stack": "huggingface",
        "micro_batch": micro,
        "precision": precision,
        "zero": 0,
        "dp": None if command.launched_by else 1,
        "recompute": "full" if shards and given.on("fsdp_activation_checkpointing") is not False else "none",
        "attention_kernel": "sdpa",  # of transformers where nothing is asked for, too
        "training": {"seq_len": given.number("context_length") or 4096},
        **(_sharding(given, command) if shards else {}),
        **adapters,
    }
    if not adapters:
        values |= low_states("adamw")  # weights are loaded in the checkpoint's dtype
    if not adapters and (frozen := given.on("freeze_layers")) and shards:
        values["frozen_layers"] = given.number("num_freeze_layers") or int(frozen)
    assumed = tuple(_assumed(given, values, adapts=bool(adapters)))
    return Imported(
        plan_said(values),
        given.words(),
        tuple(filter(None, (note, "" if command.launched_by else ONE_PROCESS, *given.misspelt(WORDS)))),
        sized=Sized(alone="" if command.launched_by else PYTHON),
        per_replica=micro * accumulation,
        asks={"model": note} if note else {},
        assumed=assumed,
    )


def _sharding(given: TrainerArguments, command: TrainerCommand) -> dict[str, Any]:
    """FSDP's strategy, its replicas, and what is on the host. Raises UserError."""
    word = str(given.one("sharding_strategy") or "full_shard").lower().rpartition(".")[2]
    if word not in SHARDING:
        raise given.refused("sharding_strategy", ", ".join(SHARDING))
    replicas = nodes_of(command) if word.startswith("hybrid") else None
    if given.on("hsdp"):
        replicas = given.number("replica_group_size") or replicas
    away = "cpu" if given.on("fsdp_cpu_offload") else "none"
    return {
        "zero": SHARDING[word], "hsdp": replicas, "offload_optimizer": away, "offload_parameters": away,
        "defer_grad_reduce": False,
    }  # fmt: skip


def _adapters(given: TrainerArguments, *, shards: bool) -> dict[str, Any]:
    """Adapters, and the bits beside them; {} where all parameters are trained. Raises UserError."""
    told = given.one("quantization")
    bits = None if told in (None, False) else BITS.get(str(told).lower())
    if told not in (None, False) and bits is None:
        raise given.refused("quantization", "4bit, 8bit")
    if bits == 8 and shards:
        raise given.refused("quantization", "4bit beside --enable_fsdp, which takes no other")
    method = str(given.one("peft_method") or "lora").lower()
    if not given.on("use_peft"):
        return {}
    if method != "lora":
        raise given.refused("peft_method", "lora")
    return {
        "lora_rank": given.number("r") or 8,
        "lora_targets": targets_of(given, USUAL_TARGETS, []),
        "lora_dropout": given.rate("lora_dropout", usual=0.05),
        "frozen_dtype": {4: "nf4", 8: "int8"}.get(bits or 16, "bf16"),
    }


def _assumed(given: TrainerArguments, values: dict[str, Any], *, adapts: bool) -> list[Assumed]:
    result = []
    length = values["training"]["seq_len"]
    if str(given.one("batching_strategy") or "packing").lower() != "packing":
        others = tuple(length // part for part in LEFT_OPEN)
        result.append(Assumed("seq_len", length, "padded sequences are as long as the data: the longest", others))
    if not given.on("pure_bf16") and not adapts:
        why = "weights are loaded in the checkpoint's dtype; earlier versions loaded fp32"
        result.append(Assumed("parameter_dtype", "bf16", why, ("fp32",), {"fp32": WIDE}))
    return result


WIDE: dict[str, Any] = {"parameter_dtype": None, "master_weights": None, "grad_dtype": None, "moment_dtype": None}
"""Choices of fp32 weights that mixed precision gathers in 16 bits: those of the stack."""


def _starts(words: Sequence[str]) -> bool:
    command = split_command(words) if words else None
    if command is None:
        return False
    names = {key.rpartition(".")[2] for key in command.flags}
    is_script = PurePath(command.script).name in SCRIPTS
    is_own = command.script in MODULES or bool(names & set(TELLING[:2]))
    return is_own or (is_script and bool(names & {*TELLING, "use_peft"}))


WORDS = WordTable(
    idle=(
        "tokenizer_name", "low_cpu_fsdp", "run_validation", "gradient_clipping*", "num_epochs", "max_*_step",
        "num_workers_dataloader", "lr", "weight_decay", "gamma", "seed", "val_batch_size", "dataset", "custom_dataset*",
        "*_dataset", "*.file", "file", "output_dir", "one_gpu", "save_*", "dist_checkpoint_*", "use_wandb", "wandb*",
        "flop_counter*", "use_profiler", "profiler_dir", "mixed_precision", "use_fast_kernels", "checkpoint_type",
        "lora_alpha", "bias", "task_type", "inference_mode", "quant_type", "compute_dtype", "use_double_quant",
        "quant_storage", "sharding_group_size", "train_split", "test_split", "data_path", "wandb_config*",
        "num_freeze_layers", "freeze_layers", "replica_group_size", "test_file",
    ),
    deciding={
        "optimizer": "states of other sizes: memory, and the time of the update",
        "from_peft_checkpoint": "adapters of a checkpoint, with a rank and targets of its own: memory",
        "freeze_llm_only": VISION,
    },
)  # fmt: skip

READER = Reader(
    name="llama-cookbook",
    description="llama-cookbook: arguments of finetuning.py",
    read=read,
    starts=_starts,
    words=WORDS,
    has_dotted_flags=False,
)
