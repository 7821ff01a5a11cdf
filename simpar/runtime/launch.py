"""Starts the workers of a job with torchrun, follows them, and never leaves one behind. No torch here."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime.failures import (
    RECORDER_PREFIX,
    OutOfMemory,
    RankFailure,
    WorkerFailure,
    count_memory_kills,
    describe_recordings,
    ended_by_signal,
    failure_by_signal,
    is_lost_peer,
    of_torchrun,
)  # fmt: skip
from simpar.runtime.job import LOG, Machine, RunJob, read_log
from simpar.runtime.worker import PORT, die_with_parent, listen
from simpar.units import KIB

GRACE_S = 10.0
TORCHRUN = "torchrun.log"
POLL_S = 0.1
LOCALHOST = "127.0.0.1"
LEAST_SPACE_BYTES = 64 * KIB
MIN_TORCH = (2, 11)
ORDER = ("user", "memory", "crash")
RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
"""NCCL's flight recorder: keeps the last collectives of every rank, and writes them when one times out."""


SHORT_WAIT = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
"""How long threads of a product wait in a loop for each other before they sleep: turns in GNU's OpenMP, ms in LLVM's.

GNU's takes 1,000 turns by itself where a process has more threads than cores [libgomp, env.c], else 300,000: it does
not see other processes, and threads that wait for one without a core keep it from getting one (a step of 12.6 s with
two ranks of two threads on two busy cores, 0.2 to 0.6 s with 1,000 turns).
"""


@dataclass(frozen=True)
class NodeRendezvous:
    """The index of this node among several, and their rendezvous; by default one node that talks only to itself."""

    count: int = 1
    rank: int = 0
    rendezvous: str | None = None

    def check(self) -> None:
        """Raise UserError if the nodes could not rendezvous."""
        if self.count < 1:
            raise UserError(f"--nnodes {self.count}: allowed: 1 or more")
        if not 0 <= self.rank < self.count:
            raise UserError(f"--node-rank {self.rank} of {self.count} nodes: allowed: 0 to {self.count - 1}")
        host, _, port = (self.rendezvous or "").rpartition(":")
        if self.count > 1 and not (host and port.isdecimal()):
            raise UserError(
                f"--rendezvous {self.rendezvous}: {self.count} nodes meet at a port of one; allowed: HOST:PORT"
            )


def require_torch() -> None:
    """Raise UserError unless a torch that is new enough is installed; it is not imported."""
    from importlib import metadata

    if importlib.util.find_spec("torch") is None:
        raise UserError("torch is not installed; a real run needs it: pip install '.[torch]'")
    version = metadata.version("torch")
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    if numbers < MIN_TORCH:
        raise UserError(f"torch {version}: allowed: {MIN_TORCH[0]}.{MIN_TORCH[1]} or newer")


@dataclass(frozen=True)
class RankLauncher:
    """What torchrun starts on every rank: a module with one argument, and results in ``folder``."""

    module: str
    argument: Path
    folder: Path
    machine: Machine


def launch(
    job: RunJob,
    processes: int,
    *,
    nodes: NodeRendezvous | None = None,
    max_restarts: int = 0,
    follow: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Run a job on ``processes`` ranks of this node; returns the measurements of each, by rank.

    ``follow`` is called while they run. Raises UserError if the user can fix the cause, WorkerFailure otherwise.
    """
    require_torch()
    where = nodes or NodeRendezvous()
    if job.machine.port is not None and where.rank == 0:
        listen(LOCALHOST if where.count == 1 else "0.0.0.0", job.machine.port).close()
    Path(job.folder).mkdir(parents=True, exist_ok=True)
    workers = RankLauncher("simpar.runtime.worker", job.save(), Path(job.folder), job.machine)
    return start(workers, processes, nodes=where, max_restarts=max_restarts, follow=follow)


def start(
    workers: RankLauncher,
    processes: int,
    *,
    nodes: NodeRendezvous | None = None,
    max_restarts: int = 0,
    follow: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Run workers on ``processes`` ranks of this node, as :func:`launch` does with a job."""
    require_torch()
    where, folder = nodes or NodeRendezvous(), workers.folder
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in (f"{RECORDER_PREFIX}*", "rank*.json", "failed*.json", "rank*.pid", PORT.format(attempt="*")):
        for old in folder.glob(pattern):
            old.unlink()
    begun, kills = time.time(), count_memory_kills()
    command = torchrun(workers, processes, where, max_restarts)
    with _running(command, _environment(workers, where), folder / TORCHRUN) as process:
        while process.poll() is None:
            time.sleep(POLL_S)
            if follow is not None:
                follow()
    if process.returncode:
        _raise_signal(folder, begun, kills)
    _raise_failure(folder, process.returncode, where.count)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"), key=_number)]


def torchrun(workers: RankLauncher, processes: int, nodes: NodeRendezvous, max_restarts: int) -> list[str]:
    """The command line of torch.distributed.run. A single node rendezvouses through a file and opens no port."""
    folder, patience_s = workers.folder, int(workers.machine.timeout_s)
    timeout = f"join_timeout={patience_s},timeout={patience_s}"
    if nodes.count == 1:
        meeting = folder / f"rendezvous-{os.getpid()}-{time.monotonic_ns()}"
        rendezvous = ["--rdzv-endpoint", str(meeting), "--rdzv-conf", f"store_type=file,{timeout}"]
        rendezvous += ["--local-addr", LOCALHOST]
    else:
        rendezvous = ["--rdzv-endpoint", str(nodes.rendezvous), "--rdzv-conf", timeout]
        rendezvous += ["--node-rank", str(nodes.rank)]
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", str(nodes.count), "--nproc-per-node", str(processes), "--max-restarts", str(max_restarts),
        "--rdzv-backend", "c10d", "--rdzv-id", "simpar", *rendezvous,
        "--monitor-interval", "0.1", "--log-dir", str(folder / "logs"), "--redirects", "3",
        "--module", workers.module, str(workers.argument),
    ]  # fmt: skip


