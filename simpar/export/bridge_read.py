"""Recipes of Megatron-Bridge and of NeMo 2 back to a plan: Python that is read, never run.

Their fields are Megatron-LM's arguments under other names, so they are read as those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from simpar.errors import UserError
from simpar.export.bridge_names import PLAIN, SWITCHES
from simpar.export.match import layers_in, named
from simpar.export.megatron_arguments import Arguments
from simpar.export.megatron_read import plan_of
from simpar.export.recipes import Given, Made, Recipes, Unknown, split_name
from simpar.export.target import Imported

MOVED = (
    ("trainer.strategy.ddp.", "ddp."), ("trainer.strategy.", "model."), ("model.config.", "model."),
    ("data.seq_length", "model.seq_length"), ("data.", "train."), ("comm_overlap.", "model."),
)  # fmt: skip
"""Where NeMo 2 has what Bridge has elsewhere; overlaps of Bridge override its model's."""
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
    "mixed": (), "with_fp8_delayed_scaling_mixed": ("hybrid", "delayed"), "with_mxfp8_mixed": ("e4m3", "mxfp8"),
    "with_fp8_current_scaling_mixed": ("hybrid", "tensorwise"),
    "with_fp8_subchannel_scaling_mixed": ("e4m3", "blockwise"), "with_nvfp4_mixed": ("e2m1", "nvfp4"),
}  # fmt: skip
"""8- and 4-bit formats and recipes by what follows bf16_ and fp16_ in the name of a precision."""
MORE = {
    "model.seq_length": "--seq-length",
    "model.num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "model.num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}
"""Fields that are arguments, too, and that exports do not write."""
SPLITS = {
    f"model.account_for_{end}_in_pipeline_split": f"--account-for-{end}-in-pipeline-split"
    for end in ("embedding", "loss")
}
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def read(text: str, name: str) -> Imported:
    """The plan in a recipe, ``FILE.py:RECIPE`` where there are several. Raises UserError."""
    path, recipe = split_name(name)
    recipes = Recipes(text, path)
    _, config = recipes.made(recipe, _is_config)
    fields = {
        moved: value for key, value in config.flat() if (moved := _moved(key)) not in ("model", "trainer")
    }
    if config.called.endswith("_pretrain_common"):
        fields = COMMON | fields
    elif config.called not in ("", "fn") and not config.called.endswith("ConfigContainer"):
        fields = OF_RECIPES | fields
        recipes.notes.append(
            f"What {config.called}() sets is in another file: not read, except that such recipes train in bf16 and "
            "shard the optimizer's states."
        )
    given = Given(fields, path)
    values = dict(_flags(given, config))
    sources = [*_of_model(config.fields.get("model")), *_of_recipe(config.called)]
    model = next(filter(None, map(named, sources)), None)
    if model:
        values.setdefault("--num-layers", [str(layers_in(model))])
    arguments = Arguments(
        values, path, tuple(recipes.notes), {flag: field for field, flag in _plain().items()}
    )
    imported = plan_of(arguments, model)
    return Imported(imported.plan, (*imported.ignored, *given.rest()), imported.notes)


def _is_config(made: Made) -> bool:
    return "trainer" in made.fields or ("model" in made.fields and "train" in made.fields)


def _moved(key: str) -> str:
    return next((there + key.removeprefix(here) for here, there in MOVED if key.startswith(here)), key)


def _plain() -> dict[str, str]:
    return {field: flag for flag, field in PLAIN.items()} | MORE


