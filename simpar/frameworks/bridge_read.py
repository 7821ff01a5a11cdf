"""Recipes of Megatron-Bridge and of NeMo 2 back to a plan: Python that is parsed, never run.

Their fields are Megatron-LM's arguments under other names, so they are read as those.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simpar.architectures.catalogue import find_model
from simpar.errors import UserError
from simpar.frameworks.bridge_names import PLAIN, REDUCES_IN_FP32, SWITCHES
from simpar.frameworks.match import layers_in
from simpar.frameworks.megatron_arguments import Arguments
from simpar.frameworks.megatron_read import plan_of
from simpar.frameworks.reader import Reader
from simpar.frameworks.recipes import ConfigCall, ConfigReader, Recipes, Unresolved, split_name
from simpar.frameworks.target import Imported

MOVED = (
    ("trainer.strategy.ddp.", "ddp."), ("trainer.strategy.", "model."), ("model.config.", "model."),
    ("data.seq_length", "model.seq_length"), ("data.", "train."), ("comm_overlap.", "model."),
    ("trainer.plugins", "mixed_precision"),
)  # fmt: skip
"""Fields that NeMo 2 has in another place than Bridge; Bridge's overlap fields override those of its model."""
COMMON = {
    "train.global_batch_size": 32, "train.micro_batch_size": 2, "ddp.grad_reduce_in_fp32": True,
    "ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": True, "ddp.use_distributed_optimizer": True,
    "mixed_precision": "bf16_mixed",
}  # fmt: skip
"""What ``_pretrain_common`` of Megatron-Bridge 0.3 sets (``megatron/bridge/recipes/common.py``)."""
OF_RECIPES = {"mixed_precision": "bf16_mixed", "ddp.use_distributed_optimizer": True}
"""What recipes of both have unless they say otherwise: NeMo 2's (``nemo/collections/llm/recipes/llama3_8b.py`` and its
kin: ``bf16_mixed()``, ``distributed_fused_adam_with_cosine_annealing``) as Bridge's."""
PRECISIONS: dict[str, tuple[str, ...]] = {
    "mixed": (), "with_fp8_mixed": ("hybrid", "delayed"), "with_fp8_delayed_scaling_mixed": ("hybrid", "delayed"),
    "with_mxfp8_mixed": ("e4m3", "mxfp8"),
    "with_fp8_current_scaling_mixed": ("hybrid", "tensorwise"),
    "with_fp8_subchannel_scaling_mixed": ("e4m3", "blockwise"), "with_nvfp4_mixed": ("e2m1", "nvfp4"),
}  # fmt: skip
"""8- and 4-bit formats and recipes, by the part of a precision's name after bf16_ or fp16_."""
PRECISION_CLASSES = ("MixedPrecisionConfig", "MegatronMixedPrecision")
"""Classes of Bridge and NeMo 2 that the functions of :data:`PRECISIONS` create, whose fields can be set."""
MORE = {
    "model.seq_length": "--seq-length",
    "model.num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "model.num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}
"""Fields that correspond to arguments as well, but that exports do not write."""
SPLITS = {
    f"model.account_for_{end}_in_pipeline_split": f"--account-for-{end}-in-pipeline-split"
    for end in ("embedding", "loss")
}
DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.half": "fp16"}
"""Dtypes as arguments write them, by PyTorch's names."""
OFFLOADED = "optimizer_offload_fraction"
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def read(text: str, name: str) -> Imported:
    """The plan in a recipe; ``FILE.py:RECIPE`` if there are several. Raises UserError."""
    path, recipe = split_name(name)
    recipes = Recipes(text, path)
    _, config = recipes.made(recipe, _is_config)
    fields = {moved: value for key, value in config.flat() if (moved := _moved(key)) not in ("model", "trainer")}
    untold: set[str] = set()
    if config.called.endswith("_pretrain_common"):
        fields = COMMON | fields
    elif config.called not in ("", "fn") and not config.called.endswith("ConfigContainer"):
        fields = OF_RECIPES | fields
        untold = {flag for flag, wanted in SWITCHES.items() if not set(wanted) & set(fields)}
        recipes.notes.append(
            f"What {config.called}() sets is in another file: not read, except that such recipes train in bf16 and "
            "shard the optimizer's states."
        )
    given = ConfigReader(fields, path)
    values = dict(_flags(given, config))
    sources = [*_of_model(config.fields.get("model")), *_of_recipe(config.called)]
    model = next(filter(None, map(find_model, sources)), None)
    if model:
        values.setdefault("--num-layers", [str(layers_in(model))])
    names = {flag: field for field, flag in _plain().items()}
    arguments = Arguments(values, path, tuple(recipes.notes), names, untold)
    imported = plan_of(arguments, model)
    return replace(imported, words=imported.words + given.words(), per_replica=None)


def _is_config(made: ConfigCall) -> bool:
    return "trainer" in made.fields or ("model" in made.fields and "train" in made.fields)


def _moved(key: str) -> str:
    return next((there + key.removeprefix(here) for here, there in MOVED if key.startswith(here)), key)


def _plain() -> dict[str, str]:
    return {field: flag for flag, field in PLAIN.items()} | MORE


