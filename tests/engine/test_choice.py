"""Which engine runs a Program: the integers are the same in every case, so that only start-up counts."""

import subprocess
import sys
from pathlib import Path

import pytest

from simpar import Cluster, Plan, Training, engine
from simpar.engine import choose_engine
from simpar.simulation import lower_job, make_job


def program(nodes=1, **plan):
    """A small step, whose replicas share links."""
    cluster = Cluster("a100-pcie-8", nodes=nodes)
    job = make_job("tiny-llama", cluster, Plan(**plan), Training(seq_len=512, global_batch=16))
    return lower_job(job, cluster).program


def module(run):
    """The engine that a function is of."""
    return "plain" if hasattr(run, "__self__") else run.__module__.rpartition(".")[2]


def test_a_compiled_engine_that_is_started_runs_small_programs_too():
    """Where this process has it, and links are shared at all; with the timing of the reference engine."""
    pytest.importorskip("numba")
    from simpar.engine import event, reference

    small = program(tp=2)
    event.run(small)
    assert module(choose_engine("auto", small)) == "event"
    ours, theirs = choose_engine("auto", small)(small), reference.run(small)
    assert ours.start_ns.tolist() == theirs.start_ns.tolist()
    assert ours.finish_ns.tolist() == theirs.finish_ns.tolist()


def test_many_small_programs_start_it(monkeypatch):
    """Once their ops together are worth it; answers name the engine that was asked for, so they are the same before."""
    pytest.importorskip("numba")
    from simpar import simulate
    from simpar.engine import event

    small, asked = program(tp=2), {"tp": 2}
    monkeypatch.setattr(event.Runner, "has_run", False)
    monkeypatch.setattr(engine, "is_kept", lambda *_: True)
    monkeypatch.setattr(engine, "_PLAIN", engine._PlainEngine(engine.MANY_OPS - 2 * len(small)))
    names, answers = [], []
    for _ in range(4):
        names.append(module(choose_engine("auto", small)))
        answers.append(simulate("tiny-llama", "a100-pcie-8", asked, {"seq_len": 512, "global_batch": 16}).to_json())
    assert names[0] == "plain"
    assert names[-1] == "event"
    assert len(set(answers)) == 1


def test_it_is_compiled_for_larger_programs_than_it_is_loaded_for(monkeypatch):
    """The first run on a machine takes no longer than plain Python."""
    pytest.importorskip("numba")
    from simpar.engine import event

    monkeypatch.setattr(event.Runner, "has_run", False)
    small = program(tp=2)
    for is_kept, chosen in ((True, ["plain", "event", "event"]), (False, ["plain", "plain", "event"])):
        monkeypatch.setattr(engine, "is_kept", lambda *_, is_kept=is_kept: is_kept)
        names = []
        for count in (engine.MANY_OPS, engine.MANY_OPS + 1, engine.TO_COMPILE * engine.MANY_OPS + 1):
            monkeypatch.setattr(engine, "_PLAIN", engine._PlainEngine())
            names.append(module(choose_engine("auto", small, more_ops=count - len(small))))
        assert names == chosen


def test_it_takes_over_where_links_are_shared_again_and_again(monkeypatch):
    """A Program of few ops may take the plain engine as long as many do; the timing is the same."""
    pytest.importorskip("numba")
    from simpar.engine import event, reference

    small, slow = program(nodes=2, tp=2, pp=2, zero=2), engine._PlainEngine()
    monkeypatch.setattr(event.Runner, "has_run", False)
    monkeypatch.setattr(engine, "OPS_A_SHARE", 10 * engine.TO_COMPILE * engine.MANY_OPS)
    theirs = reference.run(small)
    for _ in range(2):
        ours = slow.run(small)
        assert event.Runner.has_run
        assert ours.finish_ns.tolist() == theirs.finish_ns.tolist()
    assert slow.spent_ops > engine.MANY_OPS


def test_nothing_starts_it_for_a_small_program():
    """A process that has not is spared the seconds that it takes."""
    code = (
        "import sys; from tests.engine.test_choice import choose_engine, module, program; "
        "print(module(choose_engine('auto', program(tp=2))), 'numba' in sys.modules or 'simpy' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["plain", "False"]
