"""One run from prediction to report: predict, launch, measure, compare, write. No torch here."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from simpar.architectures.documents import with_documents
from simpar.files import write_atomic
from simpar.runtime.core_times import CoreTimes, others_share
from simpar.runtime.data import count_drawn
from simpar.runtime.failures import RankFailure, WorkerFailure, restarts_of
from simpar.runtime.job import KINETO, LOG, RunJob, read_log
from simpar.runtime.launch import TORCHRUN, NodeRendezvous, launch
from simpar.runtime.request import Ready, on_machine, predict_job, simulate_job
from simpar.runtime.saved import find_newest
from simpar.runtime.strategy import replicas_inside
from simpar.runtime.summary import errors, summarise_ranks, summarise_replicas, utilisation
from simpar.runtime.traces import write_both
from simpar.simulation import apply_tuning

REPORT = "report.json"
Again = Callable[[RankFailure, Ready], Ready]
RESTARTS = 3  # restarts of a run that can resume from a checkpoint


def conduct(
    ready: Ready,
    nodes: NodeRendezvous,
    *,
    advance: Callable[[Mapping[str, Any]], None] | None = None,
    max_restarts: int | None = None,
    trace: str | None = None,
    again: Again | None = None,
) -> dict[str, Any] | None:
    """Run a job and write its report; None on nodes other than the first. Raises UserError, WorkerFailure.

    ``advance`` is called with every new line of the log; ``trace`` is a file for the simulated and the measured step
    together. ``again`` gives the job that goes on where ranks were lost, from the failure and the job; by default none
    does.
    """
    lost: list[dict[str, Any]] = []
    while True:
        before = CoreTimes.now()
        job, result = _on_nodes(ready, nodes), simulate_job(ready)
        restarts = 0 if again else (RESTARTS if job.checkpoints else 0) if max_restarts is None else max_restarts
        try:
            ranks = _launched(ready, job, nodes, restarts, advance)
            break
        except RankFailure as failure:
            if again is None or not 0 < len(failure.lost) < ready.world_size:
                on_device = job.machine.device == "cuda"
                raise WorkerFailure(failure.told(ready.prepared.plan, result, on_device=on_device)) from None
            was = ready.world_size
            ready = again(failure, ready)
            lost.append({"ranks": list(failure.lost), "of": was, "reason": failure.message, "left": ready.world_size})
    if nodes.rank:
        return None
    others = others_share(before, CoreTimes.now())
    report = make_report(ready, job, ranks, predict_job(ready, result))
    report["cores_used_by_others"] = others
    if lost:
        report["lost"] = lost
    if restarted := _restarts(Path(job.folder) / TORCHRUN):
        report["restarts"] = restarted
    _kept(report, job, job.steps)
    if trace is not None:
        # one process may drive several devices, and other nodes may use other folders
        here = [path for path in _traces(ready, job) if path.exists()]
        write_both(trace, result.timeline if result else None, here)
    return report


def _restarts(log: Path) -> list[dict[str, Any]]:
    """The processes of this node for whose sake all ranks started again."""
    return restarts_of(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []


def _on_nodes(ready: Ready, nodes: NodeRendezvous) -> RunJob:
    """The job on this machine, which knows the number of processes of all nodes."""
    devices = ready.world_size // nodes.count
    processes, servers = _processes(ready, nodes)
    job = on_machine(ready.job, processes, servers=servers, devices=devices)
    everybody = {"processes": (processes + servers) * nodes.count}
    return job.model_copy(update={"machine": job.machine.model_copy(update=everybody)})


def _processes(ready: Ready, nodes: NodeRendezvous) -> tuple[int, int]:
    """Processes of a node: those of its ranks, and parameter servers."""
    processes = ready.world_size // nodes.count // replicas_inside(ready.prepared.plan)
    return processes, int(ready.job.plan.data_parallel.servers or 0)


def _traces(ready: Ready, job: RunJob) -> list[Path]:
    return [Path(job.folder) / KINETO.format(rank=rank) for rank in range(ready.world_size)]


def _launched(
    ready: Ready, job: RunJob, nodes: NodeRendezvous, restarts: int, advance: Callable[[Mapping[str, Any]], None] | None
) -> list[dict[str, Any]]:
    """The measurements of all ranks of this node. Raises UserError, WorkerFailure, Interrupted."""
    for old in _traces(ready, job) if job.measuring.trace_steps else ():
        old.unlink(missing_ok=True)
    follow = _follow(Path(job.folder), advance, keeps=job.checkpoints is not None) if advance else None
    try:
        return launch(job, sum(_processes(ready, nodes)), nodes=nodes, max_restarts=restarts, follow=follow)
    except KeyboardInterrupt:
        raise Interrupted(report_interrupted(ready, job)) from None


class Interrupted(KeyboardInterrupt):
    """A run that the user stopped; ``report`` is what was done until then."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__()
        self.report = report


