"""NCCL's flight recorder: the last collectives of every rank, how long they took, and which never ended.

Fields are those that torch.distributed.flight_recorder reads (pytorch/pytorch,
torch/distributed/flight_recorder/components): one dump per rank, a pickle or JSON, with ``entries`` and ``pg_config``.
Durations are present if the run had ``TORCH_NCCL_ENABLE_TIMING``. A pickle may name code; here only plain data is read.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import inf, prod
from pathlib import Path
from typing import Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.diagnosis.classes import Classes
from simpar.diagnosis.kineto import BYTES, collective_kind
from simpar.diagnosis.plain_pickle import load_plain, read_bytes
from simpar.diagnosis.traffic import UNNAMED
from simpar.errors import UserError
from simpar.plan.choices.mesh import PIPELINE
from simpar.units import MS

WHAT = "dump of NCCL's flight recorder"
_IN_NAME = re.compile(r"(\d+)(?:\.json|\.pkl|\.pickle)?$")
ENDED = "completed"
"""The state of a finished collective; backends other than NCCL only say that they have retired it."""


@dataclass(frozen=True)
class Entry:
    """One collective of one rank: bytes, and seconds if they were recorded.

    ``group`` is the name, description and members of its process group, ``number`` its index among that group's
    collectives.
    """

    axis: str
    group: tuple[str, str, tuple[int, ...]]
    kind: str
    number: tuple[str, int]
    size_bytes: float
    duration_s: float | None
    ended: bool


@dataclass(frozen=True)
class Dump:
    """The record of one rank."""

    path: str
    rank: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class GroupUse:
    """Collectives of one kind and axis over all ranks: their number, bytes and s of one (medians), and waiting.

    ``cost_s`` is the least duration over the ranks of a collective, ``waiting_s`` how much longer a rank's is on
    average; None if durations were not recorded.
    """

    axis: str
    kind: str
    calls: int
    size_bytes: float
    cost_s: float | None
    waiting_s: float | None


@dataclass(frozen=True)
class Stuck:
    """A collective that did not end: ranks that have entered it, and ranks that have not."""

    axis: str
    kind: str
    number: int
    entered: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True)
class FlightRun:
    """The flight records of some ranks; ``last`` counts how often others waited for a rank."""

    ranks: tuple[int, ...]
    uses: tuple[GroupUse, ...]
    stuck: tuple[Stuck, ...]
    last: Mapping[int, int]
    remarks: tuple[str, ...]


def explain_flights(paths: Sequence[str | Path], classes: Classes) -> FlightRun:
    """The account of the dumps of one run, one per rank. Raises UserError for other files."""
    dumps = [read_flight(path, classes) for path in paths]
    seen: dict[int, str] = {}
    for dump in dumps:
        if dump.rank in seen:
            raise UserError(f"{dump.path}: is of rank {dump.rank}, as {seen[dump.rank]} is; one dump a rank")
        seen[dump.rank] = dump.path
    meetings: dict[tuple[Any, ...], dict[int, Entry]] = defaultdict(dict)
    for dump in dumps:
        for entry in dump.entries:
            kind, number = entry.number
            pair = -1 if not kind or len(entry.group[2]) == 2 else dump.rank  # else its other end is unknown
            meetings[entry.group, kind, number, pair][dump.rank] = entry
    ranks = tuple(sorted(seen))
    timed = any(entry.duration_s is not None for dump in dumps for entry in dump.entries)
    remarks = []
    if not timed:
        remarks.append("no durations were recorded: run with TORCH_NCCL_ENABLE_TIMING=1 to have them")
    if len(ranks) == 1:
        remarks.append("one rank alone: what waits for other ranks cannot be told; give their dumps as well")
    last: dict[int, int] = defaultdict(int)
    uses = tuple(_uses(list(meetings.values()), last))
    stuck = tuple(_stuck(meetings, ranks))
    return FlightRun(ranks, uses, stuck, dict(sorted(last.items(), key=lambda item: -item[1])), tuple(remarks))


def read_flight(path: str | Path, classes: Classes) -> Dump:
    """One rank's dump. Raises UserError for any other file."""
    data = _data(path)
    entries = data.get("entries")
    if not isinstance(entries, list) or not isinstance(data.get("pg_config"), dict):
        raise UserError(f"{path}: has no entries and pg_config: not a dump of NCCL's flight recorder")
    groups = {}
    for name, about in data["pg_config"].items():
        if isinstance(about, dict):
            ranks = about.get("ranks") or ()
            listed = json.loads(ranks) if isinstance(ranks, str) and re.fullmatch(r"[\[\], \d]*", ranks) else ranks
            groups[str(about.get("name", name))] = (
                str(about.get("desc") or ""),
                tuple(int(rank) for rank in listed) if isinstance(listed, list | tuple) else (),
            )
    rank = data.get("rank")
    match = _IN_NAME.search(Path(path).name)
    if not isinstance(rank, int):
        if match is None:
            raise UserError(
                f"{path}: does not say of which rank it is: name it as torch does, such as nccl_trace_rank_3"
            )
        rank = int(match[1])
    try:
        read = tuple(_entry(each, groups, classes) for each in entries)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}: an entry is malformed ({error!r}): not a dump of NCCL's flight recorder") from None
    return Dump(str(path), rank, read)


