"""Software stacks by a row's words: which profile, and how the words change it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from simpar import files
from simpar.architectures.graph import ModelGraph
from simpar.plan.choices.execution import SHARDED_LOSS
from simpar.stacks.stack import load_stack
from simpar.validation.cells import Row, read_count, text
from simpar.validation.stacks import is_of_profile, nearest_stack

from .dense import is_mixture, unfused
from .labels import paper_release
from .mixtures import is_sync_free, overlap_words


def stack_of(row: Row) -> tuple[str, dict[str, object]]:
    """The stack profile of a row, and the changes of it that the row's words imply."""
    words = text(row, "stack").lower()
    words = load_stack(words).name if "@" in words else words
    notes = f"{overlap_words(row)} {text(row, 'model_name')}".lower()
    if words not in files.bundled("stacks"):
        eager: dict[str, object] = {"fusion.attention": "unfused"} if unfused(row) else {}
        nearest = _nearest(row, words)
        # of other software it keeps its own name, so that no measured run supports it
        own_name = {} if words and is_of_profile(nearest) else {"name": words or UNNAMED}
        return nearest, own_name | eager | _narrow_loss(row)
    name = words
    if name == "megatron" and (jax := re.search("maxtext|paxml", notes)):
        name = jax[0]
    elif name == "megatron" and is_nemo(row):
        name = _nemo(row)
    elif name == "megatron" and re.search(r"megatron-core r0\.[5-9]", text(row, "notes").lower()):
        name = "nemo-24"  # for releases of 2024
    compiled = re.search(r"no compile|compile=false", notes) is None
    if "kempnerforge" in text(row, "source").lower():
        forge = load_stack("kempnerforge")
        return forge.name, {} if compiled and not is_mixture(row) else dict(forge.variants["eager"])
    if name == "torchtitan" and not compiled:
        name = "torchtitan-eager"
    if name in ("megatron", "nemo") and "deepspeed" in text(row, "zero_stage_or_fsdp").lower():
        name = "deepspeed-21"
    elif name in ("megatron", "nemo", "nemo-24") and unfused(row):
        early = re.search(r"sc21|2104\.04473|202[01]", f"{text(row, 'source')} {text(row, 'citation')}".lower())
        name = "megatron-sc21" if early else "megatron-22"
    changes: dict[str, object] = {}
    year = f"{text(row, 'citation')} {text(row, 'attention_kernel')}"
    if name == "torchtitan" and ("2024" in year or "loss not compiled" in text(row, "notes").lower()):
        changes |= load_stack(name).variants["eager_loss"]
    if text(row, "slow_pipeline_bug").lower() == "true" and read_count(row, "pp", 1) > 1:
        changes |= load_stack(name).variants.get("slow_pipeline", {})
    if name == "automodel":
        changes |= _automodel(row)
    if re.search(r"no [a-z/]*scatter-gather", text(row, "notes").lower()):
        changes["overlap.scatter_gather_p2p"] = False
    if "cross entropy not fused" in text(row, "notes").lower():
        changes["fusion.cross_entropy"] = False
    if "legacy models" in text(row, "notes").lower():
        changes |= load_stack(name).variants.get("legacy_models", {})
    if "cross entropy in fp32" in text(row, "notes").lower():
        changes |= {f"memory.{field}": size for field, size in SHARDED_LOSS.items()}
    if "no tp/dp overlap" in notes:
        changes["overlap.tensor_backward"] = False
    if re.fullmatch(r"flash ?attention([ -]?1)?", text(row, "attention_kernel").lower()):
        changes["fusion.attention_rate.others"] = FIRST_FLASH_RATE
    if release := re.search(r"flashattention-([23])", text(row, "notes").lower()):
        changes["fusion.attention"] = "flash2" if release[1] == "2" else "flash"
    if graphs := _graphs(notes):
        changes["launch.graphs"] = graphs
    if "inputs of activations in 8 bits" in text(row, "notes").lower():
        changes["memory.gate_inputs"] = "fp8"
    if "attention in 8 bits" in text(row, "notes").lower():
        changes["fusion.attention_rate.others"] = EIGHT_BIT_RATE
    return name, changes | _turbo(text(row, "notes").lower()) | _narrow_loss(row)


def _narrow_loss(row: Row) -> dict[str, object]:
    """What a loss of 16-bit logits that are not widened holds: them, their softmax, and a gradient, 2 bytes each."""
    if "loss in 16 bits" not in text(row, "notes").lower():
        return {}
    return {"memory.logit_bytes": 6.0, "memory.logit_saved_bytes": 2.0}


def _automodel(row: Row) -> dict[str, object]:
    """The kernels of Hugging Face's models that NeMo Automodel replaces, by its table's words.

    Transformer Engine provides attention and norms. Recipes that prefetch parameters compile layers, and mixtures have
    modules of their own (nemo_automodel/components/moe). Everything else runs operator by operator.
    """
    words = text(row, "notes").lower()
    own = re.search(r"kernel opts: te\b", words) is not None
    changes: dict[str, object] = {"fusion.attention": "flash"} if own else {}
    if "fsdp2_prefetch" in words:
        changes["fusion.rope"] = True
    elif not text(row, "n_experts"):
        changes |= load_stack("automodel").variants["eager_activations"]
        changes |= {} if own else load_stack("automodel").variants["eager_norms"]
    return changes


def copies_of_batch(row: Row) -> int:
    """How many ranks train on the same sequences, which count once: KempnerForge's expert-parallel ranks.

    Source: KempnerInstitute/KempnerForge, kempnerforge/training/data_pipeline.py (samplers only know dp_size).
    """
    return read_count(row, "ep", 1) if stack_of(row)[0] == "kempnerforge" else 1


