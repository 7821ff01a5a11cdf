"""The answer of ``simpar explain``, as an object, as plain data and as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from simpar.calls import refuses_unknown_keywords
from simpar.dataclass import dataclass
from simpar.diagnosis.against import Against, check_is_logged, check_is_traced, compare_with_prediction, log_rows
from simpar.diagnosis.changes import Changes, ObservedStep, Progress, find_changes
from simpar.diagnosis.classes import load_classes
from simpar.diagnosis.flight import FlightRun, explain_flights
from simpar.diagnosis.kinds import FLIGHT, LOG, METRICS, REPORT, SNAPSHOT, TRACE, files_of, kind_of
from simpar.diagnosis.likely import LikelyCause, causes_in_phases, has_gap, likely_causes
from simpar.diagnosis.log_run import DEVICES, GLOBAL_BATCH, SEQ_LEN, USED, LogRun
from simpar.diagnosis.logs import read_log
from simpar.diagnosis.lost_overlap import find_lost_overlap, name_lost_overlap
from simpar.diagnosis.measured import AxisUse, MeasuredStep, RankAccount, measure
from simpar.diagnosis.memory import parts_beside
from simpar.diagnosis.memory_samples import MONITORS
from simpar.diagnosis.metrics import read_metrics
from simpar.diagnosis.run_report import read_run_report
from simpar.diagnosis.snapshot import SnapshotRun, read_snapshot
from simpar.diagnosis.traffic import collective_uses
from simpar.errors import UserError
from simpar.files import write_atomic
from simpar.formats import EXPLANATION
from simpar.report.result import Result
from simpar.scenario import Scenario, load_scenario
from simpar.simulation import simulate


@dataclass(frozen=True)
class Explanation:
    """What a measured step consists of. Values are SI: seconds and bytes of one optimizer step.

    ``measured`` comes from profiler traces, ``log`` from a training log, ``flight`` from flight recorders, ``snapshot``
    from a memory snapshot. ``against`` is the prediction of the plan, ``logged`` the same for a log (name with unit,
    measured, predicted) with the ``likely`` causes of a gap, ``snapshot_beside`` for the parts of memory, ``changes``
    the gains of single changes. Each is None or empty if there are no such files or no plan was given.
    """

    measured: MeasuredStep | None = None
    against: Against | None = None
    changes: Changes | None = None
    log: LogRun | None = None
    logged: tuple[tuple[str, float, float], ...] = ()
    flight: FlightRun | None = None
    snapshot: SnapshotRun | None = None
    snapshot_beside: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    likely: tuple[LikelyCause, ...] = ()

    @property
    def traced(self) -> MeasuredStep:
        """The account from profiler traces. Raises UserError if there are none."""
        if self.measured is None:
            raise UserError("needs profiler traces: a log and a flight recorder have no timeline")
        return self.measured

    @property
    def step_time_s(self) -> float | None:
        """The slowest rank's step in s, or that of the log; None if neither gives it."""
        return self.measured.step_time_s if self.measured else self.log.step_time_s() if self.log else None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, in SI units; ``causes_s`` sums to each rank's step time."""
        return {
            EXPLANATION.key: EXPLANATION.version,
            "step_time_s": self.step_time_s,
            **({} if self.measured is None else _traced(self.measured)),
            "predicted": None if self.against is None else _predicted(self.against, self.traced),
            "log": None if self.log is None else {**asdict(self.log), "times_s": list(self.log.times_s)},
            "logged": [dict(zip(("figure", "measured", "predicted"), row, strict=True)) for row in self.logged],
            "likely_causes": [asdict(each) for each in self.likely],
            "flight_recorder": None if self.flight is None else asdict(self.flight),
            "memory_snapshot": None if self.snapshot is None else asdict(self.snapshot),
            "memory_beside": {
                part: {"measured_bytes": was, "predicted_bytes": is_}
                for part, (was, is_) in self.snapshot_beside.items()
            },
            "changes": None if self.changes is None else _changes(self.changes),
        }

    def to_json(self) -> str:
        """The explanation as JSON text."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the JSON atomically."""
        write_atomic(path, self.to_json() + "\n")


