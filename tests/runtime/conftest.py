"""Builders for tests of real runs: jobs of several processes, started by torchrun, never without a time limit."""

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

ROOT = Path(__file__).parents[2]
MATRIX_JOB = Path(__file__).with_name("matrix_job.py")
ROUNDS_JOB = Path(__file__).with_name("rounds_job.py")
SERVERS_JOB = Path(__file__).with_name("servers_job.py")
LIMIT_S = 1800  # of a hang: a machine that others load takes minutes for what takes seconds


def environment() -> dict[str, str]:
    """One thread a rank, this checkout's simpar, localhost only."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run_workers(folder: Path, script: Path, cases: list[dict], processes: int) -> list[dict]:
    """Give cases to a script's workers in one group of processes; what rank 0 wrote about each."""
    inputs, output = folder / "cases.json", folder / "results.json"
    inputs.write_text(json.dumps(cases))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
        str(script), str(inputs), str(output),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    results = json.loads(output.read_text()) if output.exists() else []
    assert len(results) == len(cases), f"case {len(results)} failed:\n{first_error(done.stderr)}"
    return results


def first_error(text: str) -> str:
    """Where the first rank that failed was, and every rank's last words, before torchrun lists all that it ended."""
    words = [
        line for line in text.splitlines() if re.match(r"(\[rank\d+\]: )?[\w.]*(Error|Exception)\b", line)
    ]
    return "\n".join([text[max(0, text.find("Traceback")) :][:3000], *words[:8]])


@pytest.fixture
def run_matrix(tmp_path):
    """Train layouts in one group of processes; each case with its differences to one process."""
    return partial(run_workers, tmp_path, MATRIX_JOB)


@pytest.fixture
def run_rounds(tmp_path):
    """Train replicas that step on their own; each case with its differences to replicas trained one by one."""
    return partial(run_workers, tmp_path, ROUNDS_JOB)


@pytest.fixture
def run_servers(tmp_path):
    """Train with parameter servers; each case with its differences to one process."""
    return partial(run_workers, tmp_path, SERVERS_JOB)


@pytest.fixture
def simpar_run(tmp_path):
    """``simpar run`` as a user types it, in an empty folder."""

    def run(*arguments: object, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "simpar", "run", *map(str, arguments)]
        return subprocess.run(
            command,
            env=environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    return run
