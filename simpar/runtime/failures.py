"""The cause of a failure on a rank, in one line that says what to change. No torch here.

It names the rank and its stage; for want of memory also what was predicted there, and flags that reduce it.
"""

import re
import signal
from pathlib import Path
from typing import Any, Self

from simpar.plan.plan import Plan
from simpar.report.result import Result
from simpar.runtime.container import memory_limit_bytes
from simpar.units import format_bytes

ALLOCATORS = ("can't allocate memory", "out of memory", "not enough memory")
LOST = "RendezvousTimeoutError"
LOST_PEERS = ("connection closed by peer", "connection reset by peer", "broken pipe")
"""What a rank says whose peer has ended: never the cause."""
KILLS = Path("/proc/vmstat")
_ENDED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s*exitcode\s*: -(\d+) \(pid: (\d+)\)")
_RESTARTED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")
_ROOT = "Root Cause"
RECORDER_PREFIX = "nccl-"


class WorkerFailure(RuntimeError):
    """A worker failed for a reason other than the user's input."""


class RankFailure(WorkerFailure):
    """A rank failed by itself, and not because another one did. The ``lost`` ranks were ended from outside."""

    def __init__(self, rank: int, message: str, lost: tuple[int, ...] = ()) -> None:
        super().__init__(f"rank {rank}: {message}")
        self.rank, self.message, self.lost = rank, message, lost

    def told(self, plan: Plan, result: Result | None, *, on_device: bool = False) -> str:  # noqa: ARG002
        """The message for the user: which rank and stage, and why."""
        return f"{self.where(plan)}: {self.message}"

    def where(self, plan: Plan) -> str:
        """The rank and, in a pipeline, its stage."""
        stage, stages = stage_of(plan, self.rank)
        return f"rank {self.rank}" + (f" (stage {stage} of {stages})" if stages > 1 else "")


class OutOfMemory(RankFailure):
    """Memory ran out on a rank, the device's or ``of_host``."""

    def __init__(self, rank: int, message: str, *, of_host: bool = False) -> None:
        super().__init__(rank, message)
        self.of_host = of_host

    @classmethod
    def on_host(cls, rank: int, message: str) -> Self:
        """The operating system ended a rank because the host had no memory left."""
        return cls(rank, message, of_host=True)

    def told(self, plan: Plan, result: Result | None, *, on_device: bool = False) -> str:
        """The message for the user: which rank and stage, what was predicted there, which flags to change.

        If tensors are ``on_device``, this is what was predicted, and not the host's memory.
        """
        stage, _ = stage_of(plan, self.rank)
        expected = _expected(result, stage)
        if self.of_host and on_device and result is not None:
            expected = f"on the device, {expected}; the host's memory beside it is not predicted"
        return f"{self.where(plan)}: {self.message}; {expected}; less with {', '.join(less_memory(plan))}"


def is_memory(error: BaseException) -> bool:
    """Whether an error comes from an allocator without memory left, on a device or the host."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in ALLOCATORS)


def stage_of(plan: Plan, rank: int) -> tuple[int, int]:
    """The pipeline rank of a rank, and the number of pipeline ranks."""
    if own := plan.pipeline.stages:
        return next((i for i, stage in enumerate(own) if stage.holds(rank)), 0), len(own)
    if rank >= plan.mesh.world_size:
        return 0, 1
    return int(plan.mesh.pipeline_rank([rank])[0]), plan.mesh.pp


def _expected(result: Result | None, stage: int) -> str:
    if result is None:
        return "nothing was predicted (--hardware says on what)"
    peak = next((each.peak_bytes for each in result.memory.stages if each.stage == stage), None)
    capacity = format_bytes(result.memory.capacity_of(stage))
    if peak is None:
        return f"predicted {format_bytes(result.memory.peak_memory_bytes)} of {capacity} on the fullest rank"
    return f"predicted {format_bytes(peak)} of {capacity} there"


def less_memory(plan: Plan) -> list[str]:
    """Flags that reduce a plan's peak memory, those that cost least time first."""
    data, flags = plan.data_parallel, []
    width = plan.mesh.gradient_ranks
    if plan.micro_batch > 1:
        flags.append(f"--micro-batch {plan.micro_batch // 2}")
    if width > 1 and data.zero < 3 and data.kind != "single_process" and data.servers is None:
        flags.append(f"--zero {3 if data.zero == 2 else data.zero + 1}")
    if plan.memory.recompute != "full":
        flags.append("--recompute full")
    if plan.offload.offload_optimizer == "none":
        flags.append("--set plan.offload_optimizer=cpu")
    return flags or ["more devices (--tp, --pp)"]


