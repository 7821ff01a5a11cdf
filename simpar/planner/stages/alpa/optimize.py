"""The Alpa space as a search: both passes for every size of microbatch, then the best of what was simulated.

1. The optimum of even stages is the first candidate, so the answer is never worse.
2. For every number of sequences in a microbatch: a bound (``least``), options of all submeshes (``profile``), and the
   best cuts (``inter_op``). A size that cannot beat the best so far is abandoned early.
3. The best cuts become plans and are simulated, in the order of their estimates. Only simulated steps rank them.
4. Stage boundaries of the best plan are moved by a layer as long as that shortens its simulated step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from simpar.architectures.recompute import SIMPLE
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.plan.choices.choice import divisors
from simpar.plan.megatron_roles import with_roles
from simpar.plan.plan import Plan
from simpar.plan.schedules import default_schedule, schedules_with_same_memory
from simpar.plan.stages import StagePlan
from simpar.planner.certify.exact import SimulatedPlan, job_of
from simpar.planner.problem import Problem
from simpar.planner.progress import SearchProgress
from simpar.planner.result import Counts, SearchResult
from simpar.planner.stages.alpa.inter_op import MAX_STAGES, InterOp, StageCut
from simpar.planner.stages.alpa.least import bound_profile_step_s
from simpar.planner.stages.alpa.meshes import place_stages, submesh_sizes
from simpar.planner.stages.alpa.profile import Profile, with_stages
from simpar.planner.stages.answers import StagesSearch, Value, list_axis_values, search_even_stages
from simpar.program.emission.collective_prices import Prices
from simpar.program.job import TrainingJob

TOLERANCE = 2e-3
"""Relative error allowed to the bisection of bounds, far below the error of the estimate itself."""
SLACK = 1.04
"""Estimates up to this factor above the best are simulated."""
SIMULATED_CUTS = 6
SHARES = (1.0, 0.97, 0.92)
"""Shares of the memory limit to plan for; the next one is tried if a plan for the previous one does not fit."""
MAX_GIVING_STAGES = 2
"""How many of the slowest stages may give a layer away."""
MAX_OPS = 3_000_000
"""The most ops of all Programs that a search runs; after that it ranks what it has."""
MAX_BATCH_RATIO = 16
"""The most devices per sequence, and the most sequences per device, that are tried."""
SCHEDULES = schedules_with_same_memory(default_schedule())
"""Schedules to try with a cut: all keep as many microbatches in flight as the usual one, which cuts are planned for."""


@dataclass(frozen=True)
class CutTrial:
    """A cut planned for a share of the memory, under a schedule."""

    profile: Profile
    cut: StageCut
    share: float = 1.0
    schedule: str = SCHEDULES[0]

    def plan(self) -> Plan | None:
        """The cut as a plan; None if a stage has no option that keeps its microbatches in flight."""
        count, stages = len(self.cut.stages), []
        firsts = place_stages([size for *_, size in self.cut.stages], self.profile.cluster)
        for index, (begin, end, size) in enumerate(self.cut.stages):
            follow = min(count - index, self.profile.num_microbatches)
            stage = self.profile.stage(size, (begin, end), follow, self.share)
            if stage is None:
                return None
            stages.append(stage.model_copy(update={"first_device": firsts[index]}))
        return with_stages(self.profile.job.layout.to_plan(), tuple(stages), self.schedule)

    def neighbours(self) -> Iterator[CutTrial]:
        """The same trial with a block of one of the slowest stages moved to the stage before or after it."""
        stages = self.cut.stages
        seconds = [self.profile.ranges(size, self.share)[0][:, begin, end].min() for begin, end, size in stages]
        for giver in np.argsort(seconds)[::-1][:MAX_GIVING_STAGES].tolist():
            for at, step in ((giver, 1), (giver + 1, -1)):
                if 0 < at < len(stages):
                    bounds = [begin for begin, *_ in stages] + [stages[-1][1]]
                    bounds[at] += step
                    moved = tuple((k, j, size) for (k, j), (*_, size) in zip(pairwise(bounds), stages, strict=True))
                    if all(k < j for k, j, _ in moved):
                        yield replace(self, cut=replace(self.cut, stages=moved))


@dataclass
class AlpaSearch(StagesSearch):
    """State of one search.

    ``found`` are plans that fit, with the cuts they were made from. ``bounds_s`` are lower bounds in seconds by the
    number of sequences per microbatch. Raises UserError for anything that such plans cannot have.
    """

    found: list[tuple[SimulatedPlan, CutTrial]] = field(default_factory=list)
    ranges: int = 0
    feasible: int = 0
    bounds_s: dict[int, float] = field(default_factory=dict)
    _seen: dict[str, bool] = field(default_factory=dict)
    _profiles: dict[int, Profile] = field(default_factory=dict)

    space = "alpa"
    meanings = (
        (
            "micro_batch: sequences of all devices of a stage; in the even stages that compete, as with --space "
            "uniform, those of one data-parallel rank"
        ),
    )

    def __post_init__(self) -> None:
        problem, world = self.problem, self.problem.cluster.world_size
        batch, layers = problem.training.global_batch, len(problem.graph.layers)
        sizes = [1 << n for n in range(batch.bit_length()) if batch % (1 << n) == 0]
        offered: dict[str, Sequence[Value]] = {
            "micro_batch": [size for size in sizes if size <= MAX_BATCH_RATIO * world],
            "pp": range(1, min(world, layers + 2, MAX_STAGES) + 1),
            "recompute": SIMPLE,
            "schedule": SCHEDULES,
        }
        self.values = list_axis_values(problem, self.space, offered, {"micro_batch": divisors(batch)})
        if problem.base.tuning.is_used:
            raise UserError(
                "plan.tuning: adapters and frozen layers are not searched with --space alpa; allowed: --space uniform, "
                "--space uneven"
            )
        alike = StagePlan(layers=layers, first_device=0, mesh=(world,))
        whole = with_roles(alike, problem.graph, sequence_parallel=False)
        wide = replace(self._job.layout, micro_batch=world).to_plan()
        job_of(self._small, with_stages(wide, (whole,)))

    @cached_property
    def _small(self) -> Problem:
        """The problem with one sequence per device."""
        batch = {"global_batch": self.problem.cluster.world_size}
        return replace(self.problem, training=self.problem.training.model_copy(update=batch))

    @cached_property
    def _job(self) -> TrainingJob:
        """The job of one device, with all decisions of the stack made."""
        axes: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": None, "zero": 1, "micro_batch": 1}
        return replace(job_of(self._small, self.problem.base.with_values(**axes)), training=self.problem.training)

    @cached_property
    def _prices(self) -> Prices:
        return Prices.of_job(self._job, self.problem.cluster.in_training)

    def profile(self, micro_batch: int) -> Profile:
        """Options of submeshes for microbatches of ``micro_batch`` sequences."""
        if micro_batch not in self._profiles:
            job = replace(self._job, layout=replace(self._job.layout, micro_batch=micro_batch))
            cluster, recompute = self.problem.cluster.in_training, tuple(map(str, self.values["recompute"]))
            limit_bytes = self.problem.memory_limit_bytes
            self._profiles[micro_batch] = Profile(job, cluster, self._prices, limit_bytes, recompute)
        return self._profiles[micro_batch]

    def submeshes(self, size: int) -> list[int]:
        """Devices that a stage may have with microbatches of ``size`` sequences."""
        return [
            n
            for n in submesh_sizes(self.problem.cluster)
            if n <= MAX_BATCH_RATIO * size and size <= MAX_BATCH_RATIO * n
        ]

    def bound(self) -> None:
        """Lower-bound the step of every plan, by the size of its microbatches."""
        for size in map(int, self.values["micro_batch"]):
            self.bounds_s[size] = bound_profile_step_s(self.profile(size), self.submeshes(size))
        self.open_s = min(self.bounds_s.values()) + self.problem.stack.launch.step_overhead_s

    def run(self) -> None:
        """Bound, simulate the best cuts, then move stage boundaries of the best one as long as that helps."""
        self.bound()
        for trial in self.trials():
            if trial.cut.estimate_s < self.best_s:
                self.try_shares(trial)
        if not self.found:
            return
        (_, trial), before = min(self.found, key=lambda one: one[0].step_time_s), np.inf
        while self.best_s < before:
            before = self.best_s
            for moved in trial.neighbours():
                self.simulate(moved)
                if self.best_s < before:
                    trial = moved
                    break

    def trials(self) -> list[CutTrial]:
        """Cuts of the model by their estimates, best first over all sizes of microbatches.

        Sizes are tried from a likely one in both directions, until one falls behind the best so far.
        """
        trials: list[CutTrial] = []
        sizes, likely = list(self.bounds_s), max(self.problem.cluster.world_size // MAX_BATCH_RATIO, 1)
        for direction in ([n for n in sizes if n >= likely], [n for n in sizes if n < likely][::-1]):
            for size in direction:
                if self.bounds_s[size] >= self.best_s:
                    continue
                best = min([self.best_s, *(trial.cut.estimate_s for trial in trials)])
                fresh = self.cuts_of(self.profile(size), best * SLACK)
                trials += fresh
                self.progress.report("cutting", self.counts(), None)
                if not fresh and trials:
                    break
        return sorted(trials, key=lambda trial: trial.cut.estimate_s)[:SIMULATED_CUTS]

    def cuts_of(self, profile: Profile, below_s: float, share: float = 1.0) -> list[CutTrial]:
        """For one size of microbatch: the best cut, the best of another length, the best of equal submeshes."""
        sizes = [size for size in self.submeshes(int(profile.job.layout.micro_batch)) if profile.options(size)]
        if not sizes:
            return []
        table, world = profile.times(sizes, MAX_STAGES, share), self.problem.cluster.world_size
        self.ranges += table[0].size
        self.feasible += int(np.isfinite(table[0]).sum())
        equal = [[number] for number, size in enumerate(sizes) if world % size == 0]
        result = []
        for some, wanted in ((list(range(len(sizes))), 2), *((each, 1) for each in equal)):
            mine = [sizes[number] for number in some]
            inter = InterOp(
                table[:, some], mine, world, profile.num_microbatches, profile.latency(), profile.work(mine),
                tolerance=TOLERANCE, below_s=below_s,
            )  # fmt: skip
            cuts = [cut for cut in inter.best() if len(cut.stages) in self.values["pp"]]
            result += [CutTrial(profile, cut, share) for cut in cuts[:wanted]]
        return result

    def try_shares(self, trial: CutTrial) -> None:
        """Simulate a cut under every schedule; if one does not fit, also what a little less memory gives."""
        schedules = list(map(str, self.values["schedule"]))[: None if len(trial.cut.stages) > 1 else 1]
        for share in SHARES:
            if share < 1.0:
                again = self.cuts_of(trial.profile, trial.cut.estimate_s * SLACK, share)[:1]
                if not again:
                    return
                trial = again[0]
            fits = [self.simulate(replace(trial, schedule=schedule)) for schedule in schedules]
            if all(fits):
                return

    def simulate(self, trial: CutTrial) -> bool:
        """Simulate a cut and keep it if it fits; returns whether it does."""
        plan = trial.plan()
        if plan is None:
            return False
        key = plan.model_dump_json(include={"pipeline", "micro_batch"})
        if key not in self._seen:
            if self.ops > MAX_OPS:
                return False
            try:
                done = self.measured(plan)
            except UserError:  # a schedule that this number of microbatches does not allow
                self._seen[key] = False
                return False
            self._seen[key] = done.fits
            self.found += [(done, trial)] * done.fits
        return self._seen[key]

    def ranked(self) -> list[SimulatedPlan]:
        """Plans that fit, best first."""
        return sorted((done for done, _ in self.found), key=lambda one: one.step_time_s)

    def counts(self) -> Counts:
        """Numbers of ranges on submeshes, of those with a feasible option, and of simulated plans."""
        return Counts(self.ranges, self.feasible, self.ranges, 0, self.simulated)


def search_alpa(problem: Problem, progress: SearchProgress) -> SearchResult:
    """The best plans of the Alpa space and of the uniform one, ranked by simulated steps.

    Raises Infeasible if nothing fits, and UserError for anything that stages with their own meshes do not support.
    """
    search = AlpaSearch(problem, progress)
    return search.answer(search_even_stages(problem, progress))
