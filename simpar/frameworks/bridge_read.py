"""Recipes of Megatron-Bridge and of NeMo 2 back to a plan: Python that is parsed, never run.

Their fields are Megatron-LM's arguments under other names, so they are read as those.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simpar import files
from simpar.architectures.catalogue import config_of, find_model, load_model
from simpar.errors import UserError
from simpar.frameworks.bridge_launch import (
    LAUNCH_WORDS,
    OVER,
    PIPELINE,
    STEM,
    changes_of,
    file_of,
    recipe_of,
    starts,
    words_of,
)
from simpar.frameworks.bridge_models import IN_OTHER_WORDS, gemma_in, with_passes, with_shared_beside
from simpar.frameworks.bridge_names import PLAIN, REDUCES_IN_FP32, SWITCHES
from simpar.frameworks.bridge_recipes import KNOWN, adapters_of, mixers_of
from simpar.frameworks.bridge_runner import (
    END_FIELDS,
    LENGTHS,
    apply_changes,
    with_even_ends,
    with_length_of_data,
    with_overlaps,
)
from simpar.frameworks.bridge_words import MIXED, PREDICTED, WORDS, with_tower, without_idle
from simpar.frameworks.match import find_released, layers_in
from simpar.frameworks.megatron_arguments import SIZES, Arguments
from simpar.frameworks.megatron_execution import GATHERS, LOSS_KERNEL, with_loss, with_weights
from simpar.frameworks.megatron_layers_said import OF_LATENTS, predictions_in
from simpar.frameworks.megatron_read import DROPPED, FIRST, LAST, LAYOUT, plan_of
from simpar.frameworks.overrides import command_of
from simpar.frameworks.predictions import as_said, with_predictions
from simpar.frameworks.reader import SPAWNS, Reader, value_of
from simpar.frameworks.recipe_values import ConfigCall, Unresolved
from simpar.frameworks.recipes import ConfigReader, Recipes, split_name
from simpar.frameworks.target import Imported
from simpar.frameworks.words import Assumed, ReadWords

MOVED = (
    ("trainer.strategy.ddp.", "ddp."), ("trainer.strategy.", "model."), ("model.config.", "model."),
    ("data.seq_length", "model.seq_length"), ("data.", "train."),
    ("comm_overlap.overlap_grad_reduce", "ddp.overlap_grad_reduce"),
    ("comm_overlap.overlap_param_gather_with", "model.overlap_param_gather_with"),
    ("comm_overlap.overlap_param_gather", "ddp.overlap_param_gather"),
    ("comm_overlap.bucket_size", "ddp.bucket_size"), ("comm_overlap.", "model."),
    ("trainer.plugins", "mixed_precision"), ("optim.config.", "optimizer."),
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
GATHERED = ("delayed", "tensorwise", "mxfp8", "nvfp4")
"""Recipes whose precisions keep weights in their bits in Bridge (``training/mixed_precision.py``)."""
SENT_NARROW = ("delayed", "tensorwise", "nvfp4")
"""Those of them that gather weights in these bits: MXFP8 is cast behind the gather."""
PERFORMANCE = {
    "bf16": "bf16_mixed", "fp8_cs": "bf16_with_fp8_current_scaling_mixed", "fp8_mx": "bf16_with_mxfp8_mixed",
    "fp8_ds": "bf16_with_fp8_delayed_scaling_mixed", "fp8_sc": "bf16_with_fp8_subchannel_scaling_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
"""Precisions of Bridge's performance recipes (``_perf_precision`` of ``perf_recipes/_common.py``); gradients are
reduced in bf16."""
PERFORMANCE_CALLS = ("_perf_precision", "get_precision_config")
USUAL_RECIPE = "tensorwise"
"""The recipe of 8 bits of a ``MixedPrecisionConfig`` that says none (``training/mixed_precision.py``)."""
PRECISION_CLASSES = ("MixedPrecisionConfig", "MegatronMixedPrecision")
"""Classes of Bridge and NeMo 2 that the functions of :data:`PRECISIONS` create, whose fields can be set."""
MORE = {
    "model.seq_length": "--seq-length", "model.window_size": "--window-size",
    "model.make_vocab_size_divisible_by": "--make-vocab-size-divisible-by",
    "model.hybrid_override_pattern": "--hybrid-override-pattern",
    **{f"model.{flag[2:].replace('-', '_')}": flag for flag in OF_LATENTS},
    **{field: flag for flag, field in END_FIELDS.items()},
    "model.cuda_graph_scope": "--cuda-graph-scope", "model.attention_backend": "--attention-backend",
}  # fmt: skip
"""Fields that correspond to arguments as well, but that exports do not write."""
SPLITS = {
    f"model.account_for_{end}_in_pipeline_split": f"--account-for-{end}-in-pipeline-split"
    for end in ("embedding", "loss")
}
BACKENDS = "AttnBackend."
"""Megatron-Core's enumeration of kernels of attention."""
DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.half": "fp16"}
"""Dtypes as arguments write them, by PyTorch's names."""
SEQ_LENS = {"llama3": 8192, "nemotron": 8192}
SEQ_LEN = 4096
"""Sequences of Bridge's pre-training recipes, by family, and of all others."""
_HYBRIDS = {
    "--normalization": ["RMSNorm"], "--disable-bias-linear": [], "--untie-embeddings-and-output-weights": [],
    "--spec": ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"],
}  # fmt: skip
PROVIDERS: dict[str, dict[str, list[str]]] = {
    "GPTModelProvider": {}, "HybridModelProvider": _HYBRIDS, "MambaModelProvider": _HYBRIDS,
}  # fmt: skip
"""Classes of models that are built of their fields, and their defaults that are not Megatron-LM's
(``megatron/bridge/models/hybrid/hybrid_provider.py``); of others, fields are in files that are not read."""
OTHER = r"(?i)wan(model|2)|flux|diffusion|dit(model|llama)"
"""Names of models that are no language models."""
ENDS = (FIRST, LAST, "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
STACK = "nemo"
"""What recipes run on: Megatron-Core as NeMo's containers have it."""
OFFLOADED = "optimizer_offload_fraction"
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
TRAINS = ("", "fn", "llm.pretrain", "llm.finetune", "pretrain", "finetune")
"""What a recipe that is read in full is called: a config, or a function of NeMo 2 that trains."""
OF_ALL = "COMMON_RECIPE_ENV_VARS"
"""Variables of every plain recipe's processes, segments that expand among them (``recipes/utils``)."""
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def read(text: str, name: str) -> Imported:
    """The plan in a recipe; ``FILE.py:RECIPE`` if there are several. Raises UserError."""
    path, recipe = split_name(name)
    if path.endswith(".py"):
        return _read_recipe(text, path, recipe, {})
    words = command_of(text, name, starts)
    recipe = recipe_of(words, name)
    file = file_of(recipe, words, name)
    result = _read_recipe(files.read_text(file), str(file), recipe, changes_of(words), value_of(words, STEM) or "")
    return replace(result, words=result.words + words_of(words))


def _read_recipe(text: str, path: str, recipe: str, changes: Mapping[str, Any], stem: str = "") -> Imported:
    """The plan in a recipe, with values of a command over its fields; ``stem`` is the performance launcher's name."""
    recipes = Recipes(text, path, KNOWN)
    named, config = recipes.made(recipe, _is_config)
    scaled = apply_changes(config, changes, recipes, stem)
    result = of_config(named, config, path, recipes.notes, changes)
    return replace(result, sized=replace(result.sized, scaled=scaled))


def of_config(named: str, config: ConfigCall, path: str, remarks: list[str], changes: Collection[str] = ()) -> Imported:
    """The plan in what the recipe of a name returns; ``remarks`` are notes of it. Raises UserError.

    ``changes`` are the fields that a command set over it.
    """
    said_notes = [*remarks]
    fields = _fields(config)
    untold: set[str] = set()
    if config.called.endswith("_pretrain_common"):
        fields = COMMON | fields
    elif config.called not in TRAINS and not config.called.endswith("ConfigContainer"):
        fields = OF_RECIPES | fields
        untold = {flag for flag, wanted in SWITCHES.items() if not set(wanted) & set(fields)}
        said_notes.append(
            f"What {config.called}() sets is in another file: not read, except that such recipes train in bf16 and "
            "shard the optimizer's states."
        )
        if "model.moe_flex_dispatcher_backend" in fields:  # nothing else reads it
            fields.setdefault("model.moe_token_dispatcher_type", "flex")
    with_overlaps(fields, config)
    said_notes += with_length_of_data(fields)
    given = ConfigReader(fields, path)
    values = with_passes(dict(_flags(given, config)), given)
    made = config.fields.get("model")
    sources = [*_of_model(made), *_of_recipe(config.called)]
    hub = next((each for each in sources if "/" in each), "")
    if made_by := next((each for each in sources if re.search(OTHER, each)), ""):
        raise UserError(f"{path}: model = {made_by}: a recipe of a diffusion model: not read; allowed: language models")
    model = next(filter(None, map(find_model, sources)), None) or (find_released(hub, path) if hub else None)
    built = None if model else gemma_in(made.name if isinstance(made, ConfigCall) else "", given)
    if built:
        model = built[0]
        values = {flag: value for flag, value in values.items() if flag not in IN_OTHER_WORDS}
    tower, stated = 0, dict(values)
    if model:
        tower = _tower(model) if any(flag in values for flag in (*ENDS, LAYOUT)) else 0
        values.setdefault("--num-layers", [str(layers_in(model) - tower)])
        values = with_shared_beside(values, model, fields)
    else:
        values = _of_provider(values, made, hub, path)
    if PIPELINE in changes:
        values = with_even_ends(values, changes)
    names = {flag: field for field, flag in _plain().items()}
    said_notes += [*_unsure(given), *_of_8_bits(given, config, values)]
    arguments = Arguments(values, path, tuple(said_notes), names, untold)
    is_plain = isinstance(made, ConfigCall) and made.name == "GPTModelProvider" and not (hub or model)
    imported = plan_of(arguments, model, dropout=DROPPED if is_plain else None)  # other providers' is their model's
    if built and not model:
        note = f"No shipped model has these sizes; it is built of the recipe (model_type {built[1]['model_type']})."
        plan = imported.plan.model_copy(update={"model": None})
        imported = replace(imported, plan=plan, config=built[1], asks={}, notes=(note,))
    if model and (stages := imported.plan.pipeline.layers):
        imported = replace(imported, plan=imported.plan.with_values(layers=_with_unsaid(stages, model, tower, fields)))
    if arguments.text(LOSS_KERNEL) == "native":
        imported = replace(imported, plan=with_loss(imported.plan, arguments))
    others: dict[str, Any] = {}
    if model and PREDICTED in fields:
        imported, left = with_predictions(imported, model, fields[PREDICTED])
        others |= {} if left is None else {PREDICTED: left}
    if model:
        imported = as_said(imported, replace(arguments, values=stated), model)
    classes = (each for each in _of_model(made) if re.search("Config|Provider$", each) and each not in PROVIDERS)
    said = hub or next(classes, "")
    if said and not model and not imported.config and not imported.plan.model:
        note = f"The model is {said}, which is not shipped, nor in the hub's cache: give --model when the plan is used."
        notes = tuple(note if each == imported.asks.get("model") else each for each in imported.notes)
        imported = replace(imported, asks={"model": note}, notes=notes)
    adapters, assumed = adapters_of(config, named, path)
    if told := re.search(r"_(\d+)gpu", named):
        replicas, rest = divmod(ranks := int(told[1]), int(imported.plan.mesh.sizes.replica_ranks))
        adapters |= {} if rest else {"dp": replicas}
        imported = replace(imported, sized=replace(imported.sized, usual_ranks=ranks))
    plan = imported.plan.with_values(**adapters, **_allocator(config)).model_copy(update={"stack": STACK})
    plan = with_weights(plan, STACK)
    if untold and "seq_len" not in (plan.training or {}):  # in a file that is not here
        seq_len = next((size for family, size in SEQ_LENS.items() if named.startswith(family)), SEQ_LEN)
        plan = plan.model_copy(update={"training": {**(plan.training or {}), "seq_len": seq_len}})
        assumed = (*assumed, Assumed("seq_len", seq_len, "the recipe has it from a file that is not here", (2048,)))
    plan, of_tower = with_tower(plan, model, named, given)
    others |= of_tower
    others |= {MIXED: ", ".join(mixers)} if (mixers := mixers_of(config)) else {}
    words = without_idle(_words(imported, given, others, {PREDICTED} if model else set()), plan, given)
    if plan.tuning.lora_rank and imported.expert_balance == "loss":
        imported = replace(imported, expert_balance="tuned")
    return replace(imported, plan=plan, words=words, per_replica=None, assumed=(*imported.assumed, *assumed))


def _fields(config: ConfigCall) -> dict[str, Any]:
    """What a recipe says, by Bridge's fields."""
    trainer = config.fields.get("trainer")
    plugins = trainer.fields.get("plugins") if isinstance(trainer, ConfigCall) else None
    if isinstance(trainer, ConfigCall) and isinstance(plugins, list) and len(plugins) == 1:
        trainer.fields["plugins"] = plugins[0]
    stated = (pair for pair in config.flat() if pair[1] is not None or not pair[0].startswith(OVER))
    listed = sorted(stated, key=lambda pair: pair[0].startswith(OVER))  # what these say goes over the others
    fields = {moved: value for key, value in listed if (moved := _moved(key)) not in ("model", "trainer")}
    sharded = fields.get("optimizer.use_distributed_optimizer")
    if sharded is not None and "trainer" in config.fields:
        fields["ddp.use_distributed_optimizer"] = sharded  # NeMo's strategy takes that of the optimizer
    return fields


def _words(imported: Imported, given: ConfigReader, others: Mapping[str, Any], own: Collection[str]) -> ReadWords:
    """The words of a recipe, with ``others`` that decide; the model's ``own`` are read with it.

    Flags of Megatron-LM that stand for other fields have no word of their own.
    """
    unread = {word: value for word, value in imported.words.unread.items() if word[:2] != "--" and word not in own}
    return ReadWords(imported.words.used, unread) + given.words() + ReadWords(unread=others)


def _tower(model: str) -> int:
    """Layers of a shipped model that no language model has."""
    text = config_of(model).get("text_config") or {}
    return layers_in(model) - int(text["num_hidden_layers"]) if "num_hidden_layers" in text else 0


def _with_unsaid(stages: Sequence[int], model: str, tower: int, fields: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of stages with a model's ``tower``, which stands first, and the predictions that the model brings along.

    A recipe that does not say how many layers predict further tokens has the model's, behind all others.
    """
    brought = 0 if PREDICTED in fields or sum(stages) != layers_in(model) - tower else predictions_in(load_model(model))
    ends = [tower, *[0] * (len(stages) - 2), brought] if len(stages) > 1 else [tower + brought]
    return tuple(size + more for size, more in zip(stages, ends, strict=True))


def _of_provider(values: dict[str, list[str]], made: Any, hub: str, path: str) -> dict[str, list[str]]:
    """The arguments of a model without a name, with what its class says; without sizes if they are not all of it.

    Raises UserError where ends of the pipeline need its layers.
    """
    name = made.name if isinstance(made, ConfigCall) else ""
    if hub and "--num-layers" not in values and (flag := next((each for each in ENDS if each in values), None)):
        raise UserError(
            f"{path}: {flag} needs the layers of {hub}, which is not shipped, nor in the hub's cache; allowed: its "
            "config in the cache (HF_HOME), or a recipe of a model that simpar list models has"
        )
    if name in PROVIDERS and not hub:
        return PROVIDERS[name] | values
    return {flag: value for flag, value in values.items() if flag not in SIZES or flag == "--num-layers"}


def _unsure(given: ConfigReader) -> Iterator[str]:
    """Notes on switches whose value only running would tell."""
    for flag, wanted in SWITCHES.items():
        for field in wanted if flag != "--te-rng-tracker" else ():  # which changes nothing by itself
            if isinstance(value := given.values_.get(field), Unresolved | ConfigCall):
                text = value.text if isinstance(value, Unresolved) else f"{value.called}()"
                short = " ".join(text.split())[:40]
                yield f"Line {value.line}: {field} = {short}: only running would tell; taken as off."


def _of_8_bits(given: ConfigReader, config: ConfigCall, values: Mapping[str, list[str]]) -> Iterator[str]:
    """Notes on what the named precisions of Bridge do that a plan does not say."""
    recipe = "".join(values["--fp8-recipe"]) if "--fp8-format" in values else ""
    made = _precision_in(config)
    if recipe in SENT_NARROW and GATHERS["--fp8-format"] in values:
        yield "Bridge gathers weights in 8 bits: timed with 2 bytes a weight."
    if made is not None and recipe == "tensorwise" and _name_of_precision(given, made):
        yield "Bridge's precision runs the first and the last layers in 16: predicted with all layers in 8 bits."


def _allocator(config: ConfigCall) -> dict[str, Any]:
    """What the variables of a recipe's processes say of memory."""
    variables = config.fields.get("env_vars")
    if not isinstance(variables, dict):
        return {}
    usual = "expandable_segments:True" if f"**{OF_ALL}" in variables else ""
    told = next((str(variables[name]) for name in ALLOCATOR if name in variables), usual)
    return {"expandable_segments": True} if "expandable_segments:True" in told else {}


def _is_config(made: ConfigCall) -> bool:
    return "trainer" in made.fields or ("model" in made.fields and "train" in made.fields)


def _moved(key: str) -> str:
    return next((there + key.removeprefix(here) for here, there in MOVED if key.startswith(here)), key)


def _plain() -> dict[str, str]:
    return {field: flag for flag, field in PLAIN.items()} | MORE


def _flags(given: ConfigReader, config: ConfigCall) -> Iterator[tuple[str, list[str]]]:
    """Megatron-LM's arguments from fields."""
    for field in LENGTHS:
        given.get(field)
    for field, flag in _plain().items():
        value = given.values_.get(field)
        given.used.add(field)
        if isinstance(value, Unresolved):
            value = DTYPES.get(value.text, value)
        if field == "model.vocab_size" and isinstance(value, Unresolved):
            continue  # the tokenizer's, which is that of the model by name
        if isinstance(value, Unresolved) and value.text.startswith(BACKENDS):
            value = value.text.removeprefix(BACKENDS)
        if isinstance(value, Unresolved | ConfigCall):  # refused when it is read
            value = f"$({value.text if isinstance(value, Unresolved) else value.called})"
        if field == "model.pipeline_model_parallel_layout" and isinstance(value, list) and _is_layout(value):
            value = "|".join("".join(LETTERS.get(str(part), "?") for part in stage) for stage in value)
        if value is not None and not (field.endswith("sharding_strategy") and not given.get("ddp.use_megatron_fsdp")):
            yield flag, [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]
    for flag, wanted in SWITCHES.items():
        given.used |= set(wanted)
        if any(given.values_.get(field) == value for field, value in wanted.items()):
            yield flag, []
    modules = given.get("model.recompute_modules")
    if modules:
        yield "--recompute-modules", [str(each) for each in modules]
    yield from ((flag, []) for field, flag in SPLITS.items() if given.get(field) is True)
    given.used.add("model.activation_func")
    function = given.values_.get("model.activation_func")
    named = function.text if isinstance(function, Unresolved) else str(function)
    if named.endswith("squared_relu"):
        yield "--squared-relu", []
    if given.get("model.gated_linear_unit"):
        yield "--swiglu", []
    if given.get("optimizer.optimizer_cpu_offload") and f"optimizer.{OFFLOADED}" not in given:
        yield "--optimizer-offload-fraction", ["0"]  # the config's default, unlike the argument's
    if _is_sharded(config):
        yield "--use-distributed-optimizer", []
    if _overlaps(config):
        yield "--tp-comm-overlap", []
    if given.get("model.num_query_groups") is not None:
        yield "--group-query-attention", []
    yield from _precision(given, config)


def _is_layout(value: list[Any]) -> bool:
    """Whether a list has the layers of every stage."""
    return all(isinstance(stage, list) for stage in value)


def _overlaps(config: ConfigCall) -> bool:
    """Whether a callback of NeMo's trainer overlaps tensor parallelism."""
    trainer = config.fields.get("trainer")
    callbacks = trainer.fields.get("callbacks") if isinstance(trainer, ConfigCall) else None
    listed = callbacks if isinstance(callbacks, list | tuple) else ()
    return any(isinstance(each, ConfigCall) and each.fields.get("tp_comm_overlap") is True for each in listed)


def _is_sharded(config: ConfigCall) -> bool:
    """Whether the optimizer is one of NeMo 2 that shards its states (``recipes/optim/adam.py``)."""
    optim = config.fields.get("optim")
    return isinstance(optim, ConfigCall) and optim.name.startswith("distributed_fused_adam")


def _precision(given: ConfigReader, config: ConfigCall) -> Iterator[tuple[str, list[str]]]:
    """Arguments from the precision object: fields that its function sets, and fields that were set later."""
    name = _name_of_precision(given, _precision_in(config))
    sets = _set_by(name, given.source) if name else {}

    def value(field: str) -> Any:
        return given.get(f"mixed_precision.{field}", sets.get(field))

    yield from ((f"--{half}", []) for half in ("bf16", "fp16") if value(half) is True)
    if not value("fp8"):  # the optimizer is told a recipe all the same, by which it keeps master weights
        yield "--fp8-recipe", [str(value("fp8_recipe") or USUAL_RECIPE)]
    for bits, recipe in (("fp8", USUAL_RECIPE), ("fp4", "nvfp4")):
        if form := value(bits):
            yield f"--{bits}-format", [str(form)]
            yield f"--{bits}-recipe", [str(value(f"{bits}_recipe") or recipe)]
            gathers = (value(f"{bits}_{name}") for name in ("param_gather", "param", "params"))
            if next((each for each in gathers if each is not None), False) is True:
                yield GATHERS[f"--{bits}-format"], []
                given.get("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag")
    said = (value("grad_reduce_in_fp32"), given.get("ddp.grad_reduce_in_fp32"))  # the first overrides the second
    low = next((each for each in said if each is not None), None) is False
    yield "--grad-reduce-in-bf16" if low else "--accumulate-allreduce-grads-in-fp32", []


def _precision_in(config: ConfigCall) -> Any:
    """The precision object: a plugin of NeMo's trainer, or a field of Bridge's config."""
    trainer = config.fields.get("trainer")
    plugins = trainer.fields.get("plugins") if isinstance(trainer, ConfigCall) else None
    return plugins or config.fields.get("mixed_precision")


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
    is_plain = precision.name not in PERFORMANCE_CALLS
    if is_plain and precision.args and isinstance(precision.args[0], str):
        return precision.args[0]  # get_mixed_precision_config("bf16_mixed")
    if precision.name in PRECISION_CLASSES:
        return given.get("mixed_precision.precision")
    if precision.name in PERFORMANCE_CALLS:
        asked = str(precision.args[0] if precision.args else precision.fields.get("compute_dtype"))
        given.values_.setdefault("mixed_precision.grad_reduce_in_fp32", False)
        return PERFORMANCE[files.choose(asked, PERFORMANCE, f"precision of {given.source}")]
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
        result |= {bits: form[0], f"{bits}_recipe": form[1], f"{bits}_param_gather": form[1] in GATHERED}
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
    name="megatron-bridge", description="Megatron-Bridge: a recipe in Python, and commands that name one", read=read,
    starts=starts, devices=SPAWNS, words=WORDS | LAUNCH_WORDS, written_as="megatron-bridge",
)  # fmt: skip
NEMO_READER = Reader(
    name="nemo-run", description="NeMo 2: a recipe in Python", read=read, words=WORDS, written_as="nemo-run"
)
