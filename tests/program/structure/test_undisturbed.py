"""Which actions of a rank data parallelism has no part in."""

import numpy as np

from simpar.program.blocks.phases import BLOCK_STREAMS, CollectiveUse
from simpar.program.structure.templates import GATHER, REDUCE, Template, TemplateNode
from simpar.program.structure.undisturbed import predecessors, reached, select_undisturbed

GROUPS = frozenset(("dp",))


def block(after: tuple[int, ...] = ()) -> TemplateNode:
    """A pass of blocks."""
    return TemplateNode("forward", "forward", BLOCK_STREAMS, duration_ns=5, after=after)


def moving(stream: str, after: tuple[int, ...] = (), group: str = "dp") -> TemplateNode:
    """A collective outside the blocks."""
    return TemplateNode("dp", "collective", (stream,), collective=CollectiveUse(group, "all_gather", 8), after=after)


PLAIN = Template((block(),), 0)
GATHERS = Template((moving(GATHER), block((0,))), 1)
REDUCES = Template((block(), moving(REDUCE, (0,))), 0)
LOOSE = Template((moving(GATHER), block()), 1)
TAIL = Template((moving(REDUCE), TemplateNode("optimizer", "update", BLOCK_STREAMS[:1], after=(0,))), 1)
UPDATE = Template((TemplateNode("optimizer", "update", BLOCK_STREAMS[:1]), moving(GATHER, (0,))), 1)


def undisturbed(*templates: Template) -> list[bool]:
    """Of actions with these templates, one after the other."""
    return select_undisturbed(templates, np.arange(len(templates)), GROUPS).tolist()


def test_between_the_first_gather_and_the_last_reduction() -> None:
    """Parameters arrive before the pass that needs them, gradients leave behind the pass that makes them."""
    assert undisturbed(GATHERS, PLAIN, PLAIN, REDUCES, PLAIN, UPDATE) == [False, True, True, False, False, False]


def test_what_may_begin_early_disturbs_all_before_it() -> None:
    """A gather that waits for nothing, and collectives of the tail that do not wait for kernels."""
    assert undisturbed(PLAIN, GATHERS, PLAIN, UPDATE) == [False, False, True, False]
    assert undisturbed(PLAIN, PLAIN, TAIL) == [False, False, False]


def test_what_nothing_waits_for_disturbs_all_behind_it() -> None:
    """A gather beside which the kernels of its own pass already run."""
    assert undisturbed(LOOSE, PLAIN, UPDATE) == [False, False, False]


def test_other_groups_do_not_count() -> None:
    """Messages of the pipeline use other links."""
    sends = Template((block(), moving("send", (0,), group="pp+1")), 0)
    assert undisturbed(GATHERS, sends, sends, UPDATE) == [False, True, True, False]


def test_predecessors_are_dependencies_and_streams() -> None:
    """A node waits for the one before it on each of its streams."""
    template = Template((moving(GATHER), moving(GATHER), block((0,)), block()), 3)
    before = predecessors(template)
    assert [set(each) for each in before] == [set(), {0}, {0}, {2}]
    assert reached(before, (3,)) == {0, 2, 3}
