"""Software stacks by the words of a row: which profile, and what the words change about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from simpar import files
from simpar.cost.stack import load_stack
from simpar.models.graph import ModelGraph
from simpar.validate.cells import Row, paper_release, text, whole
from simpar.validate.dense import is_mixture, unfused
from simpar.validate.mixtures import is_sync_free, overlap_words


def stack_of(row: Row) -> tuple[str, dict[str, object]]:
    """Stack profile, and what the row's words change about it."""
    words = text(row, "stack").lower()
    words = load_stack(words).name if "@" in words else words
    notes = f"{overlap_words(row)} {text(row, 'model_name')}".lower()
    if words not in files.bundled("stacks"):
        # known as what it is, so that nothing measured supports it
        eager = {"fusion.attention": "unfused"} if unfused(row) else {}
        return _nearest(row, words), {"name": words or UNNAMED, **eager}
    name = words
    if name == "megatron" and re.search("maxtext|paxml", notes):
        name = "maxtext"
    elif name == "megatron" and is_nemo(row):
        name = _nemo(row)
    elif name == "megatron" and re.search(r"megatron-core r0\.[5-9]", text(row, "notes").lower()):
        name = "nemo-24"  # releases of 2024
    compiled = re.search(r"no compile|compile=false", notes) is None
    if "kempnerforge" in text(row, "source").lower():
        forge = load_stack("kempnerforge")
        return forge.name, {} if compiled and not is_mixture(row) else dict(forge.variants["eager"])
    if name == "torchtitan" and not compiled:
        name = "torchtitan-eager"
    if name in ("megatron", "nemo") and "deepspeed" in text(row, "zero_stage_or_fsdp").lower():
        name = "deepspeed-21"
    elif name in ("megatron", "nemo", "nemo-24") and unfused(row):
        early = re.search(
            r"sc21|2104\.04473|202[01]", f"{text(row, 'source')} {text(row, 'citation')}".lower()
        )
        name = "megatron-sc21" if early else "megatron-22"
    changes: dict[str, object] = {}
    if name == "torchtitan" and re.search("2024", f"{text(row, 'citation')} {text(row, 'attention_kernel')}"):
        changes |= load_stack(name).variants["before_compiled_loss"]
    if text(row, "slow_pipeline_bug").lower() == "true" and whole(row, "pp", 1) > 1:
        changes |= load_stack(name).variants.get("slow_pipeline", {})
    if name == "automodel":
        changes |= _automodel(row)
    if re.search(r"no [a-z/]*scatter-gather", text(row, "notes").lower()):
        changes["overlap.scatter_gather_p2p"] = False
    if "no tp/dp overlap" in notes:
        changes["overlap.tensor_backward"] = False
    if re.fullmatch(r"flash ?attention([ -]?1)?", text(row, "attention_kernel").lower()):
        changes["fusion.attention_rate.others"] = FIRST_FLASH_RATE
    if graphs := _graphs(notes):
        changes["launch.graphs"] = graphs
    if "inputs of activations in 8 bits" in text(row, "notes").lower():
        changes["memory.gate_inputs"] = "fp8"
    if "attention in 8 bits" in text(row, "notes").lower():
        changes["fusion.attention_rate.others"] = EIGHT_BIT_RATE
    return name, changes | _turbo(text(row, "notes").lower())


