"""Submeshes, their shapes, and where stages go."""

from __future__ import annotations

from math import prod

import pytest

import simpar
from simpar.planner.stages.alpa.meshes import logical_meshes, place_stages, submesh_sizes


def test_submeshes_are_parts_of_nodes_or_whole_nodes():
    """Powers of two within a node, then whole nodes; all nodes together are there whatever their number."""
    assert submesh_sizes(simpar.Cluster("dgx-h100", nodes=4)) == [1, 2, 4, 8, 16, 32]
    assert submesh_sizes(simpar.Cluster("dgx-h100", nodes=3)) == [1, 2, 4, 8, 16, 24]


@pytest.mark.parametrize("size", [1, 2, 8, 16, 64])
def test_shapes_use_every_device_and_keep_the_inner_axis_close(size):
    """All shapes have the size; the inner axis stays within a node; no two within a node are transposed."""
    cluster = simpar.Cluster("dgx-h100", nodes=8)
    meshes = logical_meshes(size, cluster)
    assert meshes[0] == (size,)
    assert all(prod(mesh) == size for mesh in meshes)
    assert all(mesh[1] <= cluster.domain_size for mesh in meshes[1:])
    assert len({tuple(sorted(mesh)) for mesh in meshes} if size <= 8 else set(meshes)) == len(meshes)


@pytest.mark.parametrize(
    ("sizes", "firsts"),
    [
        ((8, 8, 16), [0, 8, 16]),
        ((4, 4, 8, 16), [0, 4, 8, 16]),
        ((4, 8, 4, 16), [24, 16, 28, 0]),
        ((1, 2, 1, 4, 8, 16), [30, 28, 31, 24, 16, 0]),
    ],
)
def test_stages_never_straddle_nodes(sizes, firsts):
    """In order where that keeps small stages within nodes, else the largest first."""
    assert place_stages(sizes, simpar.Cluster("dgx-h100", nodes=4)) == firsts
