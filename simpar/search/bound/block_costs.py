"""Times of passes through blocks: bulk sums of kernels first, the very segments of the Program where they matter.

Many rows share their kernels: what a rank computes depends on its shares of the tensors, not on the pipeline or on
data parallelism. A *key* is one combination of the axes that decide it; a *kind* is a block and how it is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.cost.operators import OperatorTime, operator_times
from simpar.cost.optimizers import RULES, inner_matrices, matrices_time_s
from simpar.models.graph import Block, Dims, evaluate
from simpar.models.recompute import OPTIMAL
from simpar.plan.grid import grid_of
from simpar.plan.schedules import make_schedule
from simpar.plan.sharding import RankDims
from simpar.program.blocks.phases import BLOCK_STREAMS, CollectiveUse, Phase, Step
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import latest, schedule, slowed_beside
from simpar.program.blocks.steps import BlockSteps, block_steps
from simpar.program.emission.collective_prices import Price, Prices
from simpar.program.emission.traffic import group_kinds, late_per_member_s
from simpar.program.resolve.checkpointing import module_policies
from simpar.program.structure.stages import PASSES
from simpar.program.structure.synchronisation import DENSE, EXPERTS, Synchronisation
from simpar.search.space.axes import fully_sharded, numbered
from simpar.search.space.jobs import Jobs
from simpar.units import DTYPE_BYTES, to_ns

if TYPE_CHECKING:
    from simpar.search.bound.shapes import Shape

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
ONE_STAGE = make_schedule("1f1b", 1, 1)
KEY_AXES = (
    "tp", "cp", "ep", "micro_batch", "sequence_parallel", "tp_overlap", "precision", "tp_method", "tp_depth",
    "cp_method", "cp_balance", "ulysses", "etp", "capacity_factor", "ep_overlap", "token_dispatch",
    "recompute_early",
)  # fmt: skip
LETTERS = tuple(PASSES)
MOST_STEPS = 512  # blocks of keys whose steps are kept
AGAIN = "again"


@dataclass(frozen=True)
class Kind:
    """A block and how it is recomputed."""

    block: Block
    recompute: str


@dataclass(frozen=True)
class _TimedView(RankView):
    """A rank's view whose kernel times are known."""

    known: Mapping[str, Sequence[OperatorTime]] = field(default_factory=dict)

    def operator_times(self, block: Block) -> list[OperatorTime]:
        return list(self.known[block.name])


