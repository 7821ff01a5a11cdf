"""AMD Primus: the YAML of an experiment, whose ``overrides`` are Megatron-LM's arguments over Primus' own defaults.

Defaults are those of ``primus/configs/modules/megatron`` (``trainer_base.yaml``, ``pre_trainer.yaml``) at
AMD-AGI/Primus fd1eeab; ``model: llama3.1_8B.yaml`` names one of Primus' models.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from simpar import files
from simpar.architectures.catalogue import find_model, load_model
from simpar.errors import UserError
from simpar.frameworks import primus_bridge, primus_maxtext
from simpar.frameworks.architecture import architecture
from simpar.frameworks.match import kind_of
from simpar.frameworks.maxtext_read import READER as OF_MAXTEXT
from simpar.frameworks.megatron_arguments import SIZES, Arguments, of_mapping, with_layers
from simpar.frameworks.megatron_execution import execution_notes, with_loss
from simpar.frameworks.megatron_read import DROPPED, plan_of
from simpar.frameworks.megatron_words import LOW, MEGATRON_WORDS, OTHER_LAYERS
from simpar.frameworks.overrides import read_value
from simpar.frameworks.primus_presets import preset_of
from simpar.frameworks.primus_titan import WORDS as TITAN_WORDS
from simpar.frameworks.primus_titan import read_module
from simpar.frameworks.reader import Reader, value_of
from simpar.frameworks.recipes import flat, nest_names
from simpar.frameworks.shell_shared import script_of
from simpar.frameworks.shell_untold import UntoldValue, how_to_give
from simpar.frameworks.shell_words import UNKNOWN
from simpar.frameworks.target import Imported
from simpar.frameworks.words import ReadWords, WordTable, plain

DEFAULTS = {
    "bf16": True, "micro_batch_size": 2, "global_batch_size": 16, "seq_length": 1024, "use_distributed_optimizer": True,
}  # fmt: skip
MEGATRON, TITAN, MAXTEXT, BRIDGE = "megatron", "torchtitan", "maxtext", "megatron_bridge"
READ = (MEGATRON, TITAN, MAXTEXT, BRIDGE)
"""Back ends whose configs are read."""
FRAMEWORKS = (*READ, "maxdiffusion", "hummingbirdxt")
KERNEL = "another kernel, or how kernels run: time"
TURBO = "a kernel of Primus-Turbo in place of Transformer Engine's: time"
WORDS = MEGATRON_WORDS | TITAN_WORDS | OF_MAXTEXT.words | primus_bridge.WORDS | WordTable(
    idle=("*sink_level", "moe_use_legacy_grouped_gemm",
          "disable_*", "auto_continue_train", "primus_*", "mock_dataset", "enable_primus_turbo",
          "profile*", "patch_*", "wall_clock_step_timer", "data_sharding", "trainable", "log_avg*", "hf_path", "sft_*",
          "per_step_rng_reseed", "use_fla_data", "swiglu_limit", "clean_docker_container", "using_aic",
          "optimizer_foreach"),
    deciding={
        "use_turbo_*": TURBO,
        "turbo_*": TURBO,
        "enable_turbo_attention_float8": TURBO,
        "moe_use_fused_router_with_aux_score": TURBO,
        "use_sink_attention": TURBO,
        **dict.fromkeys(("use_fla_*", "use_v4_*", "kda_backend", "use_triton_ops", "use_cpp_fp8_quantize", "legacy_gg",
                         "nvte_ck_*", "gpu_max_hw_queues", "hsa_no_scratch_reclaim"), KERNEL),
        **dict.fromkeys(("hybrid_attention_enabled", "attn_sink", "hc_*", "fla_mla_attn", "sink_sliding*",
                         "sink_window*"), OTHER_LAYERS),
        **dict.fromkeys(("enable_packed_sequences", "use_packed_attention", "stage"),
                        "sequences of examples: how full they are, and attention's time"),
        **dict.fromkeys(("fused_ce_*", "enable_fused_linear_ce"), "the loss in pieces: memory of logits"),
        **dict.fromkeys(("odc_*", "enable_odc_*", "lb_mini_*", "overlap_grad_norm"),
                        "how gradients are reduced, and what a microbatch has: time"),
        **dict.fromkeys(("use_fsdp2_*", "torch_fsdp2_*", "main_grads_dtype"),
                        "dtypes of states, and what is gathered when: memory and time"),
        "no_fp8_weight_transpose_cache": "transposed copies of 8-bit weights: memory",
        "fp8_*": LOW,
        "empty_cache_interval": "cached memory goes back between steps: time",
        "recompute_layer_ids": "which layers are recomputed: memory and time",
        "enable_odc": "gradients are reduced by another library: exposed communication",
        "patch_zero_bubble": "a zero-bubble schedule: time and memory",
        "patch_primus_pipeline": "another schedule of the pipeline: time and memory",
        "torch_compile*": "fused operators: time and memory",
        "use_torch_compile": "fused operators: time and memory",
    },
)  # fmt: skip
PHASES, OF_COMMAND = ("pretrain", "posttrain"), ("config", "exp", "data_path", "backend_path", "export_config")
"""What a command trains, and its own flags (``primus/core/launcher/parser.py``); others go over the experiment."""
_VARIABLE = re.compile(r"\$\{(\w+)(?::([^}]*))?\}")


def read(text: str, name: str) -> Imported:
    """The plan of an experiment's YAML, or of a script that names one by ``EXP``. Raises UserError."""
    data: Any = files.read_yaml(text, name, finite=False) if name.endswith((".yaml", ".yml")) else None
    if data is None:
        return _read_script(text, name)
    module = _module(data)
    if module is None:
        raise UserError(f"{name}: no experiment of Primus, such as one with modules.pre_trainer.overrides")
    framework = str(_settled(module.get("framework", MEGATRON)))
    if framework not in READ:
        allowed = ", ".join(READ)
        raise UserError(f"{name}: framework = {framework}: Primus starts it with a config of that; allowed: {allowed}")
    said = {key: _settled(value) for key, value in dict(module.get("overrides") or {}).items()}
    asked = str(_settled(module.get("model") or "")).removesuffix(".yaml")
    if framework == TITAN:
        overrides = flat(dict(module.get("overrides") or {}))
        return read_module(asked, {key: _settled(value) for key, value in overrides.items()}, name)
    if framework == MAXTEXT:
        return primus_maxtext.read_module(asked, said, name)
    if framework == BRIDGE:
        return primus_bridge.read_module(asked, said, name)
    if asked.startswith("diffusion"):
        raise UserError(f"{name}: model = {asked}: images are not modelled; allowed: language models")
    given, model, own = _with_model(asked, said, name)
    result = plan_of(with_layers(given, model), model, dropout=None if model else DROPPED)
    result = replace(result, plan=with_loss(result.plan, given))
    asks, notes = dict(result.asks), [*result.notes, *execution_notes(given)]
    is_stated = bool(result.config or result.plan.model)
    if not is_stated:
        asks["model"] = f"{asked or 'The model'} is not a shipped model: give --model."
        notes.insert(0, asks["model"])
    words = given.words()  # of those that are given: defaults are no words of the text
    written = tuple(word for word in words.used if word in said)
    absent = {key: value for key, value in said.items() if value in (None, False)}
    if model:
        absent |= _of_other_layers(model, said)
    unread = {word: value for word, value in words.unread.items() if own is None or word in own}
    account = ReadWords((*written, *(["model"] if is_stated else [])), {**unread, **absent})
    return replace(result, words=account, notes=tuple(notes), asks=asks)


