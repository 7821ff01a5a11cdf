"""Builders shared by all tests."""

from __future__ import annotations

import pytest
from report_samples import make_result, make_timeline

from simpar.report.result import Result
from simpar.report.timeline import Timeline


@pytest.fixture(scope="session")
def timeline() -> Timeline:
    """A 1F1B step of 4 stages and 8 microbatches with sends, one gradient reduction and memory curves."""
    return make_timeline(num_stages=4, num_microbatches=8)


@pytest.fixture(scope="session")
def result(timeline: Timeline) -> Result:
    """A result around that timeline."""
    return make_result(timeline)