def _turbo(notes: str) -> dict[str, object]:
    """The effects of Primus's flags for mixtures: one kernel for all local experts, and no wait for their sizes.

    Source: AMD Primus, primus/backends/megatron/training/global_vars.py, _get_sync_free_moe_options: from its second
    stage on (:func:`is_sync_free`) both come with tokens that are sent only once to a rank.
    """
    free = is_sync_free(notes)
    changes: dict[str, object] = {"experts.sync_s": 0.0} if free else {}
    if free or re.search(r"use_turbo_grouped_(gemm|mlp): true", notes):
        changes["fusion.grouped_products"] = True
    return changes


def contest_attention(row: Row, plan: Mapping[str, object]) -> dict[str, object]:
    """8-bit attention for a contest's 8-bit adapters on NVIDIA devices, if no ranks share a sequence.

    Contests tune whatever their rules leave free, and this is the faster option in Transformer Engine (``fp8_dpa``);
    NVIDIA published it for this workload [Accelerating Transformers with cuDNN 9]. If ranks share a sequence, attention
    stays in 16 bits here.
    """
    eight_bits = plan.get("frozen_dtype") == "fp8" and plan["cp"] == 1
    amd = re.match(r"mi\d", text(row, "gpu_type").lower()) is not None
    return {"fusion.attention_rate.others": EIGHT_BIT_RATE} if eight_bits and not amd else {}


FIRST_FLASH_RATE = 0.5
"""The speed of FlashAttention relative to its second version [arXiv 2307.08691, abstract]."""
EIGHT_BIT_RATE = 1.2
"""The speed of 8-bit attention relative to 16 bits, both passes; measured on Hopper only.

Adapters of Llama 2 70B on 8 H200 gain 1.15 with it and 1.11 without over the same baseline [NVIDIA, Accelerating
Transformers with cuDNN 9, table 1], and attention is a fifth of that step.
"""
UNNAMED = "an unnamed stack"


def _nearest(row: Row, words: str) -> str:
    """The profile of a similar stack: by name, or else by whether tensors or stages are split.

    For a stack without a name, it is the release of the time when its paper appeared.
    """
    splits = read_count(row, "tp", 1) * read_count(row, "pp", 1) > 1
    kind = nearest_stack(words) or ("megatron" if splits else "fsdp")
    release = None if words else paper_release(row)
    return load_stack(f"{kind}@{release}" if release else kind).name


def fused_experts(
    graph: ModelGraph, stack: str, plan: Mapping[str, object], changes: Mapping[str, object]
) -> Mapping[str, object]:
    """The expert operations that a stack fuses in a fully captured MXFP8 step, if the experts have no biases.

    Source: NVIDIA Megatron-Bridge 0.6.2, perf_recipes, cutedsl_fused_grouped_mlp.
    """
    graphs = changes.get("launch.graphs")
    captured = isinstance(graphs, tuple) and "step" in graphs
    products = [op for block in graph.blocks.values() for op in block.operators if op.kind == "grouped_matmul"]
    if not captured or plan["precision"] != "mxfp8" or any(len(op.weights) > 1 for op in products):
        return {}
    return load_stack(stack).variants.get("fused_experts", {})


def _graphs(notes: str) -> tuple[str, ...]:
    """The parts that CUDA graphs capture, in Megatron-Core's words; "none" before a scope switches them off."""
    if not re.search(r"cuda graph|\bcg\b", notes) or "cuda graph none" in notes or "no cuda graph" in notes:
        return ()
    if re.search("cuda graph full|full_iteration|full cg", notes):
        return ("step",)
    scopes = {"attn": "attention", "mamba": "mamba", "mlp": "mlp", "moe_router|router/preprocess": "router"}
    named = tuple(part for word, part in scopes.items() if re.search(rf"\b({word})\b", notes))
    return named or tuple(scopes.values())


def _nemo(row: Row) -> str:
    """The NeMo profile of a row: Automodel uses torch's own FSDP; releases up to 24.07 are slower than later ones.

    A row without a release counts as the newest.
    """
    if "automodel" in f"{text(row, 'source')} {text(row, 'notes')}".lower():
        return "automodel"
    return "nemo-24" if (released(row) or NEMO_24) < NEMO_24 else "nemo"


NEMO_24 = 2024.75  # last release of nemo-24: 24.07, whose last measurements are of September
_CALENDAR = re.compile(r"(?:container release|tags?|release|summary|@)[ :=]*v?(2\d)\.(\d\d)\b")
"""Releases of NeMo, Megatron-Bridge and dgxc-benchmarking are named by year and month."""


def released(row: Row) -> float | None:
    """The release date of a row's software in years (2025.25 is April 2025); None if it is not known."""
    named = _CALENDAR.search(" ".join(text(row, name) for name in ("source", "stack", "notes", "citation")).lower())
    return 2000 + int(named[1]) + (int(named[2]) - 1) / 12 if named else None


def is_nemo(row: Row) -> bool:
    """Whether a row ran recipes of NeMo or Megatron-Bridge on Megatron-Core, as NVIDIA's benchmarks do.

    Megatron-LM's example of Llama 3 in 8 bits follows NeMo's performance scripts [Megatron-LM, examples/llama].
    """
    words = f"{text(row, 'source')} {text(row, 'citation')}".lower()
    said = "nemo settings" in text(row, "notes").lower()
    return said or re.search(r"nemo|megatron-bridge|dgxc", words) is not None
