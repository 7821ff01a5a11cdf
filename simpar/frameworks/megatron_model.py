"""The model that Megatron-LM's arguments state: a shipped one, one with another vocabulary, or one of their own."""

import re
from collections.abc import Mapping
from typing import Any

from simpar.architectures.catalogue import config_of
from simpar.frameworks.match import DECODER, is_telling, models_with, with_rope
from simpar.frameworks.megatron_arguments import SIZES, Arguments
from simpar.frameworks.megatron_hybrid import PASS, STAGE_END

PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
RATIOS = ("--hybrid-attention-ratio", "--hybrid-mlp-ratio", "--is-hybrid-model")
"""Arguments of hybrids that do not say which layer is which."""
OTHERS = re.compile(r"pretrain_(bert|t5|ict|retro|vision|vlm|mimo)|train_rl|mimo/|multimodal/")
"""Scripts that train no decoder of text alone."""
UNSTATED = (
    "--experimental-attention-variant", "--enable-mhc-connections", "--linear-attention-freq",
    "--vision-model-type", "--language-model-type", "--img-h",
    "--heterogeneous-layers-config-path", "--heterogeneous-layers-config-encoded-json", "--attention-output-gate",
)  # fmt: skip
"""Arguments of layers that no config says here."""
PARTLY = ("--spec", "--window-size", "--softmax-type", "--quick-geglu", "--window-attn-skip-freq")
"""Arguments of layers that shipped models have and no config is built of."""
GPT2_VOCABULARY = 50257
OF_GPT2 = ("GPT2BPETokenizer", "")
"""Tokenizers of so many words: GPT-2's, which is also taken where none is named."""
DIVISOR = 128
"""Vocabularies are padded to a multiple of this, for every tensor-parallel rank (make_vocab_size_divisible_by)."""


def kind_asked(given: Arguments) -> str:
    """The kind of model (:func:`~simpar.frameworks.match.kind_of`) that arguments ask for; "other" for unknown ones."""
    pattern = next((text for flag in PATTERNS if (text := given.text(flag))), None)
    if pattern is not None:
        return pattern.partition(PASS)[0].replace(STAGE_END, "")
    unstated = [flag for flag in (*UNSTATED, *RATIOS) if flag in given.values]
    if unstated or OTHERS.search(given.script) or "mamba" in given.script:
        return "other"
    return "latent" if given.has("--multi-latent-attention") else DECODER


def sizes_asked(given: Arguments) -> dict[str, int]:
    """Sizes of the model, including Megatron-LM's defaults."""
    sizes = {name: given.number(flag) for flag, name in SIZES.items()}
    if not given.has("--group-query-attention"):
        sizes["kv_heads"] = sizes["heads"]
    if sizes["num_experts"] is None:
        sizes |= {"num_experts": 0, "expert_ffn": 0}
    else:
        if sizes["expert_ffn"] is None:
            sizes["expert_ffn"] = sizes["ffn"]
        if given.text("--moe-layer-freq") in (None, "1"):
            sizes["ffn"] = None  # no layer is dense
    return {name: size for name, size in sizes.items() if size is not None}


def find_models(given: Arguments, sizes: Mapping[str, int]) -> tuple[list[str], Mapping[str, Any] | None, list[str]]:
    """The shipped models that arguments state, the config of one that is not shipped, and notes."""
    kind = kind_asked(given)
    models = _narrowed(given, models_with(sizes, kind))
    if models or not is_telling(sizes):
        return models, None, []
    others = {key: value for key, value in sizes.items() if key != "vocab"}
    same = _narrowed(given, models_with(others, kind)) if "vocab" in sizes else []
    if same:
        words = _padded(given, sizes["vocab"])
        note = f"The model is {same[0]} with the vocabulary that the text gives, {words} words with padding."
        return [], {**config_of(same[0]), "vocab_size": words}, [note]
    config = None if kind not in (DECODER, "latent") else _config(given, sizes)
    if config is None:
        return [], None, []
    notes = [f"No shipped model has these sizes; it is built from the arguments (model_type {config['model_type']})."]
    if "vocab" not in sizes and "--padded-vocab-size" not in given.values:
        notes.append(f"The vocabulary is not said: {config['vocab_size']} words, as GPT-2's tokenizer has, padded.")
    return [], config, notes


def _narrowed(given: Arguments, models: list[str]) -> list[str]:
    base = given.text("--rotary-base") if len(models) > 1 else None
    if base is None or not re.fullmatch(r"[\d.]+(e\d+)?", base):
        return models
    return with_rope(models, float(base), scaled=given.has("--use-rope-scaling"))


