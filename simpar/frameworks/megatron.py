"""Megatron-LM: command-line arguments of ``pretrain_gpt.py``, written and read."""

from collections.abc import Iterator, Mapping
from itertools import groupby

from simpar.architectures import recompute
from simpar.architectures.recompute import module_names
from simpar.frameworks import placeholders, rules
from simpar.frameworks.architecture import Architecture, architecture
from simpar.frameworks.decoder import megatron_core_losses, period
from simpar.frameworks.launch import launchers, words
from simpar.frameworks.megatron_arguments import BESIDE
from simpar.frameworks.megatron_details import (
    detail_arguments,
    detail_losses,
    has_sinks,
    position_type,
    router_arguments,
)
from simpar.frameworks.megatron_execution import (
    BACKENDS,
    LOSS_FUSION,
    LOSS_KERNEL,
    UNFUSED_LOSS,
    attention_losses,
    cache_losses,
    cache_options,
    graph_losses,
    graph_options,
    kernel_losses,
    sum_options,
    weight_losses,
    weight_options,
)
from simpar.frameworks.megatron_hybrid import SCRIPT, hybrid_arguments, hybrid_losses, predictions
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target, TargetNumerics
from simpar.plan.choices.numerics import NARROW_MASTERS
from simpar.units import DTYPE_BYTES

FLAG = None
ORDER, MAPPED_ORDER = "tp-cp-dp-pp", "tp-cp-pp-dp"
CP_TYPES = {"ring": "p2p", "all_gather": "allgather", "ulysses": "a2a"}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "sgd_momentum": "sgd"}
DELAYED = "delayed"
FP8_RECIPES = {"fp8": ("hybrid", DELAYED), "fp8_blockwise": ("e4m3", "blockwise"), "mxfp8": ("e4m3", "mxfp8")}
NUMERICS = TargetNumerics(OPTIMIZERS, ("bf16", "fp16", "fp32", *FP8_RECIPES))