def _of_other_layers(model: str, said: Mapping[str, Any]) -> dict[str, str]:
    """Switches of layers that are off and of which the named model has what they turn off."""
    style = architecture(load_model(model))
    own = {"untie_embeddings_and_output_weights": not style.tied, "qk_layernorm": style.qk_norm}
    return {key: f"off, and {model} has it" for key, has in own.items() if has and said.get(key) is False}


def _with_model(asked: str, said: Mapping[str, Any], name: str) -> tuple[Arguments, str | None, set[str] | None]:
    """The arguments of an experiment, the shipped model that it trains, and the names of its words.

    These are all (None), but for defaults of all models. Where that model is none, or not as Primus has it, the
    arguments are laid over those of the checkout's own model. Raises UserError.
    """
    given = of_mapping({**DEFAULTS, **said}, name)
    sizes = [flag for flag in SIZES if flag in given.values]
    model = find_model(asked) if asked else None
    is_other = said.get("multi_latent_attention") is False and model and kind_of(load_model(model)) == "latent"
    is_plain = said.get("swiglu") is False and model and architecture(load_model(model)).gated
    if model and not sizes and not (is_other or is_plain):
        return given, model, None
    preset = preset_of(asked, name)
    if preset is not None:
        own = {key: preset.values[key] for key in preset.own} | dict(said)
        return of_mapping({**DEFAULTS, **preset.values, **said}, name), None, {*own, *of_mapping(own, name).values}
    if sizes and asked:
        raise UserError(f"{name}: {given.name(sizes[0])} beside model: {asked}: allowed: the model as Primus has it")
    if is_other or is_plain:
        key = "multi_latent_attention" if is_other else "swiglu"
        raise UserError(f"{name}: {key} = false: allowed: true, as {asked} has it")
    return given, model, None


