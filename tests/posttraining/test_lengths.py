"""Lengths follow their distribution, keep to the context, and are refused where they cannot."""

import numpy as np
import pytest

from simpar.errors import UserError
from simpar.plan.post_training import Lengths
from simpar.posttraining.lengths import check_context, draw, draw_step, lognormal_of


def test_a_log_normal_has_the_mean_and_the_percentile_asked_for():
    """Mean and 99th percentile of a million draws, and of the closed form."""
    mu, sigma = lognormal_of(1000.0, 4000.0)
    assert np.exp(mu + sigma**2 / 2) == pytest.approx(1000.0)
    assert np.exp(mu + 2.3263478740408408 * sigma) == pytest.approx(4000.0)
    drawn = draw(Lengths(mean=1000, p99=4000), (1_000_000,), (0, 1))
    assert drawn.mean() == pytest.approx(1000, rel=0.005)
    assert np.quantile(drawn, 0.99) == pytest.approx(4000, rel=0.01)


def test_a_tail_that_no_log_normal_has_is_refused():
    """Its 99th percentile is at most 15 times its mean."""
    with pytest.raises(UserError, match=r"p99 = 20000 with mean = 1000: allowed: p99 up to 1496\d"):
        lognormal_of(1000.0, 20000.0)


def test_draws_depend_on_seed_and_step_alone(section_of):
    """Prompts are the same whatever the responses are drawn from."""
    one, other = section_of(seed=3), section_of(seed=4)
    assert (draw_step(one, 1000, 2).response == draw_step(one, 1000, 2).response).all()
    assert (draw_step(one, 1000, 2).response != draw_step(other, 1000, 2).response).any()
    lengths = {"prompt": {"mean": 30, "p99": 60}, "response": {"fixed": 7}}
    assert (draw_step(section_of(seed=3, lengths=lengths), 1000, 2).prompt == draw_step(one, 1000, 2).prompt).all()


def test_histograms_and_files_give_their_lengths(tmp_path):
    """By weight, and with a title in the first line."""
    values, counts = np.unique(draw(Lengths(histogram={10: 1, 30: 3}), (40_000,), (0, 0)), return_counts=True)
    assert values.tolist() == [10, 30]
    assert counts[1] / counts.sum() == pytest.approx(0.75, abs=0.01)
    path = tmp_path / "lengths.csv"
    path.write_text("tokens\n5\n7\n")
    assert set(draw(Lengths(file=str(path)), (100,), (0, 0)).tolist()) == {5, 7}
    path.write_text("5\nmany\n")
    with pytest.raises(UserError, match=r"lengths.csv:2: 'many': allowed: a number of tokens"):
        draw(Lengths(file=str(path)), (1,), (0, 0))


def test_responses_are_cut_to_the_context(section_of):
    """Prompt and response together have at most its tokens, and cut ones are counted."""
    step = draw_step(section_of(prompts=200), 150, 0)
    assert step.total.max() == 150
    assert 0 < step.cut <= (step.total == 150).sum()


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        (
            {"prompt": {"fixed": 2000}, "response": {"fixed": 1}},
            "lengths.prompt: 2000 tokens: allowed: below the context",
        ),
        ({"prompt": {"fixed": 600}, "response": {"fixed": 600}}, "response: 600 tokens behind a prompt of 600"),
        ({"prompt": {"fixed": 1}, "response": {"mean": 1100, "p99": 2000}}, "response: 1100 tokens"),
    ],
)
def test_lengths_above_the_context_are_refused(section_of, lengths, said):
    """In one line with the field, the value and the context."""
    with pytest.raises(UserError, match=said):
        check_context(section_of(lengths=lengths), 1000)


@pytest.mark.parametrize(
    "values", [{}, {"fixed": 1, "file": "x"}, {"mean": 5}, {"mean": 5, "p99": 4}, {"histogram": {}}]
)
def test_half_a_distribution_is_refused(values):
    """One kind, whole."""
    with pytest.raises(UserError):
        Lengths(**values)
