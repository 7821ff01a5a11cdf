"""Both pools: engines agree, nobody trains on responses that are too old, and limits are those of one pool alone."""

import random
from itertools import pairwise

import pytest

from simpar.engine import choose_engine
from simpar.posttraining.lengths import draw_step
from simpar.posttraining.pools import Durations, Pools
from simpar.posttraining.program import in_order, program_of
from simpar.posttraining.replica import PromptSample
from tests.gate import some


def run(section, replicas, *, scores_ns=0, training_ns=0, weights_ns=0, turn_ns=0, apart=1, beside=()):
    """The history of a section with fixed durations; of hybrid placements ``apart`` replicas only generate."""

    def batch(lengths):
        return scores_ns * len(lengths), training_ns

    took = Durations(batch, weights_ns, turn_ns, turn_ns, lambda _: beside)
    joined = {"colocated": len(replicas), "hybrid": len(replicas) - apart, "split": 0}[section.placement]
    return Pools(section, replicas, lambda step: draw_step(section, 1000, step), took, joined).run()


@pytest.mark.parametrize("seed", some(range(120), 30))
def test_engines_give_the_times_at_which_things_happened(seed, section_of, replica_of):
    """For every placement and synchrony; and no response is older than allowed."""
    draw = random.Random(seed)
    placement, ahead = draw.choice(["colocated", "split", "split", "hybrid"]), draw.randrange(3)
    in_flight = bool(ahead) and (placement != "split" or draw.random() < 0.5)
    synchrony = {"steps_off": ahead, "in_flight": in_flight, "recompute_cache": draw.random() < 0.5}
    section = section_of(
        prompts=draw.choice([1, 3, 8]), samples=draw.choice([2, 4]), placement=placement,
        synchrony=synchrony, steps=3, seed=seed,
    )  # fmt: skip
    replicas = [replica_of() for _ in range(draw.choice([2, 3, 5] if placement == "hybrid" else [1, 2, 5]))]
    history = run(
        section, replicas, scores_ns=10**6, training_ns=draw.choice([0, 10**8, 5 * 10**9]),
        weights_ns=draw.choice([0, 5 * 10**7]), turn_ns=10**7,
        beside=[(draw.choice([0, 10**9]), draw.choice([0, 3 * 10**9])) for _ in range(draw.randrange(3))],
    )  # fmt: skip
    names = ["critic", "reference"]
    program, ordered = program_of(history.intervals, len(replicas), None, names).program, in_order(history.intervals)
    for name in ("sweep", "plain", "reference"):
        timing = choose_engine(name, program)(program)
        assert timing.start_ns.tolist() == [each.start_ns for each in ordered]
        assert timing.finish_ns.tolist() == [each.finish_ns for each in ordered]
    assert all(0 <= age <= ahead for step in history.steps for age in step.ages)
    assert all(step.responses == section.responses for step in history.steps)


def test_with_a_generator_that_takes_no_time_steps_are_those_of_training(section_of, replica_of):
    """Two batches ahead, training never waits once the queue is filled."""
    section = section_of(placement="split", synchrony={"steps_off": 2, "in_flight": True}, steps=4)
    history = run(section, [replica_of() for _ in range(64)], training_ns=10**13, weights_ns=1000)
    steps = [step.weights_ns for step in history.steps]
    # a batch ends between two iterations, for which new weights wait: at most one iteration a step
    for before, after in pairwise(steps[1:]):
        assert 0 <= after - before - 10**13 - 1000 < 10**7


def test_with_training_that_takes_no_time_steps_are_those_of_generation(section_of, replica_of):
    """On policy and colocated, a step lasts until the last sequence of its batch ends."""
    section, replica = section_of(steps=2), replica_of()
    history = run(section, [replica])
    assert history.steps[-1].weights_ns == replica.counts.busy_ns


def test_a_batch_waits_for_the_longest_response(section_of, replica_of):
    """On a replica for each sequence, it is ready when the longest of them ends."""
    section = section_of(prompts=1, samples=4, steps=1)
    ready_ns = run(section, [replica_of() for _ in range(4)]).steps[0].ready_ns
    step, alone = draw_step(section, 1000, 0), replica_of()
    alone.add([PromptSample(0, 0, int(step.prompt[0]), int(step.response.max()))], 0)
    alone.next_finished()
    assert ready_ns == alone.now_ns


def test_pools_that_run_at_the_same_time_are_no_slower(section_of, replica_of):
    """One step off policy overlaps generation and training; interrupting sequences takes the tail away."""
    times = {}
    for name, synchrony in (
        ("on policy", {}), ("one off", {"steps_off": 1}), ("in flight", {"steps_off": 1, "in_flight": True})
    ):  # fmt: skip
        section = section_of(prompts=8, placement="split", synchrony=synchrony, steps=6)
        history = run(section, [replica_of() for _ in range(2)], training_ns=10**9)
        before = history.steps[synchrony.get("steps_off", 0) - 1].weights_ns if synchrony else 0
        times[name] = history.steps[-1].weights_ns - before
    assert times["on policy"] > times["one off"] > times["in flight"]


def test_without_replicas_apart_a_hybrid_pool_is_a_colocated_one(section_of, replica_of):
    """The same integers, on policy and off."""
    for synchrony in ({}, {"steps_off": 2, "in_flight": True}):
        both = [
            run(section_of(placement=placement, synchrony=synchrony, steps=3), [replica_of() for _ in range(3)],
                training_ns=10**8, turn_ns=10**6, apart=0)
            for placement in ("colocated", "hybrid")
        ]  # fmt: skip
        assert both[0] == both[1]


def test_replicas_apart_go_on_while_others_train(section_of, replica_of):
    """One step off, they generate beside updates, and steps are shorter than where all take turns."""
    wanted = {"prompts": 8, "steps": 5, "synchrony": {"steps_off": 1, "in_flight": True}}
    ends = {}
    for placement in ("colocated", "hybrid"):
        history = run(section_of(placement=placement, **wanted), [replica_of() for _ in range(4)], training_ns=10**9)
        ends[placement] = history.steps[-1].weights_ns
        mine = [each for each in history.intervals if each.stream == 3 and each.kind == "generate"]
        trained = [each for each in history.intervals if each.kind == "train"]
        beside = [any(m.start_ns < t.finish_ns and t.start_ns < m.finish_ns for m in mine) for t in trained]
        assert any(beside) == (placement == "hybrid")
    assert ends["hybrid"] < ends["colocated"]


def test_the_cache_over_time_is_empty_when_the_batch_has_ended(section_of, replica_of):
    """On policy, what is in use never passes the peak, and no block is kept behind the last sequence of a batch."""
    section = section_of(prompts=2, steps=2)
    replicas = [replica_of() for _ in range(2)]
    history = run(section, replicas, training_ns=10**8)
    for replica, curve in zip(replicas, history.cache, strict=True):
        assert [time for time, _ in curve] == sorted(time for time, _ in curve)
        assert max(used for _, used in curve) <= replica.counts.peak_blocks
        assert curve[-1] == (max(time for time, _ in curve), 0)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_whole_cycles_of_batches_are_measured(ahead, section_of):
    """Off policy long and short steps take turns, as many as there are batches under way."""
    section = section_of(placement="split", synchrony={"steps_off": ahead, "in_flight": True}, steps=4)
    assert section.measured_steps % (ahead + 1) == 0 <= section.measured_steps - 4 <= ahead
    assert section_of(steps=5).measured_steps == 5
