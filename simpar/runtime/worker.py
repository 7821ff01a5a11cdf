"""The entry point that torchrun starts on every rank: ``python -m simpar.runtime.worker JOB.json``.

A rank leaves its measurements, or the reason for its failure, as a file in the job's folder, which the launcher reads.
"""

import ctypes
import errno
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from simpar.errors import UserError
from simpar.files import write_atomic
from simpar.runtime.failures import is_lost_peer, is_memory
from simpar.runtime.job import Machine, RunJob

PR_SET_PDEATHSIG = 1
PORT = "port{attempt}"
POLL_S = 0.02
BEHIND_PEERS_S = 2.0
"""How long a rank that lost a peer waits before it ends: torchrun, which looks every 0.1 s, takes the first end that
it sees for the cause, and then ends the others."""
FAILURE_EXIT_CODE = 1
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
BAD_INPUT = 2
RESUME_KEYS = {"plan", "model", "training", "steps", "learning", "selective"}
"""Fields of a job that must be equal on all nodes; folders, data files and devices may differ."""


def main() -> int:
    """Run this rank; returns 0 when done, 2 for an error that the user can fix, 1 for any other."""
    die_with_parent()
    job = RunJob.load(sys.argv[1])
    return serve(Path(job.folder), lambda: run(job))


def serve(folder: Path, work: Callable[[], dict[str, Any]]) -> int:
    """Do a rank's work and leave its measurements, or the reason for its failure, in a folder; returns an exit code."""
    rank = int(os.environ["RANK"])
    write_atomic(folder / f"rank{rank}.pid", f"{os.getpid()}\n")
    for path in folder.glob("failed*.json"):  # a restart does not fix these
        if (kind := json.loads(path.read_text())["kind"]) != "crash":
            return BAD_INPUT if kind == "user" else FAILURE_EXIT_CODE
    try:
        measured = work()
    except UserError as error:
        return fail(folder, rank, "user", str(error), BAD_INPUT)
    except OSError as error:
        if error.errno not in NO_SPACE:
            return _crashed(folder, rank, error)
        where = error.filename or folder
        return fail(folder, rank, "user", f"{where}: {error.strerror}; allowed: a folder with space", BAD_INPUT)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - the reason must reach the user; torch's CheckpointException is one
        return _crashed(folder, rank, error)
    write_atomic(folder / f"rank{rank}.json", json.dumps(measured) + "\n")
    return 0


def _crashed(folder: Path, rank: int, error: BaseException) -> int:
    """Record why a rank failed, if it is nothing that the user can fix, or nothing in the input."""
    traceback.print_exception(error)
    if is_memory(error):
        return fail(folder, rank, "memory", f"out of memory ({first_line(error)[:200]})", FAILURE_EXIT_CODE)
    message = f"{type(error).__name__}: {first_line(error)}"
    code = fail(folder, rank, "crash", message, FAILURE_EXIT_CODE)
    if is_lost_peer(message):
        time.sleep(BEHIND_PEERS_S)
    return code


def run(job: RunJob) -> dict[str, Any]:
    """Join the other ranks, train or serve parameters, and leave. Raises UserError."""
    if job.machine.processes not in (None, int(os.environ["WORLD_SIZE"])):
        raise UserError(
            f"--nproc, --nnodes: this node's command says {job.machine.processes} ranks in all, "
            f"{os.environ['WORLD_SIZE']} have met; allowed: the same on every node"
        )
    from simpar.runtime.servers import serve_job
    from simpar.runtime.train import train

    rank = int(os.environ["RANK"])
    trained = int(os.environ["WORLD_SIZE"]) - int(job.plan.data_parallel.servers or 0)
    nodes = os.environ.get("GROUP_WORLD_SIZE", "1")
    with join_process_group(job.machine, Path(job.folder), on_host=rank >= trained) as device:
        if nodes != "1":
            _agree(job)
        result = train(job, rank, trained, device) if rank < trained else serve_job(job, rank, trained)
        if nodes != "1":
            _bring_home(result, Path(job.folder))
        return result


def _agree(job: RunJob) -> None:
    """Refuse jobs of nodes that were given different commands, on every rank. Raises UserError."""
    import torch.distributed as dist

    here = agreed(job)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, here)
    for rank, there in enumerate(every):
        if unlike := first_difference(here, there):
            name, mine, other = unlike
            raise UserError(
                f"{name}: {mine!r} on the node of rank {dist.get_rank()}, {other!r} on that of rank {rank}; "
                "allowed: the same command on every node, but for --node-rank"
            )


