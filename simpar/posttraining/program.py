"""Both pools over many steps as a Program: a stream for training and one for every replica, ops with durations.

An op's start follows from the order of its streams and from what it waits for, so that any engine gives every op the
time at which it happened (:mod:`simpar.posttraining.pools`). New weights are flows over links between two moments at
which all streams stand still.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from simpar.dataclass import dataclass
from simpar.posttraining.pools import TRAINING, Interval
from simpar.posttraining.weight_flows import FLOW, NewWeights, WeightLinks
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.program import Label, Program
from simpar.units import Ints

KINDS = {
    "generate": "responses", "switch": "states to or from the host", "score": "passes over responses",
    "train": "updates", "weights": "to all replicas", FLOW: "weights on links",
}  # fmt: skip
"""By kind of interval, which is that of its op: the op's name."""


def in_order(intervals: Sequence[Interval]) -> list[Interval]:
    """Intervals by start; those without a duration stand in the order in which they were noted."""
    return sorted(intervals, key=lambda each: (each.start_ns, each.finish_ns, each.stream >= 0))


@dataclass(frozen=True)
class StepsProgram:
    """The Program of steps: interval i of :func:`in_order` lasts from the start of op ``first[i]`` to the end of op i.

    These are the same op, but for weights that are flows: then there are ops in between.
    """

    program: Program
    first: Ints


def program_of(
    intervals: Sequence[Interval], replicas: int, weights: NewWeights | None = None, beside: Sequence[str] = ()
) -> StepsProgram:
    """The Program of intervals; where ``weights`` says how they move, each of their arrivals is flows over links.

    ``beside`` names other models' devices, whose streams are numbered down from that of training.
    """
    build = ProgramBuilder()
    training = build.add_class("training")
    streams = {TRAINING: build.add_stream("training", training)}
    classes = {TRAINING: training}
    for at in range(replicas):
        classes[at] = build.add_class(f"replica {at}")
        streams[at] = build.add_stream("generation", classes[at])
    for at, name in enumerate(beside):
        stream = TRAINING - 1 - at
        classes[stream] = build.add_class(name)
        streams[stream] = build.add_stream("training", classes[stream])
    ordered = in_order(intervals)
    moved = [weights is not None and each.kind == "weights" for each in ordered]
    labels = [build.label(Label(each.kind, KINDS[each.kind])) for each in ordered]
    took = [each.finish_ns - each.start_ns for each in ordered]
    fixed_ns = [weights.overhead_ns if weights and flows else ns for ns, flows in zip(took, moved, strict=True)]
    ops = build.add_ops(
        len(ordered),
        class_id=np.array([classes[each.stream] for each in ordered]),
        label=np.array(labels),
        fixed_ns=np.array(fixed_ns),
        microbatch=np.array([each.step for each in ordered]),
    )
    links = WeightLinks(build, weights) if weights else None
    ended = {(each.stream, each.finish_ns): op for each, op in zip(ordered, ops.tolist(), strict=True)}
    first = ops.copy()
    for at, (each, op) in enumerate(zip(ordered, ops.tolist(), strict=True)):
        mine = [streams[each.stream], *(streams[at] for at in range(each.joins))]
        if links is not None and moved[at]:
            first[at] = _add_flows(build, links, each, streams, op)
        build.place(mine, op)
        waits = [ended[end] for end in each.waits_for]
        if waits:
            build.depend(int(first[at]), waits)
    return StepsProgram(build.build(), first)


def _add_flows(build: ProgramBuilder, links: WeightLinks, each: Interval, streams: Mapping[int, int], last: int) -> int:
    """Flows of weights between an op at which all streams stand still, which is returned, and the ``last`` one."""
    begin = int(build.add_ops(1, label=build.label(Label("weights", "begin")), microbatch=each.step)[0])
    build.place([streams[each.stream], *(streams[at] for at in range(each.joins))], begin)
    joined = links.weights.joined
    receivers = [
        range(joined) if on_trainers else range(joined, each.joins) for on_trainers in links.weights.on_trainers
    ]
    for copies in links.add(begin, [[streams[at] for at in some] for some in receivers], each.step):
        build.depend(last, copies)
    return begin