def _data(path: str | Path) -> Mapping[str, Any]:
    content = read_bytes(path, WHAT)
    if content[:1] == b"\x80":
        data = load_plain(content, path, WHAT)
    else:
        try:
            data = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: is not a valid {WHAT} ({str(error).splitlines()[0]})") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: is not a {WHAT}")
    return data


def _entry(each: Mapping[str, Any], groups: Mapping[str, tuple[str, tuple[int, ...]]], classes: Classes) -> Entry:
    name, *rest = each["process_group"] if isinstance(each["process_group"], list | tuple) else (each["process_group"],)
    described, members = groups.get(str(name), ("", ()))
    kind = collective_kind(str(each["profiling_name"]).removeprefix("nccl:")) or str(each["profiling_name"])
    sizes = max(_bytes(each, "input"), _bytes(each, "output"))
    duration = each.get("duration_ms")
    is_message = bool(each.get("is_p2p"))
    number = ("message", int(each["p2p_seq_id"])) if is_message else ("", int(each["collective_seq_id"]))
    axis = classes.axis(described, *map(str, rest), str(name)) or (PIPELINE if is_message else UNNAMED)
    seconds = None if duration is None else float(duration) * MS
    if not (0 <= sizes < inf and 0 <= (seconds or 0.0) < inf):
        raise ValueError(f"size {sizes}, duration {duration}")
    ended = each["state"] == ENDED or bool(each.get("retired"))
    group = (str(name), described, members)
    return Entry(axis, group, kind, number, sizes, seconds, ended)


def _bytes(each: Mapping[str, Any], side: str) -> float:
    """Bytes of the tensors of one side."""
    dtypes = each.get(f"{side}_dtypes") or ()
    sizes = each.get(f"{side}_sizes") or ()
    return float(sum(prod(size) * BYTES.get(str(dtype).lower(), 0) for size, dtype in zip(sizes, dtypes, strict=False)))


def _uses(meetings: Sequence[Mapping[int, Entry]], last: dict[int, int]) -> Iterator[GroupUse]:
    kinds: dict[tuple[str, str], list[Mapping[int, Entry]]] = defaultdict(list)
    for meeting in meetings:
        first = next(iter(meeting.values()))
        kinds[first.axis, first.kind].append(meeting)
    for (axis, kind), calls in sorted(kinds.items()):
        costs, waits = [], []
        for meeting in calls:
            times = {rank: entry.duration_s for rank, entry in meeting.items() if entry.duration_s is not None}
            if not times:
                continue
            least = min(times.values())
            costs.append(least)
            if len(times) > 1:
                waits.append(sum(times.values()) / len(times) - least)
                late = min(times, key=lambda rank: times[rank])
                if max(times.values()) > 2 * least:
                    last[late] += 1
        sizes = [next(iter(meeting.values())).size_bytes for meeting in calls]
        yield GroupUse(
            axis, kind, len(calls), float(np.median(sizes)), float(np.median(costs)) if costs else None,
            float(np.mean(waits)) if waits else None,
        )  # fmt: skip


def _stuck(meetings: Mapping[tuple[Any, ...], Mapping[int, Entry]], ranks: Sequence[int]) -> Iterator[Stuck]:
    """The first collective of every group that a rank did not end, with the ranks that have not called it."""
    seen = set[object]()
    for (group, _, number, _), meeting in sorted(meetings.items(), key=lambda item: item[0][2]):
        waiting = [entry for entry in meeting.values() if not entry.ended]
        if not waiting or group in seen:
            continue
        seen.add(group)
        entered = tuple(sorted(meeting))
        missing = tuple(rank for rank in group[2] if rank in ranks and rank not in entered)
        yield Stuck(waiting[0].axis, waiting[0].kind, number, entered, missing)
