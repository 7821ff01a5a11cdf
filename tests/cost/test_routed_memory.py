"""Bytes of routed tokens at risk: where there are none, how they grow, and one account of the search and the step."""

from __future__ import annotations

from typing import Any

import pytest

from simpar.architectures.catalogue import load_model
from simpar.architectures.training import Training
from simpar.engine import sweep
from simpar.hardware.catalogue import load_cluster
from simpar.planner.certify.exact import job_of
from simpar.planner.problem import Constraints, Problem
from simpar.planner.space import fit
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.rows import enumerate_space
from simpar.program.footprint import Footprint, footprints
from simpar.simulation import lower_job
from simpar.stacks.stack import load_stack
from tests.gate import some


def problem(model: str, fixed: dict[str, Any], probability: float = 0.95) -> Problem:
    """A model on a node under Megatron, with axes that are given."""
    return Problem(
        load_model(model),
        load_cluster("dgx-h100", 1),
        Training(seq_len=1024, global_batch=64),
        load_stack("megatron"),
        constraints=Constraints(fixed={"cp": 1, **fixed}, fit_probability=probability),
    )


def held(given: Problem, row: int = 0) -> tuple[Footprint, ...]:
    """Memory of the simulated step of a layout of a problem."""
    job = job_of(given, plan_of(enumerate_space(given), row))
    lowered = lower_job(job, given.cluster, contention=False)
    return footprints(lowered, sweep.run(lowered.program, lower_bound=True), given.cluster)


def at_risk(model: str = "small-mixture", **fixed: Any) -> tuple[float, float]:
    """(Mean, standard deviation) of bytes at risk on the first class of ranks."""
    return held(problem(model, {"tp": 1, "pp": 1, "micro_batch": 1, "zero": 1, **fixed}))[0].experts_bytes


def test_nothing_is_at_risk_without_a_choice_of_ranks() -> None:
    """Dense models, a rank with all experts, and a capacity that pads have no tokens too many."""
    assert at_risk("gpt2") == (0.0, 0.0)
    assert at_risk(ep=1) == (0.0, 0.0)
    assert at_risk(ep=4, capacity_factor=1.25) == (0.0, 0.0)


def test_more_ranks_and_larger_microbatches_put_more_at_risk() -> None:
    """Fewer experts a rank are less alike; more tokens are more bytes, though the dice add less to them."""
    few, many, large = at_risk(ep=2), at_risk(ep=4), at_risk(ep=2, micro_batch=4)
    assert 0.0 < few[0] < many[0]
    assert 0.0 < few[1] < many[1]
    assert few[0] < large[0] < 4.0 * few[0]
    assert few[1] < large[1]


def test_recomputed_layers_hold_no_routed_tokens() -> None:
    """Only workspaces are left where every layer is computed again."""
    kept, again = at_risk(ep=4, recompute="none"), at_risk(ep=4, recompute="full")
    assert again[1] < kept[1]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipev"])
@pytest.mark.parametrize("model", some(["small-mixture", "deepseek-v2-lite"], 1))
def test_the_search_has_the_account_of_the_simulated_step(
    model: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes at risk on the first pipeline rank of a row as on the first of its simulated step."""
    found = []

    def noted(*arguments: Any) -> Any:
        found.append(routed(*arguments))
        return found[-1]

    routed = fit.experts_risk_bytes
    monkeypatch.setattr(fit, "experts_risk_bytes", noted)
    given = problem(model, {"tp": 1, "pp": 2, "ep": 2, "micro_batch": 1, "zero": 1, "schedule": schedule})
    rows = enumerate_space(given)
    fit.compute_least(rows.subset([0]), (0,))
    first = next(one for one in held(given) if one.stage == 0)
    assert [float(each[0, 0]) for each in found[0]] == pytest.approx(list(first.experts_bytes), rel=1e-12)
    assert first.experts_bytes[1] > 0.0


def test_a_layout_that_needs_more_for_its_experts_is_less_sure_to_fit() -> None:
    """Experts are among the causes of a mixture on several ranks, and of nothing else."""
    mixture, alone = (
        held(problem("small-mixture", {"tp": 1, "pp": 1, "ep": ep, "micro_batch": 1}))[0] for ep in (4, 1)
    )
    assert "experts" in mixture.fit_causes
    assert "experts" not in alone.fit_causes
    assert sum(mixture.fit_causes.values()) == pytest.approx(1.0)
    assert mixture.needed_at(0.95) > mixture.needed_at(0.5)
