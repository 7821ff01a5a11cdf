"""Which engine runs a Program: the integers are the same in every case, so that only start-up counts."""

import subprocess
import sys
from pathlib import Path

import pytest

from simpar import Cluster, Plan, Training
from simpar.engine import choose_engine_here
from simpar.simulation import lower_job, make_job


def program(tp):
    """A small step, whose replicas share links."""
    job = make_job("tiny-llama", Cluster("a100-pcie-8"), Plan(tp=tp), Training(seq_len=512, global_batch=16))
    return lower_job(job, Cluster("a100-pcie-8")).program


def module(run):
    """The engine that a function is of."""
    return run.__module__.rpartition(".")[2]


def test_a_compiled_engine_that_is_started_runs_small_programs_too():
    """Where this process has it, and links are shared at all; with the timing of the reference engine."""
    pytest.importorskip("numba")
    import simpar.engine.event  # noqa: F401
    from simpar.engine import reference

    small = program(2)
    assert module(choose_engine_here(small)) == "event"
    ours, theirs = choose_engine_here(small)(small), reference.run(small)
    assert ours.start_ns.tolist() == theirs.start_ns.tolist()
    assert ours.finish_ns.tolist() == theirs.finish_ns.tolist()


def test_nothing_starts_it_for_a_small_program():
    """A process that has not is spared the seconds that it takes."""
    code = (
        "import sys; from tests.engine.test_choice import choose_engine_here, module, program; "
        "print(module(choose_engine_here(program(2))), 'numba' in sys.modules or 'simpy' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["plain", "False"]