def _flags(given: Given, config: Made) -> Iterator[tuple[str, list[str]]]:
    """Arguments of Megatron-LM from fields."""
    given.get("dataset.seq_length")
    for field, flag in _plain().items():
        value = given.values_.get(field)
        given.used.add(field)
        if isinstance(value, Unknown | Made):  # refused by who asks for it
            value = f"$({value.text if isinstance(value, Unknown) else value.called})"
        if field == "model.pipeline_model_parallel_layout" and isinstance(value, list):
            value = "|".join("".join(LETTERS.get(str(part), "?") for part in stage) for stage in value)
        if value is not None and not (
            field.endswith("sharding_strategy") and not given.get("ddp.use_megatron_fsdp")
        ):
            yield flag, [str(each) for each in value] if isinstance(value, list) else [str(value)]
    for flag, wanted in SWITCHES.items():
        if any(given.get(field) == value for field, value in wanted.items() if field in given):
            yield flag, []
    modules = given.get("model.recompute_modules")
    if modules:
        yield "--recompute-modules", [str(each) for each in modules]
    if given.get("ddp.grad_reduce_in_fp32") is False:
        yield "--grad-reduce-in-bf16", []
    yield from ((flag, []) for field, flag in SPLITS.items() if given.get(field) is True)
    if _is_sharded(config):
        yield "--use-distributed-optimizer", []
    if _overlaps(config):
        yield "--tp-comm-overlap", []
    if given.get("model.num_query_groups") is not None:
        yield "--group-query-attention", []
    yield from _precision(given, config)


def _overlaps(config: Made) -> bool:
    """Whether a callback of NeMo's trainer overlaps tensor parallelism."""
    trainer = config.fields.get("trainer")
    found = trainer.fields.get("callbacks") if isinstance(trainer, Made) else None
    return any(isinstance(each, Made) and each.fields.get("tp_comm_overlap") is True for each in found or ())


def _is_sharded(config: Made) -> bool:
    """Whether the optimizer is one of NeMo 2 that shards its states (``recipes/optim/adam.py``)."""
    optim = config.fields.get("optim")
    return isinstance(optim, Made) and optim.name.startswith("distributed_fused_adam")


def _precision(given: Given, config: Made) -> Iterator[tuple[str, list[str]]]:
    trainer = config.fields.get("trainer")
    found: Any = (
        trainer.fields.get("plugins") if isinstance(trainer, Made) else config.fields.get("mixed_precision")
    )
    if found is None:
        found = given.get("mixed_precision")
    if isinstance(found, Unknown):
        raise UserError(
            f"{given.source}:{found.line}: mixed_precision = {found.text[:40]}: allowed: a value, no code"
        )
    if isinstance(found, Made) and found.args and isinstance(found.args[0], str):
        found = found.args[0]  # get_mixed_precision_config("bf16_mixed")
    if isinstance(found, Made) and not found.fields:
        found = found.name
    if isinstance(found, Made):
        yield from _of_fields(found.fields)
        return
    if found is None:
        return
    name = re.fullmatch(r"(?:\w+?_)??(bf16|fp16)_(\w+)", str(found).replace("-", "_"))
    half, rest = name.groups() if name else ("", "")
    if rest not in PRECISIONS:
        allowed = f"bf16_ or fp16_ and {', '.join(PRECISIONS)}"
        raise UserError(f"{given.source}: mixed_precision = {found}: allowed: {allowed}")
    yield f"--{half}", []
    yield from _narrow(PRECISIONS[rest])


def _of_fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for half in ("bf16", "fp16"):
        if fields.get(half) is True:
            yield f"--{half}", []
    if fields.get("fp8"):
        yield from _narrow((str(fields["fp8"]), str(fields.get("fp8_recipe", "delayed"))))
    if fields.get("grad_reduce_in_fp32") is False:
        yield "--grad-reduce-in-bf16", []


def _narrow(form: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    if form:
        bits = 4 if form[1] == "nvfp4" else 8
        yield f"--fp{bits}-format", [form[0]]
        yield f"--fp{bits}-recipe", [form[1]]


def _of_recipe(called: str) -> Iterator[str]:
    """Names of models in that of a recipe: ``llm.llama3_8b.pretrain_recipe``, ``llama3_8b_pretrain_config``."""
    for part in called.split("."):
        yield re.sub(r"_(pretrain|finetune|sft|peft)(_config|_recipe)?$", "", part)


def _of_model(model: Any) -> Iterator[str]:
    """Names that a model goes by: the hub's that it is loaded from, or that of its config class."""
    if isinstance(model, str):
        yield model
    if isinstance(model, Made):
        yield model.name
        for each in (*model.args, model.fields.get("config")):
            yield from _of_model(each)
