"""Stacks by name and release."""

from __future__ import annotations

import pytest

from simpar import files
from simpar.errors import UserError
from simpar.stacks.stack import load_stack


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("nemo", "nemo"), ("nemo@26.02", "nemo"), ("nemo@24.05", "nemo-24"), ("nemo@24.09.1", "nemo-24"),
        ("nemo@24.10", "nemo"), ("megatron@21.04", "megatron-sc21"), ("megatron@22.06", "megatron-22"),
        ("torchtitan@24.12", "torchtitan"),
    ],
)  # fmt: skip
def test_a_release_is_the_newest_unless_it_is_named(name: str, profile: str) -> None:
    """Releases with a profile of their own are that; all others are the newest."""
    assert load_stack(name).name == profile


def test_earlier_releases_are_shipped() -> None:
    """What a profile names exists."""
    for name in files.bundled("stacks"):
        assert set(load_stack(name).earlier.values()) <= set(files.bundled("stacks"))


def test_a_release_is_a_year_and_a_month() -> None:
    """Not a version of another kind."""
    with pytest.raises(UserError, match="a year and a month"):
        load_stack("nemo@r2.1")
