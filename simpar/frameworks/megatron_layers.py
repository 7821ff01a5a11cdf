"""Layers that Megatron-LM's arguments ask for beside a plain decoder's: windows, hybrids, and models of other kinds."""

import re
from collections.abc import Mapping
from typing import Any

from simpar.architectures.hybrid import LETTERS
from simpar.errors import UserError
from simpar.frameworks.megatron_arguments import Arguments
from simpar.frameworks.megatron_hybrid import PASS, STAGE_END

PATTERNS = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
ATTENTION_SHARE, MLP_SHARE = "--hybrid-attention-ratio", "--hybrid-mlp-ratio"
HALF = 0.5
"""A distance that rounds to none."""
WINDOW, SKIPPED = "--window-size", "--window-attn-skip-freq"
OTHER_SCRIPTS = {
    r"pretrain_t5": "T5, an encoder and a decoder",
    r"pretrain_(ict|retro)|biencoder|(^|/)retro/|create_doc_index": "retrieval beside a language model",
    r"pretrain_vision": "a model of images",
    r"pretrain_(vlm|mimo)|mimo/|multimodal/|llava|_vl\.py": "a model of images and text",
    r"train_rl": "reinforcement learning, of which training is a part",
    r"text_generation|inference|generate(_samples\w*)?\.py|mmlu|msdp/": "inference",
    r"(^|/)tasks/|evaluat": "a task other than the next token",
    r"(^|/)(quantize|prune|export|validate|util|preprocess_\w+)\.py": "no training",
    "convert|hf2mega|merge_mp|offline_feature": "no training",
    r"(^|/)tools/(?!\S*train)\S*\.py": "a tool, no training",
}
"""What a script trains that trains no plain language model, by patterns of its path."""
OTHER_FLAGS = {
    "--encoder-num-layers": "T5, an encoder and a decoder",
    **dict.fromkeys(("--retro-add-retriever", "--retro-project-dir", "--retro-workdir"), "retrieval"),
    "--vision-pretraining": "a model of images",
    **dict.fromkeys(
        (
            "--vision-model-type",
            "--language-model-type",
            "--img-h",
            "--disable-vision-class-token",
            "--mm-projector-type",
        ),
        "a model of images and text",
    ),
    **dict.fromkeys(("--num-tokens-to-generate", "--incoming-requests-per-sec"), "inference"),
    "--language-model-checkpoint": "a model of images and text",
    "--perform-rl-step": "reinforcement learning, of which training is a part",
    "--export-kd-teacher-load": "distillation from a teacher",
}
"""The same, by an argument that no plain language model has."""


def refuse_other_models(given: Arguments) -> None:
    """Raise UserError if arguments train no language model of text alone, whose sizes might look like one's."""
    of_script = next((what for pattern, what in OTHER_SCRIPTS.items() if re.search(pattern, given.script)), "")
    flag = next((flag for flag in OTHER_FLAGS if flag in given.values), "")
    if of_script or flag:
        what = of_script or OTHER_FLAGS[flag]
        raise UserError(
            f"{given.source}: {given.script if of_script else given.name(flag)}: {what}: not modelled; allowed: "
            "language models of text (pretrain_gpt.py, pretrain_mamba.py, pretrain_hybrid.py, pretrain_bert.py)"
        )


def windows_asked(given: Arguments, layers: int) -> tuple[int | None, ...]:
    """The attention window of every layer, itself included, as configs count; () if there are none. Raises UserError.

    A number leaves every N-th layer without a window, a list says which layers have one
    (``megatron/core/transformer/utils.py``, is_layer_window_attention).
    """
    if WINDOW not in given.values:
        return ()
    text = " ".join(given.values[WINDOW])
    ends = re.findall(r"-?\d+", text)
    if len(ends) != 2 or ends[1] not in ("0", "-1"):
        raise UserError(
            f"{given.source}: {given.name(WINDOW)} = {text}: allowed: tokens before and after, such as 127,0"
        )
    if int(ends[0]) < 0:
        return ()
    skipped = " ".join(given.values.get(SKIPPED, [])).replace(" ", "")
    if not skipped:
        has = [True] * layers
    elif skipped.isdecimal() and int(skipped):
        has = [(layer + 1) % int(skipped) != 0 for layer in range(layers)]
    else:
        has = _listed(given, skipped, layers)
    return tuple(int(ends[0]) + 1 if each else None for each in has)


