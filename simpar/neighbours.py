"""What to try next: layouts one or two changes away from a simulated one, each of them simulated as well.

A neighbour changes one choice of the plan, as :mod:`simpar.layout.moves` generates them (a degree doubled or halved,
another schedule, more or less recomputation); then the most promising pairs of changes are tried. Nothing is
extrapolated: every figure is that of the simulated step that the command would run with the flags of the change. Hints
come from these trials alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import inf
from typing import Any

from simpar.architectures.recompute import OPTIMAL, chosen_layers
from simpar.architectures.training import Training
from simpar.dataclass import but, dataclass
from simpar.engine import choose_engine
from simpar.errors import UserError
from simpar.files import allowed, suggest
from simpar.frameworks.framework import StackFramework, framework_of
from simpar.frameworks.subject import without_idle
from simpar.inputs import as_cluster, as_model, as_perturbation, as_plan, as_training
from simpar.layout.decide import decide
from simpar.layout.deciders import state_choices
from simpar.layout.layout import stated_choices
from simpar.layout.moves import forgone_savings, reset_dependents, single_changes
from simpar.plan.choices import BY_NAME, CHOICES
from simpar.plan.choices.choice import Change
from simpar.plan.choices.target import Workload
from simpar.plan.plan import Plan
from simpar.program.perturbation import Perturbation
from simpar.report.certainty import Certainty
from simpar.report.parts import Trial
from simpar.report.result import Result
from simpar.report.waits import WORTH_A_HINT
from simpar.report.words import probably
from simpar.scenario import ClusterChoice, Scenario, to_cluster_section
from simpar.settings import parse_setting
from simpar.simulation import lower_job, make_job, simulate, stack_for
from simpar.stacks.stack import Stack
from simpar.uncertainty.memory import DEFAULT_FIT_PROBABILITY
from simpar.units import format_bytes, format_seconds
from simpar.workers import Workers

MAX_PAIRS = 6  # simulated in the second round
TOLERANCE = 1e-12  # a saved result is the same run when its step time agrees to rounding

MOST_HINTS = 3
BY_MEETING = "gains only by how messages meet on shared links, which kernels of varying durations undo (--jitter)"
"""What is said of layouts that :func:`gains_by_meeting` is true of."""


@dataclass(frozen=True)
class TriedChange:
    """A change of a plan and the step that it gives: ``flags`` are what a user would type for it.

    If it is not possible, ``result`` is None and ``refused`` says why. ``not_with`` names the framework of the stack
    and says why that cannot run it; "" if it can.
    """

    change: Change
    flags: str
    result: Result | None = None
    refused: str = ""
    not_with: str = ""

    @property
    def trial(self) -> Trial:
        """Its figures."""
        if self.result is None:
            return Trial(change=self.flags, refused=self.refused)
        return trial_of(self.flags, self.result, self.not_with)


def trial_of(change: str, result: Result, not_with: str = "") -> Trial:
    """The figures of the result of a change in words; ``not_with`` is a framework that cannot run it, and why."""
    return Trial(
        change=change,
        step_time_s=result.step_time_s,
        mfu=result.mfu,
        peak_reserved_bytes=result.memory.peak_reserved_bytes,
        fits=result.fits,
        fit_probability=result.certainty and result.certainty.fit_probability,
        not_with=not_with,
    )


def advise(
    result: Result,
    inputs: Mapping[str, Any],
    progress: Callable[[str], None] | None = None,
    workers: Workers | None = None,
) -> Result:
    """The result with its simulated neighbours, best first, in ``why.trials``, and hints from the best of them.

    ``inputs`` are the arguments of :func:`simpar.simulate`; ``progress`` gets the name of every trial in its turn, and
    ``workers`` are the processes that simulate (default: this one). Layouts that are impossible on this model and
    cluster are kept with the reason; changes that lead to the same plan are one trial.
    """
    plan = result.plan
    if chosen_layers(plan.memory.recompute) is not None:  # chosen for this layout; other layouts choose anew
        plan = plan.with_values(recompute=OPTIMAL)
    run = PlanChanger.of(result, inputs, progress)
    training = as_training(inputs["training"])
    first = _distinct(run.all_of(single_changes(plan, target_of(inputs)), workers), training)
    tried_changes = _distinct([*first, *run.all_of(_pairs(result, first), workers)], training)
    trials = tuple(sorted((tried.trial for tried in tried_changes), key=_rating))
    advised = but(result, why=result.why.model_copy(update={"trials": trials}))
    told = tuple(_hints(advised, _met(result, tried_changes, inputs)))
    hints = (*result.why.hints, *told) if result.fits else (*told, *result.why.hints)
    return but(result, why=advised.why.model_copy(update={"hints": hints}))


def _placed(plan: Plan, result: Result) -> Plan:
    """A plan with the data-parallel degree and the cluster of its result."""
    mesh = plan.mesh.model_copy(update={"dp": result.setup.plan["mesh"]["dp"]})
    return plan.model_copy(update={"mesh": mesh, "cluster": to_cluster_section(result.setup.cluster)})


def target_of(inputs: Mapping[str, Any]) -> Workload:
    """What plans are checked against, from the arguments of simulate."""
    cluster, training = as_cluster(inputs["cluster"]), as_training(inputs["training"])
    graph = as_model(inputs["model"], training.seq_len)
    return Workload(graph, training, cluster.world_size, cluster.profile.devices_per_node)


def _distinct(tried_changes: Sequence[TriedChange], training: Training) -> list[TriedChange]:
    """Every resolved plan once, under the first change that leads to it, and all refused changes."""
    plans = [tried.result and without_idle(tried.result.plan, training) for tried in tried_changes]
    return [tried for at, tried in enumerate(tried_changes) if plans[at] is None or plans[at] not in plans[:at]]


def _met(result: Result, tried: Iterable[TriedChange], inputs: Mapping[str, Any]) -> Callable[[Trial], bool]:
    """Whether a trial gains by :func:`gains_by_meeting` alone."""
    results = {one.flags: one.result for one in tried}

    def met(trial: Trial) -> bool:
        after = results.get(trial.change)
        return result.fits and after is not None and gains_by_meeting(inputs, result, after)

    return met


def gains_by_meeting(inputs: Mapping[str, Any], before: Result, after: Result) -> bool:
    """Whether a step that recomputes more than another is faster only by how messages meet on links that they share.

    With every message and collective alone on its links it is not. Such a gain is a beat that kernels of varying
    durations undo (docs/modeling.md, "More work, and faster"). ``inputs`` are the arguments of :func:`simpar.simulate`.
    """
    if after.step_time_s >= before.step_time_s or "recompute" not in forgone_savings(after.plan, before.plan):
        return False
    return _alone_s(inputs, after.plan) >= _alone_s(inputs, before.plan)


def _alone_s(inputs: Mapping[str, Any], plan: Plan) -> float:
    """Seconds of the step of a resolved plan with everything alone on its links."""
    cluster, training = as_cluster(inputs["cluster"]), as_training(inputs["training"])
    job = make_job(as_model(inputs["model"], training.seq_len), cluster, plan, training, inputs.get("stack"))
    program = lower_job(job, cluster, as_perturbation(inputs.get("perturbation")), contention=False).program
    return float(job.stack.step_s(choose_engine("auto", program)(program).makespan_ns))


def _hints(result: Result, met: Callable[[Trial], bool]) -> Iterator[str]:
    """Hints: the fastest layouts that gain time (or fit, if this one does not) and fit with enough probability.

    Enough is the probability of this layout, or WANTED if that is less. If this layout fits with less than WANTED and
    no hint reaches that, the fastest layout that does comes last. Layouts that the framework of the stack cannot run
    are no hints; if nothing else fits, that is said. Nor are those that have ``met``: the fastest of them is named.
    """
    sure = _sureness(result.certainty)
    wanted = min(sure, DEFAULT_FIT_PROBABILITY) if result.fits else DEFAULT_FIT_PROBABILITY
    goal_s = (1 - WORTH_A_HINT) * result.step_time_s if result.fits else inf
    fitting = [trial for trial in result.why.trials if trial.fits]
    surely = _quickest(trial for trial in fitting if _sureness(trial) >= DEFAULT_FIT_PROBABILITY)
    as_surely = _quickest(trial for trial in fitting if _sureness(trial) >= wanted)
    faster = _runnable([trial for trial in as_surely if (trial.step_time_s or inf) < goal_s])
    runnable, beats = list[Trial](), list[Trial]()
    for trial in faster:
        if len(runnable) < MOST_HINTS:
            (beats if met(trial) else runnable).append(trial)
    if not result.fits:
        runnable = runnable or _runnable(_quickest(fitting))[:1]
        if fitting and not runnable:
            first = _quickest(fitting)[0]
            yield f"no layout that was tried fits and runs: {first.change} fits, but not with {first.not_with}"
    elif sure < DEFAULT_FIT_PROBABILITY and not any(_sureness(trial) >= DEFAULT_FIT_PROBABILITY for trial in runnable):
        runnable += _runnable(surely)[:1]
    for trial in runnable:
        step_s, size = trial.step_time_s or 0.0, trial.peak_reserved_bytes or 0.0
        memory = f"{format_bytes(size)} of {format_bytes(result.memory.capacity_bytes)}"
        memory += "" if trial.fit_probability is None else f", {probably(trial.fit_probability)}"
        if result.fits and (step_s > result.step_time_s or trial in beats):
            odds = " instead of ".join(
                probably(_sureness(each)).removesuffix(" sure") for each in (trial, result.certainty)
            )
            slower = f"{step_s / result.step_time_s - 1:.1%} slower ({format_seconds(step_s)})"
            slower = f"but {_no_gain(trial, result)}" if trial in beats else slower
            yield f"{trial.change}: surer to fit, {odds}, {slower}"
        elif result.fits:
            gain = f"{format_seconds(step_s)} instead of {format_seconds(result.step_time_s)}"
            yield f"{trial.change}: {gain} ({step_s / result.step_time_s - 1:+.1%}), {memory}"
        else:
            yield f"{trial.change}: fits, {memory}, in {format_seconds(step_s)}"
    for trial in [one for one in beats if one not in runnable][:1]:
        yield f"no gain to count on with {trial.change}: {_no_gain(trial, result)}"


def _no_gain(trial: Trial, result: Result) -> str:
    """What a trial gains by meeting alone, and that this does not last."""
    return f"it {BY_MEETING.replace('gains', f'gains {1 - (trial.step_time_s or 0.0) / result.step_time_s:.1%}', 1)}"


def _runnable(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that the framework of the stack can run."""
    return [trial for trial in trials if not trial.not_with]


