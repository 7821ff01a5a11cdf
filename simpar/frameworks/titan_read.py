"""torchtitan's files back to a plan: the TOML of 0.2, and recipes in Python modules since 0.3."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from simpar import files
from simpar.architectures.catalogue import load_model
from simpar.architectures.recompute import policy_of_every
from simpar.errors import UserError
from simpar.frameworks import rules
from simpar.frameworks.overrides import flagged_by_tyro, text_beside
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.recipe_values import ConfigCall, Unresolved
from simpar.frameworks.recipes import ConfigReader, Recipes, flat, split_name
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.target import Imported, plan_said
from simpar.frameworks.titan import BY_ROW, EAGER_STACK, FLAVORS, IMPLEMENTATIONS, MIXTURES, ROTATION, SCHEDULES
from simpar.frameworks.trainer_read import low_states
from simpar.frameworks.words import WordTable
from simpar.plan.choices.pipeline import CUSTOM
from simpar.plan.routing import Balance
from simpar.plan.schedules import natural_vpp
from simpar.plan.schedules.actions import from_csv

CHECKPOINTING = {"FullAC": "full", "SelectiveAC": "selective", "none": "none", "full": "full", "selective": "selective"}
CONVERTERS = {"float8": "fp8", "mx": "mxfp8", "nvfp4": "nvfp4"}
"""Precisions by the prefix of a converter's name."""
TABLE = "parallelism.pipeline_parallel_schedule_csv"
LAUNCHER, MODULE = "run_train.sh", "torchtitan.train"
REGISTRY = "config_registry.py"
MODELS_OF = ("torchtitan/models", "torchtitan/experiments")
"""Where torchtitan has the recipes of its models."""
LOCAL_BATCH, SEQ_LEN = 8, 2048
"""Defaults of ``TrainingConfig`` in torchtitan 0.2 and 0.3."""
PIECES = "The loss is made in pieces, whose logits never exist together: they are counted whole, which is more memory."
FORCED = ("debug.moe_force_load_balance", "training.debug_moe_force_load_balance")
"""Options that choose experts in turn, whatever the router says (of main, and before)."""
LOW_MOMENTS, KERNELS = "fused_opt_states_bf16", "optimizer.implementation"
REDUCED = "training.mixed_precision_reduce"
COMPILES, COMPONENTS = ("compile.enable", "training.compile"), "compile.components"
"""Options that compile layers (of releases since 0.2, and before), and what of a step."""
CONFIG_FILE = ("--job.config_file", "--job.config-file")
EDGE = 1
"""How many layers the embedding and the head count as when stages are cut (``..._first_stage_less_layers``)."""


def read(text: str, name: str) -> Imported:
    """The plan in a recipe (.py, ``FILE:RECIPE`` if it has several) or in the TOML of 0.2; nothing is run.

    Raises UserError if it cannot be read.
    """
    path, recipe = split_name(name)
    if path.endswith(".py"):
        return _read_recipe(text, path, recipe, {})
    if path.endswith(".toml"):
        return read_toml(text, name)
    words = next((words for words, _ in _commands(text, name) if _names_recipe(words)), None)
    if words is None:
        return read_toml(text, name)
    module, recipe = _names_recipe(words) or ("", "")
    file = _registry(words, module, name)
    return _read_recipe(files.read_text(file), str(file), recipe, flagged_by_tyro(words))


def _commands(text: str, source: str) -> Iterator[tuple[list[str], Mapping[str, str]]]:
    """Commands with the variables that name a recipe before their words."""
    script = script_of(text, source)
    for words, given in zip(script.commands, script.environments, strict=True):
        yield [*(f"{name}={given[name]}" for name in ("MODULE", "CONFIG") if given.get(name)), *words], given


def _names_recipe(words: Sequence[str]) -> tuple[str, str] | None:
    """The module and the recipe of a command of torchtitan from 0.3; None if it names none."""
    if not any(PurePath(word).name == LAUNCHER or word == MODULE for word in words):
        return None
    said = {name: value for name, _, value in (word.partition("=") for word in words)}
    module = value_of(words, ("--module",)) or said.get("MODULE")
    recipe = value_of(words, ("--config",)) or said.get("CONFIG")
    return (module, recipe) if module and recipe else None


