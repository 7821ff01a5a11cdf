"""What verdicts on memory tell: where runs stop, also of sources that print only what ran."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from calibrate_memory import Verdicts
from calibrate_uncertainty_rows import Run

from simpar.uncertainty.memory import Parts
from simpar.uncertainty.support import Traits
from simpar.units import Floats

LITTLE = np.log(0.01)


def ran_at(needed: float) -> Run:
    """A run, or a layout out of memory, that is predicted to need so much of its device."""
    return Run(
        source="a", family="llama", cell=(), traits=Traits("megatron", "h100-sxm-80gb"), error=None, slopes={},
        predicted_s=1.0, measured_s=1.0, fits=True, needed_bytes=needed, capacity_bytes=1.0,
        parts_bytes=Parts(0.0, needed, 0.0), peak_error=None,
    )  # fmt: skip


def verdicts(needed: Floats) -> Verdicts:
    """Runs that ran, of a source that prints nothing else, a fifth of whose need is gaps."""
    nothing = np.zeros(len(needed))
    return Verdicts(
        runs=[ran_at(float(each)) for each in needed], needed=needed, inside=0.8 * needed, moving=0.8 * needed,
        gaps=0.2 * needed, outside=nothing, experts=(nothing, nothing), planned=nothing, unknown=nothing,
        outside_spread=nothing, mixed=nothing > 0,
    )  # fmt: skip


@pytest.mark.parametrize(("last", "mean"), [(1.1, -0.45), (1.0, 0.0), (0.9, 0.55)])
def test_runs_that_ran_tell_where_they_stop(last: float, mean: float) -> None:
    """As many at any need up to one: what gaps are short of that is the likeliest, neither less nor more."""
    some = verdicts(np.linspace(0.8, last, 40))
    means = np.arange(-0.9, 0.95, 0.05)
    losses = [some.loss(np.array([each, 0.0, np.log(0.1), LITTLE, LITTLE])) for each in means]
    assert means[int(np.argmin(losses))] == pytest.approx(mean, abs=0.11)


def test_a_sharp_end_of_what_ran_is_a_small_spread() -> None:
    """Runs up to the device's memory and none beyond are likelier under a small spread than under a large one."""
    sharp, blurred = verdicts(np.linspace(0.8, 1.0, 40)), verdicts(np.linspace(0.8, 1.2, 40))
    small, large = (np.array([0.0, 0.0, np.log(gaps), LITTLE, LITTLE]) for gaps in (0.1, 0.9))
    assert sharp.loss(small) < sharp.loss(large)
    assert blurred.loss(small) > blurred.loss(large)
