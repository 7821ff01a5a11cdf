"""Durations of passes through blocks for all keys: the Program's own phases, evaluated on arrays.

A *key* is one combination of the axes that decide the passes; a *kind* is a block with its way of recomputation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from simpar.architectures.graph import Block, evaluate
from simpar.architectures.recompute import OPTIMAL, SIMPLE, modes
from simpar.cost.memory.widths import narrows_frozen
from simpar.cost.optimizers import lay_out_matrices, matrices_time_s
from simpar.cost.power import dynamic_power_share, streaming_operators
from simpar.dataclass import dataclass
from simpar.layout.sharding import before_tensor_parallelism
from simpar.plan.optimizers import OPTIMIZERS
from simpar.planner.bound.keys import KEY_AXES, KeyBatch, Keys
from simpar.planner.bound.passes import PassTimes
from simpar.program.blocks.block_view import RankBlock
from simpar.program.blocks.phases import BLOCK_STREAMS, BlockStep
from simpar.program.blocks.rank_view import RankView
from simpar.program.blocks.segments import slowed_beside
from simpar.program.blocks.steps import BlockWalk
from simpar.program.emission.traffic import send_bytes
from simpar.program.resolve.checkpointing import module_policies
from simpar.program.structure.stages import PASSES
from simpar.program.structure.synchronisation import DENSE, EXPERTS
from simpar.units import NS_PER_S, Floats, Ints, Numbers, to_ns

if TYPE_CHECKING:
    from simpar.planner.bound.shapes import PipelineShape

LETTERS = tuple(PASSES)
AGAIN = "again"
_PHASES = {**PASSES, AGAIN: AGAIN}
FEW_KEYS = 2_000
"""Passes of so many keys are kept when they are computed: some 10 kB a key."""
PASSES_WITHOUT_RECOMPUTE = ("F", "W")
"""Passes whose duration does not depend on recomputation."""


@dataclass(frozen=True)
class BlockPolicy:
    """A block and how it is recomputed."""

    block: Block
    recompute: str


@dataclass(frozen=True)
class PassDurations:
    """Durations of the passes of a letter, int64[keys, kinds]: whole passes, and their kernels alone.

    ``late_ns`` is the least that a pass takes on the slowest rank, ``plain_ns`` if none is slow.

    ``carried_ns`` int64[keys, kinds, streams] is the part on each of BLOCK_STREAMS; ``drained_s`` float64[keys, kinds,
    links] is the time that their collectives occupy each link of rank 0.
    """

    plain_ns: Ints
    kernels_ns: Ints
    carried_ns: Ints
    drained_s: Floats
    late_ns: Ints


@dataclass
class BlockCosts(Keys):
    """Keys with the durations of passes through every kind of block, and the parameters of blocks on a rank.

    Durations that were computed for the same keys of ``known``, the passes of other rows, are not computed again.
    """

    known: BlockCosts | None = None
    _kept: dict[tuple[int, int, str], PassTimes] = field(default_factory=dict)
    _durations: dict[str, PassDurations] = field(default_factory=dict)
    _asked: dict[str, Floats] = field(default_factory=dict)
    _beside: dict[tuple[int, int, str, bytes], tuple[Ints, Floats]] = field(default_factory=dict)

    @cached_property
    def kinds(self) -> tuple[BlockPolicy, ...]:
        """Embedding and head, then every block of a layer with every way of recomputation that a row uses."""
        graph, rows = self.jobs.problem.graph, self.jobs.rows
        policies = [rows.domain["recompute"][code] for code in np.flatnonzero(np.bincount(rows.code["recompute"]))]
        blocks = [graph.blocks[name] for name in dict.fromkeys(graph.layers)]
        layers = dict.fromkeys(
            BlockPolicy(block, how) for policy in policies for block in blocks for how in _choices(policy, block)
        )
        return (BlockPolicy(graph.embedding, "none"), BlockPolicy(graph.head, "none"), *layers)

    @cached_property
    def index(self) -> dict[tuple[str, str], int]:
        """Position of a kind by (block name, recompute)."""
        return {(kind.block.name, kind.recompute): at for at, kind in enumerate(self.kinds)}

    @property
    def head(self) -> int:
        """Position of the head."""
        return self.index[self.jobs.problem.graph.head.name, "none"]

    def _of(self, value: Callable[[RankView, BlockPolicy], Numbers]) -> Floats:
        """Evaluates a number for every key and kind, float64[keys, kinds]."""
        result = np.zeros((len(self.row), len(self.kinds)))
        for batch, (at, kind) in product(self.all_batches, enumerate(self.kinds)):
            result[batch.keys, at] = value(batch.view, kind)
        return result

    @cached_property
    def experts(self) -> Floats:
        """Trained parameters of experts on one rank, before data-parallel sharding, float64[keys, kinds]."""
        return self._of(lambda view, kind: kind.block.trained_experts(view.tensor))

    @cached_property
    def dense(self) -> Floats:
        """All other trained parameters on one rank, float64[keys, kinds]."""
        return self._of(lambda view, kind: kind.block.trained_parameters(view.tensor)) - self.experts

    @cached_property
    def still(self) -> dict[str, Floats]:
        """Frozen parameters, counted by their bytes as in a StageBlock, by who holds copies: float64[keys, kinds]."""

        def held(view: RankView, kind: BlockPolicy, expert: bool) -> Numbers:
            width = view.compute_bytes
            narrowed = narrows_frozen(view.job.layout)
            return kind.block.frozen_bytes(view.tensor, width, narrowed=narrowed)[expert] / width

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
        """Bytes of the activation that a rank sends if it is cut after a block, float64[keys, kinds]."""
        return self._of(lambda view, kind: send_bytes(view, kind.block))

    @cached_property
    def products_s(self) -> dict[str, Floats]:
        """Seconds of the update's matrix products by optimizer, float64[keys, kinds, 2, 2].

        The third axis is dense parameters and experts, the fourth all matrices of a block and its most expensive one.
        """
        rows, usual = self.jobs.rows.subset(self.row), self.jobs.problem.base.numerics.optimizer
        code = rows.number([name for name in KEY_AXES if name != "micro_batch"])
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        result: dict[str, Floats] = {}
        for name in rows.domain.get("optimizer", (usual,)):
            table = np.zeros((len(first), len(self.kinds), 2, 2))
            for at, key in enumerate(first.tolist() if OPTIMIZERS[name].by_matrix else ()):
                view = self.view(key)
                chosen = replace(view.job.layout, optimizer=name)
                whole = before_tensor_parallelism(view.job.graph, view.tensor)
                for kind, expert in product(range(len(self.kinds)), (0, 1)):
                    matrices = lay_out_matrices([self.kinds[kind].block], view.tensor, whole, chosen.matrix_layout)
                    mine = [matrix for matrix in matrices if matrix.expert == bool(expert)]
                    table[at, kind, expert] = matrices_time_s(mine, chosen, view.job.kernels)
            result[name] = table[which]
        return result

    def _passes(
        self, batch: KeyBatch, kinds: Sequence[int], letters: Sequence[str]
    ) -> Iterator[tuple[int, str, PassTimes]]:
        """The passes of a batch through blocks of some kinds; yields kind, letter and passes."""
        walk: BlockWalk | None = None
        shared: dict[str, PassTimes] = {}
        for kind in sorted(kinds, key=lambda at: self.kinds[at].block.name):
            one = self.kinds[kind]
            if walk is None or walk.view.block is not one.block:
                walk, shared = BlockWalk(RankBlock.of(one.block, batch.view)), {}
            steps = walk.steps(one.recompute)
            for letter in letters:
                passes = shared.get(letter) or PassTimes.of(getattr(steps, _PHASES[letter]), batch, self)
                if letter in PASSES_WITHOUT_RECOMPUTE:
                    shared[letter] = passes
                yield kind, letter, passes

    def _tables(self, letters: Collection[str]) -> dict[str, PassDurations]:
        """Durations of passes by letter, computed for all keys at once for letters that were not asked for before."""
        missing = tuple(letter for letter in _PHASES if letter in letters and letter not in self._durations)
        if missing:
            self._durations.update(self._computed(missing))
        return self._durations

    def _computed(self, letters: Sequence[str]) -> dict[str, PassDurations]:
        """Durations of passes of some letters."""
        size, slow = (len(self.row), len(self.kinds)), self.jobs.problem.stack.launch.kernel_overhead
        factor = max(self.jobs.problem.perturbation.slow_ranks.values(), default=1.0)
        result = {
            letter: PassDurations(
                np.zeros(size, dtype=np.int64),
                np.zeros(size, dtype=np.int64),
                np.zeros((*size, len(BLOCK_STREAMS)), dtype=np.int64),
                np.zeros((*size, len(self.prices.own))),
                np.zeros(size, dtype=np.int64),
            )
            for letter in letters
        }
        for batches, kinds in self._unknown(result):
            keeps = batches is self.all_batches and len(self.row) <= FEW_KEYS
            for batch in batches:
                for kind, letter, passes in self._passes(batch, kinds, letters):
                    if keeps:
                        self._kept[int(batch.keys[0]), kind, letter] = passes
                    at, table = (batch.keys, kind), result[letter]
                    table.plain_ns[at] = passes.took_ns(slice(None), slow)
                    rounded = len(passes.kernels)  # a slow rank rounds other durations
                    table.kernels_ns[at] = np.maximum(0, to_ns(slow * passes.compute_s) - rounded)
                    table.carried_ns[at] = passes.carried_ns(slice(None), slow).T
                    table.drained_s[at] = passes.drained_s
                    table.late_ns[at] = table.plain_ns[at]
                    if factor > 1.0:
                        late_ns = passes.took_ns(slice(None), factor * slow, held=False) - rounded
                        table.late_ns[at] = np.maximum(table.plain_ns[at], late_ns)
        return result

    def _unknown(self, tables: Mapping[str, PassDurations]) -> Iterator[tuple[list[KeyBatch], list[int]]]:
        """Fill in what is known of the same keys; yields what is not: batches of keys, and kinds of blocks."""
        if self.known is None or tables.keys() - self.known._durations.keys():
            yield self.all_batches, list(range(len(self.kinds)))
            return
        keys, kinds = self.found_in(self.known), np.array([self.known.index.get(name, -1) for name in self.index])
        mine, ours = np.flatnonzero(keys >= 0), np.flatnonzero(kinds >= 0)
        for letter, table in tables.items():
            for each in fields(PassDurations):
                values = getattr(self.known._durations[letter], each.name)
                getattr(table, each.name)[np.ix_(mine, ours)] = values[np.ix_(keys[mine], kinds[ours])]
        if len(mine) < len(keys):
            yield self.batches_of(np.flatnonzero(keys < 0)), ours.tolist()
        if len(ours) < len(kinds):
            yield self.all_batches, np.flatnonzero(kinds < 0).tolist()

    def kernels_ns(self, letters: Collection[str]) -> dict[str, Ints]:
        """Durations of the kernels alone by letter, int64[keys, kinds]: a lower bound of every pass."""
        tables = self._tables(letters)
        return {letter: tables[letter].kernels_ns for letter in letters}

    def asked_ns(self, letters: Collection[str]) -> dict[str, Floats]:
        """Kernel time by letter, weighted with the power demand of each kernel above idle waiting.

        float64[keys, kinds]; a kernel that asks for the device's power limit counts in full.
        """
        missing = tuple(letter for letter in LETTERS if letter in letters and letter not in self._asked)
        problem = self.jobs.problem
        slow, streaming = problem.stack.launch.kernel_overhead, streaming_operators(problem.graph)
        result = {letter: np.zeros((len(self.row), len(self.kinds))) for letter in missing}
        for batch in self.all_batches if missing else ():
            for kind, letter, passes in self._passes(batch, range(len(self.kinds)), missing):
                kernels = [step for step in passes.phase.steps if step.collective is None]
                asked = np.array([_asked(step, streaming) for step in kernels])
                asked_ns = NS_PER_S * slow * (asked @ passes.seconds) - asked.sum()  # less rounding
                result[letter][batch.keys, kind] = np.maximum(asked_ns, 0.0)
        self._asked.update(result)
        return {letter: self._asked[letter] for letter in letters}

    def plain_ns(self, keys: Ints, letters: Sequence[str] = LETTERS) -> dict[str, Ints]:
        """Durations of passes by letter with nothing beside them, int64[len(keys), kinds]."""
        tables = self._tables(letters)
        return {letter: tables[letter].plain_ns[keys] for letter in letters}

    def late_ns(self, keys: Ints, letter: str) -> Ints:
        """Least durations of passes on the slowest rank with nothing beside them, int64[len(keys), kinds]."""
        return self._tables(letter)[letter].late_ns[keys]

    def recompute_ns(self, keys: Ints) -> Ints:
        """Durations of the recomputation that runs ahead of the backward, int64[len(keys), kinds]."""
        return self._tables((AGAIN,))[AGAIN].plain_ns[keys]

    def least_ns(self, keys: Ints, shape: PipelineShape) -> Iterator[tuple[dict[str, Ints], dict[str, Ints]]]:
        """Least rank time and least start-to-end time of passes of a shape, int64[len(keys), kinds] by letter.

        The two are equal if nothing runs beside a pass. Where passes run together, one pair of mappings per stream of
        BLOCK_STREAMS is yielded: a rank takes at least what that stream carries.
        """
        alone = self.plain_ns(keys, shape.letters)
        for stream in range(len(BLOCK_STREAMS)) if shape.pairs else ():
            tables = self._tables(shape.letters)
            yield ({letter: tables[letter].carried_ns[keys, :, stream] for letter in shape.letters}, alone)
        if not shape.pairs:
            yield alone, alone

    def drains_s(self, keys: Ints, letter: str) -> Floats:
        """Seconds that collectives inside passes occupy each link of rank 0, float64[len(keys), kinds, links]."""
        return self._tables(letter)[letter].drained_s[keys]

    def slowed_ns(self, keys: Ints, letter: str, busy_ns: Floats) -> Ints:
        """Durations of passes with ``busy_ns`` of data-parallel communication beside each, int64[len(keys), kinds]."""
        result, stack = self.plain_ns(keys, (letter,))[letter], self.jobs.problem.stack
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
                result[mine, kind] = known[same]
        return result

    def stretched_ns(self, keys: Ints, letter: str, taken_s: Floats) -> tuple[Ints, Floats]:
        """Durations of passes whose collectives share rank 0's links with a flow that never ends.

        A byte of that flow takes ``taken_s`` seconds of each link. Returns int64[len(keys), kinds] and the largest
        ratio of the times that a byte takes beside the flow and alone, float64[len(keys)].
        """
        result, ratio = self.plain_ns(keys, (letter,))[letter], np.ones(len(keys))
        for batch, mine, which in self.batches(keys):
            for kind, passes in self.kept(batch, letter, range(len(self.kinds))).items():
                known = int(batch.keys[0]), kind, letter, taken_s.tobytes()
                if known not in self._beside:
                    self._beside[known] = self._stretched(batch, passes, taken_s)
                took_ns, most = self._beside[known]
                result[mine, kind], ratio[mine] = took_ns[which], np.maximum(ratio[mine], most[which])
        return result, ratio

    def _stretched(self, batch: KeyBatch, passes: PassTimes, taken_s: Floats) -> tuple[Ints, Floats]:
        """What the passes of a batch take beside a flow, int64[n], and the largest ratio, float64[n]."""
        uses = passes.phase.collectives
        more_ns, ratio = np.zeros((len(uses), len(batch.keys)), dtype=np.int64), np.ones(len(batch.keys))
        for at, use in enumerate(uses):
            sizes = np.full(len(batch.keys), use.size_bytes)
            for mine, price in self.price_groups(batch, use):
                more_s, most = price.stretched(sizes[mine], self.prices.own, taken_s)
                more_ns[at, mine] = np.floor(NS_PER_S * more_s * sizes[mine] * use.count)
                ratio[mine] = np.maximum(ratio[mine], most)
        slow = self.jobs.problem.stack.launch.kernel_overhead
        return passes.took_ns(slice(None), slow, more_ns=more_ns), ratio

    def kept(self, batch: KeyBatch, letter: str, kinds: Sequence[int]) -> dict[int, PassTimes]:
        """Passes of a batch through blocks of some kinds, kept because several questions need them."""
        first = int(batch.keys[0])
        missing = [kind for kind in kinds if (first, kind, letter) not in self._kept]
        for kind, _, passes in self._passes(batch, missing, (letter,)):
            self._kept[first, kind, letter] = passes
        return {kind: self._kept[first, kind, letter] for kind in kinds}


def _asked(step: BlockStep, streaming: Collection[str]) -> float:
    """The power demand above waiting of a step that is no collective; 0 if the host delays it."""
    return 0.0 if step.kind == "host" else dynamic_power_share(streaming=step.name in streaming)


def _choices(policy: str, block: Block) -> tuple[str, ...]:
    """What a recompute policy chooses for single layers of a block; segments take as long as their layers."""
    if policy == OPTIMAL:
        return (*SIMPLE, *module_policies(block))
    return modes(policy)