def _environment(workers: RankLauncher, nodes: NodeRendezvous) -> dict[str, str]:
    result = {**os.environ, "OMP_NUM_THREADS": str(workers.machine.threads)}
    if workers.machine.device == "cpu" and "OMP_WAIT_POLICY" not in result:
        for name, value in SHORT_WAIT.items():
            result.setdefault(name, value)
    result["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # otherwise the agent would listen on every interface
    path = [os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    result["PYTHONPATH"] = os.pathsep.join(path)
    if workers.machine.device == "cuda":
        if (devices := workers.machine.devices) is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            known = [visible[each] if each < len(visible) and visible[each] else str(each) for each in devices]
            result["CUDA_VISIBLE_DEVICES"] = ",".join(known)
        for name, value in RECORDER.items():
            result.setdefault(name, value)
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            result.setdefault(name, str(workers.folder / RECORDER_PREFIX))
    if nodes.count == 1 and sys.platform == "linux":
        for library in ("GLOO", "NCCL"):
            result.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    return result


@contextmanager
def _running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run torchrun in a session of its own; whatever happens here, it and its workers end with this context."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=die_with_parent,
        )  # fmt: skip
    try:
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its session: first with a request, then by force."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _raise_signal(folder: Path, begun: float, kills_before: int | None) -> None:
    """Raise RankFailure if a rank was ended by a signal, and no rank left a reason of its own.

    What the others say then is that they lost a peer. ``begun`` is when the ranks were started, in seconds since 1970.
    """
    ended = ended_by_signal((folder / TORCHRUN).read_text(encoding="utf-8", errors="replace"))
    reasons = _reasons(folder)
    if not ended or any(reason["kind"] != "crash" or not is_lost_peer(reason["message"]) for reason in reasons):
        return
    log, kills = folder / LOG, count_memory_kills()
    steps = len(read_log(log)) if log.exists() and log.stat().st_mtime >= begun else 0
    counted = None if kills is None or kills_before is None else kills - kills_before
    raise failure_by_signal(ended, steps, counted, f"(logs: {folder / 'logs'})")


def _reasons(folder: Path) -> list[dict[str, Any]]:
    """The reasons that ranks left, the likeliest cause first: lost peers are consequences."""
    reasons = [json.loads(path.read_text()) for path in folder.glob("failed*.json")]
    return sorted(reasons, key=lambda each: (ORDER.index(each["kind"]), is_lost_peer(each["message"]), each["time"]))


def _raise_failure(folder: Path, code: int, nodes: int) -> None:
    """Raise the cause of a failure: user errors first, then memory, otherwise the earliest failure."""
    if code == 0:
        return
    for reason in _reasons(folder):
        rank, message, logs = reason["rank"], reason["message"], f"(logs: {folder / 'logs'})"
        if reason["kind"] == "user":
            raise UserError(message)
        if reason["kind"] == "memory":
            raise OutOfMemory(rank, f"{message} {logs}")
        elsewhere = "; a rank of another node ended first, of which its command says why" if nodes > 1 else ""
        lost = elsewhere if is_lost_peer(message) else ""
        raise RankFailure(rank, f"{message}{lost} {logs}{describe_recordings(folder)}")
    if shutil.disk_usage(folder).free < LEAST_SPACE_BYTES:  # ranks had no space to record a reason
        raise WorkerFailure(f"{folder}: no space is left on its device; allowed: a folder with space")
    log = folder / TORCHRUN
    said = of_torchrun(log.read_text(encoding="utf-8", errors="replace"), log, nodes)
    raise WorkerFailure(f"torchrun ended with {code}: {said}{describe_recordings(folder)}")


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("rank"))
