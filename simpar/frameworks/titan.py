"""The common part of both generations of torchtitan: their models, what they cannot express, and option names."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simpar.architectures.catalogue import load_model
from simpar.architectures.recompute import module_names
from simpar.frameworks import rules
from simpar.frameworks.architecture import Architecture, architecture
from simpar.frameworks.hub import as_shipped
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import STACKS, Options
from simpar.layout.action_table import schedule_of
from simpar.plan.schedules.actions import LETTERS

ROTATION = "parallelism.context_parallel_rotate_method"
FLAVORS = {
    "llama3": {
        "1B": "llama-3.2-1b", "3B": "llama-3.2-3b", "8B": "llama-3.1-8b", "70B": "llama-3.1-70b",
        "405B": "llama-3.1-405b",
    },
    "qwen3": {
        "0.6B": "qwen3-0.6b", "1.7B": "qwen3-1.7b", "4B": "qwen3-4b", "8B": "qwen3-8b", "14B": "qwen3-14b",
        "32B": "qwen3-32b",
    },
}  # fmt: skip
MIXTURES = {
    "qwen3": {"30B-A3B": "qwen3-30b-a3b", "235B-A22B": "qwen3-235b-a22b"},
    "deepseek_v3": {"16B": "deepseek-v2-lite", "236B": "deepseek-v2", "671B": "deepseek-v3"},
    "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
}
"""Flavors with experts, by the shipped model of the same sizes."""
DENSE = "dense models are Llama 3 and Qwen3 decoders"
RELEASED = ", ".join(f"{folder} {', '.join(flavors)}" for folder, flavors in MIXTURES.items())
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
ROPES: dict[str, tuple[float, dict[str, Any]]] = {"llama3": (500_000.0, LLAMA3), "qwen3": (1_000_000.0, {})}
"""Base and scaling of every flavor of a model folder."""
INIT_STD = 0.02
EPSILONS = {"llama3": 0.00001, "qwen3": 0.000001}
SCHEDULES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "breadth-first": "LoopedBFS",
    "zb-v": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
OPTIMIZERS = {"adamw": "AdamW"}
LOAD_BALANCERS = ("zigzag",)
CSV = "schedule.csv"
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32", "fp8": "bfloat16", "fp8_rowwise": "bfloat16"}
BY_ROW = "rowwise"
"""torchao's word for a scale for every row: the only 8 bits of torchtitan 0.3 (``Float8LinearConverter``)."""


IMPLEMENTATIONS = {"fused": "fused", "foreach": "foreach", "single": "for-loop"}
"""torchtitan's words for the kernels of an update (``optimizer.implementation``)."""
EAGER = "norm"
"""What is fused without torch.compile: torch's own kernel of norms."""


EAGER_STACK = STACKS["torchtitan"][1]


def is_compiled(s: Subject) -> bool:
    """Whether layers are compiled: unless the plan, or its stack where it says nothing, fuses what eager torch does."""
    fused = s.plan.execution.fused_kernels
    return fused == "compiled" or (fused is None and s.plan.stack != EAGER_STACK)


def family(style: Architecture) -> str | None:
    """The model folder of torchtitan that builds such decoders; None if there is none."""
    llama = (
        style.norm == "rms" and style.gated and style.activation == "silu" and not style.biases
        and style.positions == "rope" and style.residual == "pre" and not style.beyond and not style.experts
        and not style.dropout and set(style.windows) == {None}
    )  # fmt: skip
    return {"": "llama3", "head": "qwen3"}.get(style.qk_norm) if llama else None


def flavor(s: Subject, name: str) -> str | None:
    """The flavor of a model folder with exactly the model's sizes; None if there is none."""
    rope = s.graph.details.positions.rope
    if (rope.theta, dict(rope.scaling)) != ROPES[name]:
        return None
    for result, shipped in FLAVORS[name].items():
        graph = load_model(shipped)
        if (graph.dims, graph.layers, graph.tied_embeddings) == (s.graph.dims, s.graph.layers, s.graph.tied_embeddings):
            return result
    return None


