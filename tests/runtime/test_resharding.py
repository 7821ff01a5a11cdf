"""Pieces of a tensor between two stages: every rank gets what it needs, once, from one that has it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simpar.plan.stages import StagePlan
from simpar.runtime.resharding import StoredParts, joint, pieces, slice_within

MESHES = st.sampled_from([(1,), (2,), (3,), (4,), (2, 2), (1, 2), (4, 2), (2, 3)])
SHAPE = (24, 24, 24)


@st.composite
def held(draw, first):
    """Some tensor on some stage."""
    mesh = draw(MESHES)
    states = tuple(draw(st.sampled_from("RBSF")) for _ in mesh)
    return StoredParts.of(StagePlan(layers=1, first_device=first, mesh=mesh), states, SHAPE), states


@given(held(0), held(8))
def test_every_rank_receives_all_that_it_needs_once(source, target):
    """Put together, the pieces that arrive are the receiver's part of the tensor."""
    (one, _), (two, _) = source, target
    whole = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    found = {rank: np.full([b - a for a, b in two.box(rank)], -1) for rank in range(8, 8 + two.stage.num_devices)}
    for piece in pieces(one, two):
        have = one.box(piece.sender)
        part = whole[tuple(slice(*each) for each in have)][slice_within(piece.box, have)]
        here = slice_within(piece.box, two.box(piece.receiver))
        assert (found[piece.receiver][here] == -1).all(), "nothing arrives twice"
        found[piece.receiver][here] = part
    for rank, here in found.items():
        assert np.array_equal(here, whole[tuple(slice(*each) for each in two.box(rank))])


@given(held(0), held(8))
def test_copies_cross_in_slices_between_unlike_stages(source, target):
    """A tensor crosses once where its rows divide; stages that are alike hand on what they have, place by place."""
    (one, left), (two, right) = source, target
    states = joint((one.stage, two.stage), (left, right), SHAPE)
    sent = pieces(StoredParts.of(one.stage, states[0], SHAPE), StoredParts.of(two.stage, states[1], SHAPE))
    if states == (left, right) and one.stage.mesh == two.stage.mesh and left == right:
        assert [(piece.sender, piece.receiver) for piece in sent] == [(n, n + 8) for n in range(one.stage.num_devices)]
    elif "R" not in states[1]:
        elements = sum(np.prod([b - a for a, b in piece.box]) for piece in sent)
        assert elements == np.prod(SHAPE)