def _registry(words: Sequence[str], module: str, source: str) -> Path:
    """The file of a module's recipes, in the checkout of the script that is started or beside it. Raises UserError."""
    script = next((Path(word).parent for word in words if PurePath(word).name == LAUNCHER), Path())
    place = PurePath(*module.split("."), REGISTRY)
    own = [root / PurePath(*module.split(".")).with_suffix(".py") for root in (Path(source).parent, Path())]
    roots = [root / part for root in (script, Path(source).parent, Path()) for part in MODELS_OF]
    result = next((file for file in (*(root / place for root in roots), *own) if file.is_file()), None)
    if result is None:
        raise UserError(
            f"{source}: recipes of {module} are in {MODELS_OF[0]}/{place}, which is not here; allowed: in a checkout "
            "of torchtitan, or its FILE.py:RECIPE"
        )
    return result


def _read_recipe(text: str, path: str, recipe: str, changes: Mapping[str, Any]) -> Imported:
    """The plan in a recipe, with options of a command laid over it."""
    recipes = Recipes(text, path)
    name_of_recipe, config = recipes.made(recipe, _is_config)
    for key, value in changes.items():
        config.put(key, value)
    spec = config.fields.pop("model_spec", config.fields.pop("model", None))
    if "flux" in (PurePath(path).parent.name, isinstance(spec, ConfigCall) and spec.fields.get("name")):
        raise UserError(f"{path}: {name_of_recipe}: a diffusion model: not modelled; allowed: language models of text")
    policy = config.fields.pop("activation_checkpoint", None)
    spec, applied = _without_converters(spec)
    converters = [*applied, *_converters(spec), *_converters(config.fields.pop("model_converters", None))]
    loss = config.fields.get("loss")
    in_pieces = [PIECES] if isinstance(loss, ConfigCall) and loss.name.startswith("Chunked") else []
    given = ConfigReader(dict(config.flat()), path)
    values = {
        "recompute": _recompute_of(policy, path),
        "precision": _precision(given, {each.name: str(each.fields.get("recipe_name", BY_ROW)) for each in converters}),
        "model": _model(spec, path, name_of_recipe),
    }
    return _imported(given, values, _said(spec), (*recipes.notes, *_converted(converters), *in_pieces))


def _is_config(made: ConfigCall) -> bool:
    return made.called.endswith("Trainer.Config")


def _without_converters(spec: Any) -> tuple[Any, list[ConfigCall]]:
    """What the registry of a checkout returns without the converters that it applies to its config, and these."""
    made, applied = spec.fields.get("model") if isinstance(spec, ConfigCall) else None, list[ConfigCall]()
    while isinstance(made, ConfigCall) and made.called == "convert" and len(made.args) == 2:
        built, made = made.args  # converter.build().convert(config)
        applied += [each for each in getattr(built, "args", ()) if isinstance(each, ConfigCall)]
    return (replace(spec, fields={**spec.fields, "model": made}) if applied else spec), applied


def _converters(made: Any) -> list[ConfigCall]:
    """The converters of a model, or of a container of them."""
    listed = made.fields.get("converters") if isinstance(made, ConfigCall) else None
    return [each for each in listed or [] if isinstance(each, ConfigCall)]


def _converted(converters: list[ConfigCall]) -> Iterator[str]:
    """What a plan does not record of converters: their layers, and converters that change no precision."""
    for each in converters:
        if not any(each.name.lower().startswith(begin) for begin in CONVERTERS):
            yield f"{each.name} is not read."
        elif "fqns" in each.fields:
            yield f"{each.name} is for some layers only; the plan has one precision for all."


def _recompute_of(policy: Any, path: str) -> str:
    if policy is None:
        return "none"
    name = policy.text if isinstance(policy, Unresolved) else str(policy)
    if isinstance(policy, ConfigCall):
        name = policy.fields.get("mode") or policy.name
    if name not in CHECKPOINTING:
        raise UserError(f"{path}: activation_checkpoint = {name}: allowed: None, FullAC, SelectiveAC")
    return CHECKPOINTING[name]


