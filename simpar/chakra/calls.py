"""Collectives and messages of a lowered step as calls: operation, bytes, and the real ranks that take part."""

from collections.abc import Mapping
from math import ceil

from simpar.cost.collectives.algorithm import base_op, is_exchange
from simpar.dataclass import dataclass
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.lower import Lowered

PERMUTE, MESSAGE = "permute", "send"
AS_EXCHANGE = "all_to_all"
WRITTEN = ("all_reduce", "all_gather", "reduce_scatter", AS_EXCHANGE, "broadcast")
"""Collectives that ASTRA-sim can replay (a broadcast with the duration stated in the trace)."""
MOST_CALLS = 64
"""An op of more calls becomes a single node with the bytes of all of them."""


@dataclass(frozen=True)
class CommunicationCall:
    """An op that communicates: ``operation`` on ``members`` in the order of their group.

    It consists of ``calls`` calls of ``size_bytes`` each, one behind the other. As in execution traces, these are the
    bytes that a rank has before the operation, or a whole message. ``members`` of a message are sender and receiver.
    """

    operation: str
    size_bytes: int
    calls: int
    members: tuple[int, ...]

    @property
    def is_written(self) -> bool:
        """Whether an execution trace has a node for it."""
        return self.operation in (*WRITTEN, MESSAGE, PERMUTE)


def calls_of(lowered: Lowered) -> dict[int, CommunicationCall]:
    """The ops that communicate, by number. In ``lowered`` every rank must be its own class."""
    members = _members(lowered)
    result: dict[int, CommunicationCall] = {}
    slots, op_of_slot = lowered.slots, lowered.op_of_slot
    for class_id, actions in enumerate(lowered.actions):
        mine = slots.of_class(class_id)
        columns = (slots.action[mine], slots.node[mine], slots.group[mine], op_of_slot[mine])
        template = actions.template.tolist()
        for action, node, group, op in zip(*(column.tolist() for column in columns), strict=True):
            if group >= 0 and op not in result:
                use = actions.templates[template[action]].nodes[node].collective
                assert use is not None, "slots with a group are collectives"
                result[op] = _call(use, _in_order(members[group], class_id, lowered, group))
    return result


def _members(lowered: Lowered) -> list[tuple[int, ...]]:
    """Ranks of every group class in the order in which the plan lists them."""
    network = lowered.maker.network
    rank_of_class = network.quotient.representative_rank
    orders: dict[tuple[int, ...], tuple[int, ...]] = {}
    for kind in network.kinds:
        orders |= {tuple(sorted(row)): tuple(row) for row in kind.groups.tolist() if not kind.directed}
    joined = (tuple(sorted(rank_of_class[list(group.members)].tolist())) for group in network.quotient.groups)
    return [orders.get(ranks, ranks) for ranks in joined]


def _in_order(members: tuple[int, ...], class_id: int, lowered: Lowered, group: int) -> tuple[int, ...]:
    """Members of a group; in directed groups the sender, to whom the op belongs, comes first."""
    quotient = lowered.maker.network.quotient
    if not quotient.groups[group].directed:
        return members
    sender = int(quotient.representative_rank[class_id])
    return (sender, *(rank for rank in members if rank != sender))


def _call(use: CollectiveUse, members: tuple[int, ...]) -> CommunicationCall:
    operation = AS_EXCHANGE if is_exchange(use.op) else base_op(use.op)
    count = max(round(float(use.count)), 1)
    count = count if count <= MOST_CALLS else 1
    size = use.moved_bytes / count
    if operation == "all_gather":
        size /= len(members)
    return CommunicationCall(operation, max(ceil(size), 1), count, members)


def group_names(calls: Mapping[int, CommunicationCall]) -> dict[tuple[int, ...], str]:
    """Names of the process groups of a trace's collectives: numbers from 1 on, in order of their ranks.

    ASTRA-sim reads names as numbers and takes "0" as all ranks.
    """
    groups = {call.members for call in calls.values() if call.operation in WRITTEN}
    return {members: str(number) for number, members in enumerate(sorted(groups), start=1)}
