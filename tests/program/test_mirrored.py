"""DualPipe: a rank and its mirror image are replicas of one rank of a V on half the pipeline."""

from __future__ import annotations

import numpy as np
import pytest

import simpar
from simpar.architectures.catalogue import load_model
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.layout.layout import Layout, fold_two_ended, unfold_two_ended
from simpar.layout.mirrored import MirroredMesh
from simpar.plan.mesh import AXES, Mesh
from simpar.plan.plan import Plan
from simpar.plan.schedules import make_schedule
from simpar.program.perturbation import Perturbation
from simpar.simulation import lower_job, make_job, simulate
from tests.gate import some

GRAPH = load_model("tiny-llama")
TRAINING = simpar.Training(seq_len=512, global_batch=16)
ORDERS = (AXES, ("tp", "cp", "pp", "dp"), ("pp", "tp", "cp", "dp"))


def step_ns(plan: Plan, cluster: Cluster, perturbation: Perturbation) -> int:
    """The step of a layout, without what starts and ends it."""
    lowered = lower_job(make_job(GRAPH, cluster, plan, TRAINING), cluster, perturbation)
    engine = choose_engine("reference", lowered.program)
    return int(engine(lowered.program).makespan_ns)


@pytest.mark.parametrize("order", ORDERS)
def test_replicas_are_those_that_hold_the_same_stages(order: tuple[str, ...]) -> None:
    """Groups of data parallelism are rank r and p - 1 - r of every replica; pipelines go inwards from both ends."""
    whole = Mesh(tp=2, dp=3, pp=4, etp=2, order=order)
    mesh = fold_two_ended(Layout.of(Plan(mesh=whole, schedule="dualpipe"))).mesh
    assert isinstance(mesh, MirroredMesh)
    assert (mesh.pp, mesh.dp, mesh.world_size, mesh.whole) == (2, 6, 24, whole)
    ranks = np.arange(24)
    assert mesh.at(mesh.coordinates(ranks)).tolist() == ranks.tolist()
    assert whole.coordinates(mesh.opposite(ranks))["pp"].tolist() == (3 - whole.coordinates(ranks)["pp"]).tolist()
    for group in mesh.groups("dp"):
        stage = whole.coordinates(group)["pp"]
        assert np.unique(stage).tolist() in ([0, 3], [1, 2])
    for pipeline in mesh.groups("pp"):
        assert whole.coordinates(pipeline)["pp"].tolist() in ([0, 1], [3, 2])


def test_the_table_is_that_of_a_v_on_half_the_ranks() -> None:
    """Every rank's passes are those of its place in the V, microbatches of the far end counted from its half."""
    both, v = make_schedule("dualpipe", 8, 32), make_schedule("dualpipev", 4, 16)
    for rank in range(8):
        mine, its = both.ranks[rank], v.ranks[min(rank, 7 - rank)]
        assert np.array_equal(mine.code, its.code)
        assert np.array_equal(mine.overlap, its.overlap)
        assert np.array_equal(mine.stage, its.stage)
        assert np.array_equal(mine.microbatch % 16, its.microbatch)


FOLDED = {
    "ddp": Plan(pp=4, schedule="dualpipe"),
    "zero1": Plan(pp=4, schedule="dualpipe", zero=1, rank_order="tp-cp-pp-dp"),
    "fsdp": Plan(pp=4, tp=2, schedule="dualpipe", zero=3, kind="fsdp"),
    "context": Plan(pp=4, cp=2, schedule="dualpipe", zero=2),
    "recompute": Plan(pp=4, schedule="dualpipe", recompute="full"),
}


@pytest.mark.parametrize("name", some(FOLDED, ["zero1", "fsdp"]))
def test_folded_equals_every_rank_on_its_own(name: str) -> None:
    """Both ends are one class of ranks or many: the same nanoseconds."""
    plan, cluster = FOLDED[name], load_cluster("dgx-a100-80gb", 1)
    assert step_ns(plan, cluster, Perturbation()) == step_ns(plan, cluster, Perturbation(fold=False))


@pytest.mark.parametrize("rank", [0, 7])
def test_a_slow_rank_of_either_end_holds_up_both(rank: int) -> None:
    """What differs on one side reaches the other through the middle and the sums of gradients."""
    cluster, slow = load_cluster("dgx-a100-80gb", 1), Perturbation(slow_ranks={rank: 1.5})
    plan = Plan(pp=4, tp=2, schedule="dualpipe")
    found = step_ns(plan, cluster, slow)
    assert found == step_ns(plan, cluster, slow.model_copy(update={"fold": False}))
    assert found > step_ns(plan, cluster, Perturbation())


def test_two_copies_of_every_stage() -> None:
    """Parameters, and gradients with them, are those of half as many pipeline ranks; the step is nearly that."""
    graph, training = load_model("llama-3.2-1b"), simpar.Training(seq_len=4096, global_batch=64)
    cluster = load_cluster("dgx-h100", 1)
    both = simulate(graph, cluster, Plan(pp=4, dp=2, schedule="dualpipe"), training)
    v = simulate(graph, cluster, Plan(pp=2, dp=4, schedule="dualpipev", vpp=2), training)
    for mine, its in zip(both.memory.stages, v.memory.stages, strict=True):
        assert (mine.parameters_bytes, mine.gradients_bytes) == (its.parameters_bytes, its.gradients_bytes)
    assert both.step_time_s == pytest.approx(v.step_time_s, rel=0.01)
    assert both.setup.plan["pipeline"]["schedule"] == "dualpipe"
    assert both.setup.plan["mesh"] == {"tp": 1, "cp": 1, "dp": 2, "pp": 4, "ep": 1, "etp": None}
    assert both.communication["pp"].bytes_per_rank > 0


def test_the_plan_comes_back() -> None:
    """Folding and unfolding is the identity, and leaves other schedules as they are."""
    layout = Layout.of(Plan(pp=4, dp=2, tp=2, schedule="dualpipe", zero=1))
    assert unfold_two_ended(fold_two_ended(layout)) == layout
    assert fold_two_ended(layout).to_plan() == layout.to_plan()
    other = Layout(pp=4, dp=2, schedule="1f1b")
    assert fold_two_ended(other) is other
    assert unfold_two_ended(other) is other


def test_replicas_that_step_alone_do_not_share_stages() -> None:
    """The two copies reduce inside the step."""
    plan = Plan(pp=4, dp=2, schedule="dualpipe", sync="local-sgd")
    with pytest.raises(UserError, match=r"plan\.sync = local-sgd: dualpipe has two copies"):
        make_job(GRAPH, load_cluster("dgx-h100", 1), plan, TRAINING)


def test_jitter_is_drawn_for_both_ends() -> None:
    """Ranks of both ends vary on their own."""
    cluster, plan = load_cluster("dgx-h100", 1), Plan(pp=4, dp=2, schedule="dualpipe")
    found = simulate(GRAPH, cluster, plan, TRAINING, perturbation=Perturbation(jitter_sigma=0.05, seeds=2))
    assert found.jitter is not None
    assert found.jitter.units == 8


def test_jitter_of_many_ranks_with_two_ends_is_refused() -> None:
    """Its ranks are lowered one by one, which thousands are too many for."""
    cluster, training = load_cluster("dgx-h100", 256), simpar.Training(seq_len=512, global_batch=4096)
    plan, jitter = Plan(pp=4, schedule="dualpipe"), Perturbation(jitter_sigma=0.05)
    with pytest.raises(UserError, match="dualpipe is lowered rank by rank, 2,048 devices: allowed 1,024"):
        simulate(GRAPH, cluster, plan, training, perturbation=jitter)
