"""Engines agree op by op, as integers."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simpar.engine import event, plain, reference, sweep
from simpar.engine.sharing import LinkChange
from simpar.program.ir.program import predecessors, solo_durations_ns
from simpar.units import GB
from tests.compilers import needs_compiler
from tests.rules import verify

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=15, deadline=None)


def same(one, other) -> bool:
    """Whether every start and finish is the same integer."""
    return np.array_equal(one.start_ns, other.start_ns) and np.array_equal(one.finish_ns, other.finish_ns)


def some_changes(program, seed):
    """Links that slow down, stop and recover."""
    draw = np.random.default_rng(seed)
    num_links = len(program.routes.link_names)
    changes = [
        LinkChange(int(draw.integers(0, 40_000)), int(draw.integers(num_links)), int(draw.choice([0, 1, 4])) * GB // 2)
        for _ in range(4)
    ]
    return changes + [LinkChange(10**6, link, GB) for link in range(num_links)]


@given(seed=SEEDS)
@FEW
def test_reference_obeys_rule_one(random_program, seed):
    """Every op starts the instant its last predecessor finishes, and lasts at least its solo duration."""
    program = random_program(seed)
    timing = reference.run(program)
    pointer, before = predecessors(program)
    for op in range(len(program)):
        waited = timing.finish_ns[before[pointer[op] : pointer[op + 1]]]
        assert timing.start_ns[op] == waited.max(initial=0)
    assert (timing.finish_ns - timing.start_ns >= solo_durations_ns(program)).all()


@given(seed=SEEDS)
@FEW
def test_plain_equals_reference(random_program, seed):
    """The plain engine gives the same integers as SimPy, whatever is shared, and when links change during the run."""
    program = random_program(seed)
    changes = some_changes(program, seed)
    assert same(plain.run(program), reference.run(program))
    assert same(plain.run(program, changes), reference.run(program, changes))


@given(seed=SEEDS)
@FEW
@needs_compiler
def test_event_equals_reference(random_program, seed):
    """The compiled engine gives the same integers as SimPy, whatever is shared."""
    program = random_program(seed)
    assert same(event.run(program), reference.run(program))


@given(seed=SEEDS)
@FEW
@needs_compiler
def test_event_equals_reference_when_links_change(random_program, seed):
    """The same holds when links slow down, stop and recover during the run."""
    program = random_program(seed)
    changes = some_changes(program, seed)
    assert same(event.run(program, changes), reference.run(program, changes))


@given(seed=SEEDS)
@FEW
def test_sweep_equals_reference_without_sharing(random_program, seed):
    """Where every stream has links of its own, longest paths are exact."""
    program = random_program(seed, own_links=True, num_links=9)
    assert same(sweep.run(program), reference.run(program))


@given(seed=SEEDS)
@FEW
def test_sweep_is_exact_or_refuses(random_program, seed):
    """On any program the sweep either gives the reference's integers or says that a link is shared."""
    program = random_program(seed, flow_fraction=0.1)
    try:
        timing = sweep.run(program)
    except sweep.SharedLinkError:
        return
    assert same(timing, reference.run(program))


@given(seed=SEEDS)
@FEW
def test_sweep_is_a_lower_bound(random_program, seed):
    """With sharing ignored, no op starts or finishes later than it does."""
    program = random_program(seed)
    bound, timing = sweep.run(program, lower_bound=True), reference.run(program)
    assert (bound.start_ns <= timing.start_ns).all()
    assert (bound.finish_ns <= timing.finish_ns).all()


@given(seed=SEEDS)
@FEW
def test_numbering_does_not_matter(random_program, renumbered, seed):
    """Other numbers for ops and links, and dependencies in another order, change no time."""
    program = random_program(seed)
    other, new = renumbered(program, seed)
    one, two = reference.run(program), reference.run(verify(other))
    assert np.array_equal(one.start_ns, two.start_ns[new])
    assert np.array_equal(one.finish_ns, two.finish_ns[new])


@given(seed=SEEDS)
@FEW
def test_folded_equals_unfolded(folded_and_not, seed):
    """One rank a class, expanded, has every start and finish of every rank's ops."""
    flat, order, small, expand, (num_classes, world) = folded_and_not(seed)
    assert num_classes <= world
    timing, folded = reference.run(flat), expand(reference.run(small))
    assert np.array_equal(timing.start_ns[order], folded.start_ns)
    assert np.array_equal(timing.finish_ns[order], folded.finish_ns)


def test_the_folded_clusters_are_worth_testing(folded_and_not):
    """The clusters drawn fold by more than two on average, some not at all, and their links are shared."""
    ratios, shared = [], 0
    for seed in range(30):
        flat, _, _, _, (num_classes, world) = folded_and_not(seed)
        ratios.append(world / num_classes)
        try:
            sweep.run(flat)
        except sweep.SharedLinkError:
            shared += 1
    assert np.mean(ratios) > 2
    assert min(ratios) < 1.5
    assert shared > 10


def test_runs_repeat(random_program):
    """The same program twice gives the same integers."""
    program = random_program(5, num_ops=200)
    assert same(reference.run(program), reference.run(program))