def agreed(job: RunJob) -> dict[str, Any]:
    """What must be equal on all nodes: weights of sources, too, whose paths may differ."""
    same = job.model_dump(mode="json", include=RESUME_KEYS)
    return {**same, "data": {"blend": [each.weight for each in job.data.blend]}}


def first_difference(one: Any, other: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """(dotted name, value here, value there) of the first field that differs; None if two documents agree."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            dotted = f"{name}.{key}" if name else str(key)
            if result := first_difference(one.get(key), other.get(key), dotted):
                return result
        return None
    return None if one == other else (name, one, other)


def _bring_home(values: dict[str, Any], folder: Path) -> None:
    """Leave the measurements of all ranks on every node, because nodes may use different folders.

    torchrun chooses the node of rank 0, so the node that reports needs all of them.
    """
    import torch.distributed as dist

    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    first = dist.get_rank() - local
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, values)
    for other, each in enumerate(every):
        if local == 0 and not first <= other < first + here:
            write_atomic(folder / f"rank{other}.json", json.dumps(each) + "\n")


@contextmanager
def join_process_group(machine: Machine, folder: Path, *, on_host: bool = False) -> Iterator[Any]:
    """A context in which this rank is in the job's process group; yields its device.

    The group uses NCCL between CUDA devices, and gloo otherwise. Ranks of one node find each other through a
    ``folder``. A rank ``on_host`` has no device of its own and uses gloo.
    """
    import torch
    import torch.distributed as dist

    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    accelerated = machine.device == "cuda" and not on_host
    device = torch.device("cuda", local_rank) if accelerated else torch.device("cpu")
    if accelerated:
        torch.cuda.set_device(device)
        # partial sums of a product stay in fp32 and are rounded once
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    backend = "cuda:nccl,cpu:gloo" if machine.device == "cuda" else "gloo"
    world_size, timeout = int(os.environ["WORLD_SIZE"]), timedelta(seconds=machine.timeout_s)
    store = meet(machine, folder, rank, world_size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    yield device
    dist.destroy_process_group()  # not after a failure: peers would fail because of it before the reason is written


def meet(machine: Machine, folder: Path, rank: int, world_size: int) -> Any:
    """The store through which ranks find each other. It listens on the master's address only, not on every interface.

    On one node, rank 0 takes a free port and writes its number to the ``folder``: a port that torchrun found free may
    have been taken by the time a rank has imported torch.
    """
    from torch.distributed import TCPStore

    host, alone = os.environ["MASTER_ADDR"], os.environ.get("GROUP_WORLD_SIZE") == "1"
    left = folder / PORT.format(attempt=os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    free = alone and machine.port is None
    listener = None
    if rank == 0:
        listener = listen(host, 0 if free else machine.port or int(os.environ["MASTER_PORT"]))
        port = int(listener.getsockname()[1])
        if free:
            write_atomic(left, f"{port}\n")
    else:
        port = _read(left, machine.timeout_s) if free else machine.port or int(os.environ["MASTER_PORT"])
    return TCPStore(
        host, port, world_size, is_master=rank == 0, timeout=timedelta(seconds=machine.timeout_s),
        wait_for_workers=False, master_listen_fd=None if listener is None else listener.detach(),
    )  # fmt: skip


def _read(left: Path, timeout_s: float) -> int:
    """The number in a file, once it exists. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not left.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not listen within {timeout_s:g} s")
        time.sleep(POLL_S)
    return int(left.read_text())


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UserError for a port that is taken."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    result = socket.socket(family, kind)
    result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        result.bind(address)
        result.listen(socket.SOMAXCONN)
    except OSError as error:
        result.close()
        raise UserError(
            f"--port {port}: {host}:{port} cannot be used ({error.strerror}); allowed: a free one"
        ) from None
    return result


def die_with_parent() -> None:
    """Ask the kernel to end this process with its parent (Linux; elsewhere the launcher does it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def fail(folder: Path, rank: int, kind: str, message: str, code: int) -> int:
    """Record the reason of a failure for the launcher."""
    reason = {"rank": rank, "kind": kind, "message": message, "time": time.time()}
    write_atomic(folder / f"failed{rank}.json", json.dumps(reason) + "\n")
    return code


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).strip().splitlines() or [""])[0]


def leave(code: int) -> NoReturn:
    """End this process without finalizing the interpreter.

    After a collective a thread of gloo lets go of its tensors, for which it needs the interpreter. If that is being
    finalized, the process aborts, and a rank whose work is done counts as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
