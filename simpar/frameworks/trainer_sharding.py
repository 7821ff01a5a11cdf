"""How a trainer on Hugging Face's shards: Accelerate's config, DeepSpeed's JSON, or the arguments of FSDP."""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import PurePath
from typing import Any

from simpar.architectures.catalogue import load_model
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.frameworks import accelerate_read, deepspeed_read, rules
from simpar.frameworks.deepspeed_states import of_versions
from simpar.frameworks.overrides import load_beside
from simpar.frameworks.reader import ONE_LAUNCHED, value_of
from simpar.frameworks.recipes import AUTO, ConfigReader, flat, nest_names, without_auto
from simpar.frameworks.shipped_configs import OF_TRL, load_config
from simpar.frameworks.slurm import count_of
from simpar.frameworks.trainer_arguments import (
    LAUNCHED_AS,
    TrainerArguments,
    TrainerCommand,
    split_command,
    typed,
    words_of,
)
from simpar.frameworks.words import Assumed, ReadWords, is_off, plain

WORDS_OF_FSDP = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "hybrid_shard_zero2": 2}
"""Words of ``fsdp`` (transformers, ``FSDPOption``)."""
DEEPSPEED_KEYS = (
    "zero_stage", "offload_optimizer_device", "offload_param_device", "gradient_clipping", "zero3_init_flag",
    "zero3_save_16bit_model", "offload_optimizer_nvme_path", "offload_param_nvme_path", "deepspeed_hostfile",
    "deepspeed_multinode_launcher", "deepspeed_config_file",
)  # fmt: skip
"""Flags of ``accelerate launch`` that are DeepSpeed's (``commands/launch.py``)."""
OF_MACHINE = "default_config.yaml"
"""The config of a machine, which ``accelerate launch`` takes where it is told none (``commands/config``)."""
NO_CONFIG = "accelerate launch has no --config_file: the machine's default config is not read."
KINDS = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU", "use_megatron_lm": "MEGATRON_LM"}
"""Its switches, and what they say instead of a config."""
OF_ANY = {"mixed_precision", "num_processes", "use_cpu", "dynamo_config.dynamo_backend"}
"""Options of a config that say nothing of how states are shared."""
NAMED, NAMED_CONFIG = "accelerate_config", "trl/accelerate_configs/{}.yaml"
"""The option by which ``trl`` names a config, and where it ships those with a name."""
OF_TRAINER = ("fsdp_config", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap", "gradient_clipping")
"""Arguments of the Trainer that begin as flags of ``accelerate launch`` do."""
OF_ACCUMULATION = "deepspeed_config.gradient_accumulation_steps"
ACCUMULATES = "accumulation of the launcher's config"
"""The word for a number of microbatches that is another than the arguments'."""
TWICE_TOLD = (
    "the Trainer stops where it is another than the arguments' (integrations/deepspeed.py), and scripts of one's own "
    "accumulate so many: the batch"
)
OF_AXES = "parallelism_config"
SHARD_RANKS, OF_NODES = "shard_ranks", "of_nodes"
"""The ranks that share a copy of the states among values of a plan, which has the number of copies instead: their
number, or those of a node."""
OF_CONTEXT = ("context_parallel_size", "sequence_parallel_degree")
RINGS: Mapping[str, Mapping[str, str]] = {
    "varlen_llama3": {"cp_method": "all_gather", "cp_balance": "contiguous"},
    "batch_ring": {"cp_method": "ring", "cp_balance": "contiguous"},
    "batch_zigzag": {"cp_method": "ring", "cp_balance": "zigzag"},
}
"""Axolotl's functions of ring-flash-attn: sequences are cut into one chunk a rank, but for the last."""
SWITCHES = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DEEPSPEED"}
"""Variables by which Accelerate shards whatever launches the script."""
VARIABLES = {"FSDP": ("FSDP_", "fsdp_config.fsdp_"), "DEEPSPEED": ("ACCELERATE_DEEPSPEED_", "deepspeed_config.")}
"""How variables begin that say more, and the section of the config that has the same."""


@dataclass(frozen=True)
class Sharding:
    """What shards a job: the ``values`` of a plan (none if nothing is said), the words of its files, and notes.

    ``assumed`` is what the version decides; ``starts_one`` says that the launcher starts one process.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    words: ReadWords = field(default_factory=ReadWords)
    notes: tuple[str, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    starts_one: bool = False

    @property
    def is_deepspeed(self) -> bool:
        """Whether DeepSpeed runs it."""
        return self.values.get("stack") == "deepspeed"

    @property
    def shards_parameters(self) -> bool:
        """Whether FSDP or ZeRO-3 gathers parameters."""
        return ((self.values.get("zero") or 0) >= 2 and not self.is_deepspeed) or self.values.get("zero") == 3

    def noted(self, note: str) -> "Sharding":
        """The same with a further note; "" is none."""
        return replace(self, notes=(*self.notes, note)) if note else self


def _reduces_each(sharding: Sharding, given: TrainerArguments) -> bool:
    """Whether FSDP is asked to reduce the gradients of every microbatch, which it keeps whole until the last one.

    Trainers start ``Accelerator.no_sync`` for all others, unless ``accelerator_config`` asks for ``sync_each_batch``;
    scripts of one's own have an argument of that name.
    """
    each = given.told(rules.SYNC_EACH, rules.SYNC_EACH.rpartition(".")[2])
    return (sharding.values.get("zero") or 0) >= 2 and not sharding.is_deepspeed and not is_off(each)


@dataclass(frozen=True)
class Filled:
    """What a trainer puts in where a DeepSpeed config says "auto" (transformers, ``integrations/deepspeed.py``).

    ``asked`` is the half precision that arguments ask for; "" for none.
    """

    micro_batch: int
    accumulation: int
    precision: str
    model: str | None
    asked: str = ""


def sharding_of(
    given: TrainerArguments, command: TrainerCommand | None, filled: Filled, presets: Mapping[str, Mapping[str, Any]]
) -> Sharding:
    """What shards a job; ``presets`` are DeepSpeed configs by name. Raises UserError naming file, option and value."""
    result = _sharding(given, command, filled, presets)
    values, words = _axes(given, result)
    if _reduces_each(result, given):
        values["defer_grad_reduce"] = False
    return replace(result, values={**result.values, **values}, words=result.words + words)


def _axes(given: TrainerArguments, sharding: Sharding) -> tuple[dict[str, Any], ReadWords]:
    """The axes of ``parallelism_config`` (transformers 5), which are Accelerate's, over those of the launcher.

    Left unread where it asks for shards and nothing shards.
    """
    told = given.get(OF_AXES)
    keys = {key: key.partition(".")[2] for key in given if key.startswith(f"{OF_AXES}.")}
    config = told if isinstance(told, dict) else {inner: given.values_[key] for key, inner in keys.items()}
    axes = accelerate_read.as_axes(config, given.source)
    if sharding.is_deepspeed:
        values = accelerate_read.sequence_of(axes)
    else:
        values = accelerate_read.axes_of(axes)
        values["dp"] = values["hsdp"] * (axes.whole(accelerate_read.AXIS.format("dp_shard"), 0) or 1)
    is_said = any(value != 1 for value in values.values())
    unsharded = not sharding.is_deepspeed and not sharding.values.get("zero")
    if not is_said or (unsharded and ("cp" in values or values["dp"] != values["hsdp"])):
        given.leave(*([OF_AXES] if is_said else []))
        return {}, ReadWords()
    if unsharded:
        values.pop("hsdp")  # replicas
    used = {key.rpartition(".")[2].removeprefix(f"{OF_AXES}_") for key in axes.words().used}
    given.used |= {key for key, inner in keys.items() if inner.removeprefix(f"{OF_AXES}_") in used}
    unread = {} if keys else axes.words().unread
    return values, ReadWords((), unread)


def _sharding(
    given: TrainerArguments, command: TrainerCommand | None, filled: Filled, presets: Mapping[str, Mapping[str, Any]]
) -> Sharding:
    """As :func:`sharding_of`, without the axes of the arguments."""
    if told := _launcher_words(given, command):
        launched = _of_accelerate(given.source, *told, filled)
    else:
        launched = Sharding() if command is None else _of_variables(command, filled)
    asked = next((half for half in ("bf16", "fp16") if given.on(half)), None)
    if asked and "precision" in launched.values:  # what arguments ask for wins (transformers, training_args.py)
        launched = replace(launched, values={**launched.values, "precision": asked})
    filled = replace(filled, precision=launched.values.get("precision", filled.precision), asked=asked or "")
    named = given.one("deepspeed", "deepspeed_config")
    if isinstance(named, str) and named in presets:
        own = _of_deepspeed(presets[named], named, filled)
        return _joined(launched, own, launched.words)
    if named is True:
        own = _of_deepspeed(_of_switches(given, filled), "--zero_stage", filled)
        return _joined(launched, own, launched.words)
    if named and str(named).lower() not in ("false", "none"):
        config, note = (named, "") if isinstance(named, dict) else load_config(str(named), given.source)
        where = "deepspeed" if isinstance(named, dict) else str(named)
        own = _of_deepspeed(deepspeed_read.of_deepspeed(config, where), where, filled).noted(note)
        return _joined(launched, own, launched.words if note else launched.words + own.words)
    own = _of_fsdp(given, command)
    return replace(_joined(launched, own, launched.words + own.words), assumed=launched.assumed)


def context_of(given: TrainerArguments) -> dict[str, Any]:
    """Ranks that share sequences, by Axolotl's names: all that are no other's are shards of the states, too.

    Which ring attends follows from packing where nothing says it (``schemas/validation.py``, ``utils/distributed.py``).
    """
    ranks = given.number(*OF_CONTEXT)
    if ranks in (None, 1):
        return {}
    usual = "varlen_llama3" if given.on("sample_packing") else "batch_ring"
    ring = RINGS.get(str(given.one("ring_attn_func") or usual))
    if ring is None:
        given.leave(*OF_CONTEXT, "ring_attn_func")
        return {}
    return {"cp": ranks, **ring}


def _joined(launched: Sharding, own: Sharding, words: ReadWords) -> Sharding:
    """What the launcher says, and over it what the arguments say."""
    notes = (*launched.notes, *own.notes)
    return Sharding(_laid_over(launched.values, own.values), words, notes, own.assumed, launched.starts_one)


def _laid_over(launched: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a launcher's config under those of a DeepSpeed config, which may share layers among its processes.

    Raises UserError where these are no multiple of the ranks that do.
    """
    values, tp, processes = {**launched, **own}, own.get("tp") or 1, launched.get("dp")
    if tp == 1 or processes is None or own.get("dp"):
        return values
    replicas, rest = divmod(processes, tp)
    if rest:
        raise UserError(f"num_processes = {processes}: allowed: a multiple of tensor_parallel.autotp_size = {tp}")
    return values | {"dp": replicas}


def _of_switches(given: TrainerArguments, filled: Filled) -> dict[str, Any]:
    """The DeepSpeed config of a script with the switches ``--deepspeed --zero_stage N`` and ``--offload``.

    They are those of DeepSpeed-Chat (``dschat/utils/ds_utils.py``), which trains embeddings, norms and biases beside
    adapters unless told otherwise (``utils/module/lora.py``).
    """
    stage = given.one("zero_stage")
    if stage is None:
        raise given.refused("deepspeed", "a file, or --zero_stage N beside it")
    if given.number("lora_dim") and not given.on("only_optimize_lora"):
        given.leave("lora_dim")  # what has no adapter is trained as well
    home = {"device": "cpu" if given.on("offload") else "none"}
    zero = {"stage": stage, "offload_optimizer": home, "offload_param": home}
    return {filled.precision: {"enabled": True}, "zero_optimization": zero}


def _launcher_words(
    given: TrainerArguments, command: TrainerCommand | None
) -> tuple[dict[str, Any], dict[str, str]] | None:
    """Flags of ``accelerate launch`` with their values, and as they are spelt; None where it starts nothing.

    ``trl`` starts it with what its own trainers do not know of its words and file (``cli/commands/training.py``).
    """
    if command is not None and command.launched_by == "accelerate":
        return _launcher_flags(command.before)
    is_started = NAMED in given or "num_processes" in given if command is None else _is_trl(command)
    if not is_started:
        return None
    told = [key for key in given if key == NAMED or (_home_of(key) and key not in OF_TRAINER)]
    if not told:
        return None
    flags = {key: given.get(key) for key in told}
    named = flags.pop(NAMED, None)
    if named is not None:
        if named not in OF_TRL and "." not in str(named):
            raise given.refused(NAMED, f"{', '.join(OF_TRL)}, or a file")
        flags["config_file"] = NAMED_CONFIG.format(named) if named in OF_TRL else named
    return flags, {key: given.written.get(key, key) for key in told}


def _is_trl(command: TrainerCommand) -> bool:
    return PurePath(command.script).name == "trl"


def _of_accelerate(source: str, flags: dict[str, Any], spelt: Mapping[str, str], filled: Filled) -> Sharding:
    """The config of ``accelerate launch``, and its flags, which win over it."""
    file = flags.pop("config_file", None)
    config, note = load_config(str(file), source) if file else ({}, "")
    own: dict[str, Any] = {}
    used: dict[str, str] = {}
    for key, value in flags.items():
        home = _home_of(key)
        if home is not None:
            own |= {"distributed_type": KINDS[key]} if key in KINDS else {home: value}
            used[home] = spelt[key]
    given, _ = without_auto(nest_names({**flat(accelerate_read.as_launched(config)), **own}), str(file or source))
    if not file and not set(own) - OF_ANY:
        return _unsharded(given, used, is_told="num_processes" in flags)
    values = {key: value for key, value in accelerate_read.values_of(given).items() if value is not None}
    if str(given.get("mixed_precision", "no")) == "no":
        values.pop("precision")  # the arguments say it
    named = given.get(accelerate_read.FILE)
    filled = replace(filled, precision=values.get("precision", filled.precision))
    if named:
        config, note = load_config(str(named), source)
        inner = _of_deepspeed(deepspeed_read.of_deepspeed(config, str(named)), str(named), filled)
        values, more, notes, assumed = _laid_over(values, inner.values), inner.words, inner.notes, inner.assumed
    else:
        (values, notes, assumed), more = of_versions(values, filled.precision), ReadWords()
    if values.get("stack") == "ddp":
        values.pop("stack")
    one = accelerate_read.starts_one(given)
    notes = (*notes, ONE_LAUNCHED) if one else notes
    read = given.words()
    words = ReadWords(tuple(used.get(key, key) for key in read.used), read.unread)
    if note:  # the words of the command alone are the text's
        words, more = ReadWords(tuple(used[key] for key in read.used if key in used)), ReadWords()
    told = None if named else given.get(OF_ACCUMULATION)
    if told not in (None, filled.accumulation) and values.get("stack") == "deepspeed":
        more += ReadWords((), {ACCUMULATES: told})
    words = words + more + ReadWords(("--config_file",) if file else ())
    return Sharding(values, words, notes, assumed, one).noted(note)


def _unsharded(given: ConfigReader, used: Mapping[str, str], *, is_told: bool) -> Sharding:
    """What the flags of a launcher without a config say, but for what shards; ``is_told``: how many processes."""
    half, fused = given.get("mixed_precision"), accelerate_read.fused_kernels(given)
    values = {"precision": half} if half not in (None, "no") else {}
    values |= {"fused_kernels": fused} if fused else {}
    idle = {"num_processes"} & set(used)
    read = (*(used[key] for key in given.words().used if key in used), *(used[key] for key in idle))
    unread = {used[key]: value for key, value in given.words().unread.items() if key in used and key not in idle}
    note = () if is_told else (NO_CONFIG,)
    return Sharding(values, ReadWords(read, unread | ({} if is_told else {OF_MACHINE: NO_CONFIG})), note)


def _of_variables(command: TrainerCommand, filled: Filled) -> Sharding:
    """What variables say to Accelerate, which are those that ``accelerate launch`` sets (``utils/launch.py``)."""
    told = {name: value for name, value in command.environment.items() if value}
    kind = next((kind for name, kind in SWITCHES.items() if not is_off(told.get(name, "false"))), None)
    half = told.get("ACCELERATE_MIXED_PRECISION")
    precision: dict[str, str] = {"precision": half} if half in ("bf16", "fp16") else {}
    if kind is None:
        return Sharding(precision)
    prefix, section = VARIABLES[kind]
    names = {f"{section}{name.removeprefix(prefix).lower()}": name for name in told if name.startswith(prefix)}
    renamed = {"deepspeed_config.config_file": accelerate_read.FILE}
    config = {renamed.get(key, key): typed(told[name]) for key, name in names.items()}
    given = ConfigReader({"distributed_type": kind, **config}, command.script)
    values = {key: value for key, value in accelerate_read.values_of(given).items() if value is not None}
    values.pop("precision")  # the arguments say it, or a variable
    values |= precision
    (values, notes, assumed), read = of_versions(values, precision.get("precision", filled.precision)), given.words()
    used = tuple(names[key] for key in read.used if key in names)
    return Sharding(values, ReadWords(used, read.unread), notes, assumed)


def _home_of(key: str) -> str | None:
    """The option of the config that a flag of ``accelerate launch`` sets; None if none does that matters here."""
    if key in KINDS:
        return "distributed_type"
    if key in ("mixed_precision", "num_processes", "use_cpu"):
        return key
    if key == "cpu":
        return "use_cpu"
    if key == "dynamo_backend":
        return "dynamo_config.dynamo_backend"
    if key in DEEPSPEED_KEYS:
        return f"deepspeed_config.{key}"
    sections = {
        "fsdp_": "fsdp_config.",
        "parallelism_config_": "parallelism_config.",
        "megatron_lm_": "megatron_lm_config.",
    }
    return next((f"{section}{key}" for start, section in sections.items() if key.startswith(start)), None)


def _launcher_flags(words: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, str]]:
    starts = [at for at, word in enumerate(words) if word == "launch" or LAUNCHED_AS.get(word) == "accelerate"]
    command = split_command(["python", "launcher.py", *words[starts[0] + 1 :]]) if starts else None
    return (dict(command.flags), dict(command.written)) if command else ({}, {})


