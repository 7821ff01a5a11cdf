"""What the fullest rank of a step holds at its peak, by category and layer."""

from collections.abc import Iterator

import numpy as np

from simpar.cost.memory.terms import ALWAYS, BETWEEN, PASSES, UPDATE
from simpar.program.footprint import Footprint
from simpar.program.held_by_layer import WEIGHTS, activations_by_layer, weights_by_layer
from simpar.program.ir.program import MEMORY_CATEGORIES
from simpar.report.context import SummaryInputs
from simpar.report.pictured import HeldAtPeak, HeldPart

IN_PASS = "while a block runs"
SEVERAL = "of several layers"
"""Activations that wait on the host in part, or of passes that run two by two, are not shared out among layers."""


def held_at_peak(context: SummaryInputs, held: tuple[Footprint, ...]) -> HeldAtPeak:
    """What the class with the fullest devices holds when its memory peaks; parts add up to that peak."""
    class_id = max(range(len(held)), key=lambda each: held[each].needed_bytes / held[each].capacity_bytes)
    one = held[class_id]
    parts = [*_weights(context, one), *_moving(context, class_id, one)]
    parts.append(HeldPart(category="overhead", name="context and communicators", size_bytes=one.overhead_bytes))
    return HeldAtPeak(
        stage=one.stage, capacity_bytes=one.capacity_bytes, parts=tuple(part for part in parts if part.size_bytes)
    )


def _alive(one: Footprint) -> tuple[str, ...]:
    """The lifetimes of static terms that are there at the peak of a class."""
    if not one.peaks_between:
        return ALWAYS, PASSES
    return ALWAYS, UPDATE if one.static.ends_in_update else BETWEEN


def _weights(context: SummaryInputs, one: Footprint) -> Iterator[HeldPart]:
    """Static terms: those of weights by layer, others by their name."""
    alive = _alive(one)
    shared = weights_by_layer(context.lowered.maker.builders[one.stage], one.stage, one.static)
    by_layer: dict[tuple[str, int], float] = {}
    for (category, _, when), sizes in shared.items():
        for layer, size in sizes.items() if when in alive else ():
            by_layer[category, layer] = by_layer.get((category, layer), 0.0) + size
    for (category, layer), size in sorted(by_layer.items(), key=lambda each: (WEIGHTS.index(each[0][0]), each[0][1])):
        yield HeldPart(category=category, name=_name(context, layer), size_bytes=size)
    for term in one.static.terms:
        if term.alive in alive and (term.category, term.name, term.alive) not in shared:
            yield HeldPart(category=term.category, name=term.name, size_bytes=float(np.sum(term.size_bytes)))


def _moving(context: SummaryInputs, class_id: int, one: Footprint) -> Iterator[HeldPart]:
    """What passes hold: saved tensors by layer, the rest by its category."""
    if one.peaks_between:
        return
    time_ns, curve = context.moving_memory(class_id)
    at = int(np.argmax(curve.sum(axis=1)))
    moving = dict(zip(MEMORY_CATEGORIES, curve[at].tolist(), strict=True))
    saved = activations_by_layer(context.lowered, context.timing, class_id, int(time_ns[at]))
    if sum(saved.values()) == moving["activations"] and min(saved.values(), default=0) >= 0:
        for layer, size in saved.items():
            yield HeldPart(category="activations", name=_name(context, layer), size_bytes=size)
    else:
        yield HeldPart(category="activations", name=SEVERAL, size_bytes=moving["activations"])
    for category in MEMORY_CATEGORIES[1:]:
        yield HeldPart(category=category, name=IN_PASS, size_bytes=moving[category])


def _name(context: SummaryInputs, layer: int) -> str:
    """A layer as pictures name it."""
    if layer < 0:
        return "embedding"
    return "head" if layer == len(context.job.graph.layers) else f"layer {layer}"
