"""The axes of the uniform space as a table: what a launcher can choose, and which choices repeat another.

An axis has a domain (a few values) and a rule: a vectorised mask over rows that says which values are legal there and
do not merely rename the plan of another row. Axes are joined in the order of the table, so a rule sees the axes before
its own. An entry also says what its axis decides, which determines the keys under which searches share computations. To
add an axis, add an entry; its name is a flat key of the Plan, or it has a path. Axes that are searched on request only
are in :mod:`simpar.planner.space.optional_axes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simpar.models.recompute import OPTIMAL, SIMPLE, every
from simpar.plan import flat
from simpar.plan.check import MAX_PASSES, Target, allows_tensor_parallel, keeps_rules, refuse_tensor_parallel
from simpar.plan.mirrored import FOLDED
from simpar.plan.plan import Plan
from simpar.plan.schedules import SCHEDULES, declared, usual_schedule
from simpar.plan.sync import apart
from simpar.planner.problem import Problem
from simpar.planner.space.table import Mask, Rows

DEFAULT_ORDER = "tp-cp-dp-pp"
ORDERS = (DEFAULT_ORDER, "tp-cp-pp-dp")
RECOMPUTE = (*SIMPLE, every(2))
MAX_MICRO_BATCH = 64
STATES_ASKED = ("offload", "reshard", "sync")
"""First parts of the names of requested axes that make ZeRO-3 differ from ZeRO-2 in any pipeline."""
LEAST_PIECE = 2048
"""A rank's piece of a sequence is shorter than this many tokens only if the sequence is halved once."""
MEMORY, BLOCKS, SHAPE, REPLICAS = "memory", "blocks", "shape", "replicas"
"""What an axis may decide.

MEMORY: whether a plan fits. BLOCKS: kernels and collectives of the passes of a block. SHAPE: how stages are cut and
ordered. REPLICAS: what ranks with the same parameters send each other, and when.
"""


def axis_named(name: str) -> str:
    """The axis of a Plan key, or of a synonym of one."""
    name = flat.SYNONYMS.get(name, name)
    return "order" if name == "rank_order" else name


@dataclass(frozen=True)
class Axis:
    """One axis: its name, its domain, a mask of the rows to keep, and what it ``decides``.

    ``path`` is its section and field in a Plan if its name is not a flat key of it.
    """

    name: str
    decides: frozenset[str]
    domain: Callable[[Problem], Sequence[Any]]
    keep: Callable[[Rows], Mask]
    path: tuple[str, str] | None = None


def divisors(number: int, most: int | None = None) -> list[int]:
    """Divisors of a number up to ``most``, in ascending order."""
    return [n for n in range(1, min(number, most or number) + 1) if number % n == 0]


def undecided(rows: Rows, which: Any = ...) -> Mask:
    """Which rows still wait for the choice by layer that ``recompute: optimal`` stands for."""
    names = rows.domain.get("recompute", ())
    if OPTIMAL not in names:
        return np.zeros(rows.count if which is ... else len(np.atleast_1d(which)), dtype=bool)
    return np.atleast_1d(rows.code["recompute"][which] == names.index(OPTIMAL))


def everything(rows: Rows) -> Mask:
    """All rows."""
    return np.ones(rows.count, dtype=bool)


def tensor_degrees(problem: Problem) -> list[int]:
    """Tensor-parallel degrees that divide the devices and the sizes of the model."""
    degrees, target = divisors(problem.cluster.world_size, int(problem.graph.dims["heads"])), _target(problem)
    return [tp for tp in degrees if allows_tensor_parallel(tp, target)]


def _tensor_fits(rows: Rows) -> Mask:
    """Rows with degrees that the model allows. Raises UserError with the reason if it allows none."""
    legal = np.isin(rows["tp"], tensor_degrees(rows.problem))
    if not legal.any():
        for tp in rows.domain["tp"]:
            refuse_tensor_parallel(tp, _target(rows.problem))
    return legal


def _target(problem: Problem) -> Target:
    return Target(problem.graph, problem.training, problem.cluster.world_size, 1)