def _traced(measured: MeasuredStep) -> dict[str, Any]:
    return {
        "steps": measured.ranks[0].steps,
        "world_size": measured.job.world_size,
        "on_cpu": measured.job.on_cpu,
        "causes_s": measured.mean_s(),
        "classes_s": measured.mean_s("classes_s"),
        "ranks": [_rank(each) for each in measured.ranks],
        "collectives": [
            vars(each) | {"calls": each.calls / measured.ranks[0].steps} for each in collective_uses(measured.traffic)
        ],
        "skewed": [vars(each) for each in measured.skewed],
        "stragglers": [vars(each) for each in measured.stragglers],
        "remarks": list(measured.remarks),
    }


def _rank(each: RankAccount) -> dict[str, Any]:
    return {
        "rank": each.rank,
        "step_time_s": each.step_time_s,
        "causes_s": dict(each.causes_s),
        "classes_s": dict(each.classes_s),
        "communication": {axis: vars(use) for axis, use in each.axes.items()},
        "host_s": dict(each.host_s),
        "unknown_kernels_s": dict(each.unknown_s),
        "memory": None if each.memory is None else vars(each.memory),
    }


def _predicted(against: Against, measured: MeasuredStep) -> dict[str, Any]:
    """The predicted step, and its differences from the measured one, largest first."""
    result, memory = against.result, against.memory
    return {
        "step_time_s": result.step_time_s,
        "step_time_interval_s": None if result.certainty is None else result.certainty.step_time_interval_s,
        "mfu": result.speed.mfu,
        "measured_mfu": against.mfu(measured),
        "causes_s": dict(against.causes_s),
        "classes_s": dict(against.classes_s),
        "differences": [vars(each) | {"more_s": each.more_s} for each in against.differences(measured)],
        "class_differences": [
            vars(each) | {"more_s": each.more_s} for each in against.differences(measured, "classes_s")
        ],
        "peak_memory_bytes": result.memory.peak_memory_bytes,
        "measured_peak_memory_bytes": memory and memory.measured.allocated_bytes,
        "memory": memory and asdict(memory),
    }


def _changes(changes: Changes) -> dict[str, Any]:
    names = ("parameter", "was", "is")
    fitted = changes.fitted
    return {
        "fitted": {
            "parameters": [dict(zip(names, each, strict=True)) for each in fitted.parameters],
            "step_time_before_s": fitted.before_s,
            "step_time_after_s": fitted.after_s,
        },
        "slow_ranks": {str(rank): factor for rank, factor in changes.slow_ranks.items()},
        "gains": [{**vars(each), "undecided": each.undecided} for each in changes.gains],
        "remarks": list(changes.remarks),
    }


def mean_axes(ranks: tuple[RankAccount, ...]) -> Mapping[str, AxisUse]:
    """Communication by axis, the mean over ranks."""
    result = {}
    for axis in dict.fromkeys(axis for each in ranks for axis in each.axes):
        uses = [each.axes[axis] for each in ranks if axis in each.axes]
        waits = [use.waiting_s for use in uses if use.waiting_s is not None]
        calls, size, busy, exposed = (
            sum(getattr(use, name) for use in uses) / len(ranks)
            for name in ("calls", "size_bytes", "busy_s", "exposed_s")
        )
        result[axis] = AxisUse(calls, size, busy, exposed, sum(waits) / len(ranks) if waits else None)
    return result


