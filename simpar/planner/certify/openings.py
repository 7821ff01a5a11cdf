"""How steps open: what a simulated step says of others that differ from it in data parallelism only.

Until the first rank reaches the last backward of a stage, two such steps are the same op by op if data parallelism does
the same in both up to there. So every pass of the other step ends when it ends here, or later than that moment, and
what links have to carry behind it takes its time there as well. Where messages of stages meet on a card, no bound knows
what that costs; one simulation tells it for all rows that open alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import field
from functools import cached_property

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.choices import names_that_decide
from simpar.plan.choices.choice import BLOCKS, REPLICAS, SHAPE, TRAFFIC
from simpar.plan.schedules.actions import F
from simpar.planner.bound.action_tables import PrecedenceGraph
from simpar.planner.bound.batched_sweep import Sweeps
from simpar.planner.bound.data_parallel import Configuration
from simpar.planner.bound.steps import ROUNDING_MARGIN, StepBounds
from simpar.program.blocks.phases import COMPUTE
from simpar.program.ir.program import Program, Timing
from simpar.program.lower import Lowered
from simpar.units import NS_PER_S, Flags, Floats, Ints

PASSES = (*names_that_decide(BLOCKS), *names_that_decide(SHAPE))
OVERLAPS = ("overlap_grad_reduce", "overlap_param_gather")
LOOSE = (
    *(name for name in names_that_decide(REPLICAS) if name in names_that_decide(TRAFFIC) and name not in PASSES),
    *OVERLAPS,
)
"""Axes in which rows may differ that open alike."""


@dataclass(frozen=True)
class Opening:
    """What holds in all steps that open alike, in nanoseconds.

    ``ends_ns`` float64[actions] is when actions end at the earliest, numbered rank by rank (of the ranks of a stage,
    the earliest counts); no step takes less than ``step_ns``.
    """

    ends_ns: Floats
    step_ns: float


def opening_of(lowered: Lowered, timing: Timing) -> Opening | None:
    """How a simulated step opens. None without a pipeline, and where passes run together or sequences are cut."""
    schedule, slots = lowered.maker.schedule, lowered.slots
    table = PrecedenceGraph.of(schedule)
    if schedule.num_ranks == 1 or len(table.joined) or lowered.job.layout.slices:
        return None
    actions, closes = np.bincount(table.rank), table.boundary & (table.code != F)
    ends_ns, moment_ns, shared = _ends_ns(lowered, timing), np.iinfo(np.int64).max, np.zeros(len(lowered.program), bool)
    least_ns = np.full(len(table.code), moment_ns)
    for number, rank in enumerate(lowered.stage_of_class.tolist()):
        mine, slot = np.flatnonzero(table.rank == rank), slots.of_class(number)
        last = np.append(closes[mine], True)[np.minimum(slots.action[slot], actions[rank])]  # or the tail behind all
        ops = lowered.op_of_slot[slot]
        moment_ns = min(moment_ns, int(timing.start_ns[ops[last]].min()))
        shared[ops[~last]] = True
        least_ns[mine] = np.minimum(least_ns[mine], ends_ns[number, : len(mine)])
    left_ns = _carried_ns(lowered.program, np.flatnonzero(shared & (timing.start_ns >= moment_ns)))
    return Opening(ROUNDING_MARGIN * np.minimum(least_ns, moment_ns), ROUNDING_MARGIN * (moment_ns + left_ns))


def _ends_ns(lowered: Lowered, timing: Timing) -> Ints:
    """When the kernels of the actions of every class end, int64[classes, actions and the tail]."""
    program, slots = lowered.program, lowered.slots
    is_kernel = np.zeros(len(program), dtype=bool)
    for number in (at for at, name in enumerate(program.stream_names) if name == COMPUTE):
        is_kernel[program.streams.row(number)] = True
    here = np.flatnonzero(is_kernel[lowered.op_of_slot])
    most = int(slots.action.max()) + 1
    result = np.zeros(len(lowered.stage_of_class) * most, dtype=np.int64)
    place = slots.class_id[here].astype(np.int64) * most + slots.action[here]
    np.maximum.at(result, place, timing.finish_ns[lowered.op_of_slot[here]])
    return result.reshape(-1, most)


def _carried_ns(program: Program, ops: Ints) -> float:
    """Nanoseconds for which some ops occupy the busiest link."""
    routes, ops = program.routes, ops[program.ops.route[ops] >= 0]
    carried = np.bincount(program.ops.route[ops], weights=program.ops.work_bytes[ops], minlength=len(routes.links))
    on_link = routes.coefficient * carried[routes.links.owners()]
    load = np.bincount(routes.links.item, weights=on_link, minlength=len(routes.capacity_bytes_per_s))
    return float(NS_PER_S * (load / routes.capacity_bytes_per_s).max(initial=0.0))


def does_before(one: Configuration) -> Hashable:
    """What data parallelism does before the last backward of a stage; None where that is not compared."""
    if one.sync.by_runs or one.sync.single_process:
        return None
    early = tuple(policy for (letter, boundary), policy in one.policies.items() if letter == "F" or not boundary)
    if not any(policy.gathers or policy.reduces for policy in early):
        return early
    prices = tuple((use, id(price)) for use, price in one.prices.items())
    return early, prices, one.sizes, one.sync.job.layout.hsdp


@dataclass
class Openings:
    """How steps of rows open, as far as simulated steps have shown it: ``known`` by row."""

    bounds: StepBounds
    known: dict[int, Opening] = field(default_factory=dict)
    _before: dict[int, Hashable] = field(default_factory=dict)

    @cached_property
    def told(self) -> Flags:
        """Rows whose opening is known."""
        return np.zeros(self.bounds.pipelines.jobs.rows.count, dtype=bool)

    def ends_ns(self, rows: Ints) -> dict[int, Floats]:
        """When actions end at the earliest, by row, for those of some rows for which that is known."""
        return {row: self.known[row].ends_ns for row in rows.tolist() if row in self.known}

    def steps_ns(self, rows: Ints) -> Floats:
        """The least that steps of rows take, float64[len(rows)]; 0 where that is not known."""
        return np.array([self.known[row].step_ns if row in self.known else 0.0 for row in rows.tolist()])

    def swept_ns(self, sweeps: Sweeps, rows: Ints) -> Floats:
        """Bounds of rows by their tables and by what is known of their openings, float64[len(rows)]."""
        return np.maximum(sweeps.of(rows, self.ends_ns(rows)), self.steps_ns(rows))

    def learn(self, row: int, opening: Opening, among: Ints) -> Ints:
        """Note the opening of a simulated row for those ``among`` others that open alike, which are returned."""
        alike = np.array([each for each in self._alike(row, among) if each != row], dtype=np.int64)
        self.told[alike] = True
        self.known.update(dict.fromkeys(alike.tolist(), opening))
        return alike

    def _alike(self, row: int, among: Ints) -> Iterator[int]:
        pipelines, index = self.bounds.pipelines, self.bounds.configurations.index
        rows = pipelines.jobs.rows
        wanted = self._does_before(int(index[row]))
        among = among[pipelines.index[among] == pipelines.index[row]] if wanted else among[:0]
        for name in rows.domain:
            if name not in LOOSE:
                among = among[rows.code[name][among] == rows.code[name][row]]
        return (each for each in among.tolist() if self._does_before(int(index[each])) == wanted)

    def kind(self, row: int) -> Hashable:
        """What a row has in common with those that open alike; the row itself where that is not compared."""
        pipelines, index = self.bounds.pipelines, self.bounds.configurations.index
        before = self._does_before(int(index[row]))
        if not before:
            return row
        rows = pipelines.jobs.rows
        codes = tuple(int(rows.code[name][row]) for name in rows.domain if name not in LOOSE)
        return int(pipelines.index[row]), before, codes

    def _does_before(self, at: int) -> Hashable:
        """:func:`does_before` for a configuration, asked once."""
        if at not in self._before:
            self._before[at] = does_before(self.bounds.configurations[at])
        return self._before[at]