def report_interrupted(ready: Ready, job: RunJob) -> dict[str, Any]:
    """The report of a stopped run from rank 0's log, also written to its file: steps, losses, and where to resume."""
    rows = read_log(Path(job.folder) / LOG)
    saved = find_newest(Path(job.checkpoints.folder)) if job.checkpoints else None
    graph = job.graph()
    report = {
        "model": graph.name if graph else job.model,
        "interrupted": True,
        "steps_done": len(rows),
        "steps_asked": job.steps,
        "losses": [row["loss"] for row in rows],
        "step_time_s": float(median(row["step_time_s"] for row in rows[job.measuring.warmup :] or rows))
        if rows
        else None,
        "checkpoint": str(saved[0]) if saved else None,
        "ranks": ready.world_size,
    }
    return _kept(report, job, rows[-1]["step"] + 1 if rows else 0)


def _kept(report: dict[str, Any], job: RunJob, steps: int) -> dict[str, Any]:
    """The report, written to its file, with what the run's first ``steps`` have drawn of each of several sources."""
    if drawn := count_drawn(job.data, job.training, job.learning.seed, steps):
        report["drawn"] = drawn
    write_atomic(Path(job.folder) / REPORT, json.dumps(report, indent=2) + "\n")
    return report


def make_report(
    ready: Ready, job: RunJob, ranks: list[dict[str, Any]], expected: dict[str, Any] | None
) -> dict[str, Any]:
    """Measured and predicted figures, and the error of each figure that both have; SI units, no machine name."""
    import simpar

    graph, plan, training = job.graph(), ready.prepared.plan, job.training
    if ready.prepared.strategy.reduction == "servers":
        result = summarise_replicas(ranks, training, warmup=job.measuring.warmup)
    else:
        result = summarise_ranks(ranks, training, warmup=job.measuring.warmup)
        rows = read_log(Path(job.folder) / LOG) or ranks[0]["steps"]  # another node's disk may have the log
        result["losses"] = [row["loss"] for row in rows]
        result["evaluations"] = {row["step"] + 1: row["evaluation_loss"] for row in rows if "evaluation_loss" in row}
    if graph is not None and ready.cluster is not None:
        peak = ready.cluster.device.peak_flop_per_s[plan.numerics.precision]
        computed = with_documents(apply_tuning(plan, graph), ready.training)
        result["mfu"] = utilisation(computed, training, result["step_time_s"], peak, ready.world_size)
    return {
        "model": graph.name if graph else job.model,
        "plan": plan.model_dump(mode="json"),
        "training": ready.training.model_dump(),
        "ranks": ready.world_size,
        "machine": job.machine.model_dump(),
        "strategy": ready.prepared.strategy.reduction,
        "measured": result,
        "predicted": expected,
        "error_percent": errors(expected, result),
        "hardware": ready.cluster.profile.name if ready.cluster else None,
        "simpar_version": simpar.__version__,
        "torch_version": _torch_version(),
    }


def _torch_version() -> str:
    from importlib import metadata

    return metadata.version("torch")


def _follow(folder: Path, advance: Callable[[Mapping[str, Any]], None], *, keeps: bool) -> Callable[[], None]:
    """Report new lines of rank 0's log as they appear; a restart may take lines back.

    A run that resumes from a checkpoint ``keeps`` the lines of earlier steps.
    """
    path, seen = folder / LOG, [0]
    if not keeps:
        path.unlink(missing_ok=True)
    elif path.exists():
        seen[0] = len(path.read_text(encoding="utf-8").splitlines())

    def follow() -> None:
        if not path.exists():
            return
        lines = [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]
        if len(lines) != seen[0] and lines:
            advance(json.loads(lines[-1]))
        seen[0] = len(lines)

    return follow
