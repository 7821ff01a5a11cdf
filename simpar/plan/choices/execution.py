"""Choices of how the step is executed. What is None is done as the software stack does it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plan.choices.choice import (
    AMONG,
    BLOCKS,
    MEMORY,
    REPLICAS,
    Choice,
    Columns,
    OptionalAxis,
    has_value,
    in_section,
    make_effects,
    select_all,
)
from simpar.plan.choices.experts import Experts
from simpar.plan.choices.section import Section
from simpar.stacks.stack import QuantizedWeights, Stack, UpdateKernels
from simpar.units import DTYPE_BYTES, Count, Flags

AttentionKernel = Literal["eager", "sdpa", "flash2", "flash3", "cudnn", "latent"]
FAMILY_OF_KERNEL = {
    "eager": "unfused",
    "sdpa": "flash2",
    "flash2": "flash2",
    "flash3": "flash",
    "cudnn": "flash",
    "latent": "latent",
}
"""The kernel family by which each is costed.

torch's scaled_dot_product_attention runs FlashAttention-2 [pytorch, aten/native/transformers/cuda/flash_attn];
FlashAttention-3 [Shah et al. 2024, arXiv 2407.08608] and cuDNN's are the fastest that the device has; "latent"
supports heads whose keys are wider than their values in backward, too.
"""
KERNEL_OF_FAMILY = {"unfused": "eager", "flash": "flash3"}
"""Families of kernels that tables of measured runs name, as the kernels that they stand for."""
MatrixLayout = Literal["blockwise", "duplicated", "distributed", "layer_sharded"]
Dispatcher = Literal["all_gather", "all_to_all", "deepep", "hybridep"]
DEEPEP_SMS, HYBRIDEP_SMS = 20, 16
"""Multiprocessors of an exchange: Buffer.num_sms of DeepEP, moe_hybridep_num_sms of Megatron-Core."""
SENT_BY_DISPATCHER: dict[str, Any] = {
    "all_gather": "per_expert", "all_to_all": "per_expert", "deepep": "per_node", "hybridep": "per_node",
}  # fmt: skip
"""The copies of a token that a dispatcher sends (token_dispatch)."""
CAPTURED = ("attention", "mamba", "mlp", "router", "step")
"""Parts of a layer that CUDA graphs capture; "step" captures all of it."""
FUSED = ("norm", "activation", "rope", "residual", "loss")
"""Operators that eager PyTorch runs as several kernels, each over memory, and others as one."""
SHARDED_LOSS = {"logit_bytes": 6.0, "logit_saved_bytes": 4.0}
"""Bytes of a logit under Megatron-Core's unfused loss: 2 and their copy in fp32, which becomes the softmax that is kept
[NVIDIA Megatron-LM, core/tensor_parallel/cross_entropy.py]."""
COMPILED = ("norm", "activation", "rope", "residual")
"""What torch.compile of a layer fuses; the loss lies outside of layers."""


class Execution(Section):
    """How the step is executed. What is None is decided by the stack.

    ``attention_kernel`` runs core attention: eager products and a softmax, torch's SDPA, FlashAttention-2 or 3, or
    cuDNN's. ``loss_chunks`` pieces of the tokens go through output projection, loss and their backward in turn, so that
    the logits of one piece exist at a time and none are kept for backward [Liger Kernel, arXiv 2410.10989].
    ``expandable_segments`` of the caching allocator leave next to no gaps [PYTORCH_CUDA_ALLOC_CONF]. ``graphs`` names
    what of a layer CUDA graphs capture, such as "attention+mlp", "step" for all, "none". ``dispatcher`` moves tokens to
    their experts: all tokens to every rank ("all_gather"), a copy to each expert ("all_to_all"), or one to each
    scale-up domain by kernels that need no counts on the host ("deepep", "hybridep"). ``parameter_dtype`` is that of
    the parameters that the optimizer updates; bf16 without master_weights are pure bf16 states. ``fused_kernels`` names
    the memory-bound operators that run as one kernel each, such as "norm+activation", "compiled" for those that
    torch.compile fuses in a layer, "none" for eager code. ``optimizer_kernels`` run the
    update in one pass ("fused"), operation by operation over all arrays ("foreach"), or array by array ("single").
    ``update_in_backward`` updates each block as soon as its gradients are there, and keeps those of no other [LOMO, Lv
    et al. 2023, arXiv 2306.09782; torchtune's optimizer_in_bwd]: with one microbatch, and without clipping.
    ``fused_permutation`` sorts routed tokens in one kernel each way, instead of by Python, piece by piece, between
    kernels that each sort a part [Megatron Core, moe_permute_fusion]. ``matrix_layout`` is how optimizers of whole
    matrices work on those that tensor parallelism divides: each shard as a matrix of its own ("blockwise"), whole ones
    on every rank ("duplicated"), all ranks on each ("distributed"), or every rank on its share ("layer_sharded")
    [Megatron Core, muon_tp_mode]. ``document_loops``: Python loops over the documents of packed sequences to rotate
    them, where no kernel does, and to exchange them (:mod:`simpar.program.blocks.documents`). Every
    ``empty_cache_steps`` steps the allocator gives its free blocks back to the device and maps them anew
    (:mod:`simpar.program.structure.emptied_cache`). ``gradient_accumulation_fusion`` adds the gradients of weights to
    their sums inside of the products that make them; else kernels of their own add them [Megatron-LM,
    fused_weight_gradient_mlp_cuda; core/distributed/distributed_data_parallel.py, main_grad.add_].
    ``quantized_weights`` says what is held of weights in the 8 or 4 bits of their products: nothing ("none"), copies
    for the run ("cached"), or the parameters themselves ("stored"; :mod:`simpar.cost.memory.quantized`). In a pipeline
    the last stage's outputs of so many microbatches are kept until its schedule has ended (``kept_outputs``): those of
    one run of it, where a step has several (:mod:`simpar.cost.memory.outputs`).
    """

    attention_kernel: AttentionKernel | None = None
    loss_chunks: Count | None = None
    expandable_segments: bool | None = None
    graphs: str | None = Field(default=None, json_schema_extra={"examples": ["none", "attention+mlp", "step"]})
    dispatcher: Dispatcher | None = None
    parameter_dtype: Literal["fp32", "bf16"] | None = None
    fused_kernels: str | None = Field(
        default=None, json_schema_extra={"examples": ["none", "norm+activation", "compiled"]}
    )
    optimizer_kernels: UpdateKernels | None = None
    update_in_backward: bool | None = None
    fused_permutation: bool | None = None
    matrix_layout: MatrixLayout | None = None
    document_loops: bool | None = None
    empty_cache_steps: Count | None = None
    gradient_accumulation_fusion: bool | None = None
    quantized_weights: QuantizedWeights | None = None
    kept_outputs: int | None = Field(default=None, ge=0, strict=True)

    @field_validator("attention_kernel", mode="before")
    @classmethod
    def _of_family(cls, kernel: Any) -> Any:
        return KERNEL_OF_FAMILY.get(kernel, kernel) if isinstance(kernel, str) else kernel

    @field_validator("graphs")
    @classmethod
    def _known_graphs(cls, graphs: str | None) -> str | None:
        return _check_parts(graphs, CAPTURED, "captured")

    @field_validator("fused_kernels")
    @classmethod
    def _known_kernels(cls, fused: str | None) -> str | None:
        return fused if fused == "compiled" else _check_parts(fused, FUSED, "fused", "none, compiled")


def split_parts(names: str | None) -> tuple[str, ...]:
    """The names that a choice joins by +; none of "none" and of what a plan leaves to the stack."""
    return () if names in (None, "none") else tuple(str(names).split("+"))


def _check_parts(names: str | None, known: tuple[str, ...], done: str, others: str = "none") -> str | None:
    """Names joined by +, if all of them are known. Raises ValueError for another one."""
    for part in split_parts(names):
        if part not in known:
            raise ValueError(
                f"{part!r} is not {done}{files.suggest(part, known)}; allowed: {others}, or parts joined by +: "
                f"{', '.join(known)}"
            )
    return names


@dataclass(frozen=True, kw_only=True)
class DecidedExecution:
    """Execution as a plan says it; None is as the stack.

    :func:`simpar.layout.layout.apply_execution_choices` changes the stack.
    """

    attention_kernel: AttentionKernel | None = None
    loss_chunks: int | None = None
    expandable_segments: bool | None = None
    graphs: str | None = None
    dispatcher: Dispatcher | None = None
    parameter_dtype: Literal["fp32", "bf16"] | None = None
    fused_kernels: str | None = None
    optimizer_kernels: UpdateKernels | None = None
    update_in_backward: bool | None = None
    fused_permutation: bool | None = None
    matrix_layout: MatrixLayout | None = None
    document_loops: bool | None = None
    empty_cache_steps: int | None = None
    gradient_accumulation_fusion: bool | None = None
    quantized_weights: QuantizedWeights | None = None
    kept_outputs: int | None = None


def resolve_dispatch(token_dispatch: str, dispatcher: str | None) -> dict[str, Any]:
    """The copies of tokens that a dispatcher sends. Raises UserError if a plan asks for others."""
    if dispatcher is None:
        return {}
    sent = SENT_BY_DISPATCHER[dispatcher]
    if token_dispatch not in (Experts().token_dispatch, sent):
        raise UserError(
            f"plan.token_dispatch = {token_dispatch}: dispatcher {dispatcher} sends tokens {sent}; allowed: "
            f"{sent}, or no dispatcher"
        )
    return {"token_dispatch": sent}


def _with_attention(stack: Stack, kernel: str) -> Stack:
    """The stack with another attention kernel, whose speed is that of its family unless the stack has that family."""
    family = FAMILY_OF_KERNEL[kernel]
    if family == stack.fusion.attention:
        return stack
    fusion = stack.fusion.model_copy(update={"attention": family, "attention_rate": {}})
    return stack.model_copy(update={"fusion": fusion})


def _with_loss_chunks(stack: Stack, chunks: int) -> Stack:
    return stack.model_copy(update={"memory": stack.memory.model_copy(update={"loss_chunks": chunks})})


def _with_segments(stack: Stack, expandable: bool) -> Stack:
    allocator = stack.memory.allocator.model_copy(update={"expandable": expandable, "always_expandable": expandable})
    return stack.model_copy(update={"memory": stack.memory.model_copy(update={"allocator": allocator})})


def _with_graphs(stack: Stack, graphs: str) -> Stack:
    return stack.model_copy(update={"launch": stack.launch.model_copy(update={"graphs": split_parts(graphs)})})


def _with_dispatcher(stack: Stack, dispatcher: str) -> Stack:
    """The stack with another dispatcher; the library's kernels need no counts of tokens on the host."""
    sms = {"deepep": DEEPEP_SMS, "hybridep": HYBRIDEP_SMS}
    if dispatcher not in sms:
        return stack
    update = {"sync_s": 0.0, "exchange_host_s": 0.0, "exchange_sms": sms[dispatcher]}
    return stack.model_copy(update={"experts": stack.experts.model_copy(update=update)})


def _with_parameter_dtype(stack: Stack, dtype: str) -> Stack:
    return stack.model_copy(update={"numerics": stack.numerics.model_copy(update={"parameter_dtype": dtype})})


def _with_fused_kernels(stack: Stack, fused: str) -> Stack:
    """The stack with other fused operators, and what eager ones keep for backward.

    An eager norm keeps its input in fp32, an eager gated activation its activated gate; a fused one keeps its inputs
    and the product that the next matrix product reads, or less if the stack's own kernel does.
    """
    parts = COMPILED if fused == "compiled" else split_parts(fused)
    on = {name: name in parts for name in FUSED}
    loss = on.pop("loss") or (fused == "compiled" and stack.fusion.cross_entropy)
    gate = "all" if not on["activation"] else "product" if stack.memory.gate == "all" else stack.memory.gate
    logits = SHARDED_LOSS if stack.fusion.sharded_loss and not loss else {}
    memory = stack.memory.model_copy(update={"eager_copies": not on["norm"], "gate": gate, **logits})
    fusion = stack.fusion.model_copy(update={**on, "cross_entropy": loss})
    # what is compiled has worked out the placements of its DTensors
    traced = {"host_time_per_dtensor_s": 0.0} if fused == "compiled" else {}
    launch = stack.launch.model_copy(update=traced)
    return stack.model_copy(update={"fusion": fusion, "memory": memory, "launch": launch})


def _with_update_kernels(stack: Stack, kernels: UpdateKernels) -> Stack:
    return _with_update(stack, kernels=kernels)


def _with_update_in_backward(stack: Stack, is_there: bool) -> Stack:
    return _with_update(stack, in_backward=is_there)


def _with_update(stack: Stack, **habits: Any) -> Stack:
    update = stack.numerics.update.model_copy(update=habits)
    return stack.model_copy(update={"numerics": stack.numerics.model_copy(update={"update": update})})


def _with_fused_permutation(stack: Stack, is_fused: bool) -> Stack:
    fusion = stack.fusion.model_copy(update={"permutation": is_fused})
    experts = stack.experts.model_copy(update={"sorts_on_host": not is_fused})
    return stack.model_copy(update={"fusion": fusion, "experts": experts})


def _is_mixture(rows: Columns) -> Flags:
    return np.full(rows.count, rows.problem.graph.is_mixture)


def _with_document_loops(stack: Stack, is_there: bool) -> Stack:
    return stack.model_copy(update={"launch": stack.launch.model_copy(update={"document_loops": is_there})})


def _with_emptied_cache(stack: Stack, steps: int) -> Stack:
    allocator = stack.memory.allocator.model_copy(update={"empty_cache_steps": steps})
    return stack.model_copy(update={"memory": stack.memory.model_copy(update={"allocator": allocator})})


def _with_accumulation_fusion(stack: Stack, is_there: bool) -> Stack:
    """The stack with or without sums inside of products; apart, a 16-bit gradient is read, and the sum twice over."""
    apart = stack.numerics.sum_bytes or DTYPE_BYTES["bf16"] + 2 * DTYPE_BYTES[stack.numerics.grad_dtype]
    update = {"gradient_accumulation_fusion": is_there, "sum_bytes": 0.0 if is_there else apart}
    return stack.model_copy(update={"numerics": stack.numerics.model_copy(update=update)})


def _with_quantized_weights(stack: Stack, kind: QuantizedWeights) -> Stack:
    memory = stack.memory.model_copy(update={"quantized_weights": {"others": kind}})
    return stack.model_copy(update={"memory": memory})


def _with_kept_outputs(stack: Stack, number: int) -> Stack:
    return stack.model_copy(update={"memory": stack.memory.model_copy(update={"kept_outputs": number})})


def _sends_what_is_asked(rows: Columns) -> Flags:
    """Rows whose dispatcher sends the copies of tokens that the plan asks for, if it asks for any."""
    result = select_all(rows)
    for name in rows.domain["dispatcher"]:
        if name is not None:
            sent = has_value(rows, "token_dispatch", Experts().token_dispatch, SENT_BY_DISPATCHER[name])
            result &= ~rows.one_of("dispatcher", name) | sent
    return np.asarray(result)


CHOICES = in_section(
    "execution",
    Choice(
        "attention_kernel",
        measured="flash, flash2, latent or unfused; blank: as the stack has it",
        in_stack=_with_attention,
        axis=OptionalAxis(make_effects(MEMORY, BLOCKS), label="{} attention", after="recompute_early"),
    ),
    Choice(
        "loss_chunks",
        in_stack=_with_loss_chunks,
        axis=OptionalAxis(make_effects(MEMORY, BLOCKS), label="loss in {} chunks", after="attention_kernel"),
    ),
    Choice(
        "expandable_segments", in_stack=_with_segments, axis=OptionalAxis(make_effects(MEMORY), after="loss_chunks")
    ),
    Choice(
        "graphs",
        in_stack=_with_graphs,
        axis=OptionalAxis(make_effects(BLOCKS), label="graphs {}", after="expandable_segments"),
    ),
    Choice(
        "dispatcher",
        in_stack=_with_dispatcher,
        axis=OptionalAxis(
            make_effects(MEMORY, BLOCKS, AMONG), _is_mixture, _sends_what_is_asked, label="{}", after="graphs"
        ),
    ),
    Choice(
        "parameter_dtype",
        in_stack=_with_parameter_dtype,
        axis=OptionalAxis(make_effects(MEMORY, BLOCKS, REPLICAS), label="{} parameters", after="dispatcher"),
    ),
    Choice(
        "fused_kernels",
        in_stack=_with_fused_kernels,
        axis=OptionalAxis(make_effects(MEMORY, BLOCKS), label="{} kernels fused", after="parameter_dtype"),
    ),
    Choice(
        "optimizer_kernels",
        in_stack=_with_update_kernels,
        axis=OptionalAxis(make_effects(MEMORY, BLOCKS, REPLICAS), label="{} optimizer", after="fused_kernels"),
    ),
    Choice("update_in_backward", in_stack=_with_update_in_backward),
    Choice("fused_permutation", in_stack=_with_fused_permutation),
    Choice("matrix_layout"),
    Choice("document_loops", in_stack=_with_document_loops),
    Choice("empty_cache_steps", in_stack=_with_emptied_cache),
    Choice("gradient_accumulation_fusion", in_stack=_with_accumulation_fusion),
    Choice("quantized_weights", in_stack=_with_quantized_weights),
    Choice("kept_outputs", in_stack=_with_kept_outputs),
)
