"""torch's execution traces as a recording: operators priced on a device, collectives by bytes and group.

A trace has no times. Kernels of a rank run one after the other in the order of its operators; beside them, so do the
collectives of each group. A collective starts behind the kernels launched before it. A kernel that touches the tensors
that it writes waits for it; a collective that is not asynchronous holds up all kernels behind it. The host is not
timed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from simpar.chakra.host_nodes import COMMS_NODE, HostNode, HostTensor, HostTrace, read_host_trace
from simpar.chakra.host_work import HostPricer, is_whole, works_itself
from simpar.chakra.recording import Event, Message, RecordedCollective, Recording
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.hardware.device import Device

DEVICE = "compute"
MESSAGES = "messages"


@dataclass(frozen=True)
class _Kind:
    """A collective of torch: its operation, and the names of the arguments with its full tensor and its output.

    ``whole`` is the argument with the full tensor or, with ``times_members``, with one rank's part of it. Without
    ``writes`` the output is the operator's result.
    """

    operation: str
    whole: str
    writes: str = ""
    times_members: bool = False


KINDS: Mapping[str, _Kind] = {
    "c10d::allreduce_": _Kind("all_reduce", "tensors", "tensors"),
    "c10d::allreduce_coalesced_": _Kind("all_reduce", "tensors", "tensors"),
    "c10d::reduce_": _Kind("reduce", "tensors", "tensors"),
    "c10d::broadcast_": _Kind("broadcast", "tensors", "tensors"),
    "c10d::allgather_": _Kind("all_gather", "input_tensors", "output_tensors", times_members=True),
    "c10d::_allgather_base_": _Kind("all_gather", "output_tensor", "output_tensor"),
    "c10d::allgather_into_tensor_coalesced_": _Kind("all_gather", "outputs", "outputs"),
    "c10d::reduce_scatter_": _Kind("reduce_scatter", "input_tensors", "output_tensors"),
    "c10d::_reduce_scatter_base_": _Kind("reduce_scatter", "input_tensor", "output_tensor"),
    "c10d::reduce_scatter_tensor_coalesced_": _Kind("reduce_scatter", "inputs", "outputs"),
    "c10d::alltoall_base_": _Kind("all_to_all", "input", "output"),
    "c10d::alltoall_": _Kind("all_to_all", "input_tensors", "output_tensors"),
    "c10d::barrier": _Kind("barrier", ""),
    "_c10d_functional::all_reduce": _Kind("all_reduce", "input"),
    "_c10d_functional::all_reduce_": _Kind("all_reduce", "input"),
    "_c10d_functional::all_gather_into_tensor": _Kind("all_gather", "input", times_members=True),
    "_c10d_functional::reduce_scatter_tensor": _Kind("reduce_scatter", "input"),
    "_c10d_functional::all_to_all_single": _Kind("all_to_all", "input"),
    "_c10d_functional::broadcast": _Kind("broadcast", "input"),
}
"""Collectives by operator. Sources: torch 2.13, csrc/distributed/c10d/Ops.cpp and Functional.cpp."""
SENT, RECEIVED = "c10d::send", "c10d::recv_"
_WAITS = "_c10d_functional::wait_tensor"
_NAMESPACES = ("c10d::", "_c10d_functional::")


def read_host_traces(paths: Sequence[Path], device: Device) -> Recording:
    """The recording of traces in the order of their ranks, on a device. Raises UserError."""
    world = len(paths)
    ranks = [_RankEvents(read_host_trace(path, world), rank, world, device).events() for rank, path in enumerate(paths)]
    if not any(ranks):
        raise UserError(f"{paths[0]}: has no operators; allowed: a trace between start and stop of its observer")
    notes = ("times of kernels are predicted from shapes; the host is not simulated",)
    return Recording(tuple(ranks), notes)


class _RankEvents:
    """Events of one rank."""

    def __init__(self, trace: HostTrace, rank: int, world: int, device: Device) -> None:
        self.trace, self.rank, self.world = trace, rank, world
        self.work = HostPricer(device, trace.source)
        self.found: list[Event] = []
        self._last = -1
        """Place of the last kernel."""
        self._writing: dict[int, int] = {}
        """Storages that a collective writes, with its place, until a kernel waits for it."""
        self._held: set[int] = set()
        """Places of the collectives for which the next kernel waits."""

    def events(self) -> tuple[Event, ...]:
        """All events of the rank."""
        nodes = {node.id for node in self.trace.nodes}
        roots = [node for node in self.trace.nodes if node.parent not in nodes or node.parent == node.id]
        waiting, seen = [(node, False) for node in reversed(roots)], 0
        while waiting:
            node, is_left = waiting.pop()
            seen += not is_left
            if is_left:
                self._kernel(node)
            elif self._take(node):
                seen += sum(1 for _ in self.trace.inside(node))
            else:
                if works_itself(node, self.trace.inside(node)):
                    waiting.append((node, True))
                waiting += [(each, False) for each in reversed(self.trace.children.get(node.id, ()))]
        if seen < len(nodes):
            raise UserError(f"{self.trace.source}: ctrl_deps: some nodes call each other; allowed: a tree of calls")
        return tuple(self.found)

    def _take(self, node: HostNode) -> bool:
        """Append the event of a node that is priced as a whole; whether it is, so that its callees are skipped."""
        if node.name in KINDS:
            self._collective(node, KINDS[node.name])
        elif node.name in (SENT, RECEIVED):
            self._message(node)
        elif node.name == _WAITS:
            self._touch(node.tensors())
        elif node.name.startswith(_NAMESPACES):
            raise UserError(
                f"{self.trace.source}: node {node.id} {node.name}: is not read; allowed: "
                f"{', '.join(sorted({kind.operation for kind in KINDS.values()}))}, send and recv"
            )
        elif is_whole(node):
            self._kernel(node)
        else:
            return False
        return True

    def _kernel(self, node: HostNode) -> None:
        tensors = (*node.tensors(), *node.results)
        on_host = all(tensor.on_host for tensor in tensors)
        if self.trace.is_of_host:  # the host then works on tensors, and on single numbers beside them
            on_host = all(not tensor.shape for tensor in tensors)
        took = None if on_host else self.work.duration_ns(node)
        if took is None:
            return
        self._touch(tensors)
        self._last = self._append(Event(node.name, DEVICE, tuple(sorted(self._held)), took))
        self._held.clear()

    def _touch(self, tensors: Sequence[HostTensor]) -> None:
        """Let the next kernel wait for collectives that write some tensors."""
        for tensor in tensors:
            if tensor.storage in self._writing:
                self._held.add(self._writing.pop(tensor.storage))

    def _collective(self, node: HostNode, kind: _Kind) -> None:
        name, members = self._group(node)
        size = sum(each.size_bytes for each in node.tensors(kind.whole)) if kind.whole else 0
        size *= len(members) if kind.times_members else 1
        at = self._communicate(node, f"group {name}", RecordedCollective(kind.operation, name, members, size))
        written = node.tensors(kind.writes) if kind.writes else node.results
        self._written(node, at, written)

    def _message(self, node: HostNode) -> None:
        name, members = self._group(node)
        other, tag = node.value("dst" if node.name == SENT else "src"), node.value("tag")
        if not isinstance(other, int) or not isinstance(tag, int) or not 0 <= other < len(members):
            raise UserError(f"{self.trace.source}: node {node.id} {node.name}: says no rank of group {name}")
        size, peer = sum(each.size_bytes for each in node.tensors("tensors")), members[other]
        sent = node.name == SENT
        ends = (self.rank, peer) if sent else (peer, self.rank)
        at = self._communicate(node, MESSAGES if sent else "", Message(*ends, tag, size, sent))
        if not sent:
            self._written(node, at, node.tensors("tensors"))

    def _communicate(self, node: HostNode, stream: str, call: RecordedCollective | Message) -> int:
        """Append a communication after the kernels before it and the collectives that write its tensors; its place."""
        waited = {self._writing[each.storage] for each in node.tensors() if each.storage in self._writing}
        before = {self._last} if self._last >= 0 else set()
        return self._append(Event(node.name, stream, tuple(sorted(waited | before | self._held)), None, call))

    def _written(self, node: HostNode, at: int, tensors: Sequence[HostTensor]) -> None:
        self._writing |= {tensor.storage: at for tensor in tensors}
        if node.value("async_op") is False:
            self._held.add(at)

    def _append(self, event: Event) -> int:
        self.found.append(event)
        return len(self.found) - 1

    def _group(self, node: HostNode) -> tuple[str, tuple[int, ...]]:
        """(Name, ranks) of the process group of a call: the one that the trace states, or the only possible one."""
        said = node.value("group_name")
        if not isinstance(said, str):
            comms = (each for each in self.trace.inside(node) if each.name == COMMS_NODE)
            said = next((each.attributes["pg_name"] for each in comms if "pg_name" in each.attributes), None)
        groups, everybody = self.trace.groups, tuple(range(self.world))
        if isinstance(said, str):
            if said not in groups:
                raise UserError(f"{self.trace.source}: node {node.id} {node.name}: process group {said!r} is not said")
            return said, groups[said]
        if all(ranks == everybody for ranks in groups.values()):
            return "", everybody
        raise UserError(
            f"{self.trace.source}: node {node.id} {node.name}: does not say its process group, and there are several; "
            "allowed: traces of NCCL, or groups of all ranks"
        )
