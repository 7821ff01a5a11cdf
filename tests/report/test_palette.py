"""Colours: one meaning each, in every picture."""

import numpy as np

from simpar.report.palette import IDLE_COLOUR, KIND_COLOUR, PART_COLOUR, ink_on, lighter
from simpar.report.parts import TimeBreakdown
from simpar.report.timeline import KINDS


def test_every_kind_of_op_has_a_colour():
    """A new kind cannot be forgotten in the pictures; at most eight colours, no two of them close to each other."""
    assert set(KIND_COLOUR) == set(KINDS)
    colours = sorted(set(KIND_COLOUR.values()))
    assert len(colours) <= 8
    levels = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours])
    apart = np.sqrt(((levels[:, None] - levels[None]) ** 2).sum(axis=2)) + 1000 * np.eye(len(colours))
    assert apart.min() > 80


def test_launches_and_the_optimizer_are_told_apart():
    """A step that waits for its host does not read as one that updates parameters, in any picture."""
    assert KIND_COLOUR["host"] == PART_COLOUR["host"] == IDLE_COLOUR["host"] != PART_COLOUR["optimizer"]


def test_every_part_of_the_step_has_the_colour_of_the_timeline():
    """One table: communication is one colour in the breakdown and in the timeline, and so are updates and idle time."""
    assert set(PART_COLOUR) == set(TimeBreakdown.model_fields)
    for part, colour in PART_COLOUR.items():
        kind = part.removeprefix("exposed_")
        assert colour == KIND_COLOUR.get(kind, IDLE_COLOUR.get(kind, colour))


def test_shades_grow_lighter_and_their_ink_is_read():
    """Chunk by chunk up to half way to white; letters are white on dark shades and dark on light ones."""
    shades = [lighter("#222255", step) for step in range(4)]
    assert shades == sorted(shades)
    assert lighter("#222255", 9) == lighter("#222255", 99)
    assert (ink_on((0.0, 0.0, 0.0)), ink_on((1.0, 1.0, 1.0))) == ("white", "#333333")
