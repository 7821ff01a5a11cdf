"""The exact worth of a plan: its simulated step with contention, and what the objective makes of it."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from simpar.cost.power import device_w, input_w
from simpar.dataclass import dataclass
from simpar.engine import choose_engine, sweep
from simpar.errors import UserError
from simpar.hardware.price import price_of
from simpar.plan.mesh import AXES
from simpar.plan.plan import Plan
from simpar.plan.sync import replicas_are_independent
from simpar.planner.bound.lockstep import are_links_shared
from simpar.planner.certify.openings import Opening, opening_of
from simpar.planner.problem import Problem
from simpar.program.footprint import footprints, host_use
from simpar.program.job import TrainingJob
from simpar.report.context import SummaryInputs
from simpar.report.result import Result
from simpar.report.summarise import summarise
from simpar.simulation import lower_job, make_job, outline_job, simulate, without_slow_ranks_ns
from simpar.uncertainty.memory import AS_PREDICTED
from simpar.units import HOUR_S

if TYPE_CHECKING:
    from simpar.workers import Workers


def exact(problem: Problem, plan: Plan) -> Result:
    """Simulate a plan of the problem, without its timeline. Raises UserError if it cannot be simulated."""
    return simulate(
        problem.graph,
        problem.cluster,
        plan,
        problem.training,
        stack=problem.stack,
        perturbation=problem.perturbation,
        with_timeline=False,
    )


def job_of(problem: Problem, plan: Plan) -> TrainingJob:
    """The job of a plan of the problem. Raises UserError if the plan is not allowed."""
    return make_job(problem.graph, problem.cluster, plan, problem.training, problem.stack)


def sweep_ns(problem: Problem, plan: Plan) -> float:
    """A lower bound of a plan's step in nanoseconds: its Program swept without contention."""
    lowered = lower_job(job_of(problem, plan), problem.cluster, contention=False, apart=False)
    return float(sweep.run(lowered.program, lower_bound=True).makespan_ns)


