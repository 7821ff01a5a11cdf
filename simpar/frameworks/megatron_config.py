"""The config of a decoder that Megatron-LM's arguments state in full, by families that have such layers."""

import re
from collections.abc import Mapping
from typing import Any

from simpar.architectures.catalogue import find_model, load_model
from simpar.frameworks.match import find_released
from simpar.frameworks.megatron_arguments import Arguments
from simpar.frameworks.megatron_layers import SKIPPED, WINDOW, hybrid_config, pattern_asked, windows_asked
from simpar.frameworks.megatron_layers_said import PREDICTIONS, expert_layers, further_layers
from simpar.frameworks.shell_words import UNKNOWN

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
CHOSEN = 2
"""Experts of a token where no argument says how many."""
MOST_FOLDERS = 6
"""Names of a tokenizer's path, from its end on, that may be a model's."""
DIVISOR = 128
"""Vocabularies are padded to a multiple of this, for every tensor-parallel rank (make_vocab_size_divisible_by)."""


def is_gated(given: Arguments) -> bool:
    """Whether MLPs have a gate."""
    return any(given.has(flag) for flag in ("--swiglu", "--gated-linear-unit", "--quick-geglu", "--glu-activation"))


def is_rotary(given: Arguments) -> bool:
    """Whether positions are rotations of queries and keys."""
    return given.text("--position-embedding-type") in ROTARY or given.has("--use-rotary-position-embeddings")


def usual_ffn(hidden: int, *, gated: bool) -> int:
    """Megatron-LM's own width of an MLP (``megatron/training/arguments.py``, validate_args)."""
    return int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden


def padded(given: Arguments, words: int) -> int:
    """The vocabulary with Megatron-LM's padding."""
    if given.has("--padded-vocab-size") and (told := given.number("--padded-vocab-size")):
        return told
    multiple = given.number("--make-vocab-size-divisible-by") or DIVISOR
    multiple *= given.number("--tensor-model-parallel-size") or 1
    return -(-words // multiple) * multiple


def vocabulary_of(given: Arguments, sizes: Mapping[str, int]) -> int | None:
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


def config_stated(given: Arguments, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """The config of a decoder that arguments state in full; None if they do not."""
    pattern = pattern_asked(given)
    if any(flag in given.values for flag in PARTLY if flag != "--spec" or not pattern):
        return None
    sizes = {**sizes, "layers": len(pattern)} if pattern else sizes
    if not {"layers", "hidden", "heads"} <= set(sizes):
        return None
    hidden, heads = sizes["hidden"], sizes["heads"]
    gated = is_gated(given)
    ffn = given.number("--ffn-hidden-size") or usual_ffn(hidden, gated=gated)
    result: dict[str, Any] = {
        "vocab_size": padded(given, sizes["vocab"]),
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
    rotary = is_rotary(given)
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
