"""Tests of the orders of actions, which only the schedule decides."""

import numpy as np
import pytest

from simpar.plan.schedules import make_schedule
from simpar.program.orders import orders_of
from simpar.program.structure.stages import BOUNDARY


def test_the_order_of_a_rank_by_hand() -> None:
    """Two ranks, two microbatches, 1F1B: rank 0 runs F0 F1 B0 B1; backwards wait for the second rank's."""
    order = orders_of(make_schedule("1f1b", 2, 2), by_runs=False, by_stage=False).of(0)
    assert order.keys == [("F", 0, BOUNDARY), ("F", 0, 0), ("B", 0, 0), ("B", 0, BOUNDARY)]
    assert order.key.tolist() == [0, 1, 2, 3]
    assert order.microbatch.tolist() == [0, 1, 0, 1, -1]
    # rank 1 runs F0 B0 F1 B1; nothing waits for the tail, and forwards of the first stage for nobody
    assert order.awaited.tolist() == [-1, -1, 1, 3, -1]
    assert [pair[1] for pair in order.ways] == [-1, 1]
    assert order.keys_at(np.array([1, 2])) == [1, 2]
    assert order.way.tolist() == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-v", "dualpipev"])
def test_what_is_awaited_hands_over_what_is_needed(name: str) -> None:
    """On every rank, the awaited action is a forward of the stage before or a backward of the stage behind."""
    schedule = make_schedule(name, 4, 8, 2 if name != "1f1b" else 1)
    orders = orders_of(schedule, by_runs=False, by_stage=True)
    for rank in range(schedule.num_ranks):
        order, letters = orders.of(rank), schedule.letters(rank)[0]
        for at in np.flatnonzero(order.awaited >= 0).tolist():
            stage, source, _ = order.ways[order.way[at]]
            there = schedule.rank_of_stage[source]
            awaited, code = int(order.awaited[at]), schedule.ranks[there].code
            assert stage == order.stage[at]
            assert schedule.ranks[there].stage[awaited] == source
            assert schedule.ranks[there].microbatch[awaited] == order.microbatch[at]
            assert ("FBIW"[code[awaited]] == "F") == (letters[at] == "F" or source == stage)


def test_plans_that_run_a_schedule_share_its_orders() -> None:
    """The same object, as long as what senders and runs depend on is the same."""
    schedule = make_schedule("interleaved", 4, 8, 2)
    first = orders_of(schedule, by_runs=False, by_stage=False)
    assert orders_of(schedule, by_runs=False, by_stage=False) is first
    assert orders_of(schedule, by_runs=True, by_stage=False) is not first
    assert first.of(1) is first.of(1)


def test_keys_of_some_actions_come_in_order_of_appearance() -> None:
    """Each once, in whichever order the whole rank first runs them."""
    order = orders_of(make_schedule("interleaved", 4, 8, 2), by_runs=False, by_stage=False).of(2)
    for actions in (np.arange(len(order.key)), np.arange(5, 20), np.arange(0, len(order.key), 3)):
        assert order.keys_at(actions) == list(dict.fromkeys(order.key[actions].tolist()))
    assert order.keys_at(np.zeros(0, dtype=np.int64)) == []
