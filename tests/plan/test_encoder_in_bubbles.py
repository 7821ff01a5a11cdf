"""An encoder in the bubbles of a pipeline: every pass once, where and when it can run, and the least time it costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpar.plan.encoder_in_bubbles import put_encoder_in_bubbles
from simpar.plan.schedules import SCHEDULES, make_schedule
from simpar.plan.schedules.actions import B, F, Schedule, verify
from tests.plan.schedules.conftest import run_table

WHOLE = [each.name for each in SCHEDULES.values() if not (each.pairs or each.runs_slices or each.half_schedule)]
STAGE = (3, 6, 3, 3)


def with_encoder(name: str, p: int, m: int, encoder: tuple[int, int]) -> Schedule:
    """A named schedule with an encoder of a forward and a backward before stages that take equally long."""
    table = make_schedule(name, p, m)
    return put_encoder_in_bubbles(table, (*encoder, (STAGE,) * table.num_stages))


@given(
    name=st.sampled_from(WHOLE),
    shape=st.tuples(st.integers(2, 6), st.integers(1, 5)),
    encoder=st.tuples(st.integers(1, 9), st.integers(0, 9)),
)
def test_every_pass_is_there_and_can_run(name: str, shape: tuple[int, int], encoder: tuple[int, int]) -> None:
    """Ranks begin with a forward of the encoder and end with a backward of it; other passes keep their order."""
    p, m = shape[0], shape[0] * shape[1]
    if not SCHEDULES[name].allows(p, m):
        return
    table, plain = with_encoder(name, p, m, encoder), make_schedule(name, p, m)
    verify(table)
    for rank, (own, before) in enumerate(zip(table.ranks, plain.ranks, strict=True)):
        behind = own.stage > 0
        assert own.code[behind].tolist() == before.code.tolist()
        assert (own.stage[behind] - 1).tolist() == before.stage.tolist()
        assert (own.code[0], own.stage[0], own.microbatch[0]) == (F, 0, rank)
        assert (own.code[-1], own.stage[-1]) == (B, 0)
    least = run_table(plain, 3, 3, 3).makespan + sum(encoder)  # of the microbatch that is first, or last, everything
    every = run_table(plain, 3, 3, 3).makespan + m // p * sum(encoder)
    assert least <= run_table(table, 3, 3, 3, encoder=encoder).makespan <= every


@pytest.mark.parametrize("backward", [0, 2])
@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 16), (4, 4)])
def test_bubbles_that_are_large_enough_hide_all_but_one_pass_each_way(p: int, m: int, backward: int) -> None:
    """1F1B with (p - 1) (f + b) of bubble a rank: one forward before the first microbatch, one backward at the end.

    A rank r waits r f before its first pass, (p - 1 - r) (f + b) behind its last warm-up forward and r b at the end.
    """
    plain = run_table(make_schedule("1f1b", p, m), 3, 3, 3).makespan
    assert plain == (m + p - 1) * 9
    table = with_encoder("1f1b", p, m, (1, backward))
    shares = [table.ranks_of_first.count(rank) for rank in range(p)]
    run = run_table(table, 3, 3, 3, encoder=(1, backward))
    assert run.makespan == plain + 1 + max(shares[0] * backward, backward)
    if backward:  # the first rank has no bubble behind its first gradient, and gets the fewest
        assert shares[0] == min(shares) == 1


def test_an_encoder_longer_than_the_bubbles_is_shared_by_all_ranks() -> None:
    """Without bubbles to use, ranks run their shares before the first microbatch enters and behind the last."""
    p, m, encoder = 2, 8, (1000, 2000)
    run = run_table(with_encoder("1f1b", p, m, encoder), 3, 3, 3, encoder=encoder)
    assert run.makespan <= run_table(make_schedule("1f1b", p, m), 3, 3, 3).makespan + m // p * sum(encoder)
    alone = (m + p) * sum(encoder)  # in a stage of its own all microbatches pass one rank
    assert run.makespan < alone


def test_messages_that_wait_are_counted() -> None:
    """Four forwards at once: three outputs beside the first wait for the first rank, which reads one every 3."""
    table = with_encoder("1f1b", 4, 4, (1, 0))
    assert table.waiting[0] >= 4
    assert max(table.waiting[1:]) <= 1
