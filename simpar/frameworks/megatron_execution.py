"""How steps are executed, in Megatron-LM's arguments: attention kernels and CUDA graphs, written and read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from simpar.frameworks.architecture import architecture
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options
from simpar.plan.choices.execution import split_parts
from simpar.plan.plan import Plan
from simpar.stacks.stack import load_stack

if TYPE_CHECKING:
    from simpar.frameworks.megatron_arguments import Arguments

BACKENDS = {None: "flash", "eager": "unfused", "flash2": "flash", "flash3": "flash", "cudnn": "fused"}
GRAPHED = {"attention": "attn", "mamba": "mamba", "mlp": "mlp", "router": "moe_router"}
"""What graphs capture of a layer (``CudaGraphModule`` of megatron-core 0.19.2)."""
BESIDE_ROUTER = "moe_preprocess"
"""Is captured with the router only; too small to be a choice of its own."""

UNFUSED_LOSS = "norm+activation+rope"
"""What of a step is fused without ``--cross-entropy-loss-fusion``."""
LOSS_FUSION, LOSS_KERNEL = "--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl"
FUSED = (None, UNFUSED_LOSS, f"{UNFUSED_LOSS}+loss")

FLASH = ("--use-flash-attn", "--use-flash-attn-v2")
BEFORE_ENGINE = (
    "--data-impl", "--DDP-impl", "--checkpoint-activations", "--activations-checkpoint-method",
    "--activations-checkpoint-num-layers", "--lazy-mpu-init",
)  # fmt: skip
"""Arguments that Megatron-LM lost before autumn 2023, when layers of Transformer Engine became its default."""
SUMS_APART = "--no-gradient-accumulation-fusion"
SOFTMAX_APART = "--no-masked-softmax-fusion"
GATHERS = {"--fp8-format": "--fp8-param-gather", "--fp4-format": "--fp4-param-gather"}
"""Arguments by which parameters are kept and gathered in the bits of products, by those of the products."""
IN_GRADIENTS = "--reuse-grad-buf-for-mxfp8-param-ag"
"""MXFP8 parameters are gathered through the buffer of gradients whatever it says (``param_and_grad_buffer.py``)."""
EMPTIES = "--empty-unused-memory-level"
"""1: the cache is emptied behind the last backward of a step; 2: behind the update, too, where little is left of it."""


def cache_losses(s: Subject) -> Iterator[Loss]:
    """A cache that is emptied more rarely than each step."""
    if (steps := s.plan.execution.empty_cache_steps) not in (None, 1):
        yield Loss("empty_cache_steps", steps, f"{EMPTIES} empties it in every step")


def sum_options(s: Subject) -> Options:
    """The argument of gradients that are summed by kernels of their own."""
    return {SUMS_APART: None} if s.plan.execution.gradient_accumulation_fusion is False else {}


def cache_options(s: Subject) -> Options:
    """The argument of a cache that is emptied."""
    return {} if s.plan.execution.empty_cache_steps is None else {EMPTIES: 1}


def weight_losses(s: Subject) -> Iterator[Loss]:
    """Weights of 8- and 4-bit products that Megatron-LM holds in another way."""
    kind = s.plan.execution.quantized_weights
    if not s.plan.numerics.products.is_cast:
        return
    if kind == "none":
        yield Loss("quantized_weights", kind, "Transformer Engine caches casts between microbatches")
    if kind == "stored" and s.plan.data_parallel.zero == 0:
        yield Loss("quantized_weights", kind, "parameters in 8 bits need a distributed optimizer: zero 1")


def weight_options(s: Subject) -> Options:
    """The argument of parameters in the bits of products."""
    stores = s.plan.execution.quantized_weights == "stored" and s.plan.numerics.products.is_cast
    return {GATHERS["--fp8-format"]: None} if stores else {}


def kernel_losses(s: Subject) -> Iterator[Loss]:
    """Operators that Megatron-LM fuses or does not, whatever its arguments."""
    if s.plan.execution.gradient_accumulation_fusion and s.plan.data_parallel.zero in (2, 3):
        yield Loss("gradient_accumulation_fusion", True, f"Megatron-FSDP has {SUMS_APART}")
    if (fused := s.plan.execution.fused_kernels) not in FUSED:
        yield Loss("fused_kernels", fused, f"all but the loss are fused: {', '.join(filter(None, FUSED))}")


def attention_losses(s: Subject, *, has_sinks: bool) -> Iterator[Loss]:
    """Attention kernels that Transformer Engine does not have, or not for the model."""
    if (kernel := s.plan.execution.attention_kernel) not in BACKENDS:
        yield Loss("attention_kernel", kernel, "Transformer Engine has flash, fused and unfused attention")
    elif has_sinks and kernel not in (None, "cudnn"):
        yield Loss("attention_kernel", kernel, "fused attention alone has learned sinks")


def graph_losses(s: Subject, *, recomputes_layers: bool) -> Iterator[Loss]:
    """What of a layer cannot be captured (``TransformerConfig.__post_init__`` of megatron-core 0.19.2)."""
    graphs = s.plan.execution.graphs
    parts = set(split_parts(graphs))
    experts = architecture(s.graph).experts
    reasons = {
        "a graph of the whole step has no other beside it": "step" in parts and len(parts) > 1,
        "layers that are recomputed whole need a graph of the whole step": recomputes_layers and parts - {"step"},
        "the model has no router": "router" in parts and not s.graph.is_mixture,
        "every layer of the model has experts": "mlp" in parts and bool(experts) and all(experts),
        "the model has no Mamba layers": "mamba" in parts and not s.graph.has_mixers,
    }
    yield from (Loss("graphs", graphs, reason) for reason, holds in reasons.items() if holds)


def graph_options(s: Subject) -> Options:
    """Arguments of CUDA graphs: per layer by Transformer Engine, or of the whole iteration."""
    parts = split_parts(s.plan.execution.graphs)
    if not parts:
        return {}
    if parts == ("step",):
        switches = ("--te-rng-tracker", "--no-check-for-nan-in-loss-and-grad")
        return {"--cuda-graph-impl": "full_iteration", **dict.fromkeys(switches)}
    modules = [GRAPHED[part] for part in parts]
    return {"--cuda-graph-impl": "transformer_engine", "--cuda-graph-modules": modules, "--te-rng-tracker": None}


def _attention(given: Arguments) -> dict[str, Any]:
    """The kernel of attention. Without Transformer Engine it is unfused unless FlashAttention is asked for."""
    backend = given.text("--attention-backend")
    is_local = (given.text("--transformer-impl") or ("local" if _sign_of_age(given) else "")) == "local"
    old_flash = bool({flag for flag in FLASH if given.has(flag)})
    if backend in ("unfused", "local") or (is_local and not old_flash):
        return {"attention_kernel": "eager"}
    return {"attention_kernel": "cudnn"} if backend == "fused" else {}


def _sign_of_age(given: Arguments) -> str:
    """The first argument that no Megatron-LM has whose layers are Transformer Engine's by default; "" for none."""
    written = {*given.values, *given.names.values()}
    return next((flag for flag in BEFORE_ENGINE if flag in written), "")


