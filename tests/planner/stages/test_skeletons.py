"""Plans but for their cut: prices, and bounds of cuts."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.plan.plan import Plan
from simpar.planner.problem import Problem, make_problem
from simpar.planner.stages.skeletons import Skeleton, SkeletonPrices
from tests.planner.stages.test_cuts import every_cut
from tests.planner.stages.test_uneven import GRAPH, TRAINING, mixed


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-pp-dp", "dp-tp-cp-pp"])
def test_prices_are_shared_where_they_are_equal(order: str) -> None:
    """Skeletons priced one after the other are those priced alone, wherever tensor ranks stand."""
    problem = make_problem(GRAPH, mixed(), TRAINING)
    shared = SkeletonPrices(problem)
    for pp in (1, 2, 4):
        plan = Plan(tp=2, pp=pp, micro_batch=1, zero=1, rank_order=order)
        one, alone = shared.skeleton(plan), SkeletonPrices(problem).skeleton(plan)
        assert one is not None
        assert alone is not None
        assert np.array_equal(one.blocks_ns, alone.blocks_ns)


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Ten layers on nodes of two kinds."""
    return make_problem(GRAPH, mixed(), TRAINING)


@pytest.fixture(scope="module")
def skeleton(problem: Problem) -> Skeleton:
    """Three stages but for their cut."""
    found = SkeletonPrices(problem).skeleton(Plan(tp=4, pp=4, micro_batch=1, zero=1))
    assert found is not None
    return found


def test_a_cut_is_layers_without_embedding_and_head(skeleton: Skeleton) -> None:
    """They are blocks, the first and the last; a cut of twelve blocks is a plan of ten layers."""
    assert skeleton.plan((4, 3, 3, 2)).pipeline.layers == (3, 3, 3, 1)
    assert skeleton.num_cuts == len(every_cut(12, 4))


def test_bounds_of_cuts(skeleton: Skeleton) -> None:
    """None is below that of all, the promised cut has its own, and one below a limit is bounded below it."""
    cuts = np.array(every_cut(12, 4))
    bounds = skeleton.bounds_s(cuts)
    assert bounds.min() >= skeleton.bound_s
    assert skeleton.promise_s in bounds
    limit = float(np.quantile(bounds, 0.3))
    below = skeleton.cuts_below(limit, len(cuts))
    assert below is not None
    assert {tuple(cut) for cut in cuts[bounds < limit].tolist()} <= {tuple(cut) for cut in below.tolist()}