def _of_deepspeed(config: Mapping[str, Any], where: str, filled: Filled) -> Sharding:
    """A DeepSpeed config with "auto" filled in from the arguments."""
    whole = flat(config)
    own = {
        "train_micro_batch_size_per_gpu": filled.micro_batch,
        "gradient_accumulation_steps": filled.accumulation,
        "bf16.enabled": filled.precision == "bf16",
        "fp16.enabled": filled.precision == "fp16",
        **_of_hidden(filled.model),
    }
    for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        if whole.get(key) not in (None, AUTO, own[key]):
            raise UserError(f"{where}: {key} = {whole[key]}: allowed: auto, or what the arguments say, {own[key]}")
    other = {"bf16": "fp16", "fp16": "bf16"}.get(filled.asked)
    if other and whole.get(f"{other}.enabled") is True:
        raise UserError(
            f"{where}: {other}.enabled = true: allowed: auto, false, or what the arguments say, {filled.asked}"
        )
    autos = [key for key, value in whole.items() if value == AUTO]
    kept = {key: own.get(key) if key in autos else value for key, value in whole.items()}
    kept = {key: value for key, value in kept.items() if value is not None}
    given = ConfigReader(kept, where)
    values = deepspeed_read.values_of(given, [])
    if "optimizer.type" not in kept:
        values.pop("optimizer"), values.pop("optimizer_kernels")
    if not any(whole.get(f"{half}.enabled") is True for half in ("bf16", "fp16")):
        values["precision"] = filled.precision  # Accelerate adds what the arguments say (DeepSpeedPlugin)
    for key in ("dp", "micro_batch", "training"):
        values.pop(key)
    read = given.words()
    batch = ("train_batch_size",) if "train_batch_size" in autos else ()  # it follows from the others
    unread = {key: AUTO for key in autos if key not in (*kept, *batch)}
    words = ReadWords((*read.used, *batch), {**read.unread, **unread})
    values, notes, assumed = of_versions(values, filled.precision)
    return Sharding({key: value for key, value in values.items() if value is not None}, words, notes, assumed)


