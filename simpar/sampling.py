"""One step simulated many times: the distribution of its time under independent jitter of every rank."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from simpar.engine import choose_engine
from simpar.errors import TooContendedError, UserError
from simpar.layout.layout import unfold_two_ended
from simpar.program.emission.shared_cores import are_shared
from simpar.program.ir.program import OpTable, Program, Timing
from simpar.program.jitter import JitteredStep, num_ops, units_of
from simpar.program.lower import Lowered
from simpar.program.perturbation import Perturbation
from simpar.report.parts import JitterReport
from simpar.report.summarise import at_peak_s
from simpar.units import NS_PER_S

QUANTILES = (5, 50, 95, 99)
MOST_OPS = 10_000_000
"""Ops of a step with a timeline for every unit; about 0.4 kB each."""
MOST_MIRRORED = 1024
"""Devices of a pipeline with two ends, whose ranks are lowered one by one, which takes about ten seconds."""
MOST_VISITS = 250_000_000
"""Links that the re-shares of one step may visit: a few seconds of work."""


def sample(
    lowered: Lowered, perturbation: Perturbation, engine: str, without_contention: Callable[[], Lowered]
) -> JitterReport:
    """Steps of all units under every seed, and the distribution of their times.

    Where sharing links among all units would take too long, the time that jitter adds is taken from a step whose
    collectives have their links to themselves (``contention`` of the report). Raises UserError where the Program of all
    units is too large.
    """
    contention = True
    jitter = _jitter(lowered)
    try:
        steps_ns = _steps_ns(jitter, perturbation, engine)
    except TooContendedError:
        contention = False
        del jitter  # it is large, and the exception's traceback kept it alive until here
    if not contention:
        jitter = _jitter(without_contention())
        steps_ns = _steps_ns(jitter, perturbation, engine)
    timing = choose_engine(engine, lowered.program)(lowered.program)
    nominal_s = lowered.job.stack.step_s(timing.makespan_ns)
    steps = nominal_s + (steps_ns[1:] - steps_ns[0]) / NS_PER_S
    return JitterReport(
        sigma=perturbation.jitter_sigma,
        seeds=perturbation.seeds,
        nominal_s=nominal_s,
        mean_s=float(steps.mean()),
        deviation_s=float(steps.std(ddof=1)) if len(steps) > 1 else None,
        ci95_s=_ci95(steps.tolist()),
        quantiles_s={f"p{q}": float(np.quantile(steps, q / 100)) for q in QUANTILES},
        units=int(jitter.units.max()) + 1,
        ops=len(jitter.program),
        engine=engine,
        contention=contention,
    )


def _steps_ns(jitter: JitteredStep, drawn: Perturbation, engine: str) -> NDArray[np.int64]:
    """The step without jitter, then under every seed: int64[1 + seeds]."""
    program = jitter.program
    run = _runner(engine, program, drawn.seeds)
    steps = [run(program.ops).makespan_ns]
    steps += [
        run(jitter.ops(drawn.jitter_sigma, seed)).makespan_ns for seed in range(drawn.seed, drawn.seed + drawn.seeds)
    ]
    return np.array(steps, dtype=np.int64)


def _jitter(lowered: Lowered) -> JitteredStep:
    """All units with their kernels.

    Every rank is its own unit in stages with meshes of their own, in pipelines with two ends, and on shared cores.
    """
    job, network = lowered.job, lowered.maker.network
    mirrored = job.layout.mirrored
    if mirrored and network.cluster.world_size > MOST_MIRRORED:
        raise UserError(
            f"perturbation.jitter: plan.schedule = {unfold_two_ended(job.layout).schedule} is lowered rank by rank, "
            f"{network.cluster.world_size:,} devices: allowed {MOST_MIRRORED:,}, or another schedule, such as "
            f"{job.layout.schedule}"
        )
    fastest_s = at_peak_s(job, network.cluster, "causal")
    if job.layout.stages or mirrored or are_shared(network.cluster):
        return JitteredStep.of(lowered, np.arange(network.cluster.world_size), at_peak_s=fastest_s)
    units = units_of(lowered)
    many = num_ops(lowered, units)
    if many > MOST_OPS:
        raise UserError(
            f"perturbation.jitter: {many:,} ops on {network.cluster.world_size:,} devices: allowed {MOST_OPS:,}: give "
            "fewer nodes, or fewer microbatches (--global-batch) or chunks (--vpp)"
        )
    return JitteredStep.of(lowered, units, at_peak_s=fastest_s)


def _runner(name: str, program: Program, seeds: int) -> Callable[[OpTable], Timing]:
    """The engine for one Program under many durations; compiled where there is enough to do."""
    from simpar.engine import event

    run = choose_engine(name, program, more_ops=len(program) * seeds)
    if run is event.run:
        return event.Runner(program, most_visits=MOST_VISITS)
    return lambda ops: run(replace(program, ops=ops))


def _ci95(steps: Sequence[float]) -> float | None:
    """Half the 95 % confidence interval of the mean, by Student's distribution; None for one sample."""
    from scipy.special import stdtrit

    count = len(steps)
    if count < 2:
        return None
    return float(stdtrit(count - 1, 0.975) * np.std(steps, ddof=1) / sqrt(count))
