"""What Megatron-Bridge's runners do with a recipe and the fields of a command, before it trains."""

from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.bridge_launch import OVER, PIPELINE, TENSOR, VIRTUAL
from simpar.frameworks.bridge_recipes import KNOWN
from simpar.frameworks.megatron_read import FIRST, LAST
from simpar.frameworks.recipe_values import ConfigCall, Unresolved
from simpar.frameworks.recipes import Recipes
from simpar.units import MIB

LENGTHS = ("dataset.seq_length", "dataset.sequence_length")
"""Fields of the length of data, in the order in which Bridge's runner looks for it."""
BENCHMARKS = "perf_recipes"
"""The package whose recipes keep the sequences of a rank, whatever ranks are started."""
BATCH, LAYOUT = "train.global_batch_size", "model.pipeline_model_parallel_layout"
END_FIELDS = {FIRST: "model.num_layers_in_first_pipeline_stage", LAST: "model.num_layers_in_last_pipeline_stage"}
"""Arguments of the layers of the first and the last stage, and their fields."""
OF_MODEL = ("tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
OF_REPLICAS = {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_size": 128 * MIB}
"""What a config of overlaps switches off in the model, and sets beside a sharded optimizer, where it says nothing."""


def apply_changes(config: ConfigCall, changes: Mapping[str, Any], recipes: Recipes, stem: str) -> bool:
    """Set fields over a recipe, with what follows from them; whether its batch is that of its own number of ranks.

    ``stem`` is the performance launcher's name of the recipe, "" for the other launcher. Raises UserError.
    """
    own = _replica_ranks(config)
    if OVER + "overlap_moe_expert_parallel_comm" in changes and "comm_overlap" not in config.fields:
        config.put(f"{OVER}tp_comm_overlap", changes.get(TENSOR, _field(config, TENSOR) or 1) != 1)
    for field, value in changes.items():
        config.put(field, value)
    _follow_stages(config, changes, recipes, stem)
    if BENCHMARKS not in Path(recipes.source).parts or BATCH in changes:
        return False
    if own != (ranks := _replica_ranks(config)):
        _scale_batch(config, own, ranks, recipes)
    return True


def _field(config: ConfigCall, name: str) -> Any:
    return dict(config.flat()).get(name)


def _replica_ranks(config: ConfigCall) -> int:
    """Ranks of a replica of the dense layers."""
    fields = dict(config.flat())
    sizes = (fields.get(name) for name in (TENSOR, PIPELINE, "model.context_parallel_size"))
    return prod(size for size in sizes if isinstance(size, int))


def _scale_batch(config: ConfigCall, own: int, ranks: int, recipes: Recipes) -> None:
    """Keep the sequences of a data-parallel rank where a replica has other ranks than the recipe's (``run_recipe.py``).

    Raises UserError where they are no whole number.
    """
    batch = _field(config, BATCH)
    if not isinstance(batch, int):
        return
    scaled, rest = divmod(batch * own, ranks)
    if rest or not scaled:
        raise UserError(
            f"{recipes.source}: {BATCH} = {batch} of replicas of {own} ranks: no whole number with {ranks}; allowed: "
            f"{BATCH}=N in the command"
        )
    config.put(BATCH, scaled)
    recipes.notes.append(
        f"{BATCH} is {scaled}, not {batch}: the runner keeps the sequences of every data-parallel rank."
    )


def _follow_stages(config: ConfigCall, changes: Mapping[str, Any], recipes: Recipes, stem: str) -> None:
    """Give a recipe the layers of its stages anew where a command changes their number, as the launchers do.

    Those are ``scripts/training/recipe_runner.py``, and ``scripts/performance/utils/overrides.py`` for models that it
    knows by their ``stem``. Raises UserError.
    """
    model = config.fields.get("model")
    if not isinstance(model, ConfigCall) or not {PIPELINE, VIRTUAL} & changes.keys() or LAYOUT in changes:
        return
    builder = model.fields.get("_pipeline_model_parallel_layout_builder")
    if stem.startswith("deepseek_v3"):
        model.fields.pop(LAYOUT.removeprefix("model."), None)
        KNOWN["set_deepseek_v3_pipeline_model_parallel_layout"](model)
    elif isinstance(builder, Unresolved):
        sizes = (model.fields.get(name.removeprefix("model.")) for name in (PIPELINE, VIRTUAL))
        config.put(LAYOUT, recipes.result_of(builder.text, *sizes))


def with_even_ends(values: dict[str, list[str]], changes: Collection[str]) -> dict[str, list[str]]:
    """Without the layers of the first and the last stage, where others do not share out evenly what these leave.

    Bridge's runner drops them with another number of stages (``scripts/training/recipe_runner.py``).
    """
    ends = {flag: field for flag, field in END_FIELDS.items() if flag in values}
    if "--num-layers" not in values or "--pipeline-model-parallel-layout" in values:
        return values
    layers = int(values["--num-layers"][0]) - sum(int(values[flag][0]) for flag in ends)
    stages = int(values.get("--pipeline-model-parallel-size", ["1"])[0]) - len(ends)
    if layers >= 0 and stages >= 0 and (layers % stages == 0 and layers > 0 if stages else layers == 0):
        return values
    return {flag: value for flag, value in values.items() if flag not in ends or ends[flag] in changes}


def with_length_of_data(fields: dict[str, Any]) -> Iterator[str]:
    """Give the model the length of its data, as the runner does (``scripts/training/recipe_runner.py``), with a note.

    Where they differ, the trainer starts by no other way (``training/config.py``).
    """
    told = next((value for field in LENGTHS if (value := fields.get(field)) is not None), None)
    own = fields.get("model.seq_length")
    if isinstance(told, int) and told != own:
        fields["model.seq_length"] = told
        if isinstance(own, int):
            yield f"model.seq_length = {own}: the runner gives the model the length of its data, {told}."


def with_overlaps(fields: dict[str, Any], config: ConfigCall) -> None:
    """Set what a config of overlaps sets over the model's and the replicas' own (``training/comm_overlap.py``).

    It leaves replicas alone whose optimizer is not sharded.
    """
    made, own = config.fields.get("comm_overlap"), config.fields.get("ddp")
    if not isinstance(made, ConfigCall):
        return
    told = {name for name, value in made.fields.items() if value is not None}
    if made.called:  # else it is made in a file that is not here
        fields |= dict.fromkeys((f"model.{name}" for name in OF_MODEL if name not in told), False)
    is_sharded = any(fields.get(f"{each}.use_distributed_optimizer") for each in ("ddp", "optimizer"))
    replicas = own.fields if isinstance(own, ConfigCall) else {}
    for name, value in OF_REPLICAS.items():
        if not is_sharded:
            fields[f"ddp.{name}"] = replicas.get(name)
        elif name not in told:
            fields[f"ddp.{name}"] = value
    if not fields.get("model.sequence_parallel"):
        fields["model.tp_comm_overlap"] = False
