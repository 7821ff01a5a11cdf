"""What recipes of Megatron-Bridge and NeMo 2 share: adapters, and functions that stand in files of their own."""

from collections.abc import Callable, Iterator
from typing import Any

from simpar.errors import UserError
from simpar.frameworks.recipe_values import ConfigCall, Unresolved
from simpar.frameworks.words import Assumed

TARGETS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"), "linear_proj": ("o_proj",), "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",), "linear_q": ("q_proj",), "linear_k": ("k_proj",), "linear_v": ("v_proj",),
    "linear_fc1_gate": ("gate_proj",), "linear_fc1_up": ("up_proj",),
    **dict.fromkeys(("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj"), ("q_proj",)),
    **dict.fromkeys(("linear_kv_down_proj", "linear_kv_up_proj"), ("k_proj",)),
}  # fmt: skip
"""The products beside which adapters stand, by Megatron-Core's names and those of Bridge's CanonicalLoRA.

Of latent attention, query, and key and value have one adapter beside each of their products.
"""
OF_MIXERS = ("in_proj", "out_proj")
"""Products of Mamba's mixers, beside which a plan has no adapters: they are left out, and a word says so."""
USUAL_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
USUAL_RANK = 32
"""Defaults of ``LoRA`` (``megatron/bridge/peft/lora.py``; ``nemo/collections/llm/peft/lora.py`` has the same)."""
SCHEMES = ("LoRA", "CanonicalLoRA", "lora", "canonical_lora")
ADAPTED = ("_peft_", "_lora_", "peft_common")
"""Parts of the names of functions that return a recipe with adapters."""
LAYERS_OF_DEEPSEEK = 61
"""Of DeepSeek-V3 and Kimi-K2."""


def adapters_of(config: ConfigCall, named: str, source: str) -> tuple[dict[str, Any], tuple[Assumed, ...]]:
    """The adapters of a recipe, by keys of a plan, and what is assumed of them; nothing if all is trained.

    ``named`` is the recipe's name. Raises UserError for adapters that no plan can say.
    """
    scheme = config.fields.get("peft")
    name = scheme if isinstance(scheme, str) else scheme.called if isinstance(scheme, ConfigCall) else ""
    name = str(scheme.args[0]) if isinstance(scheme, ConfigCall) and scheme.args else name
    if isinstance(scheme, Unresolved):
        raise UserError(f"{source}:{scheme.line}: peft = {scheme.text[:40]}: allowed: a value, no code")
    is_adapted = any(part in f"_{each}_" for part in ADAPTED for each in (named, config.called))
    if not name and not (is_adapted and (scheme is not None or "peft" not in config.fields)):
        return {}, ()
    short = name.rpartition(".")[2].strip("'[]\"")
    if name and short not in SCHEMES:
        raise UserError(f"{source}: peft = {name}: allowed: {', '.join(SCHEMES)}, or none")
    fields = scheme.fields if isinstance(scheme, ConfigCall) else {}
    rank, targets = fields.get("dim"), fields.get("target_modules") or list(USUAL_TARGETS)
    if (
        not isinstance(targets, list)
        or not set(map(str, targets)) <= {*TARGETS, *OF_MIXERS}
        or not set(targets) & set(TARGETS)
    ):
        told = ", ".join(map(str, targets)) if isinstance(targets, list) else "code"
        raise UserError(f"{source}: peft.target_modules = {told}: allowed: {', '.join(TARGETS)}")
    kept = dict.fromkeys(part for each in targets for part in TARGETS.get(str(each), ()))
    assumed = [] if rank or name else [
        Assumed("lora_rank", USUAL_RANK, "the recipe's adapters are set in a file that is not here", (8, 16))
    ]  # fmt: skip
    return {"lora_rank": rank or USUAL_RANK, "lora_targets": tuple(kept)}, tuple(assumed)


def mixers_of(config: ConfigCall) -> list[str]:
    """The products of mixers beside which a recipe has adapters."""
    scheme = config.fields.get("peft")
    targets = scheme.fields.get("target_modules") if isinstance(scheme, ConfigCall) else None
    return [str(each) for each in targets if each in OF_MIXERS] if isinstance(targets, list) else []


