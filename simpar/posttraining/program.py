"""Both pools over many steps as a Program: a stream for training and one for every replica, ops with durations.

An op's start follows from the order of its streams and from what it waits for, so that any engine gives every op the
time at which it happened (:mod:`simpar.posttraining.pools`).
"""

from collections.abc import Sequence

import numpy as np

from simpar.posttraining.pools import Interval
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import Label, Program

TRAINING = -1
KINDS = {
    "generate": "responses", "switch": "states to or from the host", "score": "passes over responses",
    "train": "updates", "weights": "to all replicas",
}  # fmt: skip
"""By kind of interval, which is that of its op: the op's name."""


def in_order(intervals: Sequence[Interval]) -> list[Interval]:
    """Intervals by start; those without a duration stand in the order in which they were noted."""
    return sorted(intervals, key=lambda each: (each.start_ns, each.finish_ns, each.stream >= 0))


def program_of(intervals: Sequence[Interval], replicas: int) -> Program:
    """The Program whose op i is interval i of :func:`in_order`."""
    build = ProgramBuilder()
    training = build.add_class("training")
    streams = {TRAINING: build.add_stream("training", training)}
    classes = {TRAINING: training}
    for at in range(replicas):
        classes[at] = build.add_class(f"replica {at}")
        streams[at] = build.add_stream("generation", classes[at])
    ordered = in_order(intervals)
    labels = [build.label(Label(each.kind, KINDS[each.kind])) for each in ordered]
    ops = build.add_ops(
        len(ordered),
        class_id=np.array([classes[each.stream] for each in ordered]),
        label=np.array(labels),
        fixed_ns=np.array([each.finish_ns - each.start_ns for each in ordered]),
        microbatch=np.array([each.step for each in ordered]),
    )
    ended = {(each.stream, each.finish_ns): op for each, op in zip(ordered, ops.tolist(), strict=True)}
    for each, op in zip(ordered, ops.tolist(), strict=True):
        mine = [streams[each.stream], *(streams[at] for at in range(each.joins))]
        build.place(mine, op)
        waits = [ended[end] for end in each.waits_for]
        if waits:
            build.depend(op, waits)
    return build.build()
