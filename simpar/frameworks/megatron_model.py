"""The model that Megatron-LM's arguments state: a shipped one, one with another vocabulary, or one of their own."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from simpar.architectures.catalogue import config_of, find_model, load_model
from simpar.architectures.graph import ModelGraph
from simpar.architectures.hf_config import read as read_config
from simpar.errors import UserError
from simpar.frameworks.architecture import architecture
from simpar.frameworks.match import DECODER, find_released, is_telling, models_with, sizes_of, with_rope
from simpar.frameworks.megatron_arguments import SIZES, Arguments
from simpar.frameworks.megatron_layers import SKIPPED, WINDOW, hybrid_config, pattern_asked, windows_asked
from simpar.frameworks.megatron_layers_said import (
    NEAR,
    PREDICTIONS,
    expert_layers,
    further_layers,
    predictions_changed,
    told,
    unlike,
    with_layers_said,
)
from simpar.frameworks.shell_words import UNKNOWN
from simpar.plain import plain_name

UNSTATED = (
    "--experimental-attention-variant", "--enable-mhc-connections", "--linear-attention-freq",
    "--heterogeneous-layers-config-path", "--heterogeneous-layers-config-encoded-json", "--attention-output-gate",
)  # fmt: skip
"""Arguments of layers that no config says here."""
PARTLY = ("--spec", "--softmax-type", "--quick-geglu")
"""Arguments of layers that shipped models have and no config is built of."""
GPT2_VOCABULARY = 50257
WINDOWED = ("mistral", "qwen2", "qwen3", "qwen3_moe", "starcoder2", "mixtral")
"""Families whose layers may have windows, as a config says layer by layer."""
OF_GPT2 = ("GPT2BPETokenizer", "")
"""Tokenizers of so many words: GPT-2's, which is also taken where none is named."""
OF_LLAMA_2 = 32000
"""Words of Llama 2's tokenizer. Llama2Tokenizer reads any file of SentencePiece: only the file's path tells."""
ROTARY = ("rope", "yarn", "mrope")
"""Positions that are rotations of queries and keys."""
OTHER_EXPERTS = re.compile(r"--(?:moe-)?(?:num|n)-(?:\w+-)?experts?")
"""The number of experts by other names, as MegaBlocks has it: the layers are no dense ones."""
CHOSEN = 2
"""Experts of a token where no argument says how many."""
MOST_FOLDERS = 6
"""Names of a tokenizer's path, from its end on, that may be a model's."""
DIVISOR = 128
"""Vocabularies are padded to a multiple of this, for every tensor-parallel rank (make_vocab_size_divisible_by)."""


OTHER_PREDICTIONS = (
    "Layers that predict further tokens are those of --mtp-num-layers (none by default), unlike the released model's."
)
TABLE = ("n_positions", "max_position_embeddings")
"""What configs call the length of a table of positions."""
PATCH_TOKENIZER = "--patch-tokenizer-type"
OWN_LAYERS = "--extra-vocab-size"
"""Pai-Megatron-Patch's models have their biases without a switch."""


def kind_asked(given: Arguments) -> str:
    """The kind of model (:func:`~simpar.frameworks.match.kind_of`) that arguments ask for; "other" for unknown ones."""
    pattern = pattern_asked(given)
    if pattern is not None:
        return pattern
    if any(flag in given.values for flag in UNSTATED) or re.search("pretrain_bert|mamba", given.script):
        return "other"
    return "latent" if given.has("--multi-latent-attention") else DECODER


def sizes_asked(given: Arguments) -> dict[str, int]:
    """Sizes of the model, including Megatron-LM's defaults. Raises UserError for experts by a name of another fork."""
    if "--num-experts" not in given.values:
        for flag, said in given.values.items():
            if OTHER_EXPERTS.fullmatch(flag) and said and said[0].isdecimal() and int(said[0]) > 1:
                name = given.name(flag)
                raise UserError(f"{given.source}: {name} = {said[0]}: not Megatron-LM's; allowed: --num-experts")
    sizes = {name: given.number(flag) for flag, name in SIZES.items()}
    if not given.has("--group-query-attention"):
        is_one = given.text("--attention-head-type") == "multiquery"  # BigCode's
        sizes["kv_heads"] = 1 if is_one else sizes["heads"]
    if sizes["num_experts"] is None:
        sizes |= {"num_experts": 0, "expert_ffn": 0}
    else:
        if sizes["expert_ffn"] is None:
            sizes["expert_ffn"] = sizes["ffn"]
        if dense_layers("".join(given.values.get("--moe-layer-freq", ["1"])), sizes["layers"] or 0) == 0:
            sizes["ffn"] = None  # no layer is dense
    return {name: size for name, size in sizes.items() if size is not None}