def _sureness(known: Trial | Certainty | None) -> float:
    """The probability that a layout fits; 1 where it is unknown."""
    return 1.0 if known is None or known.fit_probability is None else known.fit_probability


def _quickest(trials: Iterable[Trial]) -> list[Trial]:
    """Trials by step time, one of those with equal figures."""
    runnable_first = sorted(trials, key=lambda trial: bool(trial.not_with))
    distinct = {(trial.step_time_s, trial.peak_reserved_bytes): trial for trial in reversed(runnable_first)}
    return sorted(distinct.values(), key=_rating)


def inputs_of(result: Result) -> dict[str, Any]:
    """The arguments of simulate, rebuilt from a saved result. Raises UserError where they do not give the same run.

    A result names its model and hardware; those that were read from a user's file cannot be found by name.
    """
    setup = result.setup
    scenario = Scenario(
        model=str(setup.model.get("name")),
        cluster=ClusterChoice.model_validate(to_cluster_section(setup.cluster)),
        training=Training.model_validate(setup.training),
        plan=result.asked_plan,
    )
    inputs = scenario.inputs()
    inputs["cluster"] = inputs["cluster"].with_degraded(setup.cluster.get("degraded", {}))
    slow = {int(rank): factor for rank, factor in setup.perturbation.get("slow_ranks", {}).items()}
    sigma, seed = setup.perturbation.get("jitter_sigma", 0.0), setup.engine.get("seed", 0)
    seeds = setup.perturbation.get("jitter_seeds", 1)
    inputs["perturbation"] = Perturbation(slow_ranks=slow, jitter_sigma=sigma, seed=seed, seeds=seeds)
    inputs["flops_convention"] = result.speed.flops_convention
    again = simulate(**inputs, with_timeline=False).step_time_s
    if abs(again - result.step_time_s) > TOLERANCE * again:
        raise UserError(
            f"result: step_time_s = {result.step_time_s:.6g}: its inputs by name give {again:.6g}; "
            "it was made by another version, or from files or perturbations that it does not hold"
        )
    return inputs


