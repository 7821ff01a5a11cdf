"""One rank's profiler trace (Kineto) as columns: kernels, calls of the host, spans, collectives, memory.

Fields are those that torch.profiler writes: ``cat``, ``ts`` and ``dur`` in us, ``args`` of kernels and of NCCL's
(pytorch/kineto, libkineto/src/output_json.cpp; torch/csrc/distributed/c10d/ParamCommsUtils.hpp). Times are integer ns
on the clock of the rank's host: Kineto counts from ``baseTimeNanoseconds``, in old traces from the epoch.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simpar.errors import UserError
from simpar.explain.stream import Event, EventStream
from simpar.units import KILO, Ints

DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CALL = (
    "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver",
)  # fmt: skip
HOST_OP = ("cpu_op",)
SPAN = ("user_annotation", "gpu_user_annotation")
STEP = "ProfilerStep#"
GLOO = "gloo:"
NCCL = "nccl"
MOST_NS = 2**60
"""36 years: what lies further from the base is no time."""
MOST_RANKS = 500_000
MOST_NAMES = 200_000
"""Distinct names: a trace that has more names its events one by one, and classes are no use."""


@dataclass(frozen=True)
class Columns:
    """Events of one sort: name (index in names), start and duration in ns, lane (stream or thread), correlation."""

    name: Ints
    start_ns: Ints
    duration_ns: Ints
    lane: Ints
    correlation: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def finish_ns(self) -> Ints:
        """Where they end."""
        return self.start_ns + self.duration_ns

    def take(self, rows: Ints) -> Columns:
        """The events at ``rows``, in that order."""
        return Columns(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class Collective:
    """What a communication kernel says of itself: process group, ranks in it, elements, dtype; "" and () if unsaid.

    ``row`` is its place among the device's events. ``peers`` are source and destination of a message.
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
class MemoryUse:
    """Most bytes that tensors and the allocator held while memory was profiled, and the fewest that tensors held."""

    allocated_bytes: float
    reserved_bytes: float
    device: str
    least_bytes: float = 0.0


@dataclass(frozen=True)
class Header:
    """What a trace says of its job: rank, ranks in all, process groups by name (description, members), device, host."""

    rank: int | None = None
    world_size: int | None = None
    groups: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    device_name: str = ""
    device_bytes: float = 0.0
    host: str = ""


@dataclass(frozen=True)
class RankTrace:
    """One rank: its events by sort, what its collectives say, memory where it was recorded.

    ``device`` are kernels and copies, empty where the CPU is the device; ``calls`` the host's calls that launch them,
    ``ops`` its operators, ``spans`` annotations of the host.
    """

    path: str
    names: Sequence[str]
    device: Columns
    calls: Columns
    ops: Columns
    spans: Columns
    collectives: tuple[Collective, ...] = ()
    memory: MemoryUse | None = None
    header: Header = Header()

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is what computes: no kernel was recorded."""
        return len(self.device) == 0

    def steps(self) -> list[tuple[str, int, int]]:
        """Name, begin and end in ns of the profiler's steps, in time order."""
        spans = self.spans
        marks = [at for at, name in enumerate(self.names) if name.startswith(STEP)]
        rows = np.flatnonzero(np.isin(spans.name, marks))
        rows = rows[np.argsort(spans.start_ns[rows], kind="stable")]
        begin, end = spans.start_ns[rows].tolist(), spans.finish_ns[rows].tolist()
        return [
            (self.names[at], b, e) for at, b, e in zip(spans.name[rows].tolist(), begin, end, strict=True)
        ]


class _Table:
    """Columns that grow."""

    def __init__(self) -> None:
        self.name, self.lane = array("i"), array("q")
        self.start, self.duration, self.correlation = array("q"), array("q"), array("q")

    def columns(self, base_ns: int) -> Columns:
        """What was gathered, its times from the epoch on."""
        found = (self.name, self.start, self.duration, self.lane, self.correlation)
        name, start, *rest = (np.array(each, dtype=np.int64) for each in found)
        return Columns(name, start + base_ns, *rest)


