"""Train a decoder with plain torch as settings.json says: the script of ``simpar export --to torch``.

It stands alone: torch is all it imports, and simpar copies it as it is. Tensor and sequence parallelism are DTensor's,
ZeRO 2 and 3 are ``fully_shard``, ZeRO 1 is ZeroRedundancyOptimizer, a pipeline runs the action table in schedule.csv
on torch's runtime. Works with NCCL on GPUs and with gloo on CPUs; start it with torchrun.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__).parent
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Linear(nn.Linear):
    """A Linear that computes in the dtype of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape [..., in] to [..., out]."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight.to(x.dtype), bias)


class Norm(nn.Module):
    """RMSNorm, or LayerNorm where there is a bias."""

    def __init__(self, width: int, kind: str, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if kind == "layer" else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dim."""
        weight = self.weight.to(x.dtype)
        if self.bias is None:
            return functional.rms_norm(x, tuple(weight.shape), weight, self.eps)
        return functional.layer_norm(x, tuple(weight.shape), weight, self.bias.to(x.dtype), self.eps)


class Table(nn.Embedding):
    """Token embedding in the dtype of the computation."""

    dtype = torch.float32

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape int64[batch, seq] to [batch, seq, hidden]."""
        return functional.embedding(tokens, self.weight).to(self.dtype)


class Embedding(nn.Module):
    """Tokens, and learned positions where the model has them."""

    def __init__(self, m: dict[str, Any]) -> None:
        super().__init__()
        self.tokens = Table(m["vocab"], m["hidden"])
        self.offset = m["position_offset"]
        self.positions = nn.Parameter(torch.empty(m["positions"], m["hidden"])) if m["positions"] else None

    def forward(self, tokens: Tensor) -> Tensor:
        """Shape int64[batch, seq] to [batch, seq, hidden]."""
        x = self.tokens(tokens)
        if self.positions is None:
            return x
        return x + self.positions[self.offset : self.offset + x.shape[1]].to(x.dtype)


class Attention(nn.Module):
    """Causal attention with grouped keys and values."""

    def __init__(self, m: dict[str, Any]) -> None:
        super().__init__()
        self.head_dim, self.frequencies, self.magnitude = m["head_dim"], m["frequencies"], m["magnitude"]
        heads, kv = m["heads"] * self.head_dim, m["kv_heads"] * self.head_dim
        bias = "qkv" in m["biases"]
        self.query = Linear(m["hidden"], heads, bias=bias)
        self.key = Linear(m["hidden"], kv, bias=bias)
        self.value = Linear(m["hidden"], kv, bias=bias)
        self.output = Linear(heads, m["hidden"], bias="output" in m["biases"])
        self.query_norm = Norm(self.head_dim, "rms", m["eps"]) if m["qk_norm"] else None
        self.key_norm = Norm(self.head_dim, "rms", m["eps"]) if m["qk_norm"] else None

    def forward(self, x: Tensor) -> Tensor:
        """Shape [batch, seq, hidden] in and out."""
        split = [p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.query, self.key, self.value)]
        query, key, value = split
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if self.frequencies:
            query, key = (rotate(x, self.frequencies, self.magnitude) for x in (query, key))
        grouped = query.shape[1] != key.shape[1]
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.output(mixed.transpose(1, 2).flatten(2))