def _listed(given: Arguments, text: str, layers: int) -> list[bool]:
    """Layers by a list such as ``([1]*3+[0])*4`` or ``1,1,0``."""
    flat = re.sub(r"[()\s]", "", text)
    parts = re.fullmatch(r"\(?((?:\+?\[[01](?:,[01])*\](?:\*\d{1,3})?)+)\)?(?:\*(\d{1,3}))?", re.sub(r"\s", "", text))
    if re.fullmatch(r"\[?[01](,[01])*\]?", flat):
        result = [each == "1" for each in flat.strip("[]").split(",")]
    elif parts:
        pieces = re.findall(r"\[([01,]+)\](?:\*(\d+))?", parts[1])
        result = [each == "1" for values, count in pieces for each in values.split(",") * int(count or 1)]
        result *= int(parts[2] or 1)
    else:
        result = []
    if len(result) != layers:
        raise UserError(
            f"{given.source}: {given.name(SKIPPED)} = {text}: allowed: a number, or a list with 0 or 1 for each of the "
            f"{layers} layers"
        )
    return result


def pattern_asked(given: Arguments) -> str | None:
    """The layers of a hybrid by letter, without bars of stages and without layers that predict further tokens.

    Raises UserError.
    """
    text = next((text for flag in PATTERNS if (text := given.text(flag))), None)
    if text is not None:
        return text.partition(PASS)[0].replace(STAGE_END, "")
    shares = [given.rate(flag) or 0.0 for flag in (ATTENTION_SHARE, MLP_SHARE)]
    is_hybrid = given.has("--is-hybrid-model") or {ATTENTION_SHARE, MLP_SHARE} & set(given.values)
    if not (is_hybrid or "mamba" in given.script):
        return None
    layers = given.number("--num-layers")
    if sum(shares) > 1:
        raise UserError(f"{given.source}: {ATTENTION_SHARE} + {MLP_SHARE} = {sum(shares):g}: allowed: 1 at most")
    return allocated(layers, *shares) if layers else None


def allocated(layers: int, attention: float, mlps: float) -> str:
    """The pattern of a hybrid whose arguments say how large a part of its layers are attention and MLPs.

    As of ``megatron/core/ssm/mamba_hybrid_layer_allocation.py`` (NVIDIA/Megatron-LM core 0.12): attention evenly
    between pieces of state space, of which then every so many-th layer is an MLP.
    """
    count = round(layers * attention)
    pattern = _spread("M" * layers, "*", (layers - count) / (count + 1))
    further = round(layers * mlps)
    return _spread(pattern, "-", (layers - count - further) / further) if further else pattern


def _spread(pattern: str, letter: str, distance: float) -> str:
    """The pattern with a letter in place of a state-space layer after every ``distance`` of these."""
    result, left = [], distance
    for each in pattern:
        is_it = each == "M" and left < HALF
        result.append(letter if is_it else each)
        if each == "M":
            left += distance if is_it else -1
    return "".join(result)


def hybrid_config(given: Arguments, pattern: str, sizes: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config of a hybrid that arguments state in full; None if they state another one.

    ``sizes`` are those of all decoders, by their names in configs. Defaults of Mamba's heads are Megatron-Core's
    (``transformer_config.py``; heads of two widths of the model).
    """
    gated = given.has("--swiglu") or given.has("--gated-linear-unit")
    if set(pattern) - set(LETTERS) or (gated and set(pattern) & {"-", "E"}):
        return None
    head_dim = given.number("--mamba-head-dim") or 64
    result = {
        **{key: value for key, value in sizes.items() if key != "num_hidden_layers"},
        "model_type": "nemotron_h",
        "hybrid_override_pattern": pattern,
        "mamba_num_heads": given.number("--mamba-num-heads") or 2 * sizes["hidden_size"] // head_dim,
        "mamba_head_dim": head_dim,
        "ssm_state_size": given.number("--mamba-state-dim") or 128,
        "n_groups": given.number("--mamba-num-groups") or 8,
        "mlp_hidden_act": "relu2" if given.has("--squared-relu") else "gelu",
    }
    for flag in ("--disable-bias-linear", "--normalization", "--is-hybrid-model"):
        given.has(flag)
    if "E" not in pattern:
        return result
    experts = given.number("--num-experts")
    if experts is None:
        return None
    shared = given.number("--moe-shared-expert-intermediate-size")
    return {
        **result,
        "n_routed_experts": experts,
        "num_experts_per_tok": given.number("--moe-router-topk") or 2,
        "moe_intermediate_size": given.number("--moe-ffn-hidden-size") or sizes["intermediate_size"],
        "n_shared_experts": 1 if shared else 0,
        **({"moe_shared_expert_intermediate_size": shared} if shared else {}),
        "moe_latent_size": given.number("--moe-latent-size"),
    }