def _read_script(text: str, name: str) -> Imported:
    """The experiment that a command names by ``--config``, or the variable EXP of its script, under the command."""
    script = script_of(text, name)
    words = next(filter(_starts, script.commands), [])
    of_variable = next((given["EXP"] for given in script.environments if given.get("EXP")), "")
    named = value_of(words, ("--config", "--exp")) or of_variable
    if UNKNOWN.search(named):
        how = how_to_give(named, {}, name)
        raise UntoldValue(f"{name}: the experiment is {named}: a value that the file does not say; allowed: {how}")
    if not named.endswith((".yaml", ".yml")):
        raise UserError(f"{name}: no experiment of Primus: allowed: EXP=FILE.yaml, or --config FILE.yaml")
    path = str(files.find_beside(named, name))
    return read(_laid_over(files.read_text(path), path, words), path)


def _laid_over(text: str, name: str, words: Sequence[str]) -> str:
    """An experiment's YAML with what its command says over it (``primus/core/utils/arg_utils.py``)."""
    told = _overrides(words)
    data: Any = files.read_yaml(text, name, finite=False) if told and name.endswith((".yaml", ".yml")) else None
    module = None if data is None else _module(data)
    if module is None:
        return text
    module["overrides"] = nest_names({**flat(dict(module.get("overrides") or {})), **told})
    return json.dumps(data)


def _overrides(words: Sequence[str]) -> dict[str, Any]:
    """The ``key=value``, ``--key=value`` and ``--key value`` words of a command, behind what starts training."""
    starts = [at for at, word in enumerate(words) if word in PHASES or PurePath(word).name == "run_pretrain.sh"]
    left = list(words[max(starts) + 1 :]) if starts else []
    result: dict[str, Any] = {}
    while left:
        key, equals, value = left.pop(0).partition("=")
        if not equals and not key.startswith("--"):
            continue
        if not equals:
            value = left.pop(0) if left and not left[0].startswith("--") else "true"
        if plain(key) not in OF_COMMAND:
            result[key.lstrip("-")] = None if value == "None" else read_value(value)
    return result


def _module(data: Any) -> dict[str, Any] | None:
    """The first module of an experiment that trains."""
    modules = data.get("modules") if isinstance(data, Mapping) else None
    listed = modules.values() if isinstance(modules, Mapping) else ()
    return next((each for each in listed if isinstance(each, dict) and {"framework", "overrides"} & set(each)), None)


def _settled(value: Any) -> Any:
    """A value with its variables' defaults: ``${PRIMUS_MODEL:llama2_7B}``."""
    if not isinstance(value, str):
        return value
    text = _VARIABLE.sub(lambda match: match[2] if match[2] is not None else match[0], value)
    return int(text) if text != value and text.isdecimal() else text


def _starts(words: Sequence[str]) -> bool:
    names = [PurePath(word).name for word in words]
    return "primus-cli" in names or "run_pretrain.sh" in names or any("primus/cli/" in word for word in words)


READER = Reader(
    name="primus",
    description="AMD Primus on Megatron-LM, Megatron-Bridge, torchtitan and MaxText: the YAML of an experiment",
    read=read,
    starts=_starts,
    owns=lambda data: _module(data) is not None,
    words=WORDS,
)
