"""Workers of the test of rounds: replicas on ranks of their own against the same replicas in one process.

Run on every rank as ``rounds_job.py CASES.json OUT.json``. The one process trains every replica for itself, one after
the other, and averages by hand what the ranks average by all-reduce.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matrix_job
import torch
import torch.distributed as dist
from matrix_job import OUTPUT, TABLE, batch, build, whole_parameters

from simpar.architectures.training import Training

STEPS = 5
WHOLE = matrix_job.TRAINING
BATCHES = [batch(step) for step in range(STEPS)]  # of the whole job, before the sizes change
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9


def together(case: dict, rank: int, world: int) -> dict[str, torch.Tensor]:
    """Parameters of this rank's replica after STEPS, as the runtime trains them."""
    matrix_job.TRAINING = WHOLE
    engine = build(case, rank, world, "fp64")
    replica, replicas = replica_of(engine, case)
    for step in range(STEPS):
        tokens, targets = (part.chunk(engine.ranks.mesh.dp)[engine.ranks.data_rank] for part in BATCHES[step])
        engine.step(tokens, targets)
    assert 0 <= replica < replicas
    return whole_parameters(engine)


def replica_of(engine, case: dict) -> tuple[int, int]:
    """Which replica this rank belongs to, of how many."""
    replicas = case.get("hsdp", engine.ranks.mesh.dp)
    return engine.ranks.data_rank * replicas // engine.ranks.mesh.dp, replicas


def one_by_one(case: dict, replicas: int) -> list[dict[str, torch.Tensor]]:
    """Parameters of every replica after STEPS, each trained by itself and averaged by hand."""
    whole = WHOLE.global_batch
    matrix_job.TRAINING = Training(seq_len=WHOLE.seq_len, global_batch=whole // replicas)
    alone = {key: case[key] for key in ("model", "short", "optimizer", "precision") if key in case}
    engines = [build({**alone, "micro_batch": whole // replicas}, 0, 1, "fp64") for _ in range(replicas)]
    begun = [each.local.detach().clone() for each in engines[0].owned]
    momentum = [torch.zeros_like(each) for each in begun]
    for step in range(STEPS):
        tokens, targets = (part.chunk(replicas) for part in BATCHES[step])
        for engine, inputs, wanted in zip(engines, tokens, targets, strict=True):
            engine.step(inputs, wanted)
        if (step + 1) % case["sync_every"] == 0:
            meet(engines, begun, momentum, outer=case["sync"] == "diloco")
    return [whole_parameters(engine) for engine in engines]


def meet(engines, begun, momentum, *, outer: bool) -> None:
    """Give every engine the mean of all, or what the outer optimizer makes of it."""
    for number, start in enumerate(begun):
        local = [engine.owned[number].local.detach() for engine in engines]
        mean = torch.stack(local).mean(dim=0)
        if outer:
            change = start - mean
            momentum[number] = OUTER_MOMENTUM * momentum[number] + change
            mean = start - OUTER_RATE * (change + OUTER_MOMENTUM * momentum[number])
            begun[number] = mean.clone()
        for each in local:
            each.copy_(mean)


def compare(case: dict, rank: int, world: int) -> dict:
    """The largest difference of any parameter on any rank, and how far the replicas are apart."""
    found = together(case, rank, world)
    replicas = case.get("hsdp", case["dp"])
    matrix_job.TRAINING = WHOLE
    here = build(case, rank, world, "fp64")
    replica, _ = replica_of(here, case)
    expected = one_by_one(case, replicas)
    twin = {OUTPUT: TABLE}
    worst = max(
        float((value - expected[replica][name if name in expected[replica] else twin[name]]).abs().max())
        for name, value in found.items()
    )
    spread = max(float((expected[0][name] - expected[-1][name]).abs().max()) for name in expected[0])
    difference = torch.tensor([worst], dtype=torch.float64)
    dist.all_reduce(difference, op=dist.ReduceOp.MAX)
    return {"case": case, "difference": float(difference), "spread": spread}


def main() -> None:
    """Run the cases of a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = [
        compare(case, dist.get_rank(), dist.get_world_size()) for case in json.loads(Path(sys.argv[1]).read_text())
    ]
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
