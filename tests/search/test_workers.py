"""Several processes find what one finds, to the last byte, on every backend that is installed."""

import numpy as np
import pytest

import simpar
from simpar.errors import UserError
from simpar.search.certify import branch_and_bound
from simpar.search.certify.exact import measure, measured_elsewhere
from simpar.search.certify.frontier import Frontier
from simpar.search.progress import Progress
from simpar.search.space.jobs import plan_of
from simpar.search.space.rows import enumerate_space
from simpar.search.uniform import search_uniform
from simpar.search.workers import Workers


def answer(problem, **options):
    """What a search says, but for its seconds."""
    found = search_uniform(problem, Progress(top=3, **options)).to_dict()
    del found["search_seconds"]
    return found


HELD = {"hsdp": 1, "tp": (1, 2), "micro_batch": (1, 2), "recompute": ("none", "full"), "tp_overlap": False}


def test_two_processes_find_what_one_finds(problem_of, monkeypatch):
    """Candidates, reasons, lists, counts and certificate; rows that were simulated ahead for nothing are not told."""
    problem = problem_of(5, **HELD)
    sent = []
    usual = Workers.map
    monkeypatch.setattr(
        Workers, "map", lambda self, *given: sent.append(len(given[1])) or usual(self, *given)
    )
    assert answer(problem, workers=Workers(2)) == answer(problem)
    assert max(sent) == 2


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_finds_what_one_process_finds(problem_of, monkeypatch):
    """A scheduler named by its address, with a worker that has its own process."""
    distributed = pytest.importorskip("distributed")
    import dask

    problem = problem_of(2, **HELD, pp=(1, 2))
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", cluster.scheduler_address)
        dask.config.refresh()
        assert answer(problem, workers=Workers(-1, "dask")) == answer(problem)
    monkeypatch.undo()
    dask.config.refresh()


def test_ray_finds_what_one_process_finds(problem_of):
    """A local instance, started for the search."""
    ray = pytest.importorskip("ray")
    problem = problem_of(2, **HELD, pp=(1, 2))
    try:
        assert answer(problem, workers=Workers(2, "ray")) == answer(problem)
    finally:
        ray.shutdown()


@pytest.mark.parametrize("seed", [13, 18, 21])
def test_rows_ahead_are_kept_until_their_turn(problem_of, monkeypatch, seed):
    """No row is simulated twice, and a search that asks for eight at once takes the same way."""
    problem, asked = problem_of(seed, **HELD), []

    def counted(task):
        asked.append(task[1].model_dump_json())
        return measured_elsewhere(task)

    monkeypatch.setattr(branch_and_bound, "measured_elsewhere", counted)
    monkeypatch.setattr(Workers, "map", lambda _, function, items: [function(item) for item in items])
    assert answer(problem, workers=Workers(8)) == answer(problem)
    assert len(set(asked)) == len(asked) > 0


def test_only_rows_that_may_fit_are_sent_ahead(problem_of, monkeypatch):
    """Those of which the very table holds too much are neither simulated nor dropped before their turn."""
    problem, sent = problem_of(13, **HELD), []
    usual = Frontier.least_bytes
    monkeypatch.setattr(
        Frontier, "least_bytes", lambda self, row, *of: np.inf if row % 2 else usual(self, row, *of)
    )
    monkeypatch.setattr(
        Workers, "map", lambda _, function, items: sent.extend(items) or [function(item) for item in items]
    )
    assert answer(problem, workers=Workers(8)) == answer(problem)
    (field,) = branch_and_bound.fields_of(problem, [problem.cluster.nodes])
    odd = [plan_of(field.frontier.rows, row) for row in range(1, field.frontier.rows.count, 2)]
    assert sent
    assert not [plan for _, plan in sent if plan in odd]


def test_figures_are_those_of_the_measure(problem_of):
    """What a process sends back stands for the plan's own measure; a plan that cannot be has none."""
    problem = problem_of(3, hsdp=1, pp=2)
    plan = plan_of(enumerate_space(problem), 0)
    mine, sent = measure(problem, plan), measured_elsewhere((problem, plan))
    assert (mine.step_time_s, mine.worth, mine.fits, mine.num_ops) == (
        sent.step_time_s, sent.worth, sent.fits, sent.num_ops
    )  # fmt: skip
    assert mine.report().step_time_s == sent.report().step_time_s
    assert measured_elsewhere((problem, plan.with_values(tp=3))) is None


def test_numbers_and_backends_that_are_not_allowed_are_refused():
    """One line each, from the front door, too."""
    with pytest.raises(UserError, match="jobs = 0"):
        Workers(0)
    with pytest.raises(UserError, match="loky"):
        Workers(2, "spark")
    with pytest.raises(UserError, match="jobs = -2"):
        simpar.search(
            "tiny-llama", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=512, global_batch=8), jobs=-2
        )