def _precision(given: ConfigReader, converters: Mapping[str, str]) -> str:
    """The precision by converters and, of torchao's 8 bits, their recipes."""
    for name, recipe in converters.items():
        known = [ours for begin, ours in CONVERTERS.items() if name.lower().startswith(begin)]
        if known:
            return "fp8_rowwise" if known[0] == "fp8" and recipe.startswith(BY_ROW) else known[0]
    return "bf16" if given.get("training.mixed_precision_param", "bfloat16") == "bfloat16" else "fp32"


def _model(spec: Any, path: str, recipe: str) -> str | None:
    """The shipped model of a flavor; its folder is given by the call, the file's location or the recipe's name."""
    if not isinstance(spec, ConfigCall):
        return None
    if "model" in spec.fields:  # what the registry of a checkout returns: one of its own configs, by its flavor
        made, flavor = spec.fields["model"], spec.fields.get("flavor")
        is_own = isinstance(made, ConfigCall) and "_configs[" not in made.called
        family = str(spec.fields.get("name"))
        return None if is_own else _families().get(family, {}).get(str(flavor))
    flavor = spec.fields.get("flavor", spec.args[0] if spec.args else None)
    near = (spec.called.partition(".")[0], PurePath(path).parent.name)
    named = sorted((family for family in _families() if recipe.startswith(family)), key=len)
    family = next((each for each in (*near, *named) if each in _families()), "")
    return _families().get(family, {}).get(str(flavor))


def _families() -> dict[str, dict[str, str]]:
    both = {family: FLAVORS.get(family, {}) | MIXTURES.get(family, {}) for family in {**FLAVORS, **MIXTURES}}
    return both | {"llama4": {"17bx16e": "llama-4-scout", "17bx128e": "llama-4-maverick"}}


def _said(spec: Any) -> str:
    if isinstance(spec, ConfigCall) and "model" in spec.fields and "flavor" in spec.fields:
        return f"{spec.fields.get('name')} {spec.fields['flavor']}"
    if isinstance(spec, ConfigCall) and "model" not in spec.fields:
        return f"{spec.called.rpartition('.')[0]} {spec.args[0] if spec.args else ''}".strip()
    return spec.text if isinstance(spec, Unresolved) else "of its own"