def _context_degrees(problem: Problem) -> list[int]:
    """Degrees that halve any sequence or leave at least LEAST_PIECE tokens; 1 for models with recurrent state.

    If activations fill the memory, context parallelism beats more recomputation or tensor ranks at any length.
    """
    if problem.graph.has_state:
        return [1]
    return divisors(problem.training.seq_len, max(2, problem.training.seq_len // LEAST_PIECE))


def _context_fits(rows: Rows) -> Mask:
    """Rows whose sequence divides into the chunks of every rank."""
    problem, choice = rows.problem, rows.problem.base.context_parallel
    seq, asked = problem.training.seq_len, {"cp_method", "cp_balance"} & set(problem.constraints.fixed)
    chunks = 1 if asked or "contiguous" in (choice.cp_balance, problem.stack.context.balance) else 2
    return np.asarray((rows["cp"] == 1) | (seq % (rows["cp"] * chunks) == 0))


def _schedule_fits(rows: Rows) -> Mask:
    """Rows whose schedule is allowed and distinct.

    One schedule stands for all if nothing is pipelined, and for those without split backwards if there is a single
    microbatch.
    """
    pp, m = rows["pp"], rows["microbatches"]
    names = rows.domain["schedule"]
    single = [at for at, name in enumerate(names) if declared(name).chunks == 1 and name not in FOLDED]
    first = np.isin(rows.code["schedule"], single[:1])
    alike = [names[at] for at in single if not (declared(names[at]).splits or declared(names[at]).sliced)]
    plain = (pp == 1) | ((m == 1) & rows.one_of("schedule", *alike))
    legal = everything(rows)
    for name in names:
        legal &= ~rows.one_of("schedule", name) | declared(name).allows(pp, m)
    found = np.where(plain, first, legal)
    for name in with_slices_of_tokens(rows):
        may = (rows["cp"] == 1) & may_be_sliced(rows.problem, name)
        found &= ~rows.one_of("schedule", name) | may
    return np.asarray(found)


def both_ends(rows: Rows) -> Mask:
    """Rows whose microbatches enter at both ends of the pipeline."""
    return rows.one_of("schedule", *FOLDED)


def with_slices_of_tokens(rows: Rows) -> list[str]:
    """The schedules of the rows' domain that run token slices."""
    return [name for name in map(str, rows.domain["schedule"]) if declared(name).sliced]


def may_be_sliced(problem: Problem, schedule: str) -> bool:
    """Whether sequences of the problem may pass through a pipeline in token slices."""
    plan = problem.base.with_values(schedule=schedule, layers=None, actions=None)
    return keeps_rules(plan, Target(problem.graph, problem.training, problem.cluster.world_size, 1), "slices")


def _chunks_fit(rows: Rows) -> Mask:
    """Rows with several chunks only if the schedule has them and layers spread evenly over them, or nearly so."""
    layers, stages, vpp = len(rows.problem.graph.layers), rows["stages"], rows["vpp"]
    even = (layers % stages == 0) | ((layers + 2) % stages == 0) | (vpp <= 4)
    right = np.zeros(rows.count, dtype=bool)
    for name in map(str, rows.domain["schedule"]):
        each = declared(name)
        right |= rows.one_of("schedule", name) & ((vpp > 1) & even if each.any_chunks else vpp == each.chunks)
    short = stages * rows["microbatches"] <= MAX_PASSES
    return np.asarray(right & short & (stages <= layers + 2) & ((rows["pp"] > 1) | (vpp == 1)))


def _zero_fits(rows: Rows) -> Mask:
    """Rows with one ZeRO stage if no rank shares parameters; FSDP shards at least gradients."""
    fsdp = rows.problem.base.data_parallel.kind == "fsdp"
    least = 2 if fsdp else 0
    alone = (rows.code["zero"] == 0) | (shares(rows) & (rows["zero"] >= max(least, 1)))
    return np.asarray(np.where(rows["width"] > 1, rows["zero"] >= least, alone))


def _replicas_fit(rows: Rows) -> Mask:
    """Rows with replicas of fully sharded states; as many replicas as sharding ranks would shard nothing."""
    width, hsdp = rows["width"], rows["hsdp"]
    legal = (width % hsdp == 0) & (width // hsdp > 1) & (rows["zero"] == 3)
    if rows.problem.graph.is_mixture:
        legal &= rows["copies"] % hsdp == 0
    return np.asarray(np.where(hsdp == 1, ~_repeats_stage_two(rows), legal))


def _repeats_stage_two(rows: Rows) -> Mask:
    """Rows where ZeRO-3 equals ZeRO-2: pipelines that gather parameters once a step keep them either way.

    Not if something was asked for that tells the two apart, nor with frozen weights, which ZeRO-3 alone shards.
    """
    problem, base = rows.problem, rows.problem.base
    none = np.zeros(rows.count, dtype=bool)
    if not problem.stack.overlap.once_in_pipelines or 2 not in rows.domain["zero"]:
        return none
    if base.data_parallel.kind is None and problem.stack.data_parallel != "fsdp":
        return none
    asked = any(name.startswith(STATES_ASKED) for name in problem.constraints.fixed)
    differs = base.offload.is_used or base.data_parallel.reshard_after_forward is not None or apart(base)
    if asked or differs or problem.held_to is not None or _has_frozen(problem):
        return none
    return np.asarray(fully_sharded(rows) & (rows["zero"] == 3) & (rows["pp"] > 1))


def _has_frozen(problem: Problem) -> bool:
    operators = (op for block in problem.graph.blocks.values() for op in block.operators)
    return any(not weight.trainable for op in operators for weight in op.weights)


def _sequence_fits(rows: Rows) -> Mask:
    lengths = {int(dims.get("seq", rows.problem.training.seq_len)) for dims in rows.problem.graph.scopes}
    legal = rows["tp"] > 1
    for length in sorted(lengths):
        legal = legal & (length // rows["cp"] % rows["tp"] == 0)
    needed = (rows["ep"] > 1) & (rows["tp"] > 1)  # sequence parallelism: each token comes from one rank
    return np.asarray(np.where(rows["sequence_parallel"], legal, ~needed))


def _reduce_overlap_fits(rows: Rows) -> Mask:
    """Rows that reduce after the last backward only if whole gradients are kept: under ZeRO-2 and 3 in few stacks."""
    once = rows.problem.stack.once_a_step(fully_sharded(rows), rows["pp"])
    kept = (rows["zero"] < 2) | once
    first = rows.code["overlap_grad_reduce"] == 0  # stands for both values if nothing is reduced
    return np.asarray(rows["overlap_grad_reduce"] | (kept & (shares(rows) | first)))


def shares(rows: Rows) -> Mask:
    """Rows in which several ranks have the same parameters: model replicas, or expert replicas among tensor ranks."""
    return np.asarray((rows["width"] > 1) | (rows["copies"] > 1))


def gathers(rows: Rows) -> Mask:
    """Rows in which ranks hold shards of the parameters they update."""
    return np.asarray((rows["zero"] > 0) & (np.maximum(rows["width"], rows["copies"]) > rows["hsdp"]))


def fully_sharded(rows: Rows) -> Mask:
    """Rows in which data parallelism works block by block (FSDP) instead of on flat buckets."""
    kind = rows.problem.base.data_parallel.kind
    return rows.problem.stack.shards(rows["zero"]) if kind is None else np.full(rows.count, kind == "fsdp")


def _order_matters(rows: Rows) -> Mask:
    """Rows in which data and pipeline ranks share domains; identical whole domains may be swapped.

    An export target may support only one of the orders.
    """
    problem = rows.problem
    cluster, differ = problem.cluster, problem.perturbation
    alike = not (cluster.leaves_bind or cluster.scaling or differ.slow_ranks or differ.jitter_sigma > 0)
    alike = alike and problem.held_to is None
    whole = (rows["tp"] * rows["cp"] % cluster.domain_size == 0) & alike
    return np.asarray((rows.code["order"] == 0) | ((rows["width"] > 1) & (rows["pp"] > 1) & ~whole))


def _schedules(problem: Problem) -> list[str]:
    """The schedules to search; the usual one comes first and stands for all if nothing is pipelined."""
    asked = problem.constraints.schedules
    kinds = ("by default", "when named") if asked else ("by default",)
    found = [each.name for each in SCHEDULES.values() if each.searched in kinds]
    return sorted((name for name in found if name in (asked or found)), key=usual_schedule().__ne__)


def deciding(*what: str) -> frozenset[str]:
    """A set of what an axis decides, from MEMORY, BLOCKS, SHAPE, REPLICAS."""
    return frozenset(what)


AXES = (
    Axis("tp", deciding(MEMORY, BLOCKS, REPLICAS), tensor_degrees, _tensor_fits),
    Axis("cp", deciding(MEMORY, BLOCKS, REPLICAS), _context_degrees, _context_fits),
    Axis(
        "pp",
        deciding(MEMORY, SHAPE, REPLICAS),
        lambda problem: divisors(problem.cluster.world_size, len(problem.graph.layers) + 2),
        lambda rows: (
            (rows.problem.cluster.world_size % (rows["tp"] * rows["cp"] * rows["pp"]) == 0)
            & (rows.problem.training.global_batch % np.maximum(rows["dp"], 1) == 0)
        ),
    ),
    Axis(  # over ranks of one stage
        "ep",
        deciding(MEMORY, BLOCKS, REPLICAS),
        lambda problem: divisors(problem.graph.dims["experts"]) if problem.graph.is_mixture else [1],
        lambda rows: (rows["ep"] == 1) | (rows["tp"] * rows["width"] % rows["ep"] == 0),
    ),
    Axis(
        "micro_batch",
        deciding(MEMORY, BLOCKS),
        lambda problem: divisors(problem.training.global_batch, MAX_MICRO_BATCH),
        lambda rows: rows.problem.training.global_batch // rows["dp"] % rows["micro_batch"] == 0,
    ),
    Axis("schedule", deciding(MEMORY, SHAPE), _schedules, _schedule_fits),
    Axis(
        "vpp",
        deciding(MEMORY, SHAPE),
        lambda problem: range(1, (len(problem.graph.layers) + 2) // 2 + 1),
        _chunks_fit,
    ),
    Axis("zero", deciding(MEMORY, REPLICAS), lambda _: (0, 1, 2, 3), _zero_fits),
    Axis(
        "hsdp",
        deciding(MEMORY, REPLICAS),
        lambda problem: divisors(problem.cluster.world_size),
        _replicas_fit,
    ),
    Axis("sequence_parallel", deciding(MEMORY, BLOCKS, REPLICAS), lambda _: (False, True), _sequence_fits),
    Axis(  # a choice by layer is made for whole sequences that enter at the first rank
        "recompute",
        deciding(MEMORY, SHAPE),
        lambda _: RECOMPUTE,
        lambda rows: (
            ~rows.one_of("recompute", OPTIMAL)
            | ~rows.one_of("schedule", *with_slices_of_tokens(rows), *FOLDED)
        ),
    ),
    Axis(
        "tp_overlap",
        deciding(BLOCKS),
        lambda _: (False, True),
        lambda rows: ~rows["tp_overlap"] | rows["sequence_parallel"],
        path=("tensor_parallel", "overlap"),
    ),
    Axis("overlap_grad_reduce", deciding(REPLICAS), lambda _: (True, False), _reduce_overlap_fits),
    Axis(  # only where whole parameters are gathered once a step
        "overlap_param_gather",
        deciding(REPLICAS),
        lambda _: (True, False),
        lambda rows: (rows.code["overlap_param_gather"] == 0) | (gathers(rows) & ~fully_sharded(rows)),
    ),
    Axis("order", deciding(REPLICAS), lambda _: ORDERS, _order_matters, path=("mesh", "order")),
)
AXIS_NAMES = tuple(axis.name for axis in AXES)
MEMORY_AXES = tuple(axis for axis in AXES if MEMORY in axis.decides)
LATE_AXES = tuple(axis for axis in AXES if MEMORY not in axis.decides)
"""Axes that do not change memory: they are joined only to the rows that fit."""
_PATHS = {axis.name: axis.path for axis in AXES if axis.path}


def path_of(name: str) -> tuple[str, str]:
    """Section and field of an axis, or of any flat key, in a Plan; the section is empty for top-level keys."""
    return _PATHS.get(name, (flat.SECTION_OF.get(name, ""), name))


def written(name: str, value: Any) -> dict[str, Any]:
    """A value of an axis as a plan file has it."""
    if name not in _PATHS:
        return {name: value}
    section, field = _PATHS[name]
    return {section: {field: flat.axes(value)}}


def value_of(plan: Plan, name: str) -> Any:
    """A plan's value on an axis or flat key, as searches name it; the usual schedule if none is given."""
    if name == "schedule":
        return plan.schedule
    if name not in _PATHS:
        return plan.said(name)
    section, field = _PATHS[name]
    found = getattr(getattr(plan, section), field)
    return "-".join(found) if name == "order" else found