def find_models(given: Arguments, sizes: Mapping[str, int]) -> tuple[list[str], Mapping[str, Any] | None, list[str]]:
    """The shipped models that arguments state, the config of one that is not shipped, and notes."""
    kind = kind_asked(given)
    sizes = _with_width(given, sizes)
    models = _narrowed(given, models_with(sizes, kind))
    if models or not is_telling(sizes):
        if not is_telling(sizes):
            return models, None, []
        released, other, said = _with_vocabulary(given, sizes, models)
        changed, notes = _changed(given, models[0], other or config_of(models[0]), sizes)
        if changed:
            released, other, said = [], changed, [*said, *notes]
        return released, other, [*said, *_unsaid(given, models[0])]
    others = {key: value for key, value in sizes.items() if key != "vocab"}
    same = _narrowed(given, models_with(others, kind)) if "vocab" in sizes else []
    if same:
        words = _padded(given, sizes["vocab"])
        note = f"The model is {same[0]} with the vocabulary that the text gives, {words} words with padding."
        own = {**config_of(same[0]), "vocab_size": words}
        adapted, notes = _changed(given, same[0], own, sizes)
        return [], adapted or own, [note, *notes, *_unsaid(given, same[0])]
    if kind == "other":
        return [], None, _strange(given, UNSTATED)
    vocabulary = _vocabulary(given, sizes)
    if vocabulary is None:
        tokenizer = given.path("--tokenizer-model") or given.path("--tokenizer-type")
        return [], None, [f"The vocabulary of {tokenizer} is not known: give --vocab-size N in the text, or --model."]
    config = _config(given, {**sizes, "vocab": vocabulary})
    if config is None:
        return [], None, _strange(given, PARTLY) or _ungated(given, sizes)
    notes = [f"No shipped model has these sizes; it is built from the arguments (model_type {config['model_type']})."]
    width = sizes.get("ffn") or sizes.get("expert_ffn")
    if width and "--ffn-hidden-size" not in given.values and "--moe-ffn-hidden-size" not in given.values:
        notes.append(f"An MLP's width is {width}, as Megatron-LM takes where no --ffn-hidden-size says one.")
    if "vocab" not in sizes and "--padded-vocab-size" not in given.values:
        named = given.text("--tokenizer-model") if vocabulary != GPT2_VOCABULARY else "GPT-2's tokenizer"
        notes.append(f"The vocabulary is not said: {config['vocab_size']} words, as {named} has, padded.")
    return [], config, notes


def _strange(given: Arguments, flags: Iterable[str]) -> list[str]:
    """A note on the arguments whose layers no config is built of; none if none of these is there."""
    told = [f"{given.name(flag)} {' '.join(given.values[flag])}".strip() for flag in flags if flag in given.values]
    if not told:
        return []
    return [f"No shipped model has these sizes, and no config is built with {', '.join(told)}: give --model."]


def _ungated(given: Arguments, sizes: Mapping[str, int]) -> list[str]:
    """A note on experts without a gate."""
    if not sizes.get("num_experts") or _is_gated(given):
        return []
    return ["No shipped model has these sizes, and no config is built of experts without a gate (--swiglu)."]


