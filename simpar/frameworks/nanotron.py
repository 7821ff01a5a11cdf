"""nanotron (its git main): the YAML config of ``run_train.py``."""

from collections.abc import Iterator

from simpar.frameworks import nanotron_read, placeholders, rules
from simpar.frameworks.architecture import architecture
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target, TargetNumerics
from simpar.frameworks.yaml_text import config_and_launchers
from simpar.plan.stage_layers import layers_by_cost
from simpar.units import MIB

CONFIG = "nanotron.yaml"
ADAM = "adamW"
OPTIMIZERS = {"adamw": ADAM, "sgd": "sgd", "sgd_momentum": "sgd"}
ENGINES = {ours: theirs for theirs, ours in nanotron_read.ENGINES.items()}
DTYPES = {ours: theirs for theirs, ours in nanotron_read.DTYPES.items()}


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what nanotron has no option for."""
    style = architecture(s.graph)
    llama = (
        style.norm == "rms" and style.gated and style.activation == "silu" and style.positions == "rope"
        and not style.qk_norm and style.residual == "pre" and not style.dropout and not (style.beyond or style.experts)
    )  # fmt: skip
    if not llama or style.biases or set(style.windows) != {None}:
        yield Loss("model", s.graph.name, "dense models are Llama decoders without biases")
    elif s.graph.dims["heads"] * s.graph.dims["head_dim"] != s.graph.dims["hidden"]:
        yield Loss("model", s.graph.name, "a head has hidden / heads features")
    yield from rules.plain_details(s, neighbours=True)
    yield from rules.no_single_process(s)
    yield from rules.no_axis(s, "ep", "dense models have no experts")
    yield from rules.only_rank_orders(s, "tp-cp-dp-pp")
    yield from rules.only_schedules(s, ENGINES)
    numerics = s.plan.numerics
    if numerics.precision == "fp32" and numerics.grad_dtype != "fp32":
        yield Loss("grad_dtype", numerics.grad_dtype, "gradients of parameters in fp32 are fp32")
    yield from rules.no_axis(s, "cp", "the assignment of tokens to ring ranks cannot be set")
    yield from _sharding(s)
    if s.plan.mesh.pp > 1 and s.plan.pipeline.layers not in (None, layers_by_cost(s.graph, s.plan.mesh.pp)):
        yield Loss("layers", s.plan.pipeline.layers, "blocks are spread over stages by their cost")
    if s.plan.memory.recompute not in ("none", "full"):
        yield Loss("recompute", s.plan.memory.recompute, "layers are recomputed whole, all or none")
    yield from rules.chosen_losses(
        s,
        first_bucket_bytes="buckets have one size",
        overlap_grad_reduce="DDP overlaps always",
        overlap_param_gather="parameters are gathered after the optimizer",
        master_weights="fp32 accumulation brings fp32 master weights",
    )


def _sharding(s: Subject) -> Iterator[Loss]:
    data = s.plan.data_parallel
    if data.zero > 1:
        yield Loss("zero", data.zero, "optimizer states are sharded, or nothing: zero 0 or 1")
    yield from rules.no_replicas_of_shards(s)
    if (kernels := s.plan.execution.optimizer_kernels) not in (None, "fused", "foreach"):
        yield Loss("optimizer_kernels", kernels, "torch's Adam runs fused or foreach")
    if s.plan.mesh.tp > 1 and s.plan.tensor_parallel.overlap:
        yield Loss("overlap", True, "products are not cut into chunks: at most a rank's own share runs beside a gather")


def options(s: Subject) -> Options:
    """Options by their dotted names."""
    return {
        "general.project": "simpar",
        "general.run": s.graph.name,
        "general.seed": 42,
        **_parallelism(s),
        **_model(s),
        **_tokens(s),
        **_optimizer(s),
    }


def _parallelism(s: Subject) -> Options:
    mesh, tensor = s.plan.mesh, s.plan.tensor_parallel
    return {
        "parallelism.dp": s.dp,
        "parallelism.pp": mesh.pp,
        "parallelism.tp": mesh.tp,
        "parallelism.context_parallel_size": mesh.cp,
        "parallelism.expert_parallel_size": 1,
        "parallelism.pp_engine": ENGINES.get(s.plan.schedule, "1f1b"),
        "parallelism.tp_mode": "REDUCE_SCATTER" if tensor.sequence_parallel else "ALL_REDUCE",
        f"parallelism.{nanotron_read.ASYNC}": bool(tensor.sequence_parallel),
        "parallelism.recompute_layer": s.plan.memory.recompute == "full",
    }


def _model(s: Subject) -> Options:
    dims, prefix = s.graph.dims, "model.model_config."
    result: Options = {
        f"{prefix}is_llama_config": True,
        f"{prefix}hidden_act": "silu",
        f"{prefix}hidden_size": dims["hidden"],
        f"{prefix}intermediate_size": dims["ffn"],
        f"{prefix}max_position_embeddings": s.training.seq_len,
        f"{prefix}num_attention_heads": dims["heads"],
        f"{prefix}num_key_value_heads": dims["kv_heads"],
        f"{prefix}num_hidden_layers": len(s.graph.layers),
        f"{prefix}rms_norm_eps": s.graph.details.norm_eps,
        f"{prefix}rope_theta": s.graph.details.positions.rope.theta,
        f"{prefix}rope_interleaved": s.graph.details.positions.rope.interleaved,
        f"{prefix}tie_word_embeddings": s.graph.tied_embeddings,
        f"{prefix}vocab_size": dims["vocab"],
        "model.init_method.std": s.graph.details.init_std,
        "model.dtype": DTYPES[s.plan.numerics.precision],
        "model.make_vocab_size_divisible_by": 1,
    }
    if s.chose("bucket_bytes"):
        result["model.ddp_bucket_cap_mb"] = max(1, round(float(s.plan.data_parallel.bucket_bytes or 0) / MIB))
    return result


def _tokens(s: Subject) -> Options:
    return {
        "tokens.sequence_length": s.training.seq_len,
        "tokens.micro_batch_size": s.plan.micro_batch,
        "tokens.batch_accumulation_per_replica": s.microbatches,
        "tokens.train_steps": 100,
        "tokens.val_check_interval": -1,
        "tokenizer.tokenizer_name_or_path": "robot-test/dummy-tokenizer-wordlevel",
        "logging.iteration_step_info_interval": 1,
        "logging.log_level": "info",
        "checkpoints.checkpoints_path": "checkpoints",
        "checkpoints.checkpoint_interval": 1000,
        "data_stages": [
            {"name": "train", "start_training_step": 1, "data": {"dataset": None, "seed": 42, "num_loading_workers": 1}}
        ],
    }


def _optimizer(s: Subject) -> Options:
    numerics, factory = s.plan.numerics, "optimizer.optimizer_factory."
    first, second = placeholders.BETAS
    adam: Options = {
        f"{factory}adam_beta1": first, f"{factory}adam_beta2": second, f"{factory}adam_eps": placeholders.EPS,
        f"{factory}torch_adam_is_fused": s.plan.execution.optimizer_kernels != "foreach",
    }  # fmt: skip
    name = OPTIMIZERS[numerics.optimizer]
    schedule = "optimizer.learning_rate_scheduler."
    return {
        **(adam if name == ADAM else {}),
        f"{factory}name": name,
        "optimizer.zero_stage": min(s.plan.data_parallel.zero, 1),
        "optimizer.weight_decay": placeholders.WEIGHT_DECAY,
        "optimizer.clip_grad": placeholders.CLIPPED_NORM,
        "optimizer.accumulate_grad_in_fp32": numerics.precision != "fp32" and numerics.grad_dtype == "fp32",
        f"{schedule}learning_rate": placeholders.LEARNING_RATE,
        f"{schedule}lr_warmup_steps": 2,
        f"{schedule}lr_warmup_style": "linear",
        f"{schedule}lr_decay_style": "cosine",
        f"{schedule}min_decay_lr": 3e-5,
    }


def notes(s: Subject) -> Iterator[str]:
    """Notes for the user."""
    yield "Written for nanotron's git main: the package on PyPI (0.4) is older and lacks context parallelism."
    yield "Dummy data and tokenizer, learning rate and number of steps are placeholders: a plan does not say them."
    if s.plan.mesh.pp > 1 and s.plan.pipeline.layers is None:
        yield "nanotron spreads layers over stages by cost, not evenly; predict with --stack nanotron."
    if s.plan.mesh.tp > 1 and s.plan.tensor_parallel.sequence_parallel:
        yield f"`{nanotron_read.ASYNC}` is on, which a plan does not say: stack nanotron is fitted to such runs."


NANOTRON = Target(
    name="nanotron",
    description="nanotron: the YAML config of run_train.py",
    version="nanotron git main (src/nanotron/config, 2025)",
    losses=losses,
    options=options,
    files=config_and_launchers(
        CONFIG,
        '"${NANOTRON:?set NANOTRON to a checkout of nanotron}/run_train.py"',
        f"--config-file {CONFIG}",
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    ),
    notes=notes,
    features=("expandable_segments", "optimizer_kernels"),
    numerics=TargetNumerics(OPTIMIZERS),
    how="Set `NANOTRON` to a checkout of nanotron.",
)