@refuses_unknown_keywords
def explain(
    *measured: str | Path,
    plan: str | Path | Scenario | None = None,
    changes: bool = True,
    kernel_classes: str | Path | None = None,
    steps: int | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Explain where a step went, from traces or flight recorders of its ranks (one file each), a log, or a snapshot.

    With a ``plan`` (a scenario, its file or name, or a plan file), the explanation includes the differences from the
    prediction and, if ``changes``, the gains of single changes. ``kernel_classes`` is a file of patterns that take
    precedence over the shipped ones. ``steps`` is the number of optimizer steps in a trace without step marks.
    ``progress`` is called with what is being simulated. Raises UserError for other files, for files of different
    training runs, and for a plan that is not the measured one.
    """
    if not measured:
        raise UserError("explain: needs a trace, a flight recorder, a log or a memory snapshot, as trace-rank0.json.gz")
    if steps is not None and steps < 1:
        raise UserError(f"--steps {steps}: allowed: 1 or more")
    scenario = plan if isinstance(plan, Scenario) or plan is None else load_scenario(plan)
    measured = tuple(dict.fromkeys(file for path in measured for file in files_of(path)))
    classes, kinds = load_classes(kernel_classes), {path: kind_of(path) for path in measured}
    traces, flights, snapshots = (
        [path for path in measured if kinds[path] == kind] for kind in (TRACE, FLIGHT, SNAPSHOT)
    )
    if len(snapshots) > 1:
        raise UserError(f"{snapshots[1]}: is a memory snapshot, as {snapshots[0]} is; one of the fullest rank")
    readers = {LOG: read_log, METRICS: read_metrics, REPORT: read_run_report}
    logs = [readers[kinds[path]](path) for path in measured if kinds[path] in readers]
    log = _only_log(logs) if logs else None
    result = Explanation(
        measure(traces, classes, steps) if traces else None,
        log=log,
        likely=() if log is None else tuple(causes_in_phases(log)),
        flight=explain_flights(flights, classes) if flights else None,
        snapshot=read_snapshot(snapshots[0]) if snapshots else None,
    )
    if scenario is None:
        return result
    source = "the plan" if isinstance(plan, Scenario) else f"{plan}: the plan"
    return _beside(result, scenario, source, progress, changes=changes)


def _only_log(logs: Sequence[LogRun]) -> LogRun:
    """The log of the run, with the memory of the samples that were taken beside it. Raises UserError for two logs."""
    runs = [log for log in logs if log.framework not in MONITORS]
    if len(runs) > 1:
        raise UserError(
            f"{runs[1].path}: is a log, as {runs[0].path} is; one log of a run, that of its first or last rank"
        )
    result = (runs or logs)[0]
    used = max((log.figures[USED] for log in logs if USED in log.figures), default=None)
    return result if used is None else replace(result, figures={**result.figures, USED: used})


def _beside(
    explanation: Explanation, scenario: Scenario, source: str, progress: Progress | None, *, changes: bool
) -> Explanation:
    """An explanation with the prediction, and the gains of changes."""
    inputs = scenario.inputs()
    result = simulate(**inputs)
    seen = None
    if explanation.measured is not None:
        check_is_traced(explanation.measured, result, inputs["cluster"], source)
        seen = ObservedStep.of_traces(explanation.measured, result)
        explanation = replace(
            explanation, against=compare_with_prediction(explanation.measured, result, inputs["model"])
        )
    if explanation.log is not None:
        training, devices = scenario.training, inputs["cluster"].world_size
        step_s = explanation.log.step_time_s(training.tokens_per_step, training.global_batch, devices)
        planned = {GLOBAL_BATCH: training.global_batch, SEQ_LEN: training.seq_len, DEVICES: devices}
        check_is_logged(explanation.log, step_s, planned, result, source)
        if step_s is not None:
            seen = seen or ObservedStep.of_log(step_s, explanation.log.spread / explanation.log.count**0.5)
        again = _recomputed(scenario) if has_gap(step_s, result) else None
        likely = likely_causes(explanation.log, step_s, result, again)
        logged = tuple(log_rows(explanation.log, result, step_s))
        explanation = replace(explanation, logged=logged, likely=(*explanation.likely, *likely))
    if explanation.snapshot is not None:
        explanation = replace(explanation, snapshot_beside=parts_beside(explanation.snapshot, result))
    if seen is None or not changes:
        return explanation
    ran = None
    if explanation.measured is not None and explanation.against is not None:
        dp = mean_axes(explanation.measured.ranks).get("dp")
        ran = find_lost_overlap(explanation.measured, explanation.against, scenario, dp)
    if ran is None:
        return replace(explanation, changes=find_changes(seen, scenario, result, progress))
    late, late_result = ran
    return replace(explanation, changes=name_lost_overlap(find_changes(seen, late, late_result, progress)))


def _recomputed(scenario: Scenario) -> Result | None:
    """The step with all layers recomputed; None for a plan that has it already, or that cannot have it."""
    if scenario.plan.memory.recompute == "full":
        return None
    inputs = scenario.inputs()
    memory = inputs["plan"].memory.model_copy(update={"recompute": "full"})
    try:
        return simulate(**{**inputs, "plan": inputs["plan"].model_copy(update={"memory": memory})})
    except UserError:  # stages of their own recompute apart
        return None
