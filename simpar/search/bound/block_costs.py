"""Times of passes through blocks: the Program's own phases, walked for many keys at once.

Many rows share their kernels: what a rank computes depends on its shares of the tensors, not on the pipeline or on
data parallelism. A *key* is one combination of the axes that decide it; a *kind* is a block and how it is recomputed.
Keys that differ in sizes only (SIZES) are a batch: one walk through a block makes the phases of all of them, with
arrays of durations and of sizes of collectives. Where the walk would have to branch on such an array it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simpar.cost.optimizers import RULES, inner_matrices, matrices_time_s
from simpar.models.graph import Block, evaluate
from simpar.models.recompute import OPTIMAL
from simpar.plan import flat
from simpar.plan.grid import grid_of
from simpar.plan.mesh import Mesh
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import BLOCK_STREAMS, CollectiveUse, Phase
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import latest, schedule, slowed_beside
from simpar.program.blocks.steps import block_steps
from simpar.program.emission.collective_prices import Price, Prices
from simpar.program.emission.traffic import block_groups, late_per_member_s, send_bytes
from simpar.program.resolve.checkpointing import module_policies
from simpar.program.structure.stages import PASSES
from simpar.program.structure.synchronisation import DENSE, EXPERTS
from simpar.search.space.axes import fully_sharded, numbered
from simpar.search.space.jobs import SIZES, Jobs, column
from simpar.units import DTYPE_BYTES, Numbers, to_ns

if TYPE_CHECKING:
    from simpar.search.bound.shapes import Shape

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
KEY_AXES = (
    *SIZES, "cp", "sequence_parallel", "tp_overlap", "precision", "tp_method", "tp_depth", "cp_method", "cp_balance",
    "ulysses", "capacity_factor", "ep_overlap", "token_dispatch", "recompute_early",
)  # fmt: skip
LETTERS = tuple(PASSES)
AGAIN = "again"
_PHASES = {**PASSES, AGAIN: AGAIN}
UNCHANGED = ("F", "W")
"""Passes that are the same however a block is recomputed."""


@dataclass(frozen=True)
class Kind:
    """A block and how it is recomputed."""

    block: Block
    recompute: str


@dataclass(frozen=True)
class Passes:
    """A phase of a batch of n keys as numbers.

    ``kernels`` bool[steps] are those of its steps that are no collectives: they take ``seconds`` float64[kernels, n],
    the others ``prices_ns`` int64[collectives, n]. ``issue_ns`` int64[n] are those of the host, ``drained_s``
    float64[n, links] what the collectives take of each link of rank 0.
    """

    phase: Phase
    kernels: NDArray[np.bool_]
    seconds: Floats
    prices_ns: Ints
    issue_ns: Ints
    drained_s: Floats

    @cached_property
    def compute_s(self) -> Floats:
        """Seconds of all kernels, float64[n]."""
        return np.asarray(sum(self.seconds, np.zeros(len(self.issue_ns))))

    def spans_ns(self, which: Ints | slice, slow: float | Floats) -> Ints:
        """Nanoseconds of every step for some keys, int64[steps, which]; kernels take ``slow`` times as long."""
        found = np.empty((len(self.kernels), len(self.issue_ns[which])), dtype=np.int64)
        found[self.kernels] = to_ns(self.seconds[:, which] * slow)
        found[~self.kernels] = self.prices_ns[:, which]
        return found

    def carried_ns(self, which: Ints | slice, slow: float | Floats) -> Ints:
        """Nanoseconds that each of BLOCK_STREAMS carries of the passes of some keys, int64[streams, which]."""
        found = np.zeros((len(BLOCK_STREAMS), len(self.issue_ns[which])), dtype=np.int64)
        streams = [BLOCK_STREAMS.index(step.stream) for step in self.phase.steps]
        np.add.at(found, streams, self.spans_ns(which, slow))
        return found

    def took_ns(self, which: Ints | slice, slow: float | Floats) -> Ints:
        """Nanoseconds of the passes of some keys, int64[which], where kernels take ``slow`` times as long."""
        issue_ns = self.issue_ns[which]
        ends = schedule(self.phase.steps, list(self.spans_ns(which, slow)))[1]
        return np.asarray(np.maximum(latest(ends, issue_ns), issue_ns))


@dataclass(frozen=True)
class Batch:
    """Keys int64[n] that differ in sizes only, and what a rank of them sees; ``mesh`` int64[n] numbers their meshes."""

    keys: Ints
    view: RankView
    mesh: Ints
    prices: dict[tuple[str, str], list[tuple[Ints, Price]]] = field(default_factory=dict)
    kept: dict[tuple[int, str], Passes] = field(default_factory=dict)


@dataclass
class BlockCosts:
    """Pass times of every key and kind; ``key`` int64[rows] is the key of every row, ``row`` one row of every key."""

    jobs: Jobs
    prices: Prices
    key: Ints
    row: Ints
    _groups: dict[tuple[object, ...], Mapping[str, Ints]] = field(default_factory=dict)
    _plain: dict[str, Ints] = field(default_factory=dict)
    _drained: dict[str, Floats] = field(default_factory=dict)
    _carried: dict[str, Ints] = field(default_factory=dict)

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

    def view(self, key: int) -> RankView:
        """What a rank of one key sees."""
        return self.batch(np.array([key])).view

    @cached_property
    def _meshes(self) -> tuple[list[Mesh], Ints]:
        """Distinct meshes of the keys, and which of them every key has, int64[keys]."""
        rows = self.jobs.rows.some(self.row)
        names = "tp", "cp", "dp", "pp", "ep", "expert_tp"
        columns = np.stack([*(rows[name] for name in names), rows.code["order"]], axis=1)
        distinct, which = np.unique(columns, axis=0, return_inverse=True)
        meshes = [
            Mesh(
                **dict(zip((*names[:-1], "etp"), sizes, strict=True)),
                order=flat.axes(rows.domain["order"][order]),
            )
            for *sizes, order in distinct.tolist()
        ]
        return meshes, which.ravel()

    @cached_property
    def _batches(self) -> list[Batch]:
        """All keys, in batches that differ in sizes only: whether there are such ranks at all is no size."""
        rows = self.jobs.rows.some(self.row)
        code = rows.number([name for name in KEY_AXES if name not in SIZES], fully_sharded(rows), 2)
        grids = np.zeros(rows.count, dtype=bool)
        if "tp_method" in rows.domain:
            grids = ~rows.one_of("tp_method", "1d")  # side and depth are counts of panels
        facts = [
            code,
            *(rows[name] > 1 for name in ("tp", "ep", "expert_tp")),
            np.where(grids, rows["tp"], 0),
        ]
        _, which = np.unique(np.stack(facts, axis=1), axis=0, return_inverse=True)
        return [self.batch(np.flatnonzero(which.ravel() == number)) for number in range(int(which.max()) + 1)]

    def batch(self, keys: Ints) -> Batch:
        """Some keys that differ in sizes only."""
        (meshes, which), cluster = self._meshes, self.prices.cluster
        distinct, index = np.unique(which[keys], return_inverse=True)
        late_s = np.array([late_per_member_s(cluster, meshes[mesh]) for mesh in distinct])[index]
        view = RankView.of(self.jobs.batch(self.row[keys]), late_per_member_s=column(late_s))
        return Batch(keys, view.first, which[keys])

    def batches(self, keys: Ints) -> Iterator[tuple[Batch, Ints, Ints]]:
        """The batches that some keys are in: which of the keys, and their places in there."""
        number, place = self._place[:, keys]
        for one in np.unique(number).tolist():
            mine = np.flatnonzero(number == one)
            yield self._batches[one], mine, place[mine]

    @cached_property
    def _place(self) -> Ints:
        """Batch of every key and its place in there, int64[2, keys]."""
        found = np.zeros((2, len(self.row)), dtype=np.int64)
        for number, batch in enumerate(self._batches):
            found[:, batch.keys] = np.full(len(batch.keys), number), np.arange(len(batch.keys))
        return found

    def _of(self, value: Callable[[RankView, Kind], Numbers]) -> Floats:
        """A number of every key and kind, float64[keys, kinds]."""
        found = np.zeros((len(self.row), len(self.kinds)))
        for batch, (at, kind) in product(self._batches, enumerate(self.kinds)):
            found[batch.keys, at] = value(batch.view, kind)
        return found

    @cached_property
    def experts(self) -> Floats:
        """Parameters of experts that are trained on one rank before data-parallel sharding, float64[keys, kinds]."""
        return self._of(lambda view, kind: kind.block.trained_experts(view.tensor))

    @cached_property
    def dense(self) -> Floats:
        """All others that are trained."""
        return self._of(lambda view, kind: kind.block.trained_parameters(view.tensor)) - self.experts

    @cached_property
    def still(self) -> dict[str, Floats]:
        """Those that are not trained, by their bytes as in a Unit, by who holds copies: float64[keys, kinds]."""

        def held(view: RankView, kind: Kind, expert: bool) -> Numbers:
            width = view.compute_bytes if view.job.plan.numerics.precision == "fp32" else DTYPE_BYTES["bf16"]
            return kind.block.frozen_bytes(view.tensor, width)[expert] / width

        return {
            DENSE: self._of(lambda view, kind: held(view, kind, False)),
            EXPERTS: self._of(lambda view, kind: held(view, kind, True)),
        }

    @cached_property
    def projection(self) -> Floats:
        """Parameters of the output projection on one rank, float64[keys]."""
        weights = self.jobs.problem.graph.head.operator("lm_head").weights[0].size
        return self._of(lambda view, _: evaluate(weights, view.tensor))[:, self.head]

    @cached_property
    def sent_bytes(self) -> Floats:
        """Bytes of the activation behind a block that a rank sends, float64[keys, kinds]."""
        return self._of(lambda view, kind: send_bytes(view, kind.block))

    @cached_property
    def _early(self) -> NDArray[np.bool_]:
        """Keys that run again ahead of the backward, bool[keys]."""
        return self._of(lambda view, _: view.job.plan.memory.recompute_early)[:, 0] > 0

    @cached_property
    def kernels_ns(self) -> dict[str, Ints]:
        """Kernels alone by letter, int64[keys, kinds]: less than any pass takes, whatever is communicated."""
        found = {letter: np.zeros((len(self.row), len(self.kinds)), dtype=np.int64) for letter in LETTERS}
        slow, every = self.jobs.problem.stack.launch.kernel_overhead, range(len(self.kinds))
        for batch in self._batches:
            if grid_of(batch.view.job.plan) is not None:  # products in panels
                for at, letter, passes in self._passes(batch, every, LETTERS):
                    least = to_ns(slow * passes.compute_s) - len(passes.kernels)
                    found[letter][batch.keys, at] = np.maximum(0, least)
                continue
            for block, some in self._blocks(batch, every):
                for at, (letter, seconds) in product(some, _kernels_s(block).items()):
                    again = self.kinds[at].recompute == "full" and letter in "BI"
                    again = again and not batch.view.job.plan.memory.recompute_early
                    least = to_ns(slow * (_kernels_s(block)["F"] * again + seconds)) - 3 * len(block.times)
                    found[letter][batch.keys, at] = np.maximum(0, least)
        return found

    @cached_property
    def products_s(self) -> dict[str, Floats]:
        """Seconds of matrix optimizers by optimizer, float64[keys, kinds, 2, 2].

        Of what is no expert and of experts: all matrices of a block, and the dearest of them.
        """
        found: dict[str, Floats] = {}
        for name in self.jobs.rows.domain.get("optimizer", (self.jobs.problem.base.numerics.optimizer,)):
            numerics = self.jobs.problem.base.numerics.model_copy(update={"optimizer": name})
            table = np.zeros((len(self.row), len(self.kinds), 2, 2))
            for key in range(len(self.row)) if RULES[name].products else ():
                view = self.view(key)
                for at, kind in enumerate(self.kinds):
                    matrices = inner_matrices([kind.block], view.tensor)
                    for expert in (0, 1):
                        mine = [matrix for matrix in matrices if matrix.expert == bool(expert)]
                        table[key, at, expert] = matrices_time_s(mine, numerics, view.job.kernels)
            found[name] = table
        return found

    def _price(self, batch: Batch, mesh: Mesh, op: str, name: str) -> Price:
        """The price of an operation on the group of rank 0 of a name on a mesh."""
        view, tensor = batch.view, batch.view.job.plan.tensor_parallel
        known = mesh, tensor.tp_method, tensor.tp_depth, view.tensor["ulysses"], view.tensor["gathered"]
        if known not in self._groups:
            plan = view.job.plan.model_copy(update={"mesh": mesh})
            kinds = block_groups(replace(view, job=replace(view.job, plan=plan)))
            self._groups[known] = {kind.name: kind.groups[0].copy() for kind in kinds}
        return self.prices.of(op, self._groups[known][name], name)

    def priced(self, batch: Batch, use: CollectiveUse) -> list[tuple[Ints, Price]]:
        """Prices of a collective in a batch, and which of its keys have each."""
        if (use.op, use.group) not in batch.prices:
            meshes, distinct = self._meshes[0], np.unique(batch.mesh)
            each = {int(at): self._price(batch, meshes[at], use.op, use.group) for at in distinct}
            prices = {id(price): price for price in each.values()}
            which = np.array([id(each[at]) for at in batch.mesh.tolist()])
            found = [(np.flatnonzero(which == number), price) for number, price in prices.items()]
            batch.prices[use.op, use.group] = found
        return batch.prices[use.op, use.group]

    def _blocks(self, batch: Batch, kinds: Iterable[int]) -> Iterator[tuple[RankBlock, list[int]]]:
        """The blocks of some kinds on the ranks of a batch, each with its kinds, which share its kernels."""
        by_name: dict[str, list[int]] = {}
        for kind in kinds:
            by_name.setdefault(self.kinds[kind].block.name, []).append(kind)
        for some in by_name.values():
            yield RankBlock.of(self.kinds[some[0]].block, batch.view), some

    def _passes(
        self, batch: Batch, kinds: Iterable[int], letters: Sequence[str]
    ) -> Iterator[tuple[int, str, Passes]]:
        """Passes of a batch over blocks of some kinds, with kind and letter."""
        for block, some in self._blocks(batch, kinds):
            shared: dict[str, Passes] = {}
            for kind in some:
                steps = block_steps(block, recompute=self.kinds[kind].recompute)
                for letter in letters:
                    passes = shared.get(letter) or self._numbers(batch, getattr(steps, _PHASES[letter]))
                    if letter in UNCHANGED:
                        shared[letter] = passes
                    yield kind, letter, passes

    def _numbers(self, batch: Batch, phase: Phase) -> Passes:
        """A phase of a batch as numbers."""
        size = len(batch.keys)
        kernels = np.array([step.collective is None for step in phase.steps], dtype=bool)
        seconds, prices_ns = np.empty((sum(kernels), size)), np.empty((sum(~kernels), size), dtype=np.int64)
        durations = (step.duration_s for step in phase.steps if step.collective is None)
        for at, duration_s in enumerate(durations):
            seconds[at] = duration_s
        drained_s, known = np.zeros((size, len(self.prices.own))), dict[object, tuple[Ints, Floats]]()
        for at, use in enumerate(phase.collectives):
            sizes = np.full(size, use.size_bytes)
            same = use.op, use.group, use.count, sizes.tobytes()
            if same not in known:
                known[same] = self._cost(batch, use, sizes)
            prices_ns[at] = known[same][0]
            drained_s += known[same][1]
        issue_ns = np.full(size, to_ns(phase.issue_s))
        return Passes(phase, kernels, seconds, prices_ns, issue_ns, drained_s)

    def _cost(self, batch: Batch, use: CollectiveUse, sizes: Floats) -> tuple[Ints, Floats]:
        """Nanoseconds of a collective of a batch, int64[n], and what it takes of rank 0's links, float64[n, links]."""
        took_ns, drained_s = (
            np.empty(len(sizes), dtype=np.int64),
            np.empty((len(sizes), len(self.prices.own))),
        )
        for mine, price in self.priced(batch, use):
            took_ns[mine] = price.time_ns(sizes[mine], use.count)
            drained_s[mine] = (sizes[mine] * use.count)[:, None] * price.slopes_s(self.prices.own)
        return took_ns, drained_s

    def _find(self, keys: Ints, letters: Sequence[str], kinds: Iterable[int]) -> None:
        """Times, drains and streams of passes by kind, of all keys in the batches of some."""
        size = len(self.row), len(self.kinds)
        for letter in letters:
            self._plain.setdefault(letter, np.full(size, -1, dtype=np.int64))
            self._drained.setdefault(letter, np.zeros((*size, len(self.prices.own))))
            self._carried.setdefault(letter, np.zeros((*size, len(BLOCK_STREAMS)), dtype=np.int64))
        slow = self.jobs.problem.stack.launch.kernel_overhead
        for batch, _, _ in self.batches(keys):
            missing = [
                kind
                for kind in kinds
                if any(self._plain[letter][batch.keys[0], kind] < 0 for letter in letters)
            ]
            for kind, letter, passes in self._passes(batch, missing, letters):
                self._plain[letter][batch.keys, kind] = passes.took_ns(slice(None), slow)
                self._drained[letter][batch.keys, kind] = passes.drained_s
                self._carried[letter][batch.keys, kind] = passes.carried_ns(slice(None), slow).T

    def drains_s(self, keys: Ints, letter: str) -> Floats:
        """Seconds that collectives inside passes take of each link of rank 0, float64[len(keys), kinds, links]."""
        self._find(keys, (letter,), range(len(self.kinds)))
        return np.asarray(self._drained[letter][keys])

    def least_ns(self, keys: Ints, shape: Shape) -> Iterator[tuple[dict[str, Ints], dict[str, Ints]]]:
        """What passes of a shape take of their rank and from start to end, at least, int64[len(keys), kinds] by letter.

        With nothing beside them these are the same. Where passes run together they take what each of BLOCK_STREAMS
        carries of them, one after the other.
        """
        alone = self.plain_ns(keys, shape.letters, shape.kinds)
        for stream in range(len(BLOCK_STREAMS)) if shape.pairs else ():
            yield {letter: self._carried[letter][keys, :, stream] for letter in shape.letters}, alone
        if not shape.pairs:
            yield alone, alone

    def again_ns(self, keys: Ints, shape: Shape) -> Floats:
        """Times of what is run once more ahead of the backward, float64[len(keys), kinds], of the kinds of a shape."""
        found = np.zeros((len(keys), len(self.kinds)))
        early = self._early[keys]
        found[early] = self.plain_ns(keys[early], (AGAIN,), shape.kinds)[AGAIN]
        return found

    def plain_ns(
        self, keys: Ints, letters: Sequence[str] = LETTERS, kinds: Sequence[int] | None = None
    ) -> dict[str, Ints]:
        """Times of passes with nothing beside them by letter, int64[len(keys), kinds].

        Those that are no ``kinds`` are zero, or known already.
        """
        self._find(keys, letters, range(len(self.kinds)) if kinds is None else kinds)
        return {letter: np.maximum(self._plain[letter][keys], 0) for letter in letters}

    def slowed_ns(self, keys: Ints, letter: str, busy_ns: Floats) -> Ints:
        """Times of passes beside ``busy_ns`` of data-parallel communication each, int64[len(keys), kinds]."""
        found, stack = self.plain_ns(keys, (letter,))[letter], self.jobs.problem.stack
        excess = stack.overlap.compute_slowdown_while_comm - 1.0
        beside = np.flatnonzero(busy_ns.any(axis=0)).tolist() if excess > 0 else []
        for batch, mine, which in self.batches(keys) if beside else ():
            known: dict[object, Ints] = {}
            for kind, passes in self.kept(batch, letter, beside).items():
                busy = busy_ns[mine, kind]
                same = id(passes), busy.tobytes()
                if same not in known:
                    compute_ns = to_ns(passes.compute_s[which]).astype(np.float64)
                    slow = stack.launch.kernel_overhead * slowed_beside(excess, busy, compute_ns)
                    known[same] = passes.took_ns(which, slow)
                found[mine, kind] = known[same]
        return found

    def kept(self, batch: Batch, letter: str, kinds: Sequence[int]) -> dict[int, Passes]:
        """Passes of a batch over blocks of some kinds, kept, because several are asked what they take."""
        missing = [kind for kind in kinds if (kind, letter) not in batch.kept]
        for kind, _, passes in self._passes(batch, missing, (letter,)):
            batch.kept[kind, letter] = passes
        return {kind: batch.kept[kind, letter] for kind in kinds}


def _kernels_s(block: RankBlock) -> dict[str, Floats]:
    """Seconds of all kernels of a block by letter, but for what runs again."""
    ahead, inputs, weights = (
        np.asarray(sum(np.asarray(getattr(time, part)) for time in block.times))
        for part in ("forward_s", "backward_input_s", "backward_weight_s")
    )
    trained = 0.0 if block.block.still else 1.0
    return {
        "F": ahead,
        "B": trained * (inputs + weights),
        "I": trained * inputs,
        "W": trained * weights,
    }


def _choices(policy: str, block: Block) -> tuple[str, ...]:
    """What a recompute policy chooses for single layers of a block; segments take the time of their layers."""
    if policy == OPTIMAL:
        return ("none", "selective", "full", *module_policies(block))
    return ("full", "none") if policy.startswith("every:") else (policy,)
