"""A measured step beside the one that its plan predicts, and a check that the traces can be of that plan.

The comparison uses means over the measured ranks, and the pipeline stages that these ranks run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from simpar.architectures.linear_attention import FLOP_PER_STATE
from simpar.cost.products import ADD, WIDEN
from simpar.dataclass import dataclass
from simpar.diagnosis.classes import OPTIMIZER
from simpar.diagnosis.log_run import ALLOCATED, DEVICES, GLOBAL_BATCH, RESERVED, SEQ_LEN, TFLOPS, TOKENS, USED, LogRun
from simpar.diagnosis.measured import MeasuredStep, TracedJob
from simpar.diagnosis.memory import MemoryBeside, memory_beside
from simpar.errors import UserError
from simpar.plan.plan import Plan
from simpar.report.words import format_significant
from simpar.units import GIB, NS_PER_S, format_bytes, format_seconds

if TYPE_CHECKING:
    from simpar.architectures.graph import ModelGraph
    from simpar.hardware.cluster import Cluster
    from simpar.report.result import Result
    from simpar.report.timeline import Timeline

CLASS_OF_KIND = {
    "matmul": "gemm", "grouped_matmul": "gemm", "router": "gemm", "attention": "attention", "norm": "norm",
    "dispatch": "routing", "combine": "routing", "embedding": "embedding", "loss": "loss", "indexer": "attention",
    "index_loss": "attention", "scan": "state space",
    "convolution": "state space", **dict.fromkeys(FLOP_PER_STATE, "linear attention"),
}  # fmt: skip
"""Classes of kernels by the kind of their operator; all other kinds are elementwise."""
CLASS_OF_SUM = {WIDEN: "copy", ADD: "elementwise"}
"""Classes of the kernels that sum weight gradients."""
ABSURD = 20.0
"""A measured step that is this many times longer or shorter than predicted is of another run."""
WORK_APART = 3.0
"""If the work of a logged step, by the framework's count, differs by more than this factor, it is of another run.

Counts differ in attention, recomputation and adapters.
"""
JOB_WORDS = {GLOBAL_BATCH: "global batch", SEQ_LEN: "sequence length", DEVICES: "devices"}
MEMORY_APART = 0.1
"""The share by which the traced device's memory may differ from the profile's: 80 GB cards report 79.1 GiB."""


@dataclass(frozen=True)
class Difference:
    """One part of the step, measured and predicted, in s."""

    part: str
    measured_s: float
    predicted_s: float

    @property
    def more_s(self) -> float:
        """The measured time minus the predicted time, in s."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True)
class Against:
    """The predicted causes and classes of kernels of the measured ranks, in s; their result, and memory."""

    result: Result
    causes_s: Mapping[str, float]
    classes_s: Mapping[str, float]
    memory: MemoryBeside | None = None

    def mfu(self, measured: MeasuredStep) -> float:
        """Model FLOP utilisation of the measured step, 0..1, counted like the predicted one."""
        return self.result.speed.mfu * self.result.step_time_s / measured.step_time_s

    def differences(self, measured: MeasuredStep, of: str = "causes_s") -> list[Difference]:
        """Parts of the step, largest difference first."""
        was, should = measured.mean_s(of), getattr(self, of)
        result = [Difference(name, was.get(name, 0.0), should.get(name, 0.0)) for name in {**was, **should}]
        return sorted(result, key=lambda each: -abs(each.more_s))


def compare_with_prediction(measured: MeasuredStep, result: Result, graph: ModelGraph) -> Against:
    """The predicted step of the measured ranks. ``result`` must have its timeline."""
    assert result.overview is not None, "made with it"
    assert result.timeline is not None, "made with it"
    stages = stages_of(measured, result)
    views = {stage: result.overview.of_pipeline_rank(stage) for stage in set(stages)}
    causes: dict[str, float] = defaultdict(float)
    classes: dict[str, float] = defaultdict(float)
    by_stage = {stage: _classes_s(result.timeline, stage, graph) for stage in set(stages)}
    for stage in stages:
        parts = views[stage].parts_s
        for name, seconds in parts.items():
            causes[name] += seconds / len(stages)
        shares = by_stage[stage]
        whole = sum(shares.values())
        for name, seconds in shares.items():
            classes[name] += seconds / whole * parts.get("compute", 0.0) / len(stages)
    if causes.get("optimizer"):
        classes[OPTIMIZER] = causes["optimizer"]
    return Against(
        result,
        {k: v for k, v in causes.items() if v},
        dict(sorted(classes.items(), key=lambda item: -item[1])),
        memory_beside(measured, result, stages),
    )