def with_loss(plan: Plan, given: Arguments) -> Plan:
    """The plan with the loss as the arguments run it: Transformer Engine's, or one that keeps its softmax in fp32.

    Megatron-LM's own ("native", the default) does so fused or not [core/fusions/fused_cross_entropy.py]; fused it is
    taken for the other, which reads and writes logits a little more often.
    """
    is_fused, kernel = given.has(LOSS_FUSION), given.text(LOSS_KERNEL)
    return plan if is_fused and kernel == "te" else plan.with_values(fused_kernels=UNFUSED_LOSS)


def execution_notes(given: Arguments) -> Iterator[str]:
    """What is not told apart of a loss that is fused by Megatron-LM's own kernel, and of gathers in few bits."""
    narrow = next((each for form, each in GATHERS.items() if form in given.values and each in given.values), None)
    if narrow and given.text("--fp8-recipe") != "mxfp8" and not given.has("--use-torch-fsdp2"):
        yield f"{given.name(narrow)}: gathers of parameters are timed with 2 bytes each."
    if (old := _sign_of_age(given)) and not {"--transformer-impl", "--attention-backend", *FLASH} & set(given.values):
        yield f"{old} is of before autumn 2023: without --use-flash-attn, attention is not fused."
    if given.has(LOSS_FUSION) and given.text(LOSS_KERNEL) != "te":
        yield (
            f"{given.name(LOSS_FUSION)}: Megatron-LM's own kernel keeps its softmax in fp32 as the unfused loss does "
            f"({LOSS_KERNEL} te does not), and is taken to be as slow as that one."
        )


