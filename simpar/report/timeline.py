"""The timeline of a step: what every rank class did when, and its compact form for plots and JSON.

A :class:`Timeline` has one row per (op, stream of a class) and may be large; traces are written from it. An
:class:`Overview` keeps one rank class per pipeline rank (and its slowest, where some are slower) with its blocks (one
per action, or per run of one kind inside it) and a thinned memory curve; it is part of the result's JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from simpar.dataclass import dataclass
from simpar.plan.choices.mesh import COMMUNICATION, PIPELINE
from simpar.program.ir.program import Label, Program, Timing
from simpar.report.later import WhenAsked, values_of
from simpar.report.pictured import HeldAtPeak, Roofline
from simpar.units import NS_PER_S, Floats, Indices, Ints, unique

if TYPE_CHECKING:
    import pandas as pd

    from simpar.report.detail import InnerSteps

COMPUTE_KINDS = (
    "forward", "backward", "input_gradient", "weight_gradient", "forward_backward", "recompute", "optimizer", "host",
)  # fmt: skip
COMMUNICATION_KINDS = (*COMMUNICATION, "offload")
KINDS = (*COMPUTE_KINDS, *COMMUNICATION_KINDS)
PASS_KINDS = ("forward", "backward", "input_gradient", "weight_gradient", "forward_backward", "recompute")
MEMORY_PARTS = ("parameters", "gradients", "optimizer_states", "overhead", "activations", "transient")
MAX_MEMORY_POINTS = 2000
IDLE_CAUSES = ("exposed", "bubble", "waiting", "host")
MAX_IDLE = 10_000
"""Pieces of idle time shorter than the step divided by this number are not drawn."""


@dataclass(frozen=True)
class RankClass:
    """Ranks that behave alike: a representative, its pipeline rank, and the number of ranks in the class.

    ``slowdown`` is the factor on their kernels, 1 at full speed.
    """

    name: str
    pipeline_rank: int
    representative_rank: int
    multiplicity: int
    slowdown: float = 1.0


@dataclass(frozen=True)
class Slices:
    """Columns, one row per (op, stream of a class); times are int64 ns.

    ``label`` indexes Timeline.labels. ``stage`` is the virtual stage and ``microbatch`` the microbatch (-1: none).
    ``size_bytes`` is what a collective moves (0 for kernels). ``inner`` indexes Timeline.inner, the steps inside the
    slice (-1: none).
    """

    class_id: Ints
    stream: Ints
    start_ns: Ints
    finish_ns: Ints
    label: Ints
    stage: Ints
    microbatch: Ints
    size_bytes: Ints
    inner: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, rows: Ints) -> Slices:
        """The slices at ``rows``, in that order."""
        return Slices(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class MemoryCurve:
    """Bytes held over time on one rank class: step functions, one column per part of MEMORY_PARTS.

    ``time_s`` float64[n] ascending; ``parts[name]`` float64[n] is the value from that time on.
    """

    time_s: Floats
    parts: Mapping[str, Floats]

    @property
    def total_bytes(self) -> Floats:
        """Sum over the parts, float64[n]."""
        columns = np.array(list(self.parts.values()), dtype=np.float64)
        return np.asarray(columns.sum(axis=0), dtype=np.float64)

    def thin(self, limit: int = MAX_MEMORY_POINTS) -> MemoryCurve:
        """At most ``limit`` points that draw the same picture.

        Time is cut into columns as wide as a drawn line, and the lowest, the highest and the last point of each are
        kept, which keeps the shape at that resolution [Jugel et al. 2014, M4, VLDB 7(10)]; a step function enters a
        column at the level of the last point before.
        """
        if len(self.time_s) <= limit:
            return self
        total, columns = self.total_bytes, max(1, limit // 3)
        span_s = self.time_s[-1] - self.time_s[0]
        at = np.minimum((self.time_s - self.time_s[0]) / span_s * columns, columns - 1).astype(np.int64)
        order = np.lexsort((np.arange(len(total)), total, at))  # by column, then by level, the earlier of equals first
        ends = np.flatnonzero(np.append(at[1:] != at[:-1], True))
        begins = np.append(0, ends[:-1] + 1)
        highest = np.maximum.reduceat(total, begins)[np.searchsorted(ends, np.arange(len(total)))]
        tops = np.flatnonzero(total == highest)
        tops = tops[np.unique(at[tops], return_index=True)[1]]
        kept = unique(np.concatenate([order[begins], tops, ends]))
        return MemoryCurve(self.time_s[kept], {name: part[kept] for name, part in self.parts.items()})


@dataclass(frozen=True)
class Timeline:
    """Everything that happened in one step, class by class.

    ``arrows`` int64[k, 2] are pairs of slice rows: a message and the slice that waited for it. ``memory`` has
    one curve per class, or is empty. ``inner`` are the distinct insides of ops that stand for several steps.

    >>> import simpar
    >>> result = simpar.simulate(**simpar.load_scenario("gpt2-laptop").inputs())
    >>> timeline = result.timeline
    >>> sum(each.multiplicity for each in timeline.classes)  # ranks
    4
    >>> timeline.span_ns <= result.step_time_s * 1e9
    True
    """

    slices: Slices
    labels: tuple[Label, ...]
    classes: tuple[RankClass, ...]
    streams: tuple[str, ...]
    arrows: Ints
    memory: tuple[MemoryCurve, ...] = ()
    inner: tuple[InnerSteps, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """A row per slice: class and rank, stream, what it is and its kind, stage, microbatch, times in s, bytes."""
        import pandas as pd

        rows = self.slices
        names, kinds = (np.array([getattr(label, word) for label in self.labels]) for word in ("name", "kind"))
        ranks = np.array([each.representative_rank for each in self.classes])
        return pd.DataFrame(
            {
                "class": np.array([each.name for each in self.classes])[rows.class_id],
                "rank": ranks[rows.class_id],
                "stream": np.array(self.streams)[rows.stream],
                "name": names[rows.label],
                "kind": kinds[rows.label],
                "stage": rows.stage,
                "microbatch": rows.microbatch,
                "start_s": rows.start_ns / NS_PER_S,
                "duration_s": (rows.finish_ns - rows.start_ns) / NS_PER_S,
                "size_bytes": rows.size_bytes,
            }
        )

    @property
    def span_ns(self) -> int:
        """When the last slice ends."""
        return int(self.slices.finish_ns.max(initial=0))

    def kind_codes(self) -> Ints:
        """The index in KINDS of every slice's kind; -1 for kinds that are not drawn (joins)."""
        codes = [KINDS.index(label.kind) if label.kind in KINDS else -1 for label in self.labels]
        return np.array([*codes, -1], dtype=np.int64)[self.slices.label]


