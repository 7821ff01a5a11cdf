"""The second phase of deciding a plan: every choice that costs decide has one decider, and what is stated stays."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from simpar.architectures.training import Training
from simpar.hardware.catalogue import load_cluster
from simpar.layout.deciders import DECIDERS
from simpar.plan.choices import BY_NAME
from simpar.plan.plan import Plan
from simpar.program.job import TrainingJob
from simpar.program.resolve.by_cost import BY_COST, decide_by_cost
from simpar.simulation import make_job

CLUSTER = load_cluster("dgx-h100")


def test_what_costs_decide_has_one_decider() -> None:
    """Which needs nothing that is decided later, and no decider before costs decides the same."""
    names = [name for decider in BY_COST for name in decider.decides]
    assert len(names) == len(set(names))
    assert set(names) <= set(BY_NAME)
    assert not set(names) & set(chain.from_iterable(decider.decides for decider in DECIDERS))
    for at, decider in enumerate(BY_COST):
        assert not set(decider.needs) & set(chain.from_iterable(each.decides for each in BY_COST[at:]))


def _never(job: TrainingJob) -> Any:
    raise AssertionError(job)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"recompute": "optimal", "micro_batch": 8}, "recompute"),
        ({"pp": 4, "schedule": "1f1b"}, None),
        ({"pp": 4, "schedule": "v-half"}, "pass_costs"),
        ({"pp": 4, "schedule": "terapipe"}, "slices"),
    ],
)
def test_what_is_stated_stays(values: dict[str, Any], name: str | None) -> None:
    """A decided job is decided again without a look at costs, and each plan leaves open what its schedule needs."""
    job = make_job("llama-3.2-1b", CLUSTER, Plan(**values), Training(seq_len=2048, global_batch=64))
    assert decide_by_cost(job, CLUSTER, _never) == job
    assert job.layout.recompute != "optimal"
    for each in ("pass_costs", "slices"):
        assert (getattr(job.layout, each) is not None) == (each == name)
