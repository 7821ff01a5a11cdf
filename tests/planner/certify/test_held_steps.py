"""Few simulated steps are held, those of the best plans, and what answers will show is reported before it is freed."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simpar.planner.certify.held_steps import MAX_KEPT_OPS, MAX_KEPT_STEPS, REPORTED, HeldSteps


class Step(SimpleNamespace):
    """A simulated plan that says what is done with it."""

    def __init__(self, worth, fits, num_ops):
        super().__init__(worth=worth, rank=(not fits, worth), fits=fits, num_ops=num_ops, kept=True, told=False)
        self.problem = SimpleNamespace(perturbation=SimpleNamespace(slow_ranks={}))

    def report(self):
        """The full result is made."""
        assert self.kept
        self.told = True

    def release(self):
        """The step is freed."""
        self.kept = False


STEPS = st.lists(
    st.tuples(st.integers(0, 30), st.booleans(), st.sampled_from([1_000, 60_000, 150_000, 600_000]), st.integers(0, 5)),
    min_size=1,
    max_size=30,
)


@given(STEPS)
def test_the_best_few_are_held(given_steps):
    """As many as may be and no more ops; the last one; and the best of each of the best layouts is held or told."""
    held, steps, layout = HeldSteps(), [], {}
    for row, (worth, fits, num_ops, number) in enumerate(given_steps):
        steps.append(Step(worth, fits, num_ops))
        layout[row] = number
        held.add(row, steps[-1], lambda rows: np.array([layout[each] for each in rows.tolist()]))
        held.let_go(steps[-1])
        order = sorted(range(len(steps)), key=lambda each: steps[each].rank)
        kept = [each for each in order if steps[each].kept and each != row]
        assert len(kept) <= MAX_KEPT_STEPS
        assert len(kept) <= 1 or sum(steps[each].num_ops for each in kept) <= MAX_KEPT_OPS
        seen = set()
        for each in order[:REPORTED]:
            if layout[each] not in seen and steps[each].fits:
                assert steps[each].kept or steps[each].told or each not in _always_first(steps, layout, each)
            seen.add(layout[each])


def _always_first(steps, layout, mine):
    """A plan, if no better one of its layout and fewer than REPORTED better ones were there when it was simulated."""
    before = [each for each in range(mine) if steps[each].rank <= steps[mine].rank]
    return {mine} if len(before) < REPORTED and all(layout[each] != layout[mine] for each in before) else set()