def read_toml(text: str, name: str) -> Imported:
    """The plan in a job config of torchtitan up to 0.2. Raises UserError naming file, option and value."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))  # tomllib says it in words only
        where = f"{name}:{place[1]}" if place else f"{name}:{text.count(chr(10)) + 1}"
        raise UserError(f"{where}: not valid TOML ({error})") from None
    return read_job(flat(data), name)


def read_job(data: Mapping[str, Any], name: str) -> Imported:
    """The plan in the options of a job config by dotted name. Raises UserError naming file, option and value."""
    given = ConfigReader(data, name)
    if not any(key.startswith("parallelism.") for key in given):
        raise UserError(f"{name}: no section [parallelism], as torchtitan's job configs have")
    converters = given.get("model.converters") or []
    listed = converters.split(",") if isinstance(converters, str) else converters
    recipe = str(given.get("quantize.linear.float8.recipe_name") or given.get("float8.recipe_name"))
    family, flavor = str(given.get("model.name")), str(given.get("model.flavor"))
    values = {
        "recompute": _recompute(given),
        "precision": _precision(given, {str(each).rpartition(".")[2].strip(): recipe for each in listed}),
        "model": _families().get(family, {}).get(flavor),
    }
    return _imported(given, values, f"{family} {flavor}", ())


def _recompute(given: ConfigReader) -> str:
    mode = given.get("activation_checkpoint.mode", "selective")
    option = str(given.get("activation_checkpoint.selective_ac_option", "2"))
    if mode not in ("none", "full", "selective"):
        raise UserError(f"{given.source}: activation_checkpoint.mode = {mode!r}: allowed: none, selective, full")
    return mode if mode != "selective" else "selective" if option == "op" else policy_of_every(option)


def _imported(given: ConfigReader, values: dict[str, Any], said: str, notes: tuple[str, ...]) -> Imported:
    model = values["model"]
    shape = _shape(given)
    batch = {"global_batch": shape["batch"]} if shape["batch"] else {}
    plan = {"stack": "torchtitan"} | values | _parallel(given, model)
    plan |= {"micro_batch": shape["micro"], "training": {"seq_len": shape["seq_len"], **batch}}
    made = plan_said(plan)
    local = None if batch else shape["local"]
    of_rank = f"The global batch is {local} sequences a data-parallel rank"
    asks = {
        "model": "" if made.model else f"The model {said} is not shipped: give --model.",
        "global_batch": f"{of_rank}, which are left open: give --global-batch." if local else "",
    }
    left = filter(None, (asks["model"], _action_table(given), asks["global_batch"]))
    all_notes = (*notes, *left, *given.misspelt())
    forced = [given.get(key) for key in FORCED]
    balance: Balance = "forced" if any(forced) else "bias"  # its load_balance_coeff
    return Imported(made, given.words(), all_notes, local, asks=asks, expert_balance=balance)


def _action_table(given: ConfigReader) -> str:
    if not given.get(TABLE) or _table(given) is not None:
        return ""
    return f"The action table is in {given.get(TABLE)}, which is not here: put its text into pipeline.actions."


def _table(given: ConfigReader) -> str | None:
    """The action table of a file that a config names, if it is here. Raises UserError if it cannot be read."""
    path = given.get(TABLE)
    beside = text_beside(str(path), given.source) if path else None
    return None if beside is None else beside[1]


def _parallel(given: ConfigReader, model: str | None) -> dict[str, Any]:
    replicate = given.whole("parallelism.data_parallel_replicate_degree") or 1
    shard = given.whole("parallelism.data_parallel_shard_degree", -1) or -1
    sizes = {
        axis: given.whole(f"parallelism.{name}_parallel_degree") or 1
        for axis, name in (("tp", "tensor"), ("cp", "context"), ("ep", "expert"), ("pp", "pipeline"))
    }
    reshard = given.get("parallelism.fsdp_reshard_after_forward", "default")
    zero = 0 if shard == 1 and sizes["cp"] == 1 else 2 if reshard == "never" else 3
    values: dict[str, Any] = {
        **sizes,
        "dp": replicate * shard if shard > 0 else None,
        "zero": zero,
        "reshard_after_forward": True if reshard == "always" and zero == 3 and sizes["pp"] > 1 else None,
        "hsdp": replicate if zero else 1,
        "etp": given.whole("parallelism.expert_tensor_parallel_degree"),
    }
    balanced = given.get("parallelism.context_parallel_load_balancer", "headtail")
    if sizes["cp"] > 1:
        word = given.get(ROTATION, "allgather")  # only in 0.2
        method = rules.method_of(word, given.source, ROTATION)
        values |= {"cp_method": method, "cp_balance": "zigzag" if balanced else "contiguous"}
    sequence = given.get("parallelism.enable_sequence_parallel", True)
    is_async = [given.get(f"{part}.enable_async_tensor_parallel") for part in ("compile", "parallelism")]
    if sizes["tp"] > 1:  # 0.3 compiles it, 0.2 has an option
        values["tensor_parallel"] = {"overlap": any(is_async), "sequence_parallel": bool(sequence)}
    if not _is_compiled(given):
        values["stack"] = EAGER_STACK
    if given.values_.get(REDUCED) == "float32":  # as where nothing says it
        given.get(REDUCED)
    values |= _update(given)
    values["graphs"] = "step" if given.get("training.disable_cuda_graphs") is False else None
    values["update_in_backward"] = given.get("optimizer.early_step_in_backward")
    if given.get("training.enable_cpu_offload"):
        values |= {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
    return values | _stages(given, sizes["pp"], model)


def _update(given: ConfigReader) -> dict[str, Any]:
    """Kernels and dtypes of the update; an optimizer other than Adam, or kernels by another name, decide."""
    if str(given.get("optimizer.name", "AdamW")).lower() not in ("adam", "adamw"):
        given.used.discard("optimizer.name")
    kernels = {theirs: {"optimizer_kernels": ours} for ours, theirs in IMPLEMENTATIONS.items()}
    kernels |= {LOW_MOMENTS: {"optimizer_kernels": "fused", "moment_dtype": "bf16"}, "": {}}
    said = str(given.get(KERNELS, ""))
    if said not in kernels:
        given.used.discard(KERNELS)
    low = low_states("adamw") if given.get("training.dtype", "float32") == "bfloat16" else {}
    return {**kernels.get(said, {}), **low}


def _is_compiled(given: ConfigReader) -> bool:
    """Whether layers are compiled: not where nothing says it, in every version (``config/job_config.py``).

    That the loss alone is, or is not, is left to the table of words.
    """
    is_on, parts = True in [bool(given.get(key)) for key in COMPILES], given.get(COMPONENTS)
    listed = [part.strip() for part in parts.split(",")] if isinstance(parts, str) else parts
    if is_on and listed is not None and len({"model", "loss"} & set(listed)) == 1:
        given.used.discard(COMPONENTS)
    return is_on and (listed is None or "model" in listed)


def _stages(given: ConfigReader, pp: int, model: str | None) -> dict[str, Any]:
    """Schedule and stages: as listed, or else as torchtitan cuts a model, with edges counting as layers."""
    name = str(given.get("parallelism.pipeline_parallel_schedule", "1F1B"))
    parts = given.get("parallelism.module_fqns_per_model_part")
    each = given.whole("parallelism.pipeline_parallel_layers_per_stage")
    edges = [given.whole(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 0) for end in ("first", "last")]
    if pp == 1:
        return {}
    schedules = {theirs: ours for ours, theirs in SCHEDULES.items()}
    is_table = bool(given.get(TABLE))
    if name not in schedules and not is_table:
        raise UserError(f"{given.source}: parallelism.pipeline_parallel_schedule = {name}: allowed: "
                        f"{', '.join(sorted(schedules))}")  # fmt: skip
    schedule = schedules.get(name, "1f1b")
    first, last = (EDGE if edge is None else edge for edge in edges)
    layers = layers_of(parts)
    if layers is None and model is not None:
        graph = load_model(model)
        count = sum(kind not in graph.auxiliary for kind in graph.layers)
        stages = -(-(count + first + last) // each) if each else pp * natural_vpp(schedule)
        if stages % pp:
            raise UserError(
                f"{given.source}: pipeline_parallel_layers_per_stage = {each}: {stages} stages for pp = {pp}"
            )
        layers = spread(count + first + last, stages, first, last)
    chunks = len(layers) // pp if layers else natural_vpp(schedule)
    uneven = layers if layers and len(set(layers)) > 1 else None
    if (table := _table(given)) is not None:
        from_csv(table, name=str(given.get(TABLE)))
        return {"schedule": CUSTOM, "actions": table, "vpp": chunks, "layers": uneven}
    return {"schedule": schedule, "vpp": chunks, "layers": uneven}


def spread(count: int, stages: int, first: int, last: int) -> tuple[int, ...]:
    """Layers of every stage, where ``count`` includes ``first`` for the embedding and ``last`` for the head.

    As torchtitan's ``generate_llm_fqn_per_model_part``: if the division is uneven, the first stages have one more.
    """
    base, more = divmod(count, stages)
    sizes = [base + (stage < more) for stage in range(stages)]
    sizes[0] -= first
    sizes[-1] -= last
    return tuple(sizes)


def layers_of(parts: Any) -> tuple[int, ...] | None:
    """Transformer layers of every stage from the stages' module names; None if there are none."""
    if not isinstance(parts, list) or not parts or not all(isinstance(part, list) for part in parts):
        return None
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in parts)


