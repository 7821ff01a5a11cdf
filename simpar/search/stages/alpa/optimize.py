"""The Alpa space as a search: both passes for every size of microbatch, then the best of what was simulated.

1. The optimum of the uniform space is the first candidate, so the answer is never worse.
2. For every number of sequences in a microbatch: options of all submeshes (``profile``), the best cuts (``inter_op``).
   A size whose bound cannot beat what is known is left early.
3. The best cuts become plans and are simulated. Estimates order them; only simulated steps rank them.
4. The operators of every stage of the best plans are sharded again, with the memory that the stage really has as a hard
   limit (``intra_op``), and boundaries move by a layer as long as the simulated step gets shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simpar.engine import choose_engine
from simpar.errors import Infeasible, UserError
from simpar.models.graph import Block
from simpar.plan.plan import Plan
from simpar.plan.stages import StagePlan
from simpar.program.blocks.rank_view import Job
from simpar.program.emission.collective_prices import Added
from simpar.program.footprint import footprints
from simpar.program.ir.program import Timing
from simpar.program.lower import Lowered
from simpar.search.problem import Problem, refuse_optimal, refuse_tuning
from simpar.search.progress import Progress
from simpar.search.result import Counts, SearchResult
from simpar.search.stages.alpa.answer import Found, answer
from simpar.search.stages.alpa.build import Chain, build_graph, shardings
from simpar.search.stages.alpa.choices import Weighting
from simpar.search.stages.alpa.inter_op import MAX_STAGES, Cut, InterOp
from simpar.search.stages.alpa.intra_op import solve
from simpar.search.stages.alpa.least import slowest_stage_s
from simpar.search.stages.alpa.meshes import place_stages, submesh_sizes
from simpar.search.stages.alpa.pricing import Pricer
from simpar.search.stages.alpa.profile import Profile
from simpar.search.uniform import search_uniform
from simpar.simulation import Options, lower_job, make_job
from simpar.units import NS_PER_S

Floats = NDArray[np.float64]
TOLERANCE = 2e-3
"""Relative error allowed to the bisection of bounds: far below that of the estimate itself."""
SLACK = 1.04
"""Estimates up to this factor above the best are worth a simulation."""
SIMULATED_CUTS = 6
TIGHTER = (0.97, 0.92)
"""Shares of the memory limit to try where the estimate was too low."""
CONTENDED = 2
MAX_OPS = 3_000_000
"""Ops of all Programs that a search runs: after that it ranks what it has."""
PASS_KINDS = ("forward", "backward", "input_gradient", "weight_gradient")
WIDEST = 16
"""Most devices that share one sequence, and most sequences on one device, that are tried."""
FIXABLE = ("pp", "micro_batch", "recompute", "schedule")
SCHEDULES = ("1f1b", "zb-h1")


@dataclass(frozen=True)
class _Run:
    """One simulated step: seconds, bytes of its fullest rank as allocated and as held, the stage that works longest."""

    step_time_s: float
    peak_memory_bytes: float
    held_bytes: float
    slowest: int


@dataclass
class AlpaSearch:
    """State of one search; ``known_s`` is the step of a plan from elsewhere."""

    problem: Problem
    progress: Progress
    known_s: float = float("inf")
    found: list[Found] = field(default_factory=list)
    simulated: int = 0
    ops: int = 0
    ranges: int = 0
    feasible: int = 0
    _seen: set[str] = field(default_factory=set)

    @cached_property
    def job(self) -> Job:
        """The problem as a job with every decision of the stack made; the layout is that of one device."""
        problem = self.problem
        base = problem.base.with_values(tp=1, pp=1, cp=1, ep=1, dp=None, zero=1, micro_batch=1)
        batch = problem.training.model_copy(update={"global_batch": problem.cluster.world_size})
        job = make_job(problem.graph, problem.cluster, base, batch, problem.stack)
        return replace(job, training=problem.training)

    @cached_property
    def chain(self) -> Chain:
        """Blocks of the model in order."""
        graph = self.problem.graph
        layers = [graph.blocks[name] for name in graph.layers]
        return Chain((graph.embedding, *layers, graph.head), graph.embedding.name)

    @property
    def best_time_s(self) -> float:
        """The shortest step of a plan that fits."""
        return min([self.known_s, *(found.step_time_s for found in self.found)])

    def microbatches(self) -> tuple[list[int], list[int]]:
        """Sequences of a microbatch of a stage, powers of two: upwards and downwards from a likely one."""
        batch, world = self.problem.training.global_batch, self.problem.cluster.world_size
        fixed = self.problem.constraints.fixed.get("micro_batch")
        if fixed is not None:
            return [int(fixed)], []
        sizes = [1 << exponent for exponent in range(batch.bit_length())]
        legal = [size for size in sizes if batch % size == 0 and size <= WIDEST * world]
        likely = max(world // WIDEST, 1)
        return [size for size in legal if size >= likely], [size for size in reversed(legal) if size < likely]

    def cuts(self) -> list[tuple[Profile, list[int], Cut]]:
        """Cuts of the model that may beat what is known, best first over all sizes of microbatches.

        In either direction sizes are tried until one falls behind the best so far.
        """
        entries: list[tuple[Profile, list[int], Cut]] = []
        for direction in self.microbatches():
            for size in direction:
                profile, sizes = self.profile(size)
                best = min([self.best_time_s, *(cut.estimate_s for _, _, cut in entries)])
                fresh = self.cuts_of(profile, sizes, best * SLACK)
                entries += [(profile, sizes, cut) for cut in fresh]
                self.progress.report("cutting", self.counts(), None)
                if not fresh and entries:
                    break
        entries.sort(key=lambda entry: entry[2].estimate_s)
        least = entries[0][2].estimate_s if entries else 0.0
        return [entry for entry in entries if entry[2].estimate_s <= least * SLACK][:SIMULATED_CUTS]

    def cuts_of(self, profile: Profile, sizes: list[int], below_s: float) -> list[Cut]:
        """The best cut for one size of microbatch, the best with another number of stages, and of equal submeshes."""
        if not sizes:
            return []
        table = profile.times(sizes, MAX_STAGES)
        self.ranges += table[0].size
        self.feasible += int(np.isfinite(table[0]).sum())
        mixed = self._best_cuts(profile, table, sizes, below_s)[:2]
        world = self.problem.cluster.world_size
        for number, size in enumerate(sizes):
            if world % size == 0:
                alike = self._best_cuts(profile, table[:, number : number + 1], [size], below_s)[:1]
                stages = [tuple((k, j, number) for k, j, _ in cut.stages) for cut in alike]
                mixed += [replace(cut, stages=each) for cut, each in zip(alike, stages, strict=True)]
        return mixed

    def _best_cuts(self, profile: Profile, table: Floats, sizes: list[int], below_s: float) -> list[Cut]:
        inter = InterOp(
            table,
            sizes,
            self.problem.cluster.world_size,
            profile.num_microbatches,
            profile.latency(),
            profile.work(),
            tolerance=TOLERANCE,
        )
        wanted = self.problem.constraints.fixed.get("pp")
        found = inter.best(below_s=below_s)
        return [cut for cut in found if wanted is None or len(cut.stages) == int(wanted)]

    def profile(self, size: int) -> tuple[Profile, list[int]]:
        """Options of all submeshes for microbatches of ``size`` sequences."""
        problem = self.problem
        plan = self.job.plan.model_copy(update={"micro_batch": size})
        fixed = problem.constraints.fixed.get("recompute")
        profile = Profile(
            replace(self.job, plan=plan),
            problem.cluster.in_training,
            self.chain,
            problem.memory_limit_bytes,
            recompute=(str(fixed),) if fixed else ("none", "selective", "full"),
        )
        sizes = self.submeshes(size)
        for devices in sizes:
            profile.add(devices)
        return profile, [devices for devices in sizes if profile.options[devices]]

    def submeshes(self, size: int) -> list[int]:
        """Devices that a stage may have with microbatches of ``size`` sequences."""
        return [n for n in submesh_sizes(self.problem.cluster) if n <= WIDEST * size and size <= WIDEST * n]

    def lower_bound_s(self) -> float:
        """Seconds below which no plan with stages of its own gets, over all sizes of microbatches."""
        problem, found = self.problem, float("inf")
        for size in sorted(size for sizes in self.microbatches() for size in sizes):
            job = replace(self.job, plan=self.job.plan.model_copy(update={"micro_batch": size}))
            slowest = slowest_stage_s(job, problem.cluster.in_training, self.chain, self.submeshes(size))
            found = min(found, slowest * (problem.training.global_batch // size))
        return found + problem.stack.launch.step_overhead_s

    def plan_of(self, profile: Profile, sizes: Sequence[int], cut: Cut) -> Plan:
        """A cut as a plan."""
        devices = [sizes[number] for _, _, number in cut.stages]
        firsts = place_stages(devices, self.problem.cluster)
        stages = []
        for index, ((begin, end, number), first) in enumerate(zip(cut.stages, firsts, strict=True)):
            follow = min(len(cut.stages) - index, profile.num_microbatches)
            option = profile.option(sizes[number], (begin, end), follow)
            blocks = self.chain.blocks[begin:end]
            sharding = {block.name: option.sharding[block.name] for block in blocks}
            stages.append(
                StagePlan(
                    layers=self._layers(begin, end), first_device=first, mesh=option.mesh, sharding=sharding,
                    recompute=option.recompute,
                )
            )  # fmt: skip
        return self.with_stages(profile.job.plan, tuple(stages))

    def _layers(self, begin: int, end: int) -> int:
        """Layers among some blocks of the chain, whose ends are embedding and head."""
        return min(end, len(self.chain.blocks) - 1) - max(begin, 1)

    def with_stages(self, plan: Plan, stages: tuple[StagePlan, ...], schedule: str | None = None) -> Plan:
        """A plan with other stages, and a schedule where given."""
        fixed = schedule or self.problem.constraints.fixed.get("schedule") or "1f1b"
        pipeline = plan.pipeline.model_copy(update={"stages": stages, "layers": None, "schedule": fixed})
        mesh = plan.mesh.model_copy(update={"dp": None, "pp": len(stages)})
        return plan.model_copy(update={"pipeline": pipeline, "mesh": mesh})

    def simulate(self, plan: Plan, how: str, *, contention: bool = False) -> Found | None:
        """Run a plan's step; None where that was done, where it does not fit or its schedule cannot be.

        Without ``contention`` every collective has its links to itself: a lower bound, and a much smaller Program. Of
        many microbatches two shorter steps are run: behind its warm-up a pipeline adds the same time for each of them.
        """
        key = f"{contention} {plan.model_dump_json(include={'pipeline', 'micro_batch'})}"
        if key in self._seen or (self.ops > MAX_OPS and not contention):
            return None
        self._seen.add(key)
        self.simulated += 1
        whole = plan.num_microbatches(self.problem.training.global_batch)
        stages = len(plan.pipeline.stages or ())
        short = [stages + 2, stages + 6] if whole > stages + 6 else [whole]
        try:
            runs = [self._run(plan, count, contention=contention) for count in short]
        except UserError:
            return None  # a schedule that this number of microbatches does not allow
        self.progress.report("simulating", self.counts(), self.best_time_s)
        if max(run.held_bytes for run in runs) > self.problem.memory_limit_bytes:
            return None
        seconds = runs[0].step_time_s
        if len(runs) > 1:
            seconds += (whole - short[0]) * (runs[1].step_time_s - seconds) / (short[1] - short[0])
        return Found(seconds, runs[-1].peak_memory_bytes, plan, how, runs[-1].slowest)

    def _run(self, plan: Plan, num_microbatches: int, *, contention: bool) -> _Run:
        """A step of so many microbatches."""
        problem = self.problem
        batch = {"global_batch": num_microbatches * plan.micro_batch}
        job = make_job(
            problem.graph, problem.cluster, plan, problem.training.model_copy(update=batch), problem.stack
        )
        options: Options = {"perturbation": problem.perturbation}
        lowered = lower_job(job, problem.cluster, options, contention=contention)
        _, engine = choose_engine("auto", lowered.program)
        timing = engine(lowered.program)
        self.ops += len(lowered.program)
        held = footprints(lowered, timing, problem.cluster)
        return _Run(
            timing.makespan_ns / NS_PER_S + problem.stack.launch.step_overhead_s,
            max(each.allocated_bytes + each.overhead_bytes for each in held),
            max(each.held_bytes for each in held),
            _slowest_stage(lowered, timing),
        )

    def simulate_cut(self, profile: Profile, sizes: list[int], cut: Cut) -> Found | None:
        """Simulate a cut; where it does not quite fit, the one that a little less memory gives."""
        found, limit = self.simulate(self.plan_of(profile, sizes, cut), "cut"), profile.limit_bytes
        for share in TIGHTER if found is None else ():
            profile.limit_bytes = share * limit
            again = self._best_cuts(profile, profile.times(sizes, MAX_STAGES), sizes, cut.estimate_s * SLACK)[
                :1
            ]
            found = self.simulate(self.plan_of(profile, sizes, again[0]), "cut") if again else None
            if found is not None:
                break
        profile.limit_bytes = limit
        return found

    def staged(self) -> list[Found]:
        """Plans with stages of their own, best first."""
        return sorted(self.found, key=lambda found: found.step_time_s)

    def note(self, found: Found | None) -> Found | None:
        """Keep a plan that fits."""
        if found is not None:
            self.found.append(found)
        return found

    def counts(self) -> Counts:
        """Ranges on submeshes, those with a feasible option, simulated plans."""
        return Counts(self.ranges, self.feasible, self.ranges, 0, self.simulated)

    def polish(self, start: Found) -> Found:
        """Shard again with the stage's own memory, then move boundaries and try other schedules."""
        best = start
        for plan, how in self._variants(start.plan):
            best = self._better(best, plan, how)
        improved = True
        while improved and not self.progress.interrupted:
            improved = False
            for plan in self._neighbours(best):
                found = self._better(best, plan, "moved a boundary")
                if found is not best:
                    best, improved = found, True
                    break
        return best

    def _better(self, best: Found, plan: Plan, how: str) -> Found:
        found = self.note(self.simulate(plan, how))
        return found if found is not None and found.step_time_s < best.step_time_s else best

    def _variants(self, plan: Plan) -> Iterator[tuple[Plan, str]]:
        """The plan with its operators sharded again, and with other schedules."""
        again = self.resharded(plan)
        yield again, "sharded again"
        allowed = self.problem.constraints.schedules or SCHEDULES
        if "schedule" not in self.problem.constraints.fixed and len(plan.pipeline.stages or ()) > 1:
            for schedule in (name for name in SCHEDULES[1:] if name in allowed):
                for each in (plan, again):
                    yield self.with_stages(each, each.pipeline.stages or (), schedule), f"schedule {schedule}"

    def _neighbours(self, found: Found) -> Iterator[Plan]:
        """Plans with a layer of the slowest stage moved to the stage before or behind it."""
        stages, slowest = found.plan.pipeline.stages or (), found.slowest
        for taker in (slowest + 1, slowest - 1):
            if 0 <= taker < len(stages):
                moved = _moved(stages, slowest, taker, self.problem.graph.layers)
                if moved is not None:
                    yield self.with_stages(found.plan, moved, found.plan.pipeline.schedule)

    def resharded(self, plan: Plan) -> Plan:
        """The plan with every stage's operators sharded by the integer program under its own memory."""
        stages = plan.pipeline.stages or ()
        known: dict[tuple[object, ...], StagePlan] = {}
        changed, begin = [], 0
        for index, stage in enumerate(stages):
            blocks = self._blocks(index, begin, stages)
            begin += stage.layers
            flying = min(len(stages) - index, plan.num_microbatches(self.problem.training.global_batch))
            key = (tuple(block.name for block in blocks), stage.mesh, stage.recompute, flying)
            if key not in known:
                known[key] = self._reshard(plan, stage, blocks, flying)
            changed.append(known[key].model_copy(update={"first_device": stage.first_device}))
        return self.with_stages(plan, tuple(changed), plan.pipeline.schedule)

    def _blocks(self, index: int, begin: int, stages: Sequence[StagePlan]) -> tuple[Block, ...]:
        first = begin + 1 if index else 0
        last = begin + 1 + stages[index].layers + (index == len(stages) - 1)
        return self.chain.blocks[first:last]

    def _reshard(self, plan: Plan, stage: StagePlan, blocks: tuple[Block, ...], flying: int) -> StagePlan:
        job = replace(self.job, plan=self.job.plan.model_copy(update={"micro_batch": plan.micro_batch}))
        chain = Chain(blocks, self.chain.embedding)
        graph = build_graph(
            job, Pricer(self.problem.cluster.in_training, stage.mesh, Added.of(job.stack)), chain
        )
        profile = Profile(job, self.problem.cluster.in_training, chain, self.problem.memory_limit_bytes)
        share = plan.micro_batch / self.problem.training.global_batch
        kept, room = profile.room(stage, flying)
        try:
            assignment = solve(graph, Weighting(share, kept), memory_limit_bytes=room)
        except Infeasible:
            return stage
        return stage.model_copy(update={"sharding": shardings(graph, chain, assignment)})


