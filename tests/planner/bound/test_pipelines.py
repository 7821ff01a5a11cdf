"""Rows without their data parallelism."""

import numpy as np


def test_rows_of_one_pipeline_are_alike_but_for_data_parallelism(frontier, every):
    """In every axis that decides passes, messages or the order of ranks."""
    rows, pipelines = frontier.rows, frontier.bounds.pipelines
    for name in ("tp", "pp", "micro_batch", "schedule", "recompute", "order", "vpp", "sequence_parallel"):
        code = rows.code[name]
        assert np.array_equal(code[pipelines.row[pipelines.index]], code), name
    assert len(pipelines.row) <= len(every)


def test_passes_bound_no_less_than_kernels(frontier):
    """A later look is never below the one before."""
    pipelines = frontier.bounds.pipelines
    which = np.arange(len(pipelines.row))
    kernels, least = pipelines.kernels_bound_ns()
    passes = pipelines.passes_bound_ns(which)
    assert (passes >= kernels * (1 - 1e-12)).all()
    assert (least <= kernels).all()
    assert (least > 0).all()


def test_some_pipelines_are_those_of_all(frontier):
    """Bounded alone or together."""
    pipelines = frontier.bounds.pipelines
    which = np.arange(len(pipelines.row))
    whole = pipelines.passes_bound_ns(which)
    for one in which[::5]:
        assert pipelines.passes_bound_ns(np.array([one]))[0] == whole[one]


def test_a_single_stage_sends_nothing(frontier):
    """Between as many stages as there are, less one, there are hops."""
    pipelines = frontier.bounds.pipelines
    for shape, mine in pipelines.by_shape(np.arange(len(pipelines.row))):
        hops = pipelines.hops(shape, mine)
        assert hops.ahead.shape == hops.back.shape == (len(mine), len(shape.pieces) - 1)
        assert (hops.ahead >= 0).all()