@dataclass
class SimulatedPlan:
    """A plan with its simulated step, its objective (``worth``), and whether it fits with the headroom asked for.

    ``needed_bytes`` is the device memory in which the plan fits with the requested probability or, if some memory is to
    stay free, the memory it reports. ``size`` are the ops and the slots of its Program.
    ``fullness`` is the ratio of need to limit for every pipeline stage, known if
    replicas step together. ``opening`` is known where links are shared,
    until it has been learnt. ``fits_as_predicted`` ignores that predictions err. ``kept`` makes the full result of the
    step that was run, until it is let go; ``report`` calls it, or runs the step again.
    """

    problem: Problem
    plan: Plan
    step_time_s: float
    worth: float
    fits: bool
    needed_bytes: float
    fits_as_predicted: bool
    size: tuple[int, int] = (0, 0)
    fullness: tuple[float, ...] = ()
    opening: Opening | None = field(default=None, repr=False, compare=False)
    kept: Callable[[], Result] | None = field(default=None, repr=False, compare=False)
    _result: Result | None = field(default=None, repr=False, compare=False)

    @property
    def num_ops(self) -> int:
        """Ops of its Program."""
        return self.size[0]

    @property
    def num_slots(self) -> int:
        """Slots of its Program, by which :func:`simpar.program.emission.emit.at_most` refuses it."""
        return self.size[1]

    def report(self) -> Result:
        """The full result, made once: from the step that was run, or from a new run if that has been let go."""
        if self._result is None:
            self._result = self.kept() if self.kept else exact(self.problem, self.plan)
            self.kept = None
        return self._result

    @property
    def is_at_hand(self) -> bool:
        """Whether the full result can be had without another run."""
        return self.kept is not None or self._result is not None

    def release(self) -> SimulatedPlan:
        """The same plan without the step that was run, to free its memory."""
        self.kept = None
        return self

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts plans: those that fit first, best first."""
        return not self.fits, self.worth


Known = MutableMapping[tuple[bytes, str], SimulatedPlan]
"""Measured plans by the digest of their steps and everything else that they specify."""
MANY_OPS = 500_000
"""Steps of more ops are not run again for a plan that differs in the order of ranks only."""


def measure(
    problem: Problem, plan: Plan, known: Known | None = None, make_room: Callable[[], None] = lambda: None
) -> SimulatedPlan:
    """The simulated step of a plan; the full report is made only if the objective or the plan needs it.

    If replicas step on their own, the step is the mean over one of their rounds. ``known`` are the large plans among
    those measured earlier: a plan that differs from one of them in the order of ranks alone, and whose step is the
    same op by op, takes the same time. ``make_room`` is called before ops are written. Raises UserError for a plan
    that is not allowed and TooManyOps if the Program of its step has more ops than are built.
    """
    if problem.objective == "energy" or replicas_are_independent(plan):
        return _from_result(problem, plan)
    cluster = problem.cluster
    outline = outline_job(job_of(problem, plan), cluster, problem.perturbation, apart=False)
    key = None
    if known is not None and len(outline) > MANY_OPS and (digest := outline.digest()):
        usual = plan.mesh.model_copy(update={"order": AXES})
        key = digest, plan.model_copy(update={"mesh": usual}).model_dump_json()
        if key in known:
            return replace(known[key], problem=problem, plan=plan)
    make_room()
    num_slots = len(outline)  # before they are written
    lowered = outline.lowered()
    num_ops = len(lowered.program)
    timing = choose_engine("auto", lowered.program)(lowered.program)
    held = footprints(lowered, timing, cluster)
    host = host_use(lowered, cluster)
    step_s = float(problem.stack.step_s(timing.makespan_ns))
    per_s = objective_rates(problem).per_s
    share, sure = 1.0 - problem.constraints.headroom, problem.constraints.fit_probability
    fullest = [0.0] * (1 + max(one.stage for one in held))
    for one in held:
        fullest[one.stage] = max(fullest[one.stage], one.fullness(share, sure))
    on_host = host is None or host.fits
    predicted = on_host and max(one.fullness(share, AS_PREDICTED) for one in held) <= 1.0
    context = SummaryInputs(lowered, timing, cluster, "auto", "full", problem.perturbation, asked=plan, held=held)
    most = max(one.held_bytes if share < 1.0 else one.needed_at(sure) for one in held)
    fits = on_host and max(fullest) <= 1.0
    worth = per_s * step_s
    opening = opening_of(lowered, timing) if are_links_shared(problem, cluster.in_training.whole) else None
    numbers = (step_s, worth, fits, most, predicted, (num_ops, num_slots), tuple(fullest), opening)
    simulated = SimulatedPlan(problem, plan, *numbers, partial(_report, context))
    if known is not None and key is not None:
        known[key] = replace(simulated, kept=None)
    return simulated


def _from_result(problem: Problem, plan: Plan) -> SimulatedPlan:
    """The step by way of its full report, which knows energy, and the mean over a round of replicas on their own."""
    result = exact(problem, plan)
    joules = result.bill.energy_j_per_step
    worth = joules if problem.objective == "energy" else objective_rates(problem).per_s * result.step_time_s
    assert worth is not None, "energy is no objective without the device's power"
    return SimulatedPlan(
        problem,
        plan,
        result.step_time_s,
        worth,
        is_allowed(problem, result, problem.constraints.fit_probability),
        result.memory.peak_reserved_bytes,
        is_allowed(problem, result, AS_PREDICTED),
        kept=lambda: result,
    )


def _report(context: SummaryInputs) -> Result:
    slow = context.perturbation
    nominal_ns = without_slow_ranks_ns(context.job, context.cluster, slow, context.engine)
    return summarise(replace(context, nominal_ns=nominal_ns), with_timeline=False)


def reports(plans: Sequence[SimulatedPlan], workers: Workers) -> list[Result]:
    """The full results of some plans; large steps that have to be run again run in parallel."""
    again = [one for one in plans if one.num_ops > MANY_OPS and not one.is_at_hand]
    results = workers.map(_result, [(one.problem, one.plan) for one in again])
    for one, result in zip(again, results, strict=True):
        one._result = result
    return [one.report() for one in plans]


def _result(task: tuple[Problem, Plan]) -> Result:
    return exact(*task)


def is_allowed(problem: Problem, result: Result, probability: float) -> bool:
    """Whether a simulated plan fits with a probability and with the headroom asked for."""
    memory, share = result.memory, 1.0 - problem.constraints.headroom
    probable = probability == AS_PREDICTED or (
        result.certainty is not None and result.certainty.fit_probability >= probability
    )
    return result.fits and probable and memory.peak_reserved_bytes <= share * memory.capacity_bytes


@dataclass(frozen=True)
class Rates:
    """Rates of an objective: ``per_s`` per second of the step and, for energy, the power above waiting, up to a limit.

    The objective is min(``per_s`` t + ``asked_per_s`` a, ``most_per_s`` t), with the step t and the weighted kernel
    seconds a (a kernel that asks for all of limit - idle counts in full). For time ``per_s`` is 1, for cost it is in
    USD per second, for energy all three are in watts of the whole cluster.
    """

    per_s: float
    asked_per_s: float = 0.0
    most_per_s: float = inf


BY_TIME = Rates(1.0)


def objective_rates(problem: Problem) -> Rates:
    """The rates of the objective. Raises UserError if the hardware profile lacks the price or the power."""
    cluster, profile = problem.cluster, problem.cluster.profile
    if problem.objective == "cost":
        price = price_of(cluster)
        if price is None:
            raise UserError(
                f"objective cost: hardware {profile.name} has no price; allowed: --price-per-gpu-hour USD, or "
                "price_per_device_hour in the profile"
            )
        return Rates(price * cluster.world_size / HOUR_S)
    if problem.objective == "energy":
        if (power := cluster.device.power) is None:
            raise UserError(f"objective energy: device {cluster.device.name} has no power; set power.limit")
        each_w = (power.idle, float(device_w(power, 0.0, 0.0)), power.limit)
        idle_w, waiting_w, most_w = (input_w(profile.host, cluster.world_size * one, cluster.nodes) for one in each_w)
        return Rates(waiting_w, most_w - idle_w, most_w)
    return BY_TIME
