"""Builders for tests of real runs: jobs of several processes, never without a time limit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.conftest import FORKS

ROOT = Path(__file__).parents[2]
MATRIX_JOB = Path(__file__).with_name("matrix_job.py")
ROUNDS_JOB = Path(__file__).with_name("rounds_job.py")
SERVERS_JOB = Path(__file__).with_name("servers_job.py")
LIMIT_S = 1800  # of a hang: a machine that others load takes minutes for what takes seconds


def environment() -> dict[str, str]:
    """One thread a rank, this checkout's simpar, localhost only."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run_workers(forks: str, folder: Path, script: Path, cases: list[dict], processes: int) -> list[dict]:
    """Give cases to a script's workers in one group of processes; what rank 0 wrote about each."""
    inputs, output, logs = folder / "cases.json", folder / "results.json", folder / "logs"
    inputs.write_text(json.dumps(cases))
    command = [sys.executable, str(FORKS), "ask", forks, str(processes), str(logs)]
    subprocess.run([*command, str(script), str(inputs), str(output)], env=environment(), timeout=LIMIT_S, check=False)
    results = json.loads(output.read_text()) if output.exists() else []
    said = "\n".join(path.read_text() for path in sorted(logs.glob("*/stderr.log")))
    assert len(results) == len(cases), f"case {len(results)} failed:\n{first_error(said)}"
    return results


def first_error(text: str) -> str:
    """Where the first rank that failed was, and every rank's last words, before what was ended with it."""
    words = [line for line in text.splitlines() if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b", line)]
    return "\n".join([text[max(0, text.find("Traceback")) :][:3000], *words[:8]])


@pytest.fixture
def run_matrix(forks, tmp_path):
    """Train layouts in one group of processes; each case with its differences to one process."""
    return partial(run_workers, forks, tmp_path, MATRIX_JOB)


@pytest.fixture
def run_rounds(forks, tmp_path):
    """Train replicas that step on their own; each case with its differences to replicas trained one by one."""
    return partial(run_workers, forks, tmp_path, ROUNDS_JOB)


@pytest.fixture
def run_servers(forks, tmp_path):
    """Train with parameter servers; each case with its differences to one process."""
    return partial(run_workers, forks, tmp_path, SERVERS_JOB)


@pytest.fixture
def simpar_run(tmp_path):
    """``simpar run`` as a user types it, in an empty folder."""

    def run(*arguments: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "simpar", "run", *map(str, arguments)]
        return subprocess.run(
            command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=limit_s, check=False
        )

    return run


@pytest.fixture
def words(tmp_path):
    """A tokenizer with a chat template."""
    from tests.runtime.test_served import tiny_tokenizer
    from tests.runtime.test_tokenize import CHAT

    tiny_tokenizer(tmp_path / "words")
    (tmp_path / "words/chat_template.jinja").write_text(CHAT)
    return tmp_path / "words"
