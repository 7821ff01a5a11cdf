"""Cuts into stages: dynamic programming against brute force, and the search over nodes of two kinds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from simpar.architectures.hf_config import read
from simpar.architectures.training import Training
from simpar.errors import Infeasible, UserError
from simpar.hardware.catalogue import load_cluster, make_mixed
from simpar.hardware.cluster import Cluster
from simpar.hardware.profile import MixedProfile
from simpar.plan.plan import Plan
from simpar.planner.answer.terminal import certificate
from simpar.planner.api import search
from simpar.planner.certify.exact import measure
from simpar.planner.problem import Constraints, Problem, make_problem
from simpar.planner.progress import SearchProgress
from simpar.planner.stages import uneven
from simpar.planner.stages.skeletons import SkeletonPrices
from simpar.planner.stages.uneven import rules_out, search_uneven
from simpar.program.emission.emit import at_most
from simpar.program.lower import Perturbation
from simpar.report.result import Result
from simpar.simulation import simulate
from tests.gate import some
from tests.planner.stages.test_cuts import every_cut


def layers_of(cut: tuple[int, ...]) -> tuple[int, ...]:
    """Layers by stage: the first has the embedding, the last the head besides."""
    layers = [*cut]
    layers[0] -= 1
    layers[-1] -= 1
    return tuple(layers)


def mixed() -> Cluster:
    """A node of A100 and a node of H100."""
    groups = [{"hardware": "dgx-a100-80gb", "nodes": 1}, {"hardware": "dgx-h100", "nodes": 1}]
    return make_mixed(MixedProfile.model_validate({"name": "mix", "groups": groups}))


GRAPH = read(
    {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 10, "num_attention_heads": 16, "num_key_value_heads": 16,
    },
    name="ten",
)  # fmt: skip
TRAINING = Training(seq_len=2048, global_batch=64)
FIXED = {"tp": "1", "micro_batch": "1", "recompute": "none", "rank_order": "tp-cp-dp-pp"}


@pytest.mark.parametrize("pp", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_search_finds_what_trying_every_cut_finds(pp: int) -> None:
    """On nodes of two kinds the found cut is as fast as the best of all cuts simulated."""
    constraints = Constraints(fixed={**FIXED, "pp": str(pp)})
    found = search(GRAPH, mixed(), TRAINING, objective="time", constraints=constraints)
    times = {}
    for cut in every_cut(12, pp):
        plan = Plan(pp=pp, micro_batch=1, zero=1, layers=layers_of(cut))
        times[cut] = simulate(GRAPH, mixed(), plan, TRAINING).step_time_s
    best = min(times, key=lambda cut: times[cut])
    assert found.best.step_time_s == pytest.approx(times[best], rel=1e-9)
    layers = found.best.plan.pipeline.layers
    assert layers is not None
    assert sum(layers[: pp // 2]) < sum(layers[pp // 2 :]), "the faster devices hold more"


def test_the_search_chooses_by_simulated_time_and_bounds_it() -> None:
    """Candidates are ranked by time, the gap is honest: no skeleton is bounded above what it takes."""
    kept = Constraints(fixed={"recompute": "none"})
    found = search(GRAPH, mixed(), TRAINING, objective="time", progress=SearchProgress(top=3), constraints=kept)
    times = [one.step_time_s for one in found.candidates]
    assert times == sorted(times)
    assert 0 <= found.gap < 1
    assert all(one.plan.predicted for one in found.candidates)
    even = simulate(GRAPH, mixed(), Plan(pp=2, micro_batch=1, zero=1), TRAINING).step_time_s
    assert found.best.step_time_s < even


@pytest.mark.slow
def test_on_equal_nodes_it_is_never_worse_than_the_uniform_space() -> None:
    """The optimum of the uniform space is among the candidates."""
    cluster = load_cluster("dgx-h100")
    uneven = search(GRAPH, cluster, TRAINING, space="uneven").shortest.step_time_s
    assert uneven <= search(GRAPH, cluster, TRAINING).shortest.step_time_s


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"space": "uniform"}, "allowed: uneven"),
        ({"objective": "cost"}, "allowed: regret, time"),
        ({"constraints": Constraints(fixed={"vpp": "2"})}, "is not an axis of space uneven"),
        ({"constraints": Constraints(portable="megatron")}, "portable megatron"),
    ],
)
def test_what_the_space_does_not_know_is_refused(options: dict[str, object], words: str) -> None:
    """One line that says what is allowed."""
    with pytest.raises(UserError, match=words):
        search(GRAPH, mixed(), TRAINING, **options)  # type: ignore[arg-type]


def brute_force(problem: Problem, rank_orders: tuple[str, ...]) -> list[Result]:
    """The public simulation of everything that the space says it holds and that is a legal plan."""
    layers, world = len(problem.graph.layers), problem.cluster.world_size
    found = []
    for tp, pp, micro_batch, recompute, order in product(
        (1, 2, 4), range(2, world + 1), (1, 2, 4), ("none", "selective", "full"), rank_orders
    ):
        for cut in every_cut(layers + 2, pp) if world % (tp * pp) == 0 else ():
            plan = Plan(
                tp=tp, pp=pp, micro_batch=micro_batch, recompute=recompute, rank_order=order, zero=1,
                layers=layers_of(cut),
            )  # fmt: skip
            try:
                done = simulate(
                    problem.graph, problem.cluster, plan, problem.training, stack=problem.stack,
                    perturbation=problem.perturbation,
                )  # fmt: skip
            except UserError:
                continue
            room = done.memory.capacity_bytes * (1 - problem.constraints.headroom)
            if done.fits and done.memory.peak_reserved_bytes <= room:
                found.append(done)
    return found


def nothing_even(_problem: Problem, _watch: SearchProgress) -> None:
    """A uniform space in which nothing fits."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_cut_beats_the_certified_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random tiny models on one machine, with little memory or a slow rank: the best of brute force, no other."""
    monkeypatch.setattr(uneven, "search_even_stages", nothing_even)
    random = np.random.default_rng(seed)
    config = {
        "model_type": "llama", "vocab_size": int(random.choice((4096, 32000))), "hidden_size": 256,
        "intermediate_size": 1024, "num_hidden_layers": int(random.integers(2, 4)), "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }  # fmt: skip
    problem = make_problem(
        read(config, "tiny"),
        load_cluster("laptop-cpu-4"),
        Training(seq_len=128, global_batch=int(random.choice((4, 8)))),
        stack=str(random.choice(("megatron", "simpar", "deepspeed"))),
        constraints=Constraints(headroom=float(random.choice((0.0, 0.99, 0.994)))),
        perturbation=Perturbation(slow_ranks={int(random.integers(4)): 1.3} if seed % 2 else {}),
    )
    every = brute_force(problem, ("tp-cp-dp-pp",))
    try:
        found = search_uneven(problem, SearchProgress(top=3))
    except Infeasible:
        assert not every
        return
    assert found.certified_optimal
    assert found.shortest.step_time_s == min(done.step_time_s for done in every)
    assert found.details["lower_bound_s"] == found.shortest.step_time_s
    for one in found.candidates:
        again = simulate(
            problem.graph, problem.cluster, one.plan, problem.training, stack=problem.stack,
            perturbation=problem.perturbation,
        )  # fmt: skip
        assert (again.step_time_s, again.peak_memory_bytes) == (one.step_time_s, one.peak_memory_bytes)
        assert again.memory.peak_reserved_bytes <= (1 - problem.constraints.headroom) * 16 * 2**30


@pytest.mark.parametrize(
    ("name", "tp", "order"),
    some(
        [
            ("1f1b", 1, "tp-cp-pp-dp"), ("zb-h1", 2, "tp-cp-dp-pp"), ("1f1b", 1, "tp-cp-dp-pp"),
            ("1f1b", 2, "tp-cp-dp-pp"), ("zb-h1", 1, "tp-cp-dp-pp"), ("zb-h1", 1, "tp-cp-pp-dp"),
        ],
        2,
        tuples=True,
    ),
)  # fmt: skip
def test_bounds_are_below_steps_and_hardly_below(name: str, tp: int, order: str) -> None:
    """Every cut of every skeleton takes at least its bound; where nothing but passes counts, no more than that."""
    problem = make_problem(GRAPH, mixed(), TRAINING)
    plan = Plan(tp=tp, pp=4, micro_batch=1, zero=1, schedule=name, rank_order=order)
    skeleton = SkeletonPrices(problem).skeleton(plan)
    assert skeleton is not None
    cuts = np.array([(3, 3, 3, 3), (1, 5, 5, 1), (2, 1, 1, 8), (5, 3, 2, 2)])
    for cut, bound_s in zip(cuts.tolist(), skeleton.bounds_s(cuts), strict=True):
        assert skeleton.plan(cut).pipeline.layers == layers_of(tuple(cut))
        step_s = measure(problem, skeleton.plan(cut)).step_time_s
        assert 0.85 * step_s < bound_s <= step_s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "layout"),
    [
        ("megatron", {"recompute": "none"}),
        ("megatron", {"recompute": "full", "schedule": "zb-h1"}),
        ("simpar", {"recompute": "selective", "zero": 0}),
        ("deepspeed", {"recompute": "none", "schedule": "gpipe"}),
    ],
)
def test_what_holds_more_layers_needs_as_much_memory_or_more(stack: str, layout: dict[str, Any]) -> None:
    """All cuts of six layers: whatever a full stage rules out needs as much itself, and nothing else is ruled out."""
    config = {
        "model_type": "llama", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 1024,
        "num_hidden_layers": 6, "num_attention_heads": 4,
    }  # fmt: skip
    training = Training(seq_len=128, global_batch=8)
    problem = make_problem(read(config, "tiny"), load_cluster("laptop-cpu-4"), training, stack=stack)
    skeleton = SkeletonPrices(problem).skeleton(Plan(**{"zero": 1, "micro_batch": 1, "pp": 4, **layout}))
    assert skeleton is not None
    cuts = np.array(every_cut(8, 4))
    done = [measure(problem, skeleton.plan(cut)) for cut in cuts.tolist()]
    full = np.array([one.fullness for one in done])
    begin, end = np.cumsum(cuts, axis=1) - cuts, np.cumsum(cuts, axis=1)
    for number in range(len(cuts)):
        for stage in range(4):
            fullness = tuple(np.where(np.arange(4) == stage, 1.1, 0.9))
            ruled_out = rules_out(replace(done[0], fullness=fullness), cuts, number)
            more = (begin[:, stage] <= begin[number, stage]) & (end[:, stage] >= end[number, stage])
            assert (ruled_out == more).all()
            assert (full[more, stage] >= full[number, stage]).all()


