"""A DeepSpeed config back to a plan."""

from collections.abc import Iterator, Mapping
from typing import Any

from simpar import files
from simpar.errors import UserError
from simpar.frameworks.deepspeed_states import of_script, of_versions
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.recipes import ConfigReader, without_auto
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.words import WordTable
from simpar.units import DTYPE_BYTES

STAGE, OVERLAP = "zero_optimization.stage", "zero_optimization.overlap_comm"
REDUCES = "zero_optimization.reduce_scatter"
STAGES = ("0", "1", "2", "3")
SECTIONS = ("zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu", "bf16", "fp16")
MAPPINGS = ("zero_optimization", "bf16", "fp16")
"""Sections, which some write as one value; DeepSpeed stops at it."""
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
BESIDE = ("steps_per_print", "gradient_accumulation_steps", "gradient_clipping", "wall_clock_breakdown", "optimizer")
"""What a config has beside a batch of all devices, which other front ends name so, too."""
PARTS = {"offload_optimizer": "offload_optimizer", "offload_parameters": "offload_param"}
"""What a plan may offload, by DeepSpeed's names."""
EARLIER = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_params"}
"""Switches that sections stand for since DeepSpeed 0.3.16, and that are still read (``runtime/zero/config.py``)."""
MODEL_NOTE = "A DeepSpeed config names no model and no sequence length: give --model and --seq-len."
CONFIG_FILE = ("--deepspeed_config", "--deepspeed-config", "--deepspeed")
HOMES = ("none", "cpu", "nvme")


def read(text: str, name: str) -> Imported:
    """The plan in a DeepSpeed config. Raises UserError naming file, option and value.

    Values of "auto" are filled in by the program that starts DeepSpeed: they are listed, and the plan leaves them open.
    """
    is_yaml = name.endswith((".yaml", ".yml"))
    data = (files.read_yaml if is_yaml else files.read_json)(text, name, finite=False)
    given, auto = without_auto(of_deepspeed(data, name), name)
    batch, _ = _batch(given)
    values = values_of(given, auto)
    values, own, assumed = of_versions(values, values["precision"])
    plan = plan_said(values)
    local, microbatches = _local(given, auto), _microbatches(given, auto)
    asks = {"model": MODEL_NOTE, "micro_batch": _micro_note(given, batch, microbatches)}
    notes = (MODEL_NOTE, *_notes(given, batch, auto, asks["micro_batch"]), *own, *given.misspelt())
    assumed = (*assumed, *of_script({**values, "micro_batch": 1} if microbatches else values))
    return Imported(plan, given.words(), notes, local, microbatches, asks=asks, assumed=assumed)


def of_deepspeed(data: Any, name: str) -> Mapping[str, Any]:
    """A config, which is DeepSpeed's. Raises UserError if it is another's."""
    if not isinstance(data, Mapping) or not any(key in data for key in SECTIONS):
        raise UserError(f"{name}: no DeepSpeed config, such as one with zero_optimization")
    return data


def values_of(given: ConfigReader, auto: list[str]) -> dict[str, Any]:
    """The values of a plan in a DeepSpeed config whose options ``auto`` are left open. Raises UserError."""
    if STAGE in auto:
        raise UserError(f"{given.source}: {STAGE} = 'auto': who starts DeepSpeed says it; allowed: {', '.join(STAGES)}")
    for key in MAPPINGS:
        if (value := given.values_.get(key)) not in (None, {}):
            shown = '{"stage": 1}' if key == "zero_optimization" else '{"enabled": true}'
            raise UserError(f"{given.source}: {key} = {value!r}: allowed: a mapping, such as {shown}")
    batch, dp = _batch(given)
    values: dict[str, Any] = {
        "stack": "deepspeed",
        "dp": dp,
        "micro_batch": given.whole("train_micro_batch_size_per_gpu"),
        "training": {"global_batch": batch} if batch else None,
        **_zero(given, auto),
        **_numerics(given, auto),
    }
    tp = given.whole("tensor_parallel.autotp_size")
    return values | ({"tp": tp, "sequence_parallel": False} if tp and tp > 1 else {})


def _batch(given: ConfigReader) -> tuple[int | None, int | None]:
    """Sequences of a step, and the data-parallel ranks that follow from them."""
    batch, micro, accumulation = (given.whole(key) for key in BATCH)
    if not batch or not micro or not accumulation:
        return batch, None
    dp, rest = divmod(batch, micro * accumulation)
    if rest or not dp:
        raise UserError(
            f"{given.source}: train_batch_size = {batch}: allowed: a multiple of train_micro_batch_size_per_gpu x "
            f"gradient_accumulation_steps = {micro} x {accumulation}"
        )
    return batch, dp


def _local(given: ConfigReader, auto: list[str]) -> int | None:
    """Sequences of a rank's step, if the config does not give the global batch."""
    micro = given.whole("train_micro_batch_size_per_gpu")
    if not micro or "train_batch_size" in given or {"train_batch_size", "gradient_accumulation_steps"} & set(auto):
        return None
    return micro * (given.whole("gradient_accumulation_steps") or 1)


