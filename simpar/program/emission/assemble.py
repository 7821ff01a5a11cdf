"""Assembly: slots and their rows become the columns of a Program, shared collectives merged into one op."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simpar.program.emission.emit import Links, Slots
from simpar.program.emission.traffic import Network
from simpar.program.fold.layout import Layout
from simpar.program.ir.program import Csr, Label, MemoryTable, OpTable, Program, Routes

Ints = NDArray[np.int64]


def assemble(
    slots: Slots, rows: Links, labels: tuple[Label, ...], streams: tuple[str, ...], network: Network
) -> tuple[Program, Ints]:
    """The Program of all slots, and the op that each slot became (int64[num_slots])."""
    layout = network.layout
    op_of_slot = _merge(slots, layout)
    kept = np.zeros(len(op_of_slot), dtype=bool)
    kept[np.unique(op_of_slot, return_index=True)[1]] = True
    num_ops = int(kept.sum())
    program = Program(
        ops=OpTable(
            class_id=slots.class_id[kept],
            fixed_ns=slots.fixed_ns[kept],
            work_bytes=slots.work_bytes[kept],
            route=slots.route[kept],
            rate_cap_bytes_per_s=slots.rate_cap[kept],
            label=slots.label[kept],
            microbatch=slots.microbatch[kept],
            stage=slots.stage[kept],
        ),
        dependencies=_dependencies(rows.dependency, op_of_slot, num_ops),
        streams=_streams(rows.stream, op_of_slot, len(streams) * layout.num_classes),
        stream_names=streams * layout.num_classes,
        stream_class=np.repeat(np.arange(layout.num_classes), len(streams)),
        routes=_routes(network),
        memory=MemoryTable(
            op=op_of_slot[rows.memory[:, 0]],
            at_finish=rows.memory[:, 1].astype(bool),
            class_id=rows.memory[:, 4],
            delta_bytes=rows.memory[:, 2],
            category=rows.memory[:, 3],
        ),
        labels=labels,
        class_names=tuple(f"class {index}" for index in range(layout.num_classes)),
        multiplicity=layout.multiplicity,
    )
    return program, op_of_slot


def _merge(slots: Slots, layout: Layout) -> Ints:
    """The op of every slot; the k-th slot of a group kind in one member class is the k-th in all others."""
    owner = np.arange(len(slots.class_id))
    for index, group in enumerate(layout.groups):
        if len(group.members) < 2 or group.directed:
            continue
        first, *others = (
            np.flatnonzero((slots.group == index) & (slots.class_id == c)) for c in group.members
        )
        for other in others:
            assert len(other) == len(first), (
                f"classes {group.members} call the {group.kind} group unequally often"
            )
            owner[other] = first
    kept = owner == np.arange(len(owner))
    return (np.cumsum(kept) - 1)[owner]


def _dependencies(rows: Ints, op_of_slot: Ints, num_ops: int) -> Csr:
    return Csr.of(op_of_slot[rows[:, 0]], op_of_slot[rows[:, 1]], num_ops)


def _streams(rows: Ints, op_of_slot: Ints, num_streams: int) -> Csr:
    """Slots of a stream in slot order, which is program order within a class."""
    ordered = rows[np.argsort(rows[:, 0], kind="stable")]
    return Csr.of(ordered[:, 1], op_of_slot[ordered[:, 0]], num_streams)


def _routes(network: Network) -> Routes:
    lengths = [len(route.links) for route in network.routes]
    empty = np.zeros(0)
    return Routes(
        links=Csr(
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            np.concatenate([empty, *(route.links for route in network.routes)]).astype(np.int64),
        ),
        coefficient=np.concatenate([empty, *(route.coefficients for route in network.routes)]),
        capacity_bytes_per_s=np.floor(network.layout.link_capacity_bytes_per_s).astype(np.int64),
        link_names=network.layout.link_names,
    )
