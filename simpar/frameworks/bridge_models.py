"""The classes of Megatron-Bridge that build a model of its fields, and what they have beyond Megatron-LM's arguments.

Sources: ``src/megatron/bridge/models`` (``gpt_provider.py``, ``hybrid/hybrid_provider.py``, ``gemma/*_provider.py``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import isclose, sqrt
from typing import Any

from simpar.architectures.catalogue import config_of, load_model
from simpar.architectures.details import Caps, Scales
from simpar.architectures.hf_config import read as read_config
from simpar.architectures.hybrid import PREDICTION
from simpar.dataclass import dataclass
from simpar.frameworks import megatron
from simpar.frameworks.architecture import architecture
from simpar.frameworks.decoder import megatron_core_losses
from simpar.frameworks.match import models_with, sizes_of
from simpar.frameworks.megatron_arguments import BESIDE
from simpar.frameworks.megatron_details import detail_losses
from simpar.frameworks.megatron_hybrid import PASS, pattern, predictions
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options

ACTIVATIONS = "from megatron.core.activations import squared_relu"


@dataclass(frozen=True)
class Provider:
    """A class of models: its name, its module below ``megatron.bridge.models``, and further imports that it needs."""

    name: str
    module: str
    imports: tuple[str, ...] = ()


GPT = Provider("GPTModelProvider", "gpt_provider")
HYBRID = Provider("HybridModelProvider", "hybrid.hybrid_provider", (ACTIVATIONS,))
GEMMA = {
    "gemma": Provider("GemmaModelProvider", "gemma.gemma_provider"),
    "gemma2": Provider("Gemma2ModelProvider", "gemma.gemma2_provider"),
    "gemma3_text": Provider("Gemma3ModelProvider", "gemma.gemma3_provider"),
}
"""By the config's model_type: embeddings times the root of the hidden size, a gate by the tanh form of GELU."""
PROVIDERS = (GPT, HYBRID, *GEMMA.values())
WINDOWED: Mapping[str, Callable[[int], bool]] = {
    "gemma": lambda _: False, "gemma2": lambda layer: layer % 2 == 0, "gemma3_text": lambda layer: layer % 6 != 5,
}  # fmt: skip
"""Layers with a window in each of these classes, counted from 0."""
PATTERN, PASSES = "--hybrid-layer-pattern", "--mtp-num-layers"
GELU = "gelu_pytorch_tanh"
SIZES = {
    "num_hidden_layers": "num_layers", "hidden_size": "hidden_size", "intermediate_size": "ffn_hidden_size",
    "num_attention_heads": "num_attention_heads",
}  # fmt: skip
"""Keys of a config by the field of its class, without which no model is told."""
VOCABULARY = {"gemma": 256_000, "gemma2": 256_000, "gemma3_text": 262_144}
HEAD_DIM = 256
CLOSE = 0.0005
"""Relative difference of numbers that rounding made differ, as of a root that a config has in 16 bits."""
DEFAULT_WINDOW = {"gemma2": (4095, 0), "gemma3_text": 512}
SHARED_BESIDE = frozenset(
    ["deepseek_v2", "deepseek_v3", "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa", "kimi_k2",
     "kimi_k25", "nemotron_h"]
)  # fmt: skip
"""Families, by the config's model_type, that run shared experts beside the exchange unless a recipe says otherwise."""
OVERLAPPED = "model.moe_shared_expert_overlap"
IN_OTHER_WORDS = ("--window-size", "--window-attn-skip-freq", "--rotary-base")
"""Arguments whose fields Gemma's classes have in forms of their own."""


def provider_of(s: Subject) -> Provider:
    """The class that builds a model."""
    return HYBRID if s.graph.has_mixers else GEMMA.get(_family(s), GPT)


def _family(s: Subject) -> str:
    return str(s.config.get("model_type", ""))


