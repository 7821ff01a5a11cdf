"""The best placement, layouts and synchrony of a step on a number of nodes, with a certificate.

The space is written out: every division of the nodes into a training and a rollout pool (or one pool for both), every
layout of replicas, every synchrony within the bound on staleness, and for every size of the training pool the best
layouts of an update that a search of its own has found. All of it is bounded, and simulated in the order of bounds
until no bound is below the best.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from simpar import formats
from simpar.calls import refuses_unknown_keywords
from simpar.dataclass import dataclass
from simpar.errors import Infeasible, Undecided, UserError
from simpar.files import choose
from simpar.hardware.cluster import Cluster, make_cluster
from simpar.hardware.price import price_of
from simpar.inputs import as_cluster, as_model, as_plan, as_training
from simpar.plan.choices.mesh import PIPELINE
from simpar.plan.plan import Plan
from simpar.plan.post_training import Placement, PostTraining, Rollout, RolloutEngine, Synchrony
from simpar.planner.api import search
from simpar.planner.problem import Constraints
from simpar.planner.progress import SearchProgress
from simpar.planner.space.jobs import without_axes
from simpar.posttraining.answer import PostTrainingResult
from simpar.posttraining.bounds import step_bound_s
from simpar.posttraining.engine import ServingEngine
from simpar.posttraining.memory import why_unfit
from simpar.posttraining.simulate import PostTrainingSetting, as_section, check_section, simulate_setting
from simpar.posttraining.trained import TrainingSide
from simpar.posttraining.training_layouts import TrainingLayouts
from simpar.precisions import PRECISIONS
from simpar.units import HOUR_S, number_of

if TYPE_CHECKING:
    from simpar.architectures.graph import ModelGraph
    from simpar.architectures.training import Training
    from simpar.stacks.stack import Stack

Objective = Literal["time", "cost"]
OBJECTIVES = ("time", "cost")
SOON_S = 0.01
EVERY_SIZE = 8
"""Up to so many nodes every division is tried; of more, multiples of an eighth."""


@dataclass(frozen=True)
class ReplicaChoice:
    """How a replica is laid out and what it computes in; ``cache_dtype`` None is that of bf16."""

    tp: int
    stages: int
    ep: int
    precision: str
    cache_dtype: str | None

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.stages * max(self.tp, self.ep)

    def fields(self, engine: RolloutEngine) -> dict[str, Any]:
        """The fields of a rollout with this choice, its engine otherwise as it was."""
        other = engine.model_copy(update={"cache_dtype": self.cache_dtype})
        return {"tp": self.tp, PIPELINE: self.stages, "ep": self.ep, "precision": self.precision, "engine": other}


@dataclass(frozen=True)
class PoolChoice:
    """One point of the space: nodes of both pools, layouts and synchrony.

    ``rollout_nodes`` only generate; ``rank`` numbers the training layouts of a size.
    """

    placement: Placement
    training_nodes: int
    rollout_nodes: int
    rank: int
    replica: ReplicaChoice
    synchrony: Synchrony

    @property
    def nodes(self) -> int:
        """Nodes of both pools."""
        return self.training_nodes + self.rollout_nodes

    def section(self, asked: PostTraining) -> PostTraining:
        """The section with this choice."""
        changed = self.replica.fields(asked.rollout.engine)
        rollout = asked.rollout.model_copy(update={"nodes": self.rollout_nodes or None, **changed})
        return asked.model_copy(
            update={"placement": self.placement, "rollout": rollout, "synchrony": self.synchrony}
        )  # fmt: skip


@dataclass(frozen=True)
class PoolCandidate:
    """A point that was simulated, with its training layout and answer."""

    choice: PoolChoice
    plan: Plan
    result: PostTrainingResult
    objective: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        figures, choice = self.result.figures, self.choice
        return {
            "objective": self.objective,
            "step_time_s": figures.speed.step_time_s,
            "samples_per_s": figures.speed.samples_per_s,
            "cost_usd_per_step": figures.speed.cost_usd_per_step,
            "placement": choice.placement,
            "training_nodes": choice.training_nodes,
            "rollout_nodes": choice.rollout_nodes,
            "rollout": {
                "tp": choice.replica.tp,
                PIPELINE: choice.replica.stages,
                "ep": choice.replica.ep,
                "precision": choice.replica.precision,
                "cache_dtype": choice.replica.cache_dtype or "bf16",
                "replicas": figures.generation.replicas,
            },
            "synchrony": choice.synchrony.model_dump(),
            "staleness_mean": figures.staleness.mean,
            "plan": self.plan.model_dump(mode="json"),
            "why": list(figures.limits),
        }


@dataclass(frozen=True)
class PostTrainingSearch:
    """Candidates, best first, and the certificate.

    ``counts`` are points of the space: all, those that cannot run (by reason in ``refused``), those bounded alone (if
    ``is_certified``, at no less than the best), those simulated. ``gap`` is the share of the objective by which a point
    that was not simulated might be better; 0 if ``is_certified``, 1 if nothing bounds it: points were left out when the
    time was up, or the search for the training layouts of a size of the pool ended before its proof (``layouts``, one
    for every size).
    """

    candidates: tuple[PoolCandidate, ...]
    objective: str
    counts: Mapping[str, int]
    refused: Mapping[str, int] = field(default_factory=dict)
    gap: float = 0.0
    staleness: int = 0
    layouts: tuple[TrainingLayouts, ...] = ()

    @property
    def best(self) -> PoolCandidate:
        """The first candidate. Raises Infeasible if there is none."""
        if not self.candidates:
            reasons = "; ".join(sorted(self.refused, key=lambda one: -self.refused[one])[:1])
            without = next((one for one in reversed(self.layouts) if not one.plans), None)
            if not reasons and without and not without.is_open:
                raise Infeasible(f"no training layout on {number_of(without.nodes, 'node')}: {without.why}")
            if not reasons:
                raise Infeasible("the search ended before a point of the space was simulated")
            raise Infeasible(f"no placement and layout of the space runs: {reasons}")
        return self.candidates[0]

    @property
    def is_certified(self) -> bool:
        """Whether no point of the space is better than the best, as predicted."""
        return self.gap == 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            formats.POST_TRAINING_SEARCH.key: formats.POST_TRAINING_SEARCH.version,
            "objective": self.objective,
            "staleness": self.staleness,
            "certified": self.is_certified,
            "gap": self.gap,
            "counts": dict(self.counts),
            "refused": dict(self.refused),
            "training_layouts": [one.to_dict() for one in self.layouts],
            "candidates": [one.to_dict() for one in self.candidates],
        }


@refuses_unknown_keywords
def search_post_training(
    model: ModelGraph | str | Path,
    cluster: Cluster | str | Path,
    plan: Plan | Mapping[str, Any] | str | Path,
    training: Training | Mapping[str, Any],
    post_training: PostTraining | Mapping[str, Any],
    *,
    stack: Stack | str | None = None,
    staleness: int = 1,
    objective: str = "time",
    constraints: Constraints | Mapping[str, Any] | None = None,
    layouts: int = 2,
    precisions: Sequence[str] = (),
    cache_dtypes: Sequence[str] = (),
    time_limit_s: float | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> PostTrainingSearch:
    """The best placement, layouts and synchrony for a step on at most the nodes of a cluster.

    ``plan`` gives what is no axis of the training side's search, as in :func:`simpar.search`, which ``constraints``
    are for; its best ``layouts`` of every size of the pool are points of the space. Responses are at most ``staleness``
    updates old. Replicas compute in one of ``precisions`` and keep keys and values in one of ``cache_dtypes`` ("bf16",
    "fp8"); without these, in the section's. ``objective`` is "time" (the shortest step) or "cost" (the fewest dollars a
    step). After ``time_limit_s`` seconds the answer is the best so far with its gap. Raises UserError for bad input,
    Infeasible if nothing runs.

    >>> lengths = {"prompt": {"fixed": 128}, "response": {"fixed": 200}}
    >>> section = {"prompts": 8, "samples": 4, "lengths": lengths, "steps": 1}
    >>> training, held = {"seq_len": 2048, "global_batch": 32}, {"tp": 1, "cp": 1, "micro_batch": 1, "zero": 3}
    >>> asked = {"stack": "torchtitan", "constraints": held, "layouts": 1, "staleness": 0}
    >>> answer = search_post_training("qwen2.5-0.5b", "dgx-h100", {}, training, section, **asked)
    >>> answer.is_certified, answer.best.choice.replica.tp
    (True, 1)
    """
    cluster, plan, training = as_cluster(cluster), as_plan(plan), as_training(training)
    section = as_section(post_training)
    choose(objective, OBJECTIVES, "objective")
    if not 0 <= staleness <= 64 or layouts < 1:
        raise UserError(f"staleness = {staleness}, layouts = {layouts}: allowed: 0 to 64, and 1 or more")
    if section.rollout.hardware is not None:
        raise UserError("post_training.rollout.hardware: pools of different hardware are not searched; allowed: none")
    if objective == "cost" and price_of(cluster) is None:
        raise UserError(f"--objective cost: hardware {cluster.profile.name} has no price; allowed: with "
                        "--price-per-gpu-hour")  # fmt: skip
    check_section(cluster, plan, training, section)
    graph = as_model(model, training.seq_len)
    rollout = section.rollout
    narrow = tuple(_chosen(name, PRECISIONS, "precisions") for name in dict.fromkeys(precisions or [rollout.precision]))
    kept = tuple(_chosen(name, ("bf16", "fp8"), "cache_dtypes") for name in dict.fromkeys(cache_dtypes))
    dtypes: tuple[str | None, ...] = kept or (rollout.engine.cache_dtype,)
    wanted = _Wanted(stack, Constraints.of(constraints), staleness, layouts, tuple(product(narrow, dtypes)))
    space = _Space(graph, cluster, without_axes(plan), training, section, wanted)
    return _BoundedSearch(space, objective, SearchProgress(time_limit_s=time_limit_s), report).answer()


def _chosen(name: str, known: Collection[str], what: str) -> str:
    choose(name, known, what)
    return name


@dataclass(frozen=True)
class _Wanted:
    """What is asked for beside the step: the training side's search, the bound on staleness.

    ``served_in`` are (precision, dtype of keys and values) of replicas.
    """

    stack: Stack | str | None
    constraints: Constraints
    staleness: int
    layouts: int
    served_in: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class _Space:
    """All points, and both sides of each; sides that several points share are made once."""

    graph: ModelGraph
    cluster: Cluster
    plan: Plan
    training: Training
    section: PostTraining
    wanted: _Wanted
    _pools: dict[int, Cluster] = field(init=False, default_factory=dict)
    _sides: dict[tuple[int, int], TrainingSide] = field(init=False, default_factory=dict)
    _engines: dict[tuple[int, ReplicaChoice], ServingEngine] = field(init=False, default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Numbers of nodes that a pool may have."""
        nodes = self.cluster.nodes
        return [size for size in range(1, nodes + 1) if nodes <= EVERY_SIZE or size % (nodes // EVERY_SIZE) == 0]

    def pool(self, nodes: int) -> Cluster:
        """A pool of so many nodes."""
        if nodes not in self._pools:
            whole = self.cluster
            self._pools[nodes] = whole if nodes == whole.nodes else make_cluster(whole.profile, nodes)
        return self._pools[nodes]

    def replicas(self, nodes: int) -> Iterator[ReplicaChoice]:
        """Replicas that fit on a pool: powers of two within a node, of stages, and of experts' devices."""
        world = self.pool(nodes).world_size
        widths = list(_doubled(1, self.cluster.profile.devices_per_node))
        depths = list(_doubled(1, min(world, len(self.graph.layers))))
        for tp, stages in product(widths, depths):
            spread = (
                _doubled(max(2, tp), min(world, int(self.graph.dims["num_experts"]))) if self.graph.is_mixture else ()
            )
            for ep, served_in in product((1, *spread), self.wanted.served_in):
                one = ReplicaChoice(tp, stages, ep, *served_in)
                if one.devices <= world:
                    yield one

    def synchronies(self, *, split: bool) -> Iterator[Synchrony]:
        """Synchrony within the bound on staleness; colocated pools off policy interrupt sequences."""
        again = self.section.synchrony.recompute_cache
        yield Synchrony(steps_off=0, recompute_cache=again)
        for steps_off in range(1, self.wanted.staleness + 1):
            for in_flight in (False, True) if split else (True,):
                yield Synchrony(steps_off=steps_off, in_flight=in_flight, recompute_cache=again)

    def choices(self, plans: Mapping[int, Sequence[Plan]]) -> Iterator[PoolChoice]:
        """All points, for the training layouts of every size."""
        for size in self.sizes:
            rests = [0, *(rest for rest in self.sizes if size + rest <= self.cluster.nodes)]
            for rest, placement in product(rests, get_args(Placement)):
                if (rest > 0) != (placement != "colocated"):
                    continue
                for replica in self.replicas(rest or size):
                    for synchrony in self.synchronies(split=placement == "split"):
                        for rank in range(len(plans[size])):
                            yield PoolChoice(placement, size, rest, rank, replica, synchrony)

    def update(self, nodes: int) -> Training:
        """The update that a training layout on a pool is searched for."""
        side = TrainingSide(self.graph, self.pool(nodes), self.plan, self.training, self.section, self.wanted.stack)
        return side.shared_rows()

    def layouts(self, nodes: int, progress: SearchProgress) -> TrainingLayouts:
        """The best layouts of an update on a pool."""
        wanted = self.wanted
        try:
            inputs = (self.graph, self.pool(nodes), self.update(nodes))
            asked: dict[str, Any] = {"base": self.plan, "constraints": wanted.constraints}
            result = search(*inputs, stack=wanted.stack, objective="time", progress=progress, **asked)
        except Infeasible as reason:
            return TrainingLayouts(nodes, is_open=isinstance(reason, Undecided), why=str(reason))
        return TrainingLayouts.of(nodes, result, wanted.layouts)

    def setting(self, choice: PoolChoice, plan: Plan) -> PostTrainingSetting:
        """Both sides of a point. Raises UserError where one cannot be laid out."""
        section = choice.section(self.section)
        cluster = self.pool(choice.training_nodes)
        pool = self.pool(choice.rollout_nodes) if choice.rollout_nodes else cluster
        at = choice.training_nodes, choice.rank
        if at not in self._sides:
            self._sides[at] = TrainingSide(self.graph, cluster, plan, self.training, self.section, self.wanted.stack)
        of = pool.nodes, choice.replica
        if of not in self._engines:
            rollout: Rollout = section.rollout
            self._engines[of] = ServingEngine.of(self.graph, pool, rollout, self.training.seq_len)
        return PostTrainingSetting(section, self._sides[at], self._engines[of], pool)


def _doubled(least: int, most: int) -> Iterator[int]:
    """A number, twice as much, and so on."""
    while least <= most:
        yield least
        least *= 2


class _BoundedSearch:
    """One search: what is known of every point so far."""

    def __init__(self, space: _Space, objective: str, progress: SearchProgress, report: Callable[[str], None]) -> None:
        self.space, self.objective, self.progress, self.report = space, objective, progress, report
        self.refused: dict[str, int] = {}
        self.is_stopped = False
        self.is_partial = False  # ended before every point was bounded: then the gap is unknown

    def tell(self, words: str) -> None:
        """Report progress; a KeyboardInterrupt in it ends the search with the best so far."""
        try:
            self.report(words)
        except KeyboardInterrupt:
            self.is_stopped = True

    def worth(self, choice: PoolChoice, step_s: float) -> float:
        """What the objective makes of a step: seconds, or dollars."""
        if self.objective == "time":
            return step_s
        price = price_of(self.space.cluster)
        assert price is not None, "checked before"
        beside = sum(devices for _, devices in self.space.section.passes.pools)
        devices = choice.nodes * self.space.cluster.profile.devices_per_node + beside
        return step_s * devices * price / HOUR_S

    def answer(self) -> PostTrainingSearch:
        """Bound all points, simulate in the order of bounds."""
        space = self.space
        layouts = {one.nodes: one for one in self._layouts()}
        plans = {size: one.plans for size, one in layouts.items()}
        bounded = sorted(self._bounded(plans), key=lambda one: one[0])
        candidates: list[PoolCandidate] = []
        best, left = np.inf, list(bounded)
        while left and left[0][0] < best and not (candidates and self._is_over()):
            self.tell(f"simulated {len(candidates)} of at most {len(bounded)}")
            bound, choice = left.pop(0)
            plan = plans[choice.training_nodes][choice.rank]
            try:
                result = simulate_setting(space.setting(choice, plan))
            except KeyboardInterrupt:
                self._stop()
                left.insert(0, (bound, choice))
                continue
            worth = self.worth(choice, result.step_time_s)
            candidates.append(PoolCandidate(choice, plan, result, worth))
            best = min(best, worth)
        unknown = self.is_partial or any(one.is_open for one in layouts.values())
        gap = 1.0 if unknown else 0.0 if not left or left[0][0] >= best else 1.0 - left[0][0] / best
        candidates.sort(key=lambda one: (one.objective, one.choice.nodes))
        refused = sum(self.refused.values())
        counts = {"space": refused + len(bounded), "refused": refused, "simulated": len(candidates)}
        counts["bounded"] = len(bounded) - len(candidates)
        answer = PostTrainingSearch(
            tuple(candidates),
            self.objective,
            counts,
            self.refused,
            gap,
            space.wanted.staleness,
            tuple(layouts.values()),
        )
        _ = answer.best
        return answer

    def _layouts(self) -> Iterator[TrainingLayouts]:
        """The training layouts of every size; the time left is shared evenly among the sizes left and what follows."""
        sizes, most = self.space.sizes, max(2, self.space.wanted.layouts)
        for at, size in enumerate(sizes):
            self.tell(f"training layouts on {size} nodes")
            if self._is_over():
                self.is_partial = True
                yield TrainingLayouts(size, is_open=True, why="stopped before they were searched for")
                continue
            left_s = self._left_s()
            share_s = None if left_s is None else left_s / (len(sizes) - at + 1)
            progress = SearchProgress(top=most, brief=True, time_limit_s=share_s)
            yield self.space.layouts(size, progress)
            self.is_stopped |= progress.is_user_stop

    def _bounded(self, plans: Mapping[int, Sequence[Plan]]) -> Iterator[tuple[float, PoolChoice]]:
        """Every point that fits, with the least that its objective can be; when the time is up, one alone.

        A first KeyboardInterrupt is as if the time were up.
        """
        is_one = False
        for choice in self.space.choices(plans):
            if is_one and self._is_over():
                self.is_partial = True
                return
            try:
                bound_s, reason = self._bound_s(choice, plans[choice.training_nodes][choice.rank])
            except KeyboardInterrupt:
                self._stop()
                self.is_partial = True
                continue
            if reason:
                self.refused[reason] = self.refused.get(reason, 0) + 1
                continue
            is_one = True
            yield self.worth(choice, bound_s), choice

    def _stop(self) -> None:
        """The search is to end with what it has. Raises KeyboardInterrupt if that was asked for before."""
        if self.is_stopped:
            raise KeyboardInterrupt
        self.is_stopped = True

    def _bound_s(self, choice: PoolChoice, plan: Plan) -> tuple[float, str]:
        """Seconds of a point's step at least, and why it cannot run; "" if it can."""
        try:
            setting = self.space.setting(choice, plan)
            _ = setting.limits
            reason = why_unfit(setting)
            return (0.0 if reason else step_bound_s(setting)), reason
        except UserError as error:
            return 0.0, str(error)

    def _left_s(self) -> float | None:
        """Seconds until the time is up; None without a limit."""
        limit = self.progress.time_limit_s
        return None if limit is None else max(limit - self.progress.seconds, SOON_S)

    def _is_over(self) -> bool:
        limit = self.progress.time_limit_s
        return self.is_stopped or (limit is not None and self.progress.seconds >= limit)
