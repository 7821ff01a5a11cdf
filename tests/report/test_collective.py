"""One collective by size and nodes: counted as nccl-tests does, timed as steps are."""

import json

import pytest

from simpar import cli
from simpar.cost.collectives.choice import collective_time_s
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.report.collective import MESSAGES, TIMED, plot_collectives, time_collectives


def test_a_ring_sends_what_the_lecture_says():
    """2 (N - 1) / N of an all-reduce, (N - 1) / N of an all-gather; a message is sent whole, between two ranks."""
    sent = {op: time_collectives(op, "dgx-h100", [256e6], [2])[0] for op in ("all_reduce", "all_gather", "send")}
    assert sent["all_reduce"].sent_bytes == 2 * 15 / 16 * 256e6
    assert sent["all_gather"].sent_bytes == 15 / 16 * 256e6
    assert (sent["send"].ranks, sent["send"].sent_bytes) == (2, 256e6)
    one = sent["all_reduce"]
    assert one.bus_bytes_per_s == one.sent_bytes / one.time_s


@pytest.mark.parametrize("op", [op for op in TIMED if op not in MESSAGES])
def test_times_are_those_of_steps(op):
    """What validate compares with measurements: all ranks of the domains, side by side."""
    rows = time_collectives(op, "dgx-h100", [1e6, 256e6], [1, 4])
    for row in rows:
        known = collective_time_s(op, row.size_bytes, (row.nodes, 8), load_cluster("dgx-h100", row.nodes))
        assert row.time_s == pytest.approx(float(known), rel=1e-9)


def test_an_algorithm_is_slower_than_the_fastest_or_equal():
    """By name; one that cannot run there is refused with those that can."""
    [ring] = time_collectives("all_reduce", "dgx-h100", [1e6], [4], algorithm="ring")
    [fastest] = time_collectives("all_reduce", "dgx-h100", [1e6], [4])
    assert ring.algorithm == "ring"
    assert ring.time_s > fastest.time_s
    with pytest.raises(UserError, match=r"does not run all_gather .*; allowed: ring"):
        time_collectives("all_gather", "dgx-h100", [1e6], [1], algorithm="tree")


def test_the_picture_has_a_line_a_number_of_nodes():
    """By size; by GPUs where there is one size."""
    rows = time_collectives("all_reduce", "dgx-h100", [1e6, 64e6], [1, 2])
    lines = plot_collectives(rows).axes[0].lines
    assert [line.get_label() for line in lines] == ["1 node, 8 GPUs", "2 nodes, 16 GPUs"]
    assert lines[1].get_ydata()[1] == pytest.approx(rows[3].bus_bytes_per_s / 1e9)
    [line] = plot_collectives([row for row in rows if row.size_bytes == 1e6]).axes[0].lines
    assert line.get_xdata().tolist() == [8, 16]


def test_on_the_command_line(tmp_path, capsys):
    """A table, SI units in files, a picture; bad input in one line."""
    asked = ["collective", "all_reduce", "--hardware", "dgx-h100", "--bytes", "16MB,256MB", "--nodes", "1,2"]
    assert cli.run([*asked, "-o", str(tmp_path / "bus.svg"), "--csv", str(tmp_path / "bus.csv")]) == 0
    out = capsys.readouterr().out
    assert "256 MB" in out
    assert "480 MB" in out  # 2 x 15/16 of it
    assert (tmp_path / "bus.csv").read_text().splitlines()[0].startswith("op,nodes,ranks,size_bytes")
    assert cli.run([*asked, "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["collectives"]) == 4
    for more, words in (
        (["--bytes", "5"], "sizes with units"),
        (["--nodes", "0"], "whole numbers of 1 or more"),
        (["--algorithm", "rings"], "did you mean 'ring'"),
    ):
        assert cli.run([*asked, *more]) == 2
        assert words in capsys.readouterr().err
    assert cli.run(["collective", "all_reduc", "--hardware", "dgx-h100"]) == 2
    assert "did you mean 'all_reduce'" in capsys.readouterr().err