def model_losses(s: Subject) -> Iterator[Loss]:
    """What the class of a model cannot express of it, and of a plan."""
    if _family(s) in GEMMA:
        yield from _gemma_losses(s)
        return
    yield from megatron.losses(s)
    if s.graph.has_mixers and s.plan.pipeline.vpp > 1:
        yield Loss("vpp", s.plan.pipeline.vpp, "Megatron-Bridge's hybrids have no virtual stages: 1")
    if _family(s).startswith("llama4"):
        yield Loss("model", s.graph.name, "Megatron-Bridge has no class that builds Llama 4")


def _gemma_losses(s: Subject) -> Iterator[Loss]:
    """What is not as the family's class has it; the rest as of a plain decoder."""
    family, style, details = _family(s), architecture(s.graph), s.graph.details
    plain, scales, caps = without_own(s), details.scales, details.caps
    yield from megatron_core_losses(replace(style, residual="pre", activation="silu", windows=()), family)
    yield from detail_losses(plain)
    yield from megatron.further_losses(plain)
    expected = Scales(embedding=scales.embedding, attention=scales.attention)
    if scales != expected or not isclose(scales.embedding, sqrt(s.graph.dims["hidden"]), rel_tol=CLOSE):
        yield Loss("model", "scales of embeddings, residuals or scores", "embeddings are multiplied by sqrt(hidden)")
    if family == "gemma" and scales.attention is not None:
        yield Loss("model", f"scores times {scales.attention:g}", "scores are divided by the root of a head's width")
    if details.activation != GELU:
        yield Loss("model", f"gated {details.activation}", f"{provider_of(s).name} has {GELU}")
    is_capped = family == "gemma2"
    if caps.projections or bool(caps.attention) != is_capped or bool(caps.logits) != is_capped:
        yield Loss("model", "caps of scores or logits", "scores and logits are capped in Gemma 2, both")
    if (style.residual, style.qk_norm) != {"gemma": ("pre", ""), "gemma2": ("both", "")}.get(family, ("both", "head")):
        yield Loss("model", f"{style.residual} residual", f"{provider_of(s).name} has the norms of its family")
    if any((window is not None) != WINDOWED[family](layer) for layer, window in enumerate(style.windows)):
        yield Loss("model", "windows by layer", f"{provider_of(s).name} has those of its family")
    if family == "gemma2" and s.plan.mesh.cp > 1:
        yield Loss("cp", s.plan.mesh.cp, "Gemma 2's attention there takes whole sequences: 1")


def without_own(s: Subject) -> Subject:
    """A subject whose details are those of a plain decoder where the class of its model has its own."""
    if _family(s) not in GEMMA:
        return s
    details = s.graph.details
    positions = replace(details.positions, windowed=None)
    if _family(s) == "gemma3_text":
        positions = replace(positions, rope=replace(positions.rope, scaling={}))
    plain = replace(details, activation="silu", scales=Scales(), caps=Caps(), positions=positions)
    return replace(s, graph=replace(s.graph, details=plain))


def own_fields(s: Subject, given: Options, code: Callable[[str], Any]) -> Options:
    """The fields of a model with those that its class has in another way; ``code`` marks Python source text."""
    if s.graph.has_mixers:
        return given | _of_hybrid(s, code)
    family = _family(s)
    if family not in GEMMA:
        return given
    details, own = s.graph.details, Options()
    windows = {window for window in architecture(s.graph).windows if window is not None}
    scale = details.scales.attention or s.graph.dims["head_dim"] ** -0.5
    if family == "gemma2":
        own |= {
            "model.window_size": (windows.pop() - 1, 0),
            "model.query_pre_attn_scalar": _whole(scale**-2),
            "model.attn_logit_softcapping": details.caps.attention,
            "model.final_logit_softcapping": details.caps.logits,
        }
    if family == "gemma3_text":
        local, rope = details.positions.windowed or details.positions.rope, details.positions.rope
        own |= {
            "model.window_size": windows.pop(),
            "model.rotary_base": (int(local.theta), int(rope.theta)),
            "model.rope_scaling_factor": float(rope.scaling.get("factor", 1.0)),
            "model.softmax_scale": scale,
        }
    without = ("model.activation_func", "model.window_size", "model.window_attn_skip_freq")
    return {key: value for key, value in given.items() if key not in without} | own


