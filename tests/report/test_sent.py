"""Bytes that ranks send: the formulas of lectures and of nccl-tests."""

from __future__ import annotations

import pytest

from simpar import Cluster, Plan, Training, simulate
from simpar.report.result import Result
from simpar.units import GIB

TRAINING = Training(seq_len=2048, global_batch=8)


def run(plan: Plan, model: str = "llama-3.2-1b", stack: str = "ddp") -> Result:
    """A step on the eight devices of one node."""
    return simulate(model, Cluster("dgx-h100", nodes=1), plan, TRAINING, stack=stack, with_timeline=False)


def test_an_all_reduce_sends_its_buffer_almost_twice() -> None:
    """2 (N-1)/N X: gradients of 1.24 B parameters in fp32 over 8 ranks are 4.60 GiB, of which 8.06 are sent."""
    sent = run(Plan(zero=0)).communication["dp"]
    assert sent.bytes_per_rank / GIB == pytest.approx(4.60, abs=0.01)
    assert sent.sent_bytes_per_rank == pytest.approx(2 * 7 / 8 * sent.bytes_per_rank, rel=1e-9)
    assert sent.sent_bytes_per_rank / GIB == pytest.approx(8.06, abs=0.01)


def test_gathers_and_reduce_scatters_send_all_but_the_own_share() -> None:
    """ZeRO-3: (N-1)/N of every gathered and reduced buffer."""
    sent = run(Plan(zero=3), stack="torchtitan").communication["dp"]
    assert sent.sent_bytes_per_rank == pytest.approx(7 / 8 * sent.bytes_per_rank, rel=1e-9)


def test_pipeline_messages_are_sent_whole() -> None:
    """A message of activations: its size, from every rank but the last."""
    sent = run(Plan(pp=2, zero=0), stack="megatron").communication["pp"]
    assert sent.sent_bytes_per_rank == sent.bytes_per_rank > 0


def test_tensor_parallelism_sends_inside_passes() -> None:
    """Without sequence parallelism, all-reduces of the stream over 4 ranks: 2 x 3/4 of every buffer."""
    sent = run(Plan(tp=4, sequence_parallel=False), stack="megatron").communication["tp"]
    assert "all_gather" not in sent.algorithm
    assert sent.sent_bytes_per_rank == pytest.approx(2 * 3 / 4 * sent.bytes_per_rank, rel=1e-9)
