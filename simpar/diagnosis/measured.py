"""What traces tell about a measured step: one account per rank, in the categories of predictions, and rank skew.

Causes are those of :mod:`simpar.report.accounting`, in seconds of one optimizer step: "compute", "exposed_*" by axis,
"bubble" (waiting for another pipeline stage), "waiting" (for other ranks in any other collective), "optimizer", "host",
"offload"; and "idle" for what the trace does not explain. They sum to the step.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from simpar.dataclass import dataclass
from simpar.diagnosis.classes import OPTIMIZER, Classes
from simpar.diagnosis.kineto import KinetoTrace, TracedMemory, read_kineto
from simpar.diagnosis.lanes import BEHIND, HOST, OFFLOAD, UNEXPLAINED, Lane, Window, lane_of, window_of
from simpar.diagnosis.meetings import Compared, Skewed, compare_ranks
from simpar.diagnosis.traffic import MESSAGE, RankTraffic, split_ns, traffic_of, union
from simpar.errors import UserError
from simpar.plan.choices.mesh import PIPELINE
from simpar.units import NS_PER_S, Floats, format_seconds, number_of

MOST_UNKNOWN = 8
MOST_DRIFT = 20
"""Ends of collectives on aligned clocks that differ by more than 1 / MOST_DRIFT of a step are reported."""
LATE = 0.02
"""A rank is named if its kernels, or its host, take longer than its peers' by more than this share of a step."""
SLOWER = 1.1
"""And, for kernels, by this factor: ranks without any fault differ by some percent."""
KERNELS, LAUNCHES = "kernels", "host"


@dataclass(frozen=True)
class AxisUse:
    """Communication of one axis on one rank, in s and bytes per step: under way, exposed, and waiting (if known)."""

    calls: float
    size_bytes: float
    busy_s: float
    exposed_s: float
    waiting_s: float | None


@dataclass(frozen=True)
class RankAccount:
    """Where one rank's step went, in s per step; ``causes_s`` sums to ``step_time_s``.

    ``classes_s`` splits compute and optimizer by class of kernel, ``host_s`` the device's waits for its host;
    ``unknown_s`` are kernels without a class, by name.
    """

    rank: int
    step_time_s: float
    steps: int
    causes_s: Mapping[str, float]
    classes_s: Mapping[str, float]
    axes: Mapping[str, AxisUse]
    host_s: Mapping[str, float] = field(default_factory=dict)
    unknown_s: Mapping[str, float] = field(default_factory=dict)
    memory: TracedMemory | None = None

    @property
    def compute_s(self) -> float:
        """The time of the rank's own work in its passes."""
        return self.causes_s.get("compute", 0.0)


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for, because of its ``kernels`` or its ``host``.

    ``waited_for_s`` is how long the others wait in all with nothing else to do, ``longest_s`` the one that waits
    longest; ``slowdown`` is its compute over the median of the other ranks, ``host_s`` and ``usual_host_s`` what its
    device and that of the median other rank wait for their hosts. All are s per step.
    """

    rank: int
    waited_for_s: float
    slowdown: float
    because: str = KERNELS
    host_s: float = 0.0
    usual_host_s: float = 0.0
    longest_s: float = 0.0


@dataclass(frozen=True)
class TracedJob:
    """Facts about the job: its ranks, its device's name and memory (0 if unknown), and whether the host is the device.

    ``group_sizes`` are the sizes of process groups by axis, if collectives record them.
    """

    world_size: int | None = None
    on_cpu: bool = False
    device_name: str = ""
    device_bytes: float = 0.0
    group_sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step: accounts by rank, ranks waited for (most first), and remarks on the traces.

    ``lanes`` and ``traffic`` are the claimed time and communication, in the order of ``ranks``; ``offset_ns`` aligns
    their clocks; ``skewed`` are the collectives in which ranks waited most.
    """

    ranks: tuple[RankAccount, ...]
    stragglers: tuple[Straggler, ...]
    remarks: tuple[str, ...]
    lanes: tuple[Lane, ...] = field(repr=False)
    traffic: tuple[RankTraffic, ...] = field(repr=False)
    offset_ns: tuple[int, ...] = ()
    job: TracedJob = TracedJob()
    skewed: tuple[Skewed, ...] = ()

    @property
    def step_time_s(self) -> float:
        """The slowest rank's step."""
        return max(each.step_time_s for each in self.ranks)

    def mean_s(self, of: str = "causes_s") -> dict[str, float]:
        """Causes or classes in s, the mean over ranks."""
        names = dict.fromkeys(name for each in self.ranks for name in getattr(each, of))
        return {name: sum(getattr(each, of).get(name, 0.0) for each in self.ranks) / len(self.ranks) for name in names}


