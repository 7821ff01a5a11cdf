"""Runs of iterations in closed form are the sums of their iterations."""

import random

import numpy as np

from simpar.posttraining.iterations import NO_WINDOW, SCALE, DecodeRun, floor_sum


def test_sums_of_floors_are_exact():
    """The closed form is the sum, term by term, for small and for huge integers."""
    draw = random.Random(1)
    for most in (50, 10**12):
        for _ in range(500):
            count, divisor, slope, start = draw.randrange(60), draw.randrange(1, most), *draw.choices(range(most), k=2)
            assert floor_sum(count, divisor, slope, start) == sum((slope * i + start) // divisor for i in range(count))


def test_a_run_takes_as_long_as_its_iterations():
    """Sequences grow by a key an iteration, in layers with a window until it is full."""
    from simpar.posttraining.iterations import IterationTimes

    times = IterationTimes(np.array([0, 10, 20, 30]), (NO_WINDOW, 100), (SCALE // 3, SCALE // 7), lambda *_: 0)
    cached = np.array([5, 80, 120])
    most = times.until_outgrown(cached)
    assert most == 100 - 1 - 80
    one_by_one = sum(times.bases[3] + times.keys_read(cached + i) // SCALE for i in range(most))
    assert times.run(cached).time_ns(most) == one_by_one
    assert times.growth(cached + most) < times.growth(cached)


def test_the_first_iteration_that_is_late_enough_is_found():
    """It ends at the time asked for or later, and the one before it ends earlier."""
    run = DecodeRun(1000, 5 * SCALE, SCALE // 3)
    for time_ns in (1, 5_000, 77_777):
        count = run.first_not_before(time_ns, 10_000)
        assert run.time_ns(count - 1) < time_ns <= run.time_ns(count)
