"""The words of a text, sorted."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.frameworks.words import Account, ReadWords, TableNames, WordTable, is_off

TABLE = WordTable(idle=("lr*", "save*"), deciding={"lr_on_host": "where it is updated", "offload*": "memory"})


def test_words_are_sorted_by_pattern() -> None:
    """A deciding word wins over an idle pattern; one that asks for nothing has no effect; others are unknown."""
    unread = {"--lr": "1e-4", "--lr-on-host": True, "offload_all": "false", "Save-Every": 5, "--mystery": 1}
    found = TABLE.sort(["--bf16"], unread)
    assert found == Account(
        ("--bf16",), ("--lr", "offload_all", "Save-Every"), {"--lr-on-host": "where it is updated"}, ("--mystery",)
    )


@pytest.mark.parametrize(
    ("value", "off"), [(None, True), ("False", True), (0, True), ("", True), (1, False), (True, False)]
)
def test_off(value: object, off: bool) -> None:
    """Values by which a word asks for nothing."""
    assert is_off(value) is off


def test_tables_and_words_are_joined() -> None:
    """The words of a second table win."""
    both = TABLE | WordTable(deciding={"offload*": "time"})
    assert both.deciding["offload*"] == "time"
    assert (ReadWords(("a",), {"b": 1}) + ReadWords(("c",), {"b": 2})).unread == {"b": 2}


def test_an_empty_section_asks_for_nothing() -> None:
    """Whatever it would decide, and even if no table has it."""
    table = WordTable(deciding={"megatron_lm_config*": "how Megatron-LM runs it"})
    account = table.sort((), {"fsdp_config": {}, "megatron_lm_config": {}, "other": []})
    assert (account.idle, dict(account.deciding), account.unknown) == (
        ("fsdp_config", "megatron_lm_config"),
        {},
        ("other",),
    )


NAMES = st.text("ab_*?[]-A", max_size=6)


@given(st.lists(NAMES, max_size=8), NAMES)
def test_the_first_name_of_a_table_that_matches(names: list[str], name: str) -> None:
    """As asking its names one by one."""
    by_one = (each for each in names if name == each or (set(each) & set("*?[") and fnmatchcase(name, each)))
    assert TableNames.of(names).first(name) == next(by_one, None)


@pytest.mark.parametrize(
    ("value", "decides"), [("false", True), (0, True), (None, False), (True, False), ("auto", False)]
)
def test_words_that_decide_where_they_are_off(value: object, decides: bool) -> None:
    """What is on by default; tables that are joined, and sections, keep them."""
    table = (WordTable(idle=("scan*",)) | WordTable(off={"scan_layers": "memory"})).under("train")
    account = table.sort((), {"train.scan_layers": value})
    assert (dict(account.deciding), account.idle) == (
        ({"train.scan_layers": "memory"}, ()) if decides else ({}, ("train.scan_layers",))
    )