def _weights(given: Arguments) -> dict[str, Any]:
    """How weights of 8- and 4-bit products are held; by default the stack's modules cache them."""
    asked = [form for form, gathers in GATHERS.items() if given.has(gathers)]  # without that format they mean nothing
    forms = [form for form in GATHERS if form in given.values]
    if not forms:
        return {}
    if given.has("--use-torch-fsdp2"):  # whose modules cache nothing, and which turns the argument off
        given.used.add(IN_GRADIENTS)
        return {"quantized_weights": "none"}
    if forms[0] not in asked:
        return {}
    given.used.add(IN_GRADIENTS)
    return {"quantized_weights": "stored"}


def with_weights(plan: Plan, stack: str) -> Plan:
    """The plan of Megatron-Core's modules, which cache casts of weights, under a stack that may hold them otherwise."""
    kind = plan.execution.quantized_weights or "cached"
    is_usual = kind == load_stack(stack).memory.weights_in(plan.numerics.precision)
    return plan.with_values(quantized_weights=None if is_usual or not plan.numerics.products.is_cast else kind)


def read_execution(given: Arguments) -> dict[str, Any]:
    """Choices of execution in a command, by their keys in a plan. Graphs that no plan can say are left unread."""
    result = _weights(given)
    if given.text(EMPTIES) not in (None, "0"):
        result["empty_cache_steps"] = 1
    if given.has(SUMS_APART) and not given.has("--use-megatron-fsdp"):  # which asks for it
        result["gradient_accumulation_fusion"] = False
    given.used |= {"--moe-permute-fusion", LOSS_FUSION}  # as stacks do, other than Megatron-LM
    if given.text("--moe-token-dispatcher-type") == "allgather":
        result["dispatcher"] = "all_gather"
    result |= _attention(given)
    if result.get("attention_kernel") != "eager":
        given.used.add(SOFTMAX_APART)  # no other kernel leaves a softmax of its own
    backend = given.text("--moe-flex-dispatcher-backend")  # which no other dispatcher has
    if backend == "hybridep" and given.text("--moe-token-dispatcher-type") == "flex":
        result["dispatcher"] = "hybridep"
    given.has("--moe-enable-deepep")
    given.has("--moe-pad-expert-input-to-capacity")
    kind = next(iter(given.values.get("--cuda-graph-impl", [])), None)
    flag = next((each for each in ("--cuda-graph-modules", "--cuda-graph-scope") if each in given.values), "")
    names = [name for name in given.values.get(flag, []) if name != BESIDE_ROUTER]
    parts = {name: part for part, name in GRAPHED.items()}
    read = [flag, "--cuda-graph-impl", "--te-rng-tracker"]
    if kind == "none":
        result["graphs"] = "none"
    elif kind == "full_iteration" or (kind and names == ["full_iteration"]):
        result["graphs"] = "step"
        read.append("--no-check-for-nan-in-loss-and-grad")  # which it asks for
    elif kind and names and set(names) <= set(parts):
        result["graphs"] = "+".join(parts[name] for name in names)
    if "graphs" in result:
        given.used.update(read)
    return result
