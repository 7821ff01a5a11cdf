"""Recurrent layers and towers of a replica: bytes of states, updates of a token, prompts, and what groups share."""

from functools import cache

import numpy as np
import pytest

import simpar
from simpar.plan.post_training import Rollout
from simpar.posttraining.engine import ServingEngine
from simpar.posttraining.iterations import SCALE, Piece
from simpar.posttraining.replica import PromptSample, Replica, ReplicaLimits


@cache
def engine(model, context=8192, hardware="dgx-h100", nodes=2, **choices):
    """A replica on H100."""
    choices = {name: dict(value) if isinstance(value, tuple) else value for name, value in choices.items()}
    return ServingEngine.of(simpar.Model(model), simpar.Cluster(hardware, nodes), Rollout(**choices), context)


def test_states_of_mamba_are_those_of_its_heads():
    """Nemotron-H 8B: 24 mixers of 128 heads x 64 x 128, and 3 inputs of 128 x 64 + 2 x 8 x 128; 4 of attention."""
    core, inputs = 128 * 64 * 128, 3 * (128 * 64 + 2 * 8 * 128)
    narrow, wide, halves = (
        engine("nemotron-h-8b"), engine("nemotron-h-8b", states=(("dtype", "fp32"),)), engine("nemotron-h-8b", tp=2)
    )  # fmt: skip
    assert narrow.state_bytes == 24 * 2 * (core + inputs)
    assert wide.state_bytes == 24 * (4 * core + 2 * inputs)
    assert halves.state_bytes == narrow.state_bytes / 2
    assert narrow.token_bytes == 4 * 2 * 8 * 128 * 2


def test_states_of_linear_attention_are_those_of_its_heads():
    """Qwen3-Next: 36 of 48 layers keep 32 heads of 128 x 128, and 3 inputs of 2 x 16 x 128 + 32 x 128 channels."""
    served = engine("qwen3-next-80b-a3b", tp=4)
    assert served.state_bytes == 36 * 2 * (32 * 128 * 128 + 3 * (2 * 16 * 128 + 32 * 128)) / 4
    assert served.token_bytes == 12 * 2 * 256 * 2  # two key-value heads, one on each of four ranks


def test_decoding_reads_and_writes_states():
    """A sequence more adds twice its states to an iteration, and no length does; keys are read of attention alone."""
    served = engine("nemotron-h-8b", states=(("dtype", "fp32"),))
    update = sum(served.layers[name] * each.update_bytes for name, each in served.layer_states.items())
    inner = 24 * 2 * 2 * (128 * 64 + 8 * 128)
    assert update == 2 * served.state_bytes + inner
    assert served.state_s == pytest.approx(update / served.kernels.bandwidth)
    plain = engine("nemotron-h-8b")
    base = np.diff(served.times.base_ns - plain.times.base_ns)[1:]
    more = 24 * 2 * 2 * 128 * 64 * 128 / served.kernels.bandwidth * 1e9
    assert np.median(base) == pytest.approx(more, rel=0.01)
    (rate,) = served.times.rates
    assert rate / SCALE == pytest.approx(1e9 * served.token_bytes / served.kernels.bandwidth, rel=1e-6)


def test_an_update_computes_what_the_recurrence_says():
    """FLOP of a token by element of state: 7 of a scan, 8 of a gated delta rule; they take less than the bytes."""
    mamba = engine("nemotron-h-8b").layer_states["mamba"]
    assert mamba.update_flop == 7 * 128 * 64 * 128
    (delta,) = {each.update_flop for each in engine("qwen3-next-80b-a3b", tp=4).layer_states.values()}
    assert delta == 8 * 32 * 128 * 128 / 4
    assert mamba.update_flop / 67e12 < mamba.update_bytes / 3.35e12 / 2


def test_prompts_of_recurrences_grow_with_their_tokens():
    """Chunks are computed whole: a token takes one, and twice the chunks twice the time; a piece moves its states."""
    served = engine("nemotron-h-8b")
    own, block = served.dims.tensor, served.graph.blocks["mamba"]
    from simpar.posttraining.states import prompt_s

    def taken(*tokens):
        return prompt_s(block, own, served.kernels, [Piece(each, 0) for each in tokens], 1)

    fixed = 5 * served.kernels.latency_s
    assert taken(1) == taken(own["chunk"])
    assert taken(4 * own["chunk"]) - fixed == pytest.approx(4 * (taken(1) - fixed))
    assert taken(own["chunk"], own["chunk"]) == taken(2 * own["chunk"])
    whole = served.with_prompts_ns(0, [Piece(4096, 0)])
    halves = served.with_prompts_ns(0, [Piece(2048, 0)]) + served.with_prompts_ns(0, [Piece(2048, 2048)])
    assert whole < halves < 1.3 * whole