def from_program(
    program: Program,
    timing: Timing,
    classes: Sequence[RankClass],
    *,
    memory: Sequence[MemoryCurve] = (),
    inside: tuple[Ints, tuple[InnerSteps, ...]] | None = None,
) -> Timeline:
    """The timeline of a timed Program: a slice per (op, stream), arrows from messages to the ops that waited.

    ``classes`` describe the Program's rank classes in order, ``memory`` their curves (or none), ``inside`` the steps of
    merged ops from :func:`simpar.report.detail.inner_steps`.
    """
    stream, op = program.streams.owners(), program.streams.item
    names = tuple(dict.fromkeys(program.stream_names))
    position = np.array([names.index(name) for name in program.stream_names], dtype=np.int64)
    inner_of_op, inner = inside or (np.full(len(program), -1, dtype=np.int64), ())
    slices = Slices(
        class_id=program.stream_class[stream],
        stream=position[stream],
        start_ns=timing.start_ns[op],
        finish_ns=timing.finish_ns[op],
        label=program.ops.label[op].astype(np.int64),
        stage=program.ops.stage[op].astype(np.int64),
        microbatch=program.ops.microbatch[op].astype(np.int64),
        size_bytes=program.ops.work_bytes[op],
        # an op on several streams is opened once, on the first of them
        inner=np.where(position[stream] == 0, inner_of_op[op], -1),
    )
    arrows = _arrows(program, slices, op)
    return Timeline(slices, program.labels, tuple(classes), names, arrows, tuple(memory), inner)


