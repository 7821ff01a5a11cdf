"""``simpar collective`` as it is typed."""

import json

import pytest

from simpar.cli import run


def timed(capsys, *arguments):
    """(Nodes, bytes) of the rows of a command."""
    code = run(["collective", "all_reduce", "--hardware", "dgx-h100", *arguments, "--json", "-"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return [(row["nodes"], row["size_bytes"]) for row in json.loads(said.out)["collectives"]]


def test_it_goes_over_nodes_and_sizes(capsys):
    """Usual ones where none are given, and every size on every number of nodes."""
    assert timed(capsys, "--bytes", "256MB", "--over", "nodes") == [(2**k, 256e6) for k in range(7)]
    usual = [64e3, 256e3, 1e6, 4e6, 16e6, 64e6, 256e6, 1e9, 4e9]
    assert timed(capsys, "--over", "bytes") == [(1, size) for size in usual]
    both = timed(capsys, "--over", "nodes=1,4", "--over", "bytes=1MB,2MB")
    assert sorted(both) == [(1, 1e6), (1, 2e6), (4, 1e6), (4, 2e6)]
    assert timed(capsys, "--bytes", "1MB", "--nodes", "3") == [(3, 1e6)]


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("node", "unknown axis of --over 'node'; did you mean 'nodes'; allowed: bytes, nodes"),
        ("nodes=0", "--nodes 0: allowed: whole numbers of 1 or more, such as 1,2,4"),
    ],
)
def test_an_axis_or_a_value_that_is_none_is_named(over, words, capsys):
    """In one line, as all bad input."""
    assert run(["collective", "all_reduce", "--hardware", "dgx-h100", "--over", over]) == 2
    assert words in capsys.readouterr().err