@dataclass
class BlockCosts:
    """Pass times of every key and kind; ``key`` int64[rows] is the key of every row, ``row`` one row of every key."""

    jobs: Jobs
    prices: Prices
    key: Ints
    row: Ints
    _prices: dict[int, dict[CollectiveUse, int]] = field(default_factory=dict)
    _groups: dict[tuple[object, ...], Mapping[str, Ints]] = field(default_factory=dict)
    _made: dict[tuple[int, int], BlockSteps] = field(default_factory=dict)
    _known_times: dict[int, dict[str, list[OperatorTime]]] = field(default_factory=dict)
    _known: dict[str, Ints] = field(default_factory=dict)
    _lanes: dict[tuple[int, int], dict[str, Lane]] = field(default_factory=dict)
    _structures: dict[tuple[object, ...], tuple[Step, ...]] = field(default_factory=dict)
    _drains: dict[tuple[int, str], Floats] = field(default_factory=dict)

    @staticmethod
    def of(jobs: Jobs, prices: Prices) -> BlockCosts:
        """Keys of all rows."""
        rows = jobs.rows
        code = rows.number(KEY_AXES, fully_sharded(rows), 2)  # gradients accumulate in place without it
        row, key = numbered(code)
        return BlockCosts(jobs, prices, key, row)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Embedding and head, then every block of a layer under every recompute choice in use."""
        graph = self.jobs.problem.graph
        policies = self.jobs.rows.domain["recompute"]
        blocks = [graph.blocks[name] for name in dict.fromkeys(graph.layers)]
        layers = dict.fromkeys(
            Kind(block, how) for policy in policies for block in blocks for how in _choices(policy, block)
        )
        return (Kind(graph.embedding, "none"), Kind(graph.head, "none"), *layers)

    @cached_property
    def index(self) -> dict[tuple[str, str], int]:
        """Position of a kind by (block name, recompute)."""
        return {(kind.block.name, kind.recompute): at for at, kind in enumerate(self.kinds)}

    @property
    def head(self) -> int:
        """Position of the head."""
        return self.index[self.jobs.problem.graph.head.name, "none"]

    @cached_property
    def views(self) -> list[RankView]:
        """A rank's view of every key."""
        return [self._view(int(row)) for row in self.row]

    def _view(self, row: int) -> RankView:
        job = self.jobs.job(row)
        late = late_per_member_s(self.prices.cluster, job.plan.mesh)
        view = RankView.of(job, late_per_member_s=late)
        return replace(view, context_rank=0) if view.uneven_context else view

    @cached_property
    def experts(self) -> Floats:
        """Parameters of experts that are trained on one rank before data-parallel sharding, float64[keys, kinds]."""
        return np.array(
            [[float(kind.block.trained_experts(view.tensor)) for kind in self.kinds] for view in self.views]
        )

    @cached_property
    def dense(self) -> Floats:
        """All others that are trained."""
        found = [
            [float(kind.block.trained_parameters(view.tensor)) for kind in self.kinds] for view in self.views
        ]
        return np.array(found) - self.experts

    @cached_property
    def still(self) -> dict[str, Floats]:
        """Those that are not trained, by their bytes as in a Unit, by who holds copies: float64[keys, kinds]."""
        found = np.zeros((2, len(self.views), len(self.kinds)))
        for key, view in enumerate(self.views):
            width = view.compute_bytes if view.job.plan.numerics.precision == "fp32" else DTYPE_BYTES["bf16"]
            for at, kind in enumerate(self.kinds):
                found[:, key, at] = kind.block.frozen_bytes(view.tensor, width)
            found[:, key] /= width
        return {DENSE: found[0], EXPERTS: found[1]}

    @cached_property
    def projection(self) -> Floats:
        """Parameters of the output projection on one rank, float64[keys]."""
        weights = self.jobs.problem.graph.head.operator("lm_head").weights[0].size
        return np.array([float(evaluate(weights, view.tensor)) for view in self.views])

    @cached_property
    def _times(self) -> dict[str, list[tuple[list[int], list[OperatorTime]]]]:
        """Kernel times of the operators of every block, for groups of keys at once."""
        blocks = {kind.block.name: kind.block for kind in self.kinds}
        return {
            name: [(members, self._bulk(block, members)) for members in self._alike]
            for name, block in blocks.items()
        }

    def _times_of(self, key: int) -> dict[str, list[OperatorTime]]:
        """Kernel times of one key by block."""
        group = next(at for at, members in enumerate(self._alike) if key in members)
        at = self._alike[group].index(key)
        return {name: [_one(time, at) for time in groups[group][1]] for name, groups in self._times.items()}

    @cached_property
    def _alike(self) -> list[list[int]]:
        """Keys of equal precision and habits."""
        groups: dict[tuple[str, bool], list[int]] = {}
        for key, view in enumerate(self.views):
            in_place = view.job.stack.numerics.gradient_accumulation_fusion
            groups.setdefault((view.job.plan.numerics.precision, in_place), []).append(key)
        return list(groups.values())

    def _bulk(self, block: Block, members: list[int]) -> list[OperatorTime]:
        views = [self.views[key] for key in members]
        each = [view.dims.of_block(block) for view in views]
        dims = RankDims(
            tensor=_columns([one.tensor for one in each]),
            sequence=_columns([one.sequence for one in each]),
            expert=None if each[0].expert is None else _columns([one.expert or {} for one in each]),
        )
        job = views[0].job
        return operator_times(block.operators, dims, job.kernels, job.stack)

    @cached_property
    def kernels_ns(self) -> dict[str, Ints]:
        """Kernels alone by letter, int64[keys, kinds]: less than any pass takes, whatever is communicated."""
        found = {letter: np.zeros((len(self.views), len(self.kinds)), dtype=np.int64) for letter in LETTERS}
        slow = self.jobs.problem.stack.launch.kernel_overhead
        early = np.array([view.job.plan.memory.recompute_early for view in self.views])
        for at, kind in enumerate(self.kinds):
            for keys, times in self._times[kind.block.name]:
                ahead, inputs, weights = (
                    sum(np.asarray(getattr(time, part)) for time in times) + np.zeros(len(keys))
                    for part in ("forward_s", "backward_input_s", "backward_weight_s")
                )
                again = np.where(early[keys], 0.0, ahead) if kind.recompute == "full" else 0.0
                trained = 0.0 if kind.block.still else 1.0
                for letter, seconds in (
                    ("F", ahead), ("B", trained * (again + inputs + weights)), ("I", trained * (again + inputs)),
                    ("W", trained * weights),
                ):  # fmt: skip
                    found[letter][keys, at] = np.maximum(0, to_ns(slow * seconds) - 3 * len(times))
        for key in (at for at, view in enumerate(self.views) if grid_of(view.job.plan) is not None):
            for at, letter in product(range(len(self.kinds)), LETTERS):  # products in panels
                lane = self._lane(key, at, letter)
                found[letter][key, at] = max(0, int(to_ns(slow * lane.compute_s)) - len(lane.uses))
        return found

    def again_ns(self, keys: Ints, shape: Shape) -> Floats:
        """Times of what is run once more ahead of the backward, float64[len(keys), kinds], of the kinds of a shape."""
        early = np.array([view.job.plan.memory.recompute_early for view in self.views])[keys]
        found = np.zeros((len(keys), len(self.kinds)))
        found[early] = self.plain_ns(keys[early], (AGAIN,), shape.kinds)[AGAIN]
        return found

    @cached_property
    def products_s(self) -> dict[str, Floats]:
        """Seconds of matrix optimizers by optimizer, float64[keys, kinds, 2, 2].

        Of what is no expert and of experts: all matrices of a block, and the dearest of them.
        """
        found: dict[str, Floats] = {}
        for name in self.jobs.rows.domain.get("optimizer", (self.jobs.problem.base.numerics.optimizer,)):
            numerics = self.jobs.problem.base.numerics.model_copy(update={"optimizer": name})
            table = np.zeros((len(self.views), len(self.kinds), 2, 2))
            for key, view in enumerate(self.views if RULES[name].products else ()):
                for at, kind in enumerate(self.kinds):
                    matrices = inner_matrices([kind.block], view.tensor)
                    for expert in (0, 1):
                        mine = [matrix for matrix in matrices if matrix.expert == bool(expert)]
                        table[key, at, expert] = matrices_time_s(mine, numerics, view.job.kernels)
            found[name] = table
        return found

    def steps(self, key: int, kind: int) -> BlockSteps:
        """The steps of all passes over a block, as the Program has them; the last few are kept."""
        if (key, kind) not in self._made:
            base, one = self.views[key], self.kinds[kind]
            known = self._known_times.get(key) or self._times_of(key)
            self._known_times = {key: known}
            view = _TimedView(**{f.name: getattr(base, f.name) for f in fields(base)}, known=known)
            while len(self._made) >= MOST_STEPS:
                del self._made[next(iter(self._made))]
            self._made[key, kind] = block_steps(one.block, view, recompute=one.recompute)
        return self._made[key, kind]

    def _lane(self, key: int, kind: int, letter: str) -> Lane:
        """A pass over a block as numbers; those of all letters are made at once."""
        if (key, kind) not in self._lanes:
            steps = self.steps(key, kind)
            self._lanes[key, kind] = {
                one: self._numbers(key, getattr(steps, name))
                for one, name in (*PASSES.items(), (AGAIN, AGAIN))
            }
        return self._lanes[key, kind][letter]

    def _numbers(self, key: int, phase: Phase) -> Lane:
        signature = tuple((step.stream, step.after, step.collective is None) for step in phase.steps)
        return Lane(
            steps=self._structures.setdefault(signature, phase.steps),
            seconds=np.array([step.duration_s for step in phase.steps]),
            uses=tuple(step.collective for step in phase.steps),
            prices_ns=np.array(
                [self.price(key, step.collective) if step.collective else 0 for step in phase.steps],
                dtype=np.int64,
            ),
            compute_s=float(sum(step.duration_s for step in phase.steps)),
            issue_s=phase.issue_s,
        )

    def price(self, key: int, use: CollectiveUse) -> int:
        """Nanoseconds of a collective inside a block, on the group of rank 0."""
        known = self._prices.setdefault(key, {})
        if use not in known:
            known[use] = int(self.price_on_group(key, use).time_ns(use.size_bytes, use.count))
        return known[use]

    def price_on_group(self, key: int, use: CollectiveUse) -> Price:
        """The price of a collective inside a block, on the group of rank 0."""
        return self.prices.of(use.op, self._group(key, use.group), use.group)

    def drains_s(self, keys: Ints, letter: str) -> Floats:
        """Seconds that collectives inside passes take of each link of rank 0, float64[len(keys), kinds, links]."""
        unique, where = np.unique(keys, return_inverse=True)
        return np.stack([self._drained(key, letter) for key in unique.tolist()])[where]

    def _drained(self, key: int, letter: str) -> Floats:
        if (key, letter) not in self._drains:
            found = np.zeros((len(self.kinds), len(self.prices.own)))
            for kind in range(len(self.kinds)):
                for use in self._lane(key, kind, letter).uses:
                    if use is not None:
                        size = use.size_bytes * use.count
                        found[kind] += size * self.price_on_group(key, use).slopes_s(self.prices.own)
            self._drains[key, letter] = found
        return self._drains[key, letter]

    def _group(self, key: int, name: str) -> Ints:
        view = self.views[key]
        mesh, tensor = view.job.plan.mesh, view.job.plan.tensor_parallel
        grid = tensor.tp_method, tensor.tp_depth
        cached = (
            mesh.tp,
            mesh.cp,
            mesh.ep,
            mesh.etp,
            mesh.order,
            *grid,
            view.job.plan.ulysses,
            view.tensor["gathered"],
        )
        if cached not in self._groups:
            kinds = group_kinds(view, Synchronisation.of(view.job), ONE_STAGE)
            self._groups[cached] = {kind.name: kind.groups[0] for kind in kinds}
        return self._groups[cached][name]

    def alone_ns(self, keys: Ints, shape: Shape) -> dict[str, Ints]:
        """Times of passes of a shape with nothing beside them; their kernels alone where passes run together."""
        if shape.pairs:
            return {letter: self.kernels_ns[letter][keys] for letter in shape.letters}
        return self.plain_ns(keys, shape.letters, shape.kinds)

    def carried_ns(self, key: int, kind: int, letter: str) -> Ints:
        """Nanoseconds of a pass on each of BLOCK_STREAMS, int64[streams]."""
        lane, slow = self._lane(key, kind, letter), self.jobs.problem.stack.launch.kernel_overhead
        took = lane.prices_ns + to_ns(lane.seconds * slow)
        streams = [BLOCK_STREAMS.index(step.stream) for step in lane.steps]
        return np.bincount(streams, took, len(BLOCK_STREAMS)).astype(np.int64)

    def plain_ns(
        self, keys: Ints, letters: Sequence[str] = LETTERS, kinds: Sequence[int] | None = None
    ) -> dict[str, Ints]:
        """Times of passes with nothing beside them by letter, int64[len(keys), kinds].

        Those that are no ``kinds`` are zero, or known already.
        """
        wanted = list(range(len(self.kinds)) if kinds is None else kinds)
        found = {}
        for letter in letters:
            known = self._known.setdefault(
                letter, np.full((len(self.row), len(self.kinds)), -1, dtype=np.int64)
            )
            for kind in wanted:
                missing = np.unique(keys[known[keys, kind] < 0])
                known[missing, kind] = self._passes_ns(missing, kind, letter, None)
            found[letter] = np.maximum(known[keys], 0)
        return found

    def slowed_ns(self, keys: Ints, letter: str, busy_ns: Floats) -> Ints:
        """Times of passes beside ``busy_ns`` of data-parallel communication each, int64[len(keys), kinds]."""
        found = self.plain_ns(keys, (letter,))[letter]
        if self.jobs.problem.stack.overlap.compute_slowdown_while_comm > 1.0:
            for kind in np.flatnonzero(busy_ns.any(axis=0)).tolist():
                found[:, kind] = self._passes_ns(keys, kind, letter, busy_ns[:, kind])
        return found

    def _passes_ns(self, keys: Ints, kind: int, letter: str, busy_ns: Floats | None) -> Ints:
        """Times of passes over a kind of block, int64[len(keys)]; those of one structure are scheduled at once."""
        unique, where = np.unique(keys, return_inverse=True)
        lanes = [self._lane(key, kind, letter) for key in unique.tolist()]
        structure = np.unique([id(lane.steps) for lane in lanes], return_inverse=True)[1]
        stack, found = self.jobs.problem.stack, np.zeros(len(keys), dtype=np.int64)
        for number in range(structure.max(initial=-1) + 1):
            mine = np.flatnonzero(structure == number)
            rows = np.flatnonzero(structure[where] == number)
            some = [lanes[at] for at in mine]
            row = np.searchsorted(mine, where[rows])
            slow: Floats = np.full(len(rows), stack.launch.kernel_overhead)
            if busy_ns is not None:
                compute = to_ns(np.array([lane.compute_s for lane in some]))[row].astype(np.float64)
                excess = stack.overlap.compute_slowdown_while_comm - 1.0
                slow *= slowed_beside(excess, busy_ns[rows], compute)
            seconds = np.array([lane.seconds for lane in some])
            prices = np.array([lane.prices_ns for lane in some])
            durations = [
                prices[row, at] if use else to_ns(seconds[row, at] * slow)
                for at, use in enumerate(some[0].uses)
            ]
            issue = to_ns(np.array([lane.issue_s for lane in some]))[row]
            found[rows] = np.maximum(latest(schedule(some[0].steps, durations)[1], issue), issue)
        return found