@dataclass(frozen=True)
class PlanChanger:
    """Simulates the runs that the flags of changes would give: ``plan`` as it was asked for, with a change on top."""

    plan: Plan
    inputs: Mapping[str, Any]
    progress: Callable[[str], None]
    framework: StackFramework | None

    @staticmethod
    def of(result: Result, inputs: Mapping[str, Any], progress: Callable[[str], None] | None = None) -> PlanChanger:
        """Changes of the plan in the ``inputs`` of simulate, which gave a result."""
        asked = as_plan(inputs["plan"])
        framework = framework_of(_placed(asked, result), target_of(inputs), stack_for(asked, inputs.get("stack")))
        runs_all = framework is not None and framework.runs_all
        return PlanChanger(asked, inputs, progress or (lambda _: None), framework if runs_all else None)

    def all_of(self, changes: Iterable[Change], workers: Workers | None = None) -> list[TriedChange]:
        """Simulate some changes, by several processes if there are ``workers``; in their order.

        One that is not possible is an answer as well.
        """
        wanted, result = list(changes), list[TriedChange]()
        answers = (workers or Workers()).stream(self._tried, wanted)
        for change in wanted:
            self.progress(as_flags(self._whole(change)))
            result.append(next(answers))
        return result

    def _whole(self, change: Change) -> Change:
        return change | reset_dependents(change, self.plan)

    def _tried(self, change: Change) -> TriedChange:
        whole = self._whole(change)
        flags = as_flags(whole)
        try:
            plan = self.plan.with_values(**whole)
            result = simulate(**{**self.inputs, "plan": plan, "with_timeline": False})
        except UserError as error:
            return TriedChange(change, flags, refused=_one_line(error))
        asked = self.framework if result.fits else None
        return TriedChange(change, flags, result, not_with=asked.remark(_placed(plan, result)) if asked else "")


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[-1].strip() if isinstance(error, ValueError) else str(error)


