"""Pictures of grids of searches: every cell says what its best plan takes, and how sure that is."""

import pytest

from simpar.plan.plan import Plan
from simpar.report.grid import plot_grid

BEST = {
    "mfu": 0.5, "peak_reserved_bytes": 2.0**36, "plan": Plan().model_dump(mode="json"),
    "step_time_s": 2.0, "step_time_interval_s": [1.8, 2.5], "fit_probability": 0.97,
}  # fmt: skip


@pytest.fixture
def texts():
    """What stands in the cells of a grid with one best plan and one cell in which nothing fits."""

    def drawn(best):
        rows = [{"model": "m", "nodes": n, "parameters": 1e9, "best": plan} for n, plan in ((1, None), (2, best))]
        axes = plot_grid({"axes": ["model", "nodes"], "cells": rows, "title": "t"}).axes[0]
        return [text.get_text() for text in axes.texts]

    return drawn


def test_a_cell_says_how_far_its_step_may_be_off_and_how_surely_it_fits(texts):
    """Both in lines of their own."""
    assert texts(BEST) == ["nothing fits", "50%  64 GiB\n2.00 s \N{MINUS SIGN}10 +25%\n97 % sure to fit\n1 device\nmb1"]


def test_grids_of_versions_that_did_not_say_it_are_drawn_without(texts):
    """The rest is as it was."""
    known = {name: BEST[name] for name in ("mfu", "peak_reserved_bytes", "plan", "step_time_s")}
    assert texts(known)[1] == "50%  64 GiB\n1 device\nmb1"
