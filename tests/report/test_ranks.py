"""Where ranks are, and which groups they form."""

from simpar import cli
from simpar.plan.mesh import Mesh
from simpar.report.ranks import MOST_RANKS, group_table, rank_table, run_words


def test_groups_are_those_of_the_lecture():
    """Eight GPUs as two pipeline stages of two replicas: ranks 0 and 4 exchange activations, 0 and 2 gradients."""
    rows = {row[0]: row[1:] for row in group_table(Mesh(tp=2, dp=2, pp=2)).rows}
    assert rows == {
        "tp": ("4", "2", "0,1  2,3  4,5  6,7"),
        "dp": ("4", "2", "0,2  1,3  4,6  5,7"),
        "pp": ("4", "2", "0,4  1,5  2,6  3,7"),
    }


def test_experts_have_groups_of_their_own():
    """Ranks that exchange tokens, and ranks that hold the same experts."""
    rows = {row[0]: row[1:] for row in group_table(Mesh(dp=8, ep=4)).rows}
    assert rows["ep"] == ("2", "4", "0-3  4-7")
    assert rows["edp"] == ("4", "2", "0,4  1,5  2,6  3,7")


def test_a_row_a_rank():
    """With its node; axes of one rank are left out, and so are ranks behind the first ones."""
    table = rank_table(Mesh(tp=8, dp=16), 8)
    assert list(table.titles) == ["rank", "node", "device", "tp", "dp"]
    assert tuple(table.rows[9]) == ("9", "1", "1", "1", "1")
    assert len(table.rows) == MOST_RANKS


def test_many_ranks_are_said_shortly():
    """Runs and steps."""
    assert run_words([0, 1, 2, 3]) == "0-3"
    assert run_words([0, 8, 16, 24, 32]) == "0,8..32"
    assert run_words([0, 3, 4]) == "0,3,4"


def test_on_the_command_line(capsys):
    """Behind the report."""
    small = ["--model", "gpt2", "--hardware", "laptop-cpu-4", "--seq-len", "128", "--global-batch", "8", "--pp", "2"]
    assert cli.run(["simulate", *small, "--ranks"]) == 0
    out = capsys.readouterr().out
    assert "Process groups" in out
    assert "0,2  1,3" in out
