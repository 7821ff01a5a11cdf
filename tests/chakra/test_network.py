"""A cluster that simpar and a network of rings describe alike: bytes, groups and network of an export say the step."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.gate import some

from .astra import Network
from .replayer import replay

BENCHMARK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "astra_sim.py"))


@pytest.mark.parametrize(("nodes", "layout"), some(BENCHMARK["LAYOUTS"], BENCHMARK["LAYOUTS"][::3], tuples=True))
def test_times_of_the_network_file_say_the_step(nodes, layout):
    """Kernels as they say and communication from bytes, groups and network.yml alone, against the simulated step."""
    made = BENCHMARK["exported"](nodes, layout)
    network = Network(made.files)
    assert replay(made.files, network.took) / 1e6 == pytest.approx(made.step_time_s, rel=0.01)
    slow = replay(made.files, lambda node: network.took(node) * (1 + ("comm_size" in node.said)))
    assert slow / 1e6 > 1.02 * made.step_time_s, "communication is a part of the step"


def test_the_benchmark_reads_what_the_program_says(tmp_path):
    """The last rank to finish, in cycles of a nanosecond, from a program that only prints."""
    program = tmp_path / "program"
    program.write_text(
        '#!/bin/sh\nfor each in "$@"; do test -e "${each#*=}" || test -e "${each#*=}.0.et" || exit 9; done\n'
        'for rank in 0 1 2 3; do echo "sys[$rank] finished, 1${rank}00 cycles, exposed communication 5 cycles."; done\n'
    )
    program.chmod(0o755)
    made = BENCHMARK["exported"](1, {"tp": 4})
    assert BENCHMARK["replayed_s"](program, made) == pytest.approx(1300e-9)
