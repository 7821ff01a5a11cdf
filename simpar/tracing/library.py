"""Models of the transformers library by their configs: its installed code runs, never code that comes with a model."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from linecache import getline
from typing import Any

from simpar.architectures.hf_config import TEXT_CONFIGS
from simpar.errors import UserError
from simpar.files import suggest
from simpar.tracing.code import LIBRARY

INSTALL = "pip install '.[torch]' transformers"
NOT_OF_THE_MODEL = ("auto_map", "quantization_config", "architectures", "transformers_version", "use_cache", "source")
"""Fields that change no operator, or that would ask for code of others."""
SOURCE_OF_CLASS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
)  # fmt: skip
SOURCE_OF_PAIRS = ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", *SOURCE_OF_CLASS)
"""Tables of classes in the order in which they are looked up; the causal class of a pair is its decoder alone."""


def installed() -> tuple[str, str]:
    """Versions of torch and transformers, "" where one is not installed; neither is imported."""
    return _version("torch"), _version(LIBRARY)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def require_library(why: str) -> None:
    """Raise UserError, with ``why`` they are needed, unless torch and transformers are installed."""
    missing = [name for name, own in zip(("torch", LIBRARY), installed(), strict=True) if not own]
    if missing:
        raise UserError(f"{why}; {' and '.join(missing)} would capture it: {INSTALL}")


def has_class(model_type: str, objective: str = "next") -> bool:
    """Whether the installed library, if any, has a language model for a ``model_type``.

    It is causal, or predicts "masked" tokens, or is a "pair" of encoder and decoder.
    """
    if not all(installed()):
        return False
    from transformers.models.auto import modeling_auto as tables

    if objective == "masked":
        return model_type in tables.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if objective == "pair":
        return model_type in tables.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    # Mistral 4 stands among models of pictures alone, with a class that reads tokens.
    seen = tables.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model_type, "")
    return model_type in tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or str(seen).endswith("ForCausalLM")


def pictured_class(model_type: str) -> str:
    """The installed library's class of a ``model_type`` that reads tokens and images; "" without one."""
    if not all(installed()):
        return ""
    from transformers.models.auto import modeling_auto as tables

    named = str(tables.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(model_type) or "")
    return "" if named.endswith("ForCausalLM") else named


def reads_of(config: Mapping[str, Any], class_name: str) -> tuple[frozenset[str], Any]:
    """Names of what a class that sees reads, its tower's as "vision_...", and the library's form of the config."""
    import transformers

    kind = getattr(transformers, class_name)
    whole = transformers.CONFIG_MAPPING[str(config["model_type"])].from_dict(_fields(config))
    tower = transformers.MODEL_MAPPING.get(type(whole.vision_config), None)
    within = inspect.signature(tower.forward).parameters if tower else ()
    own = inspect.signature(kind.forward).parameters
    return frozenset([*own, *(f"vision_{name}" for name in within)]), whole