def test_a_sequence_holds_its_states_beside_its_keys():
    """As many sequences fit as states and keys together leave room for."""
    served = engine("nemotron-h-8b")
    limits = served.limits
    each = limits.states + -(-served.context // 16)
    assert limits.states == -(-served.state_bytes // (16 * served.token_bytes))
    free = served.room_bytes - served.weights_bytes - served.workspace_bytes
    assert limits.blocks // each == pytest.approx(
        free / (served.state_bytes + served.context * served.token_bytes), rel=0.02
    )
    assert not limits.prefix_sharing


def test_models_without_keys_hold_sequences_of_any_length():
    """Of Mamba-2 alone a block is a sequence's states, whatever its length."""
    short, long = engine("mamba2-2.7b", context=1024), engine("mamba2-2.7b", context=65536)
    assert short.token_bytes == long.token_bytes == 0
    assert short.limits.blocks == long.limits.blocks > 0
    assert short.times.rates == ()


def replica(times_of, **values):
    """A replica with some blocks of states."""
    limits = {"token_budget": 64, "max_sequences": 8, "block": 16, "blocks": 100, "prefix_sharing": False, **values}
    return Replica(times_of(8), ReplicaLimits(**limits))


def test_states_bound_the_sequences_at_a_time(times_of):
    """Of 100 blocks, sequences of 30 blocks of states and one of keys take 31: three at a time."""
    one = replica(times_of, states=30)
    one.add([PromptSample(at, at, 4, 8) for at in range(9)], 0)
    while not one.is_idle:
        one.next_finished()
    assert one.counts.peak_sequences == 3
    assert one.counts.peak_blocks == 93
    assert one.counts.generated == 72


@pytest.mark.parametrize(("block", "states"), [(16, 10), (2**62, 0)])
def test_a_group_keeps_the_state_behind_its_prompt(times_of, block, states):
    """The first sample computes 33 tokens, the others one behind 32 that are shared; the group holds one state more."""
    one = replica(times_of, block=block, states=states, prompt_states=max(states, 1), shared=16, prefix_sharing=True)
    one.add([PromptSample(at, 0, 33, 2) for at in range(4)], 0)
    own = 4 * (3 + 10) - 3 * 2 + 10 if states else 4 + 1
    most = 0
    while not one.is_idle:
        one.next_finished()
        most = max(most, one.counts.peak_blocks)
    assert one.counts.prompt_tokens == 33 + 3
    assert one.used_blocks == 0
    assert most <= own


def test_towers_are_computed_once_for_a_prompt():
    """Its first piece has the tower's time, a piece behind it has not; twice the prompts take at most twice as long."""
    served = engine("qwen2.5-vl-7b")
    first, behind = (served.with_prompts_ns(0, [Piece(2048, before)]) for before in (0, 2048))
    text = engine("qwen2.5-7b")
    tower_ns = 1e9 * served.tower_s(1)
    seen = text.with_prompts_ns(0, [Piece(2048, 0)])
    assert first == pytest.approx(seen + tower_ns, rel=0.02)
    assert behind < first
    assert served.tower_s(1) < served.tower_s(2) <= 2 * served.tower_s(1)
    assert served.times.base_ns[8] == pytest.approx(text.times.base_ns[8], rel=0.01)
    assert served.token_bytes == text.token_bytes


def test_towers_take_the_flop_of_their_products():
    """Of Qwen2.5-VL 7B: two FLOP a parameter and patch, at most at the peak of the device."""
    served = engine("qwen2.5-vl-7b")
    blocks = served.graph.blocks
    patches = served.graph.dims["vision.seq"]
    weights = sum(
        count * blocks[name].matmul_parameters(served.graph.dims)
        for name, count in served.towers.items()
        if name.startswith("vision")
    )
    assert served.tower_s(8) > 8 * 2 * weights * patches / 989.4e12
    assert served.tower_s(8) < 8 * 2 * weights * patches / 200e12