def _with_width(given: Arguments, sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Sizes with the width that Megatron-LM gives MLPs where no argument says one."""
    if "--ffn-hidden-size" in given.values or "hidden" not in sizes:
        return sizes
    width = _usual_ffn(sizes["hidden"], gated=_is_gated(given))
    if sizes["num_experts"] and "expert_ffn" not in sizes:
        return {**sizes, "expert_ffn": width}
    return sizes if sizes["num_experts"] else {**sizes, "ffn": width}


def _is_gated(given: Arguments) -> bool:
    """Whether MLPs have a gate."""
    return any(given.has(flag) for flag in ("--swiglu", "--gated-linear-unit", "--quick-geglu"))


def _is_rotary(given: Arguments) -> bool:
    """Whether positions are rotations of queries and keys."""
    return given.text("--position-embedding-type") in ROTARY or given.has("--use-rotary-position-embeddings")


def _unsaid(given: Arguments, model: str) -> list[str]:
    """A note on what decides of a model's layers and is not in the text: Megatron-LM would train others."""
    graph = load_model(model)
    style, head = architecture(graph), graph.dims.get("head_dim")
    usual = graph.dims["hidden"] // graph.dims["heads"]
    absent = {
        "--swiglu": style.gated and not _is_gated(given),
        "--untie-embeddings-and-output-weights": not style.tied
        and "--untie-embeddings-and-output-weights" not in given.values,
        f"--kv-channels {head}": head not in (None, usual)
        and not {"--kv-channels", "--multi-latent-attention"} & set(given.values),
        f"--moe-router-topk {graph.dims.get('topk')}": graph.dims.get("topk", CHOSEN) != CHOSEN
        and "--moe-router-topk" not in given.values,
        f"--moe-shared-expert-intermediate-size {graph.dims.get('shared_ffn')}": graph.dims.get("shared_ffn")
        and "--moe-shared-expert-intermediate-size" not in given.values,
        "--moe-layer-freq": not all(style.experts) and not graph.has_state and "--moe-layer-freq" not in given.values,
    }
    unsaid = [flag for flag, is_absent in absent.items() if is_absent]
    if not unsaid:
        return []
    named = f"The sizes are those of {model}, and so are its layers here"
    return [f"{named}; without {', '.join(unsaid)}, which the text does not have, Megatron-LM trains others."]


def _with_vocabulary(
    given: Arguments, sizes: Mapping[str, int], models: list[str]
) -> tuple[list[str], Mapping[str, Any] | None, list[str]]:
    """The first model of those with its own vocabulary, or that of the tokenizer that the text names; with a note."""
    if "vocab" in sizes or not models:
        return models, None, []
    own, told = load_model(models[0]).dims["vocab"], _vocabulary(given, sizes)
    if not given.path("--tokenizer-type") and not given.text("--padded-vocab-size"):
        told = None  # GPT-2's by default
    if told is not None and abs(told - own) <= NEAR:
        return models, None, []
    if told is None:
        note = f"The vocabulary is not said: {own} words, as {models[0]} has (--vocab-size in the text says another)."
        return models, None, [note]
    words = _padded(given, told)
    note = f"The model is {models[0]} with the vocabulary of the text's tokenizer, {words} words with padding."
    return [], {**config_of(models[0]), "vocab_size": words}, [note]


def _changed(
    given: Arguments, model: str, config: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[Mapping[str, Any], list[str]]:
    """A shipped model's config with what the text says beside its sizes, {} if that changes nothing, with notes.

    No layers that predict further tokens where its family has none (:func:`lacks_predictions`). A config is built of
    the arguments where the model's family cannot have layers as they say.
    """
    predictions, positions = predictions_changed(model, further_layers(given)), _with_positions(given, model)
    notes = [OTHER_PREDICTIONS] if predictions else []
    notes += [f"{model} with a table of {rows:,} positions, as the text has." for rows in positions.values()]
    changed = {**config, **predictions, **positions} if predictions or positions else {}
    if not (other := unlike(given, load_model(model))):
        return changed, notes
    result = with_layers_said(given, changed or config)
    left = unlike(given, read_config(result))
    built = _config(given, {**sizes, "vocab": load_model(model).dims["vocab"], **sizes}) if left else None
    if built and len(unlike(given, read_config(built))) < len(left):
        return built, [f"{model} has {told(given, other)}: the model is built from the arguments.", *notes]
    kept = {flag: own for flag, own in other.items() if flag not in left}
    return (result, [f"{model} has {told(given, kept)}.", *notes]) if kept else (changed, notes)


def _with_positions(given: Arguments, model: str) -> dict[str, int]:
    """What changes in a shipped model's config, if its table of positions ends before the text's sequences."""
    longest, length = load_model(model).longest, given.number("--seq-length") or 0
    if length <= (longest or length):
        return {}
    return {key: given.number("--max-position-embeddings") or length for key in TABLE if key in config_of(model)}


def _narrowed(given: Arguments, models: list[str]) -> list[str]:
    """Those with the text's tokenizer, biases and windows, and of several those with its rotary base."""
    models = [name for name in models if not _contradicts(given, load_model(name))]
    tokenizer = "".join(given.values.get("--tokenizer-model", [])[:1])
    named = (
        find_released(tokenizer, given.source) if models and tokenizer and "--vocab-size" not in given.values else None
    )
    if named:
        words = load_model(named).dims["vocab"]
        models = [name for name in models if load_model(name).dims["vocab"] == words]
        models = [named] if named in models else models
    if given.has("--add-qkv-bias"):
        models = [name for name in models if "qkv" in architecture(load_model(name)).biases]
    elif given.has("--disable-bias-linear") and OWN_LAYERS not in given.values:
        models = [name for name in models if "qkv" not in architecture(load_model(name)).biases]
    models = _of_tokenizer(given, models)
    base = given.text("--rotary-base") if len(models) > 1 else None
    if base is not None and re.fullmatch(r"[\d.]+(e\d+)?", base):
        models = with_rope(models, float(base), scaled=given.has("--use-rope-scaling"))
    if len(models) > 1:
        ways = {name: _unlike(given, load_model(name)) for name in models}
        models = [name for name in models if ways[name] == min(ways.values())]
    reaching = [name for name in models if not _with_positions(given, name)]
    models = reaching if reaching or "--vocab-size" in given.values else models  # without it, none can be built
    if not models or WINDOW not in given.values:
        return models
    asked = {name: windows_asked(given, sizes_of(load_model(name))["layers"]) for name in models}
    same = [name for name in models if asked[name] in ((), architecture(load_model(name)).windows)]
    if same:
        given.used |= {WINDOW, SKIPPED}
    return same


def _of_tokenizer(given: Arguments, models: list[str]) -> list[str]:
    """Those that are called like Pai's tokenizer (DeepSeekV2Tokenizer); all where none is."""
    family = "".join(given.values.get(PATCH_TOKENIZER, [])[:1]).removesuffix("Tokenizer")
    like = [name for name in models if family and plain_name(name).startswith(plain_name(family))]
    return like or models


def _contradicts(given: Arguments, graph: ModelGraph) -> bool:
    """Whether a decoder's layers are not those that arguments name: gates, rotations, biases, norms, tables."""
    if "qk_dim" in graph.dims or graph.has_state:
        return False
    style, kind = architecture(graph), given.text("--position-embedding-type")
    rms = (given.text("--normalization") or "").lower() == "rmsnorm"
    return (
        style.residual == "parallel"  # which no argument says
        or (_is_gated(given) and not style.gated)
        or (_is_rotary(given) and style.positions != "rope")
        or (kind == "alibi" and not graph.details.positions.alibi)
        or (kind is None and graph.details.positions.alibi and "--max-position-embeddings" in given.values)
        or (rms and style.norm != "rms")
    )


def _unlike(given: Arguments, graph: ModelGraph) -> int:
    """In how many ways a model's layers are not those that arguments, and Megatron-LM's defaults, ask for."""
    style, kind = architecture(graph), given.text("--position-embedding-type")
    gated = _is_gated(given)
    rotary = _is_rotary(given)
    rms = (given.text("--normalization") or "LayerNorm").lower() == "rmsnorm"
    width = given.number("--ffn-hidden-size") or _usual_ffn(graph.dims["hidden"], gated=gated)
    return (
        (graph.details.positions.alibi != (kind == "alibi"))
        + ((style.positions == "rope") != rotary)
        + (style.gated != gated)
        + ((style.norm == "rms") != rms)
        + (style.tied != ("--untie-embeddings-and-output-weights" not in given.values))
        + (not graph.is_mixture and graph.dims.get("ffn") != width)
        + len(unlike(given, graph))
    )


def _usual_ffn(hidden: int, *, gated: bool) -> int:
    """Megatron-LM's own width of an MLP (``megatron/training/arguments.py``, validate_args)."""
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def _padded(given: Arguments, words: int) -> int:
    """The vocabulary with Megatron-LM's padding."""
    if given.has("--padded-vocab-size") and (told := given.number("--padded-vocab-size")):
        return told
    multiple = given.number("--make-vocab-size-divisible-by") or DIVISOR
    multiple *= given.number("--tensor-model-parallel-size") or 1
    return -(-words // multiple) * multiple


def _vocabulary(given: Arguments, sizes: Mapping[str, int]) -> int | None:
    """The number of words: as it is said, of GPT-2's tokenizer, or of a known model's; None if nothing tells."""
    told = sizes.get("vocab") or given.number("--padded-vocab-size")
    if told is not None:
        return told
    kind = given.path("--tokenizer-type") or ""
    if kind in OF_GPT2:
        return GPT2_VOCABULARY
    named = "".join(given.values.get("--tokenizer-model", [])[:1])
    model = find_released(named, given.source) if named else None
    model = model or next(filter(None, map(find_model, reversed(named.split("/")[-MOST_FOLDERS:]))), None)
    if model is not None:
        return load_model(model).dims["vocab"]
    return OF_LLAMA_2 if kind == "Llama2Tokenizer" and re.search(r"llama[-_.]?2\b", named.lower()) else None


def _config(given: Arguments, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """The config of a decoder that arguments state in full; None if they do not."""
    pattern = pattern_asked(given)
    if any(flag in given.values for flag in PARTLY if flag != "--spec" or not pattern):
        return None
    sizes = {**sizes, "layers": len(pattern)} if pattern else sizes
    if not {"layers", "hidden", "heads"} <= set(sizes):
        return None
    hidden, heads = sizes["hidden"], sizes["heads"]
    gated = _is_gated(given)
    ffn = given.number("--ffn-hidden-size") or _usual_ffn(hidden, gated=gated)
    result: dict[str, Any] = {
        "vocab_size": _padded(given, sizes["vocab"]),
        "hidden_size": hidden,
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": sizes.get("kv_heads", heads),
        "intermediate_size": ffn,
        "head_dim": given.number("--kv-channels") or hidden // heads,
        "tie_word_embeddings": not given.has("--untie-embeddings-and-output-weights"),
    }
    if pattern:
        return hybrid_config(given, pattern, result)
    windows = windows_asked(given, sizes["layers"])
    if not sizes.get("num_experts"):
        config = _dense(given, result, gated=gated)
    else:
        config = _mixture(given, result, sizes) if gated else None
    if not windows or config is None:
        return config
    if config["model_type"] not in WINDOWED:
        return None
    given.used |= {WINDOW, SKIPPED}
    kinds = ["full_attention" if each is None else "sliding_attention" for each in windows]
    size = next(filter(None, windows), None)
    return {**config, "sliding_window": size, "use_sliding_window": True, "layer_types": kinds}


def _dense(given: Arguments, result: dict[str, Any], *, gated: bool) -> dict[str, Any] | None:
    """The config of a decoder without experts."""
    heads, hidden, ffn = result["num_attention_heads"], result["hidden_size"], result["intermediate_size"]
    biased = not given.has("--disable-bias-linear")
    kind = given.text("--position-embedding-type")
    rotary = _is_rotary(given)
    if given.has("--multi-latent-attention"):
        return None  # latent attention without experts: no family
    rms = (given.text("--normalization") or "LayerNorm").lower() == "rmsnorm"
    if gated:
        normed = given.has("--qk-layernorm")
        if rms or normed:
            names = {"attention_bias": biased or given.has("--add-qkv-bias")}
            if not normed and not biased and given.has("--add-qkv-bias"):
                return {**result, "model_type": "qwen2"}
            if not normed and not biased and WINDOW in given.values:
                return {**result, "model_type": "mistral"}
            return {**result, "model_type": "qwen3" if normed else "llama", **names, "mlp_bias": biased and not normed}
        return {**result, "model_type": "stablelm", "use_qkv_bias": biased, "partial_rotary_factor": 1.0}
    if given.has("--squared-relu"):
        return {**result, "model_type": "nemotron", "attention_bias": biased, "mlp_bias": biased}
    if rotary or result["num_key_value_heads"] != heads:
        return {**result, "model_type": "starcoder2", "use_bias": biased, "sliding_window": None}
    if kind == "alibi":
        has_norm, wide = given.has("--embed-layernorm"), ffn == 4 * hidden
        if has_norm and wide and biased:
            return {"model_type": "bloom", "vocab_size": result["vocab_size"], "hidden_size": hidden, "n_head": heads,
                    "n_layer": result["num_hidden_layers"]}  # fmt: skip
        if has_norm or ffn % hidden:
            return None
        return {"model_type": "mpt", "vocab_size": result["vocab_size"], "d_model": hidden, "n_heads": heads,
                "n_layers": result["num_hidden_layers"], "expansion_ratio": ffn // hidden, "no_bias": not biased,
                "tie_word_embeddings": result["tie_word_embeddings"]}  # fmt: skip
    rates = {"attn_pdrop": "--attention-dropout", "resid_pdrop": "--hidden-dropout"}  # 0.1 by default, as of GPT-2
    drops = {name: _rate(given, flag) for name, flag in rates.items()}
    return {
        "model_type": "gpt2",
        "vocab_size": result["vocab_size"],
        "n_positions": given.number("--max-position-embeddings") or given.number("--seq-length") or 1024,
        "n_embd": hidden,
        "n_layer": result["num_hidden_layers"],
        "n_head": heads,
        "n_inner": ffn,
        "tie_word_embeddings": result["tie_word_embeddings"],
        **drops,
        "embd_pdrop": drops["resid_pdrop"],
    }


def _rate(given: Arguments, flag: str) -> float:
    text = given.text(flag)
    return float(text) if text is not None and re.fullmatch(r"0?\.\d+|[01](\.0*)?", text) else 0.1


def _mixture(given: Arguments, dense: dict[str, Any], sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """The config of a mixture: Mixtral's layers, Qwen's with normed heads, DeepSeek's with latent attention."""
    width = sizes.get("expert_ffn") or dense["intermediate_size"]
    experts, chosen = sizes["num_experts"], given.number("--moe-router-topk") or CHOSEN
    shared = given.number("--moe-shared-expert-intermediate-size") or 0
    if given.has("--moe-layer-freq") and UNKNOWN.search("".join(given.values["--moe-layer-freq"])):
        return None
    layers = dense_layers("".join(given.values.get("--moe-layer-freq", [])), sizes["layers"])
    if layers is None or (shared and shared % width):
        return None
    routed = {"moe_intermediate_size": width, "num_experts_per_tok": chosen}
    sigmoid = given.text("--moe-router-score-function") == "sigmoid"
    groups = {
        "n_group": given.number("--moe-router-num-groups") or 1,
        "topk_group": given.number("--moe-router-group-topk") or 1,
    }
    if given.has("--multi-latent-attention"):
        # megatron-core, MLATransformerConfig
        sizes_of_heads = {
            "kv_lora_rank": given.number("--kv-lora-rank") or 32,
            "q_lora_rank": given.number("--q-lora-rank"),
            "qk_nope_head_dim": given.number("--qk-head-dim") or 128,
            "qk_rope_head_dim": given.number("--qk-pos-emb-head-dim") or 64,
            "v_head_dim": given.number("--v-head-dim") or 128,
        }
        bias = {} if given.has("--moe-router-enable-expert-bias") else {"topk_method": "group_limited_greedy"}
        return {
            **{key: value for key, value in dense.items() if key != "head_dim"}, **routed, **groups, **sizes_of_heads,
            "model_type": "deepseek_v3" if sigmoid else "deepseek_v2",
            "num_key_value_heads": dense["num_attention_heads"], "n_routed_experts": experts,
            "n_shared_experts": shared // width or None, "first_k_dense_replace": layers, **(bias if sigmoid else {}),
            PREDICTIONS: further_layers(given),
        }  # fmt: skip
    normed = given.has("--qk-layernorm")
    if not layers and not shared and not normed:
        return {**dense, "model_type": "mixtral", "intermediate_size": width, "num_local_experts": experts,
                "num_experts_per_tok": chosen}  # fmt: skip
    if not shared and normed:
        return {**dense, **routed, "model_type": "qwen3_moe", "num_experts": experts,
                "mlp_only_layers": list(range(layers))}  # fmt: skip
    own = {"n_routed_experts": experts, "first_k_dense_replace": layers}
    if not normed:
        return {**dense, **routed, **own, "model_type": "deepseek", "n_shared_experts": shared // width or None}
    return {**dense, **routed, **groups, **own, "model_type": "glm4_moe",
            "n_shared_experts": shared // width, "use_qk_norm": normed,
            "attention_bias": given.has("--add-qkv-bias"), PREDICTIONS: 0}  # fmt: skip


def dense_layers(text: str | None, layers: int) -> int | None:
    """How many layers at the start are dense, by ``--moe-layer-freq``; None if it says another pattern."""
    flags = expert_layers(text or "1", layers)
    dense = 0 if flags is None else (*flags, True).index(True)
    return dense if flags is not None and all(flags[dense:]) else None