def pipeline_parts(config: Mapping[str, Any]) -> tuple[tuple[str, ...], str, tuple[str, ...]] | None:
    """Names of what a model has before its layers, of the layers, and of what is behind them, as pipelines cut it.

    They are those of transformers' ``base_model_pp_plan``; None where it states none for a config.
    """
    import transformers

    own = transformers.CONFIG_MAPPING[str(config["model_type"])]
    plan = own.from_dict(_fields(config)).get_text_config(decoder=True).base_model_pp_plan or {}
    layers = [name for name, (reads, _) in plan.items() if "attention_mask" in reads]
    if len(layers) != 1:
        return None
    names, at = list(plan), list(plan).index(layers[0])
    return tuple(names[:at]), layers[0], tuple(names[at + 1 :])


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config that say what a model is."""
    return {key: value for key, value in config.items() if key not in NOT_OF_THE_MODEL}


def parts_left_out(config: Mapping[str, Any], class_name: str) -> tuple[str, ...]:
    """Parts of a config (towers, talkers) that a class for its language model alone does not have."""
    import transformers

    own = getattr(getattr(getattr(transformers, class_name, None), "config_class", None), "model_type", None)
    nested = [key for key, part in config.items() if isinstance(part, Mapping) and not OF_A_MODEL.isdisjoint(part)]
    return () if own in (None, config.get("model_type")) else tuple(key for key in nested if key not in TEXT_CONFIGS)


OF_A_MODEL = frozenset(["model_type", "hidden_size", "d_model", "embed_dim"])
"""Fields of which a model within another one has some."""


def make_module(config: Mapping[str, Any], class_name: str, why: str) -> tuple[Any, Any]:
    """The library's module for a config, on torch's default device, and its example inputs (None: tokens alone).

    ``class_name`` names its class; "" takes the one for causal language models, or that of the config's
    ``architectures``. ``why`` is the beginning of what UserErrors say.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    kind = str(config.get("model_type") or "")
    if class_name and not kind:
        kind = _class(class_name, why).config_class.model_type
    if kind not in transformers.CONFIG_MAPPING:
        near = "" if "did you mean" in why else suggest(kind, transformers.CONFIG_MAPPING)
        raise UserError(f"{why}{near}; transformers {transformers.__version__} has no class for it either: {UPGRADE}")
    library_config = transformers.CONFIG_MAPPING[kind].from_dict(_fields(config))
    try:
        module = _module(library_config, class_name, tuple(config.get("architectures") or ()), why)
    except (AttributeError, TypeError) as error:
        raise _without_fields(error, kind) from error
    for each in module.modules():  # some look for padding among the tokens, to warn of it
        if hasattr(each, WARNS):
            setattr(each, WARNS, lambda *_arguments, **_named: None)
    return module, _inputs(module, why)


def _without_fields(error: Exception, kind: str) -> Exception:
    """What to raise where a class fails: it reads fields of its config that are null, where that is so."""
    place, missing, reader = error.__traceback__, list[str](), ""
    while place is not None:
        frame, line, place = place.tb_frame, place.tb_lineno, place.tb_next
        config = frame.f_locals.get("config")
        if config is None or not frame.f_globals.get("__name__", "").startswith(f"{LIBRARY}.models."):
            continue
        for text in (getline(frame.f_code.co_filename, line), inspect.getsource(frame.f_code)):
            if named := [name for name in _read_in(text) if getattr(config, name, 0) is None]:
                missing, reader = named, frame.f_code.co_qualname.split(".")[0]
                break
    if not missing:
        return error
    return UserError(
        f"model = {kind}: config field{'s' * (len(missing) > 1)} {', '.join(missing)} null, without which {reader} of "
        f"{LIBRARY} {installed()[1]} cannot be built ({type(error).__name__}); allowed: a config that says what its "
        "class reads, as those of checkpoints do"
    )


def _read_in(text: str) -> list[str]:
    """Fields of a config that some code reads, in order."""
    return list(dict.fromkeys(one or other for one, other in _READS.findall(text)))


_READS = re.compile(r"\bconfig\.(\w+)|getattr\(\s*config,\s*\"(\w+)\"")
WARNS = "warn_if_padding_and_no_attention_mask"
"""A method of the library's modules that looks at the values of tokens, to warn alone."""


CODE = "--model module:function of yours"
UPGRADE = f"allowed: a newer transformers, or {CODE}"


def _class(name: str, why: str) -> Any:
    """A class of the library that has a forward and a config."""
    import transformers

    result = getattr(transformers, name, None)
    near = suggest(name, dir(transformers))
    if not inspect.isclass(result) or getattr(result, "config_class", None) is None:
        raise UserError(f"{why}; transformers {transformers.__version__} has no model class {name}{near}")
    return result