def _microbatches(given: ConfigReader, auto: list[str]) -> int | None:
    """Microbatches of a rank's step if no micro-batch is given: one, unless the config says more."""
    is_open = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"} & set(auto)
    if is_open or "train_batch_size" not in given or "train_micro_batch_size_per_gpu" in given:
        return None
    return given.whole("gradient_accumulation_steps") or 1


def _micro_note(given: ConfigReader, batch: int | None, microbatches: int | None) -> str:
    if microbatches:
        ranks = f"({microbatches} x data-parallel ranks)"
        return f"The micro-batch is {batch} / {ranks}: the plan has 1; set micro_batch in it."
    if "train_micro_batch_size_per_gpu" not in given:
        return "The micro-batch is not said: the plan has 1; set micro_batch where it is another."
    return ""


def _notes(given: ConfigReader, batch: int | None, auto: list[str], micro_note: str) -> Iterator[str]:
    if batch:
        yield f"The global batch is {batch} sequences."
    if auto:
        yield f"Filled in by who starts it (auto), and not read: {', '.join(auto)}."
    if micro_note:
        yield micro_note
    if {"bf16.enabled", "fp16.enabled"} & set(auto):
        yield "The precision is not said: the plan has bf16; set numerics.precision where it is another."
    if any(key.startswith("activation_checkpointing") for key in given):
        yield "Which layers are recomputed is code: set memory.recompute in the plan."


def _zero(given: ConfigReader, auto: list[str]) -> dict[str, Any]:
    """Stage, overlap (the default is on for stage 3 only, ``runtime/zero/config.py``), offloading and buckets."""
    stage = given.whole(STAGE, 0) or 0
    if str(stage) not in STAGES:
        raise UserError(f"{given.source}: {STAGE} = {stage}: allowed: {', '.join(STAGES)}")
    if stage == 3:
        given.used |= {REDUCES} & set(given)  # gradients are reduced to their shards in any case
    _take_kept(given, stage)
    overlap = given.get(OVERLAP)
    if overlap is None and OVERLAP not in auto:
        overlap = stage == 3
    bucket = given.whole("zero_optimization.reduce_bucket_size")
    low = given.get("data_types.grad_accum_dtype") in (None, "bf16", "bfloat16", "fp16")
    size = DTYPE_BYTES["bf16" if low else "fp32"]
    return {
        "zero": stage,
        "overlap_grad_reduce": overlap if stage and isinstance(overlap, bool) else None,
        **_offload(given, stage),
        "bucket_bytes": f"{int(bucket * size)} B" if bucket else None,
    }


def _offload(given: ConfigReader, stage: int) -> dict[str, Any]:
    """What is offloaded to the host or to drives. Raises UserError."""
    values = {name: _home_of_part(given, part) for name, part in parts_of(stage)}
    ratio = given.get("zero_optimization.offload_optimizer.ratio")
    return values | {"offload_ratio": ratio if values["offload_optimizer"] not in (None, "none") else None}


def parts_of(stage: int) -> Iterator[tuple[str, str]]:
    """What a stage can offload: parameters are stage 3's alone, and the section of others is not looked at.

    Valid only with stage 3 [``runtime/zero/config.py``, offload_param].
    """
    return ((name, part) for name, part in PARTS.items() if part != "offload_param" or stage == 3)


def _home_of_part(given: ConfigReader, part: str) -> str | None:
    """Where a part of the states is; None if neither its section nor its earlier switch says so. Raises UserError."""
    earlier = "cpu" if given.get(f"zero_optimization.{EARLIER[part]}") is True else None
    return home_of(given, f"zero_optimization.{part}.device") or earlier


def home_of(given: ConfigReader, key: str) -> str | None:
    """Where something is offloaded to; None if the config does not say. Raises UserError."""
    home = given.get(key)
    if home is not None and home not in HOMES:
        raise UserError(f"{given.source}: {key} = {home!r}: allowed: {', '.join(HOMES)}")
    return home