def _padded(given: Arguments, words: int) -> int:
    """The vocabulary with Megatron-LM's padding."""
    if given.has("--padded-vocab-size") and (told := given.number("--padded-vocab-size")):
        return told
    multiple = given.number("--make-vocab-size-divisible-by") or DIVISOR
    multiple *= given.number("--tensor-model-parallel-size") or 1
    return -(-words // multiple) * multiple


def _config(given: Arguments, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """The config of a decoder that arguments state in full; None if they do not."""
    if any(flag in given.values for flag in PARTLY):
        return None
    vocabulary = sizes.get("vocab") or given.number("--padded-vocab-size")
    if vocabulary is None:
        if (given.text("--tokenizer-type") or "") not in OF_GPT2:
            return None
        vocabulary = GPT2_VOCABULARY
    if not {"layers", "hidden", "heads"} <= set(sizes):
        return None
    hidden, heads = sizes["hidden"], sizes["heads"]
    gated = given.has("--swiglu") or given.has("--gated-linear-unit") or given.has("--quick-geglu")
    # Megatron-LM's own width of an MLP (megatron/training/arguments.py, validate_args)
    ffn = given.number("--ffn-hidden-size") or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    kind = given.text("--position-embedding-type")
    rotary = kind in ("rope", "yarn", "mrope") or given.has("--use-rotary-position-embeddings")
    result: dict[str, Any] = {
        "vocab_size": _padded(given, vocabulary),
        "hidden_size": hidden,
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": sizes.get("kv_heads", heads),
        "intermediate_size": ffn,
        "head_dim": given.number("--kv-channels") or hidden // heads,
        "tie_word_embeddings": not given.has("--untie-embeddings-and-output-weights"),
    }
    biased = not given.has("--disable-bias-linear")
    if sizes.get("num_experts"):
        return _mixture(given, result, sizes)
    if given.has("--multi-latent-attention"):
        return None  # latent attention without experts: no family
    rms = (given.text("--normalization") or "LayerNorm").lower() == "rmsnorm"
    if gated:
        normed = given.has("--qk-layernorm")
        if rms or normed:
            names = {"attention_bias": biased or given.has("--add-qkv-bias")}
            return {**result, "model_type": "qwen3" if normed else "llama", **names, "mlp_bias": biased and not normed}
        return {**result, "model_type": "stablelm", "use_qkv_bias": biased, "partial_rotary_factor": 1.0}
    if given.has("--squared-relu"):
        return {**result, "model_type": "nemotron", "attention_bias": biased, "mlp_bias": biased}
    if rotary or result["num_key_value_heads"] != heads:
        return {**result, "model_type": "starcoder2", "use_bias": biased, "sliding_window": None}
    rates = {"attn_pdrop": "--attention-dropout", "resid_pdrop": "--hidden-dropout"}  # 0.1 by default, as of GPT-2
    drops = {name: _rate(given, flag) for name, flag in rates.items()}
    return {
        "model_type": "gpt2",
        "vocab_size": result["vocab_size"],
        "n_positions": given.number("--max-position-embeddings") or given.number("--seq-length") or 1024,
        "n_embd": hidden,
        "n_layer": sizes["layers"],
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
    experts, chosen = sizes["num_experts"], given.number("--moe-router-topk") or 2
    shared = given.number("--moe-shared-expert-intermediate-size") or 0
    layers = dense_layers(given.text("--moe-layer-freq"), sizes["layers"])
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
            "num_nextn_predict_layers": given.number("--mtp-num-layers") or 0,
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
            "attention_bias": given.has("--add-qkv-bias"), "num_nextn_predict_layers": 0}  # fmt: skip


def dense_layers(text: str | None, layers: int) -> int | None:
    """How many layers at the start are dense, by ``--moe-layer-freq``; None if it says another pattern."""
    if text in (None, "1"):
        return 0
    listed = re.fullmatch(r"\[?\(?\[0\]\*(\d+)\s*\+\s*\[1\]\*(\d+)\)?\]?", str(text).replace(" ", ""))
    if listed:
        return int(listed[1]) if int(listed[1]) + int(listed[2]) == layers else None
    flags = re.sub(r"[\[\]()\s]", "", str(text)).split(",")
    first = next((at for at, each in enumerate(flags) if each == "1"), len(flags))
    return first if flags == ["0"] * first + ["1"] * (layers - first) else None
