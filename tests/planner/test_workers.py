"""Several processes find what one finds, to the last byte, on every backend that is installed."""

import os
import struct
import time
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from multiprocessing import active_children
from threading import Thread
from typing import ClassVar

import numpy as np
import pytest

import simpar
from simpar import workers
from simpar.errors import UserError
from simpar.planner.answer import continuation, ranking
from simpar.planner.answer.continuation import Continuation
from simpar.planner.certify import branch_and_bound, exact, speculation
from simpar.planner.certify.exact import measure
from simpar.planner.certify.frontier import Frontier
from simpar.planner.certify.held_steps import HeldSteps
from simpar.planner.certify.speculation import SpeculativeWorkers, measure_in_worker
from simpar.planner.progress import SearchProgress
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.planner.uniform import search_uniform
from simpar.program.emission.emit import MOST_OPS
from simpar.workers import Pool, Processes, Workers, can_fork, num_cores
from tests.gate import some


def answer(problem, **options):
    """What a search says, but for its seconds."""
    found = search_uniform(problem, SearchProgress(top=3, **options)).to_dict()
    del found["search_seconds"]
    return found


class Here(Pool):
    """Stands for seven processes: calls run at once in this one, and their items are kept."""

    items: ClassVar = []
    size = 7
    tells_begun = False

    def __init__(self, function, **_beside):
        self.function = function

    def __exit__(self, *_error):
        """Nothing to end."""

    def submit(self, item):
        """A future that is done."""
        self.items.append(item)
        done = Future()
        done.set_result(self.function(item))
        return done


HELD = {
    "hsdp": 1, "tp": (1, 2), "micro_batch": (1, 2), "schedule": ("1f1b", "gpipe"), "recompute": "none",
    "tp_overlap": False, "zero": (0, 1, 3),
}  # fmt: skip
FEW = {"pp": (1, 2)}
"""What is held besides, where the answer of processes is all that is looked at."""


@pytest.fixture(scope="module")
def alone(problem_of):
    """What one process finds: function of the seed and of what is held besides, asked for once each."""
    return cache(lambda seed, **more: answer(problem_of(seed, **HELD, **more)))


@pytest.mark.parametrize("forks", some([True, False], 1))
def test_two_processes_find_what_one_finds(problem_of, alone, monkeypatch, forks):
    """Candidates, reasons, lists, counts and certificate; rows that were simulated ahead for nothing are not told."""
    problem, expected, asked = problem_of(5, **HELD, **FEW), alone(5, **FEW), []
    usual = SpeculativeWorkers._likely
    monkeypatch.setattr(SpeculativeWorkers, "_likely", lambda self, *now: asked.append(now) or usual(self, *now))
    monkeypatch.setattr(workers, "can_fork", lambda: forks)
    assert answer(problem, workers=Workers(2)) == expected
    assert asked


@pytest.mark.parametrize("effort_s", [0.3, 0.7, 1.5])
def test_processes_change_no_list_that_effort_ends(problem_of, monkeypatch, effort_s):
    """What the effort left does not reach is refused by the ops of its step, whoever has simulated it."""
    problem, asked = problem_of(5, **HELD, **FEW), []
    monkeypatch.setattr(ranking, "LEAST_EFFORT_S", effort_s)
    monkeypatch.setattr(ranking, "RESERVED_S", 0.1)
    monkeypatch.setattr(continuation, "OP_S", 2e-4)
    monkeypatch.setattr(Continuation, "of", lambda frontier, least_s, use: Continuation(frontier, least_s, use))
    expected = answer(problem)
    monkeypatch.setattr(Workers, "pool", Here)
    usual = Continuation._coming
    monkeypatch.setattr(Continuation, "_coming", lambda self, *now: asked.append(now) or usual(self, *now))
    assert answer(problem, workers=Workers(2)) == expected
    assert asked


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", some([13, 18, 21], 1))
def test_rows_ahead_are_kept_until_their_turn(problem_of, alone, monkeypatch, seed):
    """No row is simulated twice, and a search that asks for eight at once takes the same way."""
    problem, expected, asked = problem_of(seed, **HELD), alone(seed), []

    def counted(problems, task):
        asked.append(task[1].model_dump_json())
        return measure_in_worker(problems, task)

    monkeypatch.setattr(speculation, "measure_in_worker", counted)
    monkeypatch.setattr(Workers, "pool", Here)
    assert answer(problem, workers=Workers(8)) == expected
    assert len(set(asked)) == len(asked) > 0


@pytest.mark.parametrize("seed", some([5, 13, 18], 1))
def test_forked_processes_are_gone_behind_a_search(problem_of, alone, seed):
    """Whatever they were doing: of eight most are not asked to the end."""
    problem, before = problem_of(seed, **HELD, **FEW), set(active_children())
    assert answer(problem, workers=Workers(8)) == alone(seed, **FEW)
    assert set(active_children()) <= before


