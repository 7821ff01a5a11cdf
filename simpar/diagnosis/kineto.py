"""One rank's profiler trace (Kineto) as columns: kernels, host calls, spans, collectives, memory.

Fields are those that torch.profiler writes: ``cat``, ``ts`` and ``dur`` in us, ``args`` of kernels and of NCCL's
(pytorch/kineto, libkineto/src/output_json.cpp; torch/csrc/distributed/c10d/ParamCommsUtils.hpp). Times are integer ns
on the clock of the rank's host; Kineto counts from ``baseTimeNanoseconds``, old traces from the epoch.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.diagnosis.stream import Event, EventStream
from simpar.errors import UserError
from simpar.units import KILO, Ints

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CALL = ("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver")
HOST_OP = ("cpu_op",)
SPAN = ("user_annotation", "gpu_user_annotation")
STEP = "ProfilerStep#"
GLOO = "gloo:"
NCCL = "nccl"
MOST_NS = 2**60
"""36 years: anything further from the base is not a valid time."""
MOST_RANKS = 500_000
MOST_NAMES = 200_000
"""The most distinct names: a trace with more names every event individually, so that classes are useless."""


@dataclass(frozen=True)
class EventColumns:
    """Events of one kind: name (index into names), start and duration in ns, lane (stream or thread), correlation."""

    name: Ints
    start_ns: Ints
    duration_ns: Ints
    lane: Ints
    correlation: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def finish_ns(self) -> Ints:
        """The ends of the events."""
        return self.start_ns + self.duration_ns

    def take(self, rows: Ints) -> EventColumns:
        """The events at ``rows``, in that order."""
        return EventColumns(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class TracedCollective:
    """Facts recorded by a communication kernel: process group, its ranks, bytes; "" and () if not recorded.

    ``row`` is its index among the device's events. ``peers`` are source and destination of a message.
    """

    row: int
    kind: str
    group: str
    description: str
    ranks: tuple[int, ...]
    sequence: int = -1
    size_bytes: float = 0.0
    peers: tuple[int, int] | None = None


@dataclass(frozen=True)
class TracedMemory:
    """The most bytes that tensors and the allocator held while profiling memory, and the least that tensors held."""

    allocated_bytes: float
    reserved_bytes: float
    device: str
    least_bytes: float = 0.0


@dataclass(frozen=True)
class Header:
    """Facts about the job: rank, world size, process groups by name (description, members), device, host."""

    rank: int | None = None
    world_size: int | None = None
    groups: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    device_name: str = ""
    device_bytes: float = 0.0
    host: str = ""


@dataclass(frozen=True)
class KinetoTrace:
    """One rank: its events by kind, the facts of its collectives, and memory if it was recorded.

    ``device`` are kernels and copies, empty if the CPU is the device. ``calls`` are host calls that launch them,
    ``ops`` the host's operators, ``spans`` its annotations.
    """

    path: str
    names: Sequence[str]
    device: EventColumns
    calls: EventColumns
    ops: EventColumns
    spans: EventColumns
    collectives: tuple[TracedCollective, ...] = ()
    memory: TracedMemory | None = None
    header: Header = Header()

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is the device: no kernel was recorded."""
        return len(self.device) == 0

    def steps(self) -> list[tuple[str, int, int]]:
        """Name, begin and end in ns of the profiler's steps, in time order."""
        spans = self.spans
        marks = [at for at, name in enumerate(self.names) if name.startswith(STEP)]
        rows = np.flatnonzero(np.isin(spans.name, marks))
        rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
        begin, end = spans.start_ns[rows].tolist(), spans.finish_ns[rows].tolist()
        return [(self.names[at], b, e) for at, b, e in zip(spans.name[rows].tolist(), begin, end, strict=True)]


class _GrowingColumns:
    """Columns that grow."""

    def __init__(self) -> None:
        self.name, self.lane = array("i"), array("q")
        self.start, self.duration, self.correlation = array("q"), array("q"), array("q")

    def columns(self, base_ns: int) -> EventColumns:
        """The collected events, with times from the epoch."""
        columns = (self.name, self.start, self.duration, self.lane, self.correlation)
        name, start, *rest = (np.array(each, dtype=np.int64) for each in columns)
        return EventColumns(name, start + base_ns, *rest)


