"""The table of searches on slow networks: its jobs are what they say, and a line says what was certified."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from slow_networks import JOBS, row

from simpar.workers import Workers


def test_jobs_span_what_the_table_is_about():
    """Ten and two jobs, from 1 to 100 Gb/s and 2 to 64 nodes, each with fewer cards than devices or a thin uplink."""
    clusters = [job.cluster() for job in JOBS]
    assert len({job.describe() for job in JOBS}) == 12
    assert {min(cluster.nodes for cluster in clusters), max(cluster.nodes for cluster in clusters)} == {2, 64}
    assert all(cluster.rails < cluster.profile.devices_per_node or cluster.leaves_bind for cluster in clusters)
    slowest = min(cluster.profile.scale_out.nic_bandwidth for cluster in clusters)
    assert slowest == pytest.approx(1e9 / 8)


@pytest.mark.slow
def test_a_line_says_what_is_certified():
    """ZeRO over one card is so slow that its bytes decide: certified at once."""
    line = row(JOBS[2], 60.0, Workers())
    assert line.startswith("| llama-3-8b, fsdp | 4 x dgx-a100-40gb, 1x 10 Gb/s ethernet | 256 x 4,096 |")
    assert "| certified |" in line
    assert "| none |" in row(JOBS[0], 0.0, Workers())
