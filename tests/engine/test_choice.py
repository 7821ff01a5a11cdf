"""Which engine runs a Program: the integers are the same in every case, so that only start-up counts."""

import subprocess
import sys
from pathlib import Path

import pytest

from simpar import Cluster, Plan, Training, engine, simulate
from simpar.engine import choose_engine, event, reference
from simpar.native import NativeLibrary
from simpar.simulation import lower_job, make_job
from tests.compilers import FAILING, needs_compiler


def program(nodes=1, **plan):
    """A small step, whose replicas share links."""
    cluster = Cluster("a100-pcie-8", nodes=nodes)
    job = make_job("tiny-llama", cluster, Plan(**plan), Training(seq_len=512, global_batch=16))
    return lower_job(job, cluster).program


def module(run):
    """The engine that a function is of."""
    return "plain" if run.__module__ == engine.__name__ else run.__module__.rpartition(".")[2]


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """The engine as on a machine on which nothing was compiled; returns where it will be kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(event, "LIBRARY", NativeLibrary(event.LIBRARY.source, event.MANY_OPS, event.LIBRARY.constants))
    return tmp_path / "simpar" / "native"


@needs_compiler
def test_a_compiled_engine_that_is_kept_runs_small_programs_too(fresh):
    """Whatever process compiled it, where links are shared at all; with the timing of the reference engine."""
    small = program(tp=2)
    assert module(choose_engine("auto", small)) == "plain"
    event.run(small)
    assert [path.suffix for path in fresh.iterdir()] == [".so"]
    event.LIBRARY.loaded = None
    assert module(choose_engine("auto", small)) == "event"
    ours, theirs = choose_engine("auto", small)(small), reference.run(small)
    assert ours.start_ns.tolist() == theirs.start_ns.tolist()
    assert ours.finish_ns.tolist() == theirs.finish_ns.tolist()


@needs_compiler
def test_many_small_programs_start_it(fresh):
    """Once their ops together are worth it; answers name the engine that was asked for, so they are the same before."""
    small, asked = program(tp=2), {"tp": 2}
    event.LIBRARY.done = event.MANY_OPS - 2 * len(small)
    names, answers = [], []
    for _ in range(4):
        names.append(module(choose_engine("auto", small)))
        answers.append(simulate("tiny-llama", "a100-pcie-8", asked, {"seq_len": 512, "global_batch": 16}).to_json())
    assert names[0] == "plain"
    assert names[-1] == "event"
    assert len(set(answers)) == 1


@needs_compiler
def test_it_is_compiled_where_that_pays(fresh):
    """The first run on a machine takes no longer than plain Python."""
    small = program(tp=2)
    chosen = [module(choose_engine("auto", small, more_ops=event.MANY_OPS + more - len(small))) for more in (0, 1)]
    assert chosen == ["plain", "event"]


@needs_compiler
def test_it_takes_over_where_links_are_shared_again_and_again(fresh, monkeypatch):
    """A Program of few ops may take the plain engine as long as many do; the timing is the same."""
    small = program(nodes=2, tp=2, pp=2, zero=2)
    monkeypatch.setattr(engine, "OPS_A_SHARE", 10 * event.MANY_OPS)
    theirs = reference.run(small)
    for chosen in ("plain", "event"):
        run = choose_engine("auto", small)
        assert module(run) == chosen
        assert run(small).finish_ns.tolist() == theirs.finish_ns.tolist()
        assert event.LIBRARY.is_ready
    assert event.LIBRARY.done > event.MANY_OPS


def test_where_it_cannot_be_compiled_the_plain_engine_goes_on(fresh, monkeypatch):
    """However large the job and however often links are shared; it is tried once."""
    monkeypatch.setenv("CC", FAILING)
    small = program(nodes=2, tp=2, pp=2, zero=2)
    monkeypatch.setattr(engine, "OPS_A_SHARE", 10 * event.MANY_OPS)
    run = choose_engine("auto", small, more_ops=event.MANY_OPS)
    assert module(run) == "plain"
    assert "cannot compile event.c" in event.LIBRARY.why_not
    assert run(small).finish_ns.tolist() == reference.run(small).finish_ns.tolist()
    assert not fresh.exists()


def test_nothing_heavy_is_loaded_for_a_small_program():
    """A process that runs one is spared seconds."""
    code = (
        "import sys; from tests.engine.test_choice import choose_engine, program; one = program(tp=2); "
        "before = set(sys.modules); choose_engine('auto', one)(one); "
        "print((set(sys.modules) - before) & {'numba', 'simpy', 'subprocess', 'tempfile'} or 'nothing')"
    )
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["nothing"]