class _EventReader:
    """Sorts events into columns by kind."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: dict[str, int] = {}
        self.lanes: dict[tuple[object, object], int] = {}
        self.tables = {sort: _GrowingColumns() for sort in ("device", "calls", "ops", "spans")}
        self.collectives: list[TracedCollective] = []
        self.memory = dict[str, list[float]]()
        sorts = (("device", DEVICE), ("calls", HOST_CALL), ("ops", HOST_OP), ("spans", SPAN[:1]))
        self.sort = {category: self.tables[sort] for sort, categories in sorts for category in categories}

    def read(self, stream: EventStream) -> None:
        """Read all events. Raises UserError for an event whose times are not numbers."""
        names, lanes, sort, device = self.names, self.lanes, self.sort, self.tables["device"]
        for event in stream:
            phase = event.get("ph")
            if phase != "X":
                if phase == "i":
                    self._instant(event)
                continue
            try:
                table = sort.get(event.get("cat", ""))
                if table is None:
                    continue
                start, duration = round(event["ts"] * KILO), round(event["dur"] * KILO)
                name, arguments = event["name"], event.get("args") or {}
                if not (isinstance(name, str) and 0 <= duration < MOST_NS and -MOST_NS < start < 2 * MOST_NS):
                    raise ValueError
                table.correlation.append(_whole(arguments.get("correlation")))
                table.name.append(names.setdefault(name, len(names)))
                table.lane.append(lanes.setdefault((event.get("pid"), event.get("tid")), len(lanes)))
                table.start.append(start)
                table.duration.append(duration)
                if table is device and ("Collective name" in arguments or NCCL in name[:20].lower()):
                    self.collectives.append(_collective(len(table.start) - 1, name, arguments))
            except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
                raise UserError(
                    f"{self.path}: an event has no good ts, dur, name or args: {str(event)[:120]}"
                ) from None
        if len(names) > MOST_NAMES:
            raise UserError(f"{self.path}: more than {MOST_NAMES} different names: its events are named one by one")

    def _instant(self, event: Event) -> None:
        """The memory state that the profiler recorded at one moment."""
        arguments = event.get("args")
        if event.get("name") != "[memory]" or not isinstance(arguments, dict) or "Total Allocated" not in arguments:
            return
        kind = "cpu" if arguments.get("Device Type") == 0 else "device"
        now, reserved = _whole(arguments["Total Allocated"]), _whole(arguments.get("Total Reserved"))
        most = self.memory.setdefault(kind, [0.0, 0.0, now])
        most[:] = [max(most[0], now), max(most[1], reserved), min(most[2], now)]


def read_kineto(path: str | Path) -> KinetoTrace:
    """One rank's trace. Raises UserError for any other file, and for one that is damaged, truncated or empty."""
    stream, reader = EventStream(path), _EventReader(str(path))
    reader.read(stream)
    base_ns = min(max(_whole(stream.header.get("baseTimeNanoseconds")), 0), 2 * MOST_NS)
    tables = {name: table.columns(base_ns) for name, table in reader.tables.items()}
    if not len(tables["device"]) and not len(tables["ops"]):
        raise UserError(f"{path}: has no kernel and no operator: nothing to explain")
    header = _header(stream.header, str(path))
    collectives = tuple(_with_group(each, header.groups) for each in reader.collectives)
    kind = "device" if "device" in reader.memory else "cpu"
    most, reserved, least = reader.memory.get(kind, (0.0, 0.0, 0.0))
    memory = TracedMemory(most, reserved, kind, least) if reader.memory else None
    return KinetoTrace(
        str(path), tuple(reader.names), tables["device"], tables["calls"], tables["ops"], tables["spans"], collectives,
        memory, header,
    )  # fmt: skip


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2 * MOST_NS else -1


_IN_NAME = re.compile(r"rank[-_]?(\d{1,9})|^(\d{1,9})\.", re.IGNORECASE)