@dataclass(frozen=True)
class _ClaimedTrace:
    """A trace after claiming; the rest of it is not kept."""

    rank: int
    window: Window
    lane: Lane
    traffic: RankTraffic
    memory: TracedMemory | None
    job: TracedJob
    has_calls: bool
    host: str


def measure(paths: Sequence[str | Path], classes: Classes, steps: int | None = None) -> MeasuredStep:
    """The account of a step from traces of its ranks, one file each.

    Raises UserError for a file that is not a trace, for a trace of inference, and for traces of different runs.
    """
    traces = [_claimed(read_kineto(path), classes, steps, at) for at, path in enumerate(paths)]
    _check_one_run(traces, paths)
    traces = sorted(traces, key=lambda each: each.rank)
    compared = compare_ranks([each.traffic for each in traces])
    accounts = tuple(
        _account(each, traffic, len(traces) > 1) for each, traffic in zip(traces, compared.traffic, strict=True)
    )
    return MeasuredStep(
        accounts,
        tuple(_stragglers(accounts, compared)),
        tuple(_remarks(traces, compared)),
        tuple(each.lane for each in traces),
        compared.traffic,
        compared.offset_ns,
        replace(traces[0].job, group_sizes=_group_sizes(compared.traffic)),
        tuple(replace(each, last_rank=traces[each.last_rank].rank) for each in compared.skewed),
    )


def _claimed(trace: KinetoTrace, classes: Classes, steps: int | None, number: int) -> _ClaimedTrace:
    _check_training(trace)
    window = window_of(trace, steps)
    traffic = traffic_of(trace, window, classes)
    exposed = [
        (axis, *union(traffic.start_ns[rows], traffic.finish_ns[rows]))
        for axis in traffic.axes
        for rows in (traffic.of_axis(axis),)
    ]
    lane = lane_of(trace, window, classes, [(f"exposed_{axis}", b, e) for axis, b, e in exposed])
    rank = number if trace.header.rank is None else trace.header.rank
    return _ClaimedTrace(
        rank, window, lane, traffic, trace.memory, job_of(trace),
        bool(len(trace.calls)) or trace.on_cpu, trace.header.host,
    )  # fmt: skip


def job_of(trace: KinetoTrace) -> TracedJob:
    """Facts about the job and its device in the header of a trace."""
    said = trace.header
    if trace.on_cpu:
        return TracedJob(said.world_size, True)
    return TracedJob(said.world_size, False, said.device_name, said.device_bytes)


def _group_sizes(ranks: Sequence[RankTraffic]) -> dict[str, tuple[int, ...]]:
    """Sizes of process groups by axis."""
    result: dict[str, set[int]] = {}
    for traffic in ranks:
        for axis, kind, key in zip(traffic.axis, traffic.kind, traffic.key, strict=True):
            if key is not None and kind != MESSAGE and len(key[2]) > 1:
                result.setdefault(axis, set()).add(len(key[2]))
    return {axis: tuple(sorted(sizes)) for axis, sizes in result.items()}


_TRAINING = re.compile(
    r"backward|bwd|wgrad|dgrad|_grad|adam|optimizer|multi_tensor|reduce_?scatter|^B\d", re.IGNORECASE
)


