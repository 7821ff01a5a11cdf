"""Support of a prediction: pairs of source and family that share what it is of."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from simpar.uncertainty.step_time import THRESHOLDS, StepTimeError, lacks
from simpar.uncertainty.support import ASPECTS, Evidence, Traits, support_of
from simpar.uncertainty.table import load_error_table

TRAITS = st.builds(
    Traits, st.sampled_from("ab"), st.sampled_from("xy"), st.booleans(), st.sampled_from([4, 8, 16]), st.booleans(),
    st.booleans(),
)  # fmt: skip
EVIDENCE = st.lists(
    st.builds(Evidence, st.sampled_from("pqr"), st.sampled_from("uv"), st.integers(1, 9), TRAITS), max_size=12
)


def test_pairs_of_source_and_family_count_once() -> None:
    """Runs of one source and family are one pair."""
    here = Traits("nemo", "h100")
    runs = [Evidence("paper", "llama", 9, here), Evidence("paper", "llama", 3, replace(here, device="b200"))]
    found = support_of(here, runs)
    assert found.shared["stack"] == 1
    assert found.shared["device"] == 1
    assert found.all == 1


def test_ordinary_runs_are_counted_among_those_alike() -> None:
    """Of two sources that share all traits, one published what it had tuned; a third is of another device."""
    here = Traits("huggingface", "a100")
    runs = [
        Evidence("readme", "qwen", 5, here, ordinary=True), Evidence("paper", "llama", 2, here),
        Evidence("blog", "llama", 3, replace(here, device="h100"), ordinary=True),
    ]  # fmt: skip
    found = support_of(here, runs)
    assert (found.all, found.ordinary) == (2, 1)


def test_short_sequences_lack_no_long_ones() -> None:
    """Long sequences are supported by long ones alone."""
    here = Traits("nemo", "h100")
    assert support_of(here, [Evidence("paper", "llama", 1, here)]).shared["long"] == 1
    assert support_of(replace(here, long=True), [Evidence("paper", "llama", 1, here)]).shared["long"] == 0


def test_what_is_missing_is_said_in_words() -> None:
    """A stack that nobody measured is named, and nothing else."""
    here = Traits("nemo", "h100")
    said = list(support_of(replace(here, stack="mine"), [Evidence("paper", "llama", 1, here)]).missing())
    assert "no measured run of stack mine" in said
    assert not any("domains" in words for words in said)


@given(TRAITS, EVIDENCE, EVIDENCE)
def test_more_evidence_never_widens(traits: Traits, some: list[Evidence], more: list[Evidence]) -> None:
    """More runs never widen an interval."""
    errors = load_error_table().time
    few, many = support_of(traits, some), support_of(traits, [*some, *more])
    assert all(few.shared[aspect] <= many.shared[aspect] for aspect in ASPECTS)
    assert StepTimeError.of(many, errors).spread <= StepTimeError.of(few, errors).spread


def test_every_lack_of_the_table_is_one_that_predictions_have() -> None:
    """The table multiplies by nothing that predictions do not say."""
    known = lacks(support_of(Traits("a", "x"), []))
    assert set(load_error_table().time.lacking) <= set(known)
    assert len(known) == len(ASPECTS) * len(THRESHOLDS) + 7