@pytest.mark.skipif(not can_fork(), reason="a function that is inherited writes half of an answer")
def test_a_process_in_the_middle_of_an_answer_ends():
    """Nobody waits for the rest of an answer whose process was killed while it wrote."""
    ends = []

    def write_half(_item):
        os.write(ends[0].fileno(), struct.pack("!i", 16_504) + bytes(100))
        time.sleep(600)

    def run():
        with Processes(write_half, 1) as pool:
            ends.append(pool._executor._result_queue._writer)
            future = pool.submit(1)
            while not future.running():
                time.sleep(0.01)
            time.sleep(0.3)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    hangs = thread.is_alive()
    ends[0].close()  # lets a thread that hangs end, so that this process can
    assert not hangs
    assert not active_children()


def test_a_search_goes_on_without_processes_that_were_killed(problem_of, alone, monkeypatch):
    """As the system kills them for memory: the answer is the same."""
    problem, expected, killed = problem_of(5, **HELD, **FEW), alone(5, **FEW), []
    usual = Processes.submit

    def submit(self, item):
        found = usual(self, item)
        killed.extend(each.kill() for each in list(self._executor._processes.values()))
        return found

    monkeypatch.setattr(Processes, "submit", submit)
    assert answer(problem, workers=Workers(3)) == expected
    assert killed


def test_a_search_without_a_number_begins_alone(problem_of, alone, monkeypatch):
    """Processes are asked for when simulations have taken a while, and no sooner."""
    problem, expected = problem_of(5, **HELD, **FEW), alone(5, **FEW)
    monkeypatch.setattr(Processes, "__init__", lambda *_: pytest.fail("forked"))
    assert answer(problem, workers=replace(Workers.usual(), patience_s=1e9)) == expected
    if can_fork() and num_cores() > 1:
        with pytest.raises(pytest.fail.Exception, match="forked"):
            answer(problem, workers=replace(Workers.usual(), patience_s=0.0))


def test_large_reports_are_made_by_several_processes(problem_of, alone, monkeypatch):
    """They are those that one process makes."""
    problem, expected = problem_of(5, **HELD, **FEW), alone(5, **FEW)
    monkeypatch.setattr(exact, "MANY_OPS", 0)
    monkeypatch.setattr(HeldSteps, "let_go", lambda self, *_: [one.release() for one in self._held])
    assert answer(problem, workers=Workers(2)) == expected


@pytest.mark.slow
def test_only_rows_that_may_fit_are_sent_ahead(problem_of, monkeypatch):
    """Those of which the very table holds too much are neither simulated nor dropped before their turn."""
    problem = problem_of(13, **HELD)
    usual = Frontier.least_bytes
    monkeypatch.setattr(Frontier, "least_bytes", lambda self, row, *of: np.inf if row % 2 else usual(self, row, *of))
    monkeypatch.setattr(Workers, "pool", Here)
    monkeypatch.setattr(Here, "items", sent := [])
    assert answer(problem, workers=Workers(8)) == answer(problem)
    (field,) = branch_and_bound.fields_of(problem, [problem.cluster.nodes])
    odd = [plan_of(field.frontier.rows, row) for row in range(1, field.frontier.rows.count, 2)]
    assert sent
    assert not [plan for _, plan, _ in sent if plan in odd]


def test_figures_are_those_of_the_measure(problem_of):
    """What a process sends back stands for the plan's own measure; a plan that cannot be has none."""
    problem = problem_of(3, hsdp=1, pp=2)
    plan = plan_of(enumerate_space(problem), 0)
    mine, sent = measure(problem, plan), measure_in_worker([problem], (0, plan, MOST_OPS))
    assert (mine.step_time_s, mine.worth, mine.fits, mine.num_ops) == (
        sent.step_time_s, sent.worth, sent.fits, sent.num_ops
    )  # fmt: skip
    assert mine.report().step_time_s == sent.report().step_time_s
    assert measure_in_worker([problem], (0, plan.with_values(tp=3), MOST_OPS)) is None


@pytest.mark.parametrize(("patience_s", "here"), [(0.0, 0), (1e9, 6)])
def test_a_stream_begins_alone_for_as_long_as_it_is_patient(patience_s, here):
    """Answers are in order whoever gives them."""
    answers = list(Workers(2, patience_s=patience_s).stream(_whose, range(6)))
    assert [item for item, _ in answers] == list(range(6))
    assert [process for _, process in answers].count(os.getpid()) == here


def _whose(item):
    return item, os.getpid()


def test_numbers_and_backends_that_are_not_allowed_are_refused():
    """One line each, from the front door, too."""
    with pytest.raises(UserError, match="jobs = 0"):
        Workers(0)
    with pytest.raises(UserError, match="dask"):
        Workers(2, "spark")
    with pytest.raises(UserError, match="jobs = -2"):
        simpar.search("tiny-llama", simpar.Cluster("dgx-h100"), simpar.Training(seq_len=512, global_batch=8), jobs=-2)
