"""Alternatives to the winner: layouts chosen without a search, and the Pareto front of time and memory."""

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np

from simpar.dataclass import dataclass
from simpar.errors import TooManyOps
from simpar.neighbours import flags_of
from simpar.plan.choices.tensor_parallel import tensor_degrees
from simpar.plan.mesh import AXES as MESH_AXES
from simpar.planner.answer.explanations import describe_need, explain_loser
from simpar.planner.certify.branch_and_bound import Field
from simpar.planner.certify.exact import SimulatedPlan
from simpar.planner.certify.frontier import STEP, Frontier
from simpar.planner.problem import Problem
from simpar.planner.space.jobs import fill_dp
from simpar.planner.space.portable import refusals
from simpar.planner.space.rows import fixed_values
from simpar.planner.space.table import Rows
from simpar.program.emission.emit import at_most
from simpar.report.result import Result
from simpar.units import Flags, Floats, unique

Mask = Flags
FRONT_SHARES = (0.75, 0.5, 0.25)
"""Upper limits of the points of the Pareto front, as shares of the winner's memory."""
FRONT_TRIES = 2
"""Rows simulated per memory limit until one holds no more than it; bounds only say which are tried first."""
MOST_MISFITS = 4
"""Simulated rows that turn out not to fit before the search for alternatives ends."""
FEWEST_OPS, MOST_OPS = 1_000_000, 500_000
"""Ops that a list of alternatives may simulate even if the certificate took fewer; and the most in one step."""
LEAST_OPS = 24
"""Rough number of ops of one microbatch on one stage."""
MAX_TRIES = 12
"""Tables swept to find the next row to simulate."""

TOO_LARGE = f"more than {MOST_OPS:,} ops a step"


def _mask(rows: Rows, layout: Mapping[str, tuple[int, ...]]) -> Mask:
    result = np.ones(rows.count, dtype=bool)
    for axis, values in layout.items():
        result &= rows.one_of(axis, *values)
    return result


@dataclass
class AlternativesSearch:
    """A list of alternatives to the winner, for which at most ``ops_left`` ops are simulated.

    Its rows belong to ``field``. ``near`` is the winner, a row of this field or of another one. ``why_not`` says why
    the last rows that were passed over were not simulated.
    """

    field: Field
    near: Rows
    ops_left: int = 0
    why_not: str = TOO_LARGE

    def __post_init__(self) -> None:
        self.ops_left = max(FEWEST_OPS, self.frontier.num_ops)

    @property
    def frontier(self) -> Frontier:
        """The frontier of the field."""
        assert self.field.frontier is not None, "a plan was simulated in its frontier"
        return self.field.frontier

    def find_promising(self, mask: Mask) -> Mask:
        """The few rows of a mask that are likely to have the shortest steps and are small enough to simulate."""
        rows = self.frontier.rows
        small = LEAST_OPS * rows.at("microbatches", ...) * rows.at("stages", ...) <= MOST_OPS
        return self.frontier.find_promising(mask & small, self.near)

    def simulate(self, row: int) -> SimulatedPlan | None:
        """The simulated step of a row, run now if need be; None if its Program has more ops than are left."""
        if row in self.frontier.simulated:
            return self.frontier.simulated[row]
        try:
            with at_most(min(self.ops_left, MOST_OPS)):
                result = self.frontier.simulate(row)
        except TooManyOps:
            left = f"more than the {self.ops_left:,} ops that are left of those simulated for this list"
            self.why_not = left if self.ops_left < MOST_OPS else TOO_LARGE
            return None
        self.ops_left -= result.num_ops
        return result

    def simulate_quickest(self, limit_s: Floats) -> Iterator[tuple[int, SimulatedPlan]]:
        """Rows that fit when simulated, in the order of their swept bounds, while these are below ``limit_s``.

        ``limit_s`` float64[rows] is zero for rows that are not wanted; the caller may change it between two rows.
        """
        frontier, misfits, self.why_not = self.frontier, 0, TOO_LARGE
        while misfits < MOST_MISFITS:
            row = frontier.shortest(frontier.bound_s < limit_s, tries=MAX_TRIES)
            if row is None:
                return
            if frontier.bound_s[row] >= limit_s[row]:  # its bound may have risen since
                continue
            limit_s[row] = 0.0
            if refusals(frontier.rows, row):
                self.why_not = f"{self.field.problem.target} cannot express it"
                continue
            if not frontier.may_fit(row):
                self.why_not = describe_need(float(frontier.needed_bytes[row]), self.field.problem)
                continue
            simulated = self.simulate(row)
            if simulated is not None and simulated.fits:
                yield row, simulated
                continue
            misfits += 1
            if simulated is None:
                limit_s[frontier.at_least_as_large(row)] = 0.0


def naive_choices(beside: AlternativesSearch, best: Result) -> list[dict[str, object]]:
    """What layouts that people choose without a search lose to the best plan, or why they are impossible.

    Each fixes the values of some axes; all other axes are at their best. On one device there is nothing to choose.
    """
    if beside.field.problem.cluster.world_size == 1:
        return []
    pure = {axis: (1,) for axis in MESH_AXES if axis != "dp"}
    node = (beside.field.problem.cluster.profile.devices_per_node,)
    layouts: dict[str, dict[str, tuple[int, ...]]] = {
        "pure DDP": {**pure, "zero": (0,)},
        "pure ZeRO-3": {**pure, "zero": (3,), "hsdp": (1,)},
        "TP = node": {**pure, "tp": node, "zero": (0, 1)},
    }
    return [{"name": name, **_naive(beside, layout, best)} for name, layout in layouts.items()]


