"""Grids of searches give the same answers on every backend."""

import pytest

from simpar.errors import UserError
from simpar.planner.sweep import Cell, sweep
from simpar.workers import Workers

HELD = {"tp": (1, 2), "pp": 1, "zero": 1, "hsdp": 1, "micro_batch": 1, "recompute": "none", "tp_overlap": False}


@pytest.fixture
def cells(problem_of):
    """Two small problems."""
    return [Cell({"number": seed}, problem_of(seed, **HELD)) for seed in (1, 2)]


def figures(found):
    """What must not depend on who searched."""
    return [(one["number"], one["best"]["step_time_s"], one["best"]["plan"]) for one in found]


def test_processes_find_what_one_process_finds(cells):
    """Two of them, in the order of the cells."""
    counts = []
    assert figures(sweep(cells, workers=Workers(2), done=counts.append)) == figures(sweep(cells))
    assert counts == [1, 2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_finds_what_one_process_finds(cells, monkeypatch):
    """A scheduler named by its address, with a worker that has its own process."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        import dask

        dask.config.refresh()
        assert figures(sweep(cells, workers=Workers(-1, "dask"))) == figures(sweep(cells))
    monkeypatch.undo()
    dask.config.refresh()


def test_an_unknown_backend_says_what_there_is(cells):
    """One line with the names."""
    with pytest.raises(UserError, match="dask"):
        sweep(cells, workers=Workers(2, "spark"))
