"""Memory at the peak, shared out among layers."""

import pytest

from simpar import Perturbation, Plan, Training
from simpar.report.pictured import HeldAtPeak
from tests.gate import some
from tests.program.test_memory_inside import PLANS, run

OTHERS = [(Plan(zero=3, offload_activations=0.5), 16), (Plan(zero=0, optimizer="adamw", recompute="full"), 8)]
ALL = [*PLANS, *OTHERS]
IN_GATE = (0, 3, 4, 6, 10, 12)
"""Passes as one op and unit by unit, with a pipeline, repeated, and with activations on the host."""


def held(plan: Plan, batch: int) -> HeldAtPeak:
    """What the fullest rank holds at its peak."""
    view = run(plan, Training(seq_len=256, global_batch=batch)).overview
    assert view
    assert view.held
    return view.held


@pytest.mark.parametrize(("plan", "batch"), some(ALL, [ALL[at] for at in IN_GATE], tuples=True))
def test_parts_add_up_to_the_predicted_peak(plan: Plan, batch: int) -> None:
    """Whatever is shared out among layers, to the byte where sizes are whole."""
    result = run(plan, Training(seq_len=256, global_batch=batch))
    assert result.overview
    assert result.overview.held
    shown = result.overview.held
    assert shown.total_bytes == pytest.approx(result.memory.stages[shown.stage].peak_bytes, abs=8)
    assert min(part.size_bytes for part in shown.parts) > 0


def test_layers_hold_what_their_microbatches_saved() -> None:
    """In 1F1B the first of two stages has two microbatches in flight, in each of its two layers."""
    one = {part.name: part.size_bytes for part in held(Plan(pp=1, zero=0), 8).parts if part.category == "activations"}
    two = [part for part in held(Plan(pp=2, zero=0), 32).parts if part.category == "activations"]
    alone = one["layer 0"]
    assert [part.name for part in two] in (["layer 0", "layer 1"], ["layer 2", "layer 3", "head"])
    if two[0].name == "layer 0":
        assert [part.size_bytes for part in two] == [2 * alone, 2 * alone]
    else:
        assert [part.size_bytes for part in two] == [alone, alone, one["head"]]


def test_weights_go_to_the_layers_that_have_them() -> None:
    """tiny-llama: 4 equal layers, and a table at both ends; 2 bytes a parameter."""
    parts = {part.name: part.size_bytes for part in held(Plan(zero=0), 8).parts if part.category == "parameters"}
    assert list(parts) == ["embedding", "layer 0", "layer 1", "layer 2", "layer 3", "head"]
    assert len({parts[f"layer {number}"] for number in range(4)}) == 1


def test_what_cannot_be_shared_out_is_one_part() -> None:
    """Activations of which half waits on the host have no layer."""
    parts = [part for part in held(Plan(zero=3, offload_activations=0.5), 16).parts if part.category == "activations"]
    assert [part.name for part in parts] == ["of several layers"]


def test_passes_that_take_no_time_are_shared_out() -> None:
    """Written step by step, as beside a slow rank, the backward of a frozen embedding is a node without segments."""
    plan, slow = Plan(tp=4, zero=2, micro_batch=2, precision="fp32", lora_rank=8), Perturbation(slow_ranks={1: 2.0})
    result = run(plan, Training(seq_len=512, global_batch=8), perturbation=slow, stack="simpar")
    assert result.overview
    assert result.overview.held
    shown = result.overview.held
    assert shown.total_bytes == pytest.approx(result.memory.stages[shown.stage].peak_bytes, abs=8)
