"""Ctrl-C ends the executable with one word and its own exit code, also while modules are loaded."""

import importlib
import signal
import subprocess
import sys
import time

import pytest

from simpar.interrupts import interrupt
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
            os.kill(os.getpid(), signal.SIGINT)

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


@pytest.mark.parametrize("name", some(["typer", "simpar.cli.about", "pydantic"], ["simpar.cli.about"]))
def test_an_interrupt_while_modules_load_is_one_word(name):
    """Whatever was being loaded: no traceback, and the exit code of what was interrupted."""
    ran = subprocess.run(
        [sys.executable, "-c", WHILE_LOADING.format(name=name)], check=False, capture_output=True, timeout=300
    )
    assert (ran.returncode, ran.stderr, ran.stdout) == (130, b"interrupted\n", b"")
