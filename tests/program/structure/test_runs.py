"""Gradients summed over the microbatches that a chunk runs in turn, and reduced once for them."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.architectures.training import Training
from simpar.engine import reference, sweep
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.ir.memory import memory_uses
from simpar.program.lower import Lowered, lower
from simpar.simulation import make_job
from simpar.stacks.stack import Stack, load_stack
from tests.gate import some
from tests.program.emission.test_buffers import left_bytes, slow

CLUSTER = slow()
EVERY, RUNS = (
    load_stack("llama3").model_copy(
        update={"overlap": load_stack("llama3").overlap.model_copy(update={"reduce_runs": runs})}
    )
    for runs in (False, True)
)
APART = RUNS.model_copy(update={"numerics": RUNS.numerics.model_copy(update={"gradient_accumulation_fusion": False})})
MICROBATCHES = 8
PLANS = {  # with the runs of every chunk
    "interleaved": ({"pp": 2, "vpp": 2}, 4),
    "breadth-first": ({"pp": 2, "vpp": 2, "schedule": "breadth-first"}, 1),
    "1f1b": ({"pp": 2}, 1),
    "zero bubble": ({"pp": 2, "schedule": "zb-h1"}, 1),
    "no pipeline": ({}, 1),
    "experts": ({"model": "small-mixture", "pp": 2, "vpp": 2, "ep": 2}, 4),
    "parameters gathered for every pass": ({"pp": 2, "vpp": 2, "zero": 3}, 4),
}


def lowered(plan: str, stack: Stack, *, contention: bool = False) -> Lowered:
    """A small Llama or mixture on 16 devices."""
    given = {"model": "small-llama", "zero": 2, "micro_batch": 1, **PLANS[plan][0]}
    training = Training(seq_len=512, global_batch=16 // int(given.get("pp", 1)) * MICROBATCHES)
    job = make_job(str(given.pop("model")), CLUSTER, Plan(**given), training, stack)
    return lower(job, CLUSTER, schedule_of(job.layout, training), contention=contention)


def moved(entry: Lowered, operation: str) -> list[float]:
    """Bytes that ranks of every class move in all data-parallel collectives of one kind."""
    found = []
    for actions in entry.actions:
        nodes = [node for index in actions.template for node in actions.templates[index].nodes]
        uses = [node.collective for node in nodes if node.collective and node.kind == "dp"]
        found.append(sum(use.size_bytes * use.count for use in uses if use.op == operation))
    return found


def held(entry: Lowered) -> list[list[float]]:
    """Transient bytes that stay behind each backward of every class, those of its reduction still in them."""
    found = []
    for actions in entry.actions:
        mine = [actions.templates[index].nodes for index in actions.template]
        makes = [nodes for nodes in mine if any(node.kind in ("backward", "weight_gradient") for node in nodes)]
        found.append(
            [sum(c.delta_bytes for n in nodes for c in n.memory if c.category == "transient") for nodes in makes]
        )
    return found


@pytest.mark.parametrize("plan", some(PLANS, ["interleaved", "1f1b", "experts"]))
def test_one_reduction_a_run(plan: str) -> None:
    """As many times all gradients in fp32 as chunks have runs, instead of once a microbatch."""
    runs = PLANS[plan][1]
    every, by_runs = (moved(lowered(plan, stack), "reduce_scatter") for stack in (EVERY, RUNS))
    assert min(every) > 0
    assert by_runs == pytest.approx([size * runs / MICROBATCHES for size in every])


@pytest.mark.parametrize("stack", [RUNS, APART], ids=["in place", "apart"])
def test_whole_gradients_wait_for_the_last_of_a_run(stack: Stack) -> None:
    """4 bytes a parameter of the chunk come with the first of two microbatches and go with their reduction."""
    entry = lowered("interleaved", stack)
    for changes, reduced in zip(held(entry), moved(entry, "reduce_scatter"), strict=True):
        assert len(changes) == 2 * MICROBATCHES
        first, last = np.array(changes).reshape(-1, 2).T
        assert (first > 0).all()
        assert first.sum() == pytest.approx(reduced)
        assert (first == -last).all()


@pytest.mark.parametrize(
    ("plan", "stack"),
    [
        *(pytest.param(plan, RUNS, id=f"{plan} in place") for plan in PLANS),
        pytest.param("interleaved", APART, id="interleaved apart"),
        *(
            pytest.param(plan, APART, id=f"{plan} apart", marks=pytest.mark.slow)
            for plan in PLANS
            if plan != "interleaved"
        ),
    ],
)
def test_engines_agree_and_all_is_freed(plan: str, stack: Stack) -> None:
    """To the nanosecond, with no memory left behind; never slower than a reduction a microbatch."""
    entry = lowered(plan, stack)
    times = sweep.run(entry.program)
    assert (reference.run(entry.program).finish_ns == times.finish_ns).all()
    assert not left_bytes(entry.program).any()
    assert times.makespan_ns <= sweep.run(lowered(plan, EVERY).program).makespan_ns


def test_a_slow_network_shows_what_runs_save() -> None:
    """Where reductions take longer than passes a step with a fourth of them is shorter, with contention too."""
    every, by_runs = (
        reference.run(lowered("interleaved", stack, contention=True).program).makespan_ns for stack in (EVERY, RUNS)
    )
    assert by_runs < 0.85 * every


def test_without_runs_of_several_nothing_changes() -> None:
    """One microbatch is a run of its own: gradients are made, kept and reduced as without runs."""
    training = Training(seq_len=512, global_batch=16)
    programs = []
    for stack in (EVERY, APART):
        job = make_job("small-llama", CLUSTER, Plan(zero=2, micro_batch=1), training, stack)
        programs.append(lower(job, CLUSTER, schedule_of(job.layout, training)).program)
    one, other = (memory_uses(program, sweep.run(program)) for program in programs)
    assert [use.peak_bytes for use in one] == [use.peak_bytes for use in other]