def _of_hybrid(s: Subject, code: Callable[[str], Any]) -> Options:
    """The pattern, with its prediction layers apart, and the squared ReLU."""
    result: Options = {
        "model.hybrid_layer_pattern": pattern(s).partition(PASS)[0],
        "model.is_hybrid_model": True,
        "model.activation_func": code("squared_relu"),
    }
    if passes := predictions(s):
        result |= {"model.mtp_hybrid_override_pattern": PREDICTION, "model.mtp_num_layers": passes}
    return result


def with_passes(values: dict[str, list[str]], given: Mapping[str, Any]) -> dict[str, list[str]]:
    """A recipe's arguments with the layers that predict further tokens in the pattern, where fields say them apart."""
    further, main = given.get("model.mtp_hybrid_override_pattern"), values.get(PATTERN, [""])[0]
    repeated = bool(given.get("model.mtp_use_repeated_layer"))
    passes = given.get("model.mtp_num_layers") or 0
    if not further or not main or PASS in main:
        return values
    whole = [main + f"{PASS}{further}" * max(int(passes), int(repeated))]
    return {flag: value for flag, value in values.items() if flag != PASSES} | {PATTERN: whole}


def _whole(value: float) -> float:
    """A number, whole where rounding made it differ."""
    return round(value) if isclose(value, round(value), rel_tol=CLOSE) else value


def gemma_in(name: str, given: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]] | None:
    """The shipped model that fields of one of Gemma's classes state, if one is, and its config.

    ``given`` are a recipe's fields by dotted name. None if the class is no Gemma's, or sizes are missing.
    """
    family = next((kind for kind, provider in GEMMA.items() if provider.name == name), None)
    if family is None or not {f"model.{field}" for field in SIZES.values()} <= {*given}:
        return None

    def field(name: str, usual: Any) -> Any:
        value = given.get(f"model.{name}")
        return usual if value is None else value

    sizes = {key: given[f"model.{name}"] for key, name in SIZES.items()}
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": field("vocab_size", VOCABULARY[family]),
        "num_key_value_heads": field("num_query_groups", sizes["num_attention_heads"]),
        "head_dim": field("kv_channels", HEAD_DIM),
        **sizes,
        **_attention(family, field),
    }
    graph = read_config(config)
    for same in models_with(sizes_of(graph)):
        if replace(load_model(same), name="", facts={}) == replace(graph, name="", facts={}):
            return same, config
    return None, config


def _attention(family: str, field: Callable[[str, Any], Any]) -> dict[str, Any]:
    """A config's keys on windows, scores and positions, from fields and the defaults of their class."""
    if family == "gemma":
        return {}
    window = field("window_size", DEFAULT_WINDOW[family])
    if family == "gemma2":
        return {
            "sliding_window": window[0] + 1 if isinstance(window, tuple | list) else window,
            "query_pre_attn_scalar": field("query_pre_attn_scalar", 224),
            "attn_logit_softcapping": field("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": field("final_logit_softcapping", 30.0),
        }
    local, whole = field("rotary_base", (10_000, 1_000_000))
    factor = field("rope_scaling_factor", 1.0)
    return {
        "sliding_window": window,
        "query_pre_attn_scalar": _whole(field("softmax_scale", HEAD_DIM**-0.5) ** -2),
        "rope_theta": whole,
        "rope_local_base_freq": local,
        **({"rope_scaling": {"rope_type": "linear", "factor": factor}} if factor != 1 else {}),
    }


def with_shared_beside(values: Mapping[str, list[str]], model: str, fields: Mapping[str, Any]) -> dict[str, list[str]]:
    """Arguments with the overlap of shared experts that a model's provider has, where a recipe does not say it.

    Beside the exchange of another microbatch Megatron-Core has none.
    """
    is_on = config_of(model).get("model_type") in SHARED_BESIDE and OVERLAPPED not in fields
    return dict(values) | ({BESIDE: []} if is_on and "--overlap-moe-expert-parallel-comm" not in values else {})