def _slowest_stage(lowered: Lowered, timing: Timing) -> int:
    """The stage whose passes take longest, by the longest one of its classes of ranks."""
    kinds = np.array([label.kind in PASS_KINDS for label in lowered.program.labels])
    passes = kinds[lowered.program.ops.label]
    busy = np.bincount(
        lowered.program.ops.class_id[passes],
        weights=(timing.finish_ns - timing.start_ns)[passes],
        minlength=lowered.layout.num_classes,
    )
    return int(lowered.stage_of_class[int(np.argmax(busy))])


def _moved(
    stages: tuple[StagePlan, ...], giver: int, taker: int, layers: Sequence[str]
) -> tuple[StagePlan, ...] | None:
    """Stages with one layer moved; None where the giver would be empty or the taker does not know the block."""
    inner = 0 < giver < len(stages) - 1
    if stages[giver].layers <= int(inner):
        return None
    begin = sum(stage.layers for stage in stages[:giver])
    block = layers[begin + stages[giver].layers - 1 if taker > giver else begin]
    if block not in stages[taker].sharding:
        return None
    changed = list(stages)
    changed[giver] = stages[giver].model_copy(update={"layers": stages[giver].layers - 1})
    changed[taker] = stages[taker].model_copy(update={"layers": stages[taker].layers + 1})
    return tuple(changed)