def _automodel(row: Row) -> dict[str, object]:
    """Which kernels of Hugging Face's models NeMo Automodel replaces, by the words of its table.

    Transformer Engine brings attention and norms; recipes that prefetch parameters compile layers, and mixtures have
    modules of its own (nemo_automodel/components/moe). All else runs operator by operator.
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
    """Ranks that train on the same sequences and are counted once: those of KempnerForge's experts.

    Source: KempnerInstitute/KempnerForge, kempnerforge/training/data_pipeline.py (samplers know dp_size alone).
    """
    return whole(row, "ep", 1) if stack_of(row)[0] == "kempnerforge" else 1


def _turbo(notes: str) -> dict[str, object]:
    """What flags of Primus change for mixtures: products of all local experts in one kernel, no wait for their sizes.

    Source: AMD Primus, primus/backends/megatron/training/global_vars.py, _get_sync_free_moe_options: from its second
    stage on (:func:`simpar.validate.mixtures.is_sync_free`) both come with tokens that are sent once to a rank.
    """
    free = is_sync_free(notes)
    changes: dict[str, object] = {"experts.sync_s": 0.0} if free else {}
    if free or re.search(r"use_turbo_grouped_(gemm|mlp): true", notes):
        changes["fusion.grouped_products"] = True
    return changes


def contest_attention(row: Row, plan: Mapping[str, object]) -> dict[str, object]:
    """Attention in 8 bits of a contest's adapters in 8 bits on NVIDIA's devices, where no ranks share a sequence.

    Contests tune whatever their rules leave free, and this is the quicker way that Transformer Engine has
    (``fp8_dpa``); NVIDIA published it for this workload [Accelerating Transformers with cuDNN 9]. Where ranks share a
    sequence its attention stays in 16 bits here.
    """
    eight_bits = plan.get("frozen_dtype") == "fp8" and plan["cp"] == 1
    amd = re.match(r"mi\d", text(row, "gpu_type").lower()) is not None
    return {"fusion.attention_rate.others": EIGHT_BIT_RATE} if eight_bits and not amd else {}


FIRST_FLASH_RATE = 0.5
"""Speed of FlashAttention over that of its second version [arXiv 2307.08691, abstract]."""
EIGHT_BIT_RATE = 1.2
"""Speed of attention in 8 bits over that in 16, both passes: adapters of Llama 2 70B on 8 H200 gain 1.15 with it and
1.11 without over the same baseline [NVIDIA, Accelerating Transformers with cuDNN 9, table 1], and a fifth of that step
is attention. Measured on Hopper alone."""
UNNAMED = "an unnamed stack"
_NEAREST = (
    (r"nemo|bridge", "nemo"),
    (r"deepspeed", "deepspeed"),
    (r"mega|primus|neuron|colossal|mindspeed|zero.?bubble", "megatron"),
    (r"jax|xla|flax|t5x|levanter|axlearn|maxtext", "maxtext"),
    (r"titan", "torchtitan"),
    (r"foundry|composer|mosaic", "llm-foundry"),
    (r"fsdp|torch|lightning|accelerate|transformers|trl|factory|axolotl|olmo", "fsdp"),
)
"""Words of stacks that nobody profiled, and the profile of their kind."""


def _nearest(row: Row, words: str) -> str:
    """The profile of the kind of a stack that has none: by its name, else by whether tensors or stages are split.

    Of a stack without a name it is the release of when its paper came out.
    """
    splits = whole(row, "tp", 1) * whole(row, "pp", 1) > 1
    named = (profile for pattern, profile in _NEAREST if re.search(pattern, words))
    kind = next(named, "megatron" if splits else "fsdp")
    release = None if words else paper_release(row)
    return load_stack(f"{kind}@{release}" if release else kind).name


def fused_experts(
    graph: ModelGraph, stack: str, plan: Mapping[str, object], changes: Mapping[str, object]
) -> Mapping[str, object]:
    """What a stack does of experts in one kernel where a step in MXFP8 is captured whole; theirs must have no biases.

    Source: NVIDIA Megatron-Bridge 0.6.2, perf_recipes, cutedsl_fused_grouped_mlp.
    """
    graphs = changes.get("launch.graphs")
    captured = isinstance(graphs, tuple) and "step" in graphs
    products = [
        op for block in graph.blocks.values() for op in block.operators if op.kind == "grouped_matmul"
    ]
    if not captured or plan["precision"] != "mxfp8" or any(len(op.weights) > 1 for op in products):
        return {}
    return load_stack(stack).variants.get("fused_experts", {})


def _graphs(notes: str) -> tuple[str, ...]:
    """What CUDA graphs capture, in Megatron-Core's words: "none" before a scope switches them off."""
    if not re.search(r"cuda graph|\bcg\b", notes) or "cuda graph none" in notes or "no cuda graph" in notes:
        return ()
    if re.search("cuda graph full|full_iteration|full cg", notes):
        return ("step",)
    scopes = {"attn": "attention", "mamba": "mamba", "mlp": "mlp", "moe_router|router/preprocess": "router"}
    named = tuple(part for word, part in scopes.items() if re.search(rf"\b({word})\b", notes))
    return named or tuple(scopes.values())


def _nemo(row: Row) -> str:
    """Automodel trains with torch's own FSDP; releases of NeMo to 24.07 are slower than those since.

    A row that does not say its release is of the newest.
    """
    if "automodel" in f"{text(row, 'source')} {text(row, 'notes')}".lower():
        return "automodel"
    return "nemo-24" if (released(row) or NEMO_24) < NEMO_24 else "nemo"


NEMO_24 = (
    2024.75  # until when releases are nemo-24: 24.07's last revision of what it measures is of September
)
_CALENDAR = re.compile(r"(?:container release|tags?|release|summary|@)[ :=]*v?(2\d)\.(\d\d)\b")
"""NeMo's, Megatron-Bridge's and dgxc-benchmarking's releases are named by year and month."""


def released(row: Row) -> float | None:
    """When the software of a row came out, in years (2025.25 is April 2025); None where nothing says it."""
    named = _CALENDAR.search(
        " ".join(text(row, name) for name in ("source", "stack", "notes", "citation")).lower()
    )
    return 2000 + int(named[1]) + (int(named[2]) - 1) / 12 if named else None


def is_nemo(row: Row) -> bool:
    """Recipes of NeMo and Megatron-Bridge, which NVIDIA's benchmarks run too, on top of Megatron-Core.

    Megatron-LM's example of Llama 3 in 8 bits follows NeMo's performance scripts [Megatron-LM, examples/llama].
    """
    words = f"{text(row, 'source')} {text(row, 'citation')}".lower()
    said = "nemo settings" in text(row, "notes").lower()
    return said or re.search(r"nemo|megatron-bridge|dgxc", words) is not None