def test_a_cut_that_hosts_have_no_room_for_does_not_fit() -> None:
    """Offloaded states that fill the host rule a cut out like a device that is too small, and nothing else does."""
    cluster = load_cluster("dgx-h100")
    host = cluster.profile.host.model_copy(update={"memory_bytes": 2.0 * 2**30})
    small = replace(cluster, profile=cluster.profile.model_copy(update={"host": host}))
    for each, fits in ((cluster, True), (small, False)):
        base = Plan(offload_optimizer="cpu")
        problem = make_problem(GRAPH, each, TRAINING, base=base, constraints=Constraints(fixed={**FIXED, "pp": 2}))
        search = uneven.Uneven(problem, SearchProgress())
        skeleton = SkeletonPrices(problem).skeleton(base.with_values(tp=1, pp=2, micro_batch=1, zero=1))
        assert skeleton is not None
        done = search.simulate(skeleton, (6, 6))
        assert done is not None
        assert max(done.fullness) < 1
        assert (done.fits, np.isfinite(search.best_s)) == (fits, fits)


def test_cuts_of_too_many_ops_stay_bounded() -> None:
    """They are answered with a gap and said; where nothing else is there, that is why there is no answer."""
    held = {"tp": "1", "pp": "2", "recompute": "none", "rank_order": "tp-cp-dp-pp"}
    problem = make_problem(GRAPH, mixed(), TRAINING, constraints=Constraints(fixed={**held, "micro_batch": "1,2"}))
    whole = search_uneven(problem, SearchProgress(top=1))
    assert (whole.certified_optimal, whole.details["not_built"]) == (True, 0)
    counts = whole.counts
    assert 0 < counts.feasible <= counts.simulated < counts.space_size
    told = next(line for line in certificate(whole) if line.startswith(f"{counts.space_size:,} plans, "))
    assert f" plans, {counts.bounded:,} have a lower bound" in told  # no plan is known to fit before it is simulated
    assert f"{counts.simulated:,} simulated, of which {counts.feasible:,} fit, in" in told
    with at_most(80):  # microbatches of one sequence, which win, have 94
        found = search_uneven(problem, SearchProgress(top=1))
    assert not found.certified_optimal
    assert found.details["lower_bound_s"] <= whole.best.step_time_s < found.best.step_time_s
    assert found.gap == pytest.approx(1 - found.details["lower_bound_s"] / found.best.step_time_s)
    assert 0 < found.details["not_built"] <= 11
    assert any("plans that may be better have more than" in line for line in certificate(found))
    with at_most(10), pytest.raises(Infeasible, match="plans that may be best can be simulated"):
        search_uneven(problem, SearchProgress(top=1))