class _Reader:
    """Sorts events into columns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.names: dict[str, int] = {}
        self.lanes: dict[tuple[object, object], int] = {}
        self.tables = {sort: _Table() for sort in ("device", "calls", "ops", "spans")}
        self.collectives: list[Collective] = []
        self.memory = dict[str, list[float]]()
        sorts = (("device", DEVICE), ("calls", HOST_CALL), ("ops", HOST_OP), ("spans", SPAN[:1]))
        self.sort = {category: self.tables[sort] for sort, found in sorts for category in found}

    def read(self, stream: EventStream) -> None:
        """All events. Raises UserError for one whose times are no numbers."""
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
            raise UserError(
                f"{self.path}: more than {MOST_NAMES} different names: its events are named one by one"
            )

    def _instant(self, event: Event) -> None:
        """What the profiler says of memory at one moment."""
        found = event.get("args")
        if event.get("name") != "[memory]" or not isinstance(found, dict) or "Total Allocated" not in found:
            return
        kind = "cpu" if found.get("Device Type") == 0 else "device"
        now, reserved = _whole(found["Total Allocated"]), _whole(found.get("Total Reserved"))
        most = self.memory.setdefault(kind, [0.0, 0.0, now])
        most[:] = [max(most[0], now), max(most[1], reserved), min(most[2], now)]


def read_kineto(path: str | Path) -> RankTrace:
    """One rank's trace. Raises UserError for what is none, damaged, cut short or empty."""
    stream, reader = EventStream(path), _Reader(str(path))
    reader.read(stream)
    base_ns = min(max(_whole(stream.header.get("baseTimeNanoseconds")), 0), 2 * MOST_NS)
    tables = {name: table.columns(base_ns) for name, table in reader.tables.items()}
    if not len(tables["device"]) and not len(tables["ops"]):
        raise UserError(f"{path}: has no kernel and no operator: nothing to explain")
    header = _header(stream.header, str(path))
    collectives = tuple(_with_group(each, header.groups) for each in reader.collectives)
    kind = "device" if "device" in reader.memory else "cpu"
    most, reserved, least = reader.memory.get(kind, (0.0, 0.0, 0.0))
    memory = MemoryUse(most, reserved, kind, least) if reader.memory else None
    return RankTrace(
        str(path), tuple(reader.names), tables["device"], tables["calls"], tables["ops"], tables["spans"], collectives,
        memory, header,
    )  # fmt: skip


def _whole(value: object) -> int:
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2 * MOST_NS else -1
    )


_IN_NAME = re.compile(r"rank[-_]?(\d{1,9})|^(\d{1,9})\.", re.IGNORECASE)


def _header(said: Mapping[str, Any], path: str) -> Header:
    """What is understood of the keys beside the events; which rank it is says the trace, or else its file's name."""
    job = _mapping(said.get("distributedInfo"))
    rank, world = _whole(job.get("rank")), _whole(job.get("world_size"))
    if rank < 0 and (found := _IN_NAME.search(Path(path).name)):
        rank = int(found.group(1) or found.group(2))
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
    """Ranks of a list or of a text "[0, 1, 2]"; () where the text leaves some out ("[0, 1, ..., 63]")."""
    if isinstance(said, str):
        if "..." in said:
            return ()
        return tuple(int(each) for each in re.findall(r"\d{1,9}", said))
    return tuple(_whole(each) for each in said) if isinstance(said, list | tuple) else ()


def _with_group(found: Collective, groups: Mapping[str, tuple[str, tuple[int, ...]]]) -> Collective:
    """A collective with the members that the header lists, where the event itself left them out."""
    description, ranks = groups.get(found.group, ("", ()))
    if (found.ranks or not ranks) and (found.description or not description):
        return found
    return Collective(
        found.row, found.kind, found.group, found.description or description, found.ranks or ranks,
        found.sequence, found.size_bytes, found.peers,
    )  # fmt: skip


def _strided(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Ranks of a large group, whose list torch cuts to "[0, 1, ..., 62]": by their first, stride and number.

    () where these are not said, or are not those of the list's ends.
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
"""Of an element by c10::ScalarType's names, in lower case."""

KINDS = (
    ("all_reduce", "allreduce"), ("all_gather", "allgather"), ("reduce_scatter", "reducescatter"),
    ("all_to_all", "alltoall"), ("broadcast", "broadcast"), ("barrier", "barrier"),
    ("send_recv", "send", "recv", "p2p", "batch_isend"), ("reduce", "reduce"), ("gather", "gather"),
    ("scatter", "scatter"),
)  # fmt: skip
"""Kinds of collectives, each with how names without "_" and in lower case have it; the first that fits."""


def collective_kind(name: str) -> str:
    """The kind that a name tells: NCCL's kernels, torch's collectives and gloo's spans; "" for none."""
    plain = name.lower().replace("_", "").replace(" ", "")
    return next((kind for kind, *parts in KINDS if any(part in plain for part in parts)), "")


def _collective(row: int, name: str, arguments: Mapping[str, Any]) -> Collective:
    said = str(arguments.get("Collective name") or "")
    element = BYTES.get(str(arguments.get("dtype") or "").lower(), 0)
    count = max(_whole(arguments.get("In msg nelems")), _whole(arguments.get("Out msg nelems")), 0)
    source, target = _whole(arguments.get("Src Rank")), _whole(arguments.get("Dst Rank"))
    return Collective(
        row,
        collective_kind(said) or collective_kind(name) or "collective",
        str(arguments.get("Process Group Name") or ""),
        str(arguments.get("Process Group Description") or ""),
        _members(arguments.get("Process Group Ranks") or "") or _strided(arguments),
        _whole(arguments.get("Seq")),
        float(count * element),
        (source, target) if source >= 0 and target >= 0 else None,
    )
