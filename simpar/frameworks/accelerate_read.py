"""Accelerate's YAML back to a plan: FSDP, DeepSpeed, Megatron-LM or plain replicas."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks import deepspeed_read, rules
from simpar.frameworks.deepspeed_read import WORDS as DEEPSPEED_WORDS
from simpar.frameworks.deepspeed_read import home_of, parts_of
from simpar.frameworks.deepspeed_states import OF_SCRIPT, of_script, of_versions
from simpar.frameworks.overrides import load_beside, text_beside
from simpar.frameworks.reader import ONE_LAUNCHED, Reader, value_of
from simpar.frameworks.recipes import AUTO, ConfigReader, without_auto
from simpar.frameworks.target import LAUNCHER, Imported, Sized, plan_said
from simpar.frameworks.words import ON_PROCESSORS, Assumed, ReadWords, WordTable

KINDS = (
    "NO",
    "MULTI_GPU",
    "MULTI_CPU",
    "MULTI_XPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_HPU",
    "FSDP",
    "DEEPSPEED",
    "MEGATRON_LM",
)
SHARDING = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
NUMBERED = tuple(SHARDING)
"""Strategies by number, starting at 1, as in older configs."""
MODEL_NOTE = "An Accelerate config names no model and no batch: give --model, --seq-len and --global-batch."
ALONE = "huggingface"
"""The stack where nothing is shared because there is one device."""
CONFIG_FILE = ("--config_file", "--config-file")
OWN_KEYS = {"distributed_type", "num_processes"}
BESIDE = {"num_machines", "machine_rank", "mixed_precision", "compute_environment", "main_training_function"}
"""What a config has beside a number of processes, which other tools have, too."""
AXIS = "parallelism_config.parallelism_config_{}_size"
SP = AXIS.format("sp")
FILE = "deepspeed_config.deepspeed_config_file"
AXES = ("tp", "cp", "sp", "dp_shard", "dp_replicate")
PREFIXES = {"fsdp_config": "fsdp", "fp8_config": "fp8", "dynamo_config": "dynamo"}
"""Sections whose keys may be written without the prefix that their flags have."""


def read(text: str, name: str) -> Imported:
    """The plan in a config of ``accelerate launch``. Raises UserError naming file, option and value."""
    data = files.read_yaml(text, name, finite=False)
    if not isinstance(data, dict) or not OWN_KEYS & set(data):
        raise UserError(f"{name}: no Accelerate config, such as one with distributed_type")
    given, auto = without_auto(as_launched(data), name)
    of_file, words, per_replica = _of_file(given)
    values = {**values_of(given), **of_file}
    values, own, assumed = of_versions(values, values["precision"])
    of_one = ALONE if values["stack"] == "ddp" else ""
    sized = Sized(of_one, alone=LAUNCHER if starts_one(given) else "")
    written_as = "" if values["stack"] == "deepspeed" else None
    notes = (MODEL_NOTE, *_notes(given, auto), *own, *given.misspelt())
    assumed = (*assumed, *of_script(values), *_assumed(values))
    return Imported(
        plan_said(values), given.words() + words, notes, per_replica=per_replica, asks={"model": MODEL_NOTE},
        assumed=assumed, sized=sized, written_as=written_as,
    )  # fmt: skip


def as_launched(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config whose sections have the names of flags: without their prefix, keys get it (``commands/launch.py``)."""
    return {section: _prefixed(PREFIXES[section], inner) if section in PREFIXES and isinstance(inner, dict) else inner
            for section, inner in config.items()}  # fmt: skip


def as_axes(inner: Mapping[Any, Any], source: str) -> ConfigReader:
    """Accelerate's ``ParallelismConfig`` as the section of a config, whose keys have a prefix."""
    name = "parallelism_config"
    return ConfigReader({f"{name}.{key}": value for key, value in _prefixed(name, inner).items()}, source)


def _prefixed(prefix: str, inner: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key) if str(key).startswith(prefix) else f"{prefix}_{key}": value for key, value in inner.items()}


def _of_file(given: ConfigReader) -> tuple[dict[str, Any], ReadWords, int | None]:
    """What the DeepSpeed config that is named says, its words, and sequences of a rank's step; none if it is not here.

    Raises UserError.
    """
    named = given.values_.get(FILE)
    if not named or text_beside(str(named), given.source) is None:
        return {}, ReadWords(), None
    given.get(FILE)
    config = deepspeed_read.of_deepspeed(load_beside(str(named), given.source), str(named))
    inner, auto = without_auto(config, str(named))
    values = deepspeed_read.values_of(inner, auto)
    micro, training = values["micro_batch"], values["training"]
    if {"bf16.enabled", "fp16.enabled"} & set(auto):
        values.pop("precision")
    words = inner.words()
    told = {key: value for key, value in values.items() if value is not None and key != "dp"}
    alone = micro if micro and not training and "gradient_accumulation_steps" not in auto else None
    per_replica = alone * (inner.whole("gradient_accumulation_steps") or 1) if alone else None
    open_ = [key for key in auto if key not in deepspeed_read.BATCH]  # which the script says
    return told, ReadWords(words.used, {**words.unread, **dict.fromkeys(open_, AUTO)}), per_replica