DISPATCHERS = {None: "alltoall", "all_to_all": "alltoall", "all_gather": "allgather"}
UNSCALED = {"layernorm", "moe_act"}
"""Modules that cannot be recomputed under delayed scaling (``TransformerConfig`` of megatron-core 0.19.2)."""


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what Megatron-LM has no argument for."""
    if s.graph.has_mixers:
        yield from hybrid_losses(s)
    else:
        yield from megatron_core_losses(architecture(s.graph), str(s.config.get("model_type", "")))
        yield from detail_losses(s)
    yield from further_losses(s)
    yield from _masters(s)


def _masters(s: Subject) -> Iterator[Loss]:
    """Where Megatron-Core keeps master weights itself, in fp32 (``megatron_numerics`` says when)."""
    kept, recipe = s.plan.numerics.master_dtype, FP8_RECIPES.get(s.plan.numerics.precision, ("", DELAYED))[1]
    if kept in NARROW_MASTERS and s.plan.data_parallel.zero != 1:
        yield Loss("master_dtype", kept, "the optimizer that keeps them so is a distributed one: zero 1")
    elif kept == "remainder" and (recipe != DELAYED or weight_options(s)):
        yield Loss("master_dtype", kept, f"beside these parameters of {s.plan.numerics.precision} they are in fp32")


def further_losses(s: Subject) -> Iterator[Loss]:
    """What has no argument besides the kind of decoder: kernels, the end of a table of positions, the layout."""
    yield from attention_losses(s, has_sinks=has_sinks(s))
    yield from kernel_losses(s)
    yield from cache_losses(s)
    yield from weight_losses(s)
    positions = s.graph.dims.get("positions")
    if positions and positions < s.training.seq_len:
        yield Loss("seq_len", s.training.seq_len, f"the model's learned positions end at {positions}")
    yield from parallel_losses(s)


def parallel_losses(s: Subject) -> Iterator[Loss]:
    """What no launcher based on Megatron-Core can express of a layout."""
    yield from rules.no_single_process(s)
    yield from rules.only_rank_orders(s, ORDER, MAPPED_ORDER)
    yield from rules.only_schedules(s, ("1f1b", "interleaved"))
    yield from rules.context_parallel(s, CP_TYPES, ("zigzag",), hybrid=True, states=True)
    if s.plan.numerics.precision == "fp32" and s.plan.numerics.grad_dtype == "bf16":
        yield Loss("grad_dtype", "bf16", "gradients of fp32 parameters are fp32")
    yield from _overlaps(s)
    yield from _exchange(s)
    yield from _recomputed(s)
    yield from graph_losses(s, recomputes_layers=_recompute(s).get("--recompute-granularity") == "full")
    yield from rules.chosen_losses(
        s,
        first_bucket_bytes="buckets have one size",
        master_weights="main parameters follow from the precision",
        reshard_after_forward="the sharding strategy decides what is resharded",
    )


def _recomputed(s: Subject) -> Iterator[Loss]:
    """Recomputation that ``TransformerConfig`` refuses; fp8 is delayed scaling (:data:`FP8_RECIPES`)."""
    kind = s.plan.memory.recompute
    if recompute.period(kind) and s.recomputed_per_stage is None:
        yield Loss("recompute", kind, "the first N layers of every stage are recomputed; here N differs")
    further = range(len(s.graph.layers) - predictions(s), len(s.graph.layers))
    if recompute.period(kind) and any(recompute.is_full(recompute.of_layer(kind, each)) for each in further):
        yield Loss("recompute", kind, "layers that predict further tokens are recomputed with all others or not")
    if recompute.segment_layers(kind) is not None and predictions(s):
        yield Loss("recompute", kind, "layers that predict further tokens are segments of their own")
    chosen = set(module_names(kind))
    if s.plan.numerics.precision == "fp8" and chosen & UNSCALED:
        yield Loss("recompute", kind, f"delayed scaling of fp8 recomputes no {' or '.join(sorted(UNSCALED))}")
    if "moe_act" in chosen and not s.graph.is_mixture:
        yield Loss("recompute", kind, "moe_act is there with experts")
    if "mla_up_proj" in chosen and "qk_dim" not in s.graph.dims:
        yield Loss("recompute", kind, "mla_up_proj is there with latent attention")


def _exchange(s: Subject) -> Iterator[Loss]:
    """What ``TransformerConfig`` refuses of the token exchange between experts."""
    choice, mesh, kind = s.plan.experts, s.plan.mesh, s.plan.memory.recompute
    if mesh.ep > 1 and choice.ep_overlap:
        reasons = {
            "with a pipeline it needs virtual stages: vpp": mesh.pp > 1 and s.plan.pipeline.vpp == 1,
            "it runs with no layer or mixture recomputed whole": kind not in ("none", "selective")
            and (not module_names(kind) or "moe" in module_names(kind)),
            "it needs products of bf16 or fp16": s.plan.numerics.precision == "fp32",
            "it runs with at most one layer that predicts": predictions(s) > 1,
        }
        yield from (Loss("ep_overlap", True, reason) for reason, holds in reasons.items() if holds)
    if choice.shared_expert_overlap and s.graph.dims.get("shared_ffn"):
        refused = {
            "a dispatcher that gathers has no exchange to run it beside": s.plan.execution.dispatcher == "all_gather",
            "shared experts that are recomputed run in turn": "shared_experts" in module_names(kind),
        }
        yield from (Loss("shared_expert_overlap", True, reason) for reason, holds in refused.items() if holds)
    if s.graph.is_mixture and choice.capacity_factor and choice.token_dispatch != "per_expert":
        yield Loss("token_dispatch", choice.token_dispatch, "DeepEP pads no expert to its capacity")
    if s.graph.is_mixture and mesh.expert_tensor_parallel > 1 and "mlp" in architecture(s.graph).biases:
        yield Loss("etp", mesh.expert_tensor_parallel, "experts with biases are whole: 1")


def _overlaps(s: Subject) -> Iterator[Loss]:
    data, tensor = s.plan.data_parallel, s.plan.tensor_parallel
    if "overlap" in s.stated and tensor.overlap and not tensor.sequence_parallel:
        yield Loss("overlap", True, "tensor parallelism overlaps with sequence parallelism only")
    if "overlap_param_gather" in s.stated and data.overlap_param_gather and not data.overlap_grad_reduce:
        yield Loss("overlap_param_gather", True, "it needs overlap_grad_reduce")
    if data.zero in SHARDING and s.chose("bucket_bytes"):
        yield Loss("bucket_bytes", data.bucket_bytes, "Megatron-FSDP communicates unit by unit")


def options(s: Subject) -> Options:
    """Every argument by its own name; None marks a switch without a value."""
    return {
        **model_arguments(s),
        **_layout(s),
        **_pipeline(s),
        **_data_parallel(s),
        **_recompute(s),
        **graph_options(s),
        **cache_options(s),
        **sum_options(s),
        **_numerics(s),
        **_training(s),
    }


def model_arguments(s: Subject) -> Options:
    """The network: sizes and style."""
    dims, style = s.graph.dims, architecture(s.graph)
    result: Options = {
        "--num-layers": len(s.graph.layers) - predictions(s),
        "--hidden-size": dims["hidden"],
        "--ffn-hidden-size": dims["ffn"] or dims.get("expert_ffn", dims["hidden"]),
        "--num-attention-heads": dims["heads"],
        "--kv-channels": dims["head_dim"],
        "--normalization": "LayerNorm" if style.norm == "layer" else "RMSNorm",
        "--vocab-size": dims["vocab"],
        "--max-position-embeddings": dims.get("positions") or s.training.seq_len,
        "--position-embedding-type": position_type(s) if style.positions == "rope" else "learned_absolute",
    }
    if dims["kv_heads"] < dims["heads"]:
        result |= {"--group-query-attention": FLAG, "--num-query-groups": dims["kv_heads"]}
    switches = {
        "--swiglu": style.gated and style.activation == "silu",
        "--untie-embeddings-and-output-weights": not style.tied,
        "--disable-bias-linear": "mlp" not in style.biases,
        "--add-qkv-bias": style.biases == {"qkv"},
        "--qk-layernorm": bool(style.qk_norm),
    }
    result |= {name: FLAG for name, on in switches.items() if on}
    result |= _windows(style) | _dropout(s) | _experts(s, style) | detail_arguments(s)
    if "qk_dim" in dims:  # a head's width is given by its parts
        del result["--kv-channels"]
    if predictions(s) and not s.graph.has_mixers:
        result |= {"--mtp-num-layers": predictions(s), "--mtp-loss-scaling-factor": 0.3}
    if s.graph.has_mixers:  # the pattern gives the number and kinds of layers
        del result["--num-layers"]
        result.pop("--moe-layer-freq", None)
        result |= hybrid_arguments(s)
    return result


def _experts(s: Subject, style: Architecture) -> Options:
    if not style.experts:
        return {}
    dims, choice, mesh = s.graph.dims, s.plan.experts, s.plan.mesh
    once = choice.token_dispatch != "per_expert"
    options: Options = {
        "--num-experts": dims["num_experts"],
        "--moe-ffn-hidden-size": dims["expert_ffn"],
        "--moe-router-topk": dims["topk"],
        "--moe-router-load-balancing-type": "aux_loss",
        "--moe-aux-loss-coeff": 1e-2,
        "--moe-grouped-gemm": FLAG,
        "--moe-token-dispatcher-type": "flex" if once else DISPATCHERS[s.plan.execution.dispatcher],
        "--expert-tensor-parallel-size": mesh.expert_tensor_parallel,
    }
    main = style.experts[: len(style.experts) - predictions(s)]
    if not all(main):
        pattern = ",".join(str(int(has)) for has in main)
        options["--moe-layer-freq"] = f"([{pattern}])"
    if choice.capacity_factor:
        options |= {"--moe-expert-capacity-factor": choice.capacity_factor, "--moe-pad-expert-input-to-capacity": FLAG}
    if s.plan.execution.fused_permutation is not False:
        options["--moe-permute-fusion"] = FLAG
    if once:
        options["--moe-flex-dispatcher-backend"] = s.plan.execution.dispatcher or "deepep"
    if choice.ep_overlap and mesh.ep > 1:
        options["--overlap-moe-expert-parallel-comm"] = FLAG
    if choice.shared_expert_overlap and dims.get("shared_ffn"):
        options[BESIDE] = FLAG
    return options if s.graph.has_mixers else options | router_arguments(s)


def _windows(style: Architecture) -> Options:
    sizes = {window for window in style.windows if window is not None}
    if len(sizes) != 1:
        return {}
    options: Options = {"--window-size": f"{sizes.pop() - 1},0"}
    every = period(style.windows)
    return options | ({"--window-attn-skip-freq": every} if every else {})


def _dropout(s: Subject) -> Options:
    rates = s.graph.details.dropout
    return {"--attention-dropout": rates.attention, "--hidden-dropout": max(rates.residual, rates.embedding)}


def _layout(s: Subject) -> Options:
    mesh, tensor = s.plan.mesh, s.plan.tensor_parallel
    options: Options = {
        "--tensor-model-parallel-size": mesh.tp,
        "--pipeline-model-parallel-size": mesh.pp,
        "--context-parallel-size": mesh.cp,
        "--expert-model-parallel-size": mesh.ep,
    }
    switches = {
        "--sequence-parallel": tensor.sequence_parallel,
        "--tp-comm-overlap": tensor.overlap and tensor.sequence_parallel and mesh.tp > 1,
        "--use-tp-pp-dp-mapping": mesh.order.index("pp") < mesh.order.index("dp") and mesh.pp > 1 and s.dp > 1,
    }
    return options | {name: FLAG for name, on in switches.items() if on} | _context(s)


def _context(s: Subject) -> Options:
    method, cp, heads = s.plan.context_parallel.cp_method or "ring", s.plan.mesh.cp, s.layout.ulysses_ranks
    if cp == 1:
        return {}
    if method == "ring" and heads > 1:
        return {"--cp-comm-type": "a2a+p2p", "--hierarchical-context-parallel-sizes": [heads, cp // heads]}
    return {"--cp-comm-type": CP_TYPES[method]}


def _pipeline(s: Subject) -> Options:
    if s.plan.mesh.pp == 1 or s.graph.has_mixers:
        return {}
    if not s.even or predictions(s):
        return {"--pipeline-model-parallel-layout": layout(s.layers, predictions(s))}
    if s.plan.pipeline.vpp > 1:
        return {"--num-virtual-stages-per-pipeline-rank": s.plan.pipeline.vpp}
    return {}


def layout(layers: tuple[int, ...], further: int = 0) -> str:
    """The layout string of virtual stages: E embedding, t layer, L loss, a bar between stages, runs as (...)*N.

    The last ``further`` layers predict further tokens: m.
    """
    stages = [_run("t", n) for n in (*layers[:-1], layers[-1] - further)]
    stages[-1] = ",".join(filter(None, (stages[-1], _run("m", further))))
    stages[0] = f"E{',' if stages[0] else ''}{stages[0]}"
    stages[-1] = f"{stages[-1]}{',' if stages[-1] else ''}L"
    runs = [(stage, len(list(same))) for stage, same in groupby(stages)]
    return "".join(f"{stage}|" if n == 1 else f"({stage}|)*{n}" for stage, n in runs).removesuffix("|")


def _run(letter: str, count: int) -> str:
    return "" if count == 0 else letter if count == 1 else f"{letter}*{count}"


def _data_parallel(s: Subject) -> Options:
    data, result = s.plan.data_parallel, Options()
    if data.zero:
        result["--use-distributed-optimizer"] = FLAG
    if data.zero in SHARDING:
        result |= {
            "--use-megatron-fsdp": FLAG,
            "--data-parallel-sharding-strategy": SHARDING[data.zero],
            "--ckpt-format": "fsdp_dtensor",
            "--no-gradient-accumulation-fusion": FLAG,
        }
    if data.hsdp > 1:
        result["--num-distributed-optimizer-instances"] = data.hsdp
    if data.overlap_grad_reduce:
        result["--overlap-grad-reduce"] = FLAG
        if data.overlap_param_gather and data.zero:
            result["--overlap-param-gather"] = FLAG
    if s.chose("bucket_bytes") and data.zero not in SHARDING:
        size = DTYPE_BYTES[s.plan.numerics.grad_dtype or "fp32"]
        result["--ddp-bucket-size"] = int(float(data.bucket_bytes or 0) // size)
    return result


def _recompute(s: Subject) -> Options:
    kind = s.plan.memory.recompute
    if kind == "none":
        return {}
    if modules := _modules(s):
        return {"--recompute-granularity": "selective", "--recompute-modules": modules}
    length = 1 if kind == "full" else recompute.segment_layers(kind)
    if length is not None:
        return {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": length}
    first = s.recomputed_per_stage
    return {"--recompute-granularity": "full", "--recompute-method": "block", "--recompute-num-layers": first or 1}


def _modules(s: Subject) -> list[str]:
    """The modules that are recomputed one by one; none if whole layers are recomputed, or nothing."""
    kind = s.plan.memory.recompute
    return ["core_attn"] if kind == "selective" else list(module_names(kind))


def _numerics(s: Subject) -> Options:
    numerics, result = s.plan.numerics, Options()
    if numerics.precision in ("bf16", *FP8_RECIPES):
        result["--bf16"] = FLAG
    if numerics.precision == "fp16":
        result["--fp16"] = FLAG
    if numerics.precision in FP8_RECIPES:
        form, recipe = FP8_RECIPES[numerics.precision]
        result |= {"--fp8-format": form, "--fp8-recipe": recipe} | weight_options(s)
    low = numerics.grad_dtype == "bf16"
    if numerics.precision != "fp32" and not (low and numerics.precision == "fp16"):  # which is low by itself
        result["--grad-reduce-in-bf16" if low else "--accumulate-allreduce-grads-in-fp32"] = FLAG
    result["--optimizer"] = OPTIMIZERS[numerics.optimizer]
    if numerics.master_dtype in NARROW_MASTERS:
        result["--use-precision-aware-optimizer"] = FLAG
    if numerics.master_dtype == "fp16":
        result["--main-params-dtype"] = "fp16"
    if (momentum := placeholders.momentum(numerics.optimizer)) is not None:
        result["--sgd-momentum"] = momentum
    return result


def _training(s: Subject) -> Options:
    return {
        "--micro-batch-size": s.plan.micro_batch,
        "--global-batch-size": s.training.global_batch,
        "--seq-length": s.training.seq_len,
        "--train-iters": placeholders.STEPS,
        "--lr": placeholders.LEARNING_RATE,
        "--mock-data": FLAG,
        "--tokenizer-type": "NullTokenizer",
        "--transformer-impl": "transformer_engine",
        "--attention-backend": "fused" if has_sinks(s) else BACKENDS[s.plan.execution.attention_kernel],
        **({} if s.plan.execution.fused_kernels == UNFUSED_LOSS else {LOSS_FUSION: FLAG, LOSS_KERNEL: "te"}),
        "--log-interval": 1,
        "--eval-iters": 0,
        "--distributed-timeout-minutes": 10,
        "--log-throughput": FLAG,
        "--make-vocab-size-divisible-by": 128,
    }


def environment(s: Subject) -> dict[str, str]:
    """Environment variables that the layout needs."""
    if s.plan.data_parallel.zero >= 2:
        return {}  # Megatron-FSDP does not allow a single connection
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if s.plan.mesh.tp * s.plan.mesh.cp > 1 else {}


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The command with one argument per line, and its launchers."""
    arguments = [words(name, value) for name, value in given.items()]
    script = SCRIPT if s.graph.has_mixers else "pretrain_gpt.py"
    return launchers(s, [f'"${{MEGATRON:?set MEGATRON to a checkout of Megatron-LM}}/{script}"', *arguments],
                     environment(s))  # fmt: skip