def _set_benchmark(config: Any, *_: Any, **__: Any) -> None:
    """What ``_benchmark_common`` of ``perf_recipes/_common.py`` sets of a plan: gradients in bf16."""
    if isinstance(config, ConfigCall):
        precision = config.fields.get("mixed_precision")
        for made in (precision, config.fields.setdefault("ddp", ConfigCall(""))):
            if isinstance(made, ConfigCall):
                made.fields["grad_reduce_in_fp32"] = False


def _set_deepseek(config: Any) -> None:
    """What ``_deepseek_v3_common`` sets of a plan."""
    if isinstance(config, ConfigCall) and isinstance(model := config.fields.get("model"), ConfigCall):
        model.fields |= {"recompute_granularity": "selective", "moe_router_force_load_balancing": True}


def _layout(pp: Any, vpp: Any, last: list[str]) -> list[list[str]] | None:
    """Stages of DeepSeek-V3 and Kimi-K2: as many layers in each as fill 4, 8 or 16 of them, the rest in the last."""
    stages = (pp or 1) * (vpp or 1)
    if stages not in (4, 8, 16):
        return None
    each = -(-LAYERS_OF_DEEPSEEK // stages)
    rest = LAYERS_OF_DEEPSEEK - each * (stages - 1)
    whole = [["decoder"] * each for _ in range(stages - 1)]
    return [["embedding", *whole[0]], *whole[1:], ["decoder"] * rest + last]


def _set_layout(model: Any, layout: Any = None, **_: Any) -> None:
    """``set_deepseek_v3_pipeline_model_parallel_layout`` of ``recipes/deepseek``."""
    if not isinstance(model, ConfigCall):
        return
    pp, vpp = (model.fields.get(f"{kind}pipeline_model_parallel_size") for kind in ("", "virtual_"))
    further = model.fields.get("mtp_num_layers", 1) or 0
    layout = layout or _layout(pp, vpp, [*["mtp"] * further, "loss"])
    model.fields |= {"pipeline_model_parallel_layout": layout} if layout else {}


def _benchmarks() -> Iterator[tuple[str, Callable[..., Any]]]:
    for family in ("", "_llama", "_qwen", "_qwen3", "_gpt_oss", "_nemotronh"):
        yield f"{family}_benchmark_common", _set_benchmark


KNOWN: dict[str, Callable[..., Any]] = {
    **dict(_benchmarks()),
    "_deepseek_v3_common": _set_deepseek,
    "set_deepseek_v3_pipeline_model_parallel_layout": _set_layout,
    "_get_kimi_k2_pipeline_layout": lambda pp, vpp=None: _layout(pp, vpp, ["loss"]),
    "_with_global_batch_size": lambda config, size: _with_batch(config, size),
    "set_cuda_graph_modules": lambda model, modules: _set_graphs(model, modules),
    "clear_cuda_graph_modules": lambda model: _set_graphs(model, []),
    "apply_flex_dispatcher_backend": lambda *args, **named: _set_dispatcher(*args, **named),
    "get_mixed_precision_config": lambda made: _precision(made),
    "set_full_iteration_cuda_graph": lambda model: _set_graphs(model, [], cuda_graph_impl="full_iteration"),
}
"""Functions of Bridge's recipes that stand in other files than those that call them."""


def _set_graphs(model: Any, modules: Any, **others: str) -> None:
    """The parts of layers that graphs capture, under the newer of two names (``utils/cuda_graph.py``)."""
    if isinstance(model, ConfigCall):
        model.fields.pop("cuda_graph_scope", None)
        model.fields |= {"cuda_graph_modules": modules, **others}


def _set_dispatcher(model_config: Any, moe_flex_dispatcher_backend: Any = None) -> None:
    """What sends tokens to experts, on devices that have it (``training/flex_dispatcher_backend.py``)."""
    backend = moe_flex_dispatcher_backend
    if isinstance(model_config, ConfigCall) and backend is not None:
        named = {} if isinstance(backend, Unresolved) else {"moe_flex_dispatcher_backend": backend}
        model_config.fields |= {"moe_token_dispatcher_type": "flex", "moe_shared_expert_overlap": False, **named}


def _precision(made: Any) -> ConfigCall:
    """The precision of a name, or one that is made (``training/mixed_precision.py``)."""
    return made if isinstance(made, ConfigCall) else ConfigCall("get_mixed_precision_config", [made])


def _with_batch(config: Any, size: Any) -> Any:
    if isinstance(config, ConfigCall):
        train = config.fields.setdefault("train", ConfigCall(""))
        train.fields["global_batch_size"] = size
    return config