def _uniform(problem: Problem, progress: Progress) -> SearchResult | None:
    try:
        return search_uniform(problem, progress)
    except Infeasible:
        return None


def search_alpa(
    problem: Problem,
    progress: Progress,
    uniform: Callable[[Problem, Progress], SearchResult | None] = _uniform,
) -> SearchResult:
    """The best plans of the Alpa space and of the uniform one, ranked by simulated steps.

    ``uniform`` finds the optimum to start from (None: nothing fits there). Raises Infeasible where nothing fits, and
    UserError for axes that stages of their own do not have.
    """
    _check(problem)
    started = time.perf_counter()
    brief = replace(progress, brief=True)
    start = uniform(problem, brief)
    progress.ends_with(brief)
    uniform_plans = start.candidates if start else ()
    search = AlpaSearch(
        problem, progress, min((one.step_time_s for one in uniform_plans), default=float("inf"))
    )
    promised: list[Found] = []
    with progress.stoppable():
        for profile, sizes, cut in [] if progress.interrupted else search.cuts():
            search.note(search.simulate_cut(profile, sizes, cut))
        for found in search.staged()[:1]:
            search.polish(found)
        with_contention = [
            search.simulate(found.plan, found.how, contention=True) for found in search.staged()[:CONTENDED]
        ]
        promised = [found for found in with_contention if found is not None]
    candidates, details = answer(problem, uniform_plans, promised, progress.top)
    if not candidates:
        raise Infeasible("nothing fits, neither as one layout for all stages nor with stages of their own")
    best_s = candidates[0].step_time_s
    others_s = start.best.step_time_s * (1 - start.gap) if start else float("inf")
    lowest_s = min(search.lower_bound_s(), others_s, best_s)
    details["uniform_certified"] = bool(start and start.certified_optimal)
    details |= {"lower_bound_s": lowest_s, "stopped": progress.stopped}
    gap, seconds = 1 - lowest_s / best_s, time.perf_counter() - started
    certified = gap <= 0 and not progress.interrupted
    return SearchResult(candidates, search.counts(), problem.objective, certified, gap, seconds, details)


def _check(problem: Problem) -> None:
    refuse_optimal(problem, "alpa")
    refuse_tuning(problem, "alpa")
    if problem.objective != "time":
        raise UserError(
            f"objective {problem.objective}: space alpa looks for the shortest step; allowed: time"
        )
    wrong = [axis for axis in problem.constraints.fixed if axis not in FIXABLE]
    if wrong:
        raise UserError(
            f"--fix {wrong[0]} with --space alpa: stages decide it one by one; allowed: {', '.join(FIXABLE)}"
        )
    if problem.constraints.portable:
        raise UserError(
            f"--portable {problem.constraints.portable} with --space alpa: targets have one layout for all stages; "
            f"allowed: --space uniform"
        )