def _check_training(trace: KinetoTrace) -> None:
    """Raise UserError if nothing runs backward or updates a parameter."""
    if not any(_TRAINING.search(name) for name in trace.names):
        raise UserError(
            f"{trace.path}: neither a backward pass nor an optimizer is in it: a trace of inference, "
            "and training is what is explained"
        )


def _check_one_run(traces: Sequence[_ClaimedTrace], paths: Sequence[str | Path]) -> None:
    """Raise UserError if two traces are of the same rank, of jobs of different size, or of different steps."""
    seen: dict[int, str] = {}
    for each, path in zip(traces, map(str, paths), strict=True):
        if each.rank in seen:
            raise UserError(f"{path}: is of rank {each.rank}, as {seen[each.rank]} is; one trace a rank")
        seen[each.rank] = path
    first = traces[0]
    for each, path in zip(traces, map(str, paths), strict=True):
        for what, here, there in (
            ("ranks in the job", each.job.world_size, first.job.world_size),
            ("steps", each.window.marks or each.window.steps, first.window.marks or first.window.steps),
        ):
            if here != there:
                said, other = (", ".join(v) if isinstance(v, tuple) else v for v in (here, there))
                raise UserError(f"{path}: {what}: {said}; {paths[0]}: {other}: not of one run")


def _account(trace: _ClaimedTrace, traffic: RankTraffic, compared: bool) -> RankAccount:
    """One rank's account; exposed communication is split into transfer and waiting if ranks were compared."""
    per = trace.window.steps * NS_PER_S
    owned = {name: ns / per for name, ns in trace.lane.owned_ns().items()}
    causes: dict[str, float] = {}
    axes: dict[str, AxisUse] = {}
    arrived = 0.0
    for at, name in enumerate(trace.lane.owners):
        if not name.startswith("exposed_"):
            continue
        axis = name.removeprefix("exposed_")
        pieces, rows = trace.lane.pieces, traffic.of_axis(axis)
        mine = pieces.owner == at
        transfer, waiting, over = (
            ns / per for ns in split_ns((pieces.begin_ns[mine], pieces.end_ns[mine]), traffic, rows)
        )
        begin, end = union(traffic.finish_ns[rows] - traffic.cost_ns[rows], traffic.finish_ns[rows])
        causes[name] = transfer
        idle = "bubble" if axis == PIPELINE else "waiting"
        causes[idle] = causes.get(idle, 0.0) + waiting
        arrived += over
        axes[axis] = AxisUse(
            len(rows) / trace.window.steps,
            float(traffic.size_bytes[rows].sum()) / trace.window.steps,
            float((end - begin).sum()) / per,
            transfer,
            waiting if compared else None,
        )
        owned.pop(name, None)
    offload, on_host = owned.pop(OFFLOAD, 0.0), owned.pop(HOST, 0.0)
    host = {reason: ns / per for reason, ns in trace.lane.idle_ns.items() if reason != UNEXPLAINED}
    if arrived:
        host[BEHIND] = host.get(BEHIND, 0.0) + arrived
    if on_host:
        host["operators that compute nothing"] = on_host
    causes = {
        "compute": sum(s for name, s in owned.items() if name != OPTIMIZER),
        **causes,
        "optimizer": owned.get(OPTIMIZER, 0.0),
        "host": sum(host.values()),
        "offload": offload,
        "idle": trace.lane.idle_ns.get(UNEXPLAINED, 0) / per,
    }
    unknown = {name: ns / per for name, ns in list(trace.lane.unknown_ns.items())[:MOST_UNKNOWN]}
    return RankAccount(
        trace.rank, trace.window.length_ns / per, trace.window.steps, {k: v for k, v in causes.items() if v},
        dict(sorted(owned.items(), key=lambda item: -item[1])), axes, host, unknown, trace.memory,
    )  # fmt: skip