def as_flags(change: Change) -> str:
    """The change as a user would type it: flags where they exist, else settings of the plan."""
    return " ".join(_typed(key, value) for key, value in change.items())


def flags_of(plan: Plan, base: Plan, target: Workload, stack: Stack) -> str:
    """The least that a user would type on top of ``base`` to get a plan that states everything."""

    def decided(change: Change) -> dict[str, Any] | None:
        try:
            flat = {key: value for name, value in change.items() if (key := BY_NAME[name].key)}
            rest = {name: value for name, value in change.items() if not BY_NAME[name].key}
            return stated_choices(decide(state_choices(base.with_values(**flat), rest), target, stack).to_plan())
        except UserError:
            return None

    by_cost = {"pass_costs", "slices"}  # of the schedule, decided anew
    wanted, open_ = stated_choices(plan), decided(Change()) or {}
    wanted |= dict.fromkeys(by_cost & wanted.keys())
    change = Change({name: wanted[name] for name in BY_NAME if wanted.get(name) != open_.get(name)})
    for name in ("dp", *reversed(list(change))):  # what follows from the rest needs not be typed
        less = Change({each: value for each, value in change.items() if each != name})
        if decided(less) == wanted:
            change = less
    return as_flags(change)


def from_flags(text: str) -> Change:
    """The change that :func:`as_flags` wrote. Raises UserError for anything else."""
    spelt = {
        spelling: (choice, spelling == each[0])
        for choice in CHOICES
        if choice.flag
        for each in [choice.flag.spelling.split("/")]
        for spelling in each
    }
    words, change = iter(text.split()), Change()
    for word in words:
        if word == "--set":
            key, value = parse_setting(next(words, ""))
            change[key.removeprefix("plan.")] = value
            continue
        if word not in spelt:
            raise UserError(f"flags: {word}: is not a flag of a layout{suggest(word, spelt)}{allowed(spelt)}")
        choice, is_on = spelt[word]
        is_switch = choice.flag is not None and choice.flag.kind is bool
        change[choice.name] = is_on if is_switch else parse_setting(f"{choice.name}={next(words, '')}")[1]
    return change


