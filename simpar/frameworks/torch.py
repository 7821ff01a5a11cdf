"""Plain torch: a self-contained training script, its settings, the action table and the launchers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from pathlib import Path

from simpar.architectures.details import ROPE_TYPES, Dropout
from simpar.architectures.recompute import is_full, period
from simpar.frameworks import placeholders, rules
from simpar.frameworks.architecture import architecture
from simpar.frameworks.launch import comment, launchers
from simpar.frameworks.subject import Loss, Subject
from simpar.frameworks.target import OF_TORCH, Options, Target, TargetNumerics
from simpar.layout.action_table import schedule_of
from simpar.plan.schedules.actions import B, F, Schedule
from simpar.units import MIB

ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
SCRIPT = Path(__file__).with_name("torch_script.py")


def losses(s: Subject) -> Iterator[Loss]:
    """Losses: what the script cannot do."""
    yield from _model(s)
    yield from rules.no_single_process(s)
    yield from rules.no_axis(s, "cp", "the script has no context parallelism; simpar run may have")
    yield from rules.no_axis(s, "ep", "the script has no expert parallelism; simpar run may have")
    yield from rules.only_rank_orders(s, "tp-cp-dp-pp")
    yield from _pipeline(s)
    if s.plan.memory.recompute == "selective":
        yield Loss("recompute", "selective", "layers are recomputed whole")
    if s.plan.data_parallel.hsdp > 1 and s.plan.data_parallel.zero == 1:
        yield Loss("hsdp", s.plan.data_parallel.hsdp, "ZeroRedundancyOptimizer shards over all ranks")
    yield from rules.offload_of_shards(s)
    yield from rules.chosen_losses(
        s,
        first_bucket_bytes="torch's first bucket is 1 MiB",
        overlap_grad_reduce="DDP and FSDP overlap always",
        overlap_param_gather="FSDP gathers ahead always",
        overlap="tensor parallelism overlaps nothing",
        grad_dtype="gradients are reduced in fp32",
        master_weights="parameters are fp32",
    )


def _model(s: Subject) -> Iterator[Loss]:
    style = architecture(s.graph)
    yield from rules.no_experts(style)
    for name in style.beyond:
        yield Loss("model", name, "the script has no such operator")
    yield from rules.plain_details(s, ropes=ROPE_TYPES, fraction=True)
    if s.graph.details.dropout != Dropout():
        yield Loss("dropout", max(astuple(s.graph.details.dropout)), "the script drops nothing")
    if (
        style.residual != "pre"
        or style.norm not in ("rms", "layer")
        or style.qk_norm == "full"
        or "head" in style.biases
    ):
        yield Loss("model", s.graph.name, "the script has RMSNorm or LayerNorm before attention and MLP")
    if style.positions == "none" or set(style.windows) != {None}:
        yield Loss("model", s.graph.name, "the script has rotary or learned positions and full causal attention")
    if _activation(s) not in ACTIVATIONS.values():
        yield Loss("model", s.graph.details.activation, f"activations are {', '.join(ACTIVATIONS)}")
    tp, kv_heads = s.plan.mesh.tp, s.graph.dims["kv_heads"]
    if tp > 1 and kv_heads % tp:
        yield Loss("tp", tp, f"key-value heads are not copied: a divisor of {kv_heads}")
    if tp > 1 and style.qk_norm:
        yield Loss("tp", tp, "norms of heads are not tensor parallel")
    if tp > 1 and style.positions == "learned":
        yield Loss("tp", tp, "learned positions are not tensor parallel")
    if s.plan.mesh.pp > 1 and s.graph.tied_embeddings:
        yield Loss("pp", s.plan.mesh.pp, "tied embeddings stay on one stage")


def _pipeline(s: Subject) -> Iterator[Loss]:
    if s.plan.mesh.pp == 1:
        return
    table = schedule_of(s.layout, s.training)
    if table.num_mirrored:
        yield Loss("schedule", s.plan.schedule, "a rank holds no second copy of another rank's stages")
    if s.plan.data_parallel.zero >= 2 and s.dp > 1 and _split(table):
        yield Loss("schedule", s.plan.schedule, "fully_shard misses the gradients of a backward split into I and W")


def _split(table: Schedule) -> bool:
    return any(bool(((part.code != F) & (part.code != B)).any()) for part in table.ranks)


def options(s: Subject) -> Options:
    """The settings of the script by dotted name."""
    mesh, data, dims = s.plan.mesh, s.plan.data_parallel, s.graph.dims
    style, rope = architecture(s.graph), s.graph.details.positions.rope
    sizes = ("hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab")
    table = schedule_of(s.layout, s.training) if mesh.pp > 1 else None
    return {
        **{f"model.{name}": dims[name] for name in sizes},
        "model.positions": dims.get("positions", 0) if style.positions == "learned" else 0,
        "model.frequencies": rope.frequencies(dims["head_dim"]).tolist() if style.positions == "rope" else [],
        "model.magnitude": rope.magnitude if style.positions == "rope" else 1.0,
        "model.position_offset": s.graph.details.positions.offset,
        "model.eps": s.graph.details.norm_eps,
        "model.init_std": s.graph.details.init_std,
        "model.norm": style.norm,
        "model.gated": style.gated,
        "model.activation": _activation(s),
        "model.biases": sorted(style.biases),
        "model.qk_norm": bool(style.qk_norm),
        "model.tied": s.graph.tied_embeddings,
        "mesh.tp": mesh.tp,
        "mesh.dp": s.dp,
        "mesh.pp": mesh.pp,
        "stages": list(s.layers),
        "rank_of_stage": list(table.rank_of_stage) if table else [0],
        "seq_len": s.training.seq_len,
        "micro_batch": s.plan.micro_batch,
        "microbatches": s.microbatches,
        "sequence_parallel": bool(s.plan.tensor_parallel.sequence_parallel) and mesh.tp > 1,
        "zero": data.zero,
        "replicas": data.hsdp if data.zero >= 2 else 1,
        "reshard": data.reshards,
        "offload": s.plan.offload.offload_parameters == "cpu",
        "reduction": _reduction(s, table),
        "bucket_mib": max(1, round(float(data.bucket_bytes or 25 * MIB) / MIB)),
        "recompute_every": _every(s.plan.memory.recompute),
        "precision": s.plan.numerics.precision,
        "optimizer": OF_TORCH[s.plan.numerics.optimizer],
        "momentum": placeholders.momentum(s.plan.numerics.optimizer),
        "update_kernels": s.plan.execution.optimizer_kernels,
    }


def _activation(s: Subject) -> str:
    """The script's name of the activation."""
    return ACTIVATIONS.get(s.graph.details.activation, "")


