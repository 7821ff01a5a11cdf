"""Colours: one meaning each, in every picture."""

import numpy as np
import pytest

from simpar.report.palette import (
    IDLE_COLOUR,
    KERNEL_COLOUR,
    KIND_COLOUR,
    MEMORY_COLOUR,
    PART_COLOUR,
    ink_on,
    lighter,
    tint,
)
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


EYES = {
    "all cones": np.eye(3),
    "no red cones": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "no green cones": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "no blue cones": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""What linear RGB becomes to an eye [Machado, Oliveira and Fernandes 2009, table 1, severity 1]."""


def lab(colour: str, eye: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of a colour as an eye sees it."""
    level = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(eye @ linear, 0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize(
    "picture", [KIND_COLOUR, MEMORY_COLOUR, PART_COLOUR, KERNEL_COLOUR], ids=["kinds", "memory", "parts", "kernels"]
)
def test_colours_of_a_picture_are_told_apart_without_a_kind_of_cones(picture, eye):
    """Any two are 10 apart in CIELAB, where 2.3 is a just noticeable difference."""
    seen = [lab(colour, EYES[eye]) for colour in sorted(set(picture.values()))]
    apart = [np.linalg.norm(one - other) for at, one in enumerate(seen) for other in seen[:at]]
    assert min(apart) > 10


def test_tints_are_half_way_to_white():
    """As the script of pages draws them."""
    assert (tint("#000000"), tint("#FFFFFF"), tint("#EE6677")) == ("#808080", "#FFFFFF", "#F7B3BB")