def _numerics(given: ConfigReader, auto: list[str]) -> dict[str, Any]:
    half = "bf16" if given.get("bf16.enabled") else "fp16" if given.get("fp16.enabled") else "fp32"
    if half == "fp32" and {"bf16.enabled", "fp16.enabled"} & set(auto):
        half = "bf16"
    names = {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"}
    kind = str(given.get("optimizer.type") or "AdamW").lower()
    momentum = given.get("optimizer.params.momentum")
    optimizers = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd_momentum" if momentum else "sgd"}
    if kind not in optimizers:
        raise UserError(f"{given.source}: optimizer.type = {kind!r}: allowed: {', '.join(optimizers)}")
    grads = names.get(str(given.get("data_types.grad_accum_dtype")))
    # Adam that the config names is DeepSpeed's fused one, unless it says torch_adam or the host runs it
    # (``runtime/engine.py``, _configure_basic_optimizer)
    own = "optimizer.type" in given and "adam" in kind and not given.get("optimizer.params.torch_adam")
    fused = own and _home_of_part(given, PARTS["offload_optimizer"]) in (None, "none")
    return {
        "precision": half,
        "grad_dtype": None if half == "fp32" else grads,
        "optimizer": optimizers[kind],
        "optimizer_kernels": "fused" if fused else None,
    }


KEPT: Mapping[str, float] = {
    **{f"zero_optimization.{prefix}{name}": 1_000_000_000
       for prefix in ("", "stage3_") for name in ("max_live_parameters", "max_reuse_distance")},
    "zero_optimization.stage3_param_persistence_threshold": 1_000_000,
    "zero_optimization.param_persistence_threshold": 1_000_000,
}  # fmt: skip
"""Parameters that ZeRO-3 may keep gathered: up to the defaults of the first two, in which layers are gathered one by
one, and none of a matrix of a language model (``runtime/zero/config.py``)."""


def _take_kept(given: ConfigReader, stage: int) -> None:
    """Take limits on gathered parameters as read where they leave a layer at a time, or nothing is gathered."""
    for key, most in KEPT.items():
        value = given.values_.get(key)
        if stage < 3 or not isinstance(value, int | float) or value <= most:
            given.used |= {key} & set(given)


WORDS = WordTable(
    idle=(
        "gradient_clipping", "steps_per_print", "wall_clock_breakdown", "dump_state", "prescale_gradients",
        "optimizer.params*", "scheduler*", "fp16.*", "bf16.*", "tensorboard*", "wandb*", "csv_monitor*",
        "checkpoint*", "data_types*", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
        "comms_logger*", "memory_breakdown", "flops_profiler*", "zero_optimization.contiguous_gradients",
        "zero_optimization.allgather_partitions",
        "zero_optimization.allgather_bucket_size", "zero_optimization.stage3_gather*",
        "zero_optimization.*pin_memory", "zero_optimization.*buffer_count", "zero_optimization.*buffer_size",
        "zero_optimization.*nvme_path", "zero_optimization.sub_group_size",
        "zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.*fast_init",
        "zero_optimization.stage3_model_persistence_threshold", "zero_optimization.round_robin_gradients",
        "zero_optimization.ignore_unused_parameters", "aio*", "seed", "monitor_config*", "comms_config*",
        "zero_optimization.gather_16bit_weights_on_model_save", "zero_optimization.cpu_offload*",
        "zero_optimization.offload_param*",
        "zero_optimization.stage3_module_granularity_threshold", "zero_optimization.load_from_fp32_weights",
        "activation_checkpointing.profile", "activation_checkpointing.synchronize*",
        "activation_checkpointing.number_checkpoints", "zero_optimization.elastic_checkpoint",
        "zero_optimization.stage3_use_all_reduce_for_fetch_params",
    ),
    deciding={
        "zero_optimization.zero_hpz_partition_size": "a second copy of the weights in each node: memory and time",
        "zero_optimization.zero_quantized_*": "bits of what is sent: time between devices",
        "zero_optimization.mics_shard_size": "ranks that share a copy of the states: memory and time",
        "zero_optimization.reduce_bucket_size": "a bucket that follows from the width of a model: memory",
        "zero_optimization.zenflow*": "which parameters the host updates: time",
        "zero_optimization.*super_offload": "which parameters the host updates: time",
        "activation_checkpointing.partition_activations": "how saved activations are shared: memory",
        "activation_checkpointing.cpu_checkpointing": "where saved activations wait: memory and time",
        "activation_checkpointing.contiguous_memory_optimization": "where saved activations are kept: memory",
        "compile*": "fused operators: time",
        "sparse_attention*": "attention of a part of the keys: time",
        "data_efficiency*": "lengths of sequences: time and memory",
        "curriculum_learning*": "lengths of sequences: time and memory",
        "eigenvalue*": "further passes: time",
        "amp*": "the precision of products: time and memory",
        "communication_data_type": "bits of what is sent: time between devices",
        **dict.fromkeys(("*master_weights_and_grads", "bf16.bf16_optimizer_states"), "the precision of states: memory"),
        **dict.fromkeys(KEPT, "parameters that stay gathered: memory"),
        "bf16.immediate_grad_update": "when gradients are added: memory",
        "sequence_parallel_size": "ranks that share a sequence: memory and time",
    },
    off={REDUCES: "gradients are reduced to all ranks: communication"},
)  # fmt: skip


def _owns(data: Mapping[str, Any]) -> bool:
    """Whether a mapping is a DeepSpeed config; its sections for 16 bits are mappings."""
    is_own = any(key in data for key in ("zero_optimization", "train_micro_batch_size_per_gpu"))
    is_low = any(isinstance(data.get(key), Mapping) for key in ("bf16", "fp16"))
    return is_own or is_low or ("train_batch_size" in data and any(key in data for key in BESIDE))


READER = Reader(
    name="deepspeed",
    description="DeepSpeed: its JSON",
    read=read,
    starts=lambda words: value_of(words, CONFIG_FILE) is not None,
    config=lambda words: value_of(words, CONFIG_FILE),
    owns=_owns,
    words=WORDS,
    written_as="deepspeed",
)
