"""Workers of the test of parameter servers: replicas and servers on ranks of their own against one process.

Run on every rank as ``servers_job.py CASES.json OUT.json``. What replicas pushed in which order is taken from server 0,
and one process does the same again: each gradient at the parameters that its replica had pulled.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import matrix_job
import torch
import torch.distributed as dist
from matrix_job import LEARNING, TRAINING, batch, build, whole_parameters

from simpar.architectures.hf_config import read
from simpar.architectures.training import Training
from simpar.plan.plan import Plan
from simpar.runtime.model import Dtypes
from simpar.runtime.prepare import prepare
from simpar.runtime.servers import Terms, serve

STEPS = 5
FP64 = Dtypes(*(3 * [torch.float64]))
TIMEOUT_S = 60.0


def terms_of(case: dict) -> Terms:
    """What servers and replicas of a case agree on."""
    values = {key: value for key, value in case.items() if key not in ("slow", "model")}
    graph = read(matrix_job.MODELS[case.get("model", "llama")], "tiny")
    plan = prepare(Plan(**values), graph, TRAINING, case["dp"]).plan
    return Terms(plan, LEARNING, FP64, case["dp"], STEPS, TIMEOUT_S)


def train(case: dict, rank: int) -> dict[str, torch.Tensor]:
    """Be a replica: STEPS local steps on its part of every batch; rank 0 is slow where the case says so."""
    values = {key: value for key, value in case.items() if key != "slow"}
    engine = build(values, rank, case["dp"], "fp64")
    for step in range(STEPS):
        if rank == 0:
            time.sleep(case.get("slow", 0.0))
        tokens, targets = (part.chunk(case["dp"])[rank] for part in batch(step))
        engine.step(tokens, targets)
    return whole_parameters(engine)


def again(case: dict, updates: list[list[int]]) -> dict[str, torch.Tensor]:
    """One process that applies the same updates in the same order, each computed where its replica had read."""
    replicas, whole = case["dp"], TRAINING.global_batch
    matrix_job.TRAINING = Training(seq_len=TRAINING.seq_len, global_batch=whole // replicas)
    alone = {key: case[key] for key in ("model", "optimizer", "precision") if key in case}
    engine = build({**alone, "micro_batch": whole // replicas}, 0, 1, "fp64")
    matrix_job.TRAINING = TRAINING
    local = [each.local.detach() for each in engine.owned]
    versions = [[each.clone() for each in local]]
    for replica, step, staleness in updates:
        load(local, versions[len(versions) - 1 - staleness])
        tokens, targets = (part.chunk(replicas)[replica] for part in batch(step))
        engine.forward_backward(tokens, targets)
        load(local, versions[-1])
        engine.update.step(engine.clock)
        versions.append([each.clone() for each in local])
    return whole_parameters(engine)


def load(into, values) -> None:
    """Copy tensors over."""
    for each, value in zip(into, values, strict=True):
        each.copy_(value)


def together(case: dict) -> dict[str, torch.Tensor]:
    """One process on whole batches."""
    alone = {key: case[key] for key in ("model", "optimizer", "precision") if key in case}
    engine = build({**alone, "micro_batch": TRAINING.global_batch}, 0, 1, "fp64")
    for step in range(STEPS):
        engine.step(*batch(step))
    return whole_parameters(engine)


def compare(case: dict, rank: int, world: int) -> dict:
    """The difference between the servers' parameters and those of one process, and what the servers saw."""
    replicas, found, seen = case["dp"], None, None
    used = replicas + case["servers"]
    if rank < replicas:
        found = train(case, rank)
    elif rank < used:
        server = serve(terms_of(case))
        seen = (server.parameter.detach(), server.updates, server.ahead, server.version)
    every: list = [None] * world
    dist.all_gather_object(every, seen)
    kept = torch.cat([each[0] for each in every[replicas:used]])
    _, updates, ahead, version = every[replicas]
    expected = kept
    if rank == 0:
        whole = together(case) if case["sync"] == "bsp" else again(case, updates)
        expected = torch.cat([value.reshape(-1) for value in whole.values()])
    mine = torch.cat([value.reshape(-1) for value in found.values()]) if found is not None else kept
    apart = (mine - kept).abs().max()
    dist.all_reduce(apart, op=dist.ReduceOp.MAX)
    return {
        "case": case, "difference": float((kept - expected).abs().max()), "replicas_apart": float(apart),
        "ahead": ahead, "updates": version, "stale": sum(staleness for _, _, staleness in updates),
    }  # fmt: skip


def main() -> None:
    """Run the cases of a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = json.loads(Path(sys.argv[1]).read_text())
    results = [compare(case, dist.get_rank(), dist.get_world_size()) for case in cases]
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