def _reduction(s: Subject, table: Schedule | None) -> str:
    """DDP if possible (plain tensors, one chunk per rank, whole backwards), otherwise one all-reduce per parameter."""
    if s.dp == 1:
        return "none"
    if s.plan.data_parallel.zero >= 2:
        return "fsdp"
    plain = s.plan.mesh.tp == 1 and s.plan.pipeline.vpp == 1 and not (table and _split(table))
    return "ddp" if plain else "explicit"


def _every(recompute: str) -> int:
    """C of every:C, 1 for full, 0 for none."""
    return period(recompute) or int(is_full(recompute))


def files(s: Subject, given: Options) -> Mapping[str, str]:
    """Script, settings, action table and launchers."""
    settings: dict[str, object] = {}
    for key, value in given.items():
        section, _, name = key.rpartition(".")
        part = settings.setdefault(section, {}) if section else settings
        assert isinstance(part, dict), "a section holds names"
        part[name] = value
    result = {
        "train.py": "\n".join(comment(s)) + "\n" + SCRIPT.read_text(encoding="utf-8"),
        "settings.json": json.dumps(settings, indent=2) + "\n",
        **launchers(s, ["train.py"], {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
    }
    if s.plan.mesh.pp > 1:
        table = schedule_of(s.layout, s.training)
        rows = [",".join(_texts(table, rank)) for rank in range(table.num_ranks)]
        result["schedule.csv"] = "\n".join(rows) + "\n"
    return result


def _texts(table: Schedule, rank: int) -> list[str]:
    """One rank's actions; overlapped pairs run one after the other."""
    letters, stages, microbatches = table.letters(rank)
    return [f"{v}{x}{m}" for x, v, m in zip(letters, stages.tolist(), microbatches.tolist(), strict=True)]


def notes(s: Subject) -> Iterator[str]:
    """Notes for the user."""
    yield "`train.py` needs torch 2.11 or newer and nothing else; it feeds random tokens: put your data into `batch`."
    yield "`STEPS` sets the number of steps. For checkpoints, data and measured against predicted use `simpar run`."
    if s.plan.mesh.pp > 1 and s.plan.data_parallel.zero >= 2:
        yield "Under a pipeline torch reduces the shards' gradients once a step, not after every microbatch."


TORCH = Target(
    name="torch",
    description="plain torch: a script that stands alone, with torchrun and SLURM launchers",
    version="torch 2.11 to 2.15",
    losses=losses,
    options=options,
    files=files,
    notes=notes,
    numerics=TargetNumerics(precisions=("bf16", "fp32")),
    features=("offload", "a part", "expandable_segments", "optimizer_kernels"),
)
