"""Times of passes through blocks: bulk sums of kernels first, the very segments of the Program where they matter.

Many rows share their kernels: what a rank computes depends on its shares of the tensors, not on the pipeline or on
data parallelism. A *key* is one combination of the axes that decide it; a *kind* is a block and how it is recomputed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.cost.operators import OperatorTime, operator_times
from simpar.cost.optimizers import RULES, Matrix, inner_matrices, products_time_s
from simpar.models.graph import Block, Dims, evaluate
from simpar.models.recompute import OPTIMAL
from simpar.plan.grid import grid_of
from simpar.plan.plan import Numerics
from simpar.plan.schedules import make_schedule
from simpar.plan.sharding import RankDims
from simpar.program.blocks.phases import BLOCK_STREAMS, COMPUTE, CollectiveUse, Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import make_segment
from simpar.program.blocks.steps import BlockSteps, block_steps
from simpar.program.emission.collective_prices import Price, Prices
from simpar.program.emission.traffic import group_kinds, late_per_member_s
from simpar.program.resolve.checkpointing import module_policies
from simpar.program.structure.stages import PASSES
from simpar.program.structure.synchronisation import DENSE, EXPERTS, Synchronisation
from simpar.search.space.axes import fully_sharded
from simpar.search.space.jobs import Jobs
from simpar.units import DTYPE_BYTES, NS_PER_S, to_ns

if TYPE_CHECKING:
    from simpar.search.bound.shapes import Shape

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
ONE_STAGE = make_schedule("1f1b", 1, 1)
Signature = tuple[tuple[str, tuple[int, ...], bool], ...]
KEY_AXES = (
    "tp", "cp", "ep", "micro_batch", "sequence_parallel", "tp_overlap", "precision", "tp_method", "tp_depth",
    "cp_method", "cp_balance", "ulysses", "etp", "capacity_factor", "ep_overlap", "token_dispatch",
    "recompute_early",
)  # fmt: skip
LETTERS = tuple(PASSES)
AGAIN = "again"
CARRIERS = tuple(stream for stream in BLOCK_STREAMS if stream != COMPUTE)


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
    wires: Prices
    key: Ints
    row: Ints
    _phases: dict[int, dict[tuple[str, int], Phase]] = field(default_factory=dict)
    _prices: dict[int, dict[CollectiveUse, int]] = field(default_factory=dict)
    _groups: dict[tuple[object, ...], Mapping[str, Ints]] = field(default_factory=dict)
    _made: dict[tuple[int, int], BlockSteps] = field(default_factory=dict)
    _known: dict[str, Ints] = field(default_factory=dict)
    _lanes: dict[tuple[int, int, str], Lane] = field(default_factory=dict)
    _drains: dict[tuple[int, str], Floats] = field(default_factory=dict)

    @staticmethod
    def of(jobs: Jobs, wires: Prices) -> BlockCosts:
        """Keys of all rows."""
        rows = jobs.rows
        code = rows.number(KEY_AXES, fully_sharded(rows), 2)  # gradients accumulate in place without it
        _, row, key = np.unique(code, return_index=True, return_inverse=True)
        return BlockCosts(jobs, wires, key, row)

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
        late = late_per_member_s(self.wires.cluster, job.plan.mesh)
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
    def _times(self) -> dict[str, list[list[OperatorTime]]]:
        """Kernel times of every block for every key, evaluated in bulk."""
        found: dict[str, list[list[OperatorTime]]] = {}
        blocks = {kind.block.name: kind.block for kind in self.kinds}
        for name, block in blocks.items():
            found[name] = [[] for _ in self.views]
            for members in self._alike():
                times = self._bulk(block, members)
                for at, key in enumerate(members):
                    found[name][key] = [_one(time, at) for time in times]
        return found

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
        for at, kind in enumerate(self.kinds):
            for key, times in enumerate(self._times[kind.block.name]):
                if grid_of(self.views[key].job.plan) is not None:  # products in panels
                    for letter in LETTERS:
                        found[letter][key, at] = self._kernels_of(self.phase(key, at, letter))
                    continue
                forward, inputs, weights = (
                    sum(float(getattr(time, part)) for time in times)
                    for part in ("forward_s", "backward_input_s", "backward_weight_s")
                )
                apart = self.views[key].job.plan.memory.recompute_early
                again = forward if kind.recompute == "full" and not apart else 0.0
                if kind.block.still:
                    again = inputs = weights = 0.0
                for letter, seconds in (
                    ("F", forward), ("B", again + inputs + weights), ("I", again + inputs), ("W", weights)
                ):  # fmt: skip
                    found[letter][key, at] = max(0, int(to_ns(slow * seconds)) - 3 * len(times))
        return found

    def again_ns(self, keys: Ints, shape: Shape) -> Floats:
        """Times of what is run once more ahead of the backward, float64[len(keys), kinds], of the kinds of a shape."""
        early = np.array([view.job.plan.memory.recompute_early for view in self.views])[keys]
        found = np.zeros((len(keys), len(self.kinds)))
        found[early] = self.plain_ns(keys[early], (AGAIN,), shape.kinds)[AGAIN]
        return found

    def _kernels_of(self, phase: Phase) -> int:
        """Nanoseconds of the kernels of a phase, a little less than they are."""
        slow = self.jobs.problem.stack.launch.kernel_overhead
        seconds = sum(step.duration_s for step in phase.steps if step.collective is None)
        return max(0, int(to_ns(slow * seconds)) - len(phase.steps))

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
                    table[key, at] = _products_s(inner_matrices([kind.block], view.tensor), numerics, view)
            found[name] = table
        return found

    def phase(self, key: int, kind: int, letter: str) -> Phase:
        """The steps of a pass, as the Program has them."""
        if key not in self._phases:
            self._phases[key] = {}
        table = self._phases[key]
        if (letter, kind) not in table:
            table[letter, kind] = getattr(
                self._steps(key, kind), "again" if letter == AGAIN else PASSES[letter]
            )
        return table[letter, kind]

    def _steps(self, key: int, kind: int) -> BlockSteps:
        if (key, kind) not in self._made:
            known = {name: times[key] for name, times in self._times.items()}
            base = self.views[key]
            view = _TimedView(**{f.name: getattr(base, f.name) for f in fields(base)}, known=known)
            one = self.kinds[kind]
            self._made[key, kind] = block_steps(one.block, view, recompute=one.recompute)
        return self._made[key, kind]

    def price(self, key: int, use: CollectiveUse) -> int:
        """Nanoseconds of a collective inside a block, on the group of rank 0."""
        known = self._prices.setdefault(key, {})
        if use not in known:
            known[use] = int(self.wire(key, use).time_ns(use.size_bytes, use.count))
        return known[use]

    def wire(self, key: int, use: CollectiveUse) -> Price:
        """The wire of a collective inside a block, on the group of rank 0."""
        return self.wires.of(use.op, self._group(key, use.group), use.group)

    def drains_s(self, keys: Ints, letter: str) -> Floats:
        """Seconds that collectives inside passes take of each link of rank 0, float64[len(keys), kinds, links]."""
        unique, where = np.unique(keys, return_inverse=True)
        return np.stack([self._drained(key, letter) for key in unique.tolist()])[where]

    def _drained(self, key: int, letter: str) -> Floats:
        if (key, letter) not in self._drains:
            found = np.zeros((len(self.kinds), len(self.wires.own)))
            for kind in range(len(self.kinds)):
                for step in self.phase(key, kind, letter).steps:
                    if (use := step.collective) is not None:
                        size = use.size_bytes * use.count
                        found[kind] += size * self.wire(key, use).slopes_s(self.wires.own)
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

    def alone_ns(self, keys: Ints, shape: Shape) -> list[dict[str, Ints]]:
        """Times of passes of a shape with nothing beside them, each of which bounds a step.

        Where passes run together only what one stream carries of both adds up: one table a stream.
        """
        if not shape.pairs:
            return [self.plain_ns(keys, shape.letters, shape.kinds)]
        unique, where = np.unique(keys, return_inverse=True)
        carried: dict[str, Ints] = {}
        for letter in shape.letters:
            carried[letter] = np.zeros((len(unique), len(self.kinds), len(CARRIERS)), dtype=np.int64)
            for at, key in enumerate(unique.tolist()):
                for kind in shape.kinds:
                    carried[letter][at, kind] = self._carried(key, kind, letter)
        kernels = {letter: self.kernels_ns[letter][keys] for letter in shape.letters}
        streams = [
            at for at in range(len(CARRIERS)) if any(table[..., at].any() for table in carried.values())
        ]
        return [kernels, *({one: table[where][..., at] for one, table in carried.items()} for at in streams)]

    def _carried(self, key: int, kind: int, letter: str) -> tuple[int, ...]:
        """Nanoseconds of a pass on every stream of CARRIERS."""
        phase = self.phase(key, kind, letter)
        found = dict.fromkeys(CARRIERS, 0)
        for step in phase.steps:
            if step.collective is not None:
                found[step.stream] += self.price(key, step.collective)
        return tuple(found.values())

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
            for key in np.unique(keys[(known[keys][:, wanted] < 0).any(axis=1)]).tolist():
                for kind in wanted:
                    known[key, kind] = self._plain(key, kind, letter)
            found[letter] = np.maximum(known[keys], 0)
        return found

    def _plain(self, key: int, kind: int, letter: str) -> int:
        slow = self.jobs.problem.stack.launch.kernel_overhead
        price = partial(self.price, key)
        return make_segment(self.phase(key, kind, letter), price, slowdown=slow).duration_ns

    def slowed_ns(self, keys: Ints, letter: str, busy_ns: Floats) -> Ints:
        """Times of passes beside ``busy_ns`` of data-parallel communication each, int64[len(keys), kinds].

        As in the Program: kernels slow down for the share of their time that is covered.
        """
        excess = self.jobs.problem.stack.overlap.compute_slowdown_while_comm - 1.0
        found = self.plain_ns(keys, (letter,))[letter]
        if excess <= 0 or not busy_ns.any():
            return found
        unique, where = np.unique(keys, return_inverse=True)
        for kind in np.flatnonzero(busy_ns.any(axis=0)).tolist():
            lanes = [self._lane(int(key), kind, letter) for key in unique]
            groups: dict[Signature, list[int]] = {}
            for at, lane in enumerate(lanes):
                groups.setdefault(lane.signature, []).append(at)
            for members in groups.values():
                mine = np.flatnonzero(np.isin(where, members))
                row = np.searchsorted(members, where[mine])
                found[mine, kind] = _stretched(
                    [lanes[at] for at in members], row, excess, busy_ns[mine, kind]
                )
        return found

    def _lane(self, key: int, kind: int, letter: str) -> Lane:
        known = key, kind, letter
        if known not in self._lanes:
            phase = self.phase(key, kind, letter)
            self._lanes[known] = Lane(
                signature=tuple((step.stream, step.after, step.collective is None) for step in phase.steps),
                seconds=np.array([step.duration_s for step in phase.steps])
                * self.jobs.problem.stack.launch.kernel_overhead,
                collective_ns=np.array(
                    [
                        0 if step.collective is None else self.price(key, step.collective)
                        for step in phase.steps
                    ],
                    dtype=np.int64,
                ),
                compute_ns=float(to_ns(sum(step.duration_s for step in phase.steps))),
                issue_ns=int(to_ns(phase.issue_s)),
            )
        return self._lanes[known]


@dataclass(frozen=True)
class Lane:
    """A phase as numbers: its structure, seconds of every kernel and nanoseconds of every collective."""

    signature: Signature
    seconds: Floats
    collective_ns: Ints
    compute_ns: float
    issue_ns: int


def _stretched(lanes: Sequence[Lane], row: Ints, excess: float, busy_ns: Floats) -> Ints:
    """Durations of lanes of one structure, int64[len(row)], by the rule of :mod:`simpar.program.blocks.segments`."""
    compute = np.array([lane.compute_ns for lane in lanes])[row]
    share = np.minimum(1.0, busy_ns / np.where(compute > 0, compute, np.inf))
    slow = NS_PER_S * (1.0 + excess * share)
    seconds, prices = (
        np.array([getattr(lane, name) for lane in lanes]) for name in ("seconds", "collective_ns")
    )
    free: dict[str, Ints] = {}
    finishes: list[Ints] = []
    none = np.zeros(len(row), dtype=np.int64)
    for step, (stream, after, is_kernel) in enumerate(lanes[0].signature):
        begin = reduce(np.maximum, (finishes[i] for i in after), free.get(stream, none))
        took = np.rint(seconds[row, step] * slow).astype(np.int64) if is_kernel else prices[row, step]
        finishes.append(begin + took)
        free[stream] = finishes[-1]
    issue = np.array([lane.issue_ns for lane in lanes])[row]
    return np.asarray(np.maximum(reduce(np.maximum, finishes, none), issue))


def _products_s(matrices: Sequence[Matrix], numerics: Numerics, view: RankView) -> Floats:
    """Seconds of the matrices of one block, float64[2, 2]: rows dense and experts, columns all and the dearest."""
    found = np.zeros((2, 2))
    for matrix in matrices:
        one = products_time_s([replace(matrix, count=1)], (1, 1), numerics, view.job.kernels)
        row = found[int(matrix.expert)]
        row[:] = row[0] + one * float(matrix.count), max(row[1], one)
    return found


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
