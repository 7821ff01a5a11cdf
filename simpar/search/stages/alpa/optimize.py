"""The Alpa space as a search: both passes for every size of microbatch, then the best of what was simulated.

1. The optimum of even stages is the first candidate, so the answer is never worse.
2. For every number of sequences in a microbatch: a bound (``least``), options of all submeshes (``profile``), the best
   cuts (``inter_op``). A size that cannot beat what is known is left early.
3. The best cuts become plans and are simulated. Estimates order them; only simulated steps rank them.
4. Boundaries of the best move by a layer as long as the simulated step gets shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from simpar.errors import UserError
from simpar.plan.megatron_roles import with_roles
from simpar.plan.plan import Plan
from simpar.plan.stages import StagePlan
from simpar.program.blocks.rank_view import Job
from simpar.search.certify.exact import Exact, job_of, measure
from simpar.search.problem import Problem, refuse_tuning
from simpar.search.progress import Progress
from simpar.search.result import Counts, SearchResult
from simpar.search.stages.alpa.inter_op import MAX_STAGES, Cut, InterOp
from simpar.search.stages.alpa.least import lowest_step_s
from simpar.search.stages.alpa.meshes import place_stages, submesh_sizes
from simpar.search.stages.alpa.profile import Profile, with_stages
from simpar.search.stages.answers import Answer, chosen_values, even_optimum

TOLERANCE = 2e-3
"""Relative error allowed to the bisection of bounds: far below that of the estimate itself."""
SLACK = 1.04
"""Estimates up to this factor above the best are worth a simulation."""
SIMULATED_CUTS = 6
SHARES = (1.0, 0.97, 0.92)
"""Shares of the memory limit to plan for, the next where what was planned for one does not fit."""
GIVERS = 2
"""Slowest stages that may give a layer away."""
MAX_OPS = 3_000_000
"""Ops of all Programs that a search runs: after that it ranks what it has."""
WIDEST = 16
"""Most devices that share one sequence, and most sequences on one device, that are tried."""
AXES: dict[str, tuple[Any, ...]] = {
    "recompute": ("none", "selective", "full"),
    "schedule": ("1f1b", "zb-h1"),
}


@dataclass(frozen=True)
class Trial:
    """A cut planned for a share of the memory, with the devices of its stages."""

    profile: Profile
    sizes: tuple[int, ...]
    cut: Cut
    share: float = 1.0

    def plan(self, schedule: str) -> Plan | None:
        """The cut as a plan; None where a stage has no option that keeps its microbatches in flight."""
        count, stages = len(self.sizes), []
        firsts = place_stages(self.sizes, self.profile.cluster)
        for index, ((begin, end), size) in enumerate(zip(self.ends, self.sizes, strict=True)):
            follow = min(count - index, self.profile.num_microbatches)
            stage = self.profile.stage(size, (begin, end), follow, self.share)
            if stage is None:
                return None
            stages.append(stage.model_copy(update={"first_device": firsts[index]}))
        return with_stages(self.profile.job.plan, tuple(stages), schedule)

    @property
    def ends(self) -> list[tuple[int, int]]:
        """First block and block behind the last of every stage."""
        return [(begin, end) for begin, end, _ in self.cut.stages]

    def neighbours(self) -> Iterator[Trial]:
        """The same with a block of one of the slowest stages moved to the stage before or behind it."""
        seconds = [
            self.profile.ranges(size, self.share)[0][:, begin, end].min()
            for (begin, end), size in zip(self.ends, self.sizes, strict=True)
        ]
        for giver in np.argsort(seconds)[::-1][:GIVERS].tolist():
            for at, step in ((giver, 1), (giver + 1, -1)):
                bounds = [begin for begin, _ in self.ends] + [self.ends[-1][1]]
                if 0 < at < len(self.sizes):
                    bounds[at] += step
                    stages = tuple(
                        (k, j, number)
                        for k, j, (_, _, number) in zip(bounds, bounds[1:], self.cut.stages, strict=False)
                    )
                    if all(k < j for k, j, _ in stages):
                        yield replace(self, cut=replace(self.cut, stages=stages))


@dataclass
class AlpaSearch:
    """State of one search; ``known_s`` is the step of a plan from elsewhere.

    ``found`` are plans that fit, with the cut and the schedule that they were made from. ``lowest_s`` are seconds
    below which no plan with stages of its own gets, 0 until all sizes of microbatches are bounded; ``values`` those of
    every axis. Raises UserError for what no such plan can have.
    """

    problem: Problem
    progress: Progress
    known_s: float = float("inf")
    found: list[tuple[Exact, Trial, str]] = field(default_factory=list)
    lowest_s: float = 0.0
    ops: int = 0
    ranges: int = 0
    feasible: int = 0
    bounds_s: dict[int, float] = field(default_factory=dict)
    values: dict[str, tuple[Any, ...]] = field(init=False)
    _seen: dict[str, Exact | None] = field(default_factory=dict)
    _profiles: dict[int, Profile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem, world = self.problem, self.problem.cluster.world_size
        batch, layers = problem.training.global_batch, len(problem.graph.layers)
        sizes = [1 << n for n in range(batch.bit_length()) if batch % (1 << n) == 0]
        offered = {
            "micro_batch": [size for size in sizes if size <= WIDEST * world],
            "pp": range(1, min(world, layers + 2, MAX_STAGES) + 1),
            **AXES,
        }
        self.values = chosen_values(problem, "alpa", offered, {"micro_batch": lambda size: batch % size == 0})
        refuse_tuning(problem, "alpa")
        alike = StagePlan(layers=layers, first_device=0, mesh=(world,))
        whole = with_roles(alike, problem.graph, sequence_parallel=False)
        job_of(self._small, with_stages(self._job.plan.model_copy(update={"micro_batch": world}), (whole,)))

    @cached_property
    def _small(self) -> Problem:
        """The problem with one sequence a device."""
        batch = {"global_batch": self.problem.cluster.world_size}
        return replace(self.problem, training=self.problem.training.model_copy(update=batch))

    @cached_property
    def _job(self) -> Job:
        """The job of one device with every decision of the stack made."""
        layout = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp": None, "zero": 1, "micro_batch": 1}
        return replace(
            job_of(self._small, self.problem.base.with_values(**layout)), training=self.problem.training
        )

    def profile(self, micro_batch: int) -> Profile:
        """Options of submeshes for microbatches of so many sequences."""
        if micro_batch not in self._profiles:
            job = replace(self._job, plan=self._job.plan.model_copy(update={"micro_batch": micro_batch}))
            cluster, limit = self.problem.cluster.in_training, self.problem.memory_limit_bytes
            self._profiles[micro_batch] = Profile(job, cluster, limit, self.values["recompute"])
        return self._profiles[micro_batch]

    def submeshes(self, size: int) -> list[int]:
        """Devices that a stage may have with microbatches of ``size`` sequences."""
        return [n for n in submesh_sizes(self.problem.cluster) if n <= WIDEST * size and size <= WIDEST * n]

    @property
    def best_s(self) -> float:
        """The shortest step of a plan that fits."""
        return min([self.known_s, *(done.step_time_s for done, _, _ in self.found)])

    def bound(self) -> None:
        """Seconds that every plan takes at least, by the size of its microbatches."""
        for size in self.values["micro_batch"]:
            self.bounds_s[size] = lowest_step_s(self.profile(size), self.submeshes(size))
        self.lowest_s = min(self.bounds_s.values()) + self.problem.stack.launch.step_overhead_s

    def run(self) -> None:
        """Bound, simulate the best cuts, and move boundaries of the best."""
        self.bound()
        for trial in self.trials():
            if trial.cut.estimate_s < self.best_s:
                self.try_shares(trial)
        for _, trial, schedule in sorted(self.found, key=lambda one: one[0].step_time_s)[:1]:
            self.polish(trial, schedule)

    def trials(self) -> list[Trial]:
        """Cuts of the model by their estimates, best first over all sizes of microbatches.

        From a likely size in either direction sizes are tried until one falls behind the best so far.
        """
        found: list[Trial] = []
        sizes, likely = self.values["micro_batch"], max(self.problem.cluster.world_size // WIDEST, 1)
        for direction in ([n for n in sizes if n >= likely], [n for n in sizes if n < likely][::-1]):
            for size in direction:
                if self.bounds_s.get(size, 0.0) >= self.best_s:
                    continue
                best = min([self.best_s, *(trial.cut.estimate_s for trial in found)])
                fresh = self.cuts_of(self.profile(size), self.submeshes(size), best * SLACK)
                found += fresh
                self.progress.report("cutting", self.counts(), None)
                if not fresh and found:
                    break
        return sorted(found, key=lambda trial: trial.cut.estimate_s)[:SIMULATED_CUTS]

    def cuts_of(self, profile: Profile, sizes: list[int], below_s: float, share: float = 1.0) -> list[Trial]:
        """The best cut for one size of microbatch, the best with another number of stages, and of equal submeshes."""
        sizes = [size for size in sizes if profile.options(size)]
        if not sizes:
            return []
        table = profile.times(sizes, MAX_STAGES, share)
        self.ranges += table[0].size
        self.feasible += int(np.isfinite(table[0]).sum())
        world = self.problem.cluster.world_size
        which = [list(range(len(sizes))), *([n] for n, size in enumerate(sizes) if world % size == 0)]
        found = []
        for some, wanted in zip(which, (2, *(1 for _ in which)), strict=False):
            mine = [sizes[number] for number in some]
            inter = InterOp(
                table[:, some], mine, world, profile.num_microbatches, profile.latency(), profile.work(mine),
                tolerance=TOLERANCE,
            )  # fmt: skip
            cuts = [cut for cut in inter.best(below_s=below_s) if len(cut.stages) in self.values["pp"]]
            found += [
                Trial(profile, tuple(mine[number] for _, _, number in cut.stages), cut, share)
                for cut in cuts[:wanted]
            ]
        return found

    def try_shares(self, trial: Trial) -> None:
        """Simulate a cut under every schedule; where one does not fit, what a little less memory gives, too."""
        schedules = self.values["schedule"] if len(trial.sizes) > 1 else self.values["schedule"][:1]
        for share in SHARES:
            if share < 1.0:
                sizes, below_s = self.submeshes(trial.profile.job.plan.micro_batch), trial.cut.estimate_s
                again = self.cuts_of(trial.profile, sizes, below_s * SLACK, share)[:1]
                if not again:
                    return
                trial = again[0]
            fits = [self.simulate(trial, schedule) for schedule in schedules]
            if all(fits):
                return

    def simulate(self, trial: Trial, schedule: str) -> bool:
        """Run the step of a cut, and keep it where it fits; whether that is so."""
        plan = trial.plan(schedule)
        if plan is None:
            return False
        key = plan.model_dump_json(include={"pipeline", "micro_batch"})
        if key not in self._seen:
            if self.ops > MAX_OPS:
                return False
            try:
                done = measure(self.problem, plan, self.ops)
            except UserError:  # a schedule that this number of microbatches does not allow
                self._seen[key] = None
                return False
            self.ops = done.num_ops
            self._seen[key] = done if done.fits else None
            self.found += [(done, trial, schedule)] * done.fits
            best = self.best_s
            self.progress.report("simulating", self.counts(), best if np.isfinite(best) else None)
        return self._seen[key] is not None

    def polish(self, trial: Trial, schedule: str) -> None:
        """Move boundaries by a block as long as the simulated step gets shorter."""
        improved = True
        while improved:
            improved, before = False, self.best_s
            for moved in trial.neighbours():
                self.simulate(moved, schedule)
                if self.best_s < before:
                    trial, improved = moved, True
                    break

    def counts(self) -> Counts:
        """Ranges on submeshes, those with a feasible option, simulated plans."""
        return Counts(self.ranges, self.feasible, self.ranges, 0, len(self._seen))


def search_alpa(problem: Problem, progress: Progress) -> SearchResult:
    """The best plans of the Alpa space and of the uniform one, ranked by simulated steps.

    Raises Infeasible where nothing fits, and UserError for what stages of their own do not have.
    """
    search = AlpaSearch(problem, progress)
    answer = Answer(problem, progress, "alpa", even_optimum(problem, progress))
    search.known_s = answer.even_s
    with progress.stoppable():
        if not progress.interrupted:
            search.run()
    ranked = sorted(search.found, key=lambda one: one[0].step_time_s)
    plans = [done.plan for done, _, _ in ranked[: progress.top]]
    return answer.of(plans, search.lowest_s, search.counts())
