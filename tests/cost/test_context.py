"""Context parallelism in numbers: who sees which keys, and what must move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.architectures.graph import AttentionPattern, Operator, term
from simpar.cost.context import (
    ContextSplit,
    all_keys,
    block_times_s,
    exchange_elements,
    key_value_elements,
    query_elements,
)
from simpar.cost.kernels import KernelModel
from simpar.hardware.device import load_device

ROWS, QUERY = term("batch", "seq"), term("heads", "head_dim")
EVEN = {"kernel_latency_us": 0.0, "attention_half_seq": 0.0, "attention_tail": 0.0, "memory_efficiency": 1.0}
IDEAL = load_device("h100-sxm-80gb").model_copy(update={"kernels": EVEN})
KERNELS = KernelModel(IDEAL)


def operator(**mask: object) -> Operator:
    """A core attention operator."""
    return Operator("attention", "attention", ROWS, QUERY, "tensor", attention=AttentionPattern(**mask))


def dims(cp: int, *, seq: int = 65536, **exchange: int) -> dict[str, int]:
    """Local dims of 32 heads and 8 key-value heads of 128, as the plan would give them."""
    split = {"ulysses": 1, "blocks": 1, "gathered": 1, **exchange}
    return {"batch": 1, "seq": seq // cp, "context": seq, "heads": 32, "kv_heads": 8, "head_dim": 128, **split}


def work(op: Operator, local: dict[str, int], split: ContextSplit) -> list[float]:
    """Seconds of every block, in units of the whole sequence's causal attention; backward, which merges nothing."""
    whole = block_times_s(operator(), dims(1), KERNELS, ContextSplit(1, 1, "zigzag"), backward=True)[0]
    return [time / whole for time in block_times_s(op, local, KERNELS, split, backward=True)]


@pytest.mark.parametrize("balance", ["zigzag", "striped"])
@pytest.mark.parametrize("cp", [2, 4, 16])
def test_balanced_rings_share_the_mask_equally(balance: str, cp: int) -> None:
    """Every rank has 1/cp of the work, the same in every round."""
    shares = work(operator(), dims(cp, blocks=cp), ContextSplit(cp, 1, balance))
    assert shares == pytest.approx([1 / cp**2] * cp)


@given(cp=st.sampled_from([2, 4, 8, 16]), data=st.data())
def test_contiguous_ranks_sum_to_the_whole_mask(cp: int, data: st.DataObject) -> None:
    """Rank i has (2i + 1)/cp^2 of the work; together they have all of it, in a ring or with gathered keys."""
    position = data.draw(st.integers(0, cp - 1))
    for exchange, split in (
        ({"blocks": cp}, ContextSplit(cp, 1, "contiguous", position)),
        ({"gathered": cp}, ContextSplit(1, cp, "contiguous", position)),
    ):
        assert sum(work(operator(), dims(cp, **exchange), split)) == pytest.approx((2 * position + 1) / cp**2)


def test_the_slowest_contiguous_rank_is_the_last() -> None:
    """Without a position the last rank counts: nearly twice a balanced one's work."""
    cp = 16
    naive = sum(work(operator(), dims(cp, blocks=cp), ContextSplit(cp, 1, "contiguous")))
    assert naive * cp == pytest.approx(2 - 1 / cp)


def test_no_mask_nothing_to_balance() -> None:
    """Bidirectional attention is twice the causal work, equally spread however tokens are placed."""
    for balance in ("zigzag", "contiguous"):
        shares = work(operator(causal=False), dims(4, blocks=4), ContextSplit(4, 1, balance))
        assert shares == pytest.approx([2 / 16] * 4)


def test_ulysses_has_whole_sequences_of_fewer_heads() -> None:
    """Exchanging heads divides the work by the ranks, in one block."""
    assert work(operator(), dims(8, ulysses=8), ContextSplit(1, 1, "zigzag")) == pytest.approx([1 / 8])


def test_hybrid_rings_over_longer_blocks() -> None:
    """Four Ulysses ranks in a ring of two: two rounds, and the same work as any other split of eight."""
    shares = work(operator(), dims(8, ulysses=4, blocks=2), ContextSplit(2, 1, "zigzag"))
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(1 / 8)


def test_windows_bound_the_keys() -> None:
    """A window of w << s costs 2w/s of full causal attention on every rank."""
    shares = work(operator(window=1024), dims(4, blocks=4), ContextSplit(4, 1, "contiguous"))
    assert sum(shares) == pytest.approx(2 * 1024 / 65536 / 4, rel=0.01)


def test_sizes() -> None:
    """Keys and values are 2 k d a token, queries a d; Ulysses over more ranks than key-value heads copies them."""
    local = dims(4, blocks=4)
    keys, values = key_value_elements(operator(), local)
    assert keys == values == 16384 * 8 * 128
    assert query_elements(operator(), local) == 16384 * 32 * 128
    assert key_value_elements(operator(), dims(16, ulysses=16))[0] == 4096 * 16 * 128


def test_buffers() -> None:
    """A ring double-buffers keys and values, and their gradients in backward; a gather needs them all."""
    op = operator()
    key_value = 2 * 16384 * 8 * 128
    assert exchange_elements(op, dims(4, blocks=4), backward=False) == 2 * key_value
    assert exchange_elements(op, dims(4, blocks=4), backward=True) == 4 * key_value
    assert exchange_elements(op, dims(4, gathered=4), backward=False) == 4 * key_value
    assert exchange_elements(op, dims(4, ulysses=4), backward=False) == key_value + 16384 * 32 * 128
    assert exchange_elements(op, dims(1), backward=True) == 0


def test_merging_blocks_costs_passes_over_the_output() -> None:
    """Every block after the first reads its output and reads and writes the sum so far."""
    local = dims(4, blocks=4)
    times = block_times_s(operator(), local, KERNELS, ContextSplit(4, 1, "striped"), backward=False)
    assert [time - times[0] for time in times[1:]] == pytest.approx(
        [3 * 2 * 16384 * 32 * 128 / IDEAL.memory_bandwidth] * 3
    )


@pytest.mark.parametrize("exchange", [{"blocks": 4}, {"gathered": 4}, {"ulysses": 4}])
def test_queries_meet_all_rows_of_another_tower(exchange: dict[str, int]) -> None:
    """A rank has 375 of 1,500 rows and makes their keys and values; its queries see all of them, in blocks or at once.

    The work is a quarter of that of all queries, whatever is exchanged; no mask makes ranks differ.
    """
    cross = operator(causal=False, context="memory")
    whole = {**dims(1, seq=4096), "memory": 1500}
    local = {**dims(4, seq=4096, **exchange), "memory": 375}
    assert all_keys(cross.attention, local) == all_keys(cross.attention, whole) == 1500
    assert key_value_elements(cross, local) == (375 * 8 * 128, 375 * 8 * 128)
    split = ContextSplit(local["blocks"], local["gathered"], "contiguous", 0)
    times = block_times_s(cross, local, KERNELS, split, backward=True)
    assert len(times) == local["blocks"]
    alone = block_times_s(cross, whole, KERNELS, ContextSplit(1, 1, "contiguous"), backward=True)
    assert sum(times) == pytest.approx(alone[0] / 4)
