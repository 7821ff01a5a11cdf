"""Padded rows: what a response takes where nothing is packed, and passes in wider micro-batches."""

from functools import cache

import pytest

import simpar
from simpar.architectures.training import Documents
from simpar.posttraining.bounds import step_bound_s
from simpar.posttraining.lengths import draw_step
from simpar.posttraining.simulate import make_setting, post_train

LENGTHS = {"prompt": {"fixed": 128}, "response": {"mean": 200, "p99": 800}}
SECTION = {"prompts": 8, "samples": 4, "lengths": LENGTHS, "steps": 1}
TRAINING, PLAN = {"seq_len": 2048, "global_batch": 16}, {"zero": 3, "micro_batch": 1}


@cache
def setting(**values):
    """Both sides of the small step with other values."""
    padding = values.pop("padding", "none")
    more = {key: dict(value) if isinstance(value, tuple) else value for key, value in values.items()}
    section = {**SECTION, "lengths": {**LENGTHS, "padding": padding}, **more}
    return make_setting("qwen2.5-0.5b", "dgx-h100", PLAN, TRAINING, section)


def test_a_padded_response_is_a_row():
    """As many rows as responses, as long as the longest, in multiples of 64 tokens; by today's simulation."""
    side = setting(padding="longest").trained
    lengths = draw_step(setting(padding="longest").section, 2048, 0).total
    row = -(-int(lengths.max()) // 64) * 64
    cost = side.batch(lengths)
    assert (cost.rows, side.row_tokens(lengths)) == (16, row)
    assert cost.padding == pytest.approx(1 - int(lengths.sum()) / (32 * row))
    padded = Documents(lengths=side.documents.lengths, packing="pad")
    training = simpar.Training(seq_len=row, global_batch=16, documents=padded)
    assert cost.training_s == 2 * simpar.simulate("qwen2.5-0.5b", "dgx-h100", PLAN, training).step_time_s


def test_padding_costs_what_it_adds():
    """Packed rows are shortest, rows of the context longest; the memory of padded rows is that of their length."""
    sides = [setting(padding=each).trained for each in ("none", "longest", "context")]
    lengths = draw_step(setting().section, 2048, 0).total
    times = [side.batch(lengths).total_s for side in sides]
    assert times == sorted(times)
    assert times[0] < 0.7 * times[2]
    peaks = [side.peak_bytes for side in sides]
    assert peaks[1] < peaks[2]


def test_where_nothing_is_padded_all_are_the_same():
    """Responses that fill the context are rows of it, whatever is said of padding."""
    full = (("prompt", {"fixed": 1024}), ("response", {"fixed": 1024}))
    setup = ("qwen2.5-0.5b", "dgx-h100", PLAN, TRAINING)
    steps = {
        each: post_train(*setup, {**SECTION, "lengths": {**dict(full), "padding": each}}).step_time_s
        for each in ("none", "longest", "context")
    }
    assert len(set(steps.values())) == 1


@pytest.mark.parametrize("padding", ["longest", "context"])
def test_no_padded_step_is_shorter_than_its_bound(padding):
    """Off policy, too, where a batch may be the groups whose longest response is shortest."""
    for more in ({}, {"placement": "split", "rollout": (("nodes", 1),), "synchrony": (("steps_off", 2),)}):
        one = setting(padding=padding, **more)
        assert step_bound_s(one) <= simpar.post_train(
            "qwen2.5-0.5b", "dgx-h100", PLAN, TRAINING, one.section
        ).step_time_s * (1 + 1e-9)  # fmt: skip


def test_passes_have_micro_batches_of_their_own():
    """That of the plan is the default; wider ones change passes alone, and their tensors may be the peak."""
    usual, same, wide = (setting(passes=(("micro_batch", each),)) for each in (None, 1, 8))
    lengths = draw_step(usual.section, 2048, 0).total
    costs = [each.trained.batch(lengths) for each in (usual, same, wide)]
    assert costs[0] == costs[1]
    assert costs[2].training_s == costs[0].training_s
    assert costs[2].passes_s != costs[0].passes_s
    assert wide.trained.peak_bytes >= usual.trained.peak_bytes


def test_epochs_repeat_updates():
    """Twice the updates; scores stay."""
    once, twice = (setting(epochs=each).trained for each in (1, 2))
    lengths = draw_step(setting().section, 2048, 0).total
    assert twice.batch(lengths).training_s == 2 * once.batch(lengths).training_s
    assert twice.batch(lengths).passes_s == once.batch(lengths).passes_s