def notes(s: Subject) -> Iterator[str]:
    """Notes on the arguments for the user."""
    yield "Mock data and a null tokenizer: replace `--mock-data` and `--tokenizer-type` with your own."
    yield "Learning rate and number of iterations are placeholders: a plan does not say them."
    if recompute.period(s.plan.memory.recompute):
        yield (f"{s.plan.memory.recompute} becomes `block`: as many layers a stage are recomputed, but the first ones.")
    if s.plan.numerics.precision == "fp8":
        yield "fp8 is the hybrid format with delayed scaling; `--fp8-recipe` has others."


MEGATRON = Target(
    name="megatron",
    description="Megatron-LM pretrain_gpt.py and pretrain_hybrid.py: command-line arguments",
    version="Megatron-LM / megatron-core 0.19.2 (megatron/training/arguments.py)",
    losses=losses,
    options=options,
    files=files,
    notes=notes,
    how="Set `MEGATRON` to a checkout of Megatron-LM.",
    features=(
        "attention_kernel",
        "dispatcher",
        "empty_cache_steps",
        "gradient_accumulation_fusion",
        "expandable_segments",
        "fused_kernels",
        "fused_permutation",
        "graphs",
        "master_dtype",
        "quantized_weights",
        "segments",
        "shared_expert_overlap",
    ),
    numerics=NUMERICS,
)