def _arrows(program: Program, slices: Slices, op: Indices) -> Ints:
    """Rows (message, waiting slice) of every dependency on a pipeline message by an op of another class."""
    row_of_op = np.full(len(program), -1, dtype=np.int64)
    row_of_op[op[::-1]] = np.arange(len(op))[::-1]
    is_message = np.array([label.kind == PIPELINE for label in program.labels], dtype=bool)[program.ops.label]
    waits = program.dependencies
    on_message = np.flatnonzero(is_message[waits.item])
    waiting = np.searchsorted(waits.pointer, on_message, side="right") - 1
    pairs = np.stack([row_of_op[waits.item[on_message]], row_of_op[waiting]], axis=1)
    pairs = pairs[(pairs >= 0).all(axis=1)]
    elsewhere = slices.class_id[pairs[:, 0]] != slices.class_id[pairs[:, 1]]
    return np.asarray(pairs[elsewhere], dtype=np.int64)


@dataclass(frozen=True)
class Blocks:
    """Blocks of a stage: start and duration in s, index in KINDS, chunk of the rank, microbatch (or -1)."""

    start_s: Floats
    duration_s: Floats
    kind: Ints
    chunk: Ints
    microbatch: Ints

    def __len__(self) -> int:
        return len(self.start_s)

    def of_kind(self, *kinds: str) -> Blocks:
        """The blocks of the given kinds."""
        rows = np.flatnonzero(np.isin(self.kind, [KINDS.index(kind) for kind in kinds]))
        return self._take(rows)

    def cut(self, idle: IdleSpans) -> Blocks:
        """The blocks without the idle pieces that lie inside passes: a pass that waits is drawn in parts."""
        of_pass = np.isin(self.kind, [KINDS.index(kind) for kind in PASS_KINDS])
        passes, rest = (self._take(np.flatnonzero(rows)) for rows in (of_pass, ~of_pass))
        passes = passes._take(np.argsort(passes.start_s, kind="stable"))
        finish, resumed = passes.start_s + passes.duration_s, idle.start_s + idle.duration_s
        block = np.searchsorted(passes.start_s, idle.start_s, side="right") - 1
        inside = np.flatnonzero((block >= 0) & (resumed < np.append(finish, 0.0)[block]))
        of = np.append(np.arange(len(passes)), block[inside])
        start, stop = np.append(passes.start_s, resumed[inside]), np.append(finish, idle.start_s[inside])
        start, stop = (times[np.lexsort((times, of))] for times in (start, stop))
        parts = replace(passes._take(np.sort(of)), start_s=start, duration_s=stop - start)
        return Blocks(
            **{name: np.append(getattr(parts, name), getattr(rest, name)) for name in self.__dataclass_fields__}
        )

    def _take(self, rows: Ints) -> Blocks:
        return Blocks(**{name: getattr(self, name)[rows] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class IdleSpans:
    """When a stage computes nothing: start and duration in s, index in IDLE_CAUSES."""

    start_s: Floats
    duration_s: Floats
    cause: Ints

    @staticmethod
    def of(begin_ns: Ints, end_ns: Ints, cause: Ints, names: Sequence[str], span_ns: int) -> IdleSpans:
        """Idle pieces in time order, without those too short to be seen.

        ``cause`` indexes ``names``, the causes of the breakdown; any cause that is not in IDLE_CAUSES is exposed
        communication.
        """
        codes = [IDLE_CAUSES.index(name) if name in IDLE_CAUSES else 0 for name in names]
        cause = np.array(codes, dtype=np.int64)[cause]
        joined = (begin_ns[1:] == end_ns[:-1]) & (cause[1:] == cause[:-1])
        first = np.append(True, ~joined)[: len(cause)]
        last = np.append(~joined, True)[: len(cause)]
        begin_ns, length_ns, cause = begin_ns[first], end_ns[last] - begin_ns[first], cause[first]
        seen = length_ns * MAX_IDLE >= span_ns
        return IdleSpans(begin_ns[seen] / NS_PER_S, length_ns[seen] / NS_PER_S, cause[seen])


@dataclass(frozen=True)
class StagePlot:
    """A pipeline rank as plots show it: the slowest of its classes at full speed, or of those that are slower.

    ``idle`` says when and why it computes nothing; ``parts_s`` splits its step like the breakdown (empty in results of
    older versions).
    """

    name: str
    pipeline_rank: int
    multiplicity: int
    blocks: Blocks
    memory: MemoryCurve | None = None
    idle: IdleSpans | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Overview:
    """The compact timeline: views by pipeline rank, and the length of the step in s.

    A pipeline rank has one view; a second one behind it where some of its ranks are slower than others.

    ``held`` is what the fullest rank holds at its peak, ``roofline`` what products and attention reach (None in results
    of older versions).
    """

    stages: tuple[StagePlot, ...]
    step_time_s: float
    held: HeldAtPeak | None = None
    roofline: Roofline | None = None

    def of_pipeline_rank(self, rank: int) -> StagePlot:
        """Its ranks at full speed, if there are any."""
        return next(each for each in self.stages if each.pipeline_rank == rank)

    @property
    def num_pipeline_ranks(self) -> int:
        """How many pipeline ranks there are."""
        return len({each.pipeline_rank for each in self.stages})

    def __getstate__(self) -> dict[str, Any]:
        """Its fields, with what has not been asked for."""
        return values_of(self)


Overview.held, Overview.roofline = (WhenAsked(name) for name in ("held", "roofline"))  # type: ignore[assignment]


def overview(timeline: Timeline) -> Overview:
    """Reduce a timeline to the classes that are shown and one block per run of one kind.

    Communication inside passes (of tensor, context and expert parallelism) is part of the block it serves.
    """
    codes, inside = timeline.kind_codes(), KINDS.index("tp")
    stages = []
    for class_id in choose_shown_classes(timeline):
        entry = timeline.classes[class_id]
        rows = np.flatnonzero((timeline.slices.class_id == class_id) & (codes >= 0) & (codes != inside))
        curve = timeline.memory[class_id].thin() if timeline.memory else None
        blocks = _blocks(timeline.slices.take(rows), codes[rows])
        stages.append(StagePlot(entry.name, entry.pipeline_rank, entry.multiplicity, blocks, curve))
    return Overview(tuple(stages), timeline.span_ns / NS_PER_S)


def choose_shown_classes(timeline: Timeline) -> tuple[int, ...]:
    """For every pipeline rank the class that ends its compute last; of equals, the one with most ranks.

    Behind it stands the slowest of those with slow ranks, of equals again the one that ends last.
    """
    best: dict[tuple[int, bool], tuple[tuple[float, int, int], int]] = {}
    slices = timeline.slices
    for class_id, entry in enumerate(timeline.classes):
        finish = int(slices.finish_ns[slices.class_id == class_id].max(initial=0))
        row, rating = (entry.pipeline_rank, entry.slowdown > 1), (entry.slowdown, finish, entry.multiplicity)
        if row not in best or rating > best[row][0]:
            best[row] = (rating, class_id)
    return tuple(best[row][1] for row in sorted(best))


def _blocks(slices: Slices, codes: Ints) -> Blocks:
    """Merge neighbours of one stream, kind, stage and microbatch; an op on several streams counts once."""
    order = np.lexsort((slices.finish_ns, slices.start_ns, slices.stream))
    slices, codes = slices.take(order), codes[order]
    if not len(slices):
        empty, none = np.zeros(0), np.zeros(0, dtype=np.int64)
        return Blocks(empty, empty, none, none, none)
    same = np.ones(len(slices), dtype=bool)
    same[0] = False
    for column in (slices.stream, codes, slices.stage, slices.microbatch):
        same[1:] &= column[1:] == column[:-1]
    # Gaps between the kernels of one action belong to it; messages with a gap between them stay apart.
    in_pass = np.isin(codes, [KINDS.index(kind) for kind in PASS_KINDS])
    same[1:] &= in_pass[1:] | (slices.start_ns[1:] <= slices.finish_ns[:-1])
    first = np.flatnonzero(~same)
    start = slices.start_ns[first]
    finish = np.maximum.reduceat(slices.finish_ns, first)
    columns = np.stack([start, finish, codes[first], _chunks(slices.stage)[first], slices.microbatch[first]])
    columns = columns[:, np.lexsort(columns[::-1])]
    columns = columns[:, np.append(True, (columns[:, 1:] != columns[:, :-1]).any(axis=0))]
    return Blocks(columns[0] / NS_PER_S, (columns[1] - columns[0]) / NS_PER_S, columns[2], columns[3], columns[4])


def _chunks(stage: Ints) -> Ints:
    """Position of each virtual stage among those of the rank; -1 stays -1."""
    known = unique(stage[stage >= 0])
    return np.where(stage >= 0, np.searchsorted(known, stage), -1)


def to_json(view: Overview) -> dict[str, Any]:
    """The overview as plain data: blocks are [start_s, duration_s, kind, chunk, microbatch]."""
    return {
        "step_time_s": view.step_time_s,
        "stages": [_stage_to_json(stage) for stage in view.stages],
        "held": view.held and view.held.model_dump(),
        "roofline": view.roofline and view.roofline.model_dump(),
    }


def _stage_to_json(stage: StagePlot) -> dict[str, Any]:
    blocks = stage.blocks
    kinds = [KINDS[code] for code in blocks.kind]
    rows = zip(*(c.tolist() for c in (blocks.start_s, blocks.duration_s)), kinds, *(
        c.tolist() for c in (blocks.chunk, blocks.microbatch)), strict=True)  # fmt: skip
    memory = stage.memory
    return {
        "name": stage.name,
        "pipeline_rank": stage.pipeline_rank,
        "multiplicity": stage.multiplicity,
        "blocks": [list(row) for row in rows],
        "idle": None if stage.idle is None else _idle_rows(stage.idle),
        "parts_s": dict(stage.parts_s),
        "memory": None
        if memory is None
        else {"time_s": memory.time_s.tolist(), **{name: part.tolist() for name, part in memory.parts.items()}},
    }


def _idle_rows(idle: IdleSpans) -> list[list[Any]]:
    """Pieces as [start_s, duration_s, cause]."""
    causes = [IDLE_CAUSES[code] for code in idle.cause]
    columns = (idle.start_s.tolist(), idle.duration_s.tolist(), causes)
    return [list(row) for row in zip(*columns, strict=True)]


def from_json(data: Mapping[str, Any]) -> Overview:
    """Read what :func:`to_json` wrote. Raises KeyError, TypeError or ValueError for other data."""
    stages = tuple(_stage_from_json(stage) for stage in data["stages"])
    held, roofline = data.get("held"), data.get("roofline")
    return Overview(
        stages,
        float(data["step_time_s"]),
        held and HeldAtPeak.model_validate(held),
        roofline and Roofline.model_validate(roofline),
    )


def _stage_from_json(data: Mapping[str, Any]) -> StagePlot:
    memory = data["memory"]
    curve = None
    if memory is not None:
        columns = {name: np.array(values, dtype=np.float64) for name, values in memory.items()}
        curve = MemoryCurve(columns.pop("time_s"), columns)
    return StagePlot(
        name=str(data["name"]),
        pipeline_rank=int(data["pipeline_rank"]),
        multiplicity=int(data["multiplicity"]),
        blocks=_blocks_from_rows(data["blocks"]),
        memory=curve,
        idle=None if data.get("idle") is None else _idle_from_rows(data["idle"]),
        parts_s={str(name): float(value) for name, value in data.get("parts_s", {}).items()},
    )


def _idle_from_rows(rows: Sequence[Sequence[Any]]) -> IdleSpans:
    start, duration, cause = zip(*rows, strict=True) if rows else ((), (), ())
    return IdleSpans(
        start_s=np.array(start, dtype=np.float64),
        duration_s=np.array(duration, dtype=np.float64),
        cause=np.array([IDLE_CAUSES.index(name) for name in cause], dtype=np.int64),
    )


def _blocks_from_rows(rows: Sequence[Sequence[Any]]) -> Blocks:
    start, duration, kind, chunk, microbatch = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return Blocks(
        start_s=np.array(start, dtype=np.float64),
        duration_s=np.array(duration, dtype=np.float64),
        kind=np.array([KINDS.index(name) for name in kind], dtype=np.int64),
        chunk=np.array(chunk, dtype=np.int64),
        microbatch=np.array(microbatch, dtype=np.int64),
    )
