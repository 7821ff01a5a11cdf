"""Ctrl-C and SIGTERM end the executable with one word and its own exit code, also while modules are loaded."""

import importlib
import os
import signal
import subprocess
import sys
import time

import pytest
from pydantic import BaseModel, model_serializer

from simpar.interrupts import interrupt, written_whole
from simpar.plan.plan import Plan
from tests.gate import some

MODULE = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
loaded = True
"""
WHILE_LOADING = """
import os, signal, sys
import simpar.__main__ as executable

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == "{name}":
            os.kill(os.getpid(), signal.{signal})

sys.meta_path.insert(0, Interrupting)
sys.argv = ["simpar", "list", "models"]
executable.main()
"""


def test_an_interrupt_waits_until_what_is_imported_is_there(tmp_path, monkeypatch):
    """Then it is raised: no module stays half loaded."""
    (tmp_path / "interrupted_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            _load_and_wait()
    finally:
        signal.signal(signal.SIGINT, before)
    assert sys.modules.pop("interrupted_module").loaded


def _load_and_wait():
    importlib.import_module("interrupted_module")
    time.sleep(60)


class _Interrupting(BaseModel):
    """Interrupted while it is written out."""

    written: bool = False

    @model_serializer
    def _as_text(self) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "text"


def test_an_interrupt_waits_until_a_model_is_written_out():
    """Pydantic would make it an error of the model."""
    before, texts = signal.signal(signal.SIGINT, interrupt), []
    try:
        with pytest.raises(KeyboardInterrupt):
            texts.append(_Interrupting().model_dump()) or time.sleep(60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert texts == ["text"]


def test_an_interrupt_waits_until_an_answer_is_written(monkeypatch):
    """It is raised behind it; one that takes too long may be stopped."""
    before, said = signal.signal(signal.SIGTERM, interrupt), []
    try:
        with pytest.raises(KeyboardInterrupt):
            _write_and_wait(said)
        monkeypatch.setattr("simpar.interrupts.LONGEST_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            _write_and_wait(said)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert said == ["all of it"]


def _write_and_wait(said):
    with written_whole():
        os.kill(os.getpid(), signal.SIGTERM)
        said.append("all of it")
    time.sleep(60)


@pytest.mark.parametrize("name", some(["typer", "simpar.cli.about", "pydantic"], ["simpar.cli.about"]))
@pytest.mark.parametrize("stop", ["SIGINT", "SIGTERM"])
def test_an_interrupt_while_modules_load_is_one_word(name, stop):
    """Whatever was being loaded: no traceback, and the exit code of what was interrupted."""
    code = WHILE_LOADING.format(name=name, signal=stop)
    ran = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=300)
    assert (ran.returncode, ran.stderr, ran.stdout) == (130, b"interrupted\n", b"")


SEARCH_THAT_IS_ENDED = """
import os, signal, sys
import simpar.__main__ as executable
from simpar.planner.certify.branch_and_bound import BranchAndBound

simulate = BranchAndBound.simulate

def ended(self, frontier, row):
    found = simulate(self, frontier, row)
    os.kill(os.getpid(), signal.SIGTERM)
    return found

BranchAndBound.simulate = ended
sys.argv = ["simpar", "search", "--model", "gpt2-small", "--hardware", "dgx-h100", "--global-batch", "64",
            "--seq-len", "1024", "--jobs", "1", "-o", sys.argv[1]]
executable.main()
"""


def test_a_search_that_a_scheduler_ends_answers_with_the_best_so_far(tmp_path):
    """SIGTERM, as batch systems and containers send it, is Ctrl-C: the plan, its gap and its file."""
    plan = tmp_path / "plan.json"
    ran = subprocess.run(
        [sys.executable, "-c", SEARCH_THAT_IS_ENDED, str(plan)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (ran.returncode, ran.stderr) == (130, "")
    assert "stopped early (interrupted)" in ran.stdout
    assert "not certified" in ran.stdout
    assert Plan.load(plan).mesh.world_size == 8
