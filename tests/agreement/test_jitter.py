"""A Program of units is what lowering every rank gives, with and without jitter, op by op."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simpar.architectures.training import Training
from simpar.engine import event, reference
from simpar.hardware.catalogue import load_cluster
from simpar.layout.action_table import schedule_of
from simpar.plan.plan import Plan
from simpar.program.ir.program import Program
from simpar.program.jitter import JitteredStep, num_ops, slowest_factors, units_of
from simpar.program.lower import Lowered, lower
from simpar.program.perturbation import Perturbation
from simpar.simulation import make_job
from tests.compilers import needs_compiler
from tests.gate import some
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
    pp = int(plan.get("pp", 1))
    dp = 16 // (pp * int(plan.get("tp", 1)) * int(plan.get("cp", 1)))
    cluster, training = load_cluster("dgx-h100", 2), Training(seq_len=512, global_batch=dp * max(4, 2 * pp))
    model = "small-mixture" if name == "experts" else "small-llama"
    job = make_job(model, cluster, Plan(**plan), training)
    slow = {3: 1.5} if name == "slow" else {}
    perturbation = Perturbation(slow_ranks=slow, **options)
    return lower(job, cluster, schedule_of(job.layout, training), perturbation=perturbation)


def jittered(entry: Lowered, seed: int = SEED) -> Program:
    """The Program of all units under a seed; every rank is one where nothing was folded."""
    units = units_of(entry)
    if entry.quotient.num_classes == len(units):
        units = np.arange(len(units))
    jitter = JitteredStep.of(entry, units)
    return replace(jitter.program, ops=jitter.ops(SIGMA, seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EVERY_RANK, *LOCKSTEP])
def test_every_unit_does_what_its_class_does(name: str) -> None:
    """Without jitter every stream of a unit starts and finishes its ops when that of its class does."""
    folded = lowered(name)
    units = units_of(folded)
    every = folded.with_colours(units)
    verify(every.program)
    assert every.quotient.num_classes == units.max() + 1
    assert (np.diff(units[every.quotient.representative_rank]) != 0).all()
    assert len(every.program) <= num_ops(folded, units)
    ours, theirs = reference.run(every.program), reference.run(folded.program)
    streams = len(folded.program.streams) // folded.quotient.num_classes
    for unit, rank in enumerate(every.quotient.representative_rank.tolist()):
        for stream in range(streams):
            mine = every.program.streams.row(unit * streams + stream)
            its = folded.program.streams.row(folded.quotient.class_of_rank[rank] * streams + stream)
            assert (ours.start_ns[mine] == theirs.start_ns[its]).all()
            assert (ours.finish_ns[mine] == theirs.finish_ns[its]).all()


@pytest.mark.parametrize("name", EVERY_RANK)
def test_units_equal_ranks(name: str) -> None:
    """Under the same seed, ops start and finish as where every rank was lowered on its own."""
    folded, alone = lowered(name), lowered(name, fold=False)
    programs = jittered(folded), jittered(alone)
    assert len(programs[0]) == len(programs[1])
    timings = [reference.run(program) for program in programs]
    for column in ("start_ns", "finish_ns"):
        ours, theirs = (np.sort(getattr(timing, column)) for timing in timings)
        assert (ours == theirs).all()
    spans = [timing.makespan_ns for timing in timings]
    assert spans[0] > reference.run(folded.program).makespan_ns


@pytest.mark.parametrize("name", some(LOCKSTEP, 3))
def test_lockstep_bounds_every_rank_on_its_own(name: str) -> None:
    """Ranks that wait within blocks: the slowest decides, but for what lies around the last collective of a pass."""
    folded, alone = lowered(name), lowered(name, fold=False)
    ours = reference.run(jittered(folded)).makespan_ns
    theirs = reference.run(jittered(alone)).makespan_ns
    assert theirs * (1 - 1e-6) <= ours <= 1.02 * theirs


@pytest.mark.parametrize("name", some([*EVERY_RANK, *LOCKSTEP], [*EVERY_RANK, "pp-tp", "experts"]))
@needs_compiler
def test_engines_agree_under_jitter(name: str) -> None:
    """The compiled engine gives the integers of the reference, op by op."""
    program = jittered(lowered(name))
    ours, theirs = event.run(program), reference.run(program)
    assert (ours.start_ns == theirs.start_ns).all()
    assert (ours.finish_ns == theirs.finish_ns).all()


def test_factors_are_keyed_by_seed_rank_and_pass() -> None:
    """The same seed gives the same step, another seed another; factors have mean 1 and the deviation asked for."""
    folded = lowered("pp")
    spans = [reference.run(jittered(folded, seed)).makespan_ns for seed in (1, 1, 2)]
    assert spans[0] == spans[1] != spans[2]
    factors = slowest_factors(units_of(folded), 5000, SIGMA, SEED)
    assert factors.shape == (16, 5000)
    assert factors.mean() == pytest.approx(1, abs=3 * SIGMA / np.sqrt(factors.size))
    assert np.log(factors).std() == pytest.approx(SIGMA, rel=0.02)
    assert abs(np.corrcoef(factors)[0, 1:]).max() < 0.06


def test_a_unit_takes_the_largest_factor_of_its_ranks() -> None:
    """Units of tensor-parallel groups: the maximum over the group of what its ranks draw alone."""
    units = units_of(lowered("tp"))
    ours, theirs = slowest_factors(units, 7, SIGMA, SEED), slowest_factors(np.arange(len(units)), 7, SIGMA, SEED)
    assert (ours == theirs.reshape(2, 8, 7).max(axis=1)).all()