def rotate(x: Tensor, frequencies: list[float], magnitude: float) -> Tensor:
    """Rotary positions of [batch, heads, seq, head_dim]: of the features that turn, one half with the other."""
    frequency = torch.tensor(frequencies, device=x.device, dtype=torch.float32)
    angle = torch.outer(torch.arange(x.shape[2], device=x.device, dtype=torch.float32), frequency)
    cosine, sine = (angle.cos() * magnitude).to(x.dtype), (angle.sin() * magnitude).to(x.dtype)
    first, second = x[..., : 2 * len(frequencies)].chunk(2, dim=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    return torch.cat([*turned, x[..., 2 * len(frequencies) :]], dim=-1)


class MLP(nn.Module):
    """Two products with an activation between them, gated or not."""

    def __init__(self, m: dict[str, Any]) -> None:
        super().__init__()
        bias = "mlp" in m["biases"]
        self.gate: Any = Linear(m["hidden"], m["ffn"], bias=bias) if m["gated"] else None
        self.up = Linear(m["hidden"], m["ffn"], bias=bias)
        self.down = Linear(m["ffn"], m["hidden"], bias=bias)
        known = {
            "silu": functional.silu, "gelu": functional.gelu, "relu": functional.relu,
            "gelu_tanh": partial(functional.gelu, approximate="tanh"),
        }  # fmt: skip
        self.act: Any = known[m["activation"]]

    def forward(self, x: Tensor) -> Tensor:
        """Shape [batch, seq, hidden] in and out."""
        inner = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        return self.down(inner)


class Layer(nn.Module):
    """Attention and MLP, each behind its norm; recomputed in backward where ``again``."""

    def __init__(self, m: dict[str, Any], *, again: bool) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = (Norm(m["hidden"], m["norm"], m["eps"]) for _ in range(2))
        self.attention, self.mlp = Attention(m), MLP(m)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        """Shape [batch, seq, hidden] in and out."""
        return checkpoint(self.run, x, use_reentrant=False) if self.again else self.run(x)

    def run(self, x: Tensor) -> Tensor:
        """The layer itself."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Stage(nn.Module):
    """A range of layers, with the embedding before the first and the head behind the last."""

    def __init__(self, s: dict[str, Any], index: int) -> None:
        super().__init__()
        m, sizes = s["model"], s["stages"]
        start = sum(sizes[:index])
        every = s["recompute_every"]
        self.embedding = Embedding(m) if index == 0 else None
        self.layers = nn.ModuleDict(
            {str(i): Layer(m, again=bool(every) and i % every == 0) for i in range(start, start + sizes[index])}
        )
        last = index == len(sizes) - 1
        self.norm = Norm(m["hidden"], m["norm"], m["eps"]) if last else None
        self.head = Linear(m["hidden"], m["vocab"], bias=False) if last else None
        self.tied = m["tied"] and last and index == 0
        self.init_std = m["init_std"]
        self.reset()

    def reset(self) -> None:
        """The same start in every layout: each matrix is drawn from a generator of its own name."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
                generator = torch.Generator().manual_seed(seed)
                with torch.no_grad():
                    parameter.normal_(0.0, self.init_std, generator=generator)
        self.tie()

    def tie(self) -> None:
        """Let embedding and head share their table."""
        if self.tied and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Tokens or hidden states in, hidden states or logits out."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None or self.norm is None else self.head(self.norm(x))


def shard_tensors(stage: Stage, mesh: Any, *, sequence: bool) -> None:
    """Tensor parallelism: columns, then rows; between them whole sequences, or with ``sequence`` parts of them."""
    residual = Shard(1) if sequence else Replicate()
    gather = PrepareModuleInput(input_layouts=(residual,), desired_input_layouts=(Replicate(),))
    norm = {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()} if sequence else {}
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=residual)
    products = {f"attention.{name}": column for name in ("query", "key", "value")} | {"mlp.up": column}
    products |= {"attention.output": row, "mlp.down": row, "attention": gather, "mlp": gather}
    for layer in stage.layers.values():
        gates = {"mlp.gate": column} if layer.mlp.gate is not None else {}
        parallelize_module(layer, mesh, {**norm, **products, **gates})
    if stage.embedding is not None:
        rows = RowwiseParallel(input_layouts=Replicate(), output_layouts=residual)
        parallelize_module(stage.embedding, mesh, {"tokens": rows})
    if stage.head is not None:
        head = ColwiseParallel(input_layouts=residual, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(stage, mesh, {"head": head, **({"norm": SequenceParallel()} if sequence else {})})
    stage.tie()


def share_out(stage: Stage, s: dict[str, Any], mesh: Any) -> nn.Module:
    """Data parallelism: nothing, DDP, FSDP, or an explicit reduction after the step (then the stage as it is)."""
    if s["zero"] >= 2:
        policy = MixedPrecisionPolicy(DTYPES[s["precision"]], torch.float32)
        options: dict[str, Any] = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": s["reshard"]}
        if s["offload"]:
            options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        for layer in stage.layers.values():
            fully_shard(layer, **options)
        fully_shard(stage, **options)
        return stage
    if s["reduction"] == "ddp":
        return DistributedDataParallel(
            stage, process_group=mesh.get_group(), bucket_cap_mb=s["bucket_mib"], gradient_as_bucket_view=True
        )
    return stage


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that is on this rank."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Update:
    """The optimizer on local tensors, after what is left of the gradient reduction."""

    def __init__(self, stages: list[Stage], s: dict[str, Any], group: Any) -> None:
        self.s, self.group = s, group
        self.parameters = [p for stage in stages for p in stage.parameters()]
        self.locals = [nn.Parameter(local(p).detach()) for p in self.parameters]
        kind = getattr(torch.optim, s["optimizer"])
        options: dict[str, Any] = {
            "AdamW": {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1},
            "SGD": {"lr": 3e-4, "momentum": s["momentum"]},
        }[s["optimizer"]]
        options |= {None: {}, "fused": {"fused": True}, "foreach": {"foreach": True}, "single": {"foreach": False}}[
            s["update_kernels"]
        ]
        self.optimizer: Any = kind(self.locals, **options)
        if s["zero"] == 1 and group is not None:
            self.optimizer = ZeroRedundancyOptimizer(self.locals, optimizer_class=kind, process_group=group, **options)

    def step(self) -> None:
        """Reduce, update, forget."""
        for parameter, own in zip(self.parameters, self.locals, strict=True):
            gradient = parameter.grad
            if isinstance(gradient, DTensor):
                gradient = local(gradient.redistribute(gradient.device_mesh, parameter.placements))
            own.grad = torch.zeros_like(own) if gradient is None else gradient.to(own.dtype)
            if self.s["reduction"] == "explicit" and self.group is not None:
                dist.all_reduce(own.grad, group=self.group)
                own.grad /= dist.get_world_size(self.group)
        self.optimizer.step()
        for parameter, own in zip(self.parameters, self.locals, strict=True):
            parameter.grad = own.grad = None


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of [batch, seq, vocab] and int64[batch, seq]."""
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def batch(s: dict[str, Any], step: int, dp_rank: int, device: Any) -> Tensor:
    """Random tokens of this rank, int64[sequences, seq + 1] of a step: put your own data here."""
    generator = torch.Generator().manual_seed(step)
    sequences = s["microbatches"] * s["micro_batch"]
    shape = (s["mesh"]["dp"] * sequences, s["seq_len"] + 1)
    tokens = torch.randint(s["model"]["vocab"], shape, generator=generator)
    return tokens[dp_rank * sequences : (dp_rank + 1) * sequences].to(device)


def make_pipeline(wrapped: dict[int, nn.Module], s: dict[str, Any], device: Any, group: Any) -> Any:
    """Torch's pipeline runtime, loaded with the action table."""
    m, count, tp = s["model"], s["microbatches"], s["mesh"]["tp"]
    last = len(s["stages"]) - 1
    dtype = DTYPES[s["precision"]]
    rows = s["seq_len"] // tp if s["sequence_parallel"] else s["seq_len"]
    tokens = torch.empty(s["micro_batch"], s["seq_len"], dtype=torch.int64, device="meta")
    hidden = torch.empty(s["micro_batch"], rows, m["hidden"], dtype=dtype, device="meta", requires_grad=True)
    logits = torch.empty(s["micro_batch"], s["seq_len"], m["vocab"], dtype=dtype, device="meta")
    stages = [
        PipelineStage(
            module, index, last + 1, device, group=group,
            input_args=(tokens if index == 0 else hidden,), output_args=(logits if index == last else hidden,),
        )
        for index, module in sorted(wrapped.items())
    ]  # fmt: skip
    runtime = _PipelineScheduleRuntime(
        stages, count, loss_fn=lambda output, target: mean_loss(output, target) / count, scale_grads=False
    )
    with (HERE / "schedule.csv").open(newline="") as file:
        table = {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(csv.reader(file))}
    runtime._prepare_schedule_with_comms(table)
    return runtime


def run_step(wrapped: dict[int, nn.Module], pipeline: Any, s: dict[str, Any], tokens: Tensor) -> float | None:
    """Forward and backward of all microbatches; the loss on ranks that hold the last stage."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    last = len(s["stages"]) - 1
    if pipeline is not None:
        losses: list[Tensor] = []
        first = (inputs,) if 0 in wrapped else ()
        pipeline.step(*first, target=targets if last in wrapped else None, losses=losses, return_outputs=False)
        return float(sum(whole(loss.detach()) for loss in losses)) if losses else None
    model, total = wrapped[0], 0.0
    parts = list(zip(inputs.chunk(s["microbatches"]), targets.chunk(s["microbatches"]), strict=True))
    for number, (x, y) in enumerate(parts):
        quiet = isinstance(model, DistributedDataParallel) and number < len(parts) - 1
        with model.no_sync() if quiet else nullcontext():
            loss = mean_loss(model(x), y) / len(parts)
            loss.backward()
        total += float(whole(loss.detach()))
    return total


def whole(tensor: Tensor) -> Tensor:
    """A tensor without its mesh."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def average(loss: float | None, device: Any) -> float:
    """The mean loss of all ranks that have one."""
    value = torch.tensor([loss or 0.0, float(loss is not None)], device=device)
    dist.all_reduce(value)
    return float(value[0] / value[1])


def build(s: dict[str, Any], device: Any) -> tuple[dict[int, Stage], dict[int, nn.Module], Any]:
    """Stages of this rank, the same as they are called, and the device mesh with axes pp, replicas, shards, tp."""
    m = s["mesh"]
    sizes = {"pp": m["pp"], "replica": s["replicas"], "shard": m["dp"] // s["replicas"], "tp": m["tp"]}
    mesh = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    Table.dtype = DTYPES[s["precision"]]
    rank = mesh.get_local_rank("pp")
    stages = {i: Stage(s, i).to(device) for i, owner in enumerate(s["rank_of_stage"]) if owner == rank}
    for stage in stages.values():
        if m["tp"] > 1:
            shard_tensors(stage, mesh["tp"], sequence=s["sequence_parallel"])
    data = mesh["replica", "shard"] if s["replicas"] > 1 and s["zero"] >= 2 else None
    flat = mesh["replica", "shard"]._flatten("dp") if m["dp"] > 1 else mesh["shard"]
    wrapped = {i: share_out(stage, s, data or flat) if m["dp"] > 1 else stage for i, stage in stages.items()}
    return stages, wrapped, mesh


def main() -> None:
    """Train for STEPS steps and write a line a step."""
    s = json.loads((HERE / "settings.json").read_text())
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    world = math.prod(s["mesh"].values())
    if dist.get_world_size() != world:
        raise SystemExit(f"{dist.get_world_size()} processes; the plan has {world}")
    stages, wrapped, mesh = build(s, device)
    several = s["mesh"]["dp"] > 1
    group = mesh["dp"].get_group() if several else None
    update = Update(list(stages.values()), s, group)
    pipeline = make_pipeline(wrapped, s, device, mesh["pp"].get_group()) if s["mesh"]["pp"] > 1 else None
    dp_rank = dist.get_rank(group) if group is not None else 0
    for step in range(int(os.environ.get("STEPS", "20"))):
        start = time.perf_counter()
        with loss_parallel() if s["mesh"]["tp"] > 1 else nullcontext():
            loss = run_step(wrapped, pipeline, s, batch(s, step, dp_rank, device))
        update.step()
        mean = average(loss, device)
        if dist.get_rank() == 0:
            sys.stdout.write(f"step {step}: loss {mean:.6f}, {time.perf_counter() - start:.3f} s\n")
            sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # A thread of gloo that lets go of a tensor while the interpreter is finalized would abort the process.
    sys.stdout.flush()
    os._exit(0)
