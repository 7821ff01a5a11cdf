"""What flags say about themselves is what plans take."""

import re

import pytest

from simpar.cli.flags import scenario_flags, values_by_key
from simpar.errors import UserError
from simpar.plan.sync import SCHEMES


def listed(name: str) -> list[str]:
    """The values that the help of a flag lists, in its order."""
    (told,) = (flag.help for flag in scenario_flags() if flag.name == name)
    return re.split(r", | or ", told.rpartition(": ")[2])


def test_help_lists_the_values_that_a_plan_may_have():
    """Schemes of cooperation; schedules, optimizers, precisions and stacks have lists of their own."""
    assert listed("sync") == [*SCHEMES]


def test_a_network_is_the_end_of_the_name_of_hardware():
    """So every command that takes hardware takes it; alone it joins nothing."""
    given = dict.fromkeys(flag.name for flag in scenario_flags())
    told = values_by_key({**given, "hardware": "dgx-h100", "network": "25 Gb/s ethernet"})
    assert told == {"cluster.hardware": "dgx-h100 over 25 Gb/s ethernet"}
    with pytest.raises(UserError, match="--network 25GbE: allowed with --hardware"):
        values_by_key({**given, "network": "25GbE"})
