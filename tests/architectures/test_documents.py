"""Packed and padded documents: sums of squares, padding, and how much the fullest rank has, against draws."""

import numpy as np
import pytest

import simpar
from simpar.architectures.documents import lengths_of, packing_of, with_documents
from simpar.architectures.training import Documents, Training
from simpar.cost.operators import operator_times
from simpar.program.blocks.rank_view import RankView
from simpar.simulation import make_job

H100 = simpar.Cluster("dgx-h100")


def shape(seq_len=8192, global_batch=16, **documents):
    """A training of documents."""
    return Training(seq_len=seq_len, global_batch=global_batch, documents=Documents(**documents))


def step(training, **plan):
    """One step of Llama 3 8B on eight H100."""
    return simpar.simulate("llama-3-8b", H100, simpar.Plan(zero=2, **plan), training)


def attention_s(training):
    """Forward seconds of core attention of one layer, and the device's kernels."""
    view = RankView.of(make_job("llama-3-8b", H100, simpar.Plan(tp=8), training))
    block = view.job.graph.blocks[view.job.graph.layers[0]]
    times = operator_times(block.operators, view.dims, view.job.kernels, view.job.stack)
    return next(float(time.forward_s) for time in times if time.name == "attention"), view.job.kernels


def test_equal_documents_cost_the_sum_of_their_squares():
    """K documents of s / k tokens: a k-th of the pairs, so d = s / k and ranks do not differ."""
    packed = packing_of(shape(lengths=(1024,)))
    assert packed.document == 1024
    assert packed.count == 8
    assert packed.variation == 0
    whole, kernels = attention_s(Training(seq_len=8192, global_batch=16))
    parts, _ = attention_s(shape(lengths=(1024,)))
    half, latency = kernels.parameters["attention_half_seq"], kernels.latency_s
    ramp = (1024 + half) / 1024 / ((8192 + half) / 8192)
    assert parts - latency == pytest.approx((whole - latency) / 8 * ramp, rel=0.05)


def test_a_list_of_lengths():
    """Mean document of a token is the sum of squares over the sum; longer ones are cut."""
    packed = packing_of(shape(seq_len=4096, lengths=(1000, 3000, 9000)))
    lengths = np.array([1000, 3000, 4096.0])
    assert packed.document == pytest.approx((lengths**2).sum() / lengths.sum())
    assert packed.count == pytest.approx(4096 / lengths.mean())


def test_lognormal_lengths_have_the_mean_and_spread_asked_for():
    """Where nothing is cut, mean and coefficient of variation come back; d = mean (1 + spread^2)."""
    training = shape(seq_len=10**7, mean=1000, spread=0.8)
    lengths = lengths_of(training.documents, training.seq_len)
    assert lengths.mean() == pytest.approx(1000, rel=0.01)
    assert lengths.std() / lengths.mean() == pytest.approx(0.8, rel=0.05)
    assert packing_of(training).document == pytest.approx(1000 * (1 + 0.8**2), rel=0.05)


def test_variation_is_that_of_drawn_sequences():
    """Work of sequences filled with drawn documents varies as the formula says, for many documents a sequence."""
    training = shape(seq_len=65536, lengths=(200, 500, 1000, 3000))
    rng, work = np.random.default_rng(7), []
    for _ in range(1500):
        draws = rng.choice(training.documents.lengths, 600)
        ends = np.cumsum(draws)
        last = int(np.searchsorted(ends, 65536))
        kept = draws[: last + 1].copy()
        kept[-1] -= ends[last] - 65536
        work.append(float((kept.astype(float) ** 2).sum()))
    packed = packing_of(training)
    assert np.mean(work) == pytest.approx(packed.document * 65536, rel=0.03)
    assert np.std(work) / np.mean(work) == pytest.approx(packed.variation, rel=0.12)


def test_padding_wastes_what_documents_do_not_fill():
    """Padded sequences are computed in full; packed ones of the same documents are faster and waste nothing."""
    lengths = (1000, 2000, 6000)
    padded, packed = (step(shape(lengths=lengths, packing=how)) for how in ("pad", "pack"))
    plain = step(Training(seq_len=8192, global_batch=16))
    assert padded.step_time_s == plain.step_time_s
    assert padded.speed.useful_share == pytest.approx(3000 / 8192)
    assert packed.speed.useful_share == 1.0
    assert packed.step_time_s < padded.step_time_s
    assert any("padding" in line for line in padded.why.binds)
    assert plain.speed.useful_share == 1.0


def test_flop_follow_the_squares():
    """Model FLOP of attention shrink by d / s in either convention."""
    from simpar.architectures.flops import attention_flop_per_token

    graph, training = simpar.Model("llama-3-8b"), shape(lengths=(1024, 3072))
    packed = with_documents(graph, training)
    d = packing_of(training).document
    for convention in ("full", "causal"):
        whole, part = (attention_flop_per_token(one, 8192, convention) for one in (graph, packed))
        assert part / whole == pytest.approx(d / 8192)


def test_the_step_waits_for_the_fullest_rank():
    """The same lengths cost more on several ranks than on one, equal lengths do not."""

    def keys(training, dp):
        plan = simpar.Plan(tp=8 // dp)
        graph = make_job("llama-3-8b", H100, plan, training).graph
        return graph.blocks[graph.layers[0]].operator("attention").attention.document

    varied, even = shape(mean=1500, spread=1.5), shape(lengths=(1024,))
    assert keys(varied, 1) < keys(varied, 2) < keys(varied, 8)
    assert keys(varied, 1) == packing_of(varied).document
    assert keys(even, 8) == 1024


def test_flop_are_those_of_the_training_whatever_the_layout():
    """The fullest rank has more to do the more ranks there are; what all compute together stays."""
    training = shape(mean=1500, spread=1.5)
    few, many = (step(training, tp=tp, recompute="full").speed for tp in (8, 1))
    assert few.model_flops_per_step == pytest.approx(many.model_flops_per_step, rel=1e-12)
    hardware_flop = [one.hfu * one.step_time_s for one in (few, many)]
    assert hardware_flop[0] == pytest.approx(hardware_flop[1], rel=1e-12)


def test_trainings_without_documents_are_written_as_before():
    """Files and results hold two numbers; documents come back from theirs."""
    assert Training(seq_len=8, global_batch=2).model_dump() == {"seq_len": 8, "global_batch": 2}
    training = shape(mean=100, spread=0.5)
    assert Training.model_validate(training.model_dump()) == training
    result = step(shape(lengths=(1024, 4096)))
    assert result.setup.training["documents"]["lengths"] in [(1024, 4096), [1024, 4096]]


def test_what_is_wrong_says_so():
    """One distribution."""
    with pytest.raises(ValueError, match="lengths or a mean"):
        Documents()