def mixture(s: Subject) -> tuple[str, str] | None:
    """The model folder and flavor of a released mixture; None for every other model."""
    for folder, flavors in MIXTURES.items():
        for result, shipped in flavors.items():
            if s.graph.name == shipped and as_shipped(s.graph):
                return folder, result
    return None


def losses(s: Subject, *, named: bool | None = None, methods: Iterable[str] = ("all_gather",)) -> Iterator[Loss]:
    """Losses in both generations of torchtitan; a ``named`` model is complete in its registry.

    ``named`` is None in a generation without released mixtures; ``methods`` are its ones of context parallelism.
    """
    built = None if named else family(architecture(s.graph))
    if built is None and not named:
        mixtures = "mixtures have no flavor here" if named is None else f"mixtures are {RELEASED}"
        yield Loss("model", s.graph.name, mixtures if s.graph.is_mixture else DENSE)
    elif built is not None:
        yield from rules.plain_details(s, ropes=("default", "llama3"), eps=EPSILONS[built])
        if s.graph.details.init_std != INIT_STD:
            yield Loss("initializer_range", s.graph.details.init_std, f"matrices start with {INIT_STD}")
    if module_names(s.plan.memory.recompute):
        yield Loss("recompute", s.plan.memory.recompute, "modules are not chosen by name")
    yield from rules.no_single_process(s)
    yield from rules.only_rank_orders(s, "tp-cp-dp-pp")
    yield from rules.context_parallel(s, methods, LOAD_BALANCERS, hybrid=False)
    yield from _data_parallel(s)
    yield from _pipeline(s)
    yield from rules.offload_of_shards(s)
    if s.plan.mesh.tp > 1 and s.plan.tensor_parallel.overlap and not is_compiled(s):
        yield Loss("overlap", True, "products overlap where layers are compiled only")
    if (fused := s.plan.execution.fused_kernels) not in (None, "compiled", EAGER):
        yield Loss("fused_kernels", fused, f"layers are compiled, or have fused norms: compiled or {EAGER}")
    yield from rules.chosen_losses(
        s,
        bucket_bytes="a block is the unit of communication",
        first_bucket_bytes="a block is the unit of communication",
        grad_dtype="gradients are reduced in fp32",
        master_weights="parameters are fp32",
        overlap_grad_reduce="FSDP overlaps always",
        overlap_param_gather="FSDP overlaps always",
    )


def _data_parallel(s: Subject) -> Iterator[Loss]:
    data, cp = s.plan.data_parallel, s.plan.mesh.cp
    if data.zero == 1 and s.dp * cp > 1:
        yield Loss("zero", 1, "FSDP shards gradients with the optimizer states: zero 2 or 3")
    if data.zero == 0 and cp > 1:
        yield Loss("zero", 0, "context parallelism comes with FSDP over its ranks: zero 2 or 3")
    if data.hsdp > 1 and s.dp % data.hsdp:
        yield Loss("hsdp", data.hsdp, f"replicas are data-parallel ranks: a divisor of {s.dp}")
    else:
        yield from rules.no_lone_shards(s, "DDP")
    if data.kind == "fsdp" and not data.zero and s.chose("kind"):
        yield Loss("kind", "fsdp", "without sharding parameters are replicated")


def _pipeline(s: Subject) -> Iterator[Loss]:
    if s.plan.mesh.pp == 1:
        return
    table = schedule_of(s.layout, s.training)
    if table.num_mirrored:
        yield Loss("schedule", s.plan.schedule, "a rank holds no second copy of another rank's stages")
        return
    split = LETTERS.index("I")
    if s.dp * s.plan.mesh.cp > 1 and any((table.arrays(rank)[0] == split).any() for rank in range(table.num_ranks)):
        yield Loss(
            "schedule", s.plan.schedule,
            "torch's split backward and the gradient hooks of FSDP do not meet: wrong gradients with dp or cp > 1",
        )  # fmt: skip
    if placement(s) is None:
        yield Loss("schedule", s.plan.schedule, "stages are dealt out in a loop or in a V")