def _assumed(values: Mapping[str, Any]) -> Iterator[Assumed]:
    """The precision, where the config asks for none: the script may."""
    if values["precision"] == "fp32":
        yield Assumed("precision", "fp32", OF_SCRIPT, ("bf16",))


def values_of(given: ConfigReader) -> dict[str, Any]:
    """The values of a plan in a config. Raises UserError."""
    kind = str(given.get("distributed_type", "NO"))
    if kind not in KINDS:
        raise UserError(f"{given.source}: distributed_type = {kind}: allowed: {', '.join(KINDS)}")
    parts = {"FSDP": _fsdp, "DEEPSPEED": _deepspeed, "MEGATRON_LM": _megatron}
    values: dict[str, Any] = parts[kind](given) if kind in parts else {"zero": 0, "stack": "ddp"}
    ranks = given.whole("num_processes")
    inside = (values.get("tp") or 1) * (values.get("cp") or 1) * (values.get("pp") or 1)
    if ranks and ranks % inside:
        raise UserError(f"{given.source}: num_processes = {ranks}: allowed: a multiple of tp x cp x pp = {inside}")
    if ranks and not given.get(SP):  # beside sequences in parts DeepSpeed has groups of its own
        _check_axes(given, ranks)
    values |= {"dp": ranks // inside if ranks else None, "precision": _precision(given)}
    if starts_one(given):
        values["dp"] = 1
    values["fused_kernels"] = fused_kernels(given)
    return values


def starts_one(given: Mapping[str, Any]) -> bool:
    """Whether a config says that nothing is distributed, in which case one process is started."""
    return str(given.get("distributed_type")) == "NO"


def _notes(given: ConfigReader, auto: list[str]) -> Iterator[str]:
    if starts_one(given):
        yield ONE_LAUNCHED
    if auto:
        yield f"Filled in by who starts it, and not read: {', '.join(auto)}."
    if (file := given.values_.get(FILE)) and FILE not in given.words().used:  # which a table says to decide
        yield f"{file} is another file: import it with --from deepspeed."


def fused_kernels(given: ConfigReader) -> str | None:
    """What the compiler fuses; backends without inductor trace kernels and fuse none, and are left unread."""
    key = "dynamo_config.dynamo_backend"
    return "compiled" if str(given.get(key, "NO")).upper() == "INDUCTOR" else None


def _precision(given: ConfigReader) -> str:
    text = given.get("mixed_precision", "no")
    names = {"no": "fp32", False: "fp32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
    if text not in names:
        raise UserError(f"{given.source}: mixed_precision = {text!r}: allowed: no, bf16, fp16, fp8")
    return names[text]


def _fsdp(given: ConfigReader) -> dict[str, Any]:
    prefix = "fsdp_config.fsdp_"
    strategy = given.get(f"{prefix}sharding_strategy")
    reshard = given.get(f"{prefix}reshard_after_forward", True)
    if isinstance(reshard, str) and strategy is None:
        strategy, reshard = reshard, True
    if isinstance(strategy, int) and 1 <= strategy <= len(NUMBERED):
        strategy = NUMBERED[strategy - 1]
    if strategy is not None and str(strategy) not in SHARDING:
        raise UserError(f"{given.source}: {prefix}sharding_strategy = {strategy}: allowed: {', '.join(SHARDING)}")
    axes = axes_of(given)
    if strategy is not None and strategy.startswith("HYBRID"):  # shards within a machine
        axes["hsdp"] = given.whole("num_machines") or 1
    away = "cpu" if given.get(f"{prefix}offload_params") else "none"
    result: dict[str, Any] = {
        "stack": "huggingface",
        "zero": SHARDING[strategy] if strategy else 3 if reshard else 2,
        "recompute": "full" if given.get(f"{prefix}activation_checkpointing") else "none",
        "offload_optimizer": away,
        "offload_parameters": away,
    }
    return {**result, **axes}


def axes_of(given: ConfigReader) -> dict[str, Any]:
    """The values of a plan that the axes of FSDP's mesh say. Raises UserError."""
    sizes = {name: given.whole(AXIS.format(name), 0) or 1 for name in AXES}
    result: dict[str, Any] = {"hsdp": sizes["dp_replicate"], "tp": sizes["tp"]}
    if sizes["cp"] > 1:
        name = "parallelism_config_cp_comm_strategy"
        word = given.get(f"parallelism_config.{name}", "allgather")
        method = rules.method_of(word, given.source, name)
        result |= {"cp": sizes["cp"], "cp_method": method, "cp_balance": "zigzag"}
    elif sizes["sp"] > 1:
        result |= {"cp": sizes["sp"], "cp_method": "ulysses", "cp_balance": "contiguous"}
    return result


def _deepspeed(given: ConfigReader) -> dict[str, Any]:
    prefix = "deepspeed_config."
    stage = given.whole(f"{prefix}zero_stage", 0) or 0
    homes = {ours: home_of(given, f"{prefix}{theirs}_device") or "none" for ours, theirs in parts_of(stage)}
    return {"stack": "deepspeed", "zero": stage, **homes, **sequence_of(given)}


def _check_axes(given: ConfigReader, ranks: int) -> None:
    """Raise UserError for axes of other ranks than there are processes, as Accelerate does (``ParallelismConfig``).

    Axes that are all one say nothing.
    """
    sizes = {name: given.whole(AXIS.format(name), 0) or 1 for name in AXES}
    if (total := prod(sizes.values())) not in (1, ranks):
        told = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        raise UserError(
            f"{given.source}: num_processes = {ranks}: parallelism_config has axes of {total} ranks ({told}); allowed: "
            "axes whose product is the number of processes"
        )


def sequence_of(given: ConfigReader) -> dict[str, Any]:
    """The values of a plan that the axis of sequences says beside DeepSpeed (ALST). Raises UserError."""
    shared = given.whole(SP) or 1
    if shared == 1:
        return {}
    for axis in ("tp", "dp_shard", "dp_replicate"):  # what is left of the ranks has its share of the states
        given.whole(AXIS.format(axis), 0)
    return {"cp": shared, "cp_method": "ulysses", "cp_balance": "contiguous"}


def _megatron(given: ConfigReader) -> dict[str, Any]:
    prefix = "megatron_lm_config.megatron_lm_"
    tp, pp = (given.whole(f"{prefix}{axis}_degree") or 1 for axis in ("tp", "pp"))
    selective = given.get(f"{prefix}recompute_activations")
    return {
        "stack": "megatron",
        "tp": tp,
        "pp": pp,
        "zero": 1 if given.get(f"{prefix}use_distributed_optimizer") else 0,
        "sequence_parallel": bool(given.get(f"{prefix}sequence_parallelism")) if tp > 1 else None,
        "recompute": "selective" if selective in (True, "true") else "none",
    }


WORDS = WordTable(
    idle=(
        "compute_environment", "debug", "machine_rank", "main_process_*", "main_training_function", "rdzv_*",
        "same_network", "tpu_*", "enable_cpu_affinity", "num_machines", "gpu_ids", "distributed_type",
        "fsdp_config.fsdp_auto_wrap_policy", "fsdp_config.fsdp_transformer_layer_cls_to_wrap", "commands",
        "command_file", "fsdp_config.fsdp_backward_prefetch*", "fsdp_config.fsdp_cpu_ram_efficient_loading",
        "fsdp_config.fsdp_version", "fsdp_config.fsdp_state_dict_type", "fsdp_config.fsdp_sync_module_states",
        "fsdp_config.fsdp_use_orig_params", "fsdp_config.fsdp_forward_prefetch",
        "deepspeed_config.gradient_clipping", "dynamo_config*", "downcast_bf16", "deepspeed_config.zero3_*",
        "deepspeed_config.deepspeed_multinode_launcher", "deepspeed_config.*_nvme_path",
        "deepspeed_config.offload_param_device", "deepspeed_config.deepspeed_hostfile",
        "deepspeed_config.gradient_accumulation_steps", "mpirun_config*",
        "deepspeed_config.deepspeed_inclusion_filter", "deepspeed_config.deepspeed_exclusion_filter",
        "fsdp_config.fsdp_offload_params", "fsdp_config.fsdp_sharding_strategy",  # where FSDP does not run
        "parallelism_config.*_backend", "parallelism_config.*_is_variable", "machine_*", "fp16", "quiet",
    ),
    deciding={
        "deepspeed_config.deepspeed_config_file": "how states are shared out, in another file: memory and time",
        "fp8_config*": "products in 8 bits: time",
        "use_cpu": ON_PROCESSORS,
        "fsdp_config.fsdp_min_num_params": "how many layers are gathered at a time: memory",
        "fsdp_config.fsdp_activation_checkpointing_offload": "where saved activations wait: memory and time",
        "parallelism_config.parallelism_config_sp_attn_implementation": "the kernel of attention: time",
        "deepspeed_config.seq_parallel_communication_data_type": "bits of what is sent: time between devices",
        "dynamo_backend": "fused operators: time and memory",  # of configs before dynamo_config
        "megatron_lm_config*": "how Megatron-LM runs it: time and memory",
    },
) | DEEPSPEED_WORDS  # fmt: skip

READER = Reader(
    name="accelerate",
    description="Accelerate: the YAML of accelerate launch",
    read=read,
    starts=lambda words: "accelerate" in words and value_of(words, CONFIG_FILE) is not None,
    config=lambda words: value_of(words, CONFIG_FILE),
    owns=lambda data: "distributed_type" in data or ("num_processes" in data and bool(BESIDE & set(data))),
    words=WORDS,
    written_as="accelerate",
)
