"""Recomputation ahead of its backward: what is hidden, to the nanosecond, and what is live for longer."""

import pytest

import simpar
from simpar.engine import reference
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import make_cluster
from simpar.program.resolve.pass_costs import PassesAlone
from simpar.simulation import lower_job, make_job
from tests.gate import some

TRAINING = simpar.Training(seq_len=2048, global_batch=8)
LAYERS = {2: (15, 17), 3: (10, 10, 12), 4: (7, 8, 8, 9)}


def line(devices):
    """So many devices of one node: a pipeline and nothing else."""
    return make_cluster(load_cluster("dgx-h100").profile.model_copy(update={"devices_per_node": devices}), 1)


def plan_of(pp, *, early, **options):
    """Llama 3 8B with everything recomputed, the last stage the fullest."""
    given = {"pp": pp, "recompute": "full", "layers": LAYERS[pp], "schedule": "1f1b", **options}
    return simpar.Plan(recompute_early=early, optimizer="sgd", **given)


def makespan_ns(cluster, plan):
    """The step by the reference engine."""
    job = make_job("llama-3-8b", cluster, plan, TRAINING, "megatron")
    return reference.run(lower_job(job, cluster).program).makespan_ns


def again_ns(cluster, plan):
    """What every stage runs once more for a microbatch."""
    alone = PassesAlone.of(make_job("llama-3-8b", cluster, plan, TRAINING, "megatron"), cluster)
    return [sum(alone.duration_ns(piece, "again") for piece in pieces) for pieces in alone.builder.pieces]


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_all_but_the_last_stage_hide_one_microbatch(pp, schedule):
    """M (f + r + b) + (p - 1)(f + b) instead of (m + p - 1)(f + r + b): the stages ahead of the last hide theirs."""
    cluster = line(pp)
    early, late = (plan_of(pp, early=early, schedule=schedule) for early in (True, False))
    hidden = sum(again_ns(cluster, early)[:-1])
    assert hidden > 0
    assert makespan_ns(cluster, late) - makespan_ns(cluster, early) == hidden


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zb-v", "breadth-first"])
def test_no_schedule_gets_slower(schedule):
    """What starts earlier ends no later."""
    vpp = {"vpp": 2} if schedule in ("interleaved", "breadth-first") else {}
    steps = [
        makespan_ns(line(4), plan_of(4, early=early, schedule=schedule, layers=None, **vpp)) for early in (True, False)
    ]
    assert steps[0] < steps[1]


@pytest.mark.parametrize("schedule", some(["1f1b", "zb-h1", "gpipe"], 1))
def test_all_activations_of_a_microbatch_are_live(schedule):
    """Memory of a stage grows by all but one of its layers' recomputed activations."""
    cluster, stage = line(4), 1
    jobs = [
        make_job("llama-3-8b", cluster, plan_of(4, early=early, schedule=schedule), TRAINING, "megatron")
        for early in (True, False)
    ]
    early, late = (
        simpar.simulate("llama-3-8b", cluster, job.layout.to_plan(), TRAINING, stack="megatron").memory.stages[stage]
        for job in jobs
    )
    alone = PassesAlone.of(jobs[0], cluster).builder
    recomputed = [alone.unit(piece).recomputed_bytes for piece in alone.pieces[stage]]
    grown = early.activations_bytes + early.transient_bytes - late.activations_bytes - late.transient_bytes
    assert grown == pytest.approx(sum(recomputed) - max(recomputed), rel=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"recompute": "none"}, "full or every:C"),
        ({"recompute": "selective"}, "full or every:C"),
        ({"pp": 1, "layers": None}, "pp above 1"),
        ({"schedule": "dualpipev", "layers": None}, "overlap passes"),
        ({"zero": 3, "pp": 2, "layers": None}, "gathers parameters"),
        ({"offload_activations": 0.5}, "offload"),
    ],
)
def test_what_does_not_go_together_is_refused(options, words):
    """One line that names what is allowed."""
    given = {"pp": 4, "recompute": "full", "layers": LAYERS[4], "recompute_early": True, **options}
    with pytest.raises(UserError, match=words):
        make_job(
            "llama-3-8b",
            simpar.Cluster("dgx-h100"),
            simpar.Plan(**given),
            simpar.Training(seq_len=2048, global_batch=32),
        )
