"""A replay of execution traces that knows the files alone: its own decoder, dependencies, slots, rendezvous."""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from dataclasses import dataclass, field

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7


def number(data, at):
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def message(data):
    """Fields of a message: number to values in order."""
    found, at = defaultdict(list), 0
    while at < len(data):
        key, at = number(data, at)
        if key & 7 == 0:
            value, at = number(data, at)
        else:
            assert key & 7 == 2
            length, at = number(data, at)
            value, at = data[at : at + length], at + length
        found[key >> 3].append(value)
    return found


@dataclass
class Node:
    """A node as its file has it; ``end`` is when the replay ended it."""

    rank: int
    id: int
    name: str
    kind: int
    after: list
    duration_us: int
    said: dict = field(default_factory=dict)
    end: float | None = None

    @property
    def slot(self):
        """What it occupies on its rank: compute of the device, compute of the host, or nothing."""
        return (self.rank, self.said["is_cpu_op"]) if self.kind == COMPUTE else None


def read(data, rank):
    """Nodes of a file by id."""
    at, parts = 0, []
    while at < len(data):
        length, at = number(data, at)
        parts.append(data[at : at + length])
        at += length
    nodes = {}
    for each in parts[1:]:
        fields = message(each)
        after, place = [], 0
        packed = fields[5][0] if fields[5] else b""
        while place < len(packed):
            value, place = number(packed, place)
            after.append(value)
        said = {}
        for one in fields[10]:
            attribute = message(one)
            (kind,) = attribute.keys() - {1}
            value = attribute[kind][0]
            said[attribute[1][0].decode()] = value.decode() if kind == 29 else bool(value) if kind == 27 else value
        first = {key: (fields[key] or [0])[0] for key in (1, 3, 7)}
        node = Node(rank, first[1], (fields[2] or [b""])[0].decode(), first[3], after, first[7], said)
        assert node.id not in nodes, "ids are unique"
        nodes[node.id] = node
    return nodes


def replay(files, took=lambda node: node.duration_us, *, one_call=False):
    """When the last node of all files ends, in us; ``took`` says how long a node lasts once it runs.

    Nodes run when what they wait for has ended: kernels one at a time in a slot, those with a lower id first;
    collectives when the same one of every member is there; what is received when it was sent. With ``one_call`` a rank
    has one slot for what it calls and sends, from the call on: as ASTRA-sim has it.
    """
    groups = json.loads(files["comm_groups.json"])
    ranks = [read(files[f"trace.{rank}.et"], rank) for rank in range(sum(name.endswith(".et") for name in files))]
    waiting, behind, calls = {}, defaultdict(list), {}
    for rank, nodes in enumerate(ranks):
        nth = defaultdict(int)
        for node in sorted(nodes.values(), key=lambda node: node.id):
            key = (rank, node.id)
            waiting[key] = len(node.after)
            for each in node.after:
                assert each in nodes, "waits for a node that there is"
                behind[rank, each].append(node)
            if node.kind == COLLECTIVE:
                name = node.said["pg_name"]
                assert rank in groups[name], "calls collectives of its own groups"
                calls[key] = (name, nth[name])
                nth[name] += 1
    state = _State(groups, calls, took, one_call)
    for rank, nodes in enumerate(ranks):
        for node in nodes.values():
            if not waiting[rank, node.id]:
                state.ready(node, 0)
    while state.running:
        now = state.running[0][0]
        ended = []
        while state.running and state.running[0][0] == now:
            ended.append(heapq.heappop(state.running)[2])
        for node in ended:
            node.end = now
            state.free(node)
            for follower in behind[node.rank, node.id]:
                waiting[node.rank, follower.id] -= 1
                if not waiting[node.rank, follower.id]:
                    state.ready(follower, now)
        state.start(now)
    stuck = [node for nodes in ranks for node in nodes.values() if node.end is None]
    assert not stuck, f"never ran: {stuck[0]}"
    return max(node.end for nodes in ranks for node in nodes.values())


class _State:
    """What is ready, what runs, and who waits for whom between ranks."""

    def __init__(self, groups, calls, took, one_call):
        self.groups, self.calls, self.took, self.one_call = groups, calls, took, one_call
        self.called, self.calling = defaultdict(list), set()
        self.running, self.count = [], 0
        self.queued, self.busy = defaultdict(list), set()
        self.there = defaultdict(list)
        self.sent, self.receiving = {}, {}
        self.start(0)

    def run(self, node, now, duration):
        """Let a node run from now on."""
        self.count += 1
        heapq.heappush(self.running, (now + duration, self.count, node))

    def ready(self, node, now):
        """A node has nothing more to wait for on its rank."""
        if node.kind == COMPUTE:
            heapq.heappush(self.queued[node.slot], (node.id, node))
            if now == 0:
                self.start(0)
        elif self.one_call and node.kind in (SEND, COLLECTIVE):
            heapq.heappush(self.called[node.rank], (node.id, node))
            if now == 0:
                self.start(0)
        else:
            self.issue(node, now)

    def issue(self, node, now):
        """A node that communicates begins."""
        if node.kind == SEND:
            assert node.said["comm_src"] == node.rank
            self.run(node, now, self.took(node))
        elif node.kind == RECEIVE:
            assert node.said["comm_dst"] == node.rank
            key = self.message(node)
            assert key not in self.receiving, "tags are unique"
            self.receiving[key] = node
            if key in self.sent:
                self.run(node, max(now, self.sent[key]), 0)
        else:
            assert node.kind == COLLECTIVE
            call = self.calls[node.rank, node.id]
            self.there[call].append(node)
            if len(self.there[call]) == len(self.groups[call[0]]):
                said = {(each.said["comm_type"], each.said["comm_size"]) for each in self.there[call]}
                assert len(said) == 1, "members call the same"
                for each in self.there[call]:
                    self.run(each, now, self.took(each))

    def message(self, node):
        """What tells a message from all others."""
        return tuple(node.said[name] for name in ("comm_src", "comm_dst", "comm_tag", "comm_size"))

    def free(self, node):
        """A node has ended: its slot is free, or its message has arrived."""
        self.busy.discard(node.slot)
        if node.kind in (SEND, COLLECTIVE):
            self.calling.discard(node.rank)
        if node.kind == SEND:
            key = self.message(node)
            assert key not in self.sent, "tags are unique"
            self.sent[key] = node.end
            if key in self.receiving:
                self.run(self.receiving[key], node.end, 0)

    def start(self, now):
        """Fill free slots."""
        for slot, queue in self.queued.items():
            if queue and slot not in self.busy:
                node = heapq.heappop(queue)[1]
                self.busy.add(slot)
                self.run(node, now, self.took(node))
        for rank, queue in self.called.items():
            if queue and rank not in self.calling:
                self.calling.add(rank)
                self.issue(heapq.heappop(queue)[1], now)