def _module(config: Any, class_name: str, architectures: tuple[str, ...], why: str) -> Any:
    import transformers

    if class_name:
        kind = _class(class_name, why)
        return kind(_config_for(kind, config))
    text = _tied_as(config, config.get_text_config(decoder=True))
    causal: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if not config.is_encoder_decoder:
        for each in (text, config):
            if type(each) in causal:
                return causal[type(each)](_config_for(causal[type(each)], each))
    for name in architectures:
        if hasattr(transformers, name):
            return _class(name, why)(config)
    for table in SOURCE_OF_PAIRS if config.is_encoder_decoder else SOURCE_OF_CLASS:
        if type(config) in (mapping := getattr(transformers, table)):
            return mapping[type(config)](config)
    classes = _classes_of(config)
    allowed = f"--model-class {' or '.join(classes[:MOST_NAMED])}" if classes else f"{CODE} that returns it"
    raise UserError(f"{why}; transformers has no language model for {type(config).__name__}; allowed: {allowed}")


def _tied_as(config: Any, text: Any) -> Any:
    """The part of a config for text; its head has a table of its own where that of the whole has."""
    if text is not config and hasattr(config, "tie_word_embeddings"):
        text.tie_word_embeddings = config.tie_word_embeddings
    return text


MOST_NAMED = 5
"""Classes that a refusal names."""


def _classes_of(config: Any) -> list[str]:
    """Names of the library's model classes for a config, those with a head first."""
    import transformers

    home = type(config).__module__.replace("configuration_", "modeling_").split(".")
    module = transformers
    for step in home[1:]:
        module = getattr(module, step, None)
    names = (name for name in getattr(module, "__all__", ()) if not name.endswith("PreTrainedModel"))
    made_of = [name for name in names if getattr(getattr(module, name), "config_class", None) is type(config)]
    return sorted(made_of, key=lambda name: "For" not in name)


def _config_for(kind: Any, config: Any) -> Any:
    """The config, or the part of it for text where that is what a class takes."""
    text = config.get_text_config(decoder=True)
    return text if not isinstance(config, kind.config_class) and isinstance(text, kind.config_class) else config


def _inputs(module: Any, why: str) -> dict[str, Any] | None:
    """Example inputs by name: pictures, sounds, the tokens of both towers; None for a model that reads one sequence.

    Raises UserError for a model that reads something of which its config states no size.
    """
    import torch

    taken, main = inspect.signature(module.forward).parameters, str(module.main_input_name)
    result = {}
    if "input_ids" in taken:
        main = "input_ids"
    if main in SIZES:
        config = getattr(module.config, "vision_config", None) or module.config
        channels, length = (getattr(config, name, None) for name in SIZES[main])
        if not isinstance(channels, int) or not isinstance(length, int):
            raise UserError(
                f"{why}; {type(module).__name__} reads {main}, of which its config states no size: {EXAMPLE}"
            )
        result[main] = _example(main, channels, length)
    elif main != "input_ids" and main in taken:
        raise UserError(f"{why}; {type(module).__name__} reads {main}, of which no size is known: {EXAMPLE}")
    for name in NEEDED.findall(inspect.getsource(inspect.getmodule(type(module)) or type(module))):
        if name in taken and "input_ids" in taken:
            result |= {each: torch.zeros(1, LENGTH, dtype=torch.int64) for each in ("input_ids", name)}
    if getattr(module.config, "is_encoder_decoder", False) and "decoder_input_ids" in taken:
        names = ("decoder_input_ids",) if result else ("input_ids", "decoder_input_ids")
        result |= {name: torch.zeros(1, LENGTH, dtype=torch.int64) for name in names}
    return result or None


def _example(main: str, channels: int, length: int) -> Any:
    """One picture of ``length`` x ``length`` pixels; one sound, of two frames for a position of the encoder."""
    import torch

    return torch.zeros(1, channels, length, length) if main == "pixel_values" else torch.zeros(1, channels, 2 * length)


NEEDED = re.compile(r"`(\w+)` is required as a model input when training")
"""What classes say where they refuse to train on tokens alone: a number for every token is missing."""
SIZES = {"pixel_values": ("num_channels", "image_size"), "input_features": ("num_mel_bins", "max_source_positions")}
"""By the name of an input other than tokens: fields of configs with its channels and its length."""
EXAMPLE = f"allowed: {CODE} that returns (module, example inputs)"
LENGTH = 64
"""Tokens of an example; captures give them the training's length."""
