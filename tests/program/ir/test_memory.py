"""Peaks of memory: closed forms, and the order of events within an instant."""

from dataclasses import replace

import numpy as np

from simpar.engine import sweep
from simpar.program.ir.builder import ProgramBuilder
from simpar.program.ir.memory import memory_uses
from simpar.program.ir.program import MEMORY_CATEGORIES, MemoryTable, Program, Timing


def pipeline_rank(num_microbatches: int, warm_up: int) -> Program:
    """One stage: `warm_up` forwards, then backward and forward in turn; 8 bytes a microbatch from F to B."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    forward = build.add_ops(num_microbatches, fixed_ns=10)
    backward = build.add_ops(num_microbatches, fixed_ns=20)
    order = list(forward[:warm_up])
    for microbatch in range(num_microbatches):
        order.append(backward[microbatch])
        order += list(forward[warm_up + microbatch : warm_up + microbatch + 1])
    build.place(build.add_stream("compute", gpu), order)
    build.memory(forward, 8, class_id=gpu, at_finish=False, category="activations")
    build.memory(backward, -8, class_id=gpu, at_finish=True, category="activations")
    return build.build()


def test_activations_in_flight_are_the_warm_up():
    """A stage that runs w forwards ahead holds w microbatches at its peak (1F1B)."""
    for warm_up in (1, 2, 5):
        program = pipeline_rank(8, warm_up)
        use = memory_uses(program, sweep.run(program))[0]
        assert use.peak_bytes == 8 * warm_up
        assert use.peak_op == warm_up - 1
        assert use.peak_time_ns == 10 * (warm_up - 1)


def events(*rows: tuple[int, int, str]) -> tuple[Program, Timing]:
    """One op a row (time, bytes, category), whose memory changes when it starts."""
    build = ProgramBuilder()
    gpu = build.add_class("gpu")
    ops = build.add_ops(len(rows))
    for op, (_, delta, category) in zip(ops, rows, strict=True):
        build.memory(op, delta, class_id=gpu, at_finish=False, category=category)
    times = np.array([time for time, _, _ in rows], dtype=np.int64)
    return build.build(), Timing(times, times)


def test_frees_come_before_allocations():
    """What is freed and what is allocated in one instant never add up, whatever their order in the table."""
    program, timing = events((5, 100, "transient"), (0, 100, "transient"), (5, -100, "transient"))
    assert memory_uses(program, timing)[0].peak_bytes == 100


def test_categories_are_kept_apart():
    """The peak is of the total, and says what it consists of."""
    program, timing = events(
        (0, 30, "activations"), (1, 50, "gradients"), (2, -30, "activations"), (3, 10, "gradients")
    )
    use = memory_uses(program, timing)[0]
    assert dict(zip(MEMORY_CATEGORIES, use.at_peak.tolist(), strict=True)) == {
        "activations": 30,
        "transient": 0,
        "gradients": 50,
        "parameters": 0,
    }
    assert (use.peak_time_ns, use.peak_op) == (1, 1)


def test_a_class_without_events_holds_nothing():
    """Its peak is at the beginning and no op is at fault."""
    program, timing = events()
    use = memory_uses(program, timing)[0]
    assert (use.peak_bytes, use.peak_op, use.peak_time_ns) == (0, -1, 0)


def test_all_classes_at_once_equal_one_at_a_time():
    """One pass over the table gives every class its own peak."""
    build = ProgramBuilder()
    classes = [build.add_class(name) for name in "abc"]
    draw = np.random.default_rng(3)
    ops = build.add_ops(50, fixed_ns=draw.integers(0, 9, 50))
    build.memory(
        ops, draw.integers(-5, 9, 50), class_id=draw.choice(classes[:2], 50), at_finish=True, category="gradients"
    )
    program = build.build()
    timing = sweep.run(program)
    uses = memory_uses(program, timing)
    assert len(uses) == 3
    for class_id, use in enumerate(uses):
        mine = program.memory.class_id == class_id
        rows = {name: column[mine] for name, column in vars(program.memory).items()}
        alone = memory_uses(replace(program, memory=MemoryTable(**rows)), timing)[class_id]
        assert np.array_equal(use.at_peak, alone.at_peak)
        assert (use.peak_time_ns, use.peak_op) == (alone.peak_time_ns, alone.peak_op)


def test_what_is_freed_before_anything_is_held_is_no_peak():
    """A class that only frees peaks at the beginning, like one that comes back to where it began."""
    for rows in [((1, -5, "gradients"),), ((1, -5, "gradients"), (2, 5, "gradients"))]:
        use = memory_uses(*events(*rows))[0]
        assert (use.peak_bytes, use.peak_op) == (0, -1)
