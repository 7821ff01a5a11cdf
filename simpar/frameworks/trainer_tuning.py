"""Adapters in the options of trainers: TRL's, Axolotl's and LLaMA-Factory's, all by PEFT and bitsandbytes.

PEFT keeps adapters in fp32 beside frozen weights of 16 bits (``autocast_adapter_dtype``). FSDP shards floats alone:
bitsandbytes stores 4 bits in the dtype of the products there, and its 8 bits have no such storage.
"""

from collections.abc import Iterator

from simpar.architectures.families import DECLARED
from simpar.architectures.tuning import WIDENED
from simpar.frameworks import placeholders
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options
from simpar.frameworks.trainer_adapters import ATTENTION, PROJECTIONS, USUAL_DROPOUT
from simpar.plan.choices.tuning import Tuning
from simpar.precisions import LONG_NAMES

MODULES = {
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "o_proj", "gate_proj": "gate", "up_proj": "up",
    "down_proj": "mlp_down",
}  # fmt: skip
"""Modules of a layer, as families name their weights, by the projections that adapters stand beside."""
FULL_NAMES = {short: name for name, short in LONG_NAMES.items()}


def adapter_losses(s: Subject, *, says_dtype: bool = False) -> Iterator[Loss]:
    """What trainers do not have of adapters and frozen weights. ``says_dtype``: an option says how weights load."""
    tuning, sharded = s.plan.tuning, s.plan.data_parallel.zero >= 2
    stored, precision = tuning.frozen_dtype, s.plan.numerics.precision
    for part in ("frozen_layers", "frozen_tower", "frozen_connector"):
        if getattr(tuning, part):
            yield Loss(part, getattr(tuning, part), "the exporter writes adapters, or all parameters")
    if tuning.lora_rank is None:
        return
    if stored == "fp8" or (stored == "int8" and sharded):
        has = "4 bits of bitsandbytes under FSDP, which shards no whole numbers" if sharded else "4 or 8 bits"
        yield Loss("frozen_dtype", stored, f"frozen weights have the dtype of products, or {has}")
    if stored == "fp32" != precision and not says_dtype:
        yield Loss("frozen_dtype", stored, "frozen weights are loaded in the precision of products")
    if s.graph.is_mixture and not set(tuning.lora_targets) <= set(ATTENTION):
        why = "experts of a layer are one parameter in transformers, beside which no list of modules puts adapters"
        yield Loss("lora_targets", ", ".join(tuning.lora_targets), why)
    elif not is_everywhere(s) and modules(s) is None:
        yield Loss("lora_targets", ", ".join(tuning.lora_targets), "the model's family has no such modules alone")


def is_everywhere(s: Subject) -> bool:
    """Whether all projections have adapters, which trainers say in one word."""
    return set(s.plan.tuning.lora_targets) == set(Tuning().lora_targets) and not s.graph.is_mixture


def modules(s: Subject) -> list[str] | None:
    """Names of the modules with adapters; None where a family stores one of them together with others."""
    declared = DECLARED.get(str(s.config.get("model_type")))
    weights, chosen = declared.weights if declared else None, s.plan.tuning.lora_targets
    if weights is None:
        return None
    apart = {name for parts in weights.packed for name in parts}
    if any(MODULES[name] in apart or MODULES[name] not in weights.layer for name in chosen):
        return None
    names = [weights.layer[MODULES[name]].rpartition(".")[2] for name in chosen]
    return names if all(PROJECTIONS.get(name) == (ours,) for name, ours in zip(names, chosen, strict=True)) else None


def in_trl(s: Subject) -> Options:
    """TRL's options of adapters, and of the weights beside them; none where all parameters are trained."""
    tuning = s.plan.tuning
    if tuning.lora_rank is None:
        return {}
    wide = "fp32" if tuning.frozen_dtype == "fp32" else s.plan.numerics.precision
    result: Options = {"dtype": FULL_NAMES[wide], "use_peft": True, "lora_r": tuning.lora_rank, **_usual(s)}
    result["lora_target_modules"] = ["all-linear"] if is_everywhere(s) else modules(s)
    if tuning.frozen_dtype == "nf4":
        result |= {"load_in_4bit": True, "use_bnb_nested_quant": True}
        if s.plan.data_parallel.zero >= 2:
            result["bnb_4bit_quant_storage"] = FULL_NAMES[wide]
    return result | ({"load_in_8bit": True} if tuning.frozen_dtype == "int8" else {})


def in_axolotl(s: Subject) -> Options:
    """Axolotl's."""
    tuning = s.plan.tuning
    if tuning.lora_rank is None:
        return {}
    four = tuning.frozen_dtype == "nf4"
    result: Options = {"adapter": "qlora" if four else "lora", "lora_r": tuning.lora_rank, **_usual(s)}
    if tuning.frozen_dtype in WIDENED:
        result["load_in_4bit" if four else "load_in_8bit"] = True
    return result | ({"lora_target_linear": True} if is_everywhere(s) else {"lora_target_modules": modules(s)})


def in_llama_factory(s: Subject) -> Options:
    """LLaMA-Factory's."""
    tuning = s.plan.tuning
    if tuning.lora_rank is None:
        return {"finetuning_type": "full"}
    result: Options = {"finetuning_type": "lora", "lora_rank": tuning.lora_rank, **_usual(s)}
    result["lora_target"] = "all" if is_everywhere(s) else ",".join(modules(s) or ())
    if tuning.frozen_dtype in WIDENED:
        result["quantization_bit"] = 4 if tuning.frozen_dtype == "nf4" else 8
    return result


def _usual(s: Subject) -> Options:
    tuning = s.plan.tuning
    dropout = USUAL_DROPOUT if tuning.lora_dropout is None else tuning.lora_dropout
    return {"lora_alpha": placeholders.LORA_ALPHA * (tuning.lora_rank or 0), "lora_dropout": dropout}


def adapter_notes(s: Subject) -> Iterator[str]:
    """Notes for the user."""
    if s.plan.tuning.lora_rank is not None:
        yield "`lora_alpha` is a placeholder: a plan does not say it."
    if s.plan.tuning.frozen_dtype in WIDENED:
        yield "Frozen weights of few bits need `bitsandbytes`."
