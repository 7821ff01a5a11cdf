"""TeraPipe rows: sequences in slices of tokens, which are chosen when a row's bound says that it may win.

Until then a row is bounded by kernels. However a sequence is sliced, a stage takes at least the least sum of slice
times over all cuts at unit boundaries, waits until earlier stages have run one first slice, and leaves them its
backward. Then slices are chosen as in :mod:`simpar.program.resolve.token_slices`, and the row's Program is swept
without contention.
"""

from dataclasses import field

import numpy as np

from simpar.architectures.graph import Block
from simpar.cost.operators import operator_times
from simpar.dataclass import dataclass
from simpar.plan.choices.pipeline import list_sliced_schedules
from simpar.plan.schedules.terapipe import least_sum
from simpar.planner.bound.pipelines import Pipelines
from simpar.planner.certify.exact import job_of
from simpar.planner.space.jobs import plan_of
from simpar.planner.space.table import Rows
from simpar.program.blocks.rank_view import RankView
from simpar.program.resolve.token_slices import slice_view, stack_dims, unit_tokens
from simpar.units import Flags, Floats, Ints, to_ns

SLICES = "slices"


def select_sliced(rows: Rows) -> Flags:
    """Rows whose sequences go through the pipeline in slices."""
    return np.asarray(rows.one_of("schedule", *list_sliced_schedules(rows)) & rows.at("is_pipelined", ...))


def with_slices(rows: Rows) -> Rows:
    """The rows with a column for slices, none chosen yet; unchanged if no row has slices."""
    if list_sliced_schedules(rows) and SLICES not in rows.domain:
        rows.join(SLICES, (None,))
    return rows


@dataclass
class SliceBounds:
    """Bounds of rows with token slices; kernels of all slices are computed once per key."""

    pipelines: Pipelines
    _kernels: dict[int, dict[tuple[str, bool], tuple[Floats, Floats]]] = field(default_factory=dict)

    @property
    def rows(self) -> Rows:
        """Rows of the space."""
        return self.pipelines.jobs.rows

    def kernels_bound_ns(self, which: Ints) -> tuple[Floats, Floats]:
        """Nanoseconds that pipelines take at least, however sliced, and kernels of their least busy rank."""
        result, least = np.zeros(len(which)), np.zeros(len(which))
        for at, pipe in enumerate(which.tolist()):
            result[at], least[at] = self._kernels_ns(pipe)
        return result, least

    def _kernels_ns(self, pipe: int) -> tuple[float, float]:
        shape, key = self.pipelines.shapes[int(self.pipelines.shape[pipe])], int(self.pipelines.key[pipe])
        kinds, tables = self.pipelines.blocks.kinds, self._tables(key)
        microbatches, ahead, ends, busy = (float(self.rows.at("microbatches", self.pipelines.row[pipe])), 0.0, 0.0, [])
        for held in shape.pieces:
            each = [tables[kinds[kind].block.name, kinds[kind].recompute == "full"] for kind in held]
            forward, backward = (np.sum(tables, axis=0) for tables in zip(*each, strict=True))
            busy.append(microbatches * least_sum(forward + backward)[0])
            ends = max(ends, ahead + busy[-1])
            ahead += float((forward + backward)[0, 1:].min())
        return ends, min(busy)

    def _tables(self, key: int) -> dict[tuple[str, bool], tuple[Floats, Floats]]:
        """Kernel times of forward and backward, float64[units + 1, units + 1], by block and whether it is recomputed.

        Entry [i, j] is the slice from unit i to unit j; infinite if that is not a slice.
        """
        if key not in self._kernels:
            view = self.pipelines.blocks.view(key)
            kinds = {(kind.block.name, kind.recompute == "full"): kind.block for kind in self.pipelines.blocks.kinds}
            unit, length = unit_tokens(view.job), view.job.training.seq_len
            self._kernels[key] = {
                known: slice_kernels_ns(block, view, (unit, length // unit), again=known[1])
                for known, block in kinds.items()
            }
        return self._kernels[key]

    def choose(self, row: int) -> tuple[int, ...]:
        """The slices of a row, as a plan of it resolves them."""
        slices = job_of(self.rows.problem, plan_of(self.rows, row)).layout.slices
        assert slices, "a schedule of slices has them"
        return slices

    def alike(self, row: int) -> Ints:
        """Rows that are sliced like a row: those of its pipeline."""
        return np.flatnonzero(self.pipelines.index == self.pipelines.index[row])

    def set_slices(self, which: Ints, slices: tuple[int, ...]) -> None:
        """Set the slices of some rows."""
        self.rows.set(SLICES, which, slices)

    def is_chosen(self, row: int) -> bool:
        """Whether the slices of a row have been chosen."""
        return bool(self.rows.code[SLICES][row] > 0)


def slice_kernels_ns(block: Block, view: RankView, units: tuple[int, int], *, again: bool) -> tuple[Floats, Floats]:
    """Lower bounds of kernel times of forward and backward for every slice of a block, in nanoseconds.

    ``units`` are the tokens of a unit and the number of units; ``again`` says that the backward recomputes the forward.
    Both arrays are float64[units + 1, units + 1], from unit to unit.
    """
    unit, count = units
    forward, backward = (np.full((count + 1, count + 1), np.inf) for _ in range(2))
    slow, apart = view.job.stack.launch.kernel_overhead, view.job.layout.recompute_early
    for first in (True, False):  # slices without earlier keys have one kernel less
        begins = [0] if first else range(1, count)
        at = [(begin, end) for begin in begins for end in range(begin + 1, count + 1)]
        if not at:
            continue
        dims = stack_dims([slice_view(view, a * unit, b * unit).dims.of_block(block) for a, b in at])
        times = operator_times(block.operators, dims, view.job.kernels, view.job.stack)
        ahead, inputs, weights = (
            sum(np.asarray(getattr(time, part)) for time in times)
            for part in ("forward_s", "backward_input_s", "backward_weight_s")
        )
        back = inputs + weights + (ahead if again and not apart else 0.0)
        back = 0.0 * back if block.has_no_backward else back
        index, rounded = tuple(np.array(at).T), sum(3 + len(time.sums_s) for time in times)
        for table, seconds in ((forward, ahead), (backward, back)):
            table[index] = np.maximum(0, to_ns(slow * seconds) - rounded)
    return forward, backward