def _local(given: ConfigReader) -> int:
    """Sequences of a data-parallel rank."""
    return given.whole("training.local_batch_size") or given.whole("training.batch_size") or LOCAL_BATCH


def _shape(given: ConfigReader) -> dict[str, int]:
    """Tokens per sequence; sequences of a microbatch, of a rank's step, and of the global batch (0: open).

    Newer configs count tokens instead of sequences.
    """
    pp = given.whole("parallelism.pipeline_parallel_degree") or 1
    ranks = (given.whole("parallelism.data_parallel_replicate_degree") or 1) * max(
        0, given.whole("parallelism.data_parallel_shard_degree", -1) or -1
    )
    tokens = given.whole("training.num_tokens_per_microbatch_per_dp_rank")
    if tokens:
        seq_len = given.whole("training.max_context_length") or tokens
        micro = max(1, tokens // seq_len)
        local = micro * ((given.whole("parallelism.num_pp_microbatches") or 1) if pp > 1 else 1)
        step = given.whole("training.num_tokens_per_train_step", -1) or -1
        whole = step // seq_len if step > 0 else -1
    else:
        seq_len = given.whole("training.seq_len") or SEQ_LEN
        local = _local(given)
        micro = (given.whole("parallelism.pipeline_parallel_microbatch_size") or 1) if pp > 1 else local
        whole = given.whole("training.global_batch_size", -1) or -1
    return {"seq_len": seq_len, "micro": micro, "local": local, "batch": whole if whole > 0 else local * ranks}


WORDS = WordTable(
    idle=(
        "job.*",
        "profiling.*",
        "profiler.*",
        "metrics.*",
        "checkpoint.*",
        "lr_scheduler.*",
        "validation.*",
        "comm.*",
        "experimental.*",
        "fault_tolerance.*",
        "debug.*",
        "optimizer.lr",
        "optimizer.eps",
        "optimizer.beta*",
        "optimizer.weight_decay",
        "training.steps",
        "training.dataset*",
        "training.max_norm",
        "training.gc_*",
        "training.seed",
        "training.deterministic",
        "training.data_parallel_*",
        "model.tokenizer_path",
        "model.hf_assets_path",
        "hf_assets_path",
        "model.norm_type",
        "model.print_after_conversion",
        "tokenizer.*",
        "dataloader.*",
        "loss.loss_fn*",
        "loss.global_vocab_size",
        "validator.*",
        "dump_folder",
        "config_file",
        "module",
        "config",
        "activation_checkpoint.early_stop",
        "activation_checkpoint.debug",
        "optimizer.decay_*",
        "parallelism.disable_loss_parallel",
        "activation_checkpoint.per_op_sac*",
    ),
    deciding={
        "optimizer.name": "an optimizer whose states are not known: memory and the update's time",
        "optimizer.param_groups": "optimizers of some parameters: memory and the update's time",
        KERNELS: "which kernels update: time",
        COMPONENTS: "whether the loss is compiled: time, and memory of logits",
        "parallelism.disable_loss_parallel": "logits are gathered for the loss: memory and time",
        "float8.*": "which products are in 8 bits: time",
        "quantize.*": "which products are in 8 bits: time",
        "mx.*": "which products are in 8 bits: time",
        REDUCED: "the dtype of summed gradients: time",
        "activation_checkpoint.per_op_sac*": "what is recomputed: memory and time",
        "activation_checkpoint.memory_budget": "what is recomputed: memory and time",
        "parallelism.expert_parallel_comm_backend": "kernels of the exchange of tokens: time",
    },
)
"""torchtitan's options that no plan has."""


def _config_file(words: Sequence[str]) -> str | None:
    named = next((word.partition("=")[2] for word in words if word.startswith("CONFIG_FILE=")), None)
    return value_of(words, CONFIG_FILE) or named


TOML_READER = Reader(
    name="torchtitan-0.2",
    description="torchtitan up to 0.2: the TOML of a job",
    read=read_toml,
    starts=lambda words: _config_file(words) is not None,
    config=_config_file,
    owns=lambda data: isinstance(data.get("parallelism"), Mapping) and isinstance(data.get("training"), Mapping),
    words=WORDS,
    written_as="torchtitan-0.2",
)
READER = Reader(
    name="torchtitan",
    description="torchtitan from 0.3: a recipe of a config_registry.py, and commands that name one",
    read=read,
    starts=lambda words: _names_recipe(words) is not None,
    words=WORDS,
    written_as="torchtitan",
)
