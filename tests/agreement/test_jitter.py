"""Bulk expansion of a folded Program is what lowering every rank gives, with and without jitter, op by op."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simpar.engine import event, reference
from simpar.hardware.catalogue import load_cluster
from simpar.models.training import Training
from simpar.plan.check import schedule_of
from simpar.plan.plan import Plan
from simpar.program.ir.program import Program
from simpar.program.lower import Lowered, lower
from simpar.program.perturbation import Perturbation
from simpar.program.vary.expand import Expanded, Expansion
from simpar.program.vary.jitter import Jitter, slowest, unfolded
from simpar.simulation import make_job
from tests.rules import verify

EVERY_RANK = {
    "ddp": {"dp": 16},
    "hsdp": {"dp": 16, "zero": 3, "hsdp": 2},
    "pp": {"pp": 4, "dp": 4, "zero": 1},
    "pp-fsdp": {"pp": 2, "dp": 8, "zero": 3},
    "interleaved": {"pp": 4, "vpp": 2, "dp": 4, "zero": 2},
    "zb-v": {"pp": 4, "vpp": 2, "dp": 4, "schedule": "zb-v"},
}
LOCKSTEP = {
    "tp": {"tp": 8, "dp": 2, "zero": 1},
    "tp-across-nodes": {"tp": 8, "dp": 2, "rank_order": "dp-tp-cp-pp"},
    "pp-tp": {"pp": 2, "tp": 4, "dp": 2, "zero": 1, "recompute": "full"},
    "experts": {"ep": 8, "zero": 1},
    "ring": {"cp": 4, "dp": 4, "zero": 1},
    "ring-contiguous-pp": {"cp": 4, "pp": 2, "tp": 2, "cp_balance": "contiguous", "zero": 2},
    "slow": {"tp": 4, "pp": 2, "dp": 2},
}
SIGMA, SEED = 0.1, 3


def lowered(name: str, **options: object) -> Lowered:
    """A small model on two DGX H100; a rank of "slow" is slow."""
    plan = {**EVERY_RANK, **LOCKSTEP}[name]
    cluster, training = load_cluster("dgx-h100", 2), Training(seq_len=512, global_batch=64)
    model = "small-mixture" if name == "experts" else "small-llama"
    job = make_job(model, cluster, Plan(**plan), training)
    slow = {3: 1.5} if name == "slow" else {}
    perturbation = Perturbation(slow, **options)
    return lower(job, cluster, schedule_of(job.plan, training), perturbation=perturbation)


def jittered(entry: Lowered, expanded: Expanded, seed: int = SEED) -> Program:
    """The Program of all units under a seed."""
    return replace(expanded.program, ops=Jitter.of(entry, expanded).ops(SIGMA, seed))


@pytest.mark.parametrize("name", [*EVERY_RANK, *LOCKSTEP])
def test_every_copy_does_what_its_class_does(name: str) -> None:
    """Without jitter all copies of an op start and finish when the op of the folded Program does."""
    folded = lowered(name)
    expanded = Expansion(folded).expanded()
    verify(expanded.program)
    ours, theirs = reference.run(expanded.program), reference.run(folded.program)
    assert (ours.start_ns == np.repeat(theirs.start_ns, expanded.count)).all()
    assert (ours.finish_ns == np.repeat(theirs.finish_ns, expanded.count)).all()


@pytest.mark.parametrize("name", EVERY_RANK)
def test_expanded_equals_unfolded(name: str) -> None:
    """Under the same seed, ops start and finish as where every rank was lowered on its own."""
    folded, alone = lowered(name), lowered(name, fold=False)
    programs = jittered(folded, Expansion(folded).expanded()), jittered(alone, unfolded(alone))
    assert len(programs[0]) == len(programs[1])
    timings = [reference.run(program) for program in programs]
    for column in ("start_ns", "finish_ns"):
        ours, theirs = (np.sort(getattr(timing, column)) for timing in timings)
        assert (ours == theirs).all()
    spans = [timing.makespan_ns for timing in timings]
    assert spans[0] > reference.run(folded.program).makespan_ns


@pytest.mark.parametrize("name", LOCKSTEP)
def test_lockstep_bounds_every_rank_on_its_own(name: str) -> None:
    """Ranks that wait within blocks: the slowest decides, but for what lies around the last collective of a pass."""
    folded, alone = lowered(name), lowered(name, fold=False)
    ours = reference.run(jittered(folded, Expansion(folded).expanded())).makespan_ns
    theirs = reference.run(jittered(alone, unfolded(alone))).makespan_ns
    assert theirs * (1 - 1e-6) <= ours <= 1.015 * theirs


@pytest.mark.parametrize("name", [*EVERY_RANK, *LOCKSTEP])
def test_engines_agree_under_jitter(name: str) -> None:
    """The compiled engine gives the integers of the reference, op by op."""
    pytest.importorskip("numba")
    folded = lowered(name)
    program = jittered(folded, Expansion(folded).expanded())
    ours, theirs = event.run(program), reference.run(program)
    assert (ours.start_ns == theirs.start_ns).all()
    assert (ours.finish_ns == theirs.finish_ns).all()


def test_factors_are_keyed_by_seed_rank_and_pass() -> None:
    """The same seed gives the same step, another seed another; factors have mean 1 and the deviation asked for."""
    folded = lowered("pp")
    expanded = Expansion(folded).expanded()
    spans = [reference.run(jittered(folded, expanded, seed)).makespan_ns for seed in (1, 1, 2)]
    assert spans[0] == spans[1] != spans[2]
    factors = slowest(expanded.units, 5000, SIGMA, SEED)
    assert factors.shape == (16, 5000)
    assert factors.mean() == pytest.approx(1, abs=3 * SIGMA / np.sqrt(factors.size))
    assert np.log(factors).std() == pytest.approx(SIGMA, rel=0.02)
    assert abs(np.corrcoef(factors)[0, 1:]).max() < 0.06


def test_a_unit_takes_the_largest_factor_of_its_ranks() -> None:
    """Units of tensor-parallel groups: the maximum over the group of what its ranks draw alone."""
    folded, alone = lowered("tp"), lowered("tp", fold=False)
    ours = slowest(Expansion(folded).expanded().units, 7, SIGMA, SEED)
    theirs = slowest(unfolded(alone).units, 7, SIGMA, SEED)
    assert (ours == theirs.reshape(2, 8, 7).max(axis=1)).all()
