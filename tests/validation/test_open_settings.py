"""What rows leave open is chosen by what the model itself finds fastest among what fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simpar.validation.open_settings import choose_open_settings
from simpar.validation.predict import predict
from simpar.validation.rows import case
from simpar.validation.table import outcome
from tests.benchmarks.normalise import published
from tests.validation.test_validate import ROW

OPEN = {**ROW, "micro_batch": "", "recompute": ""}


@pytest.mark.slow
def test_the_fastest_micro_batch_that_fits() -> None:
    """Of all powers of two that divide a replica's sequences, with and without recomputation."""
    found, prediction = choose_open_settings(case(OPEN))
    assert case(OPEN).open == ("micro_batch", "recompute")
    assert found.open == ()
    every = [
        predict(replace(case(OPEN), plan={**case(OPEN).plan, "micro_batch": size, "recompute": again}, open=()))
        for size in (1, 2, 4, 8)
        for again in ("none", "full")
    ]
    assert prediction.fits
    assert prediction.step_time_s == pytest.approx(min(one.step_time_s for one in every if one.fits))


def test_contests_share_keys_by_the_fastest_way() -> None:
    """Of a ring, heads exchanged and keys gathered; rows of other tables share them as their stack does."""
    row = {
        **ROW, "citation": "mlcommons/training_results_v5.0", "tp": "1", "cp": "8", "dp": "2", "micro_batch": "1",
        "seq_len": "8192",
    }  # fmt: skip
    assert published.case({**row, "citation": "", "source": "a table"}).open == ()
    assert published.case(row).open == ("cp_method",)
    found, prediction = choose_open_settings(published.case(row))
    every = {
        method: predict(replace(published.case(row), plan={**case(row).plan, "cp_method": method}, open=()))
        for method in ("ring", "ulysses", "all_gather")
    }
    assert found.plan["cp_method"] == min(every, key=lambda method: every[method].step_time_s)
    assert found.plan["micro_batch"] == 1
    assert prediction.step_time_s == min(one.step_time_s for one in every.values())


@pytest.mark.slow
def test_embedding_and_head_may_count_as_layers() -> None:
    """14 layers on 4 ranks: 16 things in chunks of 4, 2 or 1, of which the fastest that fits is taken."""
    row = {**OPEN, "n_layers": "14", "pp": "4", "dp": "2", "recompute": "none", "schedule": "interleaved 1F1B"}
    found, prediction = choose_open_settings(case(row))
    assert "vpp" in case(row).open
    every = [
        predict(replace(found, plan={**found.plan, "micro_batch": size, "vpp": chunks}))
        for size in (1, 2, 4, 8)
        for chunks in (2, 4)
    ]
    assert prediction.step_time_s <= min(one.step_time_s for one in every if one.fits)
    assert found.plan["vpp"] in (2, 4)


def test_too_large_a_model_takes_what_needs_least() -> None:
    """Where nothing fits, the smallest need is predicted, and that it does not fit."""
    large = {**OPEN, "n_layers": "320", "n_gpus": "2", "dp": "1", "gpus_per_node": "2", "global_batch_seqs": "4"}
    found, prediction = choose_open_settings(case(large))
    assert not prediction.fits
    assert (found.plan["micro_batch"], found.plan["recompute"]) == (1, "full")


def test_without_a_batch_one_micro_batch_a_step() -> None:
    """Tokens a second alone: the batch follows the micro-batch, and the rate gives the time of its step."""
    row = {
        **OPEN,
        "recompute": "none",
        "n_layers": "4",
        "global_batch_seqs": "",
        "iteration_time_s": "",
        "tokens_per_s_per_gpu": "9000",
    }
    found, _ = choose_open_settings(case(row))
    assert found.training.global_batch == 8 * int(str(found.plan["micro_batch"]))
    measured = outcome(2, row).measured
    assert measured is not None
    assert measured.step_time_s == pytest.approx(found.training.tokens_per_step / 16 / 9000)


@pytest.mark.slow
def test_virtual_stages_are_chosen_with_the_micro_batch() -> None:
    """Only where no column tells them."""
    row = {**OPEN, "pp": "4", "tp": "2", "dp": "2", "vpp": ""}
    assert "vpp" in case(row).open
    found, prediction = choose_open_settings(case(row))
    fixed = {**case({**row, "micro_batch": str(found.plan["micro_batch"]), "vpp": "1"}).plan, "recompute": "none"}
    assert prediction.step_time_s <= predict(replace(case(row), plan=fixed, open=())).step_time_s
    assert "vpp" not in case({**row, "vpp": "2"}).open


def test_a_note_may_tell_the_micro_batch() -> None:
    """Charts over the largest batch."""
    row = {**OPEN, "notes": "throughput bar; chart's max batch that fits = 3"}
    assert published.case(row).open == ()
    assert published.case(row).plan["micro_batch"] == 3