def ended_by_signal(text: str) -> list[tuple[int, int, int]]:
    """Rank, signal and process of the ranks that torchrun saw ended by a signal, the first to end first.

    Those that torchrun itself ends, because others failed, are not among its failures; SIGTERM would be its own.
    """
    ended = ((int(rank), int(number), int(pid)) for rank, number, pid in _ENDED.findall(text))
    root = text.rfind(_ROOT)
    first = [int(rank) for rank, _, _ in _ENDED.findall(text[root:])][:1] if root >= 0 else []
    return sorted({each for each in ended if each[1] != signal.SIGTERM}, key=lambda each: (each[0] not in first, each))


def restarts_of(text: str) -> list[dict[str, Any]]:
    """The process of this node that failed first in each start of all ranks that torchrun repeated, and how it ended.

    ``text`` is torchrun's own output of a run that came to its end.
    """
    ended = ((int(process), int(code)) for code, process in _RESTARTED.findall(text))
    return [{"rank": process, "reason": _ending(code)} for process, code in ended]


def _ending(code: int) -> str:
    """How a process ended by its exit code, which is negative for a signal."""
    return f"was ended by signal {-code} ({_name_of(-code)})" if code < 0 else f"failed with exit code {code}"


def _name_of(number: int) -> str:
    return signal.Signals(number).name if number in {*signal.Signals} else "unknown"


def count_memory_kills() -> int | None:
    """How often the operating system has ended a process for lack of memory since it started; None if not known."""
    try:
        lines = KILLS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)


def failure_by_signal(ended: list[tuple[int, int, int]], steps: int, kills: int | None, logs: str) -> RankFailure:
    """The failure of the first of the ranks that a signal ended after a number of steps.

    ``kills`` are the processes that the operating system ended for lack of memory meanwhile (None: it does not say).
    """
    rank, number, pid = ended[0]
    when = f"after {steps} steps" if steps else "before its first step was done"
    said = f"{_ending(-number)} {when}"
    if number == signal.SIGKILL and kills:
        counted = f"{kills} process{'es' if kills > 1 else ''} for lack of memory meanwhile"
        if (limit := memory_limit_bytes()) is not None:
            counted += f", of {format_bytes(limit)} for all that run in this container"
        return OutOfMemory.on_host(rank, f"{said}: the operating system ended {counted} {logs}")
    why = ""
    if number == signal.SIGKILL:
        counted = "the operating system counts no kill for lack of memory" if kills == 0 else "as for lack of memory"
        why = f": {counted}" + (", so that something else sent it" if kills == 0 else ", which nothing here tells")
    lost = {rank, *(other for other, each, _ in ended if each == signal.SIGKILL)}  # others end for want of a peer
    return RankFailure(rank, f"{said}{why} (process {pid}) {logs}", tuple(sorted(lost)))


def is_lost_peer(message: str) -> bool:
    """Whether a rank failed because another one had ended."""
    return any(said in message.lower() for said in LOST_PEERS)


def of_torchrun(text: str, log: Path, nodes: int) -> str:
    """What torchrun's own output says about a failure without a recorded reason."""
    if LOST in text:
        return (
            f"{nodes} nodes did not meet in time; every node needs the same --nnodes and --rendezvous, and a "
            f"--node-rank of its own (log: {log})"
        )
    lines = [line for line in text.splitlines() if "Error" in line or "rror:" in line]
    last = lines[-1].strip()[:300] if lines else "no reason was left"
    return f"{last} (log: {log})"


def describe_recordings(folder: Path) -> str:
    """Where the last collectives of every rank were recorded when NCCL timed out; empty otherwise."""
    return (
        f"; collectives: {folder / RECORDER_PREFIX}*, read by torchfrtrace"
        if any(folder.glob(f"{RECORDER_PREFIX}*"))
        else ""
    )
