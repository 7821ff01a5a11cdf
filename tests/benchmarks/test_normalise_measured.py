"""Published tables in explicit columns: written, read again, and deaf to labels."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.normalise.tables import read_published
from simpar.validation.columns import find_unread_columns
from simpar.validation.rows import case, read_measurements
from simpar.validation.table import read_table
from tests.validation.test_rows import LABELS, WORDS, same

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "validation" / "published.csv"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The table of published runs as the script writes it."""
    script = ROOT / "benchmarks" / "normalise_measured.py"
    monkeypatch.syspath_prepend(script.parent)
    monkeypatch.setattr(sys, "argv", [str(script), str(TABLE), "--to", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    return tmp_path / TABLE.name


def test_what_is_written_is_what_is_read_in_memory(written):
    """The same runs and measurements, row by row, and no column of words but labels."""
    rows = read_table(written)
    assert len(rows) == len(read_published(TABLE)) > 40
    for row, own in zip(rows, read_published(TABLE), strict=True):
        assert case(row) == case(own)
        assert read_measurements(row) == read_measurements(own)
    assert set(find_unread_columns(rows)) == {"gpu_type", "interconnect", "zero_stage_or_fsdp"}


@given(
    at=st.integers(0, 10**6),
    labels=st.dictionaries(
        st.sampled_from([*LABELS, "gpu_type", "interconnect", "zero_stage_or_fsdp"]),
        st.one_of(st.sampled_from(WORDS), st.text(max_size=20)),
        min_size=1,
    ),
)
@settings(max_examples=60, deadline=None)
def test_no_label_of_a_published_row_changes_a_number(at, labels):
    """Its device, network and sharding have columns of their own, and so has all else that it says."""
    rows = read_published(TABLE)
    row = rows[at % len(rows)]
    assert same({**row, **labels}) == same(row)