@dataclass(frozen=True)
class Lane:
    """A phase as numbers: its structure (``steps`` of the first one alike), seconds of kernels and collectives.

    ``compute_s`` are seconds of all kernels, ``issue_s`` those of the host.
    """

    steps: tuple[Step, ...]
    seconds: Floats
    uses: tuple[CollectiveUse | None, ...]
    prices_ns: Ints
    compute_s: float
    issue_s: float


def _columns(dims: Sequence[Dims]) -> Dims:
    """Dims of several keys as arrays."""
    return {name: np.array([one[name] for one in dims]) for name in dims[0]}


def _choices(policy: str, block: Block) -> tuple[str, ...]:
    """What a recompute policy chooses for single layers of a block; segments take the time of their layers."""
    if policy == OPTIMAL:
        return ("none", "selective", "full", *module_policies(block))
    return ("full", "none") if policy.startswith("every:") else (policy,)


def _one(time: OperatorTime, at: int) -> OperatorTime:
    """One key's times out of arrays (what does not depend on the key is a scalar)."""
    parts = ("forward_s", "backward_input_s", "backward_weight_s", "forward_kernels", "backward_kernels")
    taken = {
        part: float(value if np.ndim(value := getattr(time, part)) == 0 else value[at]) for part in parts
    }
    return replace(time, **taken)  # type: ignore[arg-type]
