"""Communication of a measured rank: its kind, its axis, and how much of it is exposed."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from simpar.cost.collectives.algorithm import bus_factor
from simpar.dataclass import dataclass
from simpar.diagnosis.classes import Classes
from simpar.diagnosis.kineto import GLOO, KinetoTrace, TracedCollective, collective_kind
from simpar.diagnosis.lanes import Window, match_spans
from simpar.plan.choices.mesh import COMMUNICATION
from simpar.units import NS_PER_S, Flags, Floats, Ints

UNNAMED = "other"
"""The axis of process groups that no description, caller or plan identifies."""
MESSAGE = "send_recv"
Key = tuple[str, str, tuple[int, ...], str, int]
"""The common name that ranks have for one collective: axis or group, kind, members, step, index."""


@dataclass(frozen=True)
class RankTraffic:
    """Communication of one rank in time order: begin and length in ns, bytes, kind and axis of each.

    ``key`` identifies it on other ranks, None if that is not known. ``cost_ns`` is its time once all ranks are there;
    before ranks are compared, its own length. ``supposed`` says that the only group, of all ranks, is assumed to be
    data parallel because no group has a name. ``posted`` marks messages after which the sender goes on at once
    (gloo's). Ranks with the same ``clock`` are not aligned; "" is a clock of its own.
    """

    start_ns: Ints
    duration_ns: Ints
    cost_ns: Ints
    size_bytes: Floats
    kind: tuple[str, ...]
    axis: tuple[str, ...]
    key: tuple[Key | None, ...]
    posted: Flags
    supposed: bool = False
    clock: str = ""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def finish_ns(self) -> Ints:
        """The ends of all communication."""
        return self.start_ns + self.duration_ns

    def of_axis(self, axis: str) -> Ints:
        """Rows of an axis."""
        return np.array([at for at, each in enumerate(self.axis) if each == axis], dtype=np.int64)

    @property
    def axes(self) -> list[str]:
        """Axes in use, in their usual order."""
        return [axis for axis in (*COMMUNICATION, UNNAMED) if axis in self.axis]


def traffic_of(trace: KinetoTrace, window: Window, classes: Classes) -> RankTraffic:
    """Communication of a rank within its window."""
    calls = sorted(_on_cpu(trace, classes) if trace.on_cpu else _on_device(trace, classes), key=lambda each: each[0])
    calls = [each for each in calls if window.begin_ns <= each[0] < window.end_ns]
    calls, supposed = _on_the_one_group(calls, trace.header.world_size)
    count: Counter[Key] = Counter()
    keys = list[Key | None]()
    marks = np.array([begin for _, begin, _ in trace.steps()] or [window.begin_ns], dtype=np.int64)
    for begin, _, about, axis in calls:
        step = int(np.searchsorted(marks, begin, side="right"))
        keys.append(_key(about, axis, window.marks[step - 1] if window.marks and step else "", count))
    start, duration = (np.array([each[at] for each in calls], dtype=np.int64) for at in (0, 1))
    return RankTraffic(
        start, duration, duration, np.array([each[2].size_bytes for each in calls], dtype=np.float64),
        tuple(each[2].kind for each in calls), tuple(each[3] for each in calls), tuple(keys),
        np.array([trace.on_cpu and (each[2].peers or (-1,))[0] == trace.header.rank for each in calls], dtype=bool),
        supposed, trace.header.host if trace.on_cpu else "",
    )  # fmt: skip


_Found = tuple[int, int, TracedCollective, str]


def _on_the_one_group(calls: list[_Found], world_size: int | None) -> tuple[list[_Found], bool]:
    """If all communication is on one unnamed group of all ranks, count it as data parallel; also returns whether so.

    That is how DDP, FSDP and ZeRO run without a mesh; token exchanges still belong to experts.
    """
    unnamed = [each[2].ranks for each in calls if each[3] == UNNAMED]
    others = {each[3] for each in calls} - {UNNAMED, "ep"}
    if not unnamed or others or not world_size or any(len(ranks) != world_size for ranks in unnamed):
        return calls, False
    return [(*each[:3], "dp" if each[3] == UNNAMED else each[3]) for each in calls], True


def _key(about: TracedCollective, axis: str, mark: str, count: Counter[Key]) -> Key | None:
    """Groups are identified by their members, or by the name that all ranks give them; messages by their two ends."""
    name, members = axis, about.ranks
    if about.peers is not None:
        name, members = f"{about.group}:message", about.peers
    elif about.kind == MESSAGE and about.sequence < 0:
        return None  # its peer is not recorded
    elif about.group and not about.ranks:
        name = f"group {about.group}"
    elif not about.ranks:
        return None
    if about.sequence >= 0 and about.peers is None:
        return name, about.kind, members, f"{about.group} {about.description}", about.sequence
    bare = (name, about.kind, members, mark, 0)
    count[bare] += 1
    return name, about.kind, members, mark, count[bare]


def _on_device(trace: KinetoTrace, classes: Classes) -> Iterator[_Found]:
    """Kernels whose class is communication, with the facts that NCCL's kernels record."""
    kinds, device = classes.of(trace.names), trace.device
    said = {each.row: each for each in trace.collectives}
    axes: dict[tuple[str, ...], str] = {}
    mine = np.array([bool(entry.communication) for entry in kinds])[device.name]
    rows = np.union1d(np.flatnonzero(mine), np.array(list(said), dtype=np.int64)).astype(np.int64)
    for row in rows.tolist():
        name = trace.names[device.name[row]]
        entry = kinds[device.name[row]]
        about = said.get(row) or TracedCollective(row, collective_kind(name) or entry.name, "", "", ())
        axis = entry.communication if entry.communication in COMMUNICATION else ""
        words = (about.description, about.group)
        if words not in axes:
            axes[words] = classes.axis(*words)
        axis = axis or axes[words] or _by_kind(about.kind)
        yield int(device.start_ns[row]), int(device.duration_ns[row]), about, axis


def _by_kind(kind: str) -> str:
    """The axis of a group without any facts: messages are the pipeline's, exchanges the experts'."""
    return {MESSAGE: "pp", "all_to_all": "ep"}.get(kind, UNNAMED)


def _on_cpu(trace: KinetoTrace, classes: Classes) -> Iterator[_Found]:
    """Gloo's spans; every group has its own threads, so the most frequent caller on a thread names its axis."""
    spans, ops = trace.spans, trace.ops
    is_gloo = np.array([name.startswith(GLOO) for name in trace.names], dtype=bool)
    is_call = np.array([name.startswith(("c10d::", "_c10d_functional::")) for name in trace.names], dtype=bool)
    calls = np.flatnonzero(is_call[ops.name])
    calls = calls[np.argsort(ops.start_ns[calls], kind="stable")]
    rows = np.flatnonzero(is_gloo[spans.name])
    callers = _callers(trace, calls, classes)
    votes: dict[int, Counter[str]] = defaultdict(Counter)
    kinds = [collective_kind(trace.names[spans.name[row]].removeprefix(GLOO)) for row in rows.tolist()]
    members, rest, along = _members_by_axis(trace, classes, MESSAGE in kinds)
    between_stages = match_spans(trace, _ACTION, spans.start_ns[rows])
    before = np.searchsorted(ops.start_ns[calls], spans.start_ns[rows], side="right") - 1
    for row, at, kind in zip(rows.tolist(), before.tolist(), kinds, strict=True):
        axis = callers[at] if at >= 0 and kind != MESSAGE else ""
        votes[int(spans.lane[row])][axis or {"all_to_all": "ep"}.get(kind, rest)] += 1
    for row, kind, staged in zip(rows.tolist(), kinds, between_stages.tolist(), strict=True):
        name, start = trace.names[spans.name[row]].removeprefix(GLOO), int(spans.start_ns[row])
        axis = votes[int(spans.lane[row])].most_common(1)[0][0]
        if kind == MESSAGE:  # pipelines have spans around theirs: others are a ring's
            axis = "pp" if staged else "cp" if between_stages.any() else along
        peers = _peers(trace, name, start, members.get(axis, members[MESSAGE])) if kind == MESSAGE else None
        about = TracedCollective(-1, kind, "", "", members.get(axis, ()) if peers is None else (), peers=peers)
        yield start, int(spans.duration_ns[row]), about, axis


def _callers(trace: KinetoTrace, calls: Ints, classes: Classes) -> list[str]:
    """Axes of calls by their callers: functional collectives, FSDP's spans, DDP's reducer."""
    ops = trace.ops
    in_fsdp = match_spans(trace, _FSDP, ops.start_ns[calls])
    reducer = any(name.startswith("torch.distributed.ddp.reducer") for name in trace.names)
    functional, result = -1, list[str]()
    for number, row in enumerate(calls.tolist()):
        name = trace.names[ops.name[row]]
        if name.startswith("_c10d_functional"):
            functional = int(ops.finish_ns[row])
        inside = int(ops.start_ns[row]) < functional
        words = (name if not inside else "_c10d_functional", "FSDP::" if in_fsdp[number] else "")
        plain = "DistributedDataParallel" if reducer and "allreduce" in name else ""
        result.append(classes.axis(*words, plain))
    return result


_FSDP = re.compile("FSDP::")
_ACTION = re.compile(r"PP:\d+(RECV|SEND)_([FB])\d")


def _peers(trace: KinetoTrace, name: str, at_ns: int, stages: tuple[int, ...]) -> tuple[int, int] | None:
    """Source and destination of a message of torch's pipelines: of two stages the other, else as its span says."""
    if trace.header.rank not in stages:
        return None
    here = stages.index(trace.header.rank)
    if len(stages) == 2:
        other = stages[1 - here]
    else:
        spans = trace.spans
        around = np.flatnonzero((spans.start_ns <= at_ns) & (spans.finish_ns > at_ns))
        matches = [_ACTION.match(trace.names[at]) for at in spans.name[around].tolist()]
        action = next((each for each in matches if each), None)
        if action is None:
            return None
        forward = (action[1] == "SEND") == (action[2] == "F")
        other = stages[(here + (1 if forward else -1)) % len(stages)]
    return (stages[here], other) if "send" in name else (other, stages[here])


def _members_by_axis(
    trace: KinetoTrace, classes: Classes, messages: bool
) -> tuple[dict[str, tuple[int, ...]], str, str]:
    """Members of the single group of each axis, the axis of unidentified calls, and that of messages.

    An axis of all ranks is not listed, because torch gives it the default group, which has no axis's name. Unidentified
    calls belong to the one listed axis whose calls do not name it (those of tensor and pipeline parallelism do). If
    every listed axis has one rank, they are data parallel or, if there are ``messages``, of a pipeline that is not
    listed. Messages are not the pipeline's if that has one rank; if no listed axis has several ranks, they are between
    all ranks (members of MESSAGE).
    """
    sets: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for description, ranks in trace.header.groups.values():
        if ranks:
            sets[classes.axis(description) or UNNAMED].add(ranks)
    # torch names a process group of one dimension of a device mesh after it ("mesh_dp"); the default group of all ranks
    # has no such name [torch.distributed.device_mesh]. So an axis that spans all ranks is found under UNNAMED.
    several = {axis: {each for each in groups if len(each) > 1} for axis, groups in sets.items()}
    whole = several.pop(UNNAMED, set())
    used = [axis for axis, groups in several.items() if groups]
    # calls of tensor and pipeline parallelism name their axis in their own way: what is unnamed is another's
    left = [axis for axis in used if axis not in ("tp", "pp")]
    along = "cp" if "pp" in several and "pp" not in used else "pp"
    rest = left[0] if len(left) == 1 else UNNAMED
    if several and not used:
        rest = "pp" if messages and "pp" not in several else "dp"
    for axis in (*COMMUNICATION, UNNAMED):
        if axis not in several or (axis == rest == "dp" and not several[axis]):
            several[axis] = whole
    members = {axis: next(iter(groups)) for axis, groups in several.items() if len(groups) == 1}
    members[MESSAGE] = () if used else tuple(range(trace.header.world_size or 0))
    return members, rest, along


def split_ns(pieces: tuple[Ints, Ints], traffic: RankTraffic, rows: Ints) -> tuple[int, int, int]:
    """Exposed time of an axis in ns: during a transfer, while waiting for others, and after the others are done."""
    begin, end = pieces
    finish = traffic.finish_ns[rows]
    transfer = overlap_ns((begin, end), union(finish - traffic.cost_ns[rows], finish))
    under_way = overlap_ns((begin, end), union(traffic.start_ns[rows], finish))
    return transfer, under_way - transfer, int((end - begin).sum()) - under_way


def union(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The union of intervals as disjoint ones in time order."""
    if not len(begin):
        return begin, end
    order = np.argsort(begin, kind="stable")
    begin, reach = begin[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, begin[1:] > reach[:-1]))
    return begin[first], reach[np.append(first[1:] - 1, len(reach) - 1)]


def overlap_ns(one: tuple[Ints, Ints], other: tuple[Ints, Ints]) -> int:
    """The time that two sets of disjoint intervals have in common."""

    def covered(intervals: tuple[Ints, Ints], at: Ints) -> Ints:
        """Time of the intervals before each moment."""
        begin, end = intervals
        total = np.concatenate([[0], np.cumsum(end - begin)])
        index = np.searchsorted(begin, at, side="right")
        over = np.where(index > 0, np.maximum(end[np.maximum(index - 1, 0)] - at, 0), 0)
        return np.asarray(total[index] - over, dtype=np.int64)

    if not len(one[0]) or not len(other[0]):
        return 0
    return int((covered(other, one[1]) - covered(other, one[0])).sum())


@dataclass(frozen=True)
class CollectiveStatistics:
    """Collectives of one axis and kind on the measured ranks: calls per rank, medians of bytes and of s of one.

    ``cost_s`` is the time of one once all its ranks are there, if ranks were compared. ``bus_bytes_per_s`` is its bus
    bandwidth by the factors of nccl-tests; None if bytes or members are not recorded.
    """

    axis: str
    kind: str
    members: int | None
    calls: float
    size_bytes: float
    cost_s: float
    bus_bytes_per_s: float | None


def collective_uses(ranks: Sequence[RankTraffic]) -> list[CollectiveStatistics]:
    """All collectives by axis and kind, the longest total time first."""
    rows: dict[tuple[str, str, int | None], list[tuple[float, float]]] = defaultdict(list)
    for traffic in ranks:
        columns = (traffic.axis, traffic.kind, traffic.key, traffic.size_bytes.tolist(), traffic.cost_ns.tolist())
        for axis, kind, key, size, cost in zip(*columns, strict=True):
            rows[axis, kind, len(key[2]) or None if key else None].append((size, cost / NS_PER_S))
    result = []
    for (axis, kind, members), each in rows.items():
        sizes, costs = (np.array(column) for column in zip(*each, strict=True))
        rate = None
        if kind in ON_LINKS and members and members > 1 and (known := (sizes > 0) & (costs > 0)).any():
            rate = float(np.median(sizes[known] / costs[known])) * bus_factor(kind, members)
        calls = len(each) / len(ranks)
        result.append(
            CollectiveStatistics(axis, kind, members, calls, float(np.median(sizes)), float(np.median(costs)), rate)
        )
    return sorted(result, key=lambda each: -each.calls * each.cost_s)


ON_LINKS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives whose bus bandwidth follows from bytes and ranks."""
