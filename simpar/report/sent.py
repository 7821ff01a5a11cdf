"""Bytes that a rank sends, as nccl-tests counts them: a ring all-reduce of X bytes over N ranks sends 2 (N-1)/N X."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from simpar.cost.collectives.algorithm import base_op, bus_factor
from simpar.program.structure.templates import HOST_OPS
from simpar.report.slot_facts import COMMUNICATION

if TYPE_CHECKING:
    from simpar.program.blocks.phases import CollectiveUse
    from simpar.program.blocks.segments import Segment
    from simpar.program.lower import Lowered
    from simpar.program.structure.templates import Template

ALONE = ("send", *HOST_OPS.values())
"""Operations of one rank, which moves all of its buffer."""


def sent_bytes(lowered: Lowered, class_id: int) -> dict[str, float]:
    """Bytes that a rank of a class sends in a step, by kind of communication."""
    network, actions = lowered.maker.network, lowered.actions[class_id]
    counts = np.bincount(actions.template, minlength=len(actions.templates)).tolist()
    result = dict.fromkeys(COMMUNICATION, 0.0)
    of_segment: dict[int, list[tuple[str, float]]] = {}
    of_use: dict[int, float] = {}

    def sent(use: CollectiveUse) -> float:
        if id(use) not in of_use:
            of_use[id(use)] = one_sends(use)
        return of_use[id(use)]

    def one_sends(use: CollectiveUse) -> float:
        if use.op in ALONE:
            return float(use.moved_bytes)
        group = network.group_of(class_id, use.group)
        ranks = len(network.quotient.groups[group].ranks) if group >= 0 else 1
        return use.moved_bytes * bus_factor(base_op(use.op), ranks)

    def inside(segment: Segment) -> list[tuple[str, float]]:
        if id(segment) not in of_segment:
            uses = ((step.kind, step.collective) for step in segment.steps)
            of_segment[id(segment)] = [(kind, sent(use)) for kind, use in uses if use is not None]
        return of_segment[id(segment)]

    def moved(template: Template) -> Iterator[tuple[str, float]]:
        for node in template.nodes:
            if node.collective is not None:
                yield node.kind, sent(node.collective)
            for _, segment in node.segments:
                yield from ((kind, node.repeats * size) for kind, size in inside(segment))

    for template, count in zip(actions.templates, counts, strict=True):
        for kind, size in moved(template) if count else ():
            result[kind] += count * size
    return result