def _header(said: Mapping[str, Any], path: str) -> Header:
    """The known keys beside the events; the rank comes from the trace, or else from the file's name."""
    job = _mapping(said.get("distributedInfo"))
    rank, world = _whole(job.get("rank")), _whole(job.get("world_size"))
    if rank < 0 and (match := _IN_NAME.search(Path(path).name)):
        rank = int(match.group(1) or match.group(2))
    listed = job.get("pg_config")
    groups = {
        str(each.get("pg_name")): (str(each.get("pg_desc") or ""), _members(each.get("ranks")))
        for each in map(_mapping, listed if isinstance(listed, list) else ())
    }
    devices = said.get("deviceProperties")
    device = _mapping(devices[0]) if isinstance(devices, list) and devices else {}
    return Header(
        rank if rank >= 0 else None,
        world if world > 0 else None,
        groups,
        str(device.get("name") or ""),
        float(max(_whole(device.get("totalGlobalMem")), 0)),
        str(said.get("host_name") or ""),
    )


def _mapping(said: object) -> Mapping[str, Any]:
    return said if isinstance(said, dict) else {}


def _members(said: object) -> tuple[int, ...]:
    """Ranks of a list or of a text "[0, 1, 2]"; () if the text is abbreviated ("[0, 1, ..., 63]")."""
    if isinstance(said, str):
        if "..." in said:
            return ()
        return tuple(int(each) for each in re.findall(r"\d{1,9}", said))
    return tuple(_whole(each) for each in said) if isinstance(said, list | tuple) else ()


def _with_group(collective: TracedCollective, groups: Mapping[str, tuple[str, tuple[int, ...]]]) -> TracedCollective:
    """A collective with the members that the header lists, if the event itself does not list them."""
    description, ranks = groups.get(collective.group, ("", ()))
    if (collective.ranks or not ranks) and (collective.description or not description):
        return collective
    return TracedCollective(
        collective.row, collective.kind, collective.group, collective.description or description,
        collective.ranks or ranks, collective.sequence, collective.size_bytes, collective.peers,
    )  # fmt: skip


def _strided(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Ranks of a large group, whose list torch abbreviates to "[0, 1, ..., 62]", from first rank, stride and number.

    Empty if these are missing, or do not match the ends of the list.
    """
    names = ("Global rank start", "Global rank stride", "Group size")
    first, stride, size = (_whole(arguments.get(name)) for name in names)
    said = [int(each) for each in re.findall(r"\d{1,9}", str(arguments.get("Process Group Ranks") or ""))]
    if len(said) < 2 or min(first, stride - 1, size - 1) < 0 or size > MOST_RANKS:
        return ()
    ranks = tuple(range(first, first + size * stride, stride))
    return ranks if (ranks[0], ranks[-1]) == (said[0], said[-1]) else ()


BYTES = {
    "byte": 1, "char": 1, "bool": 1, "short": 2, "half": 2, "bfloat16": 2, "int": 4, "float": 4, "long": 8, "double": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip
"""Bytes of an element by c10::ScalarType's names, in lower case."""

KINDS = (
    ("all_reduce", "allreduce"), ("all_gather", "allgather"), ("reduce_scatter", "reducescatter"),
    ("all_to_all", "alltoall"), ("broadcast", "broadcast"), ("barrier", "barrier"),
    ("send_recv", "send", "recv", "p2p", "batch_isend"), ("reduce", "reduce"), ("gather", "gather"),
    ("scatter", "scatter"),
)  # fmt: skip
"""Kinds of collectives with their names without "_" and in lower case; the first match counts."""


def collective_kind(name: str) -> str:
    """The kind of a collective by name: NCCL's kernels, torch's collectives and gloo's spans; "" for none."""
    plain = name.lower().replace("_", "").replace(" ", "")
    return next((kind for kind, *parts in KINDS if any(part in plain for part in parts)), "")


def _collective(row: int, name: str, arguments: Mapping[str, Any]) -> TracedCollective:
    said = str(arguments.get("Collective name") or "")
    element = BYTES.get(str(arguments.get("dtype") or "").lower(), 0)
    count = max(_whole(arguments.get("In msg nelems")), _whole(arguments.get("Out msg nelems")), 0)
    source, target = _whole(arguments.get("Src Rank")), _whole(arguments.get("Dst Rank"))
    return TracedCollective(
        row,
        collective_kind(said) or collective_kind(name) or "collective",
        str(arguments.get("Process Group Name") or ""),
        str(arguments.get("Process Group Description") or ""),
        _members(arguments.get("Process Group Ranks") or "") or _strided(arguments),
        _whole(arguments.get("Seq")),
        float(count * element),
        (source, target) if source >= 0 and target >= 0 else None,
    )
