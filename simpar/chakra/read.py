"""Chakra's execution traces as a recording: ``PREFIX.RANK.et`` of every rank, and the file of process groups."""

import json
import re
from collections.abc import Mapping
from heapq import heappop, heappush
from pathlib import Path

from simpar.chakra.messages import (
    COLLECTIVE,
    COLLECTIVES,
    COMPUTE,
    INVALID,
    METADATA,
    RECEIVE,
    SEND,
    ChakraTrace,
    TraceNode,
    decode,
)
from simpar.chakra.recording import Event, Message, RecordedCollective, Recording
from simpar.chakra.wire import WireError
from simpar.chakra.write import GROUPS
from simpar.errors import UserError
from simpar.files import allowed, load
from simpar.regular_files import check_is_file

DEVICE, HOST = "compute", "host"
Groups = Mapping[str, tuple[int, ...]]
_NUMBERED = re.compile(r"(\d+)\D*$")
_NS_PER_US = 1000


def by_rank(paths: list[Path]) -> list[Path]:
    """Files in the order of their ranks, with which their names end. Raises UserError where ranks are missing."""
    files: dict[int, Path] = {}
    for path in paths:
        number = _NUMBERED.search(path.name.removesuffix(".gz").rpartition(".")[0])
        if number is None:
            raise UserError(f"{path}: says no rank; allowed: names that end with it, such as trace.0.et or step-0.json")
        rank = int(number[1])
        if rank in files:
            raise UserError(f"{path}: rank {rank} is also {files[rank]}; allowed: one file a rank")
        files[rank] = path
    missing = [rank for rank in range(len(files)) if rank not in files]
    if missing:
        raise UserError(f"rank {missing[0]} is missing among {len(files)} traces (their names end with the rank)")
    return [files[rank] for rank in range(len(files))]


def read_chakra(paths: list[Path]) -> Recording:
    """The recording of files in order of their ranks. Raises UserError."""
    groups = _groups(paths[0].parent / GROUPS, len(paths))
    ranks = []
    for rank, path in enumerate(paths):
        check_is_file(path, again=True)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        trace = decode(data, str(path))
        try:
            ranks.append(_events(trace, rank, groups))
        except WireError as error:
            raise UserError(f"{path}: {error}") from None
    return Recording(tuple(ranks))


def _groups(path: Path, world: int) -> Groups:
    """Process groups by name; "" and "0" are all ranks, as in ASTRA-sim."""
    groups: dict[str, tuple[int, ...]] = {}
    if path.is_file():
        data = load(path).data
        if not isinstance(data, dict):
            raise UserError(f"{path}: allowed: a mapping of names to lists of ranks")
        for name, members in data.items():
            if not (isinstance(members, list) and members and all(isinstance(each, int) for each in members)):
                raise UserError(f"{path}: {name} = {json.dumps(members)[:40]}: allowed: a list of ranks")
            outside = [each for each in members if not 0 <= each < world]
            if outside:
                raise UserError(f"{path}: {name}: rank {outside[0]}: there are traces of 0..{world - 1}")
            groups[str(name)] = tuple(members)
    everybody = tuple(range(world))
    return {**groups, "": everybody, "0": everybody}


def _events(trace: ChakraTrace, rank: int, groups: Groups) -> tuple[Event, ...]:
    """Events in an order in which each comes behind its dependencies; of several possible ones the lowest id first."""
    nodes = {node.id: node for node in trace.nodes}
    if len(nodes) < len(trace.nodes):
        raise WireError("two nodes have the same id")
    waiting, behind = dict[int, int](), dict[int, list[int]]()
    for node in trace.nodes:
        waiting[node.id] = len(node.after)
        for each in node.after:
            if each not in nodes:
                raise WireError(f"node {node.id} waits for node {each}, which there is not")
            behind.setdefault(each, []).append(node.id)
    ready = [number for number in sorted(waiting) if not waiting[number]]
    place: dict[int, int] = {}
    events: list[Event] = []
    while ready:
        node = nodes[heappop(ready)]
        place[node.id] = len(events)
        events.append(_event(node, rank, groups, tuple(place[each] for each in node.after)))
        for follower in behind.get(node.id, ()):
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, follower)
    if len(events) < len(nodes):
        stuck = min(nodes.keys() - place.keys())
        raise WireError(f"node {stuck} and others wait for each other")
    return tuple(events)


def _event(node: TraceNode, rank: int, groups: Groups, after: tuple[int, ...]) -> Event:
    duration_ns = node.duration_us * _NS_PER_US
    if node.kind == COMPUTE:
        stream = HOST if node.number("is_cpu_op", 1) else DEVICE
        return Event(node.name, stream, after, duration_ns)
    if node.kind in (METADATA, INVALID):
        return Event(node.name, "", after, 0)
    if node.kind == COLLECTIVE:
        return Event(node.name, "", after, duration_ns, _collective(node, rank, groups))
    if node.kind in (SEND, RECEIVE):
        ends = node.number("comm_src", rank), node.number("comm_dst", rank)
        sent = node.kind == SEND
        if ends[0 if sent else 1] != rank:
            raise WireError(f"node {node.id} {node.name}: a message of ranks {ends[0]} and {ends[1]} in rank {rank}")
        message = Message(*ends, node.number("comm_tag"), node.number("comm_size"), sent)
        return Event(node.name, "", after, duration_ns if sent else 0, message)
    raise WireError(f"node {node.id} {node.name}: type {node.kind} is not replayed; allowed: compute, communication")


def _collective(node: TraceNode, rank: int, groups: Groups) -> RecordedCollective:
    kind, name = node.number("comm_type", -1), str(node.attributes.get("pg_name", ""))
    if not 0 <= kind < len(COLLECTIVES):
        raise WireError(f"node {node.id} {node.name}: comm_type = {kind}{allowed(COLLECTIVES)}")
    if name not in groups:
        raise WireError(f"node {node.id} {node.name}: pg_name = {name!r} is not in {GROUPS}")
    members = groups[name]
    if rank not in members:
        raise WireError(f"node {node.id} {node.name}: rank {rank} is not in group {name}")
    operation = COLLECTIVES[kind]
    size = node.number("comm_size")
    return RecordedCollective(operation, name, members, size * len(members) if operation == "all_gather" else size)