def _typed(key: str, value: object) -> str:
    choice = BY_NAME.get(key)
    flag = choice.flag if choice else None
    key = choice.key or ".".join(choice.path) if choice else key
    if flag is None or value is None:
        several = f"[{','.join(map(str, value))}]" if isinstance(value, tuple | list) else str(value).replace(" ", "")
        return f"--set plan.{key}={'null' if value is None else several}"
    if isinstance(value, bool):
        on, _, off = flag.spelling.partition("/")
        return on if value else off
    return f"{flag.spelling} {value}"


def _pairs(base: Result, tried: Sequence[TriedChange]) -> list[Change]:
    """The most promising pairs of changes: those whose effects, taken as independent, would fit and gain.

    Changes that the framework of the stack cannot run are in none of them. Independence (times multiply, bytes add)
    only serves to choose the pairs to simulate.
    """
    rated: list[tuple[float, Change, Change]] = []
    goal_s = base.step_time_s if base.fits else float("inf")
    for one, other in combinations([t for t in tried if not t.trial.refused and not t.not_with], 2):
        together = {**one.change, **other.change}
        idle = {BY_NAME[name].idle_at_one for name, value in together.items() if value == 1}
        if len(together) < len(one.change) + len(other.change) or idle & {*together}:
            continue
        step_s, size = _estimate(base, one.trial, other.trial)
        alone_s = min([goal_s, *(t.trial.step_time_s or 0.0 for t in (one, other) if t.trial.fits)])
        if size <= base.memory.capacity_bytes and step_s < alone_s:
            rated.append((step_s, one.change, other.change))
    return _varied(sorted(rated, key=lambda pair: pair[0]))


def _varied(rated: Sequence[tuple[float, Change, Change]]) -> list[Change]:
    """The first pairs such that no change is in more than two of them."""
    chosen: list[Change] = []
    used: dict[str, int] = {}
    for _, one, other in rated:
        names = as_flags(one), as_flags(other)
        if len(chosen) < MAX_PAIRS and all(used.get(name, 0) < 2 for name in names):
            chosen.append({**one, **other})
            used |= {name: used.get(name, 0) + 1 for name in names}
    return chosen


def _estimate(base: Result, one: Trial, other: Trial) -> tuple[float, float]:
    """(Step time, reserved bytes) of two changes together, if their effects are independent."""
    times = [trial.step_time_s or 0.0 for trial in (one, other)]
    sizes = [trial.peak_reserved_bytes or 0.0 for trial in (one, other)]
    return times[0] * times[1] / base.step_time_s, sum(sizes) - base.memory.peak_reserved_bytes


def _rating(trial: Trial) -> tuple[bool, bool, float]:
    """Sort key: fitting layouts first, then too large ones, then impossible ones; fast before slow."""
    return bool(trial.refused), not trial.fits, trial.step_time_s or 0.0
