"""Workers of the equality test: many layouts, one after the other, in one group of processes.

Run on every rank as ``matrix_job.py CASES.json OUT.json``; every case is trained for a few steps in double precision
and compared with one process on the same data, "short" ones in fewer layers and steps. Rank 0 writes the differences.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from simpar.architectures.hf_config import read
from simpar.architectures.training import Training
from simpar.errors import UserError
from simpar.layout.layout import Layout
from simpar.plan.plan import Plan
from simpar.runtime import experts
from simpar.runtime.assemble import make_engine
from simpar.runtime.checkpoint import Contents, Store
from simpar.runtime.decoder import OUTPUT, TABLE, Recompute
from simpar.runtime.engine import average_loss
from simpar.runtime.job import Learning
from simpar.runtime.model import Blueprint, Dtypes, place_of
from simpar.runtime.offload import share_on_host
from simpar.runtime.prediction import next_tokens
from simpar.runtime.prepare import prepare
from simpar.runtime.ranks import ranks_of
from simpar.runtime.states import finish_loading, named_tensors

MODELS = {
    "llama": {
        "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    "gpt2": {"model_type": "gpt2", "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
        "vocab_size": 97, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "window": {
        "model_type": "mistral", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "sliding_window": 5,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    },
    "deep": {
        "model_type": "llama", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4,
    },
}  # fmt: skip
MODELS["mixtral"] = {
    "model_type": "mixtral", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
MODELS["latent"] = {
    "model_type": "deepseek_v2", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 2,
}  # fmt: skip
MODELS["shared"] = {
    "model_type": "qwen2_moe", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
}  # fmt: skip
MODELS["sinks"] = {
    "model_type": "gpt_oss", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 8, "sliding_window": 5,
    "num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip
MODELS["further"] = {**MODELS["latent"], "model_type": "deepseek_v3", "num_nextn_predict_layers": 2}
MODELS["hybrid"] = {
    "model_type": "nemotron_h", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "hybrid_override_pattern": "M-*M", "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_num_heads": 8,
    "mamba_head_dim": 4, "ssm_state_size": 6, "n_groups": 2, "chunk_size": 5,
}  # fmt: skip
MODELS["falcon"] = {
    "model_type": "falcon_h1", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_d_ssm": 32, "mamba_n_heads": 8, "mamba_d_head": 4,
    "mamba_d_state": 6, "mamba_n_groups": 2, "mamba_chunk_size": 5, "mamba_rms_norm": False,
}  # fmt: skip
MODELS["hybrid experts"] = {
    **MODELS["hybrid"], "hybrid_override_pattern": "ME*E", "n_routed_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "moe_latent_size": 12, "moe_shared_expert_intermediate_size": 24,
}  # fmt: skip
MODELS["mixers and experts"] = {
    "model_type": "granitemoehybrid", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 24,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "mamba_n_heads": 8,
    "mamba_d_state": 6, "mamba_n_groups": 2, "mamba_chunk_size": 5, "num_local_experts": 8, "num_experts_per_tok": 2,
    "shared_intermediate_size": 24, "layer_types": ["linear_attention", "full_attention"] * 2,
}  # fmt: skip
SHORT = {"num_hidden_layers": 2, "n_layer": 2, "first_k_dense_replace": 1}  # of models of four layers
TRAINING = Training(seq_len=16, global_batch=8)
STEPS, FEW = 3, 2
KEPT = (
    "model",
    "short",
    "precision",
    "optimizer",
    "learning",
    "lora_rank",
    "lora_targets",
    "frozen_layers",
    "capacity_factor",
)  # what a comparison must not change
CHOOSE, DROPPED = experts.choose, []
LEARNING = Learning(learning_rate=1e-2)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step: tokens and next tokens, int64[global_batch, seq]."""
    samples = batch_of_samples(step)
    return samples[:, :-1], samples[:, 1:]


def batch_of_samples(step: int) -> torch.Tensor:
    """The global batch of a step: int64[global_batch, seq + 1]."""
    generator = torch.Generator().manual_seed(100 + step)
    start = torch.randint(0, 96, (TRAINING.global_batch, 1), generator=generator)
    return (start + 5 * torch.arange(TRAINING.seq_len + 1)) % 96


