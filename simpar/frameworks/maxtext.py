"""MaxText: a config on top of its base config, for TPUs and GPUs; the compiler shards as the mesh says."""

from collections.abc import Iterator, Mapping
from math import gcd

from simpar.architectures.recompute import of_modules
from simpar.frameworks import placeholders, rules
from simpar.frameworks.hub import as_shipped
from simpar.frameworks.launch import LOCAL_HEAD, SLURM_HEAD, scripts
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import Options, Target, TargetNumerics
from simpar.frameworks.yaml_text import yaml_file

CONFIG = "maxtext.yml"
MODELS = {
    "llama-2-7b": "llama2-7b", "llama-2-13b": "llama2-13b", "llama-2-70b": "llama2-70b", "llama-3-8b": "llama3-8b",
    "llama-3-70b": "llama3-70b", "llama-3.1-8b": "llama3.1-8b", "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-405b": "llama3.1-405b", "mistral-7b": "mistral-7b", "gemma-2-2b": "gemma2-2b", "gemma-2-9b": "gemma2-9b",
    "gemma-2-27b": "gemma2-27b", "qwen3-0.6b": "qwen3-0.6b", "qwen3-4b": "qwen3-4b", "qwen3-8b": "qwen3-8b",
    "qwen3-14b": "qwen3-14b", "qwen3-32b": "qwen3-32b", "gpt3-175b": "gpt3-175b", "qwen3-1.7b": "qwen3-1.7b",
    "qwen2.5-1.5b": "qwen2.5-1.5b", "qwen2.5-7b": "qwen2.5-7b", "qwen2.5-14b": "qwen2.5-14b",
    "gemma-3-4b": "gemma3-4b", "gemma-3-12b": "gemma3-12b", "gemma-3-27b": "gemma3-27b",
    "mixtral-8x7b": "mixtral-8x7b", "mixtral-8x22b": "mixtral-8x22b", "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b", "gpt-oss-20b": "gpt-oss-20b", "gpt-oss-120b": "gpt-oss-120b",
    "deepseek-v2-lite": "deepseek2-16b", "deepseek-v2": "deepseek2-236b", "deepseek-v3": "deepseek3-671b",
    "kimi-k2": "kimi-k2-1t",
}  # fmt: skip
"""MaxText's names in ``configs/models``, by shipped model."""
ROWS = {
    "gpt3-175b": 50304, **dict.fromkeys(("gemma-2-2b", "gemma-2-9b", "gemma-2-27b"), 256128),
    **dict.fromkeys(("gemma-3-4b", "gemma-3-12b", "gemma-3-27b"), 262144),
}  # fmt: skip
"""Vocabulary rows that MaxText's own configs pad or cut; a config file cannot set others."""
MINIMAL = of_modules(["core_attn", "layernorm"])
REMAT = {"full": "full", MINIMAL: "minimal"}
"""What is recomputed: everything, or everything but products with weights."""
OPTIMIZERS = {"adamw": "adamw"}
DTYPES = {"bf16": "bfloat16", "fp32": "float32", "fp8": "bfloat16"}
_START = f"""python -m maxtext.trainers.pre_train.train {CONFIG} "$@"
"""
_LOCAL = LOCAL_HEAD + f"exec {_START}"
_SLURM = (
    SLURM_HEAD
    + f"""export JAX_COORDINATOR_IP="$HEAD_NODE" JAX_COORDINATOR_PORT=29500 NNODES="$SLURM_NNODES"
# shellcheck disable=SC2016 # expanded on every node
exec srun bash -c 'NODE_RANK="$SLURM_NODEID" exec {_START.rstrip()}' maxtext "$@"
"""
)
"""Processes on GPUs find each other by these variables (``initialize_jax_for_gpu`` of ``maxtext.utils.max_utils``)."""


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what the exporter does not express in a MaxText config."""
    name, data = s.graph.name, s.plan.data_parallel
    if name not in MODELS or not as_shipped(s.graph):
        yield Loss("model", name, f"models are named: {', '.join(MODELS)}")
    yield from rules.no_single_process(s)
    yield from rules.only_rank_orders(s, "tp-cp-dp-pp")
    for axis in ("pp", "cp"):
        yield from rules.no_axis(s, axis, "the exporter knows the mesh axes data, fsdp, expert and tensor for it")
    yield from _axes_that_do_not_fit(s)
    yield from rules.no_lone_shards(s, "plain data parallelism")
    if data.zero in (1, 2):
        yield Loss("zero", data.zero, "states and parameters are sharded together (fsdp), or nothing: zero 0 or 3")
    if s.plan.memory.recompute not in REMAT:
        yield Loss("recompute", s.plan.memory.recompute, f"remat_policy is full, or minimal: {MINIMAL}")
    offload = s.plan.offload
    if offload.is_used:
        yield Loss("offload_optimizer", offload.offload_optimizer, "the exporter keeps all in the device's memory")
    by_compiler = "the compiler decides what is sent when"
    yield from rules.chosen_losses(
        s,
        bucket_bytes=by_compiler,
        first_bucket_bytes=by_compiler,
        overlap_grad_reduce=by_compiler,
        overlap_param_gather=by_compiler,
        overlap=by_compiler,
        reshard_after_forward=by_compiler,
        grad_dtype="gradients have the dtype of weights",
        master_weights="weights are fp32",
    )


def slices(s: Subject) -> int:
    """Groups of devices with their own fabric: the nodes for GPUs, 1 for TPUs or without a cluster.

    MaxText requires that the ``ici_`` axes multiply to the devices of a slice, and the ``dcn_`` axes to the number of
    slices.
    """
    return s.nodes if s.device_kind == "gpu" else 1


def _axes(s: Subject) -> tuple[int, int, int, int]:
    """Replicas between slices, shards between slices, replicas and shards within a slice.

    Replicas are placed between slices first.
    """
    count, sharded = slices(s), s.plan.data_parallel.zero == 3
    replicas = s.plan.data_parallel.hsdp if sharded else s.dp
    between = gcd(replicas, count)
    return between, count // between, replicas // between, s.dp // replicas


def _axes_that_do_not_fit(s: Subject) -> Iterator[Loss]:
    """Shards, experts and tensor-parallel ranks that do not fit a whole number of times into a slice."""
    mesh, (_, far, _, shards) = s.plan.mesh, _axes(s)
    if mesh.ep > 1 and mesh.expert_tensor_parallel > 1:
        yield Loss("etp", mesh.expert_tensor_parallel, "experts are whole on a rank of the axis expert")
    if s.graph.is_mixture and mesh.ep == 1 and mesh.expert_tensor_parallel != mesh.tp:
        yield Loss("etp", mesh.expert_tensor_parallel, "without the axis expert, experts are split by the axis tensor")
    if shards % far:
        field, size = ("tp", mesh.tp) if mesh.tp > 1 else ("hsdp", s.plan.data_parallel.hsdp)
        yield Loss(field, size, f"a node is a slice of GPUs: {slices(s)} of them hold shards in equal parts")
    elif (shards // far) % mesh.ep:
        yield Loss("ep", mesh.ep, f"experts are spread inside of a slice, over a divisor of its {shards // far} shards")


def options(s: Subject) -> Options:
    """Options by name: axes within a slice (ici) are the fast ones, replicas of shards lie between slices (dcn)."""
    between, far, replicas, shards = _axes(s)
    tensor = "tensor_sequence" if s.plan.tensor_parallel.sequence_parallel and s.plan.mesh.tp > 1 else "tensor"
    further = sum(kind in s.graph.auxiliary for kind in s.graph.layers)
    values: Options = {
        "base_config": "base.yml",
        "run_name": "simpar",
        "model_name": MODELS.get(s.graph.name, s.graph.name),
        "max_target_length": s.training.seq_len,
        "per_device_batch_size": s.plan.micro_batch / s.plan.mesh.tp,
        "gradient_accumulation_steps": s.microbatches,
        f"ici_{tensor}_parallelism": s.plan.mesh.tp,
        "ici_fsdp_parallelism": shards // far // s.plan.mesh.ep,
        "ici_expert_parallelism": s.plan.mesh.ep,
        "ici_data_parallelism": replicas,
        "dcn_data_parallelism": between,
        "dcn_fsdp_parallelism": far,
        "remat_policy": REMAT.get(s.plan.memory.recompute, "full"),
        "dtype": DTYPES[s.plan.numerics.precision],
        "weight_dtype": "float32",
        "steps": placeholders.STEPS,
        "learning_rate": placeholders.LEARNING_RATE,
        "dataset_type": "synthetic",
        "enable_checkpointing": False,
        "base_output_directory": "output",
    }
    if s.device_kind is not None:
        values["hardware"] = s.device_kind  # MaxText uses the same names
    if further:
        values["mtp_num_layers"] = further
    if (capacity := s.plan.experts.capacity_factor) is not None:
        # sparse products, the default, drop no tokens whatever the capacity
        values |= {"capacity_factor": capacity, "sparse_matmul": False}
    if (pieces := s.plan.execution.loss_chunks) is not None:
        values["num_vocab_tiling"] = pieces
    return values | ({"quantization": "fp8"} if s.plan.numerics.precision == "fp8" else {})


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """The config and the launchers; JAX has one process per host."""
    return {CONFIG: yaml_file(s, given), **scripts(s, _LOCAL, _SLURM)}


def notes(s: Subject) -> Iterator[str]:
    """What to know."""
    yield "Synthetic data, learning rate and number of steps are placeholders: a plan does not say them."
    if s.device_kind is None:
        yield "On TPUs start the same command on every host of the slice; `hardware=gpu` runs it on GPUs."
    if s.device_kind == "tpu":
        yield "Start the same command on every host of the slice."
    if rows := ROWS.get(s.graph.name):
        yield f"MaxText's table of tokens has {rows} rows, the plan's {s.graph.dims['vocab']}."
    if s.nodes > 1 and slices(s) == 1:
        yield "All devices are taken for one slice; on GPUs a node is one: name the cluster of the plan (--hardware)."


MAXTEXT = Target(
    name="maxtext",
    description="MaxText: a config over its base, for TPUs and GPUs",
    version="MaxText 0.2.5 (configs/base.yml, configs/models)",
    losses=losses,
    options=options,
    files=files,
    notes=notes,
    features=("a part", "loss_chunks"),
    numerics=TargetNumerics(OPTIMIZERS, tuple(DTYPES)),
    how="Its `base.yml` is found in the installed package.",
)
