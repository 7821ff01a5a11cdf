"""Microbatches merged into one op: the same step to the nanosecond and the byte, whatever their number."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from simpar import Plan, Training, simulate
from simpar.architectures.catalogue import load_model
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.files import bundled
from simpar.hardware.catalogue import load_cluster
from simpar.hardware.cluster import Cluster
from simpar.layout.action_table import schedule_of
from simpar.program.emission import emit
from simpar.program.emission import microbatches as merging
from simpar.program.lower import Lowered, lower
from simpar.program.perturbation import Perturbation
from simpar.report.context import SummaryInputs
from simpar.report.html.data import page_data
from simpar.report.result import Result
from simpar.report.summarise import summarise
from simpar.report.trace import trace
from simpar.simulation import make_job
from tests.gate import some
from tests.trace_rules import check_trace

MERGED = "forward_backward"
PLANS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "tp": {"tp": 4},
    "tp-zero1": {"tp": 2, "zero": 1, "recompute": "full"},
    "no-dp": {"tp": 8, "recompute": "selective"},
    "late": {"tp": 2, "overlap_grad_reduce": False},
    "naive": {"tp": 2, "schedule": "naive"},
    "overlap": {"tp": 4, "tensor_parallel": {"overlap": True}},
    "cp": {"cp": 2, "zero": 1},
    "frozen": {"tp": 2, "lora_rank": 8},
    "deferred": {"zero": 2, "kind": "fsdp", "defer_grad_reduce": True},
}
APART: dict[str, dict[str, Any]] = {
    "zero2": {"zero": 2},
    "fsdp": {"zero": 3, "kind": "fsdp"},
    "deferred": {"zero": 3, "kind": "fsdp", "defer_grad_reduce": True},
    "pipeline": {"pp": 2},
    "offload": {"offload_activations": 0.5},
}


def both(
    plan: dict[str, Any],
    microbatches: int,
    *,
    stack: str | None = None,
    hardware: str = "dgx-h100",
    perturbation: Perturbation | None = None,
    nodes: int = 1,
) -> tuple[tuple[Lowered, Result], tuple[Lowered, Result]]:
    """The step with as few ops as can be, and with every microbatch on its own."""
    cluster, model = load_cluster(hardware, nodes), load_model("tiny-llama")
    dp = (
        make_job(model, cluster, Plan(**plan), Training(seq_len=128, global_batch=2**12), stack)
        .layout.to_plan()
        .mesh.dp
    )
    training = Training(seq_len=128, global_batch=microbatches * int(dp or 1))
    job = make_job(model, cluster, Plan(**plan), training, stack)
    drawn, schedule = perturbation or Perturbation(), schedule_of(job.layout, training)
    found = []
    for most in (0, microbatches):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merging, "MOST_APART", most)
            found.append(lower(job, cluster, schedule, perturbation=drawn))
    short, long = found
    return (short, timed(short, cluster, drawn)), (long, timed(long, cluster, drawn))


def timed(lowered: Lowered, cluster: Cluster, drawn: Perturbation) -> Result:
    """The result of a Program."""
    timing = choose_engine("reference", lowered.program)(lowered.program)
    return summarise(SummaryInputs(lowered, timing, cluster, "reference", "full", drawn))


def is_merged(lowered: Lowered) -> bool:
    """Whether some microbatches are one op."""
    return any(label.kind == MERGED for label in lowered.program.labels)


def facts(result: Result) -> dict[str, Any]:
    """All that a result says but for the picture, the number of ops and the kinds on the critical path."""
    found = result.to_dict()
    found.pop("timeline")
    found["engine"].pop("ops")
    path = found["why"].pop("critical_path_s")
    passes = {MERGED, "forward", "backward", "recompute", "input_gradient", "weight_gradient", "tp", "cp", "host"}
    found["passes_s"] = round(sum(time for kind, time in path.items() if kind in passes), 9)
    return json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 9))


NUMBERS = (4, 5, 7, 64)
HABITS = ("fsdp", "megatron", "torchtitan")
"""Stacks that differ most from each other."""
WIDE = (PLANS["tp"], PLANS["cp"], {"tp": 8, "rank_order": "dp-tp-cp-pp"})
NODES = ("dgx-a100-80gb", "rtx-4090-8", "tpu-v5e-pod")
GATE = [("ddp", 5), ("tp-zero1", 4), ("overlap", 5), ("frozen", 7)]
"""Plans that differ most, with other numbers of microbatches."""


@pytest.mark.parametrize(("name", "microbatches"), some(product(PLANS, NUMBERS), GATE, tuples=True))
def test_merged_equals_apart(name: str, microbatches: int) -> None:
    """Time by cause, what is busy and moved, memory by category and its worst moment: all the same."""
    (short, merged), (long, apart) = both(PLANS[name], microbatches)
    assert is_merged(short)
    assert not is_merged(long)
    assert facts(merged) == facts(apart)


@pytest.mark.parametrize("stack", some(sorted(bundled("stacks")), HABITS))
def test_merged_equals_apart_on_every_stack(stack: str) -> None:
    """So it is with every stack's habits, merged or not."""
    (_, merged), (_, apart) = both({"tp": 2}, 9, stack=stack)
    assert facts(merged) == facts(apart)