def _stragglers(accounts: Sequence[RankAccount], compared: Compared) -> Iterator[Straggler]:
    """Ranks that others wait for because they compute longer or launch later, most waited for first."""
    waits_s = _exposed_waits(accounts, compared)
    for at in np.argsort(-waits_s.sum(axis=0), kind="stable").tolist():
        each, others = accounts[at], [other for other in accounts if other is not accounts[at]]
        waited_s, least_s = float(waits_s[:, at].sum()), LATE * each.step_time_s
        if not others or waited_s < least_s:
            continue
        usual, usual_host_s = (
            float(np.median([of(other) for other in others])) for of in (lambda one: one.compute_s, _host_s)
        )
        slowdown, host_s = (each.compute_s / usual if usual else 1.0), _host_s(each)
        named = Straggler(each.rank, waited_s, slowdown, KERNELS, host_s, usual_host_s, float(waits_s[:, at].max()))
        if slowdown >= SLOWER and each.compute_s - usual > max(least_s, host_s - usual_host_s):
            yield named
        elif host_s - usual_host_s > least_s:
            yield replace(named, because=LAUNCHES)


def _host_s(account: RankAccount) -> float:
    """What a rank's device waits for its host; unexplained where the host was not traced."""
    return account.causes_s.get("host", 0.0) + account.causes_s.get("idle", 0.0)


def _exposed_waits(accounts: Sequence[RankAccount], compared: Compared) -> Floats:
    """Seconds per step in which a rank waits and does nothing else, by the rank that it waits for.

    Waits under computation cost nothing: the exposed ones are shared out as all waits are.
    """
    exposed = np.array([each.causes_s.get("waiting", 0.0) + each.causes_s.get("bubble", 0.0) for each in accounts])
    total = compared.waited_ns.sum(axis=1)
    shares: Floats = exposed / np.maximum(total, 1.0)
    result: Floats = compared.waited_ns * shares[:, None]
    return result


def _apart(traces: Sequence[_ClaimedTrace]) -> Iterator[str]:
    """Ranks of one host, which share a clock, that were not traced at the same time."""
    first: dict[str, _ClaimedTrace] = {}
    for each in traces:
        other = first.setdefault(each.host, each) if each.host else each
        early, late = sorted((each, other), key=lambda one: one.window.begin_ns)
        if (gap_ns := late.window.begin_ns - early.window.end_ns) > 0:
            yield (
                f"rank {late.rank} was traced {format_seconds(gap_ns / NS_PER_S)} after rank {early.rank} on the same "
                "host: these are not traces of one run"
            )
            return


def _remarks(traces: Sequence[_ClaimedTrace], compared: Compared) -> Iterator[str]:
    """What readers should know about these traces."""
    if not traces[0].window.marks:
        yield (
            "no profiler step is marked: the whole trace is taken as "
            f"{number_of(traces[0].window.steps, 'step')} (--steps N says how many it holds)"
        )
    world, have = traces[0].job.world_size, [each.rank for each in traces]
    if world and len(traces) < world:
        missing = [rank for rank in range(world) if rank not in have]
        listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        yield f"{len(traces)} of {world} ranks are given: of ranks {listed} nothing is known"
    if any(each.supposed for each in compared.traffic):
        yield "all communication is on the group of all ranks, which has no name: taken as data-parallel"
    if len(traces) == 1 and compared.total:
        yield "one rank alone: its exposed communication holds the waiting for other ranks; give their traces as well"
    elif compared.compared < compared.total and len(traces) > 1:
        yield (
            f"{compared.total - compared.compared} of {compared.total} collectives could not be matched between "
            "ranks: what they wait for others counts as exposed"
        )
    apart = max(compared.offset_ns, default=0) - min(compared.offset_ns, default=0)
    if apart > NS_PER_S // 1000:
        yield f"clocks of the ranks differ by up to {apart / NS_PER_S:.3g} s; aligned by where collectives end"
    yield from _apart(traces)
    usual = max(each.window.length_ns / each.window.steps for each in traces)
    if compared.drift_ns > usual // MOST_DRIFT:
        yield (
            f"collectives end {compared.drift_ns / NS_PER_S:.3g} s apart on different ranks all the same (median): "
            "clocks drift, or these are not traces of one run"
        )
    if not all(each.has_calls for each in traces):
        yield "the host was not traced (ProfilerActivity.CPU): what the device waits for its host counts as idle"
