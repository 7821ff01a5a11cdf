"""What an iteration takes beside the model: sampling, the host, and kernels that no graph was captured for."""

import numpy as np
import pytest

import simpar
from simpar.plan.post_training import Rollout
from simpar.posttraining.engine import ServingEngine

FREE = {"overhead": 0.0, "sequence_overhead": 0.0, "graph_tokens": 8192}


def served(model="qwen2.5-0.5b", tp=1, **engine):
    """A replica on a part of a node of 8 H100."""
    return ServingEngine.of(simpar.Model(model), simpar.Cluster("dgx-h100"), Rollout(tp=tp, engine=engine), 8192)


def test_returning_log_probabilities_moves_twenty_bytes_a_logit():
    """Of 100 sequences with 151,936 logits each, at the memory's bandwidth."""
    hundred = np.array([100])
    quiet, told = served(logprobs=False, **FREE), served(**FREE)
    more = told.rows_s(hundred, hundred) - quiet.rows_s(hundred, hundred)
    assert more[0] == pytest.approx(100 * 151936 * 20 / told.kernels.bandwidth, rel=1e-9)
    assert told.workspace_bytes - quiet.workspace_bytes == 1024 * 151936 * 4


def test_every_rank_samples_from_all_logits():
    """Two ranks halve the products, not what sampling moves, and gather logits."""
    one, two = served("llama-3-8b", **FREE), served("llama-3-8b", tp=2, **FREE)
    many = np.array([256])
    sampled = 256 * 128256 * 70 / one.kernels.bandwidth
    assert one._sampled_s(many)[0] == pytest.approx(sampled + 8 * one.kernels.latency_s)
    assert two._sampled_s(many)[0] > one._sampled_s(many)[0]


def test_the_host_adds_time_for_every_sequence():
    """12 us each in the default, beside 0.5 ms."""
    bare, usual = served(**FREE), served(graph_tokens=8192)
    added = np.asarray(usual.times.bases) - np.asarray(bare.times.bases)
    assert added[[1, 64, 1024]] == pytest.approx([512_000, 500_000 + 64 * 12_000, 500_000 + 1024 * 12_000], abs=1)


def test_iterations_beyond_the_captured_graphs_are_launched_kernel_by_kernel():
    """A small model waits for the host there: 8 sequences take as long as without graphs, 4 do not."""
    some, none = served(overhead=0.0, graph_tokens=4), served(overhead=0.0, graphs=False)
    assert some.times.bases[8] == none.times.bases[8]
    assert some.times.bases[4] < 0.9 * none.times.bases[4]
    assert some.with_prompts_ns(8, []) == none.with_prompts_ns(8, [])