def build(values: dict, rank: int, world: int, dtype: str):
    """The engine of a case."""
    values = dict(values)
    config = MODELS[values.pop("model", "llama")]
    short = SHORT if values.pop("short", False) else {}
    graph = read({key: short.get(key, value) for key, value in config.items()}, "tiny")
    learning = LEARNING.model_copy(update=values.pop("learning", {}))
    compiled = values.pop("compiled", False)
    prepared = prepare(Plan(**values), graph, TRAINING, world)
    plan = prepared.plan
    dtypes = Dtypes.of(plan) if dtype == "plan" else Dtypes(*(3 * [torch.float64]))
    ranks = ranks_of(plan, rank, torch.device("cpu"), prepared.strategy.replicas)
    recompute = Recompute(plan.memory.recompute, prepared.selective)
    blueprint = Blueprint(graph, plan, prepared.strategy, dtypes, recompute, compiled=compiled)
    with mock.patch.object(nn.Module, "compile", traced):
        return make_engine(blueprint, TRAINING, learning, prepared.schedule, ranks)


def traced(module) -> None:
    """Compile a module for a backend that runs the graphs of both passes as they are: no compiler of C++ is asked."""
    module._compiled_call_impl = torch.compile(module._call_impl, backend="aot_eager")


def steps(engine, first: int, last: int) -> list[float]:
    """Losses of some steps."""
    ranks, losses = engine.ranks, []
    for step in range(first, last):
        samples = batch_of_samples(step).chunk(ranks.mesh.dp)[ranks.data_rank]
        here = place_of(Layout.of(engine.plan), ranks).positions(TRAINING.seq_len // ranks.mesh.cp, samples.device)
        further = max(len(getattr(stage, "further", ())) for stage in engine.stages.values())
        loss, _ = engine.step(samples[:, here], next_tokens(samples, here, further))
        losses.append(average_loss(loss, ranks, samples.device))
    return losses


def whole_parameters(engine) -> dict[str, torch.Tensor]:
    """Whole parameters by name (this rank's stages)."""
    found = {}
    for owned in engine.owned:
        value = owned.parameter.detach()
        found[owned.name] = value.full_tensor() if isinstance(value, DTensor) else value.clone()
    return found


def delay(engine, ratio: float) -> None:
    """Let one process update a share of the parameters with the gradients of the step before, as a plan may say."""
    (optimizer,) = engine.update.optimizers
    away = share_on_host([each.local.numel() for each in engine.owned], ratio)
    late = [each.local for each, there in zip(engine.owned, away, strict=True) if there]
    assert late, "something is late"
    update, held = optimizer.step, {}

    def step() -> None:
        made = {each: each.grad.clone() for each in late}
        for each in late:
            each.grad = held.get(each)
        update()
        held.update(made)

    optimizer.step = step


class Trained(NamedTuple):
    """Losses, parameters by name, and how far the farthest of them moved, of one training."""

    losses: list[float]
    parameters: dict[str, torch.Tensor]
    moved: float

    @classmethod
    def of(cls, losses: list[float], before: dict[str, torch.Tensor], engine) -> Trained:
        """An engine's, whose parameters were others ``before``."""
        found = whole_parameters(engine)
        changes = (float((value - before[name]).abs().max()) for name, value in found.items() if name in before)
        return cls(losses, found, max(changes, default=0.0))


def train(values: dict, rank: int, world: int, dtype: str) -> Trained:
    """Losses and parameters of a case; with "then", another layout goes on from a checkpoint in the middle."""
    values = dict(values)
    then, folder = values.pop("then", None), Path(sys.argv[2]).parent / "checkpoints"
    late = values.pop("late", None)
    engine = build(values, rank, world, dtype)
    before = {name: value.clone() for name, value in whole_parameters(engine).items()}
    if late is not None:
        delay(engine, late)
    away = values.get("offload_optimizer") == "cpu" and "offload_parameters" not in values
    assert bool(engine.update.hosted()) == away, "states are where the plan says"
    assert not values.get("offload_gradients") or engine.update.early, "gradients go where the plan says"
    if then is None:
        return Trained.of(steps(engine, 0, FEW if values.get("short") else STEPS), before, engine)
    losses = steps(engine, 0, 1)
    store = Store.open(folder, keep=1, background=True)
    store.save(named_tensors(engine.update)[0], Contents("tiny", "any", 1))
    losses_of_first = losses + steps(engine, 1, STEPS)  # what is being written must not change any more
    store.wait()
    other = build({**{k: values[k] for k in KEPT if k in values}, **then}, rank, world, dtype)
    path, _ = next(store.sound())
    store.load(path, named_tensors(other.update))
    finish_loading(other.update, 1)
    losses += steps(other, 1, STEPS)
    if then == {k: v for k, v in values.items() if k not in KEPT}:
        same = [torch.equal(a, b) for a, b in zip(*map(leaves, (engine, other)), strict=True)]
        assert losses == losses_of_first, "resuming in the same layout is bit-identical"
        assert all(same), "resuming in the same layout is bit-identical"
    return Trained.of(losses, before, other)


def leaves(engine) -> list[torch.Tensor]:
    """What this rank holds of all parameters."""
    return [owned.local.detach() for owned in engine.owned]


def choose_by_parts(scores, routed, num_experts: int, factor: float, *, parts: int) -> experts.TokenCopies:
    """What ranks choose together that have a part each of every sequence, as one process would."""
    at = torch.arange(scores.shape[0]).view(-1, parts, TRAINING.seq_len // parts)
    orders, slots = [], []
    for part in range(parts):
        tokens = at[:, part].flatten()
        found = CHOOSE(scores[tokens], routed[tokens], num_experts, factor)
        topk, capacity = scores.shape[1], int(found.counts[0])
        orders.append(tokens[found.order // topk] * topk + found.order % topk)
        expert, place = found.slots // capacity, found.slots % capacity
        slots.append((expert * parts + part) * capacity + place)
    DROPPED.append(routed.numel() - sum(map(len, orders)))
    return experts.TokenCopies(torch.cat(orders), found.counts * parts, torch.cat(slots))


@cache
def by_one_process(alone: str, dtype: str) -> Trained:
    """What one process trains, rank 0, for all layouts that are compared with it."""
    found = [train(json.loads(alone), 0, 1, dtype) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def compare(case: dict, rank: int, world: int) -> dict:
    """The largest differences of one case over all ranks, relative to single-process training."""
    dtype = "plan" if case.get("precision", "fp32") == "bf16" else "fp64"
    alone = {k: case[k] for k in KEPT if k in case}
    if case.get("offload_delayed"):
        alone["late"] = case.get("offload_ratio", 1.0)
    started = time.perf_counter()
    if "capacity_factor" in case:  # is of a rank's part of a microbatch
        parts = case.get("cp", 1) * (case.get("tp", 1) if case.get("sequence_parallel") else 1)
        with mock.patch.object(experts, "choose", partial(choose_by_parts, parts=parts)):
            alone |= {"micro_batch": case.get("micro_batch", 1)}
            DROPPED.clear()
            expected = train(alone, 0, 1, dtype)
        assert sum(DROPPED) > 0, "the capacity is one that drops something"
    else:
        expected = by_one_process(json.dumps({**alone, "micro_batch": 4}), dtype)
    try:
        losses, found, _ = train(case, rank, world, dtype)
    except UserError as error:
        return {"case": case, "refused": str(error)}
    loss = max(abs(a - b) for a, b in zip(losses, expected.losses, strict=True))
    twin, alike = {OUTPUT: TABLE}, expected.parameters
    differences = (
        float((value - alike[name if name in alike else twin[name]]).abs().max()) for name, value in found.items()
    )
    parameter = max(differences, default=0.0)  # a rank of frozen layers trains nothing
    worst = torch.tensor([loss, parameter], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    names = [None] * world
    dist.all_gather_object(names, sorted(found))
    assert set(alike) <= {name for each in names for name in each}, "every parameter is on some rank"
    return {
        "case": case, "loss": float(worst[0]), "parameter": float(worst[1]), "losses": losses,
        "moved": expected.moved, "seconds": time.perf_counter() - started,
    }  # fmt: skip


def main() -> None:
    """Run the cases of a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    results = []
    for case in json.loads(Path(sys.argv[1]).read_text()):
        results.append(compare(case, rank, world))
        if rank == 0:
            Path(sys.argv[2]).write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
