"""Traces that torch makes: one step of a data-parallel layer on two ranks, in processes of their own."""

from __future__ import annotations

import os
import sys


def run(rank: int, world: int, prefix: str, port: str) -> None:
    """One rank: two steps, of which the second is traced."""
    import torch
    import torch.distributed as dist
    from torch.profiler import ExecutionTraceObserver

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 16)

    def step() -> None:
        model(torch.ones(8, 32)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        if rank == 0:
            dist.send(torch.ones(4), 1)
        else:
            dist.recv(torch.ones(4), 0)

    step()
    observer = ExecutionTraceObserver().register_callback(f"{prefix}-{rank}.json")
    observer.start()
    step()
    observer.stop()
    observer.unregister_callback()
    dist.destroy_process_group()


if __name__ == "__main__":
    import torch.multiprocessing as processes

    processes.spawn(run, args=(2, sys.argv[1], sys.argv[2]), nprocs=2)
