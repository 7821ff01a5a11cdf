"""Ranks, coordinates and process groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.errors import UserError
from simpar.plan.mesh import AXES, EXPERT_AXES, Mesh

MESHES = st.builds(
    Mesh,
    tp=st.integers(1, 4),
    cp=st.integers(1, 3),
    dp=st.integers(1, 4),
    pp=st.integers(1, 3),
    order=st.permutations(AXES).map(tuple),
)


def test_tensor_parallel_ranks_are_neighbours():
    """With the default order tp varies fastest, then dp, and pipeline stages are the largest strides."""
    mesh = Mesh(tp=2, dp=2, pp=2)
    assert mesh.groups("tp").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("dp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups("pp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_the_order_is_part_of_the_mesh():
    """Another order moves the same axes to other ranks."""
    mesh = Mesh(tp=2, dp=2, pp=2, order=("pp", "tp", "cp", "dp"))
    assert mesh.groups("pp").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.rank(dp=1) == 4


def test_experts_fold_the_ranks_of_a_stage():
    """Experts spread over neighbours; with tensor-parallel experts over every other rank."""
    mesh = Mesh(tp=2, dp=4, ep=2)
    assert mesh.groups("ep").tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups("edp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    sliced = Mesh(tp=2, dp=4, ep=2, etp=2)
    assert sliced.groups("ep").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sliced.groups("etp").tolist() == sliced.groups("tp").tolist()
    assert sliced.groups("edp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]


@given(MESHES, st.sampled_from([1, 2, 3, 4]))
def test_expert_groups_partition_each_stage(mesh, ep):
    """Every rank is in one group of each expert axis, all of them on one stage, and its coordinate is its place."""
    plane = mesh.tp * mesh.cp * mesh.dp
    if plane % ep:
        return
    mesh = mesh.model_copy(update={"ep": ep, "etp": 1})
    for axis in EXPERT_AXES:
        groups = mesh.groups(axis)
        assert sorted(groups.ravel()) == list(range(mesh.world_size))
        assert (np.ptp(mesh.coordinates(groups)["pp"], axis=1) == 0).all()
    assert (np.sort(mesh.expert_coordinate(mesh.groups("ep"))) == np.arange(ep)).all()
    assert (np.ptp(mesh.expert_coordinate(mesh.groups("edp")), axis=1) == 0).all()


@given(MESHES, st.sets(st.sampled_from(AXES), min_size=1))
def test_groups_partition_the_ranks(mesh, axes):
    """Along any axes, every rank is in one group, and members differ in nothing but these axes."""
    groups = mesh.groups(tuple(axes))
    assert sorted(groups.ravel()) == list(range(mesh.world_size))
    assert (np.diff(groups, axis=1) > 0).all()
    for axis, coordinate in mesh.coordinates(groups).items():
        if axis not in axes:
            assert (coordinate == coordinate[:, :1]).all()


@given(MESHES)
def test_coordinates_and_rank_are_inverse(mesh):
    """The rank at a rank's coordinates is the rank itself."""
    coordinates = mesh.coordinates(np.arange(mesh.world_size))
    for rank in range(mesh.world_size):
        assert mesh.rank(**{axis: int(value[rank]) for axis, value in coordinates.items()}) == rank


def test_a_mesh_without_dp_counts_it_once():
    """Before dp is known the mesh has the ranks of one replica."""
    assert Mesh(tp=4, pp=2).world_size == 8


def test_the_order_names_every_axis_once():
    """An order that forgets or repeats an axis is refused."""
    with pytest.raises(UserError, match="names each of tp, cp, dp, pp once"):
        Mesh(order=("tp", "dp"))
    with pytest.raises(UserError, match="greater than or equal to 1"):
        Mesh(tp=0)


def test_a_rank_is_asked_for_by_axes_of_the_mesh() -> None:
    """A misspelt axis is refused, not taken as 0."""
    with pytest.raises(UserError, match="unknown axis 'pq'"):
        Mesh(tp=2, pp=2).rank(tp=1, pq=1)
