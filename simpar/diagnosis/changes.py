"""The gains of single changes for a measured run, from the simulator fitted to the measurement.

Profiles are fitted to the compute, exposed transfers and host times of a trace, with the penalised least squares that
``simpar learn`` uses on step times; each of these parts is one observation. Ranks that are slower than their peers stay
so. A gain is the measured step times the share by which the simulated step gets shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.diagnosis.measured import KERNELS, LAUNCHES, MeasuredStep
from simpar.hardware.profile import MixedProfile
from simpar.layout.layout import apply_execution_choices
from simpar.layout.moves import single_changes
from simpar.learning.fit import Learned, Observed, Quantity, learn
from simpar.learning.parameters import names_of
from simpar.neighbours import BY_MEETING, PlanChanger, gains_by_meeting, target_of
from simpar.plan.choices.choice import Change
from simpar.plan.plan import Plan
from simpar.report.parts import TimeBreakdown
from simpar.simulation import simulate, stack_for
from simpar.stacks.stack import Stack
from simpar.uncertainty.ties import draw_related_errors
from simpar.validation.predict import NO_TUNING, ParameterOverrides, change_stack, replace_field, result_of
from simpar.validation.rows import Case

if TYPE_CHECKING:
    from simpar.hardware.cluster import Cluster
    from simpar.report.result import Result
    from simpar.scenario import Scenario

LEAST_SHARE = 0.01
"""Parts below this share of the measured or predicted step are not fitted to."""
NINE_OF_TEN = (0.05, 0.95)
FAR_OFF = 0.15
"""Errors of the fitted step above this are reported."""
GRAPHED = ("megatron", "nemo")
"""Stacks that capture parts of layers in CUDA graphs (Megatron-Core's cuda_graph_scope)."""
NO_STRAGGLER = "all ranks as fast as the median of the others"


@dataclass(frozen=True)
class Gain:
    """One change: by how much the measured step would get shorter, in s, with a 90 % interval.

    ``step_time_s`` is the resulting step. If the change is not possible, ``refused`` says why and the figures are None;
    ``not_with`` names the framework of the stack and says why that cannot run it.
    """

    change: str
    gain_s: float | None = None
    interval_s: tuple[float, float] | None = None
    step_time_s: float | None = None
    fits: bool = False
    fit_probability: float | None = None
    refused: str = ""
    not_with: str = ""

    @property
    def undecided(self) -> bool:
        """Whether the interval of the gain holds zero, so that nobody knows whether it is one."""
        return self.interval_s is not None and self.interval_s[0] <= 0.0 <= self.interval_s[1]

    @property
    def verdict(self) -> str:
        """Whether the changed layout fits, how surely, and which framework cannot run it."""
        sure = "yes" if self.fit_probability is None else f"{self.fit_probability:.0%}"
        framework = self.not_with.partition(":")[0]
        return (sure if self.fits else "NO") + (f", not with {framework}" if framework else "")


@dataclass(frozen=True)
class Fitted:
    """The fitted profiles: changed parameters (name, old, new), and the step in s before and after fitting."""

    parameters: tuple[tuple[str, float, float], ...]
    before_s: float
    after_s: float


@dataclass(frozen=True)
class Changes:
    """Single changes for this run, largest gain first, then impossible ones; and the fit they are based on."""

    gains: tuple[Gain, ...]
    fitted: Fitted
    slow_ranks: Mapping[int, float]
    remarks: tuple[str, ...] = ()


Progress = Callable[[str], None]


@dataclass(frozen=True)
class ObservedStep:
    """The measurements that changes are fitted to, in s: the step and its parts; and ranks slower than others.

    ``slow_hosts_s`` are ranks whose hosts launch late: by how much later than others, and how long one of these waits.
    ``kernels_s`` are the same two of the ranks whose kernels are slow, the largest of each; None in a pipeline, where a
    rank's delay is not the step's.
    """

    step_time_s: float
    parts_s: Mapping[str, float]
    slow_ranks: Mapping[int, float]
    scatter: float = 0.0
    slow_hosts_s: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    kernels_s: tuple[float, float] | None = None

    @staticmethod
    def of_traces(measured: MeasuredStep, result: Result) -> ObservedStep:
        """From traces: kernels, transfers and the host."""
        slow = slow_ranks(measured, result.plan)
        late = {
            each.rank: (each.host_s - each.usual_host_s, each.longest_s)
            for each in measured.stragglers
            if each.because == LAUNCHES
        }
        parts = _measured_parts(measured, slow, late)
        kernels = None if result.plan.mesh.sizes.is_pipelined or not slow else _delay_of_kernels(measured, slow)
        return ObservedStep(measured.step_time_s, parts, slow, slow_hosts_s=late, kernels_s=kernels)

    @staticmethod
    def of_log(step_time_s: float, scatter: float) -> ObservedStep:
        """From a log: the step only; ``scatter`` is the standard deviation of its logarithm."""
        return ObservedStep(step_time_s, {"step": step_time_s}, {}, scatter)


def find_changes(seen: ObservedStep, scenario: Scenario, before: Result, progress: Progress | None = None) -> Changes:
    """Fit a scenario, whose simulated step is ``before``, to a run, and simulate single changes. Raises UserError."""
    hear, inputs, remarks = progress or (lambda _: None), scenario.inputs(), list[str]()
    hear("fitting to what was measured ...")
    slow = dict(seen.slow_ranks)
    learned = _fit(seen, scenario, before)
    if learned is None:
        mixed = isinstance(scenario.cluster.hardware, MixedProfile)
        why = "is a mixture of nodes" if mixed else "is written out in the plan: name its file with --hardware"
        remarks.append(f"the predictions are not fitted to the run: its hardware {why}")
    else:
        inputs = make_fitted_inputs(inputs, learned.tuning, _stack_of(scenario, before))
    even = inputs
    if slow:
        perturbation = inputs["perturbation"]
        inputs = {
            **inputs,
            "perturbation": perturbation.model_copy(update={"slow_ranks": {**perturbation.slow_ranks, **slow}}),
        }
    base = simulate(**{**inputs, "with_timeline": False})
    gain_of = _Comparison(seen.step_time_s, base).gain
    late = seen.slow_hosts_s.items()
    gains = [
        _measured_gain(f"rank {rank}'s host as fast as the others'", min(said), said, seen.step_time_s, base)
        for rank, said in late
    ]
    if seen.kernels_s is not None:
        gains.append(_measured_gain(NO_STRAGGLER, seen.kernels_s[0], seen.kernels_s, seen.step_time_s, base))
    elif slow:
        hear(f"trying {NO_STRAGGLER} ...")
        gains.append(gain_of(NO_STRAGGLER, simulate(**{**even, "with_timeline": False})))
    run = PlanChanger.of(base, inputs, lambda flags: hear(f"trying {flags} ..."))
    stack = apply_execution_choices(stack_for(base.plan, inputs["stack"]), base.plan)
    changes = (*single_changes(base.plan, target_of(inputs), is_measured=True), *_graphs(inputs, stack))
    for tried in run.all_of(changes):
        if tried.result is None:
            gains.append(Gain(tried.flags, refused=tried.refused))
        elif gains_by_meeting(inputs, base, tried.result):
            remarks.append(f"no gain to count on with {tried.flags}: it {BY_MEETING}")
        else:
            gains.append(replace(gain_of(tried.flags, tried.result), not_with=tried.not_with))
    fitted = Fitted(_moved(learned), before.step_time_s, base.step_time_s)
    if abs(base.step_time_s / seen.step_time_s - 1) > FAR_OFF:
        remarks.append(
            f"the fitted step is still {base.step_time_s / seen.step_time_s - 1:+.0%} off: profiles of this "
            "hardware and stack do not explain the run, and gains are shares of another step"
        )
    return Changes(tuple(sorted(_distinct(gains), key=_rating)), fitted, slow, tuple(remarks))


def _measured_gain(change: str, gain_s: float, said_s: tuple[float, float], step_s: float, base: Result) -> Gain:
    """What a rank as fast as the others would gain, as measured in two ways: its delay, and the wait for it."""
    sure = None if base.certainty is None else base.certainty.fit_probability
    return Gain(change, gain_s, (min(said_s), max(said_s)), step_s - gain_s, base.fits, sure)


def _rating(gain: Gain) -> tuple[bool, bool, bool, float]:
    return bool(gain.refused), not gain.fits, gain.undecided, -(gain.gain_s or 0.0)


def _distinct(gains: Sequence[Gain]) -> Iterator[Gain]:
    """Changes with an effect on the step; of those with equal figures, the first."""
    seen = set[tuple[float | None, float | None, str]]()
    for gain in gains:
        key = (gain.step_time_s, gain.fit_probability, gain.refused)
        if key not in seen and gain.gain_s != 0.0:
            seen.add(key)
            yield gain


def slow_ranks(measured: MeasuredStep, plan: Plan) -> dict[int, float]:
    """By which factor each rank that others wait for computes longer than the median of the others of its stage."""
    ranks = [each.rank for each in measured.ranks]
    stage = dict(zip(ranks, plan.mesh.pipeline_rank(ranks).tolist(), strict=True))
    result = {}
    for straggler in measured.stragglers:
        peers = [
            each.compute_s
            for each in measured.ranks
            if stage[each.rank] == stage[straggler.rank] and each.rank != straggler.rank
        ]
        mine = next(each.compute_s for each in measured.ranks if each.rank == straggler.rank)
        if straggler.because == KERNELS and peers and mine > float(np.median(peers)) > 0:
            result[straggler.rank] = mine / float(np.median(peers))
    return result


def _delay_of_kernels(measured: MeasuredStep, slow: Mapping[int, float]) -> tuple[float, float]:
    """How much longer than on the others kernels take on the slowest rank, and the longest wait for such a rank, in s.

    ``slow`` are factors over the median of the others, by rank.
    """
    delays = [each.compute_s * (1.0 - 1.0 / slow[each.rank]) for each in measured.ranks if each.rank in slow]
    return max(delays), max(each.longest_s for each in measured.stragglers if each.rank in slow)


def _graphs(inputs: Mapping[str, Any], stack: Stack) -> Iterator[Change]:
    """Parts of layers in CUDA graphs, if the stack supports that and the host costs anything."""
    if stack.known_as in GRAPHED and not stack.launch.graphs and stack.launch.host_time_per_kernel_s > 0:
        yield {"graphs": "attention+router" if inputs["model"].is_mixture else "attention+mlp"}


@dataclass(frozen=True)
class _Comparison:
    """Compares changes with the fitted step ``base`` of the measured run."""

    measured_s: float
    base: Result

    def gain(self, name: str, result: Result) -> Gain:
        """The gain of a change that gives a simulated step."""
        ratio = result.step_time_s / self.base.step_time_s
        errors = self._errors(result)
        low, high = (float(self.measured_s * (1 - ratio * exp(np.quantile(errors, at)))) for at in NINE_OF_TEN[::-1])
        gain_s = self.measured_s * (1 - ratio)
        sure = None if result.certainty is None else result.certainty.fit_probability
        return Gain(name, gain_s, (low, high), self.measured_s - gain_s, result.fits, sure)

    def _errors(self, result: Result) -> Any:
        """Random errors of the logarithm of the steps' ratio: two layouts share some of their error, one shares all."""
        spread = max(each.certainty.layout_spread if each.certainty else 0.0 for each in (self.base, result))
        shares = np.array([_shares(each.time_breakdown_s, each.step_time_s) for each in (self.base, result)])
        own = np.eye(2)
        if result.setup.plan == self.base.setup.plan:  # one layout, other slow ranks: waiting is their compute
            own = np.ones((2, 1))
            shares[:, COMPUTE] += shares[:, WAITING]
            shares[:, WAITING] = 0.0
        one, other = draw_related_errors(shares - shares[0], spread, own)
        return other - one


_PARTS = list(TimeBreakdown.model_fields)
COMPUTE, WAITING = (_PARTS.index(name) for name in ("compute", "waiting"))


def _shares(parts: TimeBreakdown, step_s: float) -> list[float]:
    return [seconds / step_s for seconds in parts.model_dump().values()]


def _stack_of(scenario: Scenario, result: Result) -> str:
    """The stack by the name or file with which it was asked for."""
    return scenario.stack or scenario.plan.stack or str(result.setup.plan.get("stack") or scenario.plan.usual_stack)


def make_fitted_inputs(inputs: Mapping[str, Any], tuning: ParameterOverrides, name: str) -> dict[str, Any]:
    """The inputs of simulate with fitted profiles; ``name`` is the stack's."""
    cluster: Cluster = inputs["cluster"]
    profile = cluster.profile
    for values in tuning.clusters.values():
        for key, value in values.items():
            profile = replace_field(profile, key.split("."), value)
    cluster = replace(cluster, profile=profile)
    for values in tuning.devices.values():
        device = cluster.device
        cluster = cluster.with_device(device.model_copy(update={"kernels": {**device.kernels, **values}}))
    stack = change_stack(name, tuning.stacks.get(name, {}))
    return {**inputs, "cluster": cluster, "stack": stack}


def _moved(learned: Learned | None) -> tuple[tuple[str, float, float], ...]:
    """Parameters that fitting changed."""
    if learned is None:
        return ()
    rows = zip(learned.prior.names, learned.prior.values.tolist(), learned.values.tolist(), strict=True)
    return tuple((f"{part} {key}", was, now) for (_, part, key), was, now in rows if was != now)


def _fit(seen: ObservedStep, scenario: Scenario, result: Result) -> Learned | None:
    """The most probable parameters after this run; None if its hardware has no profile of its own."""
    hardware = scenario.cluster.hardware
    if not isinstance(hardware, str):
        return None
    cluster = scenario.cluster.load()
    stack = _stack_of(scenario, result)
    case = Case(
        scenario.graph(), hardware, cluster.world_size, cluster.profile.devices_per_node, scenario.training,
        scenario.plan.flat_values(), stack, {}, {},
    )  # fmt: skip
    parts = _Parts()
    predicted = parts(case, NO_TUNING)
    told = [
        Observed(case, seconds, scatter=seen.scatter, label=name)
        for name, seconds in seen.parts_s.items()
        if seconds > LEAST_SHARE * seen.step_time_s and predicted[name] > LEAST_SHARE * result.step_time_s
    ]
    quantity = Quantity(lambda run: run.time_s, lambda run, tuning: parts(run.case, tuning)[run.label], names_of)
    return learn(told, quantity=quantity) if told else None


def _measured_parts(measured: MeasuredStep, slow: Collection[int], late: Collection[int]) -> dict[str, float]:
    """The parts to fit to, in s: the median rank's kernels, exposed transfers, and the host.

    Ranks whose kernels are ``slow``, or whose host is ``late``, are left out of that part: they are slower than what
    is fitted to, by what was measured.
    """

    def median(of: Callable[[Mapping[str, float]], float], without: Collection[int] = ()) -> float:
        ranks = [each for each in measured.ranks if each.rank not in without] or measured.ranks
        return float(np.median([of(each.causes_s) for each in ranks]))

    return {
        "kernels": median(lambda causes: causes.get("compute", 0.0) + causes.get("optimizer", 0.0), slow),
        "transfers": median(lambda causes: sum(s for name, s in causes.items() if name.startswith("exposed_"))),
        "host": median(lambda causes: causes.get("host", 0.0), late),
    }


class _Parts:
    """The same parts of predicted steps, each simulated once."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, float]] = {}

    def __call__(self, case: Case, tuning: ParameterOverrides) -> dict[str, float]:
        """Parts of a case under a tuning, in s."""
        key = repr((tuning.devices, tuning.stacks, tuning.clusters))
        if key not in self.known:
            result = result_of(case, tuning)
            parts = result.time_breakdown_s.model_dump()
            self.known[key] = {
                "kernels": parts["compute"] + parts["optimizer"],
                "transfers": sum(s for name, s in parts.items() if name.startswith("exposed_")),
                "host": parts["host"],
                "step": result.step_time_s,
            }
        return {name: max(seconds, 2.0**-40) for name, seconds in self.known[key].items()}