def _naive(beside: AlternativesSearch, layout: Mapping[str, tuple[int, ...]], best: Result) -> dict[str, object]:
    mask = _mask(beside.frontier.rows, layout)
    if not mask.any():
        return {"loses_s": None, "why": (_impossible(beside.field, layout),)}
    tried = [one for row, one in beside.frontier.simulated.items() if mask[row]]
    fitting = [one for one in tried if one.fits]
    limit_s = np.where(beside.find_promising(mask), min((one.step_time_s for one in fitting), default=np.inf), 0.0)
    fitting += [simulated for _, simulated in islice(beside.simulate_quickest(limit_s), 1)]
    if fitting:
        result = min(fitting, key=lambda one: one.step_time_s).report()
        return {
            "step_time_s": result.step_time_s,
            "mfu": result.mfu,
            "peak_memory_bytes": result.peak_memory_bytes,
            "plan": result.setup.plan,
            "flags": _typed(beside.field.problem, result),
            "loses_s": result.step_time_s - best.step_time_s,
            "why": explain_loser(result, best),
        }
    needed = [one.needed_bytes for row, one in beside.frontier.simulated.items() if mask[row]]
    problem = beside.field.problem
    why = describe_need(min(needed), problem) if needed else f"not simulated: {beside.why_not}"
    return {"loses_s": None, "why": (why,)}


def _typed(problem: Problem, result: Result) -> str:
    """What to type on top of the problem's own flags to simulate a result's plan."""
    return flags_of(result.plan, problem.base, problem.workload, problem.stack)


def _impossible(field: Field, layout: Mapping[str, tuple[int, ...]]) -> str:
    """Why no plan has a layout: memory, or the first rule that leaves no row."""
    problem = field.problem
    chosen = _mask(field.rows, layout)
    if not chosen.any():
        return f"not in the space: {_excluded(problem, field.rows, layout)}"
    needed = float(field.need.needed_bytes[chosen].min())
    if needed > problem.memory_limit_bytes:
        return describe_need(needed, problem)
    return f"not in the space: {_together(problem, layout)}"


def _excluded(problem: Problem, rows: Rows, layout: Mapping[str, tuple[int, ...]]) -> str:
    """The rule that leaves no row with a layout, in words."""
    fixed = fixed_values(problem.constraints.fixed)
    for axis, values in layout.items():
        if axis in fixed and not set(values) & set(fixed[axis]):
            return f"--fix {axis}={','.join(map(str, fixed[axis]))}"
    replicas = problem.cluster.world_size // layout["tp"][0]
    batch = problem.training.global_batch
    if not set(layout["tp"]) & set(tensor_degrees(problem)):
        degree, devices = layout["tp"][0], problem.cluster.world_size
        return f"tp = {degree} does not divide {problem.graph.name} or the {devices} devices"
    if batch % replicas:
        return f"a batch of {batch} sequences does not divide over {replicas} replicas"
    for axis, values in layout.items():
        kept = rows.one_of(axis, *values)
        if not kept.any():
            return _no_such(problem, axis, values, unique(rows[axis]).tolist())
        rows = rows.subset(kept)
    return _together(problem, layout)


def _no_such(problem: Problem, axis: str, values: tuple[int, ...], left: list[int]) -> str:
    """Why an axis has none of some values, given those of the axes before it; ``left`` are the values it has."""
    given, others = ("|".join(map(str, each)) for each in (values, left))
    kind = problem.base.data_parallel.kind
    if axis == "zero" and kind:
        return f"plan.kind = {kind} has zero {others}, not {given}"
    if problem.target:
        return f"{problem.target} cannot express {axis} = {given}"
    return f"{axis} is {others} there, not {given}"


def _together(problem: Problem, layout: Mapping[str, tuple[int, ...]]) -> str:
    """The reason where no single axis rules out a layout, but the combination of axes does."""
    if problem.target:
        return f"{problem.target} cannot express it"
    others = [axis for axis in problem.constraints.fixed if axis not in layout]
    return f"excluded together with --fix {', '.join(others)}" if others else "excluded by the rest of the plan"


def front(beside: AlternativesSearch, winner: int) -> list[dict[str, object]]:
    """The Pareto front of step time and memory, from the winner (a row) down in memory.

    For each share of the winner's memory, the row with the lowest bound among those that may hold no more is simulated,
    and the next one if it turns out to hold more. Considered are promising rows and those with a bound of the whole
    step. Tables that depend on the durations of passes are left out, because they hold more than bounds say. Each point
    is a mapping with ``needed_bytes``, ``step_time_s`` and ``plan``.
    """
    frontier = beside.frontier
    best = frontier.simulated[winner]
    points = {winner: best}
    for share in FRONT_SHARES:
        limit = share * best.needed_bytes
        if min(one.needed_bytes for one in points.values()) > limit:
            less = frontier.needed_bytes <= limit
            few = less & (frontier.level >= STEP) & ~frontier.greedy | beside.find_promising(less)
            for row, simulated in islice(beside.simulate_quickest(np.where(few, np.inf, 0.0)), FRONT_TRIES):
                points[row] = simulated
                if simulated.needed_bytes <= limit:
                    break
    kept: list[tuple[int, SimulatedPlan]] = []
    for row, one in sorted(points.items(), key=lambda point: (point[1].step_time_s, point[1].needed_bytes)):
        if not kept or one.needed_bytes < kept[-1][1].needed_bytes:
            kept.append((row, one))
    return [
        {
            "needed_bytes": one.needed_bytes,
            "step_time_s": one.step_time_s,
            "plan": fill_dp(frontier.rows, row).model_dump(mode="json"),
        }
        for row, one in kept
    ]