def _of_hidden(model: str | None) -> dict[str, int]:
    """Sizes that follow from the width of the model: hidden², and a tenth less of what is fetched ahead."""
    if model is None:
        return {}
    hidden = load_model(model).dims["hidden"]
    return {
        "zero_optimization.reduce_bucket_size": hidden * hidden,
        "zero_optimization.stage3_prefetch_bucket_size": hidden * hidden * 9 // 10,
        "zero_optimization.stage3_param_persistence_threshold": 10 * hidden,
    }


def _of_fsdp(given: TrainerArguments, command: TrainerCommand | None) -> Sharding:
    """The arguments ``fsdp`` and ``fsdp_config``, with or without the prefix ``fsdp_`` of its keys."""
    told = given.one("fsdp")
    config = given.one("fsdp_config")
    if isinstance(config, str):
        config = load_beside(config, given.source)
    if config is None:  # a file's section, flattened
        config = {key.partition(".")[2]: given[key] for key in list(given) if key.startswith("fsdp_config.")}
    own = {plain(key).removeprefix("fsdp_"): value for key, value in (config or {}).items()}
    chosen = words_of(told) if told not in (None, True, False, "") else []
    if told in (False, "") or str(told).lower() == "false" or (told is None and not own):
        return Sharding()
    inner = ConfigReader(own, f"{given.source}: fsdp_config")
    strategy = next((word.lower() for word in chosen if word.lower() in WORDS_OF_FSDP), None)
    if unknown := [w for w in chosen if w.lower() not in (*WORDS_OF_FSDP, "auto_wrap", "offload", "true", "fsdp2")]:
        raise UserError(f"{given.source}: fsdp = {unknown[0]}: allowed: {', '.join(WORDS_OF_FSDP)}, offload, auto_wrap")
    strategy = strategy or str(inner.get("sharding_strategy") or "").lower() or None
    reshard = inner.get("reshard_after_forward", True)
    if isinstance(reshard, str) and reshard.lower() in WORDS_OF_FSDP:
        strategy, reshard = reshard.lower(), True
    zero = WORDS_OF_FSDP.get(strategy or "", 3) if str(reshard).lower() != "false" else 2
    away = "cpu" if "offload" in chosen or inner.get("cpu_offload") or inner.get("offload_params") else "none"
    values: dict[str, Any] = {
        "stack": "huggingface",
        "zero": zero,
        "offload_optimizer": away,
        "offload_parameters": away,
    }
    if inner.get("activation_checkpointing"):
        values["recompute"] = "full"
    replicas, shards = (_above_one(given, axis) for axis in ("dp_replicate_size", "dp_shard_size"))  # Axolotl's
    if (strategy or "").startswith("hybrid"):
        nodes = nodes_of(command)
        values |= {"hsdp": nodes} if nodes > 1 else {OF_NODES: True}
    elif replicas:
        values |= {"hsdp": replicas, "dp": replicas * shards if shards else None}
    elif shards:  # what is left of the ranks has copies (``utils/distributed.py``)
        values[SHARD_RANKS] = shards
    if tp := given.number("tensor_parallel_size"):  # Axolotl's, by transformers' plans: whole sequences between them
        values |= {"tp": tp, "sequence_parallel": False if tp > 1 else None}
    wraps = "auto_wrap" in chosen or {"auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params"} & set(own)
    read = inner.words()
    notes = () if wraps or told is True else ("fsdp without auto_wrap gathers the whole model at once.",)
    if SHARD_RANKS in values:
        notes = (*notes, f"{shards} data-parallel ranks share the states; those that are left have copies of them.")
    return Sharding(values, ReadWords((), {f"fsdp_config.{key}": value for key, value in read.unread.items()}), notes)


def _above_one(given: TrainerArguments, axis: str) -> int | None:
    """The size of an axis; None where it is one, which says nothing to Axolotl."""
    size = given.number(axis)
    return None if size == 1 else size


def nodes_of(command: TrainerCommand | None) -> int:
    """The number of nodes that the launcher's words say; one if they do not."""
    names = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes", "-N", "--nodes")
    told = value_of(command.before, names) if command is not None else None
    return count_of(told) or 1