def stages_of(measured: MeasuredStep, result: Result) -> list[int]:
    """The index among the result's stages of every measured rank."""
    assert result.overview is not None, "made with it"
    mesh = result.plan.mesh
    count = result.overview.num_pipeline_ranks
    at = mesh.pipeline_rank([each.rank for each in measured.ranks]).tolist()
    return [stage if stage < count else 2 * count - 1 - stage for stage in at]  # DualPipe's two directions are alike


def kernel_classes(graph: ModelGraph) -> dict[str, str]:
    """The class of the kernels of every operator of a model, and of its gradient sums, by name."""
    operators = [op for block in (graph.embedding, *graph.blocks.values(), graph.head) for op in block.operators]
    classes = {op.name: CLASS_OF_KIND.get(op.kind, "elementwise") for op in operators}
    return classes | {f"{name}.{end}": kind for name in classes for end, kind in CLASS_OF_SUM.items()}


def _classes_s(timeline: Timeline, stage: int, graph: ModelGraph) -> dict[str, float]:
    """Seconds of the kernels of a stage by class, from the ops of its timeline that have inner steps."""
    known = kernel_classes(graph)
    mine = next(at for at, entry in enumerate(timeline.classes) if entry.pipeline_rank == stage)
    slices = timeline.slices
    rows = np.flatnonzero((slices.class_id == mine) & (slices.stream == 0) & (slices.inner >= 0))
    count = np.bincount(slices.inner[rows], minlength=len(timeline.inner))
    result: dict[str, float] = defaultdict(float)
    for inner, times in zip(timeline.inner, count.tolist(), strict=True):
        lengths = (inner.finish_ns - inner.start_ns).tolist() if times else ()
        for label, stream, ns in zip(inner.labels, inner.streams, lengths, strict=False):
            if stream == "compute" and label.name in known:
                result[known[label.name]] += ns * times / NS_PER_S
    return result


def log_rows(log: LogRun, result: Result, step_time_s: float | None) -> list[tuple[str, float, float]]:
    """Figures of a log beside the prediction: (name with unit, measured, predicted)."""
    memory, figures = result.memory, log.figures
    # what the device shows has the context and buffers beside the allocator, which frameworks do not log
    beside = max(stage.overhead_bytes for stage in memory.stages)
    return [
        *([("step time, s", step_time_s, result.step_time_s)] if step_time_s else []),
        *(
            (name, figures[key] / unit, predicted / unit)
            for name, key, predicted, unit in (
                ("tokens/s per device", TOKENS, result.speed.tokens_per_s_per_device, 1.0),
                ("TFLOP/s per device", TFLOPS, result.speed.tflops_per_device, 1.0),
                ("allocated at most, GiB", ALLOCATED, memory.peak_memory_bytes - beside, GIB),
                ("reserved at most, GiB", RESERVED, memory.peak_reserved_bytes - beside, GIB),
                ("used of the device at most, GiB", USED, memory.peak_reserved_bytes, GIB),
            )
            if key in figures
        ),
    ]


