"""Templates as columns: nothing of a node is lost, and several templates stand one behind the other."""

import pytest

from simpar.errors import BeyondIntegers
from simpar.program.blocks.phases import CollectiveUse
from simpar.program.emission.template_columns import SharedTables, make_columns
from simpar.program.structure.pass_memory import MemoryChange
from simpar.program.structure.templates import PARAMETERS, Await, TemplateNode

USE = CollectiveUse("dp", "all_gather", 8.0)
STREAMS = {"compute": 0, "gather": 1}
NODES = (
    TemplateNode("dp", "gather", ("gather", "unused"), collective=USE, arrival=True, awaits=(Await(PARAMETERS, 1),)),
    TemplateNode(
        "forward", "layer", ("compute",), 7, after=(0,), memory=(MemoryChange(True, -3.6, "transient"),),
        frees=(PARAMETERS,),
    ),
)  # fmt: skip


def test_every_fact_of_a_node_is_in_its_columns():
    """Streams that the Program lacks are left out; a collective has the duration of its group's flow."""
    table = make_columns(NODES, STREAMS)
    assert table.ops.tolist() == [[0, 1], [-1, -1], [0, 7], [0, 0], [-1, -1], [0, 0]]
    rows = {name: columns.T.tolist() for name, columns in table.rows.items()}
    assert rows["dependency"] == [[1, 0]]
    assert rows["stream"] == [[0, 1], [1, 0]]
    assert [row[:3] for row in rows["memory"]] == [[1, 1, -4]]
    assert rows["arrival"] == [[0]]
    assert ([row[-1] for row in rows["awaits"]], [row[0] for row in rows["frees"]]) == ([1], [1])
    assert table.uses == {USE: [0]}


def test_templates_stand_one_behind_the_other():
    """A collective that two of them call is one use; rows say where those of every template begin."""
    one, other = make_columns(NODES, STREAMS), make_columns(NODES[:1], STREAMS)
    shared = SharedTables([one, other, one])
    uses, use = shared.uses
    assert (uses, use.tolist()) == ([USE], [0, -1, 0, 0, -1])
    columns = shared.columns
    assert columns["node_at"].tolist() == [0, 2, 3, 5]
    assert columns["stream_at"].tolist() == [0, 2, 3, 5]
    assert columns["dependency_at"].tolist() == [0, 1, 1, 2]
    assert columns["fixed_ns"].tolist() == [0, 7, 0, 0, 7]
    assert columns["stream"].T.tolist() == [[0, 1], [1, 0], [0, 1], [0, 1], [1, 0]]


def test_what_64_bits_do_not_hold_is_refused():
    """One line that says what is allowed."""
    with pytest.raises(BeyondIntegers, match="allowed: fewer tokens a microbatch"):
        make_columns((TemplateNode("forward", "layer", ("compute",), 2**63),), STREAMS)
