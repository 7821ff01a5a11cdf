"""What flags say about themselves is what plans take."""

import re

from simpar.cli.flags import scenario_flags
from simpar.plan.sync import SCHEMES


def listed(name: str) -> list[str]:
    """The values that the help of a flag lists, in its order."""
    (told,) = (flag.help for flag in scenario_flags() if flag.name == name)
    return re.split(r", | or ", told.rpartition(": ")[2])


def test_help_lists_the_values_that_a_plan_may_have():
    """Schemes of cooperation; schedules, optimizers, precisions and stacks have lists of their own."""
    assert listed("sync") == [*SCHEMES]