def check_is_logged(
    log: LogRun, step_time_s: float | None, planned: Mapping[str, int], result: Result, source: str
) -> None:
    """Raise UserError if a log cannot be of a plan, with all contradicting numbers in one line.

    ``planned`` are the numbers of the plan's job, by the keys of ``LogRun.job``.
    """
    reasons = [
        f"{JOB_WORDS[key]}: {number} logged, {planned[key]} planned"
        for key, number in log.job.items()
        if number != planned[key]
    ]
    if step_time_s is not None:
        if not reasons and TFLOPS in log.figures:
            work = [log.figures[TFLOPS] * step_time_s, result.speed.tflops_per_device * result.step_time_s]
            if not 1 / WORK_APART < work[0] / work[1] < WORK_APART:
                logged, predicted = (f"{format_significant(each)} TFLOP" for each in work)
                reasons.append(f"work of a device in a step: {logged} logged, {predicted} planned")
        if not 1 / ABSURD < step_time_s / result.step_time_s < ABSURD:
            reasons.append(
                f"step time: {format_seconds(step_time_s)} logged, {format_seconds(result.step_time_s)} predicted"
            )
    if reasons:
        raise UserError(f"{source} is not that of {log.path}: {'; '.join(reasons)}")


def check_is_traced(measured: MeasuredStep, result: Result, cluster: Cluster, source: str) -> None:
    """Raise UserError if the traces cannot be of the plan, with all contradicting numbers in one line."""
    reasons = list(_contradictions(measured, result, cluster))
    if reasons:
        raise UserError(f"{source} is not that of these traces: {'; '.join(reasons)}")


def _contradictions(measured: MeasuredStep, result: Result, cluster: Cluster) -> Iterator[str]:
    plan = result.plan
    ranks, world = [each.rank for each in measured.ranks], plan.mesh.world_size
    if measured.job.world_size is not None and measured.job.world_size != world:
        yield f"ranks: {measured.job.world_size} traced, {world} planned"
    elif max(ranks) >= world:
        yield f"rank {max(ranks)} is traced, the plan has {world}"
    sizes = _group_sizes(plan)
    for axis, traced in measured.job.group_sizes.items():
        for size in traced:
            if size not in sizes.get(axis, {size}):
                planned = " or ".join(map(str, sorted(sizes[axis] - {1}) or [1]))
                yield f"{axis}: groups of {size} ranks traced, {planned} planned"
    yield from _other_device(measured.job, cluster)
    ratio = measured.step_time_s / result.step_time_s
    if not 1 / ABSURD < ratio < ABSURD:
        yield (
            f"step time: {format_seconds(measured.step_time_s)} traced, {format_seconds(result.step_time_s)} predicted"
        )


def _group_sizes(plan: Plan) -> dict[str, set[int]]:
    """The possible sizes of the process groups of each axis."""
    mesh = plan.mesh
    dp, copies = mesh.replicas, plan.data_parallel.hsdp
    etp, experts = mesh.expert_tensor_parallel, mesh.expert_data_parallel
    wide = {dp, dp * mesh.cp, dp // copies, dp * mesh.cp // copies, copies, experts, max(experts // copies, 1)}
    return {
        "tp": {mesh.tp, etp, mesh.tp * mesh.cp}, "cp": {mesh.cp, mesh.tp * mesh.cp}, "pp": {mesh.pp, 2},
        "ep": {mesh.ep, etp, mesh.ep * etp, *wide}, "dp": wide,
    }  # fmt: skip


_MODEL = re.compile(r"[a-z]{1,3}\d{1,4}[a-z]?", re.IGNORECASE)


def _other_device(job: TracedJob, cluster: Cluster) -> Iterator[str]:
    """Reasons why the traces are of another kind of device, by its name and memory."""
    if cluster.is_mixed:
        return
    device = cluster.device
    if job.on_cpu != (device.kind == "cpu"):
        yield f"device: {'a processor' if job.on_cpu else 'accelerators'} traced, {device.name} planned"
        return
    named = {each.lower() for each in _MODEL.findall(job.device_name)}
    planned = _MODEL.search(device.name)
    if named and planned and planned.group().lower() not in named:
        yield f"device: {job.device_name} traced, {device.name} planned"
    elif job.device_bytes and abs(job.device_bytes / device.memory_bytes - 1) > MEMORY_APART:
        yield f"memory: {format_bytes(job.device_bytes)} traced, {format_bytes(device.memory_bytes)} planned"
