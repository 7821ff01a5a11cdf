"""The closed form of the peak, from above: against the exact curve of the Program."""

from __future__ import annotations

import numpy as np
import pytest

from simpar.cost.in_flight import in_flight
from simpar.cost.memory import stage_static_memory
from simpar.cost.peak import peak_memory
from simpar.cost.stack import load_stack, resolve
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.hardware.catalogue import load_cluster
from simpar.models.catalogue import load_model
from simpar.models.training import Training
from simpar.plan.plan import Plan
from simpar.plan.schedules import make_schedule
from simpar.program.ir.memory import memory_uses
from simpar.simulation import lower_job, make_job

TRAINING = Training(seq_len=512, global_batch=32)
MODEL = "llama-3.2-1b"

LAYOUTS = [
    {"tp": 1, "pp": 1},
    {"tp": 2, "pp": 4},
    {"tp": 2, "pp": 4, "recompute": "full"},
    {"pp": 4, "recompute": "every:3"},
    {"pp": 4, "schedule": "gpipe"},
    {"pp": 4, "schedule": "zb-h1"},
    {"pp": 4, "schedule": "zb-h2"},
    {"pp": 4, "schedule": "zb-v"},
    {"pp": 4, "vpp": 3},
    {"pp": 2, "tp": 2, "zero": 1, "stack": "nanotron"},
    {"zero": 3, "stack": "torchtitan", "recompute": "selective"},
    {"cp": 4, "pp": 2},
    {"cp": 2, "tp": 2, "pp": 2, "recompute": "full", "zero": 1},
    {"cp": 8, "cp_method": "ulysses", "zero": 1},
    {"cp": 4, "cp_method": "ring", "ulysses": 2, "pp": 2, "recompute": "selective"},
    {"cp": 4, "cp_method": "all_gather", "zero": 3},
    {"model": "small-mixture", "ep": 8, "zero": 1},
    {"model": "small-mixture", "ep": 4, "pp": 2, "tp": 2, "recompute": "full"},
    {"model": "small-mixture", "ep": 2, "etp": 2, "tp": 2, "pp": 2, "zero": 1, "expert_imbalance": 0.3},
    {"model": "small-mixture", "ep": 4, "zero": 3, "stack": "torchtitan"},
    {"pp": 2, "zero": 3, "stack": "llm-foundry"},
    {"pp": 4, "vpp": 4, "zero": 3, "kind": "fsdp"},
    {"pp": 4, "vpp": 4, "zero": 2, "kind": "fsdp"},
    {"pp": 2, "vpp": 8, "zero": 3, "kind": "fsdp", "recompute": "full"},
    {"pp": 4, "zero": 3, "kind": "fsdp", "schedule": "zb-h1"},
    {"pp": 4, "zero": 3, "kind": "fsdp", "schedule": "gpipe"},
    {"zero": 3, "kind": "fsdp", "stack": "megatron"},
    {"zero": 2, "kind": "fsdp", "recompute": "full"},
    {"model": "small-mixture", "ep": 4, "cp": 2, "pp": 2, "recompute": "selective", "capacity_factor": 1.5},
    {"model": "mixtral-8x7b", "ep": 8, "zero": 1},
    {"model": "deepseek-v2-lite", "ep": 4, "pp": 2},
    {"model": "nemotron-h-4b", "tp": 2, "pp": 4},
    {"model": "nemotron-h-4b", "pp": 2, "vpp": 2, "recompute": "full", "zero": 1},
    {"model": "nemotron-3-nano", "ep": 8, "zero": 1},
    {"model": "nemotron-3-super", "ep": 4, "pp": 2, "recompute": "selective"},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_close_to_the_exact_curve(layout: dict[str, object]) -> None:
    """Not below the highest total of the Program on any pipeline rank, and at most 9 % above it."""
    cluster = load_cluster("dgx-a100-80gb", 1)
    plan = Plan(**{"model": MODEL, "micro_batch": 1, **layout})
    job = make_job(load_model(plan.model or MODEL), cluster, plan, TRAINING)
    lowered = lower_job(job, cluster, {}, contention=False)
    _, engine = choose_engine("auto", lowered.program)
    exact: dict[int, int] = {}
    for class_id, use in enumerate(memory_uses(lowered.program, engine(lowered.program))):
        stage = int(lowered.stage_of_class[class_id])
        exact[stage] = max(exact.get(stage, 0), use.peak_bytes)
    inputs = (job.graph, job.plan, job.training, job.stack)
    for stage, moving in exact.items():
        resident = stage_static_memory(*inputs, stage).resident_bytes
        ratio = float(peak_memory(*inputs, stage).allocated_bytes) / (resident + moving)
        assert 0.999 < ratio < 1.09, (stage, ratio)


@pytest.mark.parametrize(
    "name", ["naive", "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-h2", "zb-v", "v-half"]
)
def test_in_flight_is_the_table_s(name: str) -> None:
    """Closed forms, and tables of few microbatches, agree with the schedule's own count."""
    for p, m, vpp in [(1, 1, 1), (2, 8, 1), (4, 4, 1), (4, 32, 1), (4, 8, 2), (4, 32, 2), (2, 16, 4)]:
        try:
            schedule = make_schedule(name, p, m, vpp)
        except UserError:
            continue
        found = in_flight(name, np.arange(p), p, m, vpp)
        assert found.tolist() == [schedule.peak_in_flight(r) for r in range(p)]


def test_held_outputs_need_tensor_parallelism_and_a_host_that_runs_ahead() -> None:
    """Partial sums pile up under tp without a pipeline or in its warm-up, not with tp = 1 or two stages."""
    graph, habits = load_model("llama-3-8b"), load_stack("nanotron")

    def held(**plan: int) -> float:
        resolved = resolve(Plan(dp=1, **plan), habits)
        return float(peak_memory(graph, resolved, TRAINING, habits, 0).held_bytes)

    assert held(tp=1, pp=1) == held(tp=8, pp=2) == 0
    assert held(tp=8, pp=1) > held(tp=8, pp=4) > 0


def test_a_simulated_peak_takes_the_place_of_the_closed_form() -> None:
    """Static state, held outputs and alternation stay; what moves is the simulated total."""
    graph, habits = load_model(MODEL), load_stack("nanotron")
    closed = peak_memory(graph, resolve(Plan(dp=1, tp=8), habits), TRAINING, habits, 0)
    exact = closed.exactly(12345.0)
    assert exact.moving_bytes == 12345.0
    assert (exact.static_bytes, exact.held_bytes) == (closed.static_bytes, closed.held_bytes)