@pytest.mark.parametrize(("plan", "hardware"), some(product(WIDE, NODES), [(WIDE[2], NODES[2])], tuples=True))
def test_merged_equals_apart_across_nodes(plan: dict[str, Any], hardware: str) -> None:
    """Links that ranks share between nodes change nothing."""
    (_, merged), (_, apart) = both(plan, 6, hardware=hardware, nodes=2)
    assert facts(merged) == facts(apart)


@pytest.mark.parametrize("plan", [PLANS["ddp"], PLANS["tp"]])
def test_slow_rank(plan: dict[str, Any]) -> None:
    """Nor does a slow rank, for which others wait only at the end."""
    (_, merged), (_, apart) = both(plan, 6, perturbation=Perturbation(slow_ranks={3: 1.5}))
    assert facts(merged) == facts(apart)


@pytest.mark.parametrize("plan", APART.values(), ids=APART.keys())
def test_what_communicates_every_microbatch_stays_apart(plan: dict[str, Any]) -> None:
    """Gathers, reductions, copies and messages of every microbatch are not merged."""
    (short, _), (long, _) = both(plan, 6)
    assert len(short.program) == len(long.program)


def test_jitter_is_drawn_for_every_microbatch() -> None:
    """Where every pass has a factor of its own, none are merged."""
    (short, _), _ = both(PLANS["tp"], 6, perturbation=Perturbation(jitter_sigma=0.1))
    assert not is_merged(short)


def test_pictures() -> None:
    """The merged op says which microbatches it is, is one block, and keeps trace, curve and page in order."""
    (short, merged), (_, apart) = both(PLANS["tp"], 20)
    assert f"microbatches 1-{18}" in [label.name for label in short.program.labels]
    assert merged.timeline is not None
    assert apart.overview is not None
    assert merged.overview is not None
    assert not check_trace(trace(merged.timeline))
    assert page_data(merged)["series"] is not None
    stage, other = merged.overview.stages[0], apart.overview.stages[0]
    assert len(stage.blocks) < len(other.blocks)
    assert stage.blocks.of_kind(MERGED).microbatch.tolist() == [-1]
    assert stage.memory is not None
    assert other.memory is not None
    assert stage.memory.total_bytes.max() == other.memory.total_bytes.max()


def test_few_are_merged_where_nothing_is_drawn() -> None:
    """Without a timeline five microbatches are three ops, and all that is said is the same."""
    plan, training = Plan(tp=2, zero=1), Training(seq_len=128, global_batch=20)
    cluster = load_cluster("dgx-h100", 1)
    drawn, short = (simulate("tiny-llama", cluster, plan, training, with_timeline=each) for each in (True, False))
    short_ops, drawn_ops = (each.to_dict()["engine"]["ops"] for each in (short, drawn))
    assert short_ops < drawn_ops
    assert {**facts(short), "passes_s": None} == {**facts(drawn), "passes_s": None}


def test_a_million() -> None:
    """A million microbatches take a million times as long as one, but for what happens once a step."""

    def step_s(count: int) -> float:
        training = Training(seq_len=128, global_batch=count)
        return simulate("tiny-llama", load_cluster("dgx-h100", 1), Plan(tp=8), training).step_time_s

    thousand, two_thousand, million = (step_s(count) for count in (1_000, 2_000, 1_000_000))
    assert million == pytest.approx(thousand + 999 * (two_thousand - thousand), rel=1e-12)


def test_too_many_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of more ops than can be held is refused in one line that says how many microbatches are."""
    monkeypatch.setattr(emit, "MOST_OPS", 10_000)
    plan, training = Plan(zero=3, kind="fsdp"), Training(seq_len=128, global_batch=8 * 2_000)
    with pytest.raises(UserError, match=r"^2,000 microbatches a step: more than 10,000 ops; allowed: .*$"):
        simulate("tiny-llama", load_cluster("dgx-h100", 1), plan, training)
