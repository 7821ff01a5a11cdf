"""The cause of a failure on a rank, in one line that says what to change. No torch here.

For out-of-memory errors it names the rank, its stage, the memory predicted there, and flags that reduce it.
"""

from pathlib import Path

from simpar.plan.plan import Plan
from simpar.report.result import Result
from simpar.units import format_bytes

ALLOCATORS = ("can't allocate memory", "out of memory", "not enough memory")
KILLED, LOST = "Signal 9 (SIGKILL)", "RendezvousTimeoutError"
RECORDER_PREFIX = "nccl-"


class WorkerFailure(RuntimeError):
    """A worker failed for a reason other than the user's input."""


class OutOfMemory(WorkerFailure):
    """Memory ran out on a rank."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(f"rank {rank}: {message}")
        self.rank, self.message = rank, message

    def told(self, plan: Plan, result: Result | None) -> str:
        """The message for the user: which rank and stage, what was predicted there, which flags to change."""
        stage, stages = stage_of(plan, self.rank)
        where = f"rank {self.rank}" + (f" (stage {stage} of {stages})" if stages > 1 else "")
        return f"{where}: {self.message}; {_expected(result, stage)}; less with {', '.join(less_memory(plan))}"


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


def of_torchrun(text: str, log: Path, nodes: int) -> str:
    """What torchrun's own output says about a failure without a recorded reason."""
    if KILLED in text:
        return (
            "a rank was ended by the system (SIGKILL), as it is when the host's memory runs out; less with a smaller "
            f"--micro-batch or fewer ranks a node (log: {log})"
        )
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