def _flags(given: ConfigReader, config: ConfigCall) -> Iterator[tuple[str, list[str]]]:
    """Megatron-LM's arguments from fields."""
    given.get("dataset.seq_length")
    for field, flag in _plain().items():
        value = given.values_.get(field)
        given.used.add(field)
        if isinstance(value, Unresolved):
            value = DTYPES.get(value.text, value)
        if isinstance(value, Unresolved | ConfigCall):  # refused when it is read
            value = f"$({value.text if isinstance(value, Unresolved) else value.called})"
        if field == "model.pipeline_model_parallel_layout" and isinstance(value, list):
            value = "|".join("".join(LETTERS.get(str(part), "?") for part in stage) for stage in value)
        if value is not None and not (field.endswith("sharding_strategy") and not given.get("ddp.use_megatron_fsdp")):
            yield flag, [str(each) for each in value] if isinstance(value, list) else [str(value)]
    for flag, wanted in SWITCHES.items():
        if any(given.get(field) == value for field, value in wanted.items() if field in given):
            yield flag, []
    modules = given.get("model.recompute_modules")
    if modules:
        yield "--recompute-modules", [str(each) for each in modules]
    yield from ((flag, []) for field, flag in SPLITS.items() if given.get(field) is True)
    if given.get("optimizer.optimizer_cpu_offload") and f"optimizer.{OFFLOADED}" not in given:
        yield "--optimizer-offload-fraction", ["0"]  # the config's default, unlike the argument's
    if _is_sharded(config):
        yield "--use-distributed-optimizer", []
    if _overlaps(config):
        yield "--tp-comm-overlap", []
    if given.get("model.num_query_groups") is not None:
        yield "--group-query-attention", []
    yield from _precision(given, config)


def _overlaps(config: ConfigCall) -> bool:
    """Whether a callback of NeMo's trainer overlaps tensor parallelism."""
    trainer = config.fields.get("trainer")
    callbacks = trainer.fields.get("callbacks") if isinstance(trainer, ConfigCall) else None
    return any(isinstance(each, ConfigCall) and each.fields.get("tp_comm_overlap") is True for each in callbacks or ())


def _is_sharded(config: ConfigCall) -> bool:
    """Whether the optimizer is one of NeMo 2 that shards its states (``recipes/optim/adam.py``)."""
    optim = config.fields.get("optim")
    return isinstance(optim, ConfigCall) and optim.name.startswith("distributed_fused_adam")


def _precision(given: ConfigReader, config: ConfigCall) -> Iterator[tuple[str, list[str]]]:
    """Arguments from the precision object: fields that its function sets, and fields that were set later."""
    trainer = config.fields.get("trainer")
    made = trainer.fields.get("plugins") if isinstance(trainer, ConfigCall) else None
    name = _name_of_precision(given, made or config.fields.get("mixed_precision"))
    sets = _set_by(name, given.source) if name else {}

    def value(field: str) -> Any:
        return given.get(f"mixed_precision.{field}", sets.get(field))

    yield from ((f"--{half}", []) for half in ("bf16", "fp16") if value(half) is True)
    for bits, recipe in (("fp8", "delayed"), ("fp4", "nvfp4")):
        if form := value(bits):
            yield f"--{bits}-format", [str(form)]
            yield f"--{bits}-recipe", [str(value(f"{bits}_recipe") or recipe)]
    said = (value("grad_reduce_in_fp32"), given.get("ddp.grad_reduce_in_fp32"))  # the first overrides the second
    if next((each for each in said if each is not None), None) is False:
        yield "--grad-reduce-in-bf16", []


def _name_of_precision(given: ConfigReader, made: Any) -> str | None:
    """The name of the function that creates the precision object; None if only its fields are known."""
    given.used.add("mixed_precision")
    usual = given.values_.get("mixed_precision")  # the recipe's precision, if fields of it were set
    precision = usual if made is None or (isinstance(made, ConfigCall) and not made.called) else made
    if isinstance(precision, Unresolved):
        raise UserError(
            f"{given.source}:{precision.line}: mixed_precision = {precision.text[:40]}: allowed: a value, no code"
        )
    if not isinstance(precision, ConfigCall):
        return None if precision is None else str(precision)
    if precision.args and isinstance(precision.args[0], str):
        return precision.args[0]  # get_mixed_precision_config("bf16_mixed")
    if precision.name in PRECISION_CLASSES:
        return given.get("mixed_precision.precision")
    return precision.name


def _set_by(name: str, source: str) -> Mapping[str, Any]:
    """Fields that the function of a name sets; bf16 and fp16 reduce gradients in different dtypes. Raises UserError."""
    match = re.fullmatch(r"(?:\w+?_)??(bf16|fp16|16)_(\w+)", name.replace("-", "_"))
    half, rest = match.groups() if match else ("", "")
    if rest not in PRECISIONS:
        allowed = f"bf16_ or fp16_ and {', '.join(PRECISIONS)}"
        raise UserError(f"{source}: mixed_precision = {name}: allowed: {allowed}")
    half = "bf16" if half == "bf16" else "fp16"
    result: dict[str, Any] = {half: True, "grad_reduce_in_fp32": REDUCES_IN_FP32[half]}
    if form := PRECISIONS[rest]:
        bits = "fp4" if form[1] == "nvfp4" else "fp8"
        result |= {bits: form[0], f"{bits}_recipe": form[1]}
    return result


def _of_recipe(called: str) -> Iterator[str]:
    """Candidate model names in a recipe's name: ``llm.llama3_8b.pretrain_recipe``, ``llama3_8b_pretrain_config``."""
    for part in called.split("."):
        yield re.sub(r"_(pretrain|finetune|sft|peft)(_config|_recipe)?$", "", part)


def _of_model(model: Any) -> Iterator[str]:
    """Candidate names of a model: the hub name it is loaded from, or that of its config class."""
    if isinstance(model, str):
        yield model
    if isinstance(model, ConfigCall):
        yield model.name
        for each in (*model.args, model.fields.get("config")):
            yield from _of_model(each)


READER = Reader(
    name="megatron-bridge", description="Megatron-Bridge: a recipe in Python", read=read, written_as="megatron-bridge"
)
NEMO_READER = Reader(name="nemo-run", description="NeMo 2: a recipe in Python", read=read, written_as="nemo-run")