def placement(s: Subject) -> str | None:
    """A schedule of torch with the plan's placement of stages; the plan's own schedule if torch has it."""
    if s.plan.schedule in SCHEDULES:
        return SCHEDULES[s.plan.schedule]
    pp, stages = s.plan.mesh.pp, schedule_of(s.layout, s.training).rank_of_stage
    if stages == tuple(range(pp)):
        return "1F1B"
    if stages == tuple(stage % pp for stage in range(len(stages))):
        return "Interleaved1F1B"
    return "ZBVZeroBubble" if stages == (*range(pp), *reversed(range(pp))) else None


def parallelism(s: Subject, head: str) -> Options:
    """Options of the section ``parallelism``; ``head`` is the name of the output projection."""
    mesh, data = s.plan.mesh, s.plan.data_parallel
    sharded = data.zero >= 1
    replicas = int(s.layout.replicas)
    options: Options = {
        "parallelism.data_parallel_replicate_degree": replicas,
        "parallelism.data_parallel_shard_degree": s.dp // replicas,
        "parallelism.tensor_parallel_degree": mesh.tp,
        "parallelism.context_parallel_degree": mesh.cp,
        "parallelism.expert_parallel_degree": mesh.ep,
        "parallelism.pipeline_parallel_degree": mesh.pp,
    }
    if sharded:
        usual = data.zero == 3 and not s.chose("reshard_after_forward")
        when = "default" if usual else "always" if data.reshards else "never"
        options["parallelism.fsdp_reshard_after_forward"] = when
    return options | (_stages(s, head) if mesh.pp > 1 else {})


def _stages(s: Subject, head: str) -> Options:
    result: Options = {
        "parallelism.pipeline_parallel_schedule": placement(s) or "1F1B",
        "parallelism.pipeline_parallel_microbatch_size": s.plan.micro_batch,
        "parallelism.module_fqns_per_model_part": modules(s.layers, head),
    }
    if s.plan.schedule not in SCHEDULES:
        result["parallelism.pipeline_parallel_schedule_csv"] = CSV
    return result


def modules(layers: tuple[int, ...], head: str) -> list[list[str]]:
    """Names of the modules of every virtual stage."""
    parts, first = [], 0
    for size in layers:
        parts.append([f"layers.{layer}" for layer in range(first, first + size)])
        first += size
    parts[0] = ["tok_embeddings", *parts[0]]
    parts[-1] = [*parts[-1], "norm", head]
    return parts


def training(s: Subject) -> Options:
    """Options of the section ``training``; batches count sequences."""
    local = s.plan.micro_batch * (s.microbatches if s.plan.mesh.pp > 1 else 1)
    return {
        "training.local_batch_size": local,
        "training.global_batch_size": s.training.global_batch,
        "training.seq_len": s.training.seq_len,
        "training.steps": 100,
        "training.mixed_precision_param": PRECISIONS[s.plan.numerics.precision],
        "training.mixed_precision_reduce": "float32",
        **({"training.enable_cpu_offload": True} if s.plan.offload.is_used else {}),
    }


def schedule_file(s: Subject) -> Mapping[str, str]:
    """The action table in torch's format, if torch does not have the schedule."""
    if s.plan.mesh.pp == 1 or s.plan.schedule in SCHEDULES:
        return {}
    return {CSV: schedule_of(s.layout, s.training).to_csv()}


def notes(s: Subject) -> Iterator[str]:
    """Notes for users of both generations."""
    yield ("Tokenizer (a byte a token), texts, learning rate and steps are placeholders: a plan does not say them.")
    if s.plan.memory.recompute == "selective":
        yield "selective is per operator, as torchtitan does it: attention and every second matmul are kept."
    if s.plan.data_parallel.zero == 2:
        yield "zero 2 becomes FSDP that keeps gathered parameters until the backward pass."
    if s.plan.numerics.products.is_cast:
        yield f"{s.plan.numerics.precision} needs torchao."
