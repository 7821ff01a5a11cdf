"""Continuous batching: skipped iterations are exact, tokens are conserved, and simple cases are those of the hand."""

import random

import pytest

from simpar.posttraining.iterations import NO_WINDOW, SCALE
from simpar.posttraining.replica import FOREVER, PromptSample, Replica, ReplicaLimits, SharedPrompts
from tests.gate import some


def drawn(seed):
    """Limits and sequences of a random case in which blocks, slots and the budget all bind."""
    draw = random.Random(seed)
    block, most, context = draw.choice([1, 4, 16]), draw.choice([2, 8, 32]), draw.choice([50, 200])
    blocks = -(-context // block) * draw.choice([1, 2, 4])
    limits = ReplicaLimits(draw.choice([most, most + 5, 100]), most, block, blocks, draw.random() < 0.5)
    samples = []
    for group in range(draw.randrange(1, 8)):
        prompt = draw.randrange(1, context - 2)
        for _ in range(draw.randrange(1, 5)):
            response = draw.randrange(1, context - prompt + 1)
            samples.append(PromptSample(len(samples), group, prompt, response))
    windows = draw.choice([(NO_WINDOW,), (NO_WINDOW, 17), (9,)])
    stops = sorted(draw.randrange(1, 3 * 10**9) for _ in range(3))
    return limits, samples, windows, tuple(draw.randrange(1, 10**6) for _ in windows), stops


def played(replica, samples, stops, *, recompute):
    """What happens when, with interruptions at some times."""
    replica.add(samples, 0)
    events, stops = [], list(stops)
    while not replica.is_idle:
        finished = replica.next_finished(stops[0] if stops else FOREVER)
        if stops and replica.now_ns >= stops[0]:
            stops.pop(0)
            events.append(("stopped", replica.now_ns))
            replica.interrupt(recompute=recompute)
        events += [(replica.now_ns, sample.number) for sample in finished]
    return events


@pytest.mark.parametrize("seed", some(range(300), 60))
def test_skipping_iterations_changes_nothing(seed, times_of):
    """Every end of a sequence, every interruption and every count is that of iterations one by one."""
    limits, samples, windows, rates, stops = drawn(seed)
    results = []
    for skips in (True, False):
        replica = Replica(times_of(limits.max_sequences, windows, rates), limits, skips)
        results.append((played(replica, samples, stops, recompute=seed % 2 == 0), replica.counts))
        assert replica.counts.generated == sum(sample.response for sample in samples)
        assert replica.sharing == SharedPrompts({})
    assert results[0] == results[1]
    assert len({number for _, number in results[0][0] if _ != "stopped"}) == len(samples)


def test_the_cache_is_never_overdrawn(times_of):
    """Blocks in use stay within the cache in all random cases with more than one sequence."""
    for seed in range(40):
        limits, samples, windows, rates, _ = drawn(seed)
        replica = Replica(times_of(limits.max_sequences, windows, rates), limits)
        replica.add(samples, 0)
        while not replica.is_idle:
            replica.next_finished()
        assert replica.counts.peak_blocks <= limits.blocks


def test_one_sequence_by_hand(replica_of):
    """A prompt of 40 tokens in one piece, then a token an iteration that reads one key more than the last."""
    replica = replica_of()
    replica.add([PromptSample(0, 0, 40, 5)], 0)
    assert [sample.number for sample in replica.next_finished()] == [0]
    prompt_ns = 5_000_001 + 2_003 * 40
    decode_ns = sum(5_000_001 + 3_007 + 7_000_003 * (40 + i + 1) // SCALE for i in range(4))
    assert replica.now_ns == prompt_ns + decode_ns
    assert (replica.counts.iterations, replica.counts.generated, replica.counts.prompt_tokens) == (5, 5, 40)


def test_responses_of_one_token_are_prompts_alone(replica_of):
    """The iteration that completes a prompt gives its first token, so nothing is decoded."""
    replica = replica_of(budget=100, most=4)
    replica.add([PromptSample(i, i, 50, 1) for i in range(4)], 0)
    ended = []
    while not replica.is_idle:
        ended += replica.next_finished()
    assert len(ended) == 4
    assert replica.counts.iterations == 2  # 4 x 50 tokens of prompts in a budget of 100
    assert replica.counts.key_ns == 0


def test_without_a_tail_all_sequences_end_together(replica_of):
    """Equal lengths that begin together end in one iteration."""
    replica = replica_of(budget=1000, most=8)
    replica.add([PromptSample(i, 0, 50, 30) for i in range(8)], 0)
    assert len(replica.next_finished()) == 8
    assert replica.is_idle
    assert replica.counts.iterations == 30


def test_groups_compute_and_hold_the_blocks_of_their_prompt_once(replica_of):
    """Of 4 samples of 50 tokens in blocks of 16, three compute the 2 tokens behind 3 whole blocks."""
    alone, shared = replica_of(budget=1000, sharing=False), replica_of(budget=1000)
    for replica in (alone, shared):
        replica.add([PromptSample(i, 0, 50, 10) for i in range(4)], 0)
        replica.next_finished()
    assert alone.counts.prompt_tokens == 4 * 50
    assert shared.counts.prompt_tokens == 50 + 3 * 2
    assert alone.counts.peak_blocks - shared.counts.peak_blocks == 3 * 3


def test_sequences_that_were_admitted_last_give_way(replica_of):
    """In a cache of 10 blocks two sequences of up to 100 tokens cannot both end; one is computed anew and both do."""
    replica = replica_of(budget=1000, most=2, blocks=10, block=16)
    replica.add([PromptSample(i, i, 60, 40) for i in range(2)], 0)
    order = []
    while not replica.is_idle:
        order += [sample.number for sample in replica.next_finished()]
    assert order == [0, 1]
    assert replica.counts.preempted == 1
    assert replica.counts.again_tokens > 60


def test_a_held_replica_begins_nothing(replica_of):
    """It finishes what runs, and goes on with the rest when it is let go."""
    replica = replica_of(most=1)
    replica.add([PromptSample(i, i, 10, 3) for i in range(2)], 0)
    replica.next_finished(1)
    replica.is_held = True
    assert [sample.number for sample in replica.next_finished()] == [0]
    assert replica.is_idle
    replica.is_held = False
    assert [sample.number for sample in replica.next_finished()] == [1]
